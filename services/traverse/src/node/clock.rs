// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node's clock decides when freed memory may be used again, and which requests are too old to touch it.
//!
//! - **Flow** a request begins and gets the clock ([`Clock::now`]) ─▶ it walks; its client continues from the result, with
//!   `FLAG_SINCE` ─▶ it is answered or changes something, unless the clock has advanced by more than [`GRACE`] since
//!   ([`Clock::outdated`]). A client that unlinked a node of a structure at clock *v* uses its memory again only after it has
//!   seen a clock beyond *v* + [`GRACE`]
//! - **Order** every packet carries a clock, and its receiver adopts it if it is greater ([`Clock::merge`]). So if a client
//!   unlinks a node after a request has read it, *v* is not less than the request's clock, and the write that uses the memory
//!   again brings a clock by which that request is outdated. No assumption about time is made: a clock that jumps forward only
//!   makes requests start again
//! - **Layout** seconds since 1970 unless a packet has brought a greater value, so that nodes agree without messages
//! - **Not here** the log, which keeps a restarted node's clock from going back (`writer`)

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::SystemTime;

pub use crate::memory::GRACE;

/// A packet whose clock is further than this ahead of the system's time is not believed: otherwise one packet could drive
/// all clocks to their greatest number.
const AHEAD_MAX: u32 = 24 * 60 * 60;

/// See the module's header.
#[derive(Debug)]
pub struct Clock {
    now_s: AtomicU32,
    system_s: fn() -> u32,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::of(system_s)
    }
}

/// Returns the system's time, in seconds since 1970.
pub(super) fn system_s() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

impl Clock {
    /// Makes a clock that takes this for the system's time.
    pub(super) fn of(system_s: fn() -> u32) -> Clock {
        Clock { now_s: AtomicU32::new(0), system_s }
    }

    /// Raises the clock to the system's time if that is greater.
    pub fn tick(&self) {
        self.now_s.fetch_max((self.system_s)(), Ordering::AcqRel);
    }

    /// Returns the clock, in seconds, as of the last tick or packet.
    #[must_use]
    pub fn now(&self) -> u32 {
        self.now_s.load(Ordering::Acquire)
    }

    /// Raises the clock to a value of another node's log.
    pub(super) fn raise(&self, logged: u32) {
        self.now_s.fetch_max(logged, Ordering::AcqRel);
    }

    /// Raises the clock to that of a packet. Returns false if the packet's is too far ahead of the system's time to be
    /// believed.
    pub fn merge(&self, seen: u32) -> bool {
        if seen <= self.now() {
            return true;
        }
        let possible = seen <= (self.system_s)().saturating_add(AHEAD_MAX);
        if possible {
            self.now_s.fetch_max(seen, Ordering::AcqRel);
        }
        possible
    }

    /// Returns true if memory that was linked at clock `since` may have been used again by now. Call it after reading the
    /// memory.
    #[must_use]
    pub fn outdated(&self, since: u32) -> bool {
        fence(Ordering::Acquire);
        since != 0 && since.saturating_add(GRACE) < self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back_and_what_cannot_be_is_not_believed() {
        let clock = Clock::default();
        clock.tick();
        let first = clock.now();
        assert!(clock.merge(first + 100) && clock.merge(first) && clock.now() == first + 100);
        clock.tick();
        assert_eq!(clock.now(), first + 100);
        assert!(!clock.merge(u32::MAX) && clock.now() == first + 100);
        assert!(clock.outdated(first + 69) && !clock.outdated(first + 70) && !clock.outdated(0));
    }
}
