// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detects a fork with one load.
//!
//! - **Flow** a page that the kernel zeroes in children contains the pid of its process; 0 means that this is a child.
//!   [`process_mark`] uses a random number in such a page.
//! - **Order** the pid is stored with Release by [`ForkMark::claim`] and loaded with Acquire by [`ForkMark::is_own`].
//! - **Owner** each user has a mark, which is never unmapped.
//! - **Not here** making state anew after a fork. Before Linux 4.14, which cannot wipe pages on fork, `is_own` and
//!   `process_mark` ask the kernel for the pid each time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::getpid;

use super::map::{Mapping, page_bytes};

/// A mark that shows if the calling process is the one that claimed it.
#[derive(Debug)]
pub(crate) struct ForkMark {
    mapping: Option<Mapping>,
    fallback: AtomicU64,
}

impl ForkMark {
    /// Makes a mark that no process has claimed.
    pub(crate) fn new() -> ForkMark {
        let mapping = Mapping::anonymous(page_bytes(), false).ok().filter(Mapping::wipe_on_fork);
        ForkMark { mapping, fallback: AtomicU64::new(0) }
    }

    fn word(&self) -> &AtomicU64 {
        match &self.mapping {
            // SAFETY: a whole page, readable, writable and aligned, that stays mapped as long as `self`. Only this module
            // knows the page, and it uses the page only as this atomic.
            Some(mapping) => unsafe { AtomicU64::from_ptr(mapping.base().cast()) },
            None => &self.fallback,
        }
    }

    /// Returns true if this process, and not its parent before a fork, called [`claim`](ForkMark::claim).
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        let pid = self.word().load(Ordering::Acquire);
        pid != 0 && (self.mapping.is_some() || pid == own_pid())
    }

    /// Returns the word that is not zero in the process that claimed the mark and zero in its children; `None` before Linux
    /// 4.14.
    pub(crate) fn wiped_word(&self) -> Option<&AtomicU64> {
        self.mapping.is_some().then(|| self.word())
    }

    /// Claims the mark for this process.
    pub(crate) fn claim(&self) {
        self.word().store(own_pid(), Ordering::Release);
    }
}

/// Returns this process's pid, from the kernel.
pub(crate) fn own_pid() -> u64 {
    getpid().as_raw_nonzero().get() as u64
}

/// Returns a random number that all threads of this process share and that differs in a forked child. Objects that belong to
/// one process (sockets, sequence numbers, free memory) store the number under which they were made, and compare it before
/// each use. Costs one load if pages can be wiped on fork (Linux 4.14), otherwise a system call.
pub fn process_mark() -> u64 {
    static MARK: OnceLock<ForkMark> = OnceLock::new();
    /// The number if pages cannot be wiped; valid in the process whose pid the mark holds.
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let mark = MARK.get_or_init(ForkMark::new);
    let word = if mark.mapping.is_some() {
        mark.word()
    } else {
        if !mark.is_own() {
            DRAWN.store(random(), Ordering::Release);
            mark.claim();
        }
        &DRAWN
    };
    match word.load(Ordering::Acquire) {
        0 => {
            let fresh = random();
            word.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire)
                .map_or_else(|there| there, |_| fresh)
        }
        drawn => drawn,
    }
}

/// Returns a number from the kernel's generator, never 0. Unlike the keys of the standard library's hash maps, it differs
/// between a process and its forked children.
#[must_use]
pub fn random() -> u64 {
    loop {
        let mut bytes = [0_u8; 8];
        // SAFETY: `bytes` is eight writable bytes, and lives until the call returns.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        let drawn = u64::from_ne_bytes(bytes);
        // Up to 256 bytes are returned whole, except if a signal arrives before the generator was seeded.
        if got == 8 && drawn != 0 {
            return drawn;
        }
        if got < 0 {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks by the system call alone, without the handlers of the C library; the child reports by its exit status.
    #[test]
    fn a_forked_child_has_another_mark_and_draws_other_numbers() {
        let (mark, next) = (process_mark(), random());
        assert_eq!(mark, process_mark(), "the same throughout a process");
        assert_eq!(std::thread::spawn(process_mark).join().expect("a thread"), mark);
        // SAFETY: the child makes system calls and ends by `_exit`; it takes no lock and allocates nothing.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let other = process_mark();
            let right = other != mark && other == process_mark() && random() != next;
            // SAFETY: `_exit` ends the child immediately, without running any handler.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: `status` is a writable int.
        let waited = unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) };
        assert_eq!((i64::from(waited), status), (child, 0));
        assert_eq!(process_mark(), mark);
    }
}
