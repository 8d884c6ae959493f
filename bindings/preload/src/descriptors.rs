// SPDX-License-Identifier: Apache-2.0 OR MIT
//! This library's descriptors in the table of the program: moved to high numbers, and protected from being closed.
//!
//! - **Flow** the pager opens a userfaultfd ──▶ [`adopt`] moves it to a high number ──the program closes all descriptors, or
//!   puts another file on that number──▶ the descriptor stays, and to the program it seems not to be open
//! - **Order** if the userfaultfd were closed, the arena would have no faults and absent pages would read as zeros. If
//!   another file got the spill file's number, pages would be written to that file
//! - **Not here** the registry's pages, which stay mapped

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::gate::{set_errno, to_libc_result};
use crate::thread::inside;
use crate::wrappers::Next;
use crate::{start, sys};

const NONE: i32 = -1;
/// First number that programs do not use as a rule.
const HIGH: usize = 1024;
const OURS: usize = 8;

static NUMBERS: [AtomicI32; OURS] = [const { AtomicI32::new(NONE) }; OURS];

fn is_ours(fd: c_int) -> bool {
    start::covered() && !inside() && is_registered(fd)
}

/// Returns true if a descriptor is this library's.
pub fn is_registered(fd: c_int) -> bool {
    fd >= 0 && NUMBERS.iter().any(|number| number.load(Relaxed) == fd)
}

/// Notes that a descriptor is this library's.
pub fn register_own(fd: c_int) {
    if NUMBERS.iter().any(|number| number.load(Relaxed) == fd) {
        return;
    }
    let _ = NUMBERS.iter().any(|number| number.compare_exchange(NONE, fd, Relaxed, Relaxed).is_ok());
}

/// Notes that a descriptor is no longer this library's.
pub fn forget(fd: c_int) {
    for number in &NUMBERS {
        let _ = number.compare_exchange(fd, NONE, Relaxed, Relaxed);
    }
}

/// Moves a new descriptor to a high number, if there is a free one, and notes it as this library's. Returns its number.
pub fn adopt(fd: c_int) -> c_int {
    // SAFETY: the descriptor was opened by this library, and `limit` lives over the call.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        sys!(libc::SYS_getrlimit, libc::RLIMIT_NOFILE, &raw mut limit);
        let least = HIGH.min(limit.rlim_cur as usize).saturating_sub(OURS * 4);
        let high = sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least);
        let number = if high < 0 {
            fd
        } else {
            sys!(libc::SYS_close, fd);
            high as c_int
        };
        register_own(number);
        number
    }
}

/// Returns the descriptors that are open now.
pub fn open_now() -> Vec<c_int> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let listed: Vec<c_int> =
        folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The list contains the folder's own descriptor, which is closed by now.
    // SAFETY: the call takes numbers only.
    listed.into_iter().filter(|fd| unsafe { sys!(libc::SYS_fcntl, *fd, libc::F_GETFD) } >= 0).collect()
}

/// Behaves as libc's `close`.
///
/// # Safety
///
/// The promises of libc's `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    if inside() {
        // SAFETY: the descriptor was opened by this library's own code, which uses it no more.
        return to_libc_result(unsafe { sys!(libc::SYS_close, fd) }) as c_int;
    }
    static NEXT: Next = Next::new(c"close");
    // SAFETY: libc's function of this name has this type; the caller makes the promises of libc's `close`.
    unsafe {
        let next: unsafe extern "C" fn(c_int) -> c_int = std::mem::transmute(NEXT.address());
        next(fd)
    }
}

/// Closes a range of descriptors, except for this library's.
fn close_parts(first: c_uint, last: c_uint, flags: c_int) -> isize {
    let mut start = first;
    loop {
        let next = NUMBERS
            .iter()
            .filter_map(|number| u32::try_from(number.load(Relaxed)).ok())
            .filter(|number| (start..=last).contains(number))
            .min();
        let end = match next {
            Some(number) if number == start => {
                start += 1;
                if start > last {
                    return 0;
                }
                continue;
            }
            Some(number) => number - 1,
            None => last,
        };
        // SAFETY: the call takes numbers only, and the range contains only descriptors of the program.
        let result = unsafe { sys!(libc::SYS_close_range, start, end, flags) };
        if result < 0 || end == last {
            return result;
        }
        start = end + 1;
    }
}

/// Behaves as libc's `close_range`.
///
/// # Safety
///
/// The promises of libc's `close_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        set_errno(libc::EINVAL);
        return -1;
    }
    to_libc_result(close_parts(first, last, flags)) as c_int
}

/// Behaves as libc's `closefrom`.
///
/// # Safety
///
/// The promises of libc's `closefrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    close_parts(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// Behaves as libc's `dup2`.
///
/// # Safety
///
/// The promises of libc's `dup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if is_ours(new) {
        set_errno(libc::EBUSY);
        return -1;
    }
    // SAFETY: the caller makes the promises of `dup2`.
    to_libc_result(unsafe { sys!(libc::SYS_dup2, old, new) }) as c_int
}

/// Behaves as libc's `dup3`.
///
/// # Safety
///
/// The promises of libc's `dup3`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if is_ours(new) {
        set_errno(libc::EBUSY);
        return -1;
    }
    // SAFETY: the caller makes the promises of `dup3`.
    to_libc_result(unsafe { sys!(libc::SYS_dup3, old, new, flags) }) as c_int
}
