// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How large the last-level cache really is here, and how to get everything out of it.
//!
//! - **Flow** random chase through 2 MiB, 4 MiB, … ─▶ latency per size ─▶ the largest size whose latency is nearer to
//!   the cache's than to the memory's ─▶ a sweep that reads more than twice as much
//! - **Why** a virtual machine shares the cache that cpuid describes; only the latency says what is left of it
//!
//! Nearer means below the geometric mean of the latencies of the smallest and the largest size. A cache that is
//! hardly faster than memory does not count as one, but is swept too, as far as the kernel reports it.
//!
//! Time is this thread's CPU time, and the least of three runs: neighbours may not make the cache look small.

use crate::area::Area;
use crate::{BenchError, machine, reference};

const MIB: usize = 1 << 20;
const SIZES_MIB: &[usize] = &[2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Least bytes that a sweep reads.
pub const SWEEP_BYTES_MIN: usize = 256 * MIB;
/// A reported cache larger than this is the host's, not what one guest can fill.
const BELIEVED_BYTES_MAX: usize = 128 * MIB;

/// Size of the last-level cache as measured, bytes.
pub fn measure(quick: bool) -> Result<usize, BenchError> {
    let area = Area::private(SIZES_MIB[SIZES_MIB.len() - 1] * MIB)?;
    let steps = if quick { 50_000 } else { 300_000 };
    let latencies: Vec<(usize, f64)> = SIZES_MIB
        .iter()
        .map(|mib| mib * MIB)
        .map(|bytes| (bytes, reference::chase(area.part(0, bytes), steps, 3)))
        .collect();
    Ok(size(&latencies))
}

fn size(latencies: &[(usize, f64)]) -> usize {
    let (first, last) = (latencies[0].1, latencies[latencies.len() - 1].1);
    let border = (first * last).sqrt();
    latencies
        .iter()
        .take_while(|(_, latency)| *latency < border)
        .last()
        .map_or(latencies[0].0, |(bytes, _)| *bytes)
}

/// Bytes that a sweep must read to evict everything.
pub fn sweep_bytes(cache_bytes: usize) -> usize {
    let believed_bytes = machine::reported_cache_bytes().min(BELIEVED_BYTES_MAX);
    (cache_bytes.max(believed_bytes) * 5 / 2).max(SWEEP_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_the_last_before_the_cliff() {
        let cliff = [(2, 10.0), (4, 11.0), (8, 12.0), (16, 14.0), (32, 80.0), (64, 100.0)];
        assert_eq!(size(&cliff), 16);
        assert_eq!(size(&[(2, 10.0), (4, 10.0)]), 2);
    }

    #[test]
    fn sweep_exceeds_twice_the_cache() {
        assert!(sweep_bytes(MIB) >= SWEEP_BYTES_MIN && sweep_bytes(MIB) <= 320 * MIB);
        assert!(sweep_bytes(200 * MIB) > 400 * MIB);
    }
}
