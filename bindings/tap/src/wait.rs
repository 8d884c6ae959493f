// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces functions of libc that may wait, or that end waits: threads, processes, conditions, semaphores, locks, pipes, sockets, time.
//!
//! - **Flow** the entry point calls libc's function, which is found once. [`waited`] records a wait, with the thread that ended it. A
//!   function that ends waits calls [`woke`] before libc's function, because the woken thread may run before that returns.
//! - **Order** the functions of conditions have an old version with another layout beside the one that programs use, so they are looked
//!   up with their version.
//! - **Rule** the thread may be cancelled in a call, which unwinds through this code: so nothing here needs to be cleaned up.
//! - **Not here** waits inside libc (stdio, system, read-write locks) and futex calls by the instruction, as in OpenMP and Go: of these,
//!   a trace only has the time.

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicPtr};

use libc::{
    clockid_t, epoll_event, fd_set, idtype_t, iovec, msghdr, nfds_t, pid_t, pollfd, pthread_attr_t,
    pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_t, rusage, sem_t, siginfo_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use memlift_spec::formats::trace::Reason;

use crate::mapping::now;
use crate::object::{Object, StreamDirection};
use crate::request;
use crate::sink::{polled, reads, recording, waited, woke};

/// Returns libc's function of this name; null if it has none.
fn libc_function(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // A failed search allocates its error text, and the allocator may lock for the first time, which searches again. So the
    // version is given for the functions that have two, and for no others.
    let two =
        [c"pthread_cond_wait", c"pthread_cond_timedwait", c"pthread_cond_signal", c"pthread_cond_broadcast"];
    // SAFETY: names and versions end with a zero.
    let real = unsafe {
        let versioned = if two.contains(&name) {
            libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"GLIBC_2.3.2".as_ptr())
        } else {
            core::ptr::null_mut()
        };
        if versioned.is_null() { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } else { versioned }
    };
    place.store(real, Relaxed);
    real
}

/// Result for a missing function that returns its error code.
fn absent() -> c_int {
    libc::ENOSYS
}

/// Result for a missing function that returns its error in errno.
fn failed() -> c_int {
    // SAFETY: the address is that of the thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// Defines replacements of libc's functions: each with its result if libc has no such function, and the code that runs around
/// libc's `real`.
macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $missing:ident, |$real:ident| $around:expr;)*) => {$(
        /// # Safety
        /// The conditions of libc's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            type Real = unsafe extern "C-unwind" fn($($type),*) -> $result;
            // The name as a C string.
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
            static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            let real = libc_function(&REAL, NAME);
            if real.is_null() {
                return $missing() as $result;
            }
            // SAFETY: libc's function of this name has this type; the arguments are the caller's.
            let $real = || unsafe { core::mem::transmute::<*mut c_void, Real>(real)($($argument),*) };
            $around
        }
    )*};
}

/// Runs a wait that a wake of `object` ends, if the result is 0.
fn memory(real: impl FnOnce() -> c_int, object: impl FnOnce() -> Object) -> c_int {
    waited(Reason::Memory, real, |result| (*result == 0).then(object))
}

/// Runs a wait for a child, whose id it returns.
fn child(real: impl FnOnce() -> pid_t) -> pid_t {
    waited(Reason::Process, real, |pid| u32::try_from(*pid).ok().filter(|pid| *pid > 0).map(Object::process))
}

/// Runs a wait for a time.
fn time(real: impl FnOnce() -> c_int) -> c_int {
    waited(Reason::Time, real, |_| None)
}

/// Runs a read from a descriptor.
fn input(file: c_int, real: impl FnOnce() -> ssize_t) -> ssize_t {
    let result = waited(Reason::Stream, real, |bytes| {
        (*bytes >= 0).then(|| Object::stream(file, StreamDirection::In)).flatten()
    });
    if result >= 0 {
        reads(|| Object::stream(file, StreamDirection::In));
        request::read(file, result);
    }
    result
}

/// Runs a write to a descriptor; `other` returns the object if the descriptor alone has none.
fn stream_output(
    file: c_int,
    other: impl FnOnce() -> Option<Object>,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !recording() {
        return real();
    }
    let object = Object::stream(file, StreamDirection::Out);
    let is_stream = object.is_some();
    woke(object.or_else(other));
    let result = real();
    request::written(file, result, is_stream);
    result
}

/// Runs a write to an object, or to an unknown one if `object` returns `None`.
fn output<R>(object: impl FnOnce() -> Option<Object>, real: impl FnOnce() -> R) -> R {
    if recording() {
        woke(object());
    }
    real()
}

/// Returns the object for a semaphore; a word behind its value says if processes share it.
fn semaphore(semaphore: *mut sem_t) -> Object {
    // SAFETY: the caller's semaphore has 32 bytes; in glibc its third word is 0 if the process does not share it.
    let shared =
        unsafe { semaphore.cast::<AtomicI32>().add(2).as_ref() }.is_some_and(|word| word.load(Relaxed) != 0);
    if shared { Object::shared(semaphore as usize) } else { Object::memory(semaphore as usize) }
}

/// Returns the word of a lock: 0 free, 1 taken, above 1 taken and perhaps waited for.
fn lock_word(lock: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the lock is null, or the caller's, which begins with this word in glibc; others change it by atomics.
    unsafe { lock.cast::<AtomicI32>().as_ref() }.map_or(0, |word| word.load(Relaxed))
}

fn condition_wait(condition: *mut pthread_cond_t, real: impl FnOnce() -> c_int) -> c_int {
    memory(real, || Object::memory(condition as usize))
}

fn condition_wake(condition: *mut pthread_cond_t, real: impl FnOnce() -> c_int) -> c_int {
    output(|| Some(Object::memory(condition as usize)), real)
}

entries! {
    pthread_create(handle: *mut pthread_t, attributes: *const pthread_attr_t, routine: *mut c_void, argument: *mut c_void) -> c_int, absent, |real| {
        let result = real();
        if result == 0 && recording() {
            // SAFETY: libc has written the new thread's handle to the caller's address.
            woke(unsafe { handle.as_ref() }.map(|handle| Object::thread_started(*handle)));
        }
        result
    };
    pthread_join(thread: pthread_t, result: *mut *mut c_void) -> c_int, absent, |real| memory(real, || Object::memory(thread as usize));
    pthread_cond_wait(condition: *mut pthread_cond_t, lock: *mut pthread_mutex_t) -> c_int, absent, |real| condition_wait(condition, real);
    pthread_cond_timedwait(condition: *mut pthread_cond_t, lock: *mut pthread_mutex_t, until: *const timespec) -> c_int, absent,
        |real| condition_wait(condition, real);
    pthread_cond_clockwait(condition: *mut pthread_cond_t, lock: *mut pthread_mutex_t, clock: clockid_t, until: *const timespec) -> c_int, absent,
        |real| condition_wait(condition, real);
    pthread_cond_signal(condition: *mut pthread_cond_t) -> c_int, absent, |real| condition_wake(condition, real);
    pthread_cond_broadcast(condition: *mut pthread_cond_t) -> c_int, absent, |real| condition_wake(condition, real);
    pthread_mutex_lock(lock: *mut pthread_mutex_t) -> c_int, absent, |real| {
        if lock_word(lock) == 0 { real() } else { memory(real, || Object::memory(lock as usize)) }
    };
    pthread_mutex_unlock(lock: *mut pthread_mutex_t) -> c_int, absent, |real| {
        if lock_word(lock) < 2 { real() } else { output(|| Some(Object::memory(lock as usize)), real) }
    };
    pthread_barrier_wait(barrier: *mut pthread_barrier_t) -> c_int, absent, |real| {
        let object = || Object::memory(barrier as usize);
        output(|| Some(object()), || waited(Reason::Memory, real, |_| Some(object())))
    };
    sem_wait(semaphore_at: *mut sem_t) -> c_int, failed, |real| memory(real, || semaphore(semaphore_at));
    sem_timedwait(semaphore_at: *mut sem_t, until: *const timespec) -> c_int, failed, |real| memory(real, || semaphore(semaphore_at));
    sem_clockwait(semaphore_at: *mut sem_t, clock: clockid_t, until: *const timespec) -> c_int, failed,
        |real| memory(real, || semaphore(semaphore_at));
    sem_post(semaphore_at: *mut sem_t) -> c_int, failed, |real| output(|| Some(semaphore(semaphore_at)), real);
    wait(status: *mut c_int) -> pid_t, failed, |real| child(real);
    wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t, failed, |real| child(real);
    waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t, failed, |real| child(real);
    wait4(process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t, failed, |real| child(real);
    waitid(which: idtype_t, id: libc::id_t, info: *mut siginfo_t, options: c_int) -> c_int, failed, |real| {
        waited(Reason::Process, real, |result| {
            // SAFETY: the address is null, or the caller's, where the kernel has written the state of a child.
            let pid = unsafe { info.as_ref().filter(|_| *result == 0).map(|info| info.si_pid()) };
            pid.and_then(|pid| u32::try_from(pid).ok()).map(Object::process)
        })
    };
    poll(files: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int, failed, |real| {
        waited(Reason::Stream, real, |ready| {
            let count = if *ready > 0 && !files.is_null() { count as usize } else { 0 };
            // SAFETY: the caller guarantees `count` descriptors.
            let mut files = (0..count).map(|index| unsafe { *files.add(index) });
            let ready = files.find(|file| file.revents & (libc::POLLIN | libc::POLLHUP) != 0)?;
            Object::stream(ready.fd, StreamDirection::In)
        })
    };
    select(count: c_int, reading: *mut fd_set, writing: *mut fd_set, errors: *mut fd_set, timeout: *mut timeval) -> c_int, failed, |real| {
        waited(Reason::Stream, real, |ready| {
            let count = if *ready > 0 && !reading.is_null() { count } else { 0 };
            // SAFETY: the caller's set has room for descriptors below `count`.
            let file = (0..count).find(|file| unsafe { libc::FD_ISSET(*file, reading) })?;
            Object::stream(file, StreamDirection::In)
        })
    };
    epoll_wait(poll: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int, failed, |real| many(real);
    epoll_pwait(poll: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int, mask: *const c_void) -> c_int, failed, |real| many(real);
    read(file: c_int, target: *mut c_void, bytes: size_t) -> ssize_t, failed, |real| input(file, real);
    readv(file: c_int, parts: *const iovec, count: c_int) -> ssize_t, failed, |real| input(file, real);
    recv(socket: c_int, target: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t, failed, |real| input(socket, real);
    recvfrom(socket: c_int, target: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t, failed,
        |real| input(socket, real);
    recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, failed, |real| input(socket, real);
    accept(socket: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int, failed, |real| accepted(socket, real);
    accept4(socket: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int, failed, |real| accepted(socket, real);
    write(file: c_int, source: *const c_void, bytes: size_t) -> ssize_t, failed,
        |real| stream_output(file, || None, real);
    writev(file: c_int, parts: *const iovec, count: c_int) -> ssize_t, failed,
        |real| stream_output(file, || None, real);
    send(socket: c_int, source: *const c_void, bytes: size_t, flags: c_int) -> ssize_t, failed,
        |real| stream_output(socket, || None, real);
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t, failed,
        |real| stream_output(socket, || None, real);
    sendto(socket: c_int, source: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr, length: socklen_t) -> ssize_t, failed,
        // SAFETY: the address is null, or the caller's with `length` bytes.
        |real| stream_output(socket, || unsafe { Object::address(to.cast(), length) }, real);
    connect(socket: c_int, to: *const sockaddr, length: socklen_t) -> c_int, failed,
        |real| {
            request::forget(socket);
            // SAFETY: the address is null, or the caller's with `length` bytes.
            output(|| unsafe { Object::address(to.cast(), length) }, real)
        };
    close(file: c_int) -> c_int, failed, |real| {
        request::forget(file);
        real()
    };
    nanosleep(time_at: *const timespec, left: *mut timespec) -> c_int, failed, |real| time(real);
    clock_nanosleep(clock: clockid_t, flags: c_int, time_at: *const timespec, left: *mut timespec) -> c_int, absent, |real| time(real);
}

/// Runs a wait for any of several descriptors; the result does not identify which one ended it.
fn many(real: impl FnOnce() -> c_int) -> c_int {
    let begin = now();
    waited(Reason::Stream, real, |ready| {
        if *ready > 0 {
            polled(begin);
        }
        None
    })
}

fn accepted(socket: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let result =
        waited(Reason::Stream, real, |file| (*file >= 0).then(|| Object::accepting(socket)).flatten());
    if result >= 0 && recording() {
        reads(|| Object::accepting(socket));
        request::accepted(result);
    }
    result
}

/// Makes a system call by its number, as glibc's `syscall` does. Futex calls are recorded on the way.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp rdi, {futex}",
        "je {futex_call}",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "jmp {refused}",
        futex = const libc::SYS_futex,
        futex_call = sym futex_call,
        refused = sym refused,
    )
}

/// Stores the kernel's negative error in errno and returns -1, as libc does.
extern "C" fn refused(result: c_long) -> c_long {
    // SAFETY: the address is that of the thread's own errno.
    unsafe { *libc::__errno_location() = -result as c_int };
    -1
}

type Words = [c_long; 6];

/// Records and makes a futex call.
///
/// # Safety
/// The conditions of the kernel's futex call.
unsafe extern "C" fn futex_call(
    _number: c_long,
    address: c_long,
    operation: c_long,
    value: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    let words = [address, operation, value, fourth, fifth, sixth];
    let object = || {
        let private = operation & c_long::from(libc::FUTEX_PRIVATE_FLAG) != 0;
        if private { Object::memory(address as usize) } else { Object::shared(address as usize) }
    };
    // SAFETY: the arguments are those of the caller, who guarantees the conditions of the futex call.
    let real = || unsafe { kernel(&words) };
    let result = match operation as c_int & libc::FUTEX_CMD_MASK {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            waited(Reason::Memory, real, |result| (*result == 0).then(object))
        }
        libc::FUTEX_WAKE
        | libc::FUTEX_WAKE_BITSET
        | libc::FUTEX_WAKE_OP
        | libc::FUTEX_REQUEUE
        | libc::FUTEX_CMP_REQUEUE => output(|| Some(object()), real),
        _ => real(),
    };
    if (-4095..0).contains(&result) { refused(result) } else { result }
}

/// Makes a futex call.
///
/// # Safety
/// The conditions of the kernel's futex call.
unsafe fn kernel(words: &Words) -> c_long {
    let [address, operation, value, fourth, fifth, sixth] = *words;
    let result;
    // SAFETY: the caller guarantees the arguments; the instruction changes only these registers.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") libc::SYS_futex => result, in("rdi") address, in("rsi") operation,
            in("rdx") value, in("r10") fourth, in("r8") fifth, in("r9") sixth, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
