// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `clone` of the C library: processes that it makes have a working pager, or share the memory and are known.
//!
//! - **Flow** a child with its own memory, while nothing is absent ──▶ [`first`] does in the child what the hooks of a fork do.
//!   (In an active process the system call is trapped.) A process that shares the memory and runs beside this one ──▶ its
//!   number is noted, and [`refuse_sharing`] asks at activation if it still runs
//! - **Order** another process has handlers, but no filter and no state of its own in this library. It may therefore share
//!   memory only as long as nothing is absent
//! - **Not here** threads, and children that their parent waits for (`CLONE_VFORK`): both are handled like the caller

use std::ffi::{c_int, c_void};

use memlift_zmem::lock::Lock;
use memlift_zmem::pager::Pager;

use crate::activate::for_lines;
use crate::thread::{Quiet, inside};
use crate::wrappers::Next;
use crate::{fork, kept, start, sys};

type Body = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
type Clone =
    unsafe extern "C" fn(Body, *mut c_void, c_int, *mut c_void, *mut c_int, *mut c_void, *mut c_int) -> c_int;

/// Numbers of the processes that share this process's memory.
static SHARING: Lock<Vec<c_int>> = Lock::new(Vec::new());

const SHARED: &std::ffi::CStr = c"another process shares its memory (clone with CLONE_VM)";

/// Forgets the processes in the child of a fork, whose memory is its own.
pub fn forked() {
    // SAFETY: the child has one thread, and no fork happens while this library's own code holds the lock.
    unsafe { SHARING.reset() };
    std::mem::forget(std::mem::take(&mut *SHARING.lock()));
}

/// Returns true if a process has not ended.
fn runs(process: c_int) -> bool {
    let (mut digits, mut at, mut rest) = ([0u8; 16], 11, process.max(0) as u32);
    digits[at..].copy_from_slice(b"/stat");
    while rest > 0 && at > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let path = kept::path(b"/proc/", &digits[at..]);
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let (mut buffer, mut running) = ([0u8; 1024], false);
    for_lines(path, &mut buffer, |line| {
        let end = line.iter().rposition(|&byte| byte == b')').unwrap_or(0);
        running = !matches!(line.get(end + 2), None | Some(b'Z' | b'X'));
    });
    running
}

/// Ends this process with a message if another process shares its memory. Called at activation.
pub fn refuse_sharing() {
    let shared = SHARING.lock().iter().any(|&process| runs(process));
    if shared {
        kept::refuse(&[SHARED]);
    }
}

/// The function and the argument of a child.
struct Start {
    body: Body,
    argument: *mut c_void,
}

/// Runs first in a child with its own memory.
unsafe extern "C-unwind" fn first(place: *mut c_void) -> c_int {
    // SAFETY: the parent's frame, which the child has a copy of, holds this value.
    let Start { body, argument } = unsafe { place.cast::<Start>().read() };
    fork::child();
    // SAFETY: function and argument are those that the program passed to `clone`.
    let status = unsafe { body(argument) };
    // libc's code behind this would end the thread, and the process goes on if it has an evictor by now.
    // SAFETY: the call ends the process.
    unsafe { sys!(libc::SYS_exit_group, status) };
    status
}

/// Behaves as libc's `clone`. That is variadic, but on x86-64 its arguments are passed in the same way as to this function.
///
/// # Safety
///
/// The promises of libc's `clone`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    body: Body,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_int,
    tls: *mut c_void,
    child: *mut c_int,
) -> c_int {
    static NEXT: Next = Next::new(c"clone");
    // SAFETY: libc's function of this name has this type.
    let next = unsafe { std::mem::transmute::<usize, Clone>(NEXT.address()) };
    // SAFETY: the caller makes the promises of `clone`.
    let plain = || unsafe { next(body, stack, flags, argument, parent, tls, child) };
    let Some(pager) = Pager::get().filter(|_| start::covered() && !inside()) else { return plain() };
    if flags & libc::CLONE_VM == 0 {
        if flags & libc::CLONE_FILES != 0 {
            // The child's pager needs descriptors of its own, and would take the parent's away.
            let _quiet = Quiet::begin();
            kept::refuse(&[c"a child process shares its descriptors (clone with CLONE_FILES)"]);
        }
        if pager.active() || !fork::begin() {
            return plain();
        }
        let mut start = Start { body, argument };
        // SAFETY: as above; the value lives over the call, and the child's copy of it lives as long as the child's copy of this
        // frame.
        let result = unsafe { next(first, stack, flags, (&raw mut start).cast(), parent, tls, child) };
        fork::parent();
        return result;
    }
    if flags & (libc::CLONE_THREAD | libc::CLONE_VFORK | libc::CLONE_SETTLS) != 0 {
        return plain();
    }
    if pager.active() {
        let _quiet = Quiet::begin();
        kept::refuse(&[SHARED]);
    }
    let result = plain();
    if result > 0 {
        let _quiet = Quiet::begin();
        SHARING.lock().push(result);
    }
    result
}
