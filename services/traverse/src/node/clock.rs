// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node's clock: when memory that was given back may be used again, and which requests may not touch it any more.
//!
//! - **Flow** a request begins: it gets the clock ([`Clock::now`]) ─▶ it walks, its client goes on by what it found, with
//!   `FLAG_SINCE` ─▶ it is answered or changes something, unless the clock is more than [`GRACE`] further ([`Clock::outdated`]).
//!   A client uses the memory of a node that it unlinked at clock *v* again once it has heard of a clock beyond *v* + [`GRACE`]
//! - **Order** every packet carries a clock, and its receiver takes the greater one over ([`Clock::merge`]). So a client that
//!   unlinks a node after a request has read it has a *v* that is not less than the request's, and the write that uses the memory
//!   again brings a clock by which that request is outdated. No assumption about time is made: a clock that jumps costs restarts
//! - **Layout** seconds since 1970 where nothing has made it greater, so that nodes agree without speaking
//! - **Not here** the log, by which a restarted node's clock is not less than before (`writer`)

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::SystemTime;

pub use crate::memory::GRACE;

/// A packet whose clock is so far ahead of the system's time is not believed: clocks would stop at the greatest number.
const AHEAD_MAX: u32 = 24 * 60 * 60;

/// See the module's header.
#[derive(Debug, Default)]
pub struct Clock(AtomicU32);

fn system() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

impl Clock {
    /// Follows the system's time.
    pub fn tick(&self) {
        self.0.fetch_max(system(), Ordering::AcqRel);
    }

    /// Seconds, as of the last tick or packet.
    #[must_use]
    pub fn now(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Takes over a packet's clock if it is greater; false: it is too far ahead of the system's time to be believed.
    pub fn merge(&self, seen: u32) -> bool {
        if seen <= self.now() {
            return true;
        }
        let possible = seen <= system().saturating_add(AHEAD_MAX);
        if possible {
            self.0.fetch_max(seen, Ordering::AcqRel);
        }
        possible
    }

    /// Returns true if memory that was linked at `since` may have been used again by now. Call it after the memory was read.
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
