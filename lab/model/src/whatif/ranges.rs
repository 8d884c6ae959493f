// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges of addresses that do not overlap, each with a number: a list in the order of addresses, cut into blocks.
//!
//! - **Flow** [`Ranges::take`] finds what overlaps a range, takes it out and puts the range in its place, with one shift of a block's tail
//! - **Layout** blocks of at most [`BLOCK_RANGES`] ranges, none of them empty; beside them the first address of each. An address is found by
//!   two binary searches over few cache lines. A table of hints says where ranges were found last, by a hash of their first addresses: a hint
//!   that is wrong costs a comparison
//! - **Not here** what numbers mean (`reuse`)

/// Most ranges of a block.
const BLOCK_RANGES: usize = 128;

/// Hints, a power of two.
const HINTS: usize = 4096;

/// A range and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address of the range.
    pub first: u64,
    /// Address after the last one.
    pub over: u64,
    /// Number of the range.
    pub number: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Ranges {
    /// First address of each block.
    firsts: Vec<u64>,
    blocks: Vec<Vec<Range>>,
    /// By a hash of an address: the block and the place in it where a range with this first address was.
    hints: Box<[(u32, u32); HINTS]>,
}

impl Default for Ranges {
    fn default() -> Ranges {
        Ranges { firsts: Vec::new(), blocks: Vec::new(), hints: Box::new([(0, 0); HINTS]) }
    }
}

/// Place of an address in the table of hints.
fn hint(first: u64) -> usize {
    (first.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HINTS.ilog2())) as usize
}

impl Ranges {
    /// Gives a range a new number if it is there as it is, and a hint leads to it: its number before. Most ranges are used again as they are.
    #[inline]
    pub fn again(&mut self, first: u64, over: u64, number: u32) -> Option<u32> {
        let (at, place) = self.hints[hint(first)];
        let same = self.blocks.get_mut(at as usize)?.get_mut(place as usize)?;
        let found = (same.first, same.over) == (first, over);
        found.then(|| std::mem::replace(&mut same.number, number))
    }

    /// Takes out what overlaps `first..over`, puts a range with `number` there unless it is none, and gives the pieces that were taken out to
    /// `found`: numbers and bytes, in the order of addresses.
    pub fn take(&mut self, first: u64, over: u64, number: Option<u32>, mut found: impl FnMut(u32, u64)) {
        let own = number.map(|number| Range { first, over, number });
        if self.blocks.is_empty() {
            if let Some(own) = own {
                self.firsts.push(first);
                self.blocks.push(vec![own]);
            }
            return;
        }
        // Ranges of later blocks begin behind the address; one of this block may reach over it.
        let at = self.firsts.partition_point(|begin| *begin <= first).saturating_sub(1);
        let block = &self.blocks[at];
        let begin = block.partition_point(|range| range.over <= first);
        let mut end = begin;
        let (mut left, mut right) = (None, None);
        let mut piece = |range: &Range| {
            found(range.number, range.over.min(over) - range.first.max(first));
            if range.first < first {
                left = Some(Range { over: first, ..*range });
            }
            if range.over > over {
                right = Some(Range { first: over, ..*range });
            }
        };
        while let Some(range) = block.get(end).filter(|range| range.first < over) {
            piece(range);
            end += 1;
        }
        if end == block.len() {
            // Those of later blocks; whole blocks go at once.
            let mut whole = at + 1;
            while let Some(next) = self.blocks.get(whole).filter(|next| next[0].first < over) {
                let part = next.partition_point(|range| range.first < over);
                next[..part].iter().for_each(&mut piece);
                if part < next.len() {
                    self.blocks[whole].drain(..part);
                    self.firsts[whole] = self.blocks[whole][0].first;
                    break;
                }
                whole += 1;
            }
            self.blocks.drain(at + 1..whole);
            self.firsts.drain(at + 1..whole);
        }
        self.hints[hint(first)] = (at as u32, (begin + usize::from(left.is_some())) as u32);
        let parts = [left, own, right];
        self.replace(at, begin..end, parts.into_iter().flatten());
    }

    /// Puts ranges in the place of those of a block.
    fn replace(&mut self, at: usize, old: std::ops::Range<usize>, new: impl Iterator<Item = Range> + Clone) {
        let (block, begin) = (&mut self.blocks[at], old.start);
        let (count, many) = (new.clone().count(), old.len());
        if count > many {
            let length = block.len();
            // The values are written over.
            block.resize(length + count - many, Range { first: 0, over: 0, number: 0 });
            block.copy_within(old.end..length, begin + count);
        } else if count < many {
            block.copy_within(old.end.., begin + count);
            block.truncate(block.len() + count - many);
        }
        for (place, range) in block[begin..].iter_mut().zip(new) {
            *place = range;
        }
        match block.first() {
            Some(range) => self.firsts[at] = range.first,
            None => {
                self.blocks.remove(at);
                self.firsts.remove(at);
                return;
            }
        }
        if block.len() > BLOCK_RANGES {
            let mut half = Vec::with_capacity(BLOCK_RANGES + 2);
            half.extend(block.drain(BLOCK_RANGES / 2..));
            self.firsts.insert(at + 1, half[0].first);
            self.blocks.insert(at + 1, half);
        }
    }

    /// All ranges, in the order of addresses.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Range> {
        self.blocks.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    /// Beside an array with a number for each address.
    #[test]
    fn pieces_are_those_of_an_array() {
        const ROOM: usize = 6000;
        let (mut ranges, mut random) = (Ranges::default(), Random::new(2));
        let mut array = vec![u32::MAX; ROOM];
        let mut most = 0;
        for step in 0..60_000_u32 {
            // Mostly few addresses, now and then very many, and some of them without a number.
            let bytes = if random.below(500) == 0 { 1 + random.below(3000) } else { 1 + random.below(8) };
            let first = random.below(ROOM as u64 - bytes);
            let number = (random.below(10) > 0).then_some(step);
            let part = &mut array[first as usize..(first + bytes) as usize];
            let mut wanted: Vec<(u32, u64)> = Vec::new();
            for held in part.iter().copied() {
                match wanted.last_mut().filter(|last| last.0 == held) {
                    Some(last) => last.1 += 1,
                    None => wanted.push((held, 1)),
                }
            }
            wanted.retain(|(held, _)| *held != u32::MAX);
            part.fill(number.unwrap_or(u32::MAX));
            let mut found = Vec::new();
            match number.and_then(|number| ranges.again(first, first + bytes, number)) {
                Some(held) => found.push((held, bytes)),
                None => ranges.take(first, first + bytes, number, |held, bytes| found.push((held, bytes))),
            }
            assert_eq!(found, wanted, "step {step}");
            most = most.max(ranges.blocks.len());
            if step % 1000 == 0 {
                let all: Vec<Range> = ranges.iter_mut().map(|range| *range).collect();
                assert!(all.windows(2).all(|pair| pair[0].over <= pair[1].first));
                assert!(all.iter().all(|range| range.first < range.over));
                let sizes = ranges.blocks.iter().all(|block| (1..=BLOCK_RANGES).contains(&block.len()));
                assert!(
                    sizes && ranges.blocks.iter().zip(&ranges.firsts).all(|(b, first)| b[0].first == *first)
                );
            }
        }
        assert!(most > 10);
        ranges.take(0, ROOM as u64, None, |_, _| ());
        assert!(ranges.blocks.is_empty() && ranges.firsts.is_empty());
    }

    #[test]
    fn one_piece_taken_out_of_the_middle_leaves_two_of_its_number() {
        let mut ranges = Ranges::default();
        ranges.take(0, 100, Some(1), |_, _| ());
        ranges.take(40, 60, None, |_, _| ());
        let mut found = Vec::new();
        ranges.take(0, u64::MAX, Some(2), |number, bytes| found.push((number, bytes)));
        assert_eq!(found, [(1, 40), (1, 40)]);
    }
}
