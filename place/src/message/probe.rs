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
use crate::contention::second_level_bytes;
use crate::residency::{clock_is_cheap, is_cached};
use std::sync::atomic::{AtomicU32, Ordering};

const CLASSES: usize = 40;
/// Number of lines that a probe times in the source, and as many in the target.
const PROBED_LINES: usize = 3;
/// Every message of at least this size is probed, bytes.
const EACH_BYTES: usize = 1 << 20;
const INTERVAL_MAX: u32 = 32;
/// Value of the limit if none can be measured.
const LIMIT_UNKNOWN: u32 = u32::MAX;

/// Results of earlier probes, and the limit between cached and uncached loads.
#[derive(Debug)]
pub(super) struct Probes {
    /// Longest cached load, cycles; 0 if not measured yet.
    limit_cycles: AtomicU32,
    /// State of each size class; its bits are in the header.
    classes: [AtomicU32; CLASSES],
}

impl Default for Probes {
    fn default() -> Probes {
        Probes { limit_cycles: AtomicU32::new(0), classes: [const { AtomicU32::new(0) }; CLASSES] }
    }
}

impl Probes {
    /// Returns true if enough probed lines of the source or the target are in cache. `hot_cycles` is the limit of the machine's
    /// calibration; 0: not known.
    ///
    /// # Safety
    ///
    /// Source and target of the message are readable for their lengths.
    pub unsafe fn cached(&self, message: &Message, hot_cycles: u32, knee_bytes: usize) -> bool {
        let class = &self.classes[(message.bytes.ilog2() as usize).min(CLASSES - 1)];
        let seen = class.load(Ordering::Relaxed);
        if message.bytes < EACH_BYTES && seen >> 8 != 0 {
            class.store(seen - (1 << 8), Ordering::Relaxed);
            return seen & 1 == 1;
        }
        if message.bytes / 2 > knee_bytes.max(second_level_bytes()) {
            return false;
        }
        let limit = self.limit(hot_cycles);
        let cached = if limit == LIMIT_UNKNOWN {
            message.bytes.saturating_mul(4) <= knee_bytes
        } else {
            let (source, target) = ((message.source, message.bytes), (message.target, message.target_bytes));
            // SAFETY: the caller guarantees that source and target of the message are readable for their lengths.
            unsafe { is_cached::<PROBED_LINES>(source, target, limit) }
        };
        class.store(state_after_probe(seen, cached), Ordering::Relaxed);
        cached
    }

    fn limit(&self, hot_cycles: u32) -> u32 {
        let limit = self.limit_cycles.load(Ordering::Relaxed);
        if limit != 0 {
            return limit;
        }
        // The calibration's limit is for buffers whose pages were not touched for long, so it includes page walks.
        let limit = measure().unwrap_or(match hot_cycles {
            cycles if cycles > 0 && clock_is_cheap() => cycles,
            _ => LIMIT_UNKNOWN,
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

/// Measures the limit: a third of the way between a load from the first-level cache and one from memory. It takes lower
/// quartiles, because every disturbance makes a load longer. Another line of the same page is touched first, so no page walk is
/// timed.
#[cfg(target_arch = "x86_64")]
fn measure() -> Option<u32> {
    use crate::residency::{LINE_BYTES, timed_loads};
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
