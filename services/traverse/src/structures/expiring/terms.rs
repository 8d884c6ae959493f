// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terms of an expiring map: a block of the nodes' memory that says when its entries expire and how large the map may become.
//!
//! - **Layout** u64 each: 0 mark, the magic xor the block's address · 8 address of the heads · 16 number of heads as a power of two ·
//!   24 seconds until an entry expires if a put does not say, 0: never · 32 most entries, 0: any number · 40 most bytes, 0: any
//!   number · 48 entries · 56 bytes of their nodes
//! - **Order** the last two words are changed by additions, after the change that they count. They are kept only for a map with a bound;
//!   the sweep corrects what clients that ended in between left out
//! - **Owner** the mark is cleared before the map's memory is freed, so a sweep that comes later finds no map

use super::super::addend::Addend;
use super::super::hash;
use super::super::heap::{Heap, Scratch};
use crate::client::{ClientError, Result};
use memlift_spec::formats::walk::TERMS_BYTES;

const MAGIC: u64 = u64::from_le_bytes(*b"MLTERMS1");
const ENTRIES: u64 = 48;
const BYTES: u64 = 56;

const _: () = assert!(BYTES + 8 == TERMS_BYTES);

/// When the entries of a map expire, and how large it may become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Seconds until an entry expires if its put does not say; 0: it does not expire.
    pub ttl_s: u32,
    /// Most entries; 0: any number.
    pub entries_max: u64,
    /// Most bytes of all nodes of the map's chains (each has a header of 24 bytes, its key, its value and 8 bytes more, and takes a
    /// multiple of 16); 0: any number.
    pub bytes_max: u64,
}

impl Terms {
    /// Returns true if the map has a bound, so that its least recently used entries are evicted.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.entries_max != 0 || self.bytes_max != 0
    }

    /// Returns true if a map of this size is larger than it may be.
    pub(super) fn exceeded(&self, size: Size) -> bool {
        let beyond = |now: i64, most: u64| most != 0 && u64::try_from(now).is_ok_and(|now| now > most);
        beyond(size.entries, self.entries_max) || beyond(size.bytes, self.bytes_max)
    }
}

/// Number of entries, and bytes of their nodes. Negative for a moment if an addition overtakes another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub entries: i64,
    pub bytes: i64,
}

impl Size {
    pub fn add(&mut self, entries: i64, bytes: i64) {
        self.entries = self.entries.wrapping_add(entries);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// Writes a new block, and returns its address.
pub(super) fn create(heap: &mut impl Heap, map: hash::Handle, terms: &Terms) -> Result<u64> {
    let at = heap.place(&[0; TERMS_BYTES as usize])?;
    let limits = [u64::from(terms.ttl_s), terms.entries_max, terms.bytes_max];
    let words = [[MAGIC ^ at, map.heads, u64::from(map.log2)], limits].concat();
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    heap.write(at, &bytes)?;
    Ok(at)
}

/// Reads a block; `None`: there is none at this address, or its map was dropped.
pub(super) fn read(heap: &mut impl Heap, at: u64) -> Result<Option<(hash::Handle, Terms, Size)>> {
    let block = Scratch(heap.read(at, TERMS_BYTES as usize)?);
    let log2 = u32::try_from(block.word(16)).ok().filter(|log2| *log2 <= hash::LOG2_MAX);
    let ttl_s = u32::try_from(block.word(24)).ok();
    let (true, Some(log2), Some(ttl_s)) = (block.word(0) == MAGIC ^ at, log2, ttl_s) else { return Ok(None) };
    let terms = Terms { ttl_s, entries_max: block.word(32), bytes_max: block.word(40) };
    let size =
        Size { entries: block.word(ENTRIES as usize) as i64, bytes: block.word(BYTES as usize) as i64 };
    Ok(Some((hash::Handle { heads: block.word(8), log2 }, terms, size)))
}

/// Adds to the size in the block, and returns the new size.
pub(super) fn count(heap: &mut impl Heap, at: u64, entries: i64, bytes: i64) -> Result<Size> {
    let mut size = Size::default();
    let old = heap.fetch_add(at + ENTRIES, Addend::Signed(entries))?;
    size.add(old as i64, 0);
    let old = heap.fetch_add(at + BYTES, Addend::Signed(bytes))?;
    size.add(entries, (old as i64).wrapping_add(bytes));
    Ok(size)
}

/// Clears the mark.
pub(super) fn clear(heap: &mut impl Heap, at: u64) -> Result<()> {
    heap.write(at, &0_u64.to_le_bytes())
}

/// Returns the error for an address at which there are no terms.
pub(super) fn missing(at: u64) -> ClientError {
    ClientError::Corrupt { address: at, what: "map whose entries expire (was it dropped?)" }
}
