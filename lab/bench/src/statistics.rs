// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From interleaved pairs of times to a ratio and a bound below which it hardly lies.
//!
//! - **Ratio** median of theirs over median of ours: greater than 1 means memlift is better
//! - **Bound** pairs are drawn with replacement [`RESAMPLES`] times, the ratio is taken of each draw, and the
//!   5th percentile of those ratios is the 95 % lower bound (one-sided, percentile bootstrap)
//! - **Order** the draws come from a fixed seed, so the same pairs always give the same bound
//!
//! Source: Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13.

/// Draws per bound.
pub const RESAMPLES: usize = 4000;
/// Fewest pairs that a verdict on time may rest on.
pub const PAIRS_MIN: usize = 21;
const SEED: u64 = 0x6d65_6d6c_6966_7421;

/// One measurement of both sides, in the same unit: (ours, theirs).
pub type Pair = (f64, f64);

/// The middle value, or the mean of the two middle ones. NaN for nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    middle(&mut values)
}

fn middle(values: &mut [f64]) -> f64 {
    let count = values.len();
    if count == 0 {
        return f64::NAN;
    }
    let (below, upper, _) = values.select_nth_unstable_by(count / 2, f64::total_cmp);
    let upper = *upper;
    if count % 2 == 1 {
        return upper;
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (lower + upper) / 2.0
}

/// Median of theirs over median of ours.
pub fn ratio(pairs: &[Pair]) -> f64 {
    median(pairs.iter().map(|pair| pair.1)) / median(pairs.iter().map(|pair| pair.0))
}

/// 95 % lower bound of [`ratio`].
pub fn ratio_low(pairs: &[Pair]) -> f64 {
    geometric_mean_low(&[pairs])
}

/// Geometric mean of the ratios of several rows.
pub fn geometric_mean(rows: &[&[Pair]]) -> f64 {
    (rows.iter().map(|pairs| ratio(pairs).ln()).sum::<f64>() / rows.len() as f64).exp()
}

/// 95 % lower bound of [`geometric_mean`]; every row is drawn from independently. NaN without pairs.
pub fn geometric_mean_low(rows: &[&[Pair]]) -> f64 {
    if rows.is_empty() || rows.iter().any(|pairs| pairs.is_empty()) {
        return f64::NAN;
    }
    let mut draw = Draw(SEED);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut sum = 0.0;
            for pairs in rows {
                ours.clear();
                theirs.clear();
                for _ in 0..pairs.len() {
                    let (a, b) = pairs[draw.below(pairs.len())];
                    ours.push(a);
                    theirs.push(b);
                }
                sum += (middle(&mut theirs) / middle(&mut ours)).ln();
            }
            sum / rows.len() as f64
        })
        .collect();
    let index = RESAMPLES / 20;
    let (_, low, _) = means.select_nth_unstable_by(index, f64::total_cmp);
    low.exp()
}

/// Seeded random numbers (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        ((u128::from(word) * count as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn equal_pairs_have_a_bound_equal_to_their_ratio() {
        let pairs = vec![(2.0, 3.0); 21];
        assert_eq!(ratio(&pairs), 1.5);
        assert!((ratio_low(&pairs) - 1.5).abs() < 1e-12);
    }

    #[test]
    fn bound_lies_below_the_ratio_and_is_reproducible() {
        let mut draw = Draw(7);
        let mut noise = || 1.0 + draw.below(1000) as f64 / 2000.0;
        let pairs: Vec<Pair> = (0..41).map(|_| (noise(), 2.0 * noise())).collect();
        let low = ratio_low(&pairs);
        assert!(low < ratio(&pairs) && low > 1.5, "{low} {}", ratio(&pairs));
        assert_eq!(low, ratio_low(&pairs));
    }

    /// In 400 made-up experiments with a true ratio of 1, the bound may exceed 1 in about 5 % of them.
    #[test]
    fn bound_covers_the_truth() {
        let mut draw = Draw(99);
        let above = (0..400)
            .filter(|_| {
                let mut noise = || 1.0 + draw.below(1 << 20) as f64 / f64::from(1 << 22);
                let pairs: Vec<Pair> = (0..31).map(|_| (noise(), noise())).collect();
                ratio_low(&pairs) > 1.0
            })
            .count();
        assert!((4..=48).contains(&above), "{above} of 400");
    }

    #[test]
    fn one_outlier_does_not_move_the_bound_far() {
        let mut pairs: Vec<Pair> = (0..31).map(|index| (1.0 + f64::from(index) * 1e-3, 2.0)).collect();
        let clean = ratio_low(&pairs);
        pairs[3] = (50.0, 2.0);
        assert!((ratio_low(&pairs) / clean - 1.0).abs() < 0.02);
    }

    #[test]
    fn geometric_mean_of_opposite_rows_is_one() {
        let (a, b) = (vec![(1.0, 2.0); 21], vec![(2.0, 1.0); 21]);
        let rows: [&[Pair]; 2] = [&a, &b];
        assert!((geometric_mean(&rows) - 1.0).abs() < 1e-12);
        assert!((geometric_mean_low(&rows) - 1.0).abs() < 1e-12);
        assert!(geometric_mean_low(&[]).is_nan());
    }
}
