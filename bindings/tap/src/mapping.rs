// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace as it is mapped in this process: its clock, its header, the table of wakes, and this process's number.
//!
//! - **Flow** `start` maps the file and calls [`open`]; all recording code uses the mapping.
//! - **Owner** the mapping stays for the life of the process.
//! - **Not here** chunks and records (`sink`).

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use memlift_spec::formats::trace::{WAKES_AT, word};

/// Address of the mapping; null if nothing is recorded.
pub static BASE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Bytes that the trace may have.
pub static LIMIT: AtomicUsize = AtomicUsize::new(0);
/// The trace's start on the monotonic clock, nanoseconds.
pub static START_NS: AtomicU64 = AtomicU64::new(0);
/// Page with this process's number, which the kernel empties in a forked child.
static NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// Id of this process. A child of vfork has its parent's memory, so it differs from this id.
pub static PID: AtomicU32 = AtomicU32::new(0);

/// From now on there is a trace.
pub fn open(base: *mut u8, limit: usize, start_ns: u64, number: *mut AtomicU32) {
    LIMIT.store(limit, Relaxed);
    START_NS.store(start_ns, Relaxed);
    NUMBER.store(number, Relaxed);
    BASE.store(base, Release);
}

/// Returns true if there is a trace.
#[inline]
pub fn is_there() -> bool {
    !BASE.load(Relaxed).is_null()
}

/// Returns the time on the trace's clock, nanoseconds.
#[inline]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to a local; it does not fail with this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    time.saturating_sub(START_NS.load(Relaxed))
}

/// Returns a word of the header, or `None` if there is no trace.
pub fn header(index: usize) -> Option<&'static AtomicU64> {
    let base = BASE.load(Acquire);
    // SAFETY: the mapping contains the header and stays for the life of the process; words are aligned, and every process uses
    // atomics on them.
    (!base.is_null()).then(|| unsafe { &*base.cast::<AtomicU64>().add(index) })
}

/// Returns this process's number, and takes one in a child that has none yet; 0 if there is no trace.
pub fn process() -> u32 {
    let page = NUMBER.load(Relaxed);
    // SAFETY: the page is null, or mapped for the life of the process.
    let Some(number) = (unsafe { page.as_ref() }) else { return 0 };
    match number.load(Relaxed) {
        0 => {
            let Some(processes) = header(word::PROCESSES) else { return 0 };
            let mine = processes.fetch_add(1, Relaxed) as u32 + 1;
            PID.store(pid(), Relaxed);
            match number.compare_exchange(0, mine, Relaxed, Relaxed) {
                Ok(_) => mine,
                Err(other) => other,
            }
        }
        number => number,
    }
}

pub fn pid() -> u32 {
    // SAFETY: the call has no arguments and returns a number.
    unsafe { libc::getpid() as u32 }
}

/// Returns the word of the table of wakes at this index, or `None` if there is no trace.
pub fn wakes(index: usize) -> Option<&'static AtomicU64> {
    let base = BASE.load(Acquire);
    // SAFETY: the mapping contains the whole table and stays for the life of the process; words are aligned, and every process
    // uses atomics on them.
    (!base.is_null()).then(|| unsafe { &*base.add(WAKES_AT).cast::<AtomicU64>().add(index) })
}
