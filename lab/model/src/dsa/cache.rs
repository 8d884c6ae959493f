// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last-level cache, page by page: what is in it, and which ways a device may use.
//!
//! - **Order** least recently used of the ways that the access may fill, unused ones first; a hit may be in any way
//! - **Rule** a core that streams reads past it: the cache takes what cores give up, so only what they come back for is allocated
//! - **Layout** of a set: the order of its ways is one word, four bits for each, the latest used in the lowest; what ways hold lies in rows of
//!   numbers. Consecutive blocks lie in consecutive sets, so a range needs one division

use std::ops::Range;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Most ways of a set.
const WAYS: usize = 16;

/// Two cache lines of this machine: blocks are compared by their lower halves, all ways at once.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Set {
    /// Bits 0 to 31 of the block of each way, see `used`.
    lows: [u32; WAYS],
    /// Bits 32 to 47: addresses of up to 60 bits.
    highs: [u16; WAYS],
    /// Ways, the latest used first.
    order: u64,
    /// Bit by bit, the ways that hold a block.
    used: u16,
}

const _: () = assert!(size_of::<Set>() == 128);

/// See the module.
#[derive(Clone, Debug)]
pub struct Cache {
    ways: usize,
    injected: usize,
    sets: Vec<Set>,
}

impl Set {
    /// The way that holds a block.
    #[inline(always)]
    fn find(&self, block: u64) -> Option<usize> {
        // In this form the compiler compares four ways at once.
        let mut bits = [0_u32; 4];
        for (four, lows) in self.lows.as_chunks::<4>().0.iter().enumerate() {
            for (way, bit) in bits.iter_mut().enumerate() {
                *bit |= if lows[way] == block as u32 { 1 << (4 * four + way) } else { 0 };
            }
        }
        let mut same = bits[0] | bits[1] | bits[2] | bits[3];
        same &= u32::from(self.used);
        while same != 0 {
            let way = same.trailing_zeros() as usize;
            if self.highs[way] == (block >> 32) as u16 {
                return Some(way);
            }
            same &= same - 1;
        }
        None
    }

    /// The way becomes the latest used.
    #[inline(always)]
    fn touch(&mut self, way: usize) {
        const ONES: u64 = 0x1111_1111_1111_1111;
        // The lowest nibble that is zero here has the way's number; borrows reach higher nibbles only.
        let differ = self.order ^ (ONES * way as u64);
        let zero = differ.wrapping_sub(ONES) & !differ & (8 * ONES);
        let place = zero.trailing_zeros() / 4;
        let below = (1 << (4 * place)) - 1;
        // Ways that were used later move up by one; the others stay.
        let later = self.order & below;
        let earlier = self.order & !(below << 4 | 15);
        self.order = earlier | later << 4 | way as u64;
    }

    /// Fills one of the ways from `from` on.
    #[inline]
    fn fill(&mut self, block: u64, from: usize, ways: usize) {
        let unused = !self.used & (u16::MAX >> (WAYS - ways)) & u16::MAX << from;
        let way = if unused != 0 {
            unused.trailing_zeros() as usize
        } else {
            let place = (0..ways).rev().find(|place| (self.order >> (4 * place) & 15) as usize >= from);
            (self.order >> (4 * place.unwrap_or(0)) & 15) as usize
        };
        (self.lows[way], self.highs[way]) = (block as u32, (block >> 32) as u16);
        self.used |= 1 << way;
        self.touch(way);
    }
}

impl Cache {
    /// An empty one of 1 to 16 ways; devices may use the last `injected` ways.
    ///
    /// # Panics
    /// If it has more ways, or fewer than are injected.
    #[must_use]
    pub fn new(bytes: u64, ways: usize, injected: usize) -> Cache {
        assert!((1..=WAYS).contains(&ways) && injected <= ways, "{ways} ways, {injected} of them injected");
        let sets = (bytes / BLOCK / ways as u64).max(1);
        // Ways in the order of their numbers; those that the cache has not are the earliest used.
        let order = (0..WAYS as u64).fold(0, |order, way| order | way << (4 * way));
        let set = Set { lows: [0; WAYS], highs: [0; WAYS], order, used: 0 };
        Cache { ways, injected, sets: vec![set; sets as usize] }
    }

    /// Does something with the set of each block of a range, in the order of blocks.
    fn each(&mut self, blocks: Range<u64>, mut act: impl FnMut(&mut Set, u64)) {
        let sets = self.sets.len() as u64;
        let first = if sets.is_power_of_two() { blocks.start & (sets - 1) } else { blocks.start % sets };
        let mut at = first as usize;
        for block in blocks {
            act(&mut self.sets[at], block);
            at += 1;
            if at == self.sets.len() {
                at = 0;
            }
        }
    }

    /// A core uses blocks and comes back for them: how many were there; all are afterwards, as far as they fit.
    pub fn reuse(&mut self, blocks: Range<u64>) -> u64 {
        let (ways, mut there) = (self.ways, 0);
        self.each(blocks, |set, block| match set.find(block) {
            Some(way) => {
                there += 1;
                set.touch(way);
            }
            None => set.fill(block, 0, ways),
        });
        there
    }

    /// A core reads blocks once: for each in its order, whether it was there.
    pub fn read(&mut self, blocks: Range<u64>, mut was_there: impl FnMut(bool)) {
        self.each(blocks, |set, block| {
            let way = set.find(block);
            way.into_iter().for_each(|way| set.touch(way));
            was_there(way.is_some());
        });
    }

    /// A device writes blocks: into its ways, or to memory, which makes what the cache had worthless.
    pub fn write(&mut self, blocks: Range<u64>, inject: bool) {
        let (ways, from) = (self.ways, self.ways - self.injected);
        self.each(blocks, |set, block| match (set.find(block), inject) {
            (Some(way), true) => set.touch(way),
            (None, true) => set.fill(block, from, ways),
            (Some(way), false) => set.used &= !(1 << way),
            (None, false) => {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    #[test]
    fn devices_keep_to_their_ways_and_cores_have_all() {
        let mut cache = Cache::new(8 * BLOCK, 8, 2);
        let one = |block| block..block + 1;
        assert!((1..=8).all(|block| cache.reuse(one(block)) == 0) && cache.reuse(1..9) == 8);
        // Two of the blocks give way to what a device writes, however much that is.
        cache.write(100..110, true);
        let mut there = Vec::new();
        cache.read(107..110, |was| there.push(was));
        assert_eq!(there, [false, true, true]);
        let mut left = 0;
        cache.read(1..9, |was| left += u32::from(was));
        assert_eq!(left, 6);
        cache.write(one(109), false);
        cache.read(one(109), |was| assert!(!was));
    }

    /// Beside a list of ways with the times of their last uses, 0 for unused ones: the same hits, whatever is done.
    #[test]
    fn hits_are_those_of_a_list_with_times() {
        for (ways, injected, sets) in [(1, 1, 1), (4, 1, 3), (8, 2, 1), (15, 2, 5), (16, 2, 2), (16, 16, 1)] {
            let mut cache = Cache::new(sets * ways as u64 * BLOCK, ways, injected);
            let mut list = vec![(0, 0_u64); sets as usize * ways];
            let (mut random, mut clock) = (Random::new(ways as u64), 0);
            for _ in 0..40_000 {
                let first = random.below(sets * ways as u64 * 2);
                let blocks = first..first + 1 + random.below(2 * sets);
                let kind = random.below(8);
                let mut wanted = Vec::new();
                for block in blocks.clone() {
                    clock += 1;
                    let set = &mut list[(block % sets) as usize * ways..][..ways];
                    let held = set.iter().position(|line| line.1 > 0 && line.0 == block);
                    wanted.push(held.is_some());
                    let from = if kind == 4 { ways - injected } else { 0 };
                    match (kind, held) {
                        (5, Some(way)) => set[way] = (0, 0),
                        (5, None) | (6.., None) => {}
                        (_, Some(way)) => set[way].1 = clock,
                        (_, None) => {
                            *set[from..].iter_mut().min_by_key(|line| line.1).unwrap() = (block, clock)
                        }
                    }
                }
                let hits = wanted.iter().filter(|was| **was).count() as u64;
                match kind {
                    0..4 => assert_eq!(cache.reuse(blocks), hits),
                    4 => cache.write(blocks, true),
                    5 => cache.write(blocks, false),
                    _ => {
                        let mut found = Vec::new();
                        cache.read(blocks, |was| found.push(was));
                        assert_eq!(found, wanted);
                    }
                }
            }
        }
    }
}
