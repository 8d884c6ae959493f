// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers call sites, and records the code in which they lie.
//!
//! - **Flow** [`number`] looks up a return address in a table; its position in the table is its number. The first call from an address
//!   records the address and, if the module is new, the module that contains it (a line of /proc/self/maps).
//! - **Order** a known number costs one hash and one load. Only a new site costs more; the maps are read once per module, by system
//!   calls, without a lock that a signal handler could meet and without allocation.
//! - **Owner** a forked child finds its parent's entries, which carry the parent's number, and records each site that it uses again.
//! - **Rule** the number 0 means not known: the table is full for this address, or the address is not one of a program.
//! - **Not here** names of functions: the reader of the trace finds them in the module's file.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use memlift_spec::formats::trace::{Kind, NAME_MAX, NAME_PIECE, Record, SIZE_MAX};

/// Number of table entries, a power of two below 2^16.
const SITES: usize = 8192;
/// Number of table entries that are tried for one address.
const STEPS: usize = 16;
/// Number of modules that are remembered; further ones are recorded again with each new site.
const MODULES: usize = 256;
/// Upper bound of the length of a line of the maps, bytes.
const LINE: usize = 2 * NAME_MAX;

/// Sites: the return address, and from bit 48 on the low bits of the number of the process that recorded it; 0 if free.
static TABLE: [AtomicU64; SITES] = [const { AtomicU64::new(0) }; SITES];

struct Module {
    first: AtomicU64,
    end: AtomicU64,
    process: AtomicU32,
}

static KNOWN: [Module; MODULES] =
    [const { Module { first: AtomicU64::new(0), end: AtomicU64::new(0), process: AtomicU32::new(0) } };
        MODULES];

/// Number of the process that is reading its maps. 0, or another process's number: no thread of this process is.
static READING: AtomicU32 = AtomicU32::new(0);

struct Text(UnsafeCell<[u8; LINE]>);

// SAFETY: only the thread that has set `READING` uses the bytes.
unsafe impl Sync for Text {}

static TEXT: Text = Text(UnsafeCell::new([0; LINE]));

/// Returns the number of the site with return address `caller`, from 1; 0 if it is not known. `tell` is called with new records.
#[inline]
pub fn number(caller: usize, process: u32, time_ns: u64, tell: impl FnMut(&Record)) -> u16 {
    let address = caller as u64;
    if address == 0 || address >= SIZE_MAX {
        return 0;
    }
    let wanted = address | u64::from(process as u16) << 48;
    let first = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize;
    for step in 0..STEPS {
        let place = (first + step) % SITES;
        let mut held = TABLE[place].load(Relaxed);
        if held != wanted && (held == 0 || held << 16 == wanted << 16) {
            match TABLE[place].compare_exchange(held, wanted, Relaxed, Relaxed) {
                Ok(_) => {
                    new(place as u16 + 1, address, process, time_ns, tell);
                    return place as u16 + 1;
                }
                Err(other) => held = other,
            }
        }
        if held == wanted {
            return place as u16 + 1;
        }
    }
    0
}

#[cold]
fn new(site: u16, address: u64, process: u32, time_ns: u64, mut tell: impl FnMut(&Record)) {
    module(address, process, time_ns, &mut tell);
    tell(&Record { kind: Kind::Site, site, parameter: 0, words: [time_ns, address, 0, 0, 0, 0, 0] });
}

/// Records the module that contains `address`, unless this process has recorded it.
fn module(address: u64, process: u32, time_ns: u64, tell: &mut impl FnMut(&Record)) {
    let holds = |module: &&Module| {
        (module.first.load(Relaxed)..module.end.load(Relaxed)).contains(&address)
            && module.process.load(Relaxed) == process
    };
    if KNOWN.iter().find(holds).is_some() {
        return;
    }
    let reading = READING.load(Relaxed);
    if reading == process || READING.compare_exchange(reading, process, Acquire, Relaxed).is_err() {
        return;
    }
    // SAFETY: this thread has set `READING`, and clears it only below.
    let text = unsafe { &mut *TEXT.0.get() };
    if let Some(line) = line_of(address, text) {
        let words = [time_ns, line.first, line.end, line.offset, line.inode, line.device, 0];
        tell(&Record { kind: Kind::Module, site: 0, parameter: line.name.len() as u32, words });
        for piece in line.name.chunks(NAME_PIECE) {
            let mut bytes = [0; NAME_PIECE];
            bytes[..piece.len()].copy_from_slice(piece);
            let mut words = [0; 7];
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            tell(&Record { kind: Kind::ModuleName, site: 0, parameter: 0, words });
        }
        let is_free = |module: &&Module| {
            let first = module.first.load(Relaxed);
            first == 0 || first == line.first || module.process.load(Relaxed) != process
        };
        if let Some(place) = KNOWN.iter().find(is_free) {
            place.first.store(line.first, Relaxed);
            place.end.store(line.end, Relaxed);
            place.process.store(process, Relaxed);
        }
    }
    READING.store(0, Release);
}

/// A parsed line of the maps.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    first: u64,
    end: u64,
    offset: u64,
    device: u64,
    inode: u64,
    name: &'a [u8],
}

/// Returns the line of /proc/self/maps that contains `address`. Returns `None` also if the process has a filter of system
/// calls, which might end it for opening a file.
fn line_of(address: u64, text: &mut [u8; LINE]) -> Option<Line<'_>> {
    // SAFETY: the name ends with a zero. System calls by number are no cancellation points.
    let file = unsafe {
        if libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) != 0 {
            return None;
        }
        let (name, flags) = (c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, flags)
    };
    if file < 0 {
        return None;
    }
    let (mut held, mut found) = (0, None);
    while found.is_none() && held < LINE {
        // SAFETY: the kernel writes at most the bytes of `text` that are free behind those read so far.
        let read = unsafe { libc::syscall(libc::SYS_read, file, text[held..].as_mut_ptr(), LINE - held) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
        held += read;
        let mut from = 0;
        while let Some(length) = text[from..held].iter().position(|byte| *byte == b'\n') {
            let range = from..from + length;
            if line(&text[range.clone()]).is_some_and(|line| (line.first..line.end).contains(&address)) {
                found = Some(range);
                break;
            }
            from += length + 1;
        }
        if found.is_none() {
            text.copy_within(from..held, 0);
            held -= from;
        }
    }
    // SAFETY: the descriptor was opened above and is not used again.
    unsafe { libc::syscall(libc::SYS_close, file) };
    line(&text[found?])
}

/// Parses `first-end rights offset major:minor inode name`; the name is empty for code without a file.
fn line(text: &[u8]) -> Option<Line<'_>> {
    let hex = |text: &[u8]| {
        text.iter().try_fold(0u64, |sum, digit| Some(sum << 4 | u64::from((*digit as char).to_digit(16)?)))
    };
    let mut words = text.splitn(6, |byte| *byte == b' ');
    let (range, _rights, offset, device, inode) =
        (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
    let mut name = words.next().unwrap_or(&[]);
    while let [b' ', rest @ ..] = name {
        name = rest;
    }
    let (first, end) = range.split_at(range.iter().position(|byte| *byte == b'-')?);
    let (major, minor) = device.split_at(device.iter().position(|byte| *byte == b':')?);
    let inode = inode.iter().try_fold(0u64, |sum, digit| {
        digit.is_ascii_digit().then(|| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    })?;
    // Names in brackets, such as [vdso], are not files.
    let name = if name.starts_with(b"/") { &name[..name.len().min(NAME_MAX)] } else { &[] };
    Some(Line {
        first: hex(first)?,
        end: hex(&end[1..])?,
        offset: hex(offset)?,
        device: hex(major)? << 32 | hex(&minor[1..])?,
        inode,
        name,
    })
}
