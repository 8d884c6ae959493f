// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Activation, before the first page can be absent: sets up handlers, signal masks and the system-call filter for every
//! thread.
//!
//! - **Flow** [`hook`] (called once by the pager) ──▶ this library's handlers are installed again ──▶ guard filter ──▶ wait
//!   until no thread blocks SIGBUS, SIGSEGV or SIGSYS ──▶ the full filter ──▶ memory that the kernel holds on to (`kept`) ──▶
//!   system calls in flight (`standing`)
//! - **Order** between the two filters, each thread that is in code of libc which blocks all signals leaves it. Under the
//!   guard filter no thread can block the three signals again. So no thread is trapped while it cannot receive the trap
//! - **Owner** nothing is allocated: lists and buffers lie in one mapping
//! - **Not here** the rules of the filters: `filter`

use std::sync::atomic::{AtomicBool, Ordering};

use memlift_zmem::descriptor;
use memlift_zmem::lock::Lock;
use memlift_zmem::mapping::Mapping;
use memlift_zmem::pager::Pager;

use crate::bpf::{Instruction, LABELS};
use crate::filter::{self, MOST_INSTRUCTIONS, Refused, Scope, Texts};
use crate::thread::OURS;
use crate::{kept, rings, signal, standing, sys, words};

const READ_BYTES: usize = 64 << 10;
const PAUSE_NS: i64 = 1_000_000;
/// Number of checks after which a thread that still blocks one of the signals ends the process.
const MOST_CHECKS: usize = 5_000;

#[repr(C)]
struct Room {
    instructions: [Instruction; MOST_INSTRUCTIONS],
    places: [u32; LABELS],
    texts: Texts,
    bytes: [u8; READ_BYTES],
}

static GUARD: Lock<bool> = Lock::new(false);
static DONE: AtomicBool = AtomicBool::new(false);

fn with_room<R>(body: impl FnOnce(&mut Room) -> R) -> R {
    let Ok(mapping) = Mapping::reserve("the system-call filter", size_of::<Room>()) else {
        words::die(&[c"memlift: no room for the system-call filter\n"]);
    };
    // SAFETY: the mapping is as large as a `Room`, page-aligned and zeroed, which is a valid value of every field; only this
    // call has it.
    body(unsafe { mapping.pointer().cast::<Room>().as_mut() })
}

/// Installs the guard filter. Also called before libc makes threads that block all signals for good.
pub fn guard() {
    let mut done = GUARD.lock();
    if !*done {
        with_room(|room| {
            texts(room);
            put(Scope::Guard, room);
        });
        *done = true;
    }
}

fn put(scope: Scope, room: &mut Room) {
    match filter::install(scope, &room.texts, &mut room.instructions, &mut room.places) {
        Ok(()) => {}
        Err(Refused::Size) => words::die(&[c"memlift: the system-call filter is too large\n"]),
        Err(Refused::Thread(_)) => words::die(&[
            c"memlift: a thread has a system-call filter of its own: its memory cannot be kept under the budget; ",
            c"run it without memlift, or with the kernel's backend\n",
        ]),
        Err(Refused::Kernel(libc::ENOMEM)) => words::die(&[
            c"memlift: too many programs replaced each other by exec in this process while memory was short: each needs a ",
            c"system-call filter, and the kernel takes 32,768 instructions of them; a larger budget avoids it\n",
        ]),
        Err(Refused::Kernel(_)) => words::die(&[
            c"memlift: the kernel refused the system-call filter (seccomp); `memlift doctor` says what this machine has\n",
        ]),
    }
}

/// The pager's hook: activates this process, once.
pub fn hook() {
    if DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    if signal::install().is_err() {
        words::die(&[
            c"memlift: the kernel refused the signal handlers: the program has a system-call filter of its own; ",
            c"run it without memlift, or with the kernel's backend\n",
        ]);
    }
    guard();
    rings::learn();
    with_room(|room| {
        if !can_read_process() {
            words::die(&[
                c"memlift: the process has as many descriptors as it may have (RLIMIT_NOFILE), or no /proc: this library cannot see ",
                c"what its memory is used for; a higher limit, or run it without memlift\n",
            ]);
        }
        await_masks(room);
        texts(room);
        put(if filter::inherited() { Scope::Image } else { Scope::All }, room);
        if let Some(pager) = Pager::get() {
            kept::find_kernel_held_memory(pager, &mut room.bytes);
        }
        let polite = signal::install_polite_handler();
        for_threads(room, |thread, buffer| {
            standing::pin_call_in_flight(thread, buffer, polite.is_some());
            true
        });
        if let Some(old) = &polite {
            signal::remove_polite_handler(old);
        }
    });
}

/// Returns true once activation has begun. The child of a fork inherits this state and the filters.
pub fn active() -> bool {
    DONE.load(Ordering::Acquire)
}

fn open(path: *const u8, flags: i32) -> Option<usize> {
    // SAFETY: the path ends with a zero byte.
    let open = || unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path, flags | libc::O_CLOEXEC) };
    usize::try_from(descriptor::open(open)).ok()
}

/// Returns true if the folders and files that describe this process can be read.
fn can_read_process() -> bool {
    let Some(folder) = open(c"/proc/self/task".as_ptr().cast(), libc::O_RDONLY | libc::O_DIRECTORY) else {
        return false;
    };
    // While one is read, others are opened.
    let file = open(c"/proc/self/maps".as_ptr().cast(), libc::O_RDONLY);
    if let Some(file) = file {
        close(file);
    }
    close(folder);
    file.is_some()
}

fn read(fd: usize, target: &mut [u8]) -> usize {
    // SAFETY: the kernel writes at most `target.len()` bytes to `target`, which is borrowed mutably for the call.
    usize::try_from(unsafe { sys!(libc::SYS_read, fd, target.as_mut_ptr(), target.len()) }).unwrap_or(0)
}

fn close(fd: usize) {
    // SAFETY: the descriptor was opened by this module, and nobody uses it after this call.
    unsafe { sys!(libc::SYS_close, fd) };
}

/// Parses the hexadecimal digits at the start of the text.
pub fn hexadecimal(text: &[u8]) -> u64 {
    text.iter()
        .map_while(|&digit| (digit as char).to_digit(16))
        .fold(0, |value, digit| value.wrapping_shl(4) | u64::from(digit))
}

/// Parses the number that starts at the first decimal digit of the text.
pub fn decimal(text: &[u8]) -> usize {
    text.iter()
        .skip_while(|byte| !byte.is_ascii_digit())
        .map_while(|&digit| (digit as char).to_digit(10))
        .fold(0, |value: usize, digit| value.wrapping_mul(10).wrapping_add(digit as usize))
}

/// Returns the text after the first occurrence of `mark`, or an empty slice if there is none.
pub fn after<'a>(text: &'a [u8], mark: &[u8]) -> &'a [u8] {
    let place = text.windows(mark.len()).position(|window| window == mark);
    place.map_or(&[], |place| &text[place + mark.len()..])
}

/// Calls `act` with each line of a file; stops at a line that is longer than the buffer.
pub fn for_lines(path: &std::ffi::CStr, buffer: &mut [u8], mut act: impl FnMut(&[u8])) {
    let Some(fd) = open(path.as_ptr().cast(), libc::O_RDONLY) else { return };
    let mut kept = 0;
    loop {
        let got = read(fd, &mut buffer[kept..]);
        let end = kept + got;
        let mut start = 0;
        while let Some(length) = buffer[start..end].iter().position(|&byte| byte == b'\n') {
            act(&buffer[start..start + length]);
            start += length + 1;
        }
        buffer.copy_within(start..end, 0);
        kept = end - start;
        if got == 0 || kept == buffer.len() {
            break;
        }
    }
    close(fd);
}

/// Collects the places of the program's instructions: executable file mappings in `/proc/self/maps`, except for this
/// library's.
fn texts(room: &mut Room) {
    let Room { texts, bytes, .. } = room;
    texts.count = 0;
    let own = hook as *const () as u64;
    for_lines(c"/proc/self/maps", bytes, |line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { return };
        let Some(dash) = range.iter().position(|&byte| byte == b'-') else { return };
        let (first, last) = (hexadecimal(&range[..dash]), hexadecimal(&range[dash + 1..]));
        let from_file = line.contains(&b'/');
        if rights.get(2) == Some(&b'x') && from_file && !(first..last).contains(&own) {
            texts.add(first, last);
        }
    });
}

/// Waits until no thread blocks SIGBUS, SIGSEGV or SIGSYS.
fn await_masks(room: &mut Room) {
    for check in 0.. {
        if for_threads(room, |thread, buffer| !blocks(thread, buffer)) {
            return;
        }
        if check == MOST_CHECKS {
            words::die(&[
                c"memlift: a thread keeps SIGBUS, SIGSEGV or SIGSYS blocked: its faults could not be answered\n",
            ]);
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
        // SAFETY: the time lives as long as the call.
        unsafe { sys!(libc::SYS_nanosleep, &raw const pause, 0) };
    }
}

/// Calls `ask` with each thread's number as text, and with a buffer for reading. Returns true if all calls return true.
fn for_threads(room: &mut Room, mut ask: impl FnMut(&[u8], &mut [u8]) -> bool) -> bool {
    let (entries, buffer) = room.bytes.split_at_mut(READ_BYTES / 2);
    let mut all = true;
    for_entries(c"/proc/self/task", entries, |thread| {
        all &= is_of_the_kernel(thread, buffer) || ask(thread, buffer);
    });
    all
}

/// Returns true if a thread runs no code of the program, for example a worker of io_uring, which takes no signals.
fn is_of_the_kernel(thread: &[u8], buffer: &mut [u8]) -> bool {
    const IO_WORKER: usize = 0x10;
    const USER_WORKER: usize = 0x4000;
    /// Index of the flags among the fields after the name: state, five numbers, flags. The name may contain blanks, and ends
    /// with the last parenthesis.
    const FLAGS: usize = 6;
    let Some(text) = read_of_thread(thread, b"/stat", buffer) else { return false };
    let end = text.iter().rposition(|&byte| byte == b')').map_or(0, |end| end + 2);
    let flags = text[end.min(text.len())..].split(|&byte| byte == b' ').nth(FLAGS).map_or(0, decimal);
    flags & (IO_WORKER | USER_WORKER) != 0
}

/// Calls `act` with each number among the names in a folder of `/proc`; `entries` is a buffer for reading.
pub fn for_entries(path: &std::ffi::CStr, entries: &mut [u8], mut act: impl FnMut(&[u8])) {
    let Some(folder) = open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_DIRECTORY) else {
        return;
    };
    loop {
        // SAFETY: the kernel writes at most `entries.len()` bytes to `entries`, which is borrowed mutably for the call.
        let got = unsafe { sys!(libc::SYS_getdents64, folder, entries.as_mut_ptr(), entries.len()) };
        let Ok(got) = usize::try_from(got) else { break };
        if got == 0 {
            break;
        }
        let mut at = 0;
        while at + 19 < got {
            // Layout of an entry: inode and offset of 8 bytes each, length of 2, kind of 1, then the name with a zero byte.
            let length = usize::from(u16::from_le_bytes([entries[at + 16], entries[at + 17]]));
            let name = entries[at + 19..at + length].split(|&byte| byte == 0).next().unwrap_or(&[]);
            if name.first().is_some_and(u8::is_ascii_digit) {
                act(name);
            }
            at += length.max(20);
        }
    }
    close(folder);
}

/// Reads the file named `file` of a thread.
pub fn read_of_thread<'a>(thread: &[u8], file: &[u8], buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = [0u8; 64];
    let mut end = 0;
    for part in [b"/proc/self/task/", thread, file] {
        if end + part.len() >= path.len() {
            return None;
        }
        path[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    let fd = open(path.as_ptr(), libc::O_RDONLY)?;
    let got = read(fd, buffer);
    close(fd);
    Some(&buffer[..got])
}

fn blocks(thread: &[u8], buffer: &mut [u8]) -> bool {
    let Some(text) = read_of_thread(thread, b"/status", buffer) else { return false };
    let mark = b"SigBlk:\t";
    let mask = text
        .windows(mark.len())
        .position(|window| window == mark)
        .map_or(0, |position| hexadecimal(&text[position + mark.len()..]));
    mask & OURS != 0
}
