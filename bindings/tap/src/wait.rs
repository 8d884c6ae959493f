// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that may wait, and calls that end waits, in libc's place: threads, processes, conditions, semaphores, locks, pipes, sockets, time.
//!
//! - **Flow** entry ─▶ libc's function, found once ─▶ [`waited`]: who ended the wait, and a mark, where it has waited. What ends waits
//!   says so first ([`woke`]): who is woken may look before the call returns
//! - **Order** a condition's functions have an old version with another layout beside the one that programs use: asked for by version
//! - **Rule** the thread may be cancelled in the call, which unwinds through here: nothing here has to be cleaned up
//! - **Not here** waits inside libc (stdio, system, locks for reading and writing) and futexes by the instruction, as in OpenMP and Go:
//!   a trace has their time alone

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicPtr};

use libc::{
    clockid_t, epoll_event, fd_set, idtype_t, iovec, msghdr, nfds_t, pid_t, pollfd, pthread_attr_t,
    pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_t, rusage, sem_t, siginfo_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use memlift_spec::trace::Reason;

use crate::mapping::now;
use crate::object::{Object, Way};
use crate::sink::{polled, reads, recording, waited, woke};

/// libc's function of this name; null: it has none.
fn found(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // A search that fails allocates, for its error, and an allocator may lock for the first time, which searches again: so a version is
    // asked for where there is one, and no other.
    let two =
        [c"pthread_cond_wait", c"pthread_cond_timedwait", c"pthread_cond_signal", c"pthread_cond_broadcast"];
    // SAFETY: names and versions have their zeros.
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

/// Defines functions in libc's place: each with its result where libc has none of that name, and what runs around libc's `real`.
macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $missing:ident, |$real:ident| $around:expr;)*) => {$(
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
            let $real = || unsafe { core::mem::transmute::<*mut c_void, Real>(real)($($argument),*) };
            $around
        }
    )*};
}

/// A wait that a wake of `object` ended, if it ended well.
fn memory(real: impl FnOnce() -> c_int, object: impl FnOnce() -> Object) -> c_int {
    waited(Reason::Memory, real, |result| (*result == 0).then(object))
}

/// A wait for a child, whose id it returns.
fn child(real: impl FnOnce() -> pid_t) -> pid_t {
    waited(Reason::Process, real, |pid| u32::try_from(*pid).ok().filter(|pid| *pid > 0).map(Object::process))
}

/// A wait for a time.
fn time(real: impl FnOnce() -> c_int) -> c_int {
    waited(Reason::Time, real, |_| None)
}

/// Reads from a descriptor.
fn input(file: c_int, real: impl FnOnce() -> ssize_t) -> ssize_t {
    let result =
        waited(Reason::Stream, real, |bytes| (*bytes >= 0).then(|| Object::stream(file, Way::In)).flatten());
    if result >= 0 {
        reads(|| Object::stream(file, Way::In));
    }
    result
}

/// Writes to a descriptor; none: it is not known which object is behind it.
fn output<R>(object: impl FnOnce() -> Option<Object>, real: impl FnOnce() -> R) -> R {
    if recording() {
        woke(object());
    }
    real()
}

/// A semaphore that processes share says so behind its value.
fn semaphore(semaphore: *mut sem_t) -> Object {
    // SAFETY: the caller's semaphore, 32 bytes; glibc's second word is 0 for one that is the process's own.
    let shared =
        unsafe { semaphore.cast::<AtomicI32>().add(2).as_ref() }.is_some_and(|word| word.load(Relaxed) != 0);
    if shared { Object::shared(semaphore as usize) } else { Object::memory(semaphore as usize) }
}

/// The word of a lock: 0 free, 1 taken, more: taken, and somebody may wait.
fn lock_word(lock: *mut pthread_mutex_t) -> c_int {
    // SAFETY: null, or the caller's lock, which begins with this word in glibc; others change it by atomics.
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
            // SAFETY: libc has written the new thread's handle there.
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
            // SAFETY: null, or the caller's place, which the kernel has filled with what it says of a child.
            let pid = unsafe { info.as_ref().filter(|_| *result == 0).map(|info| info.si_pid()) };
            pid.and_then(|pid| u32::try_from(pid).ok()).map(Object::process)
        })
    };
    poll(files: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int, failed, |real| {
        waited(Reason::Stream, real, |ready| {
            let count = if *ready > 0 && !files.is_null() { count as usize } else { 0 };
            // SAFETY: the caller's descriptors, as many as it says.
            let mut files = (0..count).map(|index| unsafe { *files.add(index) });
            let ready = files.find(|file| file.revents & (libc::POLLIN | libc::POLLHUP) != 0)?;
            Object::stream(ready.fd, Way::In)
        })
    };
    select(count: c_int, reading: *mut fd_set, writing: *mut fd_set, errors: *mut fd_set, timeout: *mut timeval) -> c_int, failed, |real| {
        waited(Reason::Stream, real, |ready| {
            let count = if *ready > 0 && !reading.is_null() { count } else { 0 };
            // SAFETY: the caller's set has room for descriptors below `count`.
            let file = (0..count).find(|file| unsafe { libc::FD_ISSET(*file, reading) })?;
            Object::stream(file, Way::In)
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
    write(file: c_int, source: *const c_void, bytes: size_t) -> ssize_t, failed, |real| output(|| Object::stream(file, Way::Out), real);
    writev(file: c_int, parts: *const iovec, count: c_int) -> ssize_t, failed, |real| output(|| Object::stream(file, Way::Out), real);
    send(socket: c_int, source: *const c_void, bytes: size_t, flags: c_int) -> ssize_t, failed,
        |real| output(|| Object::stream(socket, Way::Out), real);
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t, failed, |real| output(|| Object::stream(socket, Way::Out), real);
    sendto(socket: c_int, source: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr, length: socklen_t) -> ssize_t, failed,
        // SAFETY: null, or the caller's address of so many bytes.
        |real| output(|| Object::stream(socket, Way::Out).or_else(|| unsafe { Object::address(to.cast(), length) }), real);
    connect(socket: c_int, to: *const sockaddr, length: socklen_t) -> c_int, failed,
        // SAFETY: null, or the caller's address of so many bytes.
        |real| output(|| unsafe { Object::address(to.cast(), length) }, real);
    nanosleep(time_at: *const timespec, left: *mut timespec) -> c_int, failed, |real| time(real);
    clock_nanosleep(clock: clockid_t, flags: c_int, time_at: *const timespec, left: *mut timespec) -> c_int, absent, |real| time(real);
}

/// A wait for any of many descriptors, of which the result has only what the program calls them.
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
    if result >= 0 {
        reads(|| Object::accepting(socket));
    }
    result
}

/// A system call by its number, as glibc's `syscall` does it. Futexes are looked at on the way.
///
/// # Safety
/// As libc's.
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

/// The kernel's negative error, as libc tells it.
extern "C" fn refused(result: c_long) -> c_long {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = -result as c_int };
    -1
}

type Words = [c_long; 6];

/// # Safety
/// As the kernel's futex.
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
    // SAFETY: the caller's arguments.
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

/// # Safety
/// As the kernel's futex.
unsafe fn kernel(words: &Words) -> c_long {
    let [address, operation, value, fourth, fifth, sixth] = *words;
    let result;
    // SAFETY: the caller's arguments; the instruction changes these registers alone.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") libc::SYS_futex => result, in("rdi") address, in("rsi") operation,
            in("rdx") value, in("r10") fourth, in("r8") fifth, in("r9") sixth, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
