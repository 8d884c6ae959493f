// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log record of persist: what a transaction leaves in a log, so that a crash loses nothing of it.
//!
//! - **Layout** 0 checksum u32 · 4 bytes u32 · 8 position u64 · 16 sequence u64 · 24 kind u8 · 25 parts u8
//!   26 entries u16 · 28 claim u32 · 32 entries · zeros up to `bytes`
//!   ranges, undo  word (offset / 8 in bits 0..40, length / 8 in bits 40..64) · `length` bytes
//!   lines         page number u64 · bitmap of 64-byte lines u64 · 64 bytes for each set bit, lowest first
//!   pages         page number u64 (bit 63: which copy) · bitmap of the lines written u64 · CRC-32C of those
//!   lines u64 (the upper half 0)
//! - **Order** little endian. A record is good if its checksum is: CRC-32C of bytes 4..`bytes`, with the pool's salt as
//!   the seed (what CRC-32C of earlier bytes would be). `position` tells a record from what an earlier round
//!   of the log left in the same place.
//! - **Claim** how far the lane was durable when the record was written: 1 + the distance from there to `position`, in units of
//!   64 bytes; 0: the record says nothing. A bad record that a later good one claims is damage, and no torn tail
//! - **Owner** one lane writes a log; a record starts at a multiple of 64 bytes and is one.
//! - **Not here** where logs lie, and what the sequence orders: `docs/formats/log.md`

use crate::limits::CACHE_LINE_BYTES;

/// Bytes of a page, as entries of [`RECORD_LINES`] and [`RECORD_PAGES`] count them.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of [`RecordHeader`].
pub const RECORD_HEADER_BYTES: usize = 32;
/// Granularity of a record's size and place.
pub const RECORD_ALIGN: usize = CACHE_LINE_BYTES;
/// Where the bytes that the checksum covers start.
pub const RECORD_CHECKED_FROM: usize = 4;

/// Kind: the bytes that ranges shall have.
pub const RECORD_RANGES: u8 = 1;
/// Kind: the bytes that 64-byte lines of pages shall have.
pub const RECORD_LINES: u8 = 2;
/// Kind: which copy of each page is the valid one.
pub const RECORD_PAGES: u8 = 3;
/// Kind: the bytes that ranges had before.
pub const RECORD_UNDO: u8 = 4;

/// [`RecordHeader::entries`] of a record that has as many or more: its entries end at the first that is all zeros, or with the
/// record.
pub const RECORD_ENTRIES_OPEN: u16 = u16::MAX;

/// Bytes of an entry of [`RECORD_PAGES`].
pub const PAGE_ENTRY_BYTES: usize = 24;
/// In the page number of an entry of [`RECORD_PAGES`]: the second copy.
pub const PAGE_SECOND_COPY: u64 = 1 << 63;

/// The first bytes of a record. See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct RecordHeader {
    /// CRC-32C of the rest of the record, seeded with the salt.
    pub checksum: u32,
    /// Bytes of the record with this header, a multiple of [`RECORD_ALIGN`].
    pub bytes: u32,
    /// Where the record starts in the endless stream of its lane, in bytes.
    pub position: u64,
    /// Number in the order of all records of the pool.
    pub sequence: u64,
    /// [`RECORD_RANGES`], [`RECORD_LINES`], [`RECORD_PAGES`] or [`RECORD_UNDO`].
    pub kind: u8,
    /// How many records of this sequence there are, in all lanes; what it counts is the writer's.
    pub parts: u8,
    /// Entries that follow, or [`RECORD_ENTRIES_OPEN`].
    pub entries: u16,
    /// How far the lane was durable: see [`RecordHeader::durable_to`].
    pub claim: u32,
}

impl RecordHeader {
    /// The claim of a record at `position`, all records before `durable_to` of whose lane are durable.
    #[inline(always)]
    pub const fn claim(position: u64, durable_to: u64) -> u32 {
        ((position - durable_to) / RECORD_ALIGN as u64) as u32 + 1
    }

    /// The position up to which all earlier records of the lane were durable when this one was written; `None` when the record
    /// says nothing about it.
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

/// The word before the bytes of a range: a range of a heap, both numbers multiples of 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct RangeWord(pub u64);

impl RangeWord {
    const OFFSET_BITS: u32 = 40;
    /// One past the largest offset in bytes: 8 TiB.
    pub const OFFSET_END: u64 = 8 << RangeWord::OFFSET_BITS;
    /// The largest length in bytes: 128 MiB less 8.
    pub const LENGTH_MAX: u64 = 8 * ((1 << (64 - RangeWord::OFFSET_BITS)) - 1);

    /// The word of a range in bytes; `None` if it has none: not multiples of 8, empty, or too large.
    pub const fn new(offset: u64, length: u64) -> Option<RangeWord> {
        let whole = offset.is_multiple_of(8) && length.is_multiple_of(8);
        if !whole || offset >= RangeWord::OFFSET_END || length == 0 || length > RangeWord::LENGTH_MAX {
            return None;
        }
        Some(RangeWord((offset / 8) | ((length / 8) << RangeWord::OFFSET_BITS)))
    }

    /// Where the range starts, in bytes.
    pub const fn offset(self) -> u64 {
        (self.0 & ((1 << RangeWord::OFFSET_BITS) - 1)) * 8
    }

    /// Length of the range, in bytes; 0 is not valid.
    pub const fn length(self) -> u64 {
        (self.0 >> RangeWord::OFFSET_BITS) * 8
    }
}
