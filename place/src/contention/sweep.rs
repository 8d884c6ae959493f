// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures contention by a dense sweep over own memory, 1.5 times the second-level cache; needs no privileges and no counters.
//!
//! - **Flow** one lap loads the ring, a second lap is timed. The level is its time per line divided by the lowest such time so far.
//! - **Cost** two laps, about a millisecond; [`super::Contention`] limits this to one percent of the time.
//! - **Limits** a lap during which the thread lost its core would be wrong, so the median of the last three laps counts. The lowest time
//!   is raised by one percent per sweep, so a machine that has become slower for good soon no longer counts as contended.

use super::ring::Ring;
use super::source::Source;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// Size of the second-level cache if the kernel does not tell it, bytes.
const CACHE_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Sweep {
    ring: Option<Ring>,
    best_ns: f64,
    last: [f64; 3],
    count: usize,
}

/// Returns the size of the second-level cache that the kernel reports, bytes.
pub(crate) fn second_level_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size");
        text.ok().and_then(|text| parse(text.trim())).unwrap_or(CACHE_BYTES)
    })
}

fn parse(text: &str) -> Option<usize> {
    let (number, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit).filter(|bytes| (1 << 16..=1 << 26).contains(bytes))
}

impl Source for Sweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn sample(&mut self) -> Option<f64> {
        let ring = self.ring.get_or_insert_with(|| Ring::new(second_level_bytes() * 3 / 2));
        black_box(ring.walk(ring.lines()));
        let start = Instant::now();
        black_box(ring.walk(ring.lines()));
        let ns = start.elapsed().as_nanos() as f64 / ring.lines() as f64;
        self.last[self.count % 3] = ns;
        self.count += 1;
        let mut last = self.last;
        last.sort_by(f64::total_cmp);
        let middle = if self.count < 3 { ns } else { last[1] };
        self.best_ns = if self.best_ns == 0.0 { middle } else { (self.best_ns * 1.01).min(middle) };
        Some(middle / self.best_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_the_kernel_writes_them() {
        assert_eq!(parse("2048K"), Some(2 << 20));
        assert_eq!(parse("1M"), Some(1 << 20));
        assert_eq!(parse(""), None);
        assert_eq!(parse("K"), None);
    }

    #[test]
    fn a_sweep_gives_a_level_of_one_or_more() {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.sample(), Some(1.0), "the first is the best so far");
        assert!(sweep.sample().is_some_and(|level| level >= 1.0));
    }
}
