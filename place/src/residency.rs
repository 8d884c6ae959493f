// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is a buffer in cache? Times a few loads of lines spread over source and target.
//!
//! - **Flow** four lines of the source, each load fenced between two reads of the time-stamp counter, against the
//!   calibrated limit ──▶ all cached: hot; else four of the target too ──▶ cold if at most one of
//!   the eight is cached
//! - **Cost** one or two hundred nanoseconds when hot, half a microsecond when cold, which is a hundredth of the copy
//! - **Limits** where the counter traps into a hypervisor or is missing the answer is Unknown. A sampled line is in cache
//!   afterwards: the same lines are not sampled twice in a row, because their place varies.
//!
//! SmartDIMM asks the cache-miss counters of the CPU instead; those are not there in most virtual machines.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Result of a sample: the buffers are in cache, or not, or it cannot be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// The buffers are in cache.
    Hot,
    /// They are not.
    Cold,
    /// The samples disagree.
    Unknown,
}

/// Lines of each buffer that are looked at.
const LINES: usize = 4;
const LINE_BYTES: usize = 64;

impl Residency {
    /// Looks at both buffers. `hot_cycles` is the most that a cached load takes; 0: cannot be told.
    ///
    /// # Safety
    ///
    /// `source` and `target` are readable for `bytes`.
    pub unsafe fn sample(target: *const u8, source: *const u8, bytes: usize, hot_cycles: u32) -> Residency {
        if hot_cycles == 0 || bytes < LINES * LINE_BYTES || !clock_is_cheap() {
            return Residency::Unknown;
        }
        // SAFETY: `source` is readable for `bytes`, as the caller vouches, and `bytes` is at least four lines.
        let source = unsafe { hot_lines(source, bytes, hot_cycles) };
        if source == LINES {
            return Residency::Hot;
        }
        // Streaming what is cached costs more than it saves on what is not, so Cold needs (nearly) all lines.
        // SAFETY: `target` is readable for `bytes`, as the caller vouches, and `bytes` is at least four lines.
        let target = unsafe { hot_lines(target, bytes, hot_cycles) };
        if source + target >= 2 { Residency::Hot } else { Residency::Cold }
    }
}

/// Cycles of one load of each address, timing included; `None` where the counter is missing or traps.
///
/// # Safety
///
/// The addresses are readable.
pub unsafe fn timed_loads<const N: usize>(addresses: [*const u8; N]) -> Option<[u32; N]> {
    // SAFETY: a load takes one byte of each address, and the caller vouches that it is readable.
    clock_is_cheap().then(|| addresses.map(|address| unsafe { timed_load(address) }))
}

/// How many of the lines sampled are in cache.
unsafe fn hot_lines(buffer: *const u8, bytes: usize, hot_cycles: u32) -> usize {
    // SAFETY: `sample` passes a buffer that is readable for `bytes`, at least four lines.
    let cycles = unsafe { load_cycles(buffer, bytes) };
    cycles.into_iter().filter(|&cycles| cycles <= hot_cycles).count()
}

/// Cycles that loads of four lines spread over a buffer take, the timing included.
///
/// # Safety
///
/// `buffer` is readable for `bytes`, at least four lines.
pub(super) unsafe fn load_cycles(buffer: *const u8, bytes: usize) -> [u32; LINES] {
    // A different place each time, so that a sample does not find what the last one brought in.
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let turn = TURN.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9);
    TURN.store(turn, Ordering::Relaxed);
    let stride = bytes / LINES;
    let jitter = (turn >> 8) % (stride / LINE_BYTES).max(1) * LINE_BYTES;
    let mut cycles = [0; LINES];
    for (index, cycles) in cycles.iter_mut().enumerate() {
        let offset = (index * stride + jitter).min(bytes - 1);
        // SAFETY: the offset lies in the buffer, for which the caller vouches.
        *cycles = unsafe { timed_load(buffer.add(offset)) };
    }
    cycles
}

/// Returns true if reading the time-stamp counter costs tens of cycles, not a trip to the hypervisor.
fn clock_is_cheap() -> bool {
    static CHEAP: OnceLock<bool> = OnceLock::new();
    *CHEAP.get_or_init(|| {
        let byte = 0u8;
        // SAFETY: one readable byte, which stays in cache.
        let least = (0..16).map(|_| unsafe { timed_load(&raw const byte) }).min();
        least.is_some_and(|cycles| (1..1000).contains(&cycles))
    })
}

#[cfg(target_arch = "x86_64")]
unsafe fn timed_load(address: *const u8) -> u32 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: LFENCE and RDTSC have no preconditions on x86-64 user space (a disabled RDTSC faults; `rdtsc` is
    // part of every Linux vDSO clock). The load is the caller's to vouch for; volatile, so it stays in place.
    unsafe {
        _mm_lfence();
        let start = _rdtsc();
        _mm_lfence();
        address.read_volatile();
        _mm_lfence();
        let end = _rdtsc();
        u32::try_from(end.wrapping_sub(start)).unwrap_or(u32::MAX)
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn timed_load(_address: *const u8) -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_limit_nothing_is_told() {
        let bytes = vec![0u8; 1 << 20];
        // SAFETY: both pointers are to the vector's bytes.
        let told = unsafe { Residency::sample(bytes.as_ptr(), bytes.as_ptr(), bytes.len(), 0) };
        assert_eq!(told, Residency::Unknown);
    }

    #[test]
    fn a_limit_that_everything_meets_says_hot_and_one_that_nothing_meets_says_cold() {
        let bytes = vec![1u8; 1 << 20];
        let pointer = bytes.as_ptr();
        // SAFETY: both pointers are to the vector's bytes.
        let (hot, cold) = unsafe {
            (
                Residency::sample(pointer, pointer, bytes.len(), u32::MAX),
                Residency::sample(pointer, pointer, bytes.len(), 1),
            )
        };
        if cfg!(target_arch = "x86_64") && clock_is_cheap() {
            assert_eq!((hot, cold), (Residency::Hot, Residency::Cold));
        }
    }
}
