// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The changes of a transaction so far: ranges it may have changed, their before-images, what it took and gave back.
//!
//! - **Flow** [`Writes::touch`] before a range is lent for writing ─▶ commit reads the ranges, abort puts the before-images back
//! - **Rule** a range that is touched again is found among the last ones and not saved twice; if it is missed, it is logged
//!   twice, with the same bytes, which costs time and nothing else
//! - **Owner** one per lane; kept from transaction to transaction, so that no commit allocates

use std::collections::HashSet;

use crate::image::Image;
use crate::layout::Entry;
use crate::medium::Counters;

/// A range of the heap that may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touched {
    /// Where; a multiple of 8.
    pub offset: u64,
    /// How long; a multiple of 8.
    pub bytes: u32,
    /// Where in `saved`, counted in words, its before-image is, or [`Touched::FRESH`].
    pub saved: u32,
}

impl Touched {
    /// Value of `saved` for a range of a new object, which has no before-image.
    pub const FRESH: u32 = u32::MAX;
}

/// A slot that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Freed {
    pub offset: u64,
    pub tag: u32,
    pub stride: u32,
    pub section: u16,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    pub touched: Vec<Touched>,
    saved: Vec<u64>,
    /// Ranges that were announced beforehand, sorted: these are found however many there are.
    declared: Vec<(u64, u32)>,
    /// Directory entries as they were.
    pub entries: Vec<(u64, Entry)>,
    /// Slots that the transaction took.
    pub taken: Vec<Freed>,
    /// Slots given back.
    pub freed: Vec<Freed>,
    /// Slabs taken from the pool: first and count.
    pub slabs_taken: Vec<(u64, u64)>,
    /// Slabs given back.
    pub slabs_freed: Vec<(u64, u64)>,
    /// Requests of this lane's transactions to the medium since the pool was opened.
    pub counters: Counters,
    /// Undo: where this transaction's log records start; None before the first.
    pub undo_from: Option<u64>,
    /// Undo: ranges up to this one are logged.
    pub undo_logged: usize,
    /// Undo: directory entries up to this one are logged.
    pub undo_entries: usize,
    /// Undo: which of the lane's two heads is written next.
    pub turn: u64,
    /// Its place in the order, once it has one.
    pub sequence: u64,
}

/// Saved words for which the memory is kept from transaction to transaction: 1 MiB.
const SAVED_MAX: usize = 128 << 10;
/// Ranges, from the last one back, that are searched.
const LOOK_BACK: usize = 8;

impl Writes {
    /// Clears it for the next transaction.
    pub fn clear(&mut self) {
        self.touched.clear();
        self.saved.clear();
        if self.saved.capacity() > SAVED_MAX {
            self.give_back();
        }
        // Reading a length is cheaper than storing it.
        fn empty<T>(list: &mut Vec<T>) {
            if !list.is_empty() {
                list.clear();
            }
        }
        empty(&mut self.declared);
        empty(&mut self.entries);
        empty(&mut self.taken);
        empty(&mut self.freed);
        empty(&mut self.slabs_taken);
        empty(&mut self.slabs_freed);
        if self.undo_from.is_some() {
            self.undo_from = None;
        }
        if self.undo_logged + self.undo_entries != 0 {
            (self.undo_logged, self.undo_entries) = (0, 0);
        }
    }

    /// Gives back the memory that a large transaction took.
    #[cold]
    fn give_back(&mut self) {
        self.saved = Vec::new();
        self.touched.shrink_to(SAVED_MAX / 16);
        self.declared = Vec::new();
    }

    /// Returns true if nothing was done.
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.entries.is_empty()
    }

    /// Saves a range before it is lent. False: it is there already.
    #[inline(always)]
    pub fn touch(&mut self, image: &Image, offset: u64, bytes: u32) -> bool {
        if self.touched_lately(offset, bytes) {
            return false;
        }
        if !self.declared.is_empty() && self.declared.binary_search(&(offset, bytes)).is_ok() {
            return false;
        }
        let saved = self.saved.len() as u32;
        image.words(offset, u64::from(bytes)).save(&mut self.saved);
        self.touched.push(Touched { offset, bytes, saved });
        true
    }

    #[inline(always)]
    fn touched_lately(&self, offset: u64, bytes: u32) -> bool {
        let same = |one: &Touched| one.offset == offset && one.bytes == bytes;
        match self.touched.last_chunk::<LOOK_BACK>() {
            // Without a branch for each, which is what a loop over them would be.
            Some(last) => {
                last.iter().fold(false, |any, one| any | (one.offset == offset)) && last.iter().any(same)
            }
            None => self.touched.iter().any(same),
        }
    }

    /// Saves a range that will be lent later.
    pub fn declare(&mut self, image: &Image, offset: u64, bytes: u32) {
        self.touch(image, offset, bytes);
        if let Err(at) = self.declared.binary_search(&(offset, bytes)) {
            self.declared.insert(at, (offset, bytes));
        }
    }

    /// A range of an object that is new: nothing to save.
    #[inline]
    pub fn fresh(&mut self, offset: u64, bytes: u32) {
        self.touched.push(Touched { offset, bytes, saved: Touched::FRESH });
    }

    /// How a range was; None when it is fresh.
    #[inline]
    pub fn before(&self, touched: &Touched) -> Option<&[u64]> {
        (touched.saved != Touched::FRESH)
            .then(|| &self.saved[touched.saved as usize..touched.saved as usize + touched.bytes as usize / 8])
    }

    /// Bytes of all ranges, and how many there are, directory entries included.
    pub fn size(&self) -> (u64, u64) {
        let bytes: u64 = self.touched.iter().map(|one| u64::from(one.bytes)).sum();
        let entries = self.entries.len() as u64;
        (self.touched.len() as u64 + entries, bytes + entries * size_of::<Entry>() as u64)
    }

    /// How many pages of 4 KiB the ranges lie in.
    pub fn pages(&self) -> u64 {
        const PAGE: u64 = 4096;
        let entries = self.entries.iter().map(|(slab, _)| (Entry::offset(*slab), size_of::<Entry>() as u64));
        let ranges = self.touched.iter().map(|one| (one.offset, u64::from(one.bytes))).chain(entries);
        let pages = ranges.flat_map(|(offset, bytes)| offset / PAGE..(offset + bytes).div_ceil(PAGE));
        pages.collect::<HashSet<u64>>().len() as u64
    }

    /// Puts everything back in the image, last first.
    pub fn undo(&self, image: &Image) {
        for touched in self.touched.iter().rev() {
            if let Some(before) = self.before(touched) {
                image.write_words(touched.offset, before);
            }
        }
        for (slab, entry) in self.entries.iter().rev() {
            image.set_entry(*slab, *entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction's before-images are kept in memory for the next one; those of a large transaction would stay for as long as the pool.
    #[test]
    fn a_large_transaction_keeps_no_memory_for_the_next() {
        let ranges = SAVED_MAX / 4;
        let filled = |words: usize| {
            let mut writes = Writes::default();
            writes.saved.resize(words, 0);
            let touched = |one: usize| Touched { offset: 8 * one as u64, bytes: 8, saved: one as u32 };
            writes.touched.extend((0..ranges).map(touched));
            writes.declared.extend((0..ranges).map(|one| (8 * one as u64, 8)));
            writes.clear();
            assert!(writes.is_empty() && writes.saved.is_empty());
            writes
        };
        let large = filled(SAVED_MAX + 1);
        assert_eq!((large.saved.capacity(), large.declared.capacity()), (0, 0));
        assert!(large.touched.capacity() <= SAVED_MAX / 16);
        assert!(
            filled(1000).saved.capacity() >= 1000,
            "what commits of every size take is not allocated again"
        );
    }
}
