// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes to the trace: chunks are claimed by one atomic addition, and belong to their thread.
//!
//! - **Flow** a recorded call goes through [`timed`] to [`put`], with its [`site`]. [`mark_if_due`] writes the counts and a mark (the
//!   thread's CPU time, faults and waits), at most once a millisecond; a mark is also written after a call that has waited ([`waited`]).
//! - **Method** a thread that ends a wait stores its number and the time in a word of the trace that all processes share ([`woke`]); the
//!   thread that has waited finds them there. A wake writes no record, because nearly all wakes end no wait.
//! - **Order** a record is written first, then `used`, with Release. Nothing is recorded while code of this library runs
//!   ([`without_recording_itself`]) or inside a library's call that is itself recorded.
//! - **Owner** the file is mapped whole and shared by all processes; nobody changes another thread's chunk.
//! - **Not here** creating the file: `memlift record` has reserved all of its space, so no write can find the disk full.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};

use memlift_spec::formats::trace::{
    CHUNK_BYTES_MAX, CHUNK_USED_AT, Chunk, FAULTS_UNKNOWN, HEADER_BYTES, Kind, RECORD_BYTES, Reason, Record,
    Wake, word,
};

use crate::mapping::{self, LIMIT, START_NS, header, now, pid, process};
use crate::object::Object;
use crate::site;
use crate::thread::{COUNTED, Thread, current};

/// For calls of at least this many bytes page faults are counted, by two system calls; these take about a percent of such a call.
const FAULTS_FROM: usize = 512 << 10;
/// Shortest time between two marks of a thread, nanoseconds.
const MARK_NS: u64 = 1_000_000;

/// A call that may wait counts as having waited if it took at least this long, nanoseconds.
const WAIT_NS: u64 = 20_000;

/// A wake may be stored up to this long before the wait begins, because a writer stores it before its bytes arrive; nanoseconds.
const EARLY_NS: u64 = 50_000;

/// Process number before this one: in a forked child, the parent's.
static BEFORE: AtomicU32 = AtomicU32::new(0);
/// Key whose destructor runs at the end of a thread, plus 1; 0 if there is none.
pub static KEY: AtomicU32 = AtomicU32::new(0);

/// Runs `work`, unless code of this library already runs on this thread; errno is restored afterwards.
fn without_recording_itself(thread: &Thread, work: impl FnOnce()) {
    if !mapping::is_there() || thread.in_own_code.swap(1, Relaxed) != 0 {
        return;
    }
    // SAFETY: the address is that of the thread's own errno, which does not change during its life.
    let errno = unsafe { *libc::__errno_location() };
    let process = process();
    if thread.process.load(Relaxed) != process {
        thread.renew(process);
    }
    work();
    // SAFETY: the address is that of the thread's own errno, which does not change during its life.
    unsafe { *libc::__errno_location() = errno };
    thread.in_own_code.store(0, Relaxed);
}

/// Claims a chunk for the thread; returns false if the trace is full.
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
            // SAFETY: the key was created at the start; it is below 32, so setting it allocates nothing.
            unsafe { libc::pthread_setspecific(key - 1, core::ptr::from_ref(thread).cast()) };
        }
    }
    let mut name = [0; 16];
    // SAFETY: the kernel writes at most 16 bytes, including the zero; the other calls only return numbers.
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
    // SAFETY: only this thread has claimed these bytes of the mapping; addresses are multiples of 8.
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

/// Writes the first record of a thread that another one has started: which thread, and when.
fn started(thread: &Thread) {
    // SAFETY: the call has no arguments and returns the thread's own handle.
    let Some(wake) = Object::thread_started(unsafe { libc::pthread_self() }).last_wake() else { return };
    if wake.thread != thread.number.load(Relaxed) {
        let words = [wake.time_ns, 0, wake.thread.into(), wake.time_ns, 0, 0, 0];
        put(thread, &Record { kind: Kind::Waited, site: 0, parameter: Reason::Start as u32, words });
    }
}

/// Writes a record. To be called inside [`without_recording_itself`] only.
fn put(thread: &Thread, record: &Record) {
    let used = thread.used.load(Relaxed);
    let room = thread.chunk.load(Relaxed) != 0 && used + RECORD_BYTES as u32 <= thread.bytes.load(Relaxed);
    // A child of vfork has its parent's memory, so a chunk that it claims would be attributed to the parent.
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
    // SAFETY: the chunk belongs to this thread, and the lines above checked room for 64 bytes at `used`.
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
    // SAFETY: the kernel fills the structure, for which zeros are also valid.
    unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    }
}

/// Returns the CPU time of this thread, nanoseconds; getrusage only has it as of the last tick.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to a local; it does not fail with this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the total time in which this thread was ready but had no core, nanoseconds, plus 1. Returns 0 if that is unknown,
/// for example if the process has a filter of system calls, which might end it for opening a file.
fn delayed_ns() -> u64 {
    let mut text = [0u8; 64];
    // SAFETY: the name ends with a zero; the kernel writes at most `text.len()` bytes; the descriptor is closed here. System
    // calls by number are no cancellation points.
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

/// Writes the thread's counts, then its progress. To be called inside [`without_recording_itself`] only.
fn mark(thread: &Thread, kind: Kind) {
    if pid() != mapping::PID.load(Relaxed) {
        return;
    }
    let time = now();
    thread.marked_ns.store(time, Relaxed);
    for (place, count) in thread.counts.iter().enumerate() {
        let calls = count.calls.load(Relaxed);
        let new = calls.wrapping_sub(count.recorded.swap(calls, Relaxed));
        let bytes = count.bytes.swap(0, Relaxed);
        if new > 0 {
            let words = [time, new.into(), bytes, 0, 0, 0, 0];
            put(thread, &Record { kind: Kind::Counted, site: 0, parameter: COUNTED[place] as u32, words });
        }
    }
    if let Some(words) = thread.served.take(time) {
        put(thread, &Record { kind: Kind::Served, site: 0, parameter: 0, words });
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

/// Writes a mark if the last one is at least a millisecond old.
#[cold]
pub fn mark_if_due(thread: &Thread) {
    without_recording_itself(thread, || {
        if now().saturating_sub(thread.marked_ns.load(Relaxed)) >= MARK_NS {
            mark(thread, Kind::Mark);
        }
    });
}

/// Begins recording: the first thread of the process gets the first number of the trace, whichever thread calls first.
pub fn begin() {
    let thread = current();
    without_recording_itself(thread, || mark(thread, Kind::Mark));
}

/// Records that this thread is about to end waits for `object`.
#[inline]
pub fn woke(object: Option<Object>) {
    let Some(object) = object else { return };
    let thread = current();
    without_recording_itself(thread, || {
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

/// Runs `call`, which may wait. If it has waited, its wait and a mark are recorded; a mark is also written before the call if
/// the last one is at least a millisecond old. After a wait, `ended_by` returns the object whose wake ended it, or `None` if no
/// thread of the program did.
#[inline]
pub fn waited<R>(reason: Reason, call: impl FnOnce() -> R, ended_by: impl FnOnce(&R) -> Option<Object>) -> R {
    if !recording() {
        return call();
    }
    let thread = current();
    let begin = now();
    if begin.saturating_sub(thread.marked_ns.load(Relaxed)) >= MARK_NS {
        mark_if_due(thread);
    }
    let result = call();
    let end = now();
    if end.saturating_sub(begin) >= WAIT_NS {
        without_recording_itself(thread, || {
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

/// Records that the thread has waited for any of several descriptors since `begin_ns`. The next descriptor that it reads is
/// taken to be the one that ended the wait.
pub fn polled(begin_ns: u64) {
    current().polled_ns.store(begin_ns + 1, Relaxed);
}

/// Called when the thread reads from `object`; ends a wait for several descriptors.
#[inline]
pub fn reads(object: impl FnOnce() -> Option<Object>) {
    let thread = current();
    let begin = thread.polled_ns.load(Relaxed);
    if begin != 0 {
        thread.polled_ns.store(0, Relaxed);
        without_recording_itself(thread, || put_wait(thread, Reason::Stream, begin - 1, now(), object()));
    }
}

/// Records the end of the thread, or of the process.
pub fn end(kind: Kind) {
    let thread = current();
    let ends = match kind {
        Kind::Exit => Object::process(pid()),
        // SAFETY: the call has no arguments and returns the thread's own handle.
        _ => Object::memory(unsafe { libc::pthread_self() } as usize),
    };
    woke(Some(ends));
    without_recording_itself(thread, || {
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

/// Addresses and sizes of the memory that a call read and wrote.
pub struct Touched {
    /// Address of the bytes read.
    pub source: usize,
    /// Address of the bytes written.
    pub target: usize,
    /// Number of bytes read.
    pub read: usize,
    /// Number of bytes written.
    pub written: usize,
}

/// Runs `call`, which returns to `caller`, and records it; afterwards `touched` returns the memory that it read and wrote.
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
        mark_if_due(thread);
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
    without_recording_itself(thread, || {
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

/// Records an operation of memlift's own engine, which calls this function by its name.
///
/// # Safety
/// There are no conditions: all arguments are numbers. The function is `unsafe` only because it is called by its name.
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
    without_recording_itself(thread, || {
        let start = start_ns.saturating_sub(START_NS.load(Relaxed));
        let words = [start, wall_ns, source, target, bytes, bytes, FAULTS_UNKNOWN];
        put(thread, &Record { kind: Kind::Operation, site: 0, parameter: opcode, words });
    });
    mark_if_due(thread);
}

/// Records work that a memlift service did on its own initiative; the service calls this function by its name, also in handlers
/// of page faults.
///
/// # Safety
/// The conditions of [`memlift_tap_operation`].
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
    let Some(kind) = Kind::from_number(kind).filter(|kind| kind.is_work()) else { return };
    let thread = current();
    without_recording_itself(thread, || {
        let start = start_ns.saturating_sub(START_NS.load(Relaxed));
        let words = [start, wall_ns, 0, 0, read, written, parts];
        put(thread, &Record { kind, site: 0, parameter, words });
    });
    mark_if_due(thread);
}

/// Returns true if this call lies within a library's call that is being recorded; `here` is an address on the stack. A
/// library's call that was left by longjmp lies deeper in the stack than this call, and is then forgotten.
#[inline]
pub fn within_call(thread: &Thread, here: usize) -> bool {
    let outer = thread.outer.load(Relaxed);
    if outer != 0 && here >= outer {
        thread.outer.store(0, Relaxed);
        return false;
    }
    outer != 0
}
