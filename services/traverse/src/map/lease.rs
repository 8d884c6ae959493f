// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a node's lease, as far as the node itself may rely on it.
//!
//! - **Order** the lease is counted from before the request that renewed it was sent, so the authority's lease never ends earlier
//! - **Bound** it ends a sixteenth early: the rates of this machine's clock and of the authority's may differ by 6 %
//! - **Clock** CLOCK_BOOTTIME, which goes on while the process or the machine is suspended
//! - **Not here** writes: they are fenced by epochs and use no clock (`node/gate`)

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The lease ends this part of its length early.
const EARLY: u32 = 16;

/// Returns the time since the machine started, including the time that it was suspended.
#[must_use]
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Lease(AtomicU64);

impl Lease {
    /// Notes that a lease of this length was granted or renewed by a request that was sent after `asked`.
    pub fn renew(&self, asked: Duration, length: Duration) {
        let end = asked.saturating_add(length - length / EARLY);
        self.0.store(u64::try_from(end.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Ends the lease, before it is given back.
    pub fn end(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Returns true if nobody else can have the lease yet.
    #[must_use]
    pub fn holds(&self) -> bool {
        now().as_nanos() < u128::from(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_early_and_never_after_it_was_given_back() {
        let lease = Lease::default();
        assert!(!lease.holds());
        lease.renew(now(), Duration::from_secs(1600));
        assert!(lease.holds());
        // Asked for 1,501 s ago: a sixteenth before its end it is over.
        let ago = now().checked_sub(Duration::from_secs(1501));
        if let Some(ago) = ago {
            lease.renew(ago, Duration::from_secs(1600));
            assert!(!lease.holds());
        }
        lease.renew(now(), Duration::MAX);
        assert!(lease.holds());
        lease.end();
        assert!(!lease.holds());
    }
}
