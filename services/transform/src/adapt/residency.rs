// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells if a message is in cache, by timed loads of a few of its lines.
//!
//! - **Flow** a probe times three lines of the source and three of the target. Messages of 1 MiB or more are probed each. Smaller ones
//!   are probed by size class: the first message, then every second, fourth … 32nd as long as the result stays the same; the messages
//!   between take the class's last result. A result that changes restarts the sequence.
//! - **Layout** a class: bit 0 the last result, bits 1–7 the interval (0: never probed), bits 8–31 messages until the next probe.
//! - **Limit** the longest time of a cached load, in CPU cycles. The first probe measures it on lines that were flushed and loaded again
//!   (about ten microseconds): a third of the way from a load of the first-level cache to one of memory. A server's last-level cache is
//!   nearer to memory; lines in it count as uncached, and the measured costs decide. If cached and uncached loads cannot be told apart,
//!   the limit of the engine's calibration is taken.
//! - **Large** a message larger than twice the near caches is never cached.
//! - **Blind** if the time-stamp counter traps or is missing, a message counts as cached if four times its size fits into the knee.
//!
//! A message counts as uncached only if at most one of the six lines is cached, because streaming a message that is in cache costs
//! more than it saves.

use super::Message;
use super::sweep::second_level_bytes;
use memlift_offload::Engine;
use memlift_place::timed_loads;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const CLASSES: usize = 40;
/// Number of lines that a probe times in the source, and as many in the target.
const PROBED_LINES: usize = 3;
const LINE_BYTES: usize = 64;
/// Every message of at least this size is probed, bytes.
const EACH_BYTES: usize = 1 << 20;
const INTERVAL_MAX: u32 = 32;
/// Value of the limit if none can be measured.
const LIMIT_UNKNOWN: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Residency {
    /// Longest cached load, cycles; 0 if not measured yet.
    limit_cycles: AtomicU32,
    /// State of each size class; its bits are in the header.
    classes: [AtomicU32; CLASSES],
    turn: AtomicUsize,
}

impl Default for Residency {
    fn default() -> Residency {
        Residency {
            limit_cycles: AtomicU32::new(0),
            classes: [const { AtomicU32::new(0) }; CLASSES],
            turn: AtomicUsize::new(0),
        }
    }
}

impl Residency {
    /// Returns true if enough probed lines of the source or the target are in cache.
    ///
    /// # Safety
    ///
    /// Source and target of the message are readable for their lengths.
    #[expect(unsafe_code, reason = "times loads of lines that the caller vouches for")]
    pub unsafe fn cached(&self, engine: &Engine, message: &Message, knee_bytes: usize) -> bool {
        let class = &self.classes[(message.bytes.ilog2() as usize).min(CLASSES - 1)];
        let seen = class.load(Ordering::Relaxed);
        if message.bytes < EACH_BYTES && seen >> 8 != 0 {
            class.store(seen - (1 << 8), Ordering::Relaxed);
            return seen & 1 == 1;
        }
        if message.bytes / 2 > knee_bytes.max(second_level_bytes()) {
            return false;
        }
        let limit = self.limit(engine);
        let fits = message.bytes.saturating_mul(4) <= knee_bytes;
        let turn = self.turn.fetch_add(0x9e37_79b9, Ordering::Relaxed) >> 8;
        // SAFETY: `buffer` and `bytes` are the message's source or target and its length, which the caller guarantees to be
        // readable.
        let hot = |buffer, bytes| unsafe { hot_lines(buffer, bytes, turn, limit) };
        let cached = if limit == LIMIT_UNKNOWN {
            fits
        } else {
            let source = hot(message.source, message.bytes);
            let target = if source == PROBED_LINES { 0 } else { hot(message.target, message.target_bytes) };
            source + target >= 2
        };
        class.store(state_after_probe(seen, cached), Ordering::Relaxed);
        cached
    }

    fn limit(&self, engine: &Engine) -> u32 {
        let limit = self.limit_cycles.load(Ordering::Relaxed);
        if limit != 0 {
            return limit;
        }
        // The engine's own limit is for buffers whose pages were not touched for long, so it includes page walks.
        let limit = measure().unwrap_or(match engine.placer().hot_cycles() {
            0 => LIMIT_UNKNOWN,
            cycles => cycles,
        });
        self.limit_cycles.store(limit, Ordering::Relaxed);
        limit
    }

    /// Returns the limit in cycles, or `None` if it is not measured or cannot be.
    pub fn limit_cycles(&self) -> Option<u32> {
        Some(self.limit_cycles.load(Ordering::Relaxed)).filter(|&limit| limit != 0 && limit != LIMIT_UNKNOWN)
    }
}

/// Returns the new state of a class after a probe with this result.
fn state_after_probe(seen: u32, cached: bool) -> u32 {
    let interval = seen >> 1 & 0x7f;
    let interval = match interval {
        0 => 1,
        _ if (seen & 1 == 1) != cached => 1,
        _ => (interval * 2).min(INTERVAL_MAX),
    };
    (interval - 1) << 8 | interval << 1 | u32::from(cached)
}

#[expect(unsafe_code, reason = "times loads of lines that the caller vouches for")]
unsafe fn hot_lines(buffer: *const u8, bytes: usize, turn: usize, limit: u32) -> usize {
    let stride = bytes / PROBED_LINES;
    if stride < LINE_BYTES {
        return PROBED_LINES;
    }
    let jitter = turn % (stride / LINE_BYTES) * LINE_BYTES;
    let places =
        std::array::from_fn::<_, PROBED_LINES, _>(|index| buffer.wrapping_add(index * stride + jitter));
    // SAFETY: each address lies in the buffer, which the caller guarantees to be readable for `bytes`.
    let cycles = unsafe { timed_loads(places) };
    cycles.map_or(PROBED_LINES, |cycles| cycles.into_iter().filter(|&cycles| cycles <= limit).count())
}

/// Measures the limit: a third of the way between a load from the first-level cache and one from memory. It takes lower
/// quartiles, because every disturbance makes a load longer. Another line of the same page is touched first, so no page walk is
/// timed.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "flushes and times lines of a buffer of its own")]
fn measure() -> Option<u32> {
    const PAGES: usize = 32;
    let buffer = vec![1u8; (PAGES + 1) * 4096];
    let mut near = Vec::new();
    let mut far = Vec::new();
    for page in 0..PAGES {
        let place = buffer[page * 4096 + page * LINE_BYTES..].as_ptr();
        // SAFETY: both addresses lie in `buffer`, which lives until the end of this function; a flush of a line does not change
        // its contents.
        unsafe {
            std::arch::x86_64::_mm_clflush(place);
            std::arch::x86_64::_mm_mfence();
            place.wrapping_add(2048).read_volatile();
            far.push(timed_loads([place])?[0]);
            near.push(timed_loads([place])?[0]);
        }
    }
    near.sort_unstable();
    far.sort_unstable();
    let (near, far) = (near[PAGES / 4], far[PAGES / 4]);
    (far > near * 3 / 2).then_some(near + (far - near) / 3)
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rare_while_the_answer_stays_and_frequent_when_it_turns() {
        let mut class = 0;
        let mut intervals = Vec::new();
        for cached in [false, false, false, false, false, false, false, true, true] {
            class = state_after_probe(class, cached);
            assert_eq!(class & 1 == 1, cached);
            intervals.push((class >> 8) + 1);
        }
        assert_eq!(intervals, [1, 2, 4, 8, 16, 32, 32, 1, 2]);
    }
}
