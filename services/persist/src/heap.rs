// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which slabs are nobody's, and how a heap is laid out at the start and when it grows.
//!
//! Owner    [`FreeSlabs`] is in memory only: at open it is read off the directory. A slab leaves it when a transaction takes it,
//!          and comes back when the transaction aborts, or when the freeing is durable
//! Layout   see `layout`

use crate::image::Image;
use crate::layout::{DIRECTORY_SLABS, Entry, SUPERBLOCK_SLAB, ZONE_SLABS};

/// A bit for each slab: 1 = free.
#[derive(Debug, Default)]
pub(crate) struct FreeSlabs {
    words: Vec<u64>,
    slabs: u64,
    hint: usize,
}

impl FreeSlabs {
    /// Makes room for slabs up to `slabs`; new ones are not free yet.
    pub fn grow(&mut self, slabs: u64) {
        self.slabs = slabs;
        self.words.resize(slabs.div_ceil(64) as usize, 0);
    }

    /// Slabs known.
    pub fn slabs(&self) -> u64 {
        self.slabs
    }

    /// How many are free.
    pub fn free(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub fn give(&mut self, first: u64, count: u64) {
        for slab in first..first + count {
            self.words[slab as usize / 64] |= 1 << (slab % 64);
        }
        self.hint = self.hint.min(first as usize / 64);
    }

    fn is_free(&self, slab: u64) -> bool {
        slab < self.slabs && self.words[slab as usize / 64] >> (slab % 64) & 1 == 1
    }

    /// Takes `count` slabs side by side in one zone.
    pub fn take(&mut self, count: u64) -> Option<u64> {
        if count == 1 {
            for at in self.hint..self.words.len() {
                let word = self.words[at];
                if word != 0 {
                    let bit = u64::from(word.trailing_zeros());
                    self.words[at] &= word - 1;
                    self.hint = at;
                    return Some(at as u64 * 64 + bit);
                }
            }
            self.hint = self.words.len();
            return None;
        }
        let mut start = 0;
        while start + count <= self.slabs {
            match (start..start + count).rev().find(|slab| !self.is_free(*slab)) {
                None => {
                    for slab in start..start + count {
                        self.words[slab as usize / 64] &= !(1 << (slab % 64));
                    }
                    return Some(start);
                }
                Some(taken) => start = taken + 1,
            }
        }
        None
    }
}

/// Whether a slab holds a directory or the superblock.
pub(crate) fn is_system(slab: u64) -> bool {
    slab % ZONE_SLABS < DIRECTORY_SLABS || slab == SUPERBLOCK_SLAB
}

/// Reads the directory: calls `each` for every slab with its entry; a system slab is skipped.
pub(crate) fn walk(image: &Image, from: u64, to: u64, mut each: impl FnMut(u64, Entry)) {
    for slab in from..to {
        if !is_system(slab) {
            each(slab, image.entry(slab));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_taken_once_and_side_by_side() {
        let mut free = FreeSlabs::default();
        free.grow(200);
        free.give(5, 3);
        free.give(10, 100);
        assert_eq!(free.free(), 103);
        assert_eq!(free.take(4), Some(10));
        assert_eq!(free.take(1), Some(5));
        assert_eq!(free.take(2), Some(6));
        assert_eq!(free.take(97), None);
        assert_eq!(free.take(96), Some(14));
        assert_eq!(free.take(1), None);
        free.give(50, 1);
        assert_eq!(free.take(1), Some(50));
    }
}
