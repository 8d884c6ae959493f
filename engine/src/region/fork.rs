// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notices a fork with one load.
//!
//! Flow    a page that the kernel zeroes in children holds the pid of its process; 0 means: a child, look again.
//! Order   the pid is stored with Release by [`ForkMark::claim`] and loaded with Acquire by
//!         [`ForkMark::is_own`].
//! Owner   one per process, never unmapped.
//! Not here what has to be made anew after a fork. Before Linux 4.14, where pages cannot be wiped, `is_own`
//!         asks for the pid each time.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::getpid;

use super::map::{Mapping, page_bytes};

/// Says whether the calling process is the one that claimed it.
#[derive(Debug)]
pub(crate) struct ForkMark {
    mapping: Option<Mapping>,
    fallback: AtomicU64,
}

impl ForkMark {
    /// A mark that nobody has claimed.
    pub(crate) fn new() -> ForkMark {
        let mapping = Mapping::anonymous(page_bytes(), false).ok().filter(Mapping::wipe_on_fork);
        ForkMark { mapping, fallback: AtomicU64::new(0) }
    }

    fn word(&self) -> &AtomicU64 {
        match &self.mapping {
            // SAFETY: a whole readable and writable page, aligned, mapped as long as `self`; only this module
            // knows it and uses it as this atomic.
            Some(mapping) => unsafe { AtomicU64::from_ptr(mapping.base().cast()) },
            None => &self.fallback,
        }
    }

    /// Whether this very process called [`claim`](ForkMark::claim).
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        let pid = self.word().load(Ordering::Acquire);
        pid != 0 && (self.mapping.is_some() || pid == own_pid())
    }

    /// Marks this process.
    pub(crate) fn claim(&self) {
        self.word().store(own_pid(), Ordering::Release);
    }
}

/// This process's pid, asked from the kernel.
pub(crate) fn own_pid() -> u64 {
    getpid().as_raw_nonzero().get() as u64
}
