// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks the records of a log.
//!
//! - **Flow** checks in this order: header (size, kind), position, checksum, each entry lies in the record, only zeros behind the last
//!   entry.
//! - **Order** the first check that fails determines the error, so the order is part of the behaviour.
//! - **Not here** the choice of the next record, the meaning of an unreadable one, the heap that entries name: recovery decides.

use super::crc32c;
use memlift_spec::formats::log::{
    PAGE_BYTES, PAGE_ENTRY_BYTES, RECORD_ALIGN, RECORD_CHECKED_FROM, RECORD_ENTRIES_OPEN,
    RECORD_HEADER_BYTES, RECORD_LINES, RECORD_PAGES, RECORD_RANGES, RECORD_UNDO, RangeWord, RecordHeader,
};

const LINE_BYTES: usize = crate::CACHE_LINE_BYTES;
const WORD_BYTES: usize = 8;

/// Reason why bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
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
    /// An entry does not fit into the record, is empty, or names a page beyond all memory; or the bytes behind the last entry are
    /// not zeros.
    #[error("entry {entry} of the log record does not fit into the record: who wrote it is at fault")]
    Entry {
        /// Index of the entry, counted from 0.
        entry: usize,
    },
}

/// Checks the record at the start of `bytes`: its header, position, checksum and the shape of its entries. Returns the header.
/// Does not check where in a heap the entries lie.
///
/// # Errors
///
/// [`RecordError::Header`], [`RecordError::Position`], [`RecordError::Checksum`], [`RecordError::Entry`], in this order.
pub fn check(bytes: &[u8], salt: u32, position: u64) -> Result<RecordHeader, RecordError> {
    let header = header(bytes).ok_or(RecordError::Header)?;
    let record_bytes = header.bytes as usize;
    let known = matches!(header.kind, RECORD_RANGES | RECORD_LINES | RECORD_PAGES | RECORD_UNDO);
    if !record_bytes.is_multiple_of(RECORD_ALIGN) || record_bytes == 0 || !known {
        return Err(RecordError::Header);
    }
    let record = bytes.get(..record_bytes).ok_or(RecordError::Header)?;
    if header.position != position {
        return Err(RecordError::Position { found: header.position });
    }
    if crc32c(&record[RECORD_CHECKED_FROM..], salt) != header.checksum {
        return Err(RecordError::Checksum);
    }
    check_entries(&record[RECORD_HEADER_BYTES..], &header)?;
    Ok(header)
}

/// Reads the header at the start of `bytes`, if there are as many bytes as the smallest record has.
fn header(bytes: &[u8]) -> Option<RecordHeader> {
    if bytes.len() < RECORD_ALIGN {
        return None;
    }
    bytes.first_chunk().map(RecordHeader::from_bytes)
}

/// Returns the word at `at`, if it lies in `bytes`.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

/// Checks that a record's entries lie in `entries`, the bytes behind its header, and that zeros follow them.
fn check_entries(mut entries: &[u8], header: &RecordHeader) -> Result<(), RecordError> {
    let counts = header.entries != RECORD_ENTRIES_OPEN;
    let mut entry = 0;
    while if counts { entry < usize::from(header.entries) } else { !ends(entries, header.kind) } {
        let bytes = entry_bytes(entries, header.kind);
        let rest = bytes.and_then(|bytes| entries.get(bytes..));
        entries = rest.ok_or(RecordError::Entry { entry })?;
        entry += 1;
    }
    if entries.iter().any(|byte| *byte != 0) {
        return Err(RecordError::Entry { entry });
    }
    Ok(())
}

/// Returns the size of the entry at the start of `entries`; `None` if it is not valid.
#[inline(always)]
fn entry_bytes(entries: &[u8], kind: u8) -> Option<usize> {
    let first = word(entries, 0)?;
    match kind {
        RECORD_RANGES | RECORD_UNDO => {
            let length = RangeWord(first).length() as usize;
            (length != 0).then_some(WORD_BYTES + length)
        }
        RECORD_LINES => {
            first.checked_mul(PAGE_BYTES as u64)?;
            let lines = word(entries, WORD_BYTES)?;
            Some(2 * WORD_BYTES + lines.count_ones() as usize * LINE_BYTES)
        }
        _ => (word(entries, 2 * WORD_BYTES)? >> 32 == 0).then_some(PAGE_ENTRY_BYTES),
    }
}

/// Returns true if no entry follows in a record that does not count its entries.
#[cold]
fn ends(entries: &[u8], kind: u8) -> bool {
    // In records of lines and pages the first word may be 0 for page 0; the second is a bitmap and never empty.
    let words = if matches!(kind, RECORD_RANGES | RECORD_UNDO) { 1 } else { 2 };
    (0..words).all(|index| word(entries, index * WORD_BYTES).is_none_or(|word| word == 0))
}
