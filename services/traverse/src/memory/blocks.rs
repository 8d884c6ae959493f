// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free blocks of one tenant: allocation takes the best fit, and freed blocks join their free neighbours.
//!
//! - **Layout** blocks of any multiple of 16 bytes, indexed outside the memory by address and by size
//! - **Order** among blocks of one size the one with the lowest address is taken
//! - **Not here** the addresses where blocks may lie (`allocate`)

use std::collections::{BTreeMap, BTreeSet};

/// Sizes and addresses are multiples of this.
pub(super) const GRAIN_BYTES: u64 = 16;
/// Blocks whose size is a multiple of this also start at a multiple, so that a node of whole cache lines
/// starts at a line.
const LINE_BYTES: u64 = 64;
/// Blocks of nearly the right size that are tried before a larger one is split.
const NEAR_FITS: usize = 8;

/// Returns the bytes that an allocation of `bytes` takes up; `u64::MAX` if rounding up overflows.
pub(super) fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(GRAIN_BYTES).unwrap_or(u64::MAX)
}

/// Returns the alignment of a block of `bytes` bytes.
pub(super) fn align_of(bytes: u64) -> u64 {
    if bytes.is_multiple_of(LINE_BYTES) { LINE_BYTES } else { GRAIN_BYTES }
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    by_address: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl Blocks {
    fn insert(&mut self, address: u64, bytes: u64) {
        if bytes > 0 {
            self.by_address.insert(address, bytes);
            self.by_size.insert((bytes, address));
            self.bytes += bytes;
        }
    }

    /// Removes a block, and returns its length.
    pub fn remove(&mut self, address: u64) -> Option<u64> {
        let bytes = self.by_address.remove(&address)?;
        self.by_size.remove(&(bytes, address));
        self.bytes -= bytes;
        Some(bytes)
    }

    /// Takes `bytes` bytes, a multiple of 16, out of the block that fits best; returns their address.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let align = align_of(bytes);
        let fits = |&(length, at): &(u64, u64)| {
            let start = at.next_multiple_of(align);
            (start + bytes <= at + length).then_some((at, start))
        };
        let near = self.by_size.range((bytes, 0)..).take(NEAR_FITS).find_map(fits);
        let (at, start) =
            near.or_else(|| self.by_size.range((bytes + align - GRAIN_BYTES, 0)..).find_map(fits))?;
        self.carve(at, start, bytes);
        Some(start)
    }

    fn carve(&mut self, at: u64, start: u64, bytes: u64) {
        let Some(length) = self.remove(at) else { return };
        self.insert(at, start - at);
        self.insert(start + bytes, at + length - start - bytes);
    }

    /// Takes these bytes if all of them are free; returns true if it did.
    pub fn take_at(&mut self, address: u64, bytes: u64) -> bool {
        let Some((at, length)) = self.around(address) else { return false };
        let all = address + bytes <= at + length;
        if all {
            self.carve(at, address, bytes);
        }
        all
    }

    /// Returns the free block that contains an address: first, bytes.
    pub fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&at, &length) = self.by_address.range(..=address).next_back()?;
        (address < at + length).then_some((at, length))
    }

    /// Returns true if any of these bytes is free.
    pub fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.by_address.range(..address + bytes).next_back().is_some_and(|(at, length)| at + length > address)
    }

    /// Frees bytes, none of which may be free already. Returns the free block that now contains them.
    pub fn give(&mut self, mut address: u64, mut bytes: u64) -> (u64, u64) {
        if let Some((at, length)) = address.checked_sub(1).and_then(|before| self.around(before)) {
            self.remove(at);
            (address, bytes) = (at, bytes + length);
        }
        if let Some(length) = self.remove(address + bytes) {
            bytes += length;
        }
        self.insert(address, bytes);
        (address, bytes)
    }

    /// Returns the blocks of at least `bytes` bytes.
    pub fn of_at_least(&self, bytes: u64) -> Vec<(u64, u64)> {
        self.by_size.range((bytes, 0)..).map(|&(length, at)| (at, length)).collect()
    }

    /// Returns the blocks that start in a stretch of addresses, in order: first, bytes.
    pub fn within(&self, base: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.by_address.range(base..end).map(|(&at, &length)| (at, length))
    }

    /// Returns the bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of the largest block.
    pub fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |(bytes, _)| *bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_fit_is_given_and_neighbours_join() {
        let mut blocks = Blocks::default();
        blocks.give(0x1000, 0x1000);
        assert_eq!(blocks.take(48), Some(0x1000));
        assert_eq!(blocks.take(64), Some(0x1040), "whole lines start at one");
        assert_eq!(blocks.take(16), Some(0x1030), "what the line left free");
        assert_eq!(blocks.give(0x1000, 48), (0x1000, 48));
        assert!(blocks.overlaps(0x0ff0, 0x20) && !blocks.overlaps(0x1030, 0x50));
        assert_eq!(blocks.give(0x1040, 64), (0x1040, 0x0fc0));
        assert_eq!(blocks.give(0x1030, 16), (0x1000, 0x1000));
        assert!(blocks.take_at(0x1100, 32) && !blocks.take_at(0x1110, 32));
        assert_eq!(blocks.bytes(), 0x0fe0);
        assert_eq!(blocks.largest(), 0xee0);
    }
}
