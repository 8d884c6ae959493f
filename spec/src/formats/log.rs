// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log record: the data that a transaction writes to a log, so that a crash loses none of its changes.
//!
//! - **Layout** 0 checksum u32 · 4 bytes u32 · 8 position u64 · 16 sequence u64 · 24 kind u8 · 25 parts u8 · 26 entries u16 · 28 claim
//!   u32 · 32 entries · zeros up to `bytes`. Entries by kind:
//!   - ranges, undo: word (offset / 8 in bits 0..40, length / 8 in bits 40..64) · `length` bytes
//!   - lines: page number u64 · bitmap of 64-byte lines u64 · 64 bytes for each set bit, lowest first
//!   - pages: page number u64 (bit 63: which copy) · bitmap of the lines written u64 · CRC-32C of those lines u64 (the upper half 0)
//! - **Order** little endian. A record is good if its checksum matches: CRC-32C of bytes 4..`bytes`, with the pool's salt as the seed (in
//!   place of the CRC-32C of preceding bytes). `position` distinguishes a record from one that an earlier round of the log left at the
//!   same place.
//! - **Claim** the position up to which the lane was durable when the record was written: 1 + the distance from there to `position`, in
//!   units of 64 bytes; 0 if the record does not tell. If a good record claims that an earlier one is durable and that one is bad, it was
//!   damaged later, and is not the torn end of the log.
//! - **Owner** one lane writes a log; a record starts at a multiple of 64 bytes, and its length is one.
//! - **Not here** the places of logs, and the order by sequence numbers: `docs/formats/log.md`.

use crate::limits::CACHE_LINE_BYTES;

/// Bytes of a page, for entries of [`RECORD_LINES`] and [`RECORD_PAGES`].
pub const PAGE_BYTES: usize = 4096;
/// Bytes of [`RecordHeader`].
pub const RECORD_HEADER_BYTES: usize = 32;
/// Unit of a record's size and position, bytes.
pub const RECORD_ALIGN: usize = CACHE_LINE_BYTES;
/// Offset of the first byte that the checksum covers.
pub const RECORD_CHECKED_FROM: usize = 4;

/// Kind: the new bytes of ranges.
pub const RECORD_RANGES: u8 = 1;
/// Kind: the new bytes of 64-byte lines of pages.
pub const RECORD_LINES: u8 = 2;
/// Kind: the number of the valid copy of each page.
pub const RECORD_PAGES: u8 = 3;
/// Kind: the old bytes of ranges.
pub const RECORD_UNDO: u8 = 4;

/// [`RecordHeader::entries`] of a record with this number of entries or more: the entries end at the first that is all zeros,
/// or at the end of the record.
pub const RECORD_ENTRIES_OPEN: u16 = u16::MAX;

/// Bytes of an entry of [`RECORD_PAGES`].
pub const PAGE_ENTRY_BYTES: usize = 24;
/// Bit in the page number of an entry of [`RECORD_PAGES`]: the second copy is valid.
pub const PAGE_SECOND_COPY: u64 = 1 << 63;

/// The first bytes of a record; see the header of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct RecordHeader {
    /// CRC-32C of the rest of the record, seeded with the salt.
    pub checksum: u32,
    /// Size of the record with this header, a multiple of [`RECORD_ALIGN`].
    pub bytes: u32,
    /// Position of the record in the endless stream of its lane, bytes.
    pub position: u64,
    /// Sequence number of the record among all records of the pool.
    pub sequence: u64,
    /// [`RECORD_RANGES`], [`RECORD_LINES`], [`RECORD_PAGES`] or [`RECORD_UNDO`].
    pub kind: u8,
    /// Number of records with this sequence number in all lanes; the writer decides which records share one.
    pub parts: u8,
    /// Number of entries that follow, or [`RECORD_ENTRIES_OPEN`].
    pub entries: u16,
    /// Claim about the durable part of the lane: see [`RecordHeader::durable_to`].
    pub claim: u32,
}

impl RecordHeader {
    /// Returns the claim of a record at `position`, if all records of its lane before `durable_to` are durable.
    #[inline(always)]
    pub const fn claim(position: u64, durable_to: u64) -> u32 {
        ((position - durable_to) / RECORD_ALIGN as u64) as u32 + 1
    }

    /// Returns the header that these bytes are; every bit pattern is one.
    #[inline(always)]
    pub const fn from_bytes(bytes: &[u8; RECORD_HEADER_BYTES]) -> RecordHeader {
        let (words, _) = bytes.as_chunks::<8>();
        let first = u64::from_le_bytes(words[0]);
        let last = u64::from_le_bytes(words[3]);
        RecordHeader {
            checksum: first as u32,
            bytes: (first >> 32) as u32,
            position: u64::from_le_bytes(words[1]),
            sequence: u64::from_le_bytes(words[2]),
            kind: last as u8,
            parts: (last >> 8) as u8,
            entries: (last >> 16) as u16,
            claim: (last >> 32) as u32,
        }
    }

    /// Returns the position up to which all earlier records of the lane were durable when this one was written; `None` if the
    /// record does not tell.
    pub const fn durable_to(&self) -> Option<u64> {
        match self.claim {
            0 => None,
            claim => Some(self.position.saturating_sub((claim - 1) as u64 * RECORD_ALIGN as u64)),
        }
    }
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<RecordHeader>() == RECORD_HEADER_BYTES && align_of::<RecordHeader>() == 8);
    assert!(offset_of!(RecordHeader, checksum) == 0);
    assert!(offset_of!(RecordHeader, bytes) == RECORD_CHECKED_FROM);
    assert!(offset_of!(RecordHeader, position) == 8);
    assert!(offset_of!(RecordHeader, sequence) == 16);
    assert!(offset_of!(RecordHeader, kind) == 24);
    assert!(offset_of!(RecordHeader, parts) == 25);
    assert!(offset_of!(RecordHeader, entries) == 26);
    assert!(offset_of!(RecordHeader, claim) == 28);
};

/// The word before the bytes of a range: offset and length of a range of the heap, both multiples of 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct RangeWord(pub u64);

impl RangeWord {
    const OFFSET_BITS: u32 = 40;
    /// Offsets are below this, bytes: 8 TiB.
    pub const OFFSET_END: u64 = 8 << RangeWord::OFFSET_BITS;
    /// Largest length, bytes: 128 MiB minus 8.
    pub const LENGTH_MAX: u64 = 8 * ((1 << (64 - RangeWord::OFFSET_BITS)) - 1);

    /// Returns the word of a range in bytes; `None` if the numbers are not multiples of 8, zero, or too large.
    pub const fn new(offset: u64, length: u64) -> Option<RangeWord> {
        let whole = offset.is_multiple_of(8) && length.is_multiple_of(8);
        if !whole || offset >= RangeWord::OFFSET_END || length == 0 || length > RangeWord::LENGTH_MAX {
            return None;
        }
        Some(RangeWord((offset / 8) | ((length / 8) << RangeWord::OFFSET_BITS)))
    }

    /// Returns the offset of the range, bytes.
    pub const fn offset(self) -> u64 {
        (self.0 & ((1 << RangeWord::OFFSET_BITS) - 1)) * 8
    }

    /// Returns the length of the range, bytes; 0 is not valid.
    pub const fn length(self) -> u64 {
        (self.0 >> RangeWord::OFFSET_BITS) * 8
    }
}
