// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors in a process that has as many as its limit allows.
//!
//! - **Flow** [`open`] makes a call ──`EMFILE`──▶ the soft limit is the hard limit ──▶ the call again ──▶ the soft limit is what it was
//! - **Order** another thread may get a descriptor above its limit meanwhile, which stays valid
//! - **Not here** the numbers of descriptors: the preloaded library moves them

/// Makes a call that opens a descriptor, and returns its result: the descriptor, or `-errno`.
pub fn open(mut call: impl FnMut() -> isize) -> isize {
    const FULL: isize = -(libc::EMFILE as isize);
    let result = call();
    if result != FULL {
        return result;
    }
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
