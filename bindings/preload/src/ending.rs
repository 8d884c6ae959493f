// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a process whose first thread ends before it: a process ends with its last thread, and this library's threads must
//! not be that.
//!
//! - **Flow** the first thread ends ([`pthread_exit`], `exit` as a system call) while this library has a thread ──▶ the program
//!   has no other thread: the process ends now. Otherwise ──▶ [`wait_for_last`], on a thread of its own, looks until the
//!   program's last thread is gone ──▶ what libc or the kernel would do then
//! - **Order** libc counts this library's threads too, so it does not notice the program's last one
//! - **Not here** `exit` and `exit_group`, which end all threads

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::activate::{decimal, for_entries, read_of_thread};
use crate::thread::{self, Quiet};
use crate::wrappers::Next;
use crate::{start, sys};

const PAUSE_NS: i64 = 5_000_000;

/// Number of this library's threads.
static OWN: AtomicUsize = AtomicUsize::new(0);
/// True once the first thread has begun to end.
static FIRST_ENDS: AtomicBool = AtomicBool::new(false);
/// True if libc ends the first thread, and ends the process by `exit(0)` after the last one.
static BY_LIBC: AtomicBool = AtomicBool::new(false);
/// True once a thread waits for the last thread.
static WAITED_FOR: AtomicBool = AtomicBool::new(false);

/// Notes a thread of this library, just before it is made.
pub fn add_own() {
    OWN.fetch_add(1, Relaxed);
}

/// Notes that a thread of this library could not be made.
pub fn remove_own() {
    OWN.fetch_sub(1, Relaxed);
}

/// Returns true if the first thread ends. Then this library makes no further threads.
pub fn first_ends() -> bool {
    FIRST_ENDS.load(Relaxed)
}

/// Resets the state in the child of a fork, which has one thread.
pub fn forked() {
    OWN.store(0, Relaxed);
    FIRST_ENDS.store(false, Relaxed);
    BY_LIBC.store(false, Relaxed);
    WAITED_FOR.store(false, Relaxed);
}

/// Returns true if the calling thread is the process's first.
fn is_first() -> bool {
    // SAFETY: the calls take no argument.
    unsafe { sys!(libc::SYS_gettid) == sys!(libc::SYS_getpid) }
}

/// Returns the number of threads that the kernel knows.
fn threads() -> usize {
    let (mut names, mut count) = ([0u8; 4096], 0);
    for_entries(c"/proc/self/task", &mut names, |_| count += 1);
    count
}

/// Returns the status of the first thread if that has ended.
fn status_of_first() -> Option<usize> {
    /// Index of the status among the fields after the name.
    const STATUS: usize = 49;
    let (mut name, mut at, mut buffer) = ([0u8; 16], 16, [0u8; 1024]);
    // SAFETY: the call takes no argument.
    let mut rest = unsafe { sys!(libc::SYS_getpid) } as usize;
    while rest > 0 && at > 0 {
        at -= 1;
        name[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let text = read_of_thread(&name[at..], b"/stat", &mut buffer)?;
    let end = text.iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = text.get(end..)?.split(|&byte| byte == b' ');
    let ended = fields.next() == Some(b"Z");
    ended.then(|| fields.nth(STATUS - 1).map_or(0, decimal))
}

/// Makes the thread that waits for the program's last thread, unless there is one or none is needed.
pub fn watch() {
    if OWN.load(Relaxed) == 0 || WAITED_FOR.swap(true, Relaxed) {
        return;
    }
    add_own();
    if !start::make_thread(wait_for_last) {
        remove_own();
    }
}

/// Called when the first thread ends by the system call `exit`. Returns true if no other thread of the program is left, so that
/// the process has to end.
pub fn ends_by_call() -> bool {
    let own = OWN.load(Relaxed);
    if own == 0 || BY_LIBC.load(Relaxed) || !is_first() {
        return false;
    }
    FIRST_ENDS.store(true, Relaxed);
    if threads() <= own + 1 {
        return true;
    }
    watch();
    false
}

extern "C" fn wait_for_last(_: *mut c_void) -> *mut c_void {
    thread::stay_inside();
    let status = loop {
        let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
        // SAFETY: the time lives over the call.
        unsafe { sys!(libc::SYS_nanosleep, &raw const pause, 0) };
        if let Some(status) = status_of_first()
            && threads() <= OWN.load(Relaxed) + 1
        {
            break status;
        }
    };
    if BY_LIBC.load(Relaxed) {
        // The program's handlers for the end run here, as they would on its last thread.
        thread::leave();
        // SAFETY: libc calls it from the last thread of a process, too.
        unsafe { libc::exit(0) };
    }
    // SAFETY: the call ends the process.
    unsafe { sys!(libc::SYS_exit_group, status >> 8 & 0xff) };
    std::ptr::null_mut()
}

/// Behaves as libc's `pthread_exit`.
///
/// # Safety
///
/// The promises of libc's `pthread_exit`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    if start::covered() && !thread::inside() && is_first() {
        let _quiet = Quiet::begin();
        FIRST_ENDS.store(true, Relaxed);
        BY_LIBC.store(true, Relaxed);
        watch();
    }
    static NEXT: Next = Next::new(c"pthread_exit");
    // SAFETY: libc's function of this name has this type, and the caller makes its promises.
    unsafe {
        let next: unsafe extern "C-unwind" fn(*mut c_void) -> ! = std::mem::transmute(NEXT.address());
        next(value)
    }
}

/// Behaves as libc's `prctl`, whose arguments are passed in the same way as to this function.
///
/// # Safety
///
/// The promises of libc's `prctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    const STRICT: usize = 1;
    if option == libc::PR_SET_SECCOMP
        && second == STRICT
        && start::covered()
        && !thread::inside()
        && is_first()
    {
        // From then on the thread can only read, write and end by `exit`.
        let _quiet = Quiet::begin();
        FIRST_ENDS.store(true, Relaxed);
        watch();
    }
    static NEXT: Next = Next::new(c"prctl");
    // SAFETY: libc's function of this name takes integers, and the caller makes its promises.
    unsafe {
        let next: unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int =
            std::mem::transmute(NEXT.address());
        next(option, second, third, fourth, fifth)
    }
}
