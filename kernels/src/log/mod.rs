// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores that survive a crash: log records and lines of pages go past the caches, and ordinary stores are written back.
//!
//! - **Flow** `append`, `nt_copy` and `copy_lines_crc` use non-temporal stores; ordinary stores are followed by `write_back`. After a
//!   `fence` both are durable, if the memory is. To recover, `check` verifies a record of the log.
//! - **Layout** this file chooses the level · `x86_64` the vector routines · `write_back` writes lines back by address · `record`
//!   checks log records · `page_lines` names new lines of a page.
//! - **Order** only `fence` is a fence; it orders the stores of the thread that calls it, no others.
//! - **Owner** what is stored to is named by raw pointers, as in the rest of this crate: it may be a file that other processes map, too.
//! - **Not here** when to fence, where logs lie, how records are applied, and the meaning of a sequence number.
//!
//! The level `scalar`, and architectures other than x86-64, use ordinary stores and write the lines back. If the CPU has no instruction
//! for that, the stores are durable only after the kernel has written the pages.

mod page_lines;
mod record;
mod write_back;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use page_lines::PageLines;
pub use record::{RecordError, check};
pub use write_back::{fence, write_back};

use crate::Isa;
use crate::arch::all;
use core::sync::atomic::{AtomicU8, Ordering};
use memlift_spec::formats::log::{RECORD_CHECKED_FROM, RECORD_HEADER_BYTES};

const LINE_BYTES: usize = crate::CACHE_LINE_BYTES;
/// Words before the lines of a record of one page: its header, the page and the bitmap.
const HEAD_WORDS: usize = RECORD_HEADER_BYTES / 8 + 2;

/// 1 + the level that [`active`](crate::active) chose; 0 before the first use.
static LEVEL: AtomicU8 = AtomicU8::new(0);

#[inline(always)]
fn level() -> Isa {
    match LEVEL.load(Ordering::Relaxed) {
        4 => Isa::Avx512,
        3 => Isa::Avx2,
        2 => Isa::Sse2,
        1 => Isa::Scalar,
        _ => choose(),
    }
}

#[cold]
fn choose() -> Isa {
    let isa = crate::active().isa;
    let level = match isa {
        Isa::Scalar => 1,
        Isa::Sse2 => 2,
        Isa::Avx2 => 3,
        Isa::Avx512 => 4,
    };
    LEVEL.store(level, Ordering::Relaxed);
    isa
}

/// Returns the CRC-32C; `seed` is 0, or the CRC-32C of the preceding bytes.
#[inline]
pub fn crc32c(bytes: &[u8], seed: u32) -> u32 {
    // SAFETY: the slice is readable for its length.
    unsafe { (crate::active().crc32c)(bytes.as_ptr(), bytes.len(), seed) }
}

/// Copies whole lines past the caches, without a fence.
///
/// # Safety
///
/// `target` is aligned to 64 and writable for `bytes`, a multiple of 64; `source` is readable for `bytes`; the two do not
/// overlap.
/// Until a [`fence`], no other thread reads the target.
#[inline]
pub unsafe fn nt_copy(target: *mut u8, source: *const u8, bytes: usize) {
    debug_assert!(target.addr().is_multiple_of(LINE_BYTES) && bytes.is_multiple_of(LINE_BYTES));
    // SAFETY: the caller guarantees both buffers of `bytes`; this CPU has the level.
    unsafe { nt_copy_at(level(), target, source, bytes) }
}

#[inline(always)]
unsafe fn nt_copy_at(isa: Isa, target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees both buffers of `bytes`, and that this CPU has the level.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_64::avx512::nt_copy(target, source, bytes),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86_64::avx2::nt_copy(target, source, bytes),
            #[cfg(target_arch = "x86_64")]
            Isa::Sse2 => x86_64::sse2::nt_copy(target, source, bytes),
            _ => {
                all::plain::copy(target, source, bytes);
                write_back(target, bytes);
            }
        }
    }
}

/// Copies lines to their places in a page of 4 KiB past the caches, without a fence: the lowest first, as they follow one another in
/// `source`; bit i of `lines` selects bytes 64 i to 64 i + 63 of the page.
///
/// # Safety
///
/// `target` is aligned to 64 and each selected line of it is writable; `source` is readable for as many lines; the two do not overlap.
/// Until a [`fence`], no other thread reads those lines of the target.
#[inline]
pub unsafe fn scatter_lines(target: *mut u8, source: *const u8, lines: u64) {
    debug_assert!(target.addr().is_multiple_of(LINE_BYTES));
    // SAFETY: the caller guarantees the selected lines of the page and the source; this CPU has the level.
    unsafe { scatter_lines_at(level(), target, source, lines) }
}

#[inline(always)]
unsafe fn scatter_lines_at(isa: Isa, target: *mut u8, source: *const u8, mut lines: u64) {
    // SAFETY: the caller guarantees the lines of both sides, and that this CPU has the level.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_64::avx512::scatter_lines(target, source, lines),
            _ => {
                let mut packed = source;
                while lines != 0 {
                    let at = lines.trailing_zeros() as usize * LINE_BYTES;
                    nt_copy_at(isa, target.add(at), packed, LINE_BYTES);
                    packed = packed.add(LINE_BYTES);
                    lines &= lines - 1;
                }
            }
        }
    }
}

/// Computes a record's checksum, writes it into the record's first four bytes, and stores the record in the log past the caches.
/// Returns the checksum. There is no fence, so that several records can share one.
///
/// # Safety
///
/// `record` is readable and writable for `bytes`, a multiple of 64 and not 0, aligned to 8, and nobody else writes it during the
/// call; `target` is aligned to 64 and writable for `bytes`; the two do not overlap. Until a [`fence`], no other thread reads
/// the target.
#[inline]
pub unsafe fn append(target: *mut u8, record: *mut u8, bytes: usize, salt: u32) -> u32 {
    debug_assert!(target.addr().is_multiple_of(LINE_BYTES) && bytes.is_multiple_of(LINE_BYTES) && bytes != 0);
    // SAFETY: the caller guarantees record and target; this CPU has the level.
    unsafe { append_at(level(), target, record, bytes, salt) }
}

#[inline(always)]
unsafe fn append_at(isa: Isa, target: *mut u8, record: *mut u8, bytes: usize, salt: u32) -> u32 {
    // SAFETY: the caller guarantees record and target, and that this CPU has the level.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_64::avx512::append(target, record, bytes, salt),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86_64::avx2::append(target, record, bytes, salt),
            _ => {
                let checked = record.add(RECORD_CHECKED_FROM);
                let checksum = all::crc::crc32c(checked, bytes - RECORD_CHECKED_FROM, salt);
                record.cast::<u32>().write_unaligned(checksum);
                nt_copy_at(isa, target, record, bytes);
                checksum
            }
        }
    }
}

/// Makes a record of `head` and the lines behind it, lowest first, in the memory at `record`, and appends it to the log as [`append`]
/// does. Returns the checksum. `head` has the record's header, whose first four bytes are 0, and what comes before the lines. Each line
/// is read once, word by word.
///
/// # Safety
///
/// `record` and `target` are aligned to 64 and writable for 64 bytes more than the lines have; the two and the lines do not overlap,
/// and nobody else reads or writes `record` during the call. Until a [`fence`], no other thread reads the target.
#[inline]
pub unsafe fn append_lines(
    target: *mut u8,
    record: *mut u8,
    head: &[u64; HEAD_WORDS],
    lines: &PageLines<'_>,
    salt: u32,
) -> u32 {
    debug_assert!(target.addr().is_multiple_of(LINE_BYTES) && record.addr().is_multiple_of(LINE_BYTES));
    // SAFETY: the caller guarantees record and target; this CPU has the level.
    unsafe { append_lines_at(level(), target, record, head, lines, salt) }
}

#[inline(always)]
unsafe fn append_lines_at(
    isa: Isa,
    target: *mut u8,
    record: *mut u8,
    head: &[u64; HEAD_WORDS],
    lines: &PageLines<'_>,
    salt: u32,
) -> u32 {
    // SAFETY: the caller guarantees room for head, lines and padding in record and target, and that this CPU has the level.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx512 {
            return x86_64::avx512::append_lines(target, record, head, lines, salt);
        }
        let bytes = (lines.count() + 1) * LINE_BYTES;
        make_lines(core::slice::from_raw_parts_mut(record, bytes), head, lines);
        append_at(isa, target, record, bytes, salt)
    }
}

/// Makes the record that [`append_lines`] makes, without its checksum.
///
/// # Panics
///
/// If `record` has not as many bytes as the lines and one line more, or is not aligned to 8.
pub fn make_lines(record: &mut [u8], head: &[u64; HEAD_WORDS], lines: &PageLines<'_>) {
    assert!(record.len() == (lines.count() + 1) * LINE_BYTES && record.as_ptr().addr().is_multiple_of(8));
    let (first, rest) = record.as_chunks_mut::<8>().0.split_at_mut(HEAD_WORDS);
    first.iter_mut().zip(head).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    let (whole, padding) = rest.as_chunks_mut::<{ LINE_BYTES / 8 }>();
    for (target, (_, start)) in whole.iter_mut().zip(lines.starts()) {
        // SAFETY: both are whole lines, aligned to 8 (above), and a unique borrow overlaps nothing.
        unsafe { copy_words(target.as_mut_ptr().cast(), start) };
    }
    padding.as_flattened_mut().fill(0);
}

/// Copies lines to their places in a page of 4 KiB through the caches, each word by word as [`append_lines`] reads it.
///
/// # Safety
///
/// `target` is aligned to 64 and each of the lines is writable there; it overlaps none of their sources, and nobody else reads or
/// writes these lines of the page during the call.
#[inline]
pub unsafe fn fill_lines(target: *mut u8, lines: &PageLines<'_>) {
    // SAFETY: the caller guarantees the lines of the page; this CPU has the level.
    unsafe { fill_lines_at(level(), target, lines) }
}

#[inline(always)]
unsafe fn fill_lines_at(isa: Isa, target: *mut u8, lines: &PageLines<'_>) {
    debug_assert!(target.addr().is_multiple_of(LINE_BYTES));
    // SAFETY: the caller guarantees the lines of the page, and that this CPU has the level.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_64::avx512::fill_lines(target, lines),
            _ => lines.starts().for_each(|(line, start)| copy_words(target.add(line * LINE_BYTES), start)),
        }
    }
}

/// Copies a line that was stored a moment ago: see `x86_64`.
#[inline(always)]
unsafe fn copy_words(target: *mut u8, source: *const u8) {
    for word in 0..LINE_BYTES / 8 {
        // SAFETY: the caller guarantees a line, aligned to 8, on both sides.
        unsafe { target.cast::<u64>().add(word).write(source.cast::<u64>().add(word).read_volatile()) };
    }
}

/// Copies lines of a page of 4 KiB past the caches, without a fence, and returns the CRC-32C of the copied lines, lowest first; bit
/// i of `lines` selects bytes 64 i to 64 i + 63, and `seed` is the CRC-32C of the bytes before them. Each line is read once, so
/// the checksum is that of the stored bytes.
///
/// # Safety
///
/// `target` is aligned to 64; each selected line is writable in `target` and readable in `source`; the two do not overlap.
/// Until a [`fence`], no other thread reads those lines of the target.
#[inline]
pub unsafe fn copy_lines_crc(target: *mut u8, source: *const u8, lines: u64, seed: u32) -> u32 {
    debug_assert!(target.addr().is_multiple_of(LINE_BYTES));
    // SAFETY: the caller guarantees the selected lines of both pages; this CPU has the level.
    unsafe { copy_lines_crc_at(level(), target, source, lines, seed) }
}

#[inline(always)]
unsafe fn copy_lines_crc_at(isa: Isa, target: *mut u8, source: *const u8, mut lines: u64, seed: u32) -> u32 {
    // SAFETY: the caller guarantees the selected lines of both pages; the portable routine copies no others.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_64::avx512::copy_lines_crc(target, source, lines, seed),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86_64::avx2::copy_lines_crc(target, source, lines, seed),
            _ => {
                let mut state = !seed;
                let mut line = [0u8; LINE_BYTES];
                while lines != 0 {
                    let at = lines.trailing_zeros() as usize * LINE_BYTES;
                    all::plain::copy(line.as_mut_ptr(), source.add(at), LINE_BYTES);
                    state = all::crc::update(state, line.as_ptr(), LINE_BYTES);
                    nt_copy_at(isa, target.add(at), line.as_ptr(), LINE_BYTES);
                    lines &= lines - 1;
                }
                !state
            }
        }
    }
}

#[cfg(test)]
mod tests;
