// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Before the program begins: the trace that `MEMLIFT_TRACE` names is mapped. At its end: what was still only counted.
//!
//! - **Order** libc's functions are found first; then the trace; then the thresholds, which let records in
//! - **Owner** the mapping stays for the life of the process; the descriptor is closed at once, so the program may close whatever it
//!   finds and count on the numbers of its own
//! - **Rule** a program with more rights than its caller ignores the variable. A trace that cannot be mapped or is of another version
//!   is left alone, silently: what the program prints is the program's

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use memlift_spec::trace::{HEADER_BYTES, Kind, LIMIT_BYTES, MAGIC, VERSION, word};

use crate::mapping;
use crate::{library, memory, sink};

/// Keys below this are kept in the thread's own descriptor: setting one allocates nothing.
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
        // SAFETY: a word of the header, which is mapped; others write it by atomics only after it was made.
        unsafe { base.cast::<u64>().add(index).read_volatile() }
    };
    let (threshold, transform) = (at(word::THRESHOLD), at(word::TRANSFORM_THRESHOLD));
    let mut key = 0;
    // SAFETY: a place for a number, and a function of this library, which is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 && key < CHEAP_KEYS {
        sink::KEY.store(key + 1, Relaxed);
    }
    mapping::open(base, limit, at(word::START_MONOTONIC_NS), number);
    sink::begin();
    weigh();
    memory::begin(threshold as usize);
    library::begin(transform as usize);
}

extern "C" fn at_exit() {
    sink::end(Kind::Exit);
}

extern "C" fn thread_ends(_block: *mut c_void) {
    sink::end(Kind::End);
}

/// Ends the process at once, as libc's does, after what is known was written.
fn leave(code: c_int) -> ! {
    sink::end(Kind::Exit);
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    leave(code)
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    leave(code)
}

/// The trace, mapped, and the bytes that it may have.
fn map() -> Option<(*mut u8, usize)> {
    // SAFETY: the name has its zero; what getenv gives is used at once, before the program can change its environment. The file is
    // looked at before it is mapped whole, and again in its mapping: a regular file that is at least as long as its header says.
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

/// A page that is empty in every child.
fn page() -> Option<*mut AtomicU32> {
    // SAFETY: a new mapping, which stays.
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

/// Measures the cost of recording and of counting one call, once for all processes: about 50 µs. The least of some batches: a batch in
/// which another program had the core says nothing.
fn weigh() {
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
                // SAFETY: a word of a local; volatile, so that the work is done.
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
    thread.counts[0].told.store(thread.counts[0].calls.load(Relaxed), Relaxed);
    record.store((1000 * recording / ROUNDS).max(1), Relaxed);
    count.store((1000 * counting / ROUNDS).max(1), Relaxed);
}
