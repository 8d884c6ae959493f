// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the records of a log, and stores the entries of a good record to a heap.
//!
//! - **Flow** checks in this order: header (size, kind), position, checksum, each entry lies in the record and in the heap, only zeros
//!   behind the last entry. Then the entries are stored one by one, and their lines written back.
//! - **Order** the first check that fails determines the error, so the order is part of the behaviour. Entries are stored first to last,
//!   so before-images must not name a byte twice.
//! - **Owner** the log may be a file that another process writes: no slice is made of it, and each word that decides where to store is
//!   read once, checked, and used as it was read. So no change of the log's bytes at any time makes `apply` store outside the heap.
//! - **Not here** the choice of the next record, and the meaning of an unreadable one: recovery decides both.

use super::write_back::{instruction, write_back_with};
use core::ptr;
use memlift_spec::operand::log::{
    PAGE_BYTES, PAGE_ENTRY_BYTES, RECORD_ALIGN, RECORD_CHECKED_FROM, RECORD_ENTRIES_OPEN,
    RECORD_HEADER_BYTES, RECORD_LINES, RECORD_PAGES, RECORD_RANGES, RECORD_UNDO, RangeWord, RecordHeader,
};

const LINE_BYTES: usize = crate::CACHE_LINE_BYTES;
const WORD_BYTES: usize = 8;

/// Reason why a record is not applied. Nothing was stored, except with [`Fault::Changed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// There is no header: its size is not a multiple of 64 within the available bytes, or its kind is unknown. Memory that was
    /// never written also gives this error.
    #[error("no log record here: the header is blank, torn or spoilt; treat this as the end of the log")]
    Header,
    /// The record has another position: usually it belongs to an earlier round of the log.
    #[error("a log record of position {found} is here; the log's newer records end before it")]
    Position {
        /// The position that the record names.
        found: u64,
    },
    /// The bytes are not those that were appended, or the salt belongs to another pool.
    #[error("the log record's checksum does not match: torn, spoilt, or of another pool")]
    Checksum,
    /// An entry does not fit into the record or is empty, or the bytes behind the last entry are not zeros.
    #[error("entry {entry} of the log record does not fit into the record: who wrote it is at fault")]
    Entry {
        /// Index of the entry, counted from 0.
        entry: usize,
    },
    /// An entry names bytes outside the heap, or bytes of the record itself.
    #[error("entry {entry} of the log record lies outside the heap: is this the log of another pool?")]
    Bounds {
        /// Index of the entry, counted from 0.
        entry: usize,
    },
    /// The record's kind has no entries with bytes for a heap.
    #[error("a log record of kind {kind} has no bytes to apply")]
    Kind {
        /// Kind of the record, see [`RecordHeader::kind`].
        kind: u8,
    },
    /// Another process changed the record after it was checked. The entries before the changed one are stored.
    #[error("the log record changed while it was applied: stop the other writer, then recover")]
    Changed,
}

/// Result of [`apply`]: the record that was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Bytes of the record, which is also the distance to the next record.
    pub record_bytes: usize,
    /// Bytes stored to the heap.
    pub data_bytes: u64,
    /// Sequence number of the record, see [`RecordHeader::sequence`].
    pub sequence: u64,
}

/// The heap that entries must lie in, and the record that they must not touch, as addresses.
#[derive(Clone, Copy)]
struct Limits {
    heap: usize,
    heap_bytes: u64,
    record: usize,
    record_bytes: usize,
}

impl Limits {
    /// Returns the offset as an index if the `bytes` there lie in the heap; `None` if they leave the heap or overlap the record.
    #[inline(always)]
    fn offset_in_heap(&self, offset: u64, bytes: u64) -> Option<usize> {
        let end = offset.checked_add(bytes)?;
        if end > self.heap_bytes {
            return None;
        }
        let start = self.heap.checked_add(usize::try_from(offset).ok()?)?;
        let end = start.checked_add(usize::try_from(bytes).ok()?)?;
        let record_end = self.record.checked_add(self.record_bytes)?;
        (end <= self.record || record_end <= start).then_some(start - self.heap)
    }
}

/// # Safety
///
/// Eight bytes at `at` are readable.
#[inline(always)]
unsafe fn word(at: *const u8) -> u64 {
    // SAFETY: the caller guarantees eight readable bytes. The read is volatile, so the load is not repeated after the value was
    // checked.
    unsafe { u64::from_le(at.cast::<Unaligned>().read_volatile().0) }
}

#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned(u64);

/// Checks a record's header, position, checksum and the shape of its entries; [`apply`] also checks where in the heap they lie.
/// Returns a copy of the header.
///
/// # Errors
///
/// [`Fault::Header`], [`Fault::Position`], [`Fault::Checksum`], [`Fault::Entry`], in this order.
///
/// # Safety
///
/// `record` is readable for `available` bytes.
pub unsafe fn check(
    record: *const u8,
    available: usize,
    salt: u32,
    position: u64,
) -> Result<RecordHeader, Fault> {
    // SAFETY: the caller guarantees that `record` is readable for `available` bytes; `verified_header` accepts no longer record.
    unsafe {
        let header = verified_header(record, available, salt, position)?;
        walk(record, &header, |_, _, _, _| Ok(()))?;
        Ok(header)
    }
}

/// Does the checks of [`check`] and checks that each entry lies in the heap. Then stores the entries of a record of kind ranges,
/// lines or undo to the heap, first to last; with `write_back` it also writes back the lines that it stored to. There is no
/// fence.
///
/// # Errors
///
/// The errors of [`check`], [`Fault::Kind`] and [`Fault::Bounds`]: nothing was stored. [`Fault::Changed`] if the record's bytes
/// changed between check and store.
///
/// # Safety
///
/// `record` is readable for `available` bytes, and the heap writable for `heap_bytes`. During the call nobody else stores to or
/// reads the ranges that the record names.
pub unsafe fn apply(
    record: *const u8,
    available: usize,
    salt: u32,
    position: u64,
    heap: *mut u8,
    heap_bytes: u64,
    write_back: bool,
) -> Result<Applied, Fault> {
    // SAFETY: the caller guarantees that `record` is readable for `available` bytes.
    let header = unsafe { verified_header(record, available, salt, position)? };
    if header.kind == RECORD_PAGES {
        return Err(Fault::Kind { kind: header.kind });
    }
    let limits =
        Limits { heap: heap.addr(), heap_bytes, record: record.addr(), record_bytes: header.bytes as usize };
    let bounds = |entry: usize, offset: u64, bytes: usize, _: *const u8| {
        limits.offset_in_heap(offset, bytes as u64).map(|_| ()).ok_or(Fault::Bounds { entry })
    };
    let copy = crate::active().copy;
    let instruction = instruction();
    let mut data_bytes = 0;
    let store = |_: usize, offset: u64, bytes: usize, data: *const u8| {
        let offset = limits.offset_in_heap(offset, bytes as u64).ok_or(Fault::Changed)?;
        // SAFETY: `walk` passes data within the record. `offset_in_heap` has just checked the very numbers that are used here: the
        // target lies in the heap, which the caller guarantees to be writable, and not in the record.
        unsafe {
            let target = heap.add(offset);
            if bytes <= LINE_BYTES {
                let mut at = 0;
                while at < bytes {
                    target.add(at).cast::<u64>().write_unaligned(data.add(at).cast::<u64>().read_unaligned());
                    at += WORD_BYTES;
                }
            } else {
                copy(target, data, bytes);
            }
            if write_back {
                write_back_with(instruction, target, bytes);
            }
        }
        data_bytes += bytes as u64;
        Ok(())
    };
    // SAFETY: `verified_header` found the whole record within the `available` bytes that the caller guarantees.
    unsafe {
        walk(record, &header, bounds)?;
        walk(record, &header, store).map_err(|_| Fault::Changed)?;
    }
    Ok(Applied { record_bytes: header.bytes as usize, data_bytes, sequence: header.sequence })
}

/// Returns a copy of the header after checking size, kind, position and checksum.
unsafe fn verified_header(
    record: *const u8,
    available: usize,
    salt: u32,
    position: u64,
) -> Result<RecordHeader, Fault> {
    if available < RECORD_ALIGN {
        return Err(Fault::Header);
    }
    // SAFETY: the caller guarantees `available` bytes, which are at least a header; every bit pattern is a header.
    let header = unsafe { record.cast::<RecordHeader>().read_unaligned() };
    let bytes = header.bytes as usize;
    let whole = bytes.is_multiple_of(RECORD_ALIGN) && bytes != 0 && bytes <= available;
    let known = matches!(header.kind, RECORD_RANGES | RECORD_LINES | RECORD_PAGES | RECORD_UNDO);
    if !whole || !known {
        return Err(Fault::Header);
    }
    if header.position != position {
        return Err(Fault::Position { found: header.position });
    }
    // SAFETY: `bytes` was checked to be at most `available`.
    let checksum = unsafe {
        let checked = record.add(RECORD_CHECKED_FROM);
        (crate::active().crc32c)(checked, bytes - RECORD_CHECKED_FROM, salt)
    };
    if checksum != header.checksum { Err(Fault::Checksum) } else { Ok(header) }
}

/// Returns true if the entries end at `at`, in a record that does not count its entries.
///
/// # Safety
///
/// The record is readable for `end` bytes.
#[cold]
unsafe fn ends(record: *const u8, kind: u8, at: usize, end: usize) -> bool {
    // In records of lines and pages the first word may be 0 for page 0; the second is a bitmap and never empty.
    let words = if matches!(kind, RECORD_RANGES | RECORD_UNDO) { 1 } else { 2 };
    (0..words).all(|one| {
        let at = at + one * WORD_BYTES;
        if end.saturating_sub(at) < WORD_BYTES {
            return true;
        }
        // SAFETY: the word lies before `end`, as the line above checks, and the record is readable up to there.
        unsafe { word(record.add(at)) == 0 }
    })
}

/// Calls `visit` for each piece of the entries with its entry, offset in the heap, bytes and data. For a record of pages it
/// only checks the shape of the entries.
///
/// # Safety
///
/// The record is readable for the bytes that its header names, which are a multiple of 64.
#[inline(always)]
unsafe fn walk(
    record: *const u8,
    header: &RecordHeader,
    mut visit: impl FnMut(usize, u64, usize, *const u8) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let end = header.bytes as usize;
    let mut at = RECORD_HEADER_BYTES;
    let open = header.entries == RECORD_ENTRIES_OPEN;
    let entries = usize::from(header.entries);
    let mut entry = 0;
    // SAFETY: for every access below: `at` and the bytes read there are checked against the record's end first.
    unsafe {
        while if open { !ends(record, header.kind, at, end) } else { entry < entries } {
            let bad = Fault::Entry { entry };
            if end - at < WORD_BYTES {
                return Err(bad);
            }
            let first = word(record.add(at));
            match header.kind {
                RECORD_RANGES | RECORD_UNDO => {
                    let range = RangeWord(first);
                    let bytes = range.length() as usize;
                    at += WORD_BYTES;
                    if bytes == 0 || bytes > end - at {
                        return Err(bad);
                    }
                    visit(entry, range.offset(), bytes, record.add(at))?;
                    at += bytes;
                }
                RECORD_LINES => {
                    if end - at < 2 * WORD_BYTES {
                        return Err(bad);
                    }
                    let mut lines = word(record.add(at + WORD_BYTES));
                    at += 2 * WORD_BYTES;
                    if lines.count_ones() as usize * LINE_BYTES > end - at {
                        return Err(bad);
                    }
                    let page = first.checked_mul(PAGE_BYTES as u64).ok_or(Fault::Bounds { entry })?;
                    while lines != 0 {
                        let offset = page + u64::from(lines.trailing_zeros()) * LINE_BYTES as u64;
                        visit(entry, offset, LINE_BYTES, record.add(at))?;
                        at += LINE_BYTES;
                        lines &= lines - 1;
                    }
                }
                _ => {
                    if end - at < PAGE_ENTRY_BYTES || word(record.add(at + 2 * WORD_BYTES)) >> 32 != 0 {
                        return Err(bad);
                    }
                    at += PAGE_ENTRY_BYTES;
                }
            }
            entry += 1;
        }
        while at < end {
            if ptr::read(record.add(at).cast::<Unaligned>()).0 != 0 {
                return Err(Fault::Entry { entry });
            }
            at += WORD_BYTES;
        }
    }
    Ok(())
}
