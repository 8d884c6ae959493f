// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much else was used since a byte was used: what decides in which cache it still is.
//!
//! - **Flow** [`Reuse::touch`] a range ─▶ its pieces that were used before, each with its working set: itself and all that was used since,
//!   every byte once
//! - **Layout** ranges by address (`ranges`), each with the number of the use that was its last; bytes by that number, and a Fenwick tree over
//!   groups of [`GROUP`] numbers, so that "used later than this" is a sum over few words. Numbers are given anew, in their order, when they
//!   run out: there are as many as a few times those in use, however many uses there are

use super::ranges::Ranges;

/// Bytes that were used before together, and their working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// Number of bytes that were used before.
    pub bytes: u64,
    /// Bytes used since, and bytes used with them now.
    pub set: u64,
}

/// Numbers of uses at least.
const NUMBERS_MIN: usize = 1024;
/// Numbers whose bytes are summed up one by one.
const GROUP: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Reuse {
    /// Each with the number of its last use.
    ranges: Ranges,
    /// Pieces that are taken out now: numbers and bytes.
    pieces: Vec<(u32, u64)>,
    /// Number that the next use gets.
    next: u32,
    /// Bytes whose last use has this number; whole groups.
    bytes: Vec<u64>,
    /// Sums of bytes by group of numbers; the first is unused.
    tree: Vec<u64>,
    all: u64,
}

impl Default for Reuse {
    fn default() -> Reuse {
        Reuse {
            ranges: Ranges::default(),
            pieces: Vec::new(),
            next: 0,
            bytes: vec![0; NUMBERS_MIN],
            tree: vec![0; NUMBERS_MIN / GROUP + 1],
            all: 0,
        }
    }
}

impl Reuse {
    fn change(&mut self, number: u32, bytes: u64) {
        self.all = self.all.wrapping_add(bytes);
        self.put(number as usize, bytes);
    }

    fn put(&mut self, place: usize, bytes: u64) {
        self.bytes[place] = self.bytes[place].wrapping_add(bytes);
        let mut at = place / GROUP + 1;
        while let Some(sum) = self.tree.get_mut(at) {
            *sum = sum.wrapping_add(bytes);
            at += at & at.wrapping_neg();
        }
    }

    /// The last use of so many bytes has another number.
    fn renew(&mut self, (before, now): (u32, u32), bytes: u64) {
        let (before, now) = (before as usize, now as usize);
        if before / GROUP == now / GROUP {
            self.bytes[before] = self.bytes[before].wrapping_sub(bytes);
            self.bytes[now] = self.bytes[now].wrapping_add(bytes);
        } else {
            self.put(before, bytes.wrapping_neg());
            self.put(now, bytes);
        }
    }

    /// Bytes whose last use came later than that one.
    fn later(&self, number: u32) -> u64 {
        let number = number as usize;
        let (mut at, begin) = (number / GROUP, number / GROUP * GROUP);
        let mut sum = self.bytes[begin..=number].iter().fold(0, |sum: u64, bytes| sum.wrapping_add(*bytes));
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        self.all.wrapping_sub(sum)
    }

    /// The number of a new use.
    fn number(&mut self) -> u32 {
        if self.next as usize == self.bytes.len() {
            self.renumber();
        }
        self.next += 1;
        self.next - 1
    }

    /// Gives the uses that are still the last ones of bytes new numbers, in their order.
    fn renumber(&mut self) {
        let (mut live, mut sum) = (0, 0_u64);
        let mut numbers = vec![0_u32; self.bytes.len()];
        for (number, new) in numbers.iter_mut().enumerate() {
            let bytes = self.bytes[number];
            *new = live as u32;
            if bytes > 0 {
                self.bytes[live] = bytes;
                live += 1;
            }
        }
        self.ranges.iter_mut().for_each(|range| range.number = numbers[range.number as usize]);
        self.next = live as u32;
        let room = (4 * live).max(NUMBERS_MIN).next_multiple_of(GROUP);
        self.bytes.truncate(live);
        self.bytes.resize(room, 0);
        // Sums of all up to each group; the tree has the sum of as many of them as its lowest bit says.
        self.tree.clear();
        self.tree.push(0);
        self.tree.extend(self.bytes.as_chunks::<GROUP>().0.iter().map(|group| {
            sum = group.iter().fold(sum, |sum, bytes| sum.wrapping_add(*bytes));
            sum
        }));
        for at in (1..self.tree.len()).rev() {
            self.tree[at] = self.tree[at].wrapping_sub(self.tree[at & (at - 1)]);
        }
    }

    /// Takes a range out; gives its pieces that were used before to `found`.
    pub fn forget(&mut self, address: u64, bytes: u64, found: impl FnMut(Again)) {
        self.take((address, bytes), None, found);
    }

    /// Uses a range; gives its pieces that were used before to `found`.
    pub fn touch(&mut self, address: u64, bytes: u64, mut found: impl FnMut(Again)) {
        let number = self.number();
        let end = address.saturating_add(bytes);
        if let Some(before) = self.ranges.again(address, end, number) {
            found(Again { bytes: end - address, set: self.later(before).saturating_add(bytes) });
            return self.renew((before, number), end - address);
        }
        self.take((address, bytes), Some(number), found);
    }

    fn take(&mut self, (address, bytes): (u64, u64), number: Option<u32>, mut found: impl FnMut(Again)) {
        let end = address.saturating_add(bytes);
        if end == address {
            return;
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        self.ranges.take(address, end, number, |number, bytes| pieces.push((number, bytes)));
        for (number, here) in &pieces {
            found(Again { bytes: *here, set: self.later(*number).saturating_add(bytes) });
        }
        let mut new = end - address;
        for (before, here) in pieces.drain(..) {
            match number {
                Some(number) => self.renew((before, number), here),
                None => self.change(before, here.wrapping_neg()),
            }
            new -= here;
        }
        self.pieces = pieces;
        if let Some(number) = number.filter(|_| new > 0) {
            self.change(number, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    fn touch(reuse: &mut Reuse, address: u64, bytes: u64) -> Vec<Again> {
        let mut found = Vec::new();
        reuse.touch(address, bytes, |again| found.push(again));
        found
    }

    #[test]
    fn sets_hold_every_byte_once() {
        let mut reuse = Reuse::default();
        assert_eq!((touch(&mut reuse, 0, 100), touch(&mut reuse, 1000, 50)), (vec![], vec![]));
        (0..3).for_each(|_| drop(touch(&mut reuse, 1000, 50)));
        let whole = [Again { bytes: 100, set: 150 }];
        assert_eq!(touch(&mut reuse, 0, 100), whole, "50 bytes, though used four times");
        assert_eq!(touch(&mut reuse, 50, 100), [Again { bytes: 50, set: 100 }], "the rest is new");
        let mut forgotten = Vec::new();
        reuse.forget(0, 50, |again| forgotten.push(again));
        assert_eq!(forgotten, [Again { bytes: 50, set: 150 }]);
        assert_eq!((touch(&mut reuse, 0, 50), touch(&mut reuse, 0, 0)), (vec![], vec![]));
    }

    /// Beside a list of single bytes in the order of their last use.
    #[test]
    fn pieces_and_sets_are_those_of_a_list() {
        let (mut reuse, mut random) = (Reuse::default(), Random::new(4));
        let mut list: Vec<u64> = Vec::new();
        for _ in 0..4000 {
            // Some ranges come again as a whole.
            let (address, bytes) = match random.below(2) {
                0 => (random.below(60), 1 + random.below(20)),
                _ => (8 * random.below(8), 8),
            };
            let found = touch(&mut reuse, address, bytes);
            let held: Vec<u64> =
                list.iter().copied().filter(|at| (address..address + bytes).contains(at)).collect();
            assert_eq!(found.iter().map(|again| again.bytes).sum::<u64>(), held.len() as u64);
            if let Some(oldest) = held.first() {
                let place = list.iter().position(|at| at == oldest).unwrap();
                let most = found.iter().map(|again| again.set).max().unwrap();
                assert!(most <= (list.len() - place) as u64 + bytes && most >= bytes);
            }
            list.retain(|at| !held.contains(at));
            list.extend(address..address + bytes);
        }
        assert_eq!(reuse.bytes.len(), NUMBERS_MIN, "numbers are given anew");
    }

    /// Ranges that do not overlap, more than there are numbers at first: the set of each is all that was used since.
    #[test]
    fn numbers_that_run_out_keep_their_order() {
        let (mut reuse, mut random) = (Reuse::default(), Random::new(9));
        let mut order: Vec<u64> = (0..700).collect();
        order.iter().for_each(|range| drop(touch(&mut reuse, 100 * range, 10)));
        for _ in 0..5000 {
            let place = random.below(order.len() as u64) as usize;
            let range = order.remove(place);
            let later = 10 * (order.len() - place) as u64;
            assert_eq!(touch(&mut reuse, 100 * range, 10), [Again { bytes: 10, set: later + 10 }]);
            order.push(range);
        }
        assert!(reuse.bytes.len() > NUMBERS_MIN && reuse.bytes.len() <= 4 * 701 + GROUP);
    }
}
