// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds out if a buffer is in the cache, by timing a few loads of lines spread over source and target.
//!
//! - **Flow** time some lines of the source, each load fenced between two reads of the time-stamp counter, against a
//!   limit ──▶ all cached: hot; otherwise as many lines of the target too ──▶ cold if at most one of all is cached
//! - **Cost** one or two hundred nanoseconds if hot, half a microsecond if cold, which is a hundredth of the copy
//! - **Limits** if the counter traps into a hypervisor or is missing the result is Unknown. A sampled line is in the
//!   cache afterwards; the positions vary, so that the same lines are not sampled twice in a row.
//!
//! SmartDIMM reads the CPU's cache-miss counters instead; most virtual machines do not have those.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Result of a sample of a copy's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// The buffers are in the cache.
    Hot,
    /// The buffers are not in the cache.
    Cold,
    /// The limit is not known, the buffer is too small, or the counter is missing or slow.
    Unknown,
}

/// Number of lines that are sampled in each buffer of a copy.
pub(super) const LINES: usize = 4;
pub(super) const LINE_BYTES: usize = 64;

impl Residency {
    /// Samples both buffers. `hot_cycles` is the most that a cached load takes; 0: not known.
    ///
    /// # Safety
    ///
    /// `source` and `target` are readable for `bytes`.
    pub unsafe fn sample(target: *const u8, source: *const u8, bytes: usize, hot_cycles: u32) -> Residency {
        if hot_cycles == 0 || bytes < LINES * LINE_BYTES || !clock_is_cheap() {
            return Residency::Unknown;
        }
        // SAFETY: the caller promises that both buffers are readable for `bytes`.
        let cached = unsafe { is_cached::<LINES>((source, bytes), (target, bytes), hot_cycles) };
        if cached { Residency::Hot } else { Residency::Cold }
    }
}

/// Returns true if at least two of `N` lines of the source and as many of the target are in the cache. Streaming a cached
/// buffer costs more than it saves on an uncached one, so nearly all lines must be cold. A buffer of fewer than `N` lines
/// counts as cached.
///
/// # Safety
///
/// Both buffers are readable for their bytes.
pub(super) unsafe fn is_cached<const N: usize>(
    source: (*const u8, usize),
    target: (*const u8, usize),
    hot_cycles: u32,
) -> bool {
    let hot_lines = |(buffer, bytes): (*const u8, usize)| {
        if bytes < N * LINE_BYTES {
            return N;
        }
        // SAFETY: the caller promises that the buffer is readable for `bytes`, which is at least `N` lines.
        let cycles = unsafe { load_cycles::<N>(buffer, bytes) };
        cycles.into_iter().filter(|&cycles| cycles <= hot_cycles).count()
    };
    let source = hot_lines(source);
    source == N || source + hot_lines(target) >= 2
}

/// Returns the cycles of one load of each address, timing included; `None` if the counter is missing or traps.
///
/// # Safety
///
/// The addresses are readable.
pub(super) unsafe fn timed_loads<const N: usize>(addresses: [*const u8; N]) -> Option<[u32; N]> {
    // SAFETY: each load reads one byte at an address that the caller promises to be readable.
    clock_is_cheap().then(|| addresses.map(|address| unsafe { timed_load(address) }))
}

/// Returns the cycles of loads of `N` lines spread over a buffer, timing included.
///
/// # Safety
///
/// `buffer` is readable for `bytes`, at least `N` lines.
pub(super) unsafe fn load_cycles<const N: usize>(buffer: *const u8, bytes: usize) -> [u32; N] {
    // A different position each time, so that a sample does not find the lines that the last one has fetched.
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let turn = TURN.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9);
    TURN.store(turn, Ordering::Relaxed);
    let stride = bytes / N;
    let jitter = (turn >> 8) % (stride / LINE_BYTES).max(1) * LINE_BYTES;
    let mut cycles = [0; N];
    for (index, cycles) in cycles.iter_mut().enumerate() {
        let offset = (index * stride + jitter).min(bytes - 1);
        // SAFETY: the offset lies in the buffer, which the caller promises to be readable.
        *cycles = unsafe { timed_load(buffer.add(offset)) };
    }
    cycles
}

/// Returns true if reading the time-stamp counter costs tens of cycles and does not trap into a hypervisor.
pub(super) fn clock_is_cheap() -> bool {
    static CHEAP: OnceLock<bool> = OnceLock::new();
    *CHEAP.get_or_init(|| {
        let byte = 0u8;
        // SAFETY: `byte` is one readable byte; it stays in the cache.
        let least = (0..16).map(|_| unsafe { timed_load(&raw const byte) }).min();
        least.is_some_and(|cycles| (1..1000).contains(&cycles))
    })
}

#[cfg(target_arch = "x86_64")]
unsafe fn timed_load(address: *const u8) -> u32 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: LFENCE and RDTSC have no preconditions in x86-64 user space (a disabled RDTSC would fault, but
    // every Linux vDSO clock uses it). The caller promises that the address is readable. The load is volatile,
    // so that it stays in place.
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
