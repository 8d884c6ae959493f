// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The curve of a profile, for a terminal and as SVG.
//!
//! - **Layout** x: budget in % of the job's need, falling to the right; y: run time as a multiple of the unlimited one
//! - **Not here** the runs: profile.rs

use std::fmt::Write;

use super::launch::Outcome;
use super::profile::Point;

const COLUMNS: usize = 50;

fn slow_down(first: &Outcome, point: &Point) -> f64 {
    point.outcome.wall_s / first.wall_s.max(1e-9)
}

/// Draws a bar per run.
pub fn terminal(first: &Outcome, points: &[Point]) -> String {
    let most = points.iter().map(|point| slow_down(first, point)).fold(1.0, f64::max);
    let mut text = String::new();
    for point in points {
        let slow_down = slow_down(first, point);
        let bar = "█".repeat(((slow_down / most * COLUMNS as f64) as usize).clamp(1, COLUMNS));
        let end = if point.outcome.exit_code == first.exit_code { "" } else { "  did not end well" };
        let _ = writeln!(text, "{:>5.0} %  {bar} {slow_down:.2}×{end}", point.percent);
    }
    text.pop();
    text
}

/// Draws the slow-down over memory of a profile as SVG.
pub fn svg(first: &Outcome, points: &[Point], best: Option<&Point>, accepted: f64) -> String {
    let (width, height, margin) = (640.0, 400.0, 60.0);
    let most = points.iter().map(|point| slow_down(first, point)).fold(accepted.max(1.0), f64::max) * 1.1;
    let largest = points.iter().map(|point| point.percent).fold(100.0, f64::max);
    let least = points.iter().map(|point| point.percent).fold(largest, f64::min).min(largest - 10.0);
    let x = |percent: f64| margin + (largest - percent) / (largest - least) * (width - 2.0 * margin);
    let y = |slow_down: f64| height - margin - slow_down / most * (height - 2.0 * margin);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <path d=\"M{margin} {margin}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{center}\" y=\"{label}\" text-anchor=\"middle\">budget, % of what the job needs</text>\n\
         <text x=\"{margin}\" y=\"{title}\">run time, × unlimited</text>\n\
         <path d=\"M{margin} {limit:.1}H{right}\" stroke=\"gray\" stroke-dasharray=\"4 4\"/>\n",
        bottom = height - margin,
        right = width - margin,
        center = width / 2.0,
        label = height - 15.0,
        title = margin - 15.0,
        limit = y(accepted),
    );
    let line: Vec<String> = points
        .iter()
        .map(|point| format!("{:.1},{:.1}", x(point.percent), y(slow_down(first, point))))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"steelblue\" stroke-width=\"2\"/>",
        line.join(" ")
    );
    for point in points {
        let chosen = best.is_some_and(|best| best.outcome.budget == point.outcome.budget);
        let colour = match (point.outcome.exit_code == first.exit_code, chosen) {
            (false, _) => "firebrick",
            (true, true) => "seagreen",
            (true, false) => "steelblue",
        };
        let (at, over) = (x(point.percent), y(slow_down(first, point)));
        let _ = writeln!(
            svg,
            "<circle cx=\"{at:.1}\" cy=\"{over:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{:.2}</text><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>",
            over - 8.0,
            slow_down(first, point),
            height - margin + 16.0,
            point.percent
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_is_drawn_and_the_chosen_one_stands_out() {
        let outcome = |budget, wall_s, exit_code| Outcome { budget, wall_s, exit_code, ..Outcome::default() };
        let first = outcome(1000, 2.0, 0);
        let points = [
            Point { percent: 80.0, outcome: outcome(800, 2.2, 0) },
            Point { percent: 60.0, outcome: outcome(600, 6.0, 75) },
        ];
        let text = terminal(&first, &points);
        assert!(text.contains("1.10×") && text.contains("3.00×  did not end well"), "{text}");
        let svg = svg(&first, &points, Some(&points[0]), 1.25);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("seagreen") && svg.contains("firebrick") && svg.ends_with("</svg>\n"));
    }
}
