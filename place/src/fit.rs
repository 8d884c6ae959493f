// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fits robust lines to measured points: Theil–Sen per stretch, with the stretches that fit best.
//!
//! - **Flow** (bytes, ns) points, ascending ──▶ every way to cut them into 1..=3 stretches ──▶ Theil–Sen in each ──▶
//!   the way with the least relative error; a further line is only accepted if it reduces the error enough
//! - **Source** P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968)

use super::model::{LINES, Line};

/// Fewest points of one line.
const POINTS_MIN: usize = 3;
/// A further line must reduce the error to at most this share.
const ERROR_RATIO_MAX: f64 = 0.6;

/// Fits lines to `points`, which ascend in bytes; at least one is needed. The first line also serves smaller
/// sizes, so its intercept is not negative.
pub(super) fn fit(points: &[(u64, f64)]) -> Vec<Line> {
    let mut lines = stretches(points);
    if lines[0].base_ns < 0.0 {
        let until = lines.get(1).map_or(u64::MAX, |line| line.from_bytes);
        let mut ratios: Vec<f64> =
            points.iter().filter(|p| p.0 < until).map(|&(x, y)| y / (x as f64).max(1.0)).collect();
        lines[0] = Line { ns_per_byte: median(&mut ratios), base_ns: 0.0, ..lines[0] };
    }
    lines
}

fn stretches(points: &[(u64, f64)]) -> Vec<Line> {
    let mut best = (vec![theil_sen(points)], 0.0);
    best.1 = error(&best.0[0], points);
    for lines in 2..=LINES {
        let improves = |error: f64| error < best.1 * ERROR_RATIO_MAX && best.1 > points.len() as f64 * 1e-4;
        if let Some(candidate) = cut(points, lines).filter(|candidate| improves(candidate.1)) {
            best = candidate;
        }
    }
    best.0
}

/// Returns the best cut into exactly `lines` stretches, with its error.
fn cut(points: &[(u64, f64)], lines: usize) -> Option<(Vec<Line>, f64)> {
    if lines == 1 {
        let line = theil_sen(points);
        let error = error(&line, points);
        return Some((vec![line], error));
    }
    let mut best: Option<(Vec<Line>, f64)> = None;
    for at in POINTS_MIN..points.len().checked_sub(POINTS_MIN * (lines - 1))? + 1 {
        let head = theil_sen(&points[..at]);
        let head_error = error(&head, &points[..at]);
        let Some((tail, tail_error)) = cut(&points[at..], lines - 1) else { continue };
        let total = head_error + tail_error;
        if best.as_ref().is_none_or(|best| total < best.1) {
            best = Some((std::iter::once(head).chain(tail).collect(), total));
        }
    }
    best
}

/// Returns the Theil–Sen line: its slope is the median of the slopes of all pairs, its intercept the median of
/// the remainders.
fn theil_sen(points: &[(u64, f64)]) -> Line {
    let mut slopes = Vec::new();
    for (index, &(x0, y0)) in points.iter().enumerate() {
        slopes.extend(
            points[index + 1..].iter().filter(|p| p.0 > x0).map(|&(x1, y1)| (y1 - y0) / (x1 - x0) as f64),
        );
    }
    let through_zero = |&(x, y): &(u64, f64)| y / (x as f64).max(1.0);
    if slopes.is_empty() {
        slopes = points.iter().map(through_zero).collect();
    }
    let ns_per_byte = median(&mut slopes).max(0.0);
    let mut rests: Vec<f64> = points.iter().map(|&(x, y)| y - ns_per_byte * x as f64).collect();
    Line { from_bytes: points.first().map_or(0, |p| p.0), ns_per_byte, base_ns: median(&mut rests) }
}

/// Returns the sum of squared relative errors.
fn error(line: &Line, points: &[(u64, f64)]) -> f64 {
    points.iter().map(|&(x, y)| ((line.predict_ns(x as usize) - y) / y.max(1.0)).powi(2)).sum()
}

/// Returns the median; 0 if there are no numbers.
pub(super) fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => 0.0,
        count if count % 2 == 1 => numbers[middle],
        _ => (numbers[middle - 1] + numbers[middle]) / 2.0,
    }
}

/// Returns the lower quartile: the cost of a repeat that nothing disturbed. Noise only adds to a time.
pub(super) fn lower_quartile(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_bad_point_does_not_move_the_line() {
        let mut points: Vec<(u64, f64)> = (1..=9).map(|i| (i * 1000, 100.0 + i as f64 * 500.0)).collect();
        points[4].1 *= 30.0;
        let line = theil_sen(&points);
        assert!((line.ns_per_byte - 0.5).abs() < 0.01, "{line:?}");
        assert!((line.base_ns - 100.0).abs() < 20.0, "{line:?}");
    }

    #[test]
    fn a_knee_gets_two_lines() {
        let cost = |x: u64| if x <= 1 << 21 { 0.03 * x as f64 } else { 0.12 * x as f64 };
        let points: Vec<(u64, f64)> = (16..27).map(|shift| (1 << shift, cost(1 << shift))).collect();
        let lines = fit(&points);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[1].from_bytes, 1 << 22);
        assert!((lines[0].ns_per_byte - 0.03).abs() < 1e-6 && (lines[1].ns_per_byte - 0.12).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn a_straight_line_is_found_exactly(slope in 0.001f64..10.0, base in 0.0f64..1e6, count in 1usize..12) {
            let points: Vec<_> = (0..count).map(|i| (1u64 << (i + 10), base + slope * (1u64 << (i + 10)) as f64)).collect();
            let lines = fit(&points);
            prop_assert_eq!(lines.len(), 1);
            for &(x, y) in &points {
                prop_assert!((lines[0].predict_ns(x as usize) - y).abs() <= y * 1e-6);
            }
        }
    }
}
