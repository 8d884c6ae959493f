// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where things lie: a heap that is interleaved over devices, and on each device the lanes that only it and recovery use.
//!
//! - **Layout** of a device's memory: its stripes of the heap · a lane per thread: head (64 B: sequence of the last transaction that
//!   ended) · commit record of the host (320 B) · two halves of a log, used by turns · page table (device 0: a word per
//!   page, sequence · 2 + valid copy)
//! - **Order** a transaction's records lie one behind the other from the start of its half
//! - **Owner** the host writes heap, commit records, page table and redo records; devices write the rest

use std::collections::BTreeMap;

/// Bytes of a cache line: what arrives at a device whole or not at all.
pub const LINE: u64 = 64;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a host's commit record.
pub const COMMIT: u64 = 320;

/// Bytes from an address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Address of the first byte.
    pub at: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Range {
    /// A range of `bytes` bytes from `at`.
    #[must_use]
    pub const fn new(at: u64, bytes: u64) -> Range {
        Range { at, bytes }
    }

    /// One past the last.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.at + self.bytes
    }

    /// Returns true if they share a byte.
    #[must_use]
    pub const fn meets(self, other: Range) -> bool {
        self.at < other.end() && other.at < self.end()
    }
}

/// A part of a range that lies on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the device.
    pub device: usize,
    /// Range on that device.
    pub local: Range,
    /// Offset of the piece in the whole range, bytes.
    pub offset: u64,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of devices.
    pub devices: usize,
    /// Bytes of a stripe.
    pub interleave: u64,
    /// Bytes of the heap that programs see.
    pub heap: u64,
    /// True if pages have two copies.
    pub copies: bool,
    /// Number of threads; each has a log of its own.
    pub lanes: usize,
    /// Bytes of half a log.
    pub half: u64,
}

impl Layout {
    /// Bytes of the heap with all copies.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.heap * if self.copies { 2 } else { 1 }
    }

    /// The heap's bytes on each device.
    #[must_use]
    pub fn heap_local(&self) -> u64 {
        self.all() / self.devices as u64
    }

    /// Refuses an impossible layout.
    ///
    /// # Errors
    /// A line that says what to change.
    pub fn check(&self) -> Result<(), String> {
        let stripe = self.interleave * self.devices as u64;
        if self.interleave < LINE
            || !self.interleave.is_multiple_of(LINE)
            || !PAGE.is_multiple_of(self.interleave)
        {
            return Err(format!("interleave of {} bytes: give a part of a page, in lines", self.interleave));
        }
        if self.heap == 0 || !self.heap.is_multiple_of(PAGE.max(stripe)) || self.heap > 1 << 30 {
            return Err(format!(
                "a heap of {} bytes: give whole pages on each device, up to 1 GiB",
                self.heap
            ));
        }
        Ok(())
    }

    /// The pieces of a range of the heap, in its order; pieces that follow each other on one device are one.
    #[must_use]
    pub fn split(&self, range: Range) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = range.at;
        while at < range.end() {
            let (stripe, inside) = (at / self.interleave, at % self.interleave);
            let bytes = (self.interleave - inside).min(range.end() - at);
            let device = (stripe % self.devices as u64) as usize;
            let local = stripe / self.devices as u64 * self.interleave + inside;
            match pieces.last_mut() {
                Some(last) if last.device == device && last.local.end() == local => last.local.bytes += bytes,
                _ => pieces.push(Piece { device, local: Range::new(local, bytes), offset: at - range.at }),
            }
            at += bytes;
        }
        pieces
    }

    /// Devices that have a part of any of these, bit by bit.
    #[must_use]
    pub fn owners(&self, ranges: &[Range]) -> u8 {
        ranges.iter().flat_map(|&range| self.split(range)).fold(0, |mask, piece| mask | 1 << piece.device)
    }

    fn lane(&self, thread: usize) -> u64 {
        self.heap_local() + thread as u64 * (LINE + COMMIT + 2 * self.half)
    }

    /// A lane's head.
    #[must_use]
    pub fn head(&self, thread: usize) -> Range {
        Range::new(self.lane(thread), LINE)
    }

    /// A lane's commit record.
    #[must_use]
    pub fn commit(&self, thread: usize) -> Range {
        Range::new(self.lane(thread) + LINE, COMMIT)
    }

    /// The half of a lane's log that the thread's `turn`-th transaction uses.
    #[must_use]
    pub fn half(&self, thread: usize, turn: u64) -> Range {
        Range::new(self.lane(thread) + LINE + COMMIT + turn % 2 * self.half, self.half)
    }

    /// A page's word of the table.
    #[must_use]
    pub fn entry(&self, page: u64) -> Range {
        Range::new(self.lane(self.lanes) + page * 8, 8)
    }

    /// Bytes of a device's memory.
    #[must_use]
    pub fn local_bytes(&self) -> usize {
        (self.lane(self.lanes) + self.heap / PAGE * 8).next_multiple_of(LINE) as usize
    }
}

/// A little-endian word of a device's memory.
#[must_use]
pub fn word(memory: &[u8], at: u64) -> u64 {
    memory[at as usize..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word))
}

/// The address mapping table: for each pool and thread what to add to a virtual address (§5.4).
#[derive(Clone, Debug, Default)]
pub struct AddressTable(BTreeMap<(u16, u16), (u64, u64)>);

impl AddressTable {
    /// A thread maps a pool of so many bytes.
    pub fn map(&mut self, pool: u16, thread: u16, base: u64, bytes: u64) {
        self.0.insert((pool, thread), (base, bytes));
    }

    /// The heap's range of a virtual one, if all of it is mapped.
    #[must_use]
    pub fn translate(&self, pool: u16, thread: u16, range: Range) -> Option<Range> {
        let &(base, bytes) = self.0.get(&(pool, thread))?;
        let at = range.at.checked_sub(base)?;
        (at.checked_add(range.bytes)? <= bytes).then_some(Range::new(at, range.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout =
        Layout { devices: 2, interleave: 2048, heap: 1 << 16, copies: true, lanes: 3, half: 8192 };

    #[test]
    fn pieces_cover_a_range_once_and_lanes_do_not_meet() {
        let range = Range::new(2040, 4200);
        let pieces = LAYOUT.split(range);
        assert_eq!(pieces.iter().map(|piece| piece.local.bytes).sum::<u64>(), 4200);
        assert_eq!(pieces.iter().map(|piece| piece.device).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!(pieces[2].local, Range::new(2048, 2048));
        assert_eq!((LAYOUT.owners(&[Range::new(0, 8)]), LAYOUT.owners(&[range])), (1, 3));
        let single = Layout { devices: 1, ..LAYOUT };
        assert_eq!(single.split(range), [Piece { device: 0, local: range, offset: 0 }]);
        let mut parts = vec![Range::new(0, LAYOUT.heap_local())];
        for thread in 0..3 {
            parts.extend([
                LAYOUT.head(thread),
                LAYOUT.commit(thread),
                LAYOUT.half(thread, 0),
                LAYOUT.half(thread, 1),
            ]);
        }
        parts.extend((0..16).map(|page| LAYOUT.entry(page)));
        for (index, part) in parts.iter().enumerate() {
            assert!(part.end() <= LAYOUT.local_bytes() as u64);
            assert!(parts[..index].iter().all(|other| !other.meets(*part)));
        }
        assert!(Layout { interleave: 96, ..LAYOUT }.check().unwrap_err().contains("part of a page"));
        assert!(Layout { heap: 100, ..LAYOUT }.check().unwrap_err().contains("whole pages"));
    }

    #[test]
    fn translation_is_by_pool_and_thread_and_ends_with_the_pool() {
        let mut table = AddressTable::default();
        table.map(1, 0, 0x1000, 0x100);
        assert_eq!(table.translate(1, 0, Range::new(0x1010, 16)), Some(Range::new(0x10, 16)));
        for (pool, thread, at, bytes) in
            [(1, 1, 0x1010, 16), (2, 0, 0x1010, 16), (1, 0, 0xfff, 1), (1, 0, 0x10ff, 2), (1, 0, u64::MAX, 9)]
        {
            assert_eq!(table.translate(pool, thread, Range::new(at, bytes)), None);
        }
    }
}
