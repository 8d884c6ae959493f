// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Into the trace: chunks are claimed by one atomic addition, and belong to their thread.
//!
//! - **Flow** a call that is recorded ──[`timed`]──▶ [`put`], with its [`site`]; a look ──[`look`]──▶ what was counted, and a mark: the thread's CPU time,
//!   faults and waits, once a millisecond, and where a call has waited ([`waited`])
//! - **Method** who ends a wait leaves its thread's number and the time in a word of the trace that all processes share ([`woke`]); who
//!   has waited finds it there. A wake writes no record: nearly all of them end no wait
//! - **Order** a record, then `used`, with Release. Nothing is recorded while our own code runs ([`quietly`]) or inside a library's
//!   call that is recorded itself
//! - **Owner** the file is mapped whole and shared by all processes; nobody changes another's chunk
//! - **Not here** making the file: `memlift record` has reserved all of it, so that no write can find the disk full

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};

use memlift_spec::trace::{
    CHUNK_BYTES_MAX, CHUNK_USED_AT, Chunk, FAULTS_UNKNOWN, HEADER_BYTES, Kind, RECORD_BYTES, Reason, Record,
    Wake, word,
};

use crate::mapping::{self, LIMIT, START_NS, header, now, pid, process};
use crate::object::Object;
use crate::site;
use crate::thread::{COUNTED, Thread, current};

/// Calls from this many bytes on have their page faults counted: two system calls are a percent of them.
const FAULTS_FROM: usize = 512 << 10;
/// Between two marks of a thread, nanoseconds.
const MARK_NS: u64 = 1_000_000;

/// A call that may wait and took this long has waited, nanoseconds.
const WAIT_NS: u64 = 20_000;

/// The end of a wait may be noted this long before the wait begins: a writer is noted before its bytes are there, nanoseconds.
const EARLY_NS: u64 = 50_000;

/// The number that was there before: the parent's, in a child.
static BEFORE: AtomicU32 = AtomicU32::new(0);
/// The key whose destructor tells that a thread ends, plus 1; 0: none.
pub static KEY: AtomicU32 = AtomicU32::new(0);

/// Runs `work` unless our own code runs already; errno stays what it was.
fn quietly(thread: &Thread, work: impl FnOnce()) {
    if !mapping::is_there() || thread.inside.swap(1, Relaxed) != 0 {
        return;
    }
    // SAFETY: the thread's own errno, whose address is the same all its life.
    let errno = unsafe { *libc::__errno_location() };
    let process = process();
    if thread.process.load(Relaxed) != process {
        thread.renew(process);
    }
    work();
    // SAFETY: the thread's own errno, whose address is the same all its life.
    unsafe { *libc::__errno_location() = errno };
    thread.inside.store(0, Relaxed);
}

/// Takes a chunk for the thread; false: the trace is full.
fn claim(thread: &Thread) -> bool {
    let (Some(claimed), Some(threads)) = (header(word::CLAIMED), header(word::THREADS)) else { return false };
    let sequence = thread.chunks.load(Relaxed);
    let bytes = (HEADER_BYTES << (2 * sequence.min(8))).min(CHUNK_BYTES_MAX);
    let limit = LIMIT.load(Relaxed) as u64;
    let full = claimed.load(Relaxed) >= limit;
    let at = if full { limit } else { claimed.fetch_add(bytes as u64, Relaxed) };
    if at + bytes as u64 > limit {
        thread.chunk.store(0, Relaxed);
        return false;
    }
    if sequence == 0 {
        thread.number.store(threads.fetch_add(1, Relaxed) as u32 + 1, Relaxed);
        let key = KEY.load(Relaxed);
        if key != 0 {
            // SAFETY: the key was made at the start; it is below 32, so nothing is allocated.
            unsafe { libc::pthread_setspecific(key - 1, core::ptr::from_ref(thread).cast()) };
        }
    }
    let mut name = [0; 16];
    // SAFETY: the kernel writes at most 16 bytes, its zero included; the ids are numbers.
    let (tid, parent_pid) = unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        (libc::syscall(libc::SYS_gettid), libc::getppid())
    };
    let before = BEFORE.load(Relaxed);
    let mine = thread.process.load(Relaxed);
    if before != mine && sequence == 0 {
        BEFORE.store(mine, Relaxed);
    }
    let chunk = Chunk {
        bytes: bytes as u32,
        used: 0,
        sequence,
        process: mine,
        thread: thread.number.load(Relaxed),
        pid: pid(),
        tid: tid as u32,
        parent: if before == mine { 0 } else { before },
        parent_pid: parent_pid as u32,
        name,
    };
    let address = mapping::BASE.load(Relaxed) as usize + at as usize;
    // SAFETY: these bytes of the mapping were claimed by this thread alone; addresses are multiples of 8.
    unsafe {
        let words = address as *mut u64;
        chunk
            .encode()
            .into_iter()
            .enumerate()
            .for_each(|(index, word)| words.add(index).write_volatile(word));
        (*((address + CHUNK_USED_AT) as *const AtomicU32)).store(RECORD_BYTES as u32, Release);
    }
    thread.chunk.store(address, Relaxed);
    thread.bytes.store(bytes as u32, Relaxed);
    thread.used.store(RECORD_BYTES as u32, Relaxed);
    thread.chunks.store(sequence + 1, Relaxed);
    if sequence == 0 {
        started(thread);
    }
    true
}

/// The first record of a thread that another one has started.
fn started(thread: &Thread) {
    // SAFETY: asks for the thread's own handle.
    let Some(wake) = Object::thread_started(unsafe { libc::pthread_self() }).last_wake() else { return };
    if wake.thread != thread.number.load(Relaxed) {
        let words = [wake.time_ns, 0, wake.thread.into(), wake.time_ns, 0, 0, 0];
        put(thread, &Record { kind: Kind::Waited, site: 0, parameter: Reason::Start as u32, words });
    }
}

/// Writes a record. Inside [`quietly`] only.
fn put(thread: &Thread, record: &Record) {
    let used = thread.used.load(Relaxed);
    let room = thread.chunk.load(Relaxed) != 0 && used + RECORD_BYTES as u32 <= thread.bytes.load(Relaxed);
    // A child of vfork has its parent's memory: a chunk of its own would stand in the parent's name.
    if !room && pid() != mapping::PID.load(Relaxed) {
        return;
    }
    if !room && !claim(thread) {
        if let Some(dropped) = header(word::DROPPED) {
            dropped.fetch_add(1, Relaxed);
        }
        return;
    }
    let (chunk, used) = (thread.chunk.load(Relaxed), thread.used.load(Relaxed));
    // SAFETY: the chunk is this thread's and has room for 64 bytes at `used`, as was just seen.
    unsafe {
        let words = (chunk + used as usize) as *mut u64;
        record
            .encode()
            .into_iter()
            .enumerate()
            .for_each(|(index, word)| words.add(index).write_volatile(word));
        (*((chunk + CHUNK_USED_AT) as *const AtomicU32)).store(used + RECORD_BYTES as u32, Release);
    }
    thread.used.store(used + RECORD_BYTES as u32, Relaxed);
}

fn usage(who: libc::c_int) -> libc::rusage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills it; zeros are a value of it too.
    unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    }
}

/// CPU time of this thread, nanoseconds; getrusage knows it only as of the last tick.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local; with this clock it does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Time so far in which this thread could run and had no core, nanoseconds, plus 1; 0: unknown, as where a filter of system calls
/// might end a program that opens files.
fn delayed_ns() -> u64 {
    let mut text = [0u8; 64];
    // SAFETY: the name has its zero; the kernel writes at most as many bytes as there are; the descriptor is closed at once. System
    // calls by number are no points of cancellation.
    let bytes = unsafe {
        if libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) != 0 {
            return 0;
        }
        let (name, flags) = (c"/proc/thread-self/schedstat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let file = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, flags);
        if file < 0 {
            return 0;
        }
        let bytes = libc::syscall(libc::SYS_read, file, text.as_mut_ptr(), text.len());
        libc::syscall(libc::SYS_close, file);
        usize::try_from(bytes).unwrap_or(0)
    };
    let number = |text: &[u8]| {
        text.iter().try_fold(0u64, |sum, digit| {
            digit.is_ascii_digit().then(|| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
        })
    };
    let mut words = text[..bytes].split(|byte| *byte == b' ');
    words.nth(1).and_then(number).map_or(0, |ns| ns + 1)
}

fn cpu_ns(usage: &libc::rusage) -> u64 {
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    1000 * (us(usage.ru_utime) + us(usage.ru_stime))
}

/// Writes the thread's counts, then its progress. Inside [`quietly`] only.
fn mark(thread: &Thread, kind: Kind) {
    if pid() != mapping::PID.load(Relaxed) {
        return;
    }
    let time = now();
    thread.marked_ns.store(time, Relaxed);
    for (place, count) in thread.counts.iter().enumerate() {
        let calls = count.calls.load(Relaxed);
        let new = calls.wrapping_sub(count.told.swap(calls, Relaxed));
        let bytes = count.bytes.swap(0, Relaxed);
        if new > 0 {
            let words = [time, new.into(), bytes, 0, 0, 0, 0];
            put(thread, &Record { kind: Kind::Counted, site: 0, parameter: COUNTED[place] as u32, words });
        }
    }
    let usage = usage(libc::RUSAGE_THREAD);
    let words = [
        time,
        thread_cpu_ns(),
        usage.ru_minflt as u64,
        usage.ru_majflt as u64,
        usage.ru_nvcsw as u64,
        usage.ru_nivcsw as u64,
        delayed_ns(),
    ];
    put(thread, &Record { kind, site: 0, parameter: 0, words });
}

/// A look: a mark if the last one is a millisecond old.
#[cold]
pub fn look(thread: &Thread) {
    quietly(thread, || {
        if now().saturating_sub(thread.marked_ns.load(Relaxed)) >= MARK_NS {
            mark(thread, Kind::Mark);
        }
    });
}

/// The process begins: its first thread is the first one in the trace, whoever calls first.
pub fn begin() {
    let thread = current();
    quietly(thread, || mark(thread, Kind::Mark));
}

/// This thread is about to end waits for `object`.
#[inline]
pub fn woke(object: Option<Object>) {
    let Some(object) = object else { return };
    let thread = current();
    quietly(thread, || {
        if thread.chunk.load(Relaxed) == 0 {
            mark(thread, Kind::Mark);
        }
        object.wake(thread.number.load(Relaxed), now());
    });
}

/// Returns true if anything is recorded in this process.
#[inline]
pub fn recording() -> bool {
    mapping::is_there()
}

/// Runs `call`, which may wait. Marks before and after a wait say when it was: before, if the last one is a millisecond old. After a
/// wait `ended_by` is asked which object's wake ended it; none: nobody of the program.
#[inline]
pub fn waited<R>(reason: Reason, call: impl FnOnce() -> R, ended_by: impl FnOnce(&R) -> Option<Object>) -> R {
    if !recording() {
        return call();
    }
    let thread = current();
    let begin = now();
    if begin.saturating_sub(thread.marked_ns.load(Relaxed)) >= MARK_NS {
        look(thread);
    }
    let result = call();
    let end = now();
    if end.saturating_sub(begin) >= WAIT_NS {
        quietly(thread, || {
            put_wait(thread, reason, begin, end, ended_by(&result));
            mark(thread, Kind::Mark);
        });
    }
    result
}

fn put_wait(thread: &Thread, reason: Reason, begin: u64, end: u64, object: Option<Object>) {
    let in_it = |wake: &Wake| {
        (begin.saturating_sub(EARLY_NS)..=end).contains(&wake.time_ns)
            && wake.thread != thread.number.load(Relaxed)
    };
    let wake = object.and_then(Object::last_wake).filter(in_it);
    let (waker, at) = wake.map_or((0, 0), |wake| (wake.thread, wake.time_ns));
    let words = [begin, end - begin, waker.into(), at, 0, 0, 0];
    put(thread, &Record { kind: Kind::Waited, site: 0, parameter: reason as u32, words });
}

/// The thread has waited for any of many descriptors since `begin_ns`: what it reads next tells which one it was.
pub fn polled(begin_ns: u64) {
    current().polled_ns.store(begin_ns + 1, Relaxed);
}

/// The thread reads `object`, after it may have waited for many.
#[inline]
pub fn reads(object: impl FnOnce() -> Option<Object>) {
    let thread = current();
    let begin = thread.polled_ns.load(Relaxed);
    if begin != 0 {
        thread.polled_ns.store(0, Relaxed);
        quietly(thread, || put_wait(thread, Reason::Stream, begin - 1, now(), object()));
    }
}

/// The thread ends, or the process does.
pub fn end(kind: Kind) {
    let thread = current();
    let ends = match kind {
        Kind::Exit => Object::process(pid()),
        // SAFETY: asks for the thread's own handle.
        _ => Object::memory(unsafe { libc::pthread_self() } as usize),
    };
    woke(Some(ends));
    quietly(thread, || {
        mark(thread, Kind::End);
        if kind == Kind::Exit && pid() == mapping::PID.load(Relaxed) {
            let usage = usage(libc::RUSAGE_SELF);
            let (minor, major) = (usage.ru_minflt as u64, usage.ru_majflt as u64);
            let words = [now(), cpu_ns(&usage), minor, major, usage.ru_maxrss as u64 * 1024, 0, 0];
            put(thread, &Record { kind, site: 0, parameter: 0, words });
        }
    });
}

fn faults() -> (u64, u64) {
    let usage = usage(libc::RUSAGE_THREAD);
    (usage.ru_minflt as u64, usage.ru_majflt as u64)
}

/// Addresses and bytes that a call read and wrote.
pub struct Touched {
    /// Address of what it read.
    pub source: usize,
    /// Address of what it wrote.
    pub target: usize,
    /// Bytes that it read.
    pub read: usize,
    /// Bytes that it wrote.
    pub written: usize,
}

/// Runs `call`, which returns to `caller`, and records it; `touched` is asked afterwards what it did.
#[inline]
pub fn timed<R>(
    kind: Kind,
    parameter: u32,
    caller: usize,
    bytes: usize,
    call: impl FnOnce() -> R,
    touched: impl FnOnce(&R) -> Touched,
) -> R {
    let thread = current();
    let mut start = now();
    if start.saturating_sub(thread.marked_ns.load(Relaxed)) >= MARK_NS {
        look(thread);
        start = now();
    }
    let before = (bytes >= FAULTS_FROM).then(faults);
    let result = call();
    let end = now();
    let faults = before.map_or(FAULTS_UNKNOWN, |before| {
        let after = faults();
        let half = |count: u64| count.min(u64::from(u32::MAX - 1));
        half(after.0 - before.0) | half(after.1 - before.1) << 32
    });
    quietly(thread, || {
        let done = touched(&result);
        let words = [
            start,
            end.saturating_sub(start),
            done.source as u64,
            done.target as u64,
            done.read as u64,
            done.written as u64,
            faults,
        ];
        let site = site::number(caller, thread.process.load(Relaxed), start, |record| put(thread, record));
        put(thread, &Record { kind, site, parameter, words });
    });
    result
}

/// An operation of memlift's own, as its engine tells it; for callers outside, under this name.
///
/// # Safety
/// None is needed: numbers only. It is unsafe to call from Rust because its name is all that is known of it there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tap_operation(
    opcode: u32,
    start_ns: u64,
    wall_ns: u64,
    source: u64,
    target: u64,
    bytes: u64,
) {
    let thread = current();
    quietly(thread, || {
        let start = start_ns.saturating_sub(START_NS.load(Relaxed));
        let words = [start, wall_ns, source, target, bytes, bytes, FAULTS_UNKNOWN];
        put(thread, &Record { kind: Kind::Operation, site: 0, parameter: opcode, words });
    });
    look(thread);
}

/// Records work that a service of memlift did by itself; callers outside find it under this name. Handlers of page faults call it.
///
/// # Safety
/// As [`memlift_tap_operation`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_tap_work(
    kind: u32,
    parameter: u32,
    start_ns: u64,
    wall_ns: u64,
    read: u64,
    written: u64,
    parts: u64,
) {
    let Some(kind) = Kind::of(kind).filter(|kind| kind.is_work()) else { return };
    let thread = current();
    quietly(thread, || {
        let start = start_ns.saturating_sub(START_NS.load(Relaxed));
        let words = [start, wall_ns, 0, 0, read, written, parts];
        put(thread, &Record { kind, site: 0, parameter, words });
    });
    look(thread);
}

/// Returns true if a library's call that is under way will be recorded: `here` is an address on the stack. A call that was left by
/// longjmp lies deeper than whoever comes later, and is forgotten.
#[inline]
pub fn within_call(thread: &Thread, here: usize) -> bool {
    let outer = thread.outer.load(Relaxed);
    if outer != 0 && here >= outer {
        thread.outer.store(0, Relaxed);
        return false;
    }
    outer != 0
}
