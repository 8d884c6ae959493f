// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the knee: the size up to which memory stays in the caches that this core really has.
//!
//! - **Flow** one size per call (1, 2, 4, 8, 16 MiB): walk a ring of that size once, then time a part of the next lap. After the last
//!   size, the knee is the largest size whose time per line is nearer to the fastest than to the slowest.
//! - **Not here** cache sizes as the CPU states them: a virtual machine often behaves as if it had only a part of them.

use super::ring::Ring;
use std::hint::black_box;
use std::time::Instant;

const SHIFTS: std::ops::RangeInclusive<u32> = 20..=24;
/// Number of lines that are timed.
const TIMED: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct Knee {
    points: Vec<(usize, f64)>,
    bytes: usize,
}

impl Knee {
    /// Measures one size; returns true if it was the last one of a round.
    pub fn measure_next_size(&mut self) -> bool {
        let shift = SHIFTS.start() + self.points.len() as u32;
        let ring = Ring::new(1 << shift);
        black_box(ring.walk(ring.lines()));
        let lines = ring.lines().min(TIMED);
        let start = Instant::now();
        black_box(ring.walk(lines));
        self.points.push((1 << shift, start.elapsed().as_nanos() as f64 / lines as f64));
        if shift < *SHIFTS.end() {
            return false;
        }
        self.bytes = knee(&self.points);
        self.points.clear();
        true
    }

    /// Returns the knee of the last finished round, in bytes; 0 if there is none yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn knee(points: &[(usize, f64)]) -> usize {
    let least = points.iter().fold(f64::INFINITY, |least, point| least.min(point.1));
    let most = points.iter().fold(0.0f64, |most, point| most.max(point.1));
    let between = (least * most).sqrt().max(least * 1.2);
    points.iter().take_while(|point| point.1 <= between).last().map_or(1 << 20, |point| point.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_the_curve_bends() {
        assert_eq!(knee(&[(1, 5.0), (2, 5.5), (4, 7.0), (8, 40.0), (16, 50.0)]), 4);
        assert_eq!(knee(&[(1, 5.0), (2, 5.1), (4, 5.2)]), 4);
        assert_eq!(knee(&[(1, 50.0), (2, 5.0)]), 1 << 20);
    }

    #[test]
    fn a_round_ends_with_a_knee() {
        let mut knee = Knee::default();
        let calls = (1..=10).find(|_| knee.measure_next_size());
        assert_eq!(calls, Some(5));
        assert!((1 << 20..=1 << 24).contains(&knee.bytes()));
    }
}
