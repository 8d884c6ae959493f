// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Functions that replace those of libc which programs call with buffers in the arena. They do without a signal what a trap
//! would do.
//!
//! - **Flow** function ──memory cannot be absent, or is outside the arena──▶ libc's own function. Otherwise ──▶ `trap`
//! - **Order** libc's own function is looked up at the first call, never in a handler
//! - **Not here** calls inside libc, which are trapped

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use memlift_zmem::pager::Pager;

use crate::gate::to_libc_result;
use crate::thread::{OURS, Quiet, inside};
use crate::{activate, descriptors, foreign, start, trap};

/// A function of libc, looked up when it is first needed.
#[derive(Debug)]
pub struct Next {
    name: &'static std::ffi::CStr,
    address: AtomicUsize,
}

impl Next {
    /// Makes an entry whose address is not looked up yet.
    pub const fn new(name: &'static std::ffi::CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// Returns the function's address, looked up at the first call.
    pub fn address(&self) -> usize {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name is a string with a zero byte at its end.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        if found == 0 {
            crate::words::die(&[c"memlift: libc has no function ", self.name, c"\n"]);
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

fn may_be_absent() -> bool {
    start::covered() && !inside() && Pager::get().is_some_and(Pager::active)
}

macro_rules! calls {
    ($($name:ident = $number:ident ($($argument:ident: $type:ty),+) -> $result:ty;)+) => {$(
        /// Behaves as libc's function of this name.
        ///
        /// # Safety
        ///
        /// The promises of libc's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),+) -> $result {
            if may_be_absent() || foreign::is_on() || libc::$number == libc::SYS_vmsplice {
                let mut arguments = [0usize; 6];
                for (place, value) in arguments.iter_mut().zip([$($argument as usize),+]) {
                    *place = value;
                }
                let number = libc::$number as usize;
                if let Some(result) = perform(number, arguments) {
                    return to_libc_result(result) as $result;
                }
                // SAFETY: the caller makes the promises of libc's function.
                if let Some(result) = unsafe { foreign::perform(number, arguments) } {
                    return to_libc_result(result) as $result;
                }
            }
            static NEXT: Next = Next::new({
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero"),
                };
                NAME
            });
            // SAFETY: libc's function of this name has this type, and the caller makes its promises.
            unsafe {
                let next: unsafe extern "C-unwind" fn($($type),+) -> $result = std::mem::transmute(NEXT.address());
                next($($argument),+)
            }
        }
    )+};
}

unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// Performs a call, during which the thread can be cancelled if libc's function is a cancellation point.
///
/// libc's own functions do the same: a thread may be cancelled at any instruction while it waits. All signals are blocked in
/// this library's own code, so the thread is cancelled before it, after it, or in the call through the gate. There the
/// unwinder finds no frame, and libc jumps to the thread's clean-up handlers; the pins of the call are released as after any
/// other jump (`held`).
fn perform(number: usize, arguments: [usize; 6]) -> Option<isize> {
    const ASYNCHRONOUS: c_int = 1;
    let waits = !matches!(
        number as i64,
        libc::SYS_vmsplice | libc::SYS_process_vm_readv | libc::SYS_process_vm_writev | libc::SYS_getrandom
    );
    if !waits || !trap::concerns(number, &arguments) {
        return trap::perform_for_function(number, arguments);
    }
    let mut before = 0;
    // SAFETY: the variable lives over the calls. Frames that are left by a cancellation own nothing.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    let result = trap::perform_for_function(number, arguments);
    // SAFETY: the variable lives over the calls.
    unsafe { pthread_setcanceltype(before, &raw mut before) };
    result
}

calls! {
    read = SYS_read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize;
    write = SYS_write(fd: c_int, buffer: *const c_void, bytes: usize) -> isize;
    pread = SYS_pread64(fd: c_int, buffer: *mut c_void, bytes: usize, offset: i64) -> isize;
    pread64 = SYS_pread64(fd: c_int, buffer: *mut c_void, bytes: usize, offset: i64) -> isize;
    pwrite = SYS_pwrite64(fd: c_int, buffer: *const c_void, bytes: usize, offset: i64) -> isize;
    pwrite64 = SYS_pwrite64(fd: c_int, buffer: *const c_void, bytes: usize, offset: i64) -> isize;
    readv = SYS_readv(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize;
    writev = SYS_writev(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize;
    preadv = SYS_preadv(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize;
    preadv64 = SYS_preadv(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize;
    pwritev = SYS_pwritev(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize;
    pwritev64 = SYS_pwritev(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize;
    recv = SYS_recvfrom(fd: c_int, buffer: *mut c_void, bytes: usize, flags: c_int) -> isize;
    send = SYS_sendto(fd: c_int, buffer: *const c_void, bytes: usize, flags: c_int) -> isize;
    recvfrom = SYS_recvfrom(fd: c_int, buffer: *mut c_void, bytes: usize, flags: c_int, name: *mut libc::sockaddr, length: *mut libc::socklen_t) -> isize;
    sendto = SYS_sendto(fd: c_int, buffer: *const c_void, bytes: usize, flags: c_int, name: *const libc::sockaddr, length: libc::socklen_t) -> isize;
    recvmsg = SYS_recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize;
    sendmsg = SYS_sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize;
    recvmmsg = SYS_recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec) -> c_int;
    sendmmsg = SYS_sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int;
    vmsplice = SYS_vmsplice(fd: c_int, vector: *const libc::iovec, count: usize, flags: c_uint) -> isize;
    process_vm_readv = SYS_process_vm_readv(pid: c_int, local: *const libc::iovec, count: usize, remote: *const libc::iovec, remotes: usize, flags: usize) -> isize;
    process_vm_writev = SYS_process_vm_writev(pid: c_int, local: *const libc::iovec, count: usize, remote: *const libc::iovec, remotes: usize, flags: usize) -> isize;
    getrandom = SYS_getrandom(buffer: *mut c_void, bytes: usize, flags: c_uint) -> isize;
}

/// Behaves as libc's `syscall`. That is variadic, but on x86-64 integers are passed to it in the same way as to this
/// function.
///
/// # Safety
///
/// The promises of libc's `syscall`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let mut arguments = [first, second, third, fourth, fifth, sixth];
    let mut mask = 0u64;
    if inside() {
        // The pager blocks all signals while it holds a lock, but the three signals of this library must never be blocked.
        if number == libc::SYS_rt_sigprocmask && second != 0 {
            // SAFETY: the mask is the pager's, and lives over the call.
            mask = unsafe { (second as *const u64).read() } & !OURS;
            arguments[1] = (&raw const mask) as usize;
        }
    } else {
        if let Some(result) = trap::perform_for_function(number as usize, arguments) {
            return to_libc_result(result) as c_long;
        }
    }
    // SAFETY: the caller makes the promises of the system call.
    let result = unsafe { crate::gate::call(number as usize, arguments) };
    std::hint::black_box(&mask);
    if inside() {
        match number {
            // Files opened by the pager are protected. One of them stays open: the process's memory, if there is no
            // userfaultfd.
            libc::SYS_userfaultfd | libc::SYS_openat if result >= 0 => {
                return c_long::from(descriptors::adopt(result as c_int));
            }
            libc::SYS_close => descriptors::forget(first as c_int),
            _ => {}
        }
    }
    to_libc_result(result) as c_long
}

/// Installs the guard filter before libc makes a thread that blocks all signals for good.
fn masked_threads_start() {
    if start::covered() && !inside() {
        let _quiet = Quiet::begin();
        activate::guard();
    }
}

macro_rules! before {
    ($($hook:ident: $name:ident ($($argument:ident),*);)+) => {$(
        /// Behaves as libc's function of this name.
        ///
        /// # Safety
        ///
        /// The promises of libc's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: usize),*) -> c_int {
            $hook();
            static NEXT: Next = Next::new({
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero"),
                };
                NAME
            });
            // SAFETY: libc's function of this name takes integers and pointers, and the caller makes its promises.
            unsafe {
                let next: unsafe extern "C" fn($(before!(@ $argument)),*) -> c_int = std::mem::transmute(NEXT.address());
                next($($argument),*)
            }
        }
    )+};
    (@ $argument:ident) => { usize };
}

before! {
    masked_threads_start: timer_create(clock, event, timer);
    masked_threads_start: mq_notify(queue, event);
    masked_threads_start: aio_read(block);
    masked_threads_start: aio_write(block);
    masked_threads_start: aio_fsync(operation, block);
    masked_threads_start: aio_read64(block);
    masked_threads_start: aio_write64(block);
    masked_threads_start: aio_fsync64(operation, block);
    masked_threads_start: lio_listio(mode, list, count, event);
    masked_threads_start: lio_listio64(mode, list, count, event);
    masked_threads_start: getaddrinfo_a(mode, list, count, event);
}

/// Behaves as libc's `_Fork`, which runs no hooks. This function runs this library's hooks itself, for the case that nothing
/// can be absent and the fork is not trapped.
#[unsafe(no_mangle)]
pub extern "C" fn _Fork() -> libc::pid_t {
    if !start::covered() || inside() {
        // SAFETY: the call takes no pointer.
        return to_libc_result(unsafe { crate::gate::call(libc::SYS_fork as usize, [0; 6]) }) as libc::pid_t;
    }
    crate::fork::prepare();
    static NEXT: Next = Next::new(c"_Fork");
    // SAFETY: libc's function of this name has this type.
    let result = unsafe {
        let next: unsafe extern "C" fn() -> libc::pid_t = std::mem::transmute(NEXT.address());
        next()
    };
    if result == 0 {
        crate::fork::child()
    } else {
        crate::fork::parent()
    }
    result
}
