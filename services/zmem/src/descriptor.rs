// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors in a process that has as many as its limit allows.
//!
//! - **Flow** [`open`] makes a call ──`EMFILE`──▶ the soft limit is the hard limit ──▶ the call again ──▶ the soft limit is what it was
//! - **Order** one thread at a time raises the limit, and none during a fork: else one would take the raised limit for the one to go back
//!   to, or a child begin with it. Another thread may get a descriptor above its limit meanwhile, which stays valid, or read the raised one
//! - **Not here** the numbers of descriptors: the preloaded library moves them

use crate::lock::Lock;

static RAISING: Lock<()> = Lock::new(());

/// Waits until no thread raises the limit, and lets none do so until [`after_fork`].
pub(crate) fn before_fork() {
    std::mem::forget(RAISING.lock());
}

/// Ends [`before_fork`], in the parent and in the child.
///
/// # Safety
///
/// This thread called [`before_fork`], or in the child the thread that forked did.
pub(crate) unsafe fn after_fork() {
    // SAFETY: the lock is held by this thread, or by the one that forked, which the caller promises; nobody uses its empty value.
    unsafe { RAISING.unlock() };
}

/// Makes a call that opens a descriptor, and returns its result: the descriptor, or `-errno`.
pub fn open(mut call: impl FnMut() -> isize) -> isize {
    const FULL: isize = -(libc::EMFILE as isize);
    let result = call();
    if result != FULL {
        return result;
    }
    let _one = RAISING.lock();
    let none = std::ptr::null::<libc::rlimit>();
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let limit = libc::RLIMIT_NOFILE;
    // SAFETY: the limits live over the calls.
    unsafe {
        if libc::syscall(libc::SYS_prlimit64, 0, limit, none, &raw mut before) != 0 {
            return result;
        }
        let raised = libc::rlimit { rlim_cur: before.rlim_max, rlim_max: before.rlim_max };
        libc::syscall(libc::SYS_prlimit64, 0, limit, &raw const raised, none);
        let result = call();
        libc::syscall(libc::SYS_prlimit64, 0, limit, &raw const before, none);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    fn soft_limit(set: Option<u64>) -> u64 {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit lives over the calls.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            if let Some(below) = set {
                limit.rlim_cur = limit.rlim_max - below;
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
        limit.rlim_cur
    }

    #[test]
    fn threads_that_raise_the_limit_together_leave_it_as_it_was() {
        // Below the hard limit, which is enough for the tests beside this one.
        let before = soft_limit(Some(1));
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let mut calls = 0;
                        super::open(|| {
                            calls += 1;
                            -(libc::EMFILE as isize)
                        });
                        failed.fetch_or(calls != 2, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(!failed.load(Ordering::Relaxed));
        assert_eq!(soft_limit(None), before);
    }

    #[test]
    fn other_results_are_passed_on() {
        for expected in [3, -(libc::ENOENT as isize)] {
            let mut calls = 0;
            let result = super::open(|| {
                calls += 1;
                expected
            });
            assert_eq!((result, calls), (expected, 1));
        }
    }
}
