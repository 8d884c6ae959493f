// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that may wait, in libc's place: for a thread, a child, a condition, a semaphore, a descriptor, a time.
//!
//! - **Flow** entry ─▶ libc's function, found once ─▶ [`waited`]: a mark where it has waited
//! - **Order** a condition's functions have an old version with another layout beside the one that programs use: asked for by version
//! - **Rule** the thread may be cancelled in the call, which unwinds through here: nothing here has to be cleaned up
//! - **Not here** locks (nearly all are free), futexes by `syscall`, waits inside libc

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use libc::{
    clockid_t, epoll_event, fd_set, nfds_t, pid_t, pollfd, pthread_cond_t, pthread_mutex_t, pthread_t,
    rusage, sem_t, size_t, ssize_t, timespec, timeval,
};

use crate::sink::waited;

/// libc's function of this name; null: it has none.
fn found(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: names and versions have their zeros.
    let real = unsafe {
        let versioned = libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"GLIBC_2.3.2".as_ptr());
        if versioned.is_null() { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } else { versioned }
    };
    place.store(real, Relaxed);
    real
}

/// Result of an absent function that returns its error.
fn absent() -> c_int {
    libc::ENOSYS
}

/// Result of a function that leaves its error in errno.
fn failed() -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $missing:ident;)*) => {$(
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            type Real = unsafe extern "C-unwind" fn($($type),*) -> $result;
            // A name that Rust and libc have in common.
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
            static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            let real = found(&REAL, NAME);
            if real.is_null() {
                return $missing() as $result;
            }
            // SAFETY: libc's function of this name has this type; the arguments are the caller's.
            waited(|| unsafe { core::mem::transmute::<*mut c_void, Real>(real)($($argument),*) })
        }
    )*};
}

entries! {
    pthread_join(thread: pthread_t, result: *mut *mut c_void) -> c_int, absent;
    pthread_cond_wait(condition: *mut pthread_cond_t, lock: *mut pthread_mutex_t) -> c_int, absent;
    pthread_cond_timedwait(condition: *mut pthread_cond_t, lock: *mut pthread_mutex_t, until: *const timespec) -> c_int, absent;
    pthread_cond_clockwait(condition: *mut pthread_cond_t, lock: *mut pthread_mutex_t, clock: clockid_t, until: *const timespec) -> c_int, absent;
    sem_wait(semaphore: *mut sem_t) -> c_int, failed;
    sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int, failed;
    sem_clockwait(semaphore: *mut sem_t, clock: clockid_t, until: *const timespec) -> c_int, failed;
    waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t, failed;
    wait4(process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t, failed;
    poll(files: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int, failed;
    select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, errors: *mut fd_set, timeout: *mut timeval) -> c_int, failed;
    epoll_wait(poll: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int, failed;
    read(file: c_int, target: *mut c_void, bytes: size_t) -> ssize_t, failed;
    recv(socket: c_int, target: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t, failed;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int, failed;
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int, absent;
}
