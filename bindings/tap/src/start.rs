// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts and ends the recording: before the program begins, the trace that `MEMLIFT_TRACE` names is mapped; at its end, the remaining
//! counts are written.
//!
//! - **Order** libc's functions are found first, then the trace is mapped, then the thresholds are set, from which on calls are recorded.
//! - **Owner** the mapping stays for the life of the process. The descriptor is closed after mapping, so the program may close all
//!   descriptors and rely on their numbers.
//! - **Rule** a program with more rights than its caller ignores the variable. A trace that cannot be mapped or has another version is
//!   ignored without a message, because the output belongs to the program.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use memlift_spec::formats::trace::{HEADER_BYTES, Kind, LIMIT_BYTES, MAGIC, VERSION, word};

use crate::mapping;
use crate::{library, memory, sink};

/// Keys below this number are stored in the thread's own descriptor, so setting one allocates nothing.
const CHEAP_KEYS: libc::pthread_key_t = 32;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_load() {
    if !memory::resolve() {
        return;
    }
    let Some((base, limit)) = map() else { return };
    let Some(number) = page() else { return };
    let at = |index: usize| {
        // SAFETY: the word lies in the header, which is mapped; other processes write to it only by atomics.
        unsafe { base.cast::<u64>().add(index).read_volatile() }
    };
    let (threshold, transform) = (at(word::THRESHOLD), at(word::TRANSFORM_THRESHOLD));
    let mut key = 0;
    // SAFETY: `key` is writable, and the function belongs to this library, which is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 && key < CHEAP_KEYS {
        sink::KEY.store(key + 1, Relaxed);
    }
    mapping::open(base, limit, at(word::START_MONOTONIC_NS), number);
    sink::begin();
    measure_cost();
    memory::begin(threshold as usize);
    library::begin(transform as usize);
}

extern "C" fn at_exit() {
    sink::end(Kind::Exit);
}

extern "C" fn thread_ends(_block: *mut c_void) {
    sink::end(Kind::End);
}

/// Writes the remaining counts, then ends the process as libc's function does.
fn exit_process(code: c_int) -> ! {
    sink::end(Kind::Exit);
    loop {
        // SAFETY: the call takes a number and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// Replaces libc's function: records the end of the process before it exits.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    exit_process(code)
}

/// Replaces libc's function: records the end of the process before it exits.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    exit_process(code)
}

/// Maps the trace; returns its address, and the bytes that it may have.
fn map() -> Option<(*mut u8, usize)> {
    // SAFETY: the name ends with a zero; the value of getenv is used before the program can change its environment. The file was
    // checked to be a regular file that is at least as long as its header says, so the whole mapping is backed by it.
    unsafe {
        if libc::getauxval(libc::AT_SECURE) != 0 {
            return None;
        }
        let path = libc::getenv(c"MEMLIFT_TRACE".as_ptr());
        if path.is_null() || *path == 0 {
            return None;
        }
        let file = libc::open(path, libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        if file < 0 {
            return None;
        }
        let mut header = [0u64; word::USED];
        let wanted = size_of_val(&header);
        let read = libc::pread(file, header.as_mut_ptr().cast(), wanted, 0);
        let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
        let known = libc::fstat(file, status.as_mut_ptr()) == 0;
        let status = status.assume_init();
        let limit = header[word::LIMIT];
        let good = known
            && read == wanted as isize
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && header[word::MAGIC] == MAGIC
            && header[word::VERSION] == VERSION
            && header[word::FINISHED] == 0
            && (LIMIT_BYTES.0..=LIMIT_BYTES.1).contains(&limit)
            && limit.is_multiple_of(HEADER_BYTES as u64)
            && status.st_size as u64 >= limit;
        let base = if good {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(core::ptr::null_mut(), limit as usize, access, libc::MAP_SHARED, file, 0)
        } else {
            libc::MAP_FAILED
        };
        libc::close(file);
        if base == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(base, limit as usize, libc::MADV_DONTDUMP);
        Some((base.cast(), limit as usize))
    }
}

/// Maps a page with a number that is 0 in every forked child.
fn page() -> Option<*mut AtomicU32> {
    // SAFETY: this is a new mapping, which stays for the life of the process.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(core::ptr::null_mut(), HEADER_BYTES, access, flags, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, HEADER_BYTES, libc::MADV_WIPEONFORK) != 0 {
            return None;
        }
        Some(page.cast())
    }
}

/// Measures the cost of recording and of counting one call, once for all processes; this takes about 50 µs. The lowest cost of
/// several batches is used, because another program may have had the core during one of them.
fn measure_cost() {
    const ROUNDS: u64 = 32;
    const BATCHES: u64 = 8;
    let (Some(record), Some(count)) =
        (mapping::header(word::RECORD_COST_PS), mapping::header(word::COUNT_COST_PS))
    else {
        return;
    };
    if record.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
        return;
    }
    let mut scratch = [0u64; 8];
    let thread = crate::thread::current();
    let (mut recording, mut counting) = (u64::MAX, u64::MAX);
    for _ in 0..BATCHES {
        let begin = mapping::now();
        for round in 0..ROUNDS {
            let (start, end) = (mapping::now(), mapping::now());
            for (index, word) in scratch.iter_mut().enumerate() {
                // SAFETY: the word is a local; the write is volatile so that the compiler keeps the work.
                unsafe { core::ptr::from_mut(word).write_volatile(start ^ end ^ round ^ index as u64) };
            }
        }
        let middle = mapping::now();
        for _ in 0..ROUNDS {
            core::hint::black_box(core::hint::black_box(thread).count(0, 0));
        }
        recording = recording.min(middle - begin);
        counting = counting.min(mapping::now() - middle);
    }
    thread.counts[0].recorded.store(thread.counts[0].calls.load(Relaxed), Relaxed);
    record.store((1000 * recording / ROUNDS).max(1), Relaxed);
    count.store((1000 * counting / ROUNDS).max(1), Relaxed);
}
