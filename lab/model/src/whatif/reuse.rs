// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much else was used since a byte was used: what decides in which cache it still is.
//!
//! - **Flow** [`Reuse::touch`] a range ─▶ its pieces that were used before, each with its working set: itself and all that was used since,
//!   every byte once
//! - **Layout** ranges by address, each with the number of the use that was its last; bytes by that number in a Fenwick tree, so that "used
//!   later than this" is a sum over few words

use std::collections::BTreeMap;

/// Bytes that were used before together, and their working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// Number of bytes that were used before.
    pub bytes: u64,
    /// Bytes used since, and bytes used with them now.
    pub set: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Reuse {
    /// By their first address: the end, and the number of their last use.
    ranges: BTreeMap<u64, (u64, usize)>,
    uses: usize,
    /// Sums of bytes by number of use; the first is unused.
    tree: Vec<u64>,
    all: u64,
}

impl Reuse {
    /// For so many uses.
    #[must_use]
    pub fn new(uses: usize) -> Reuse {
        Reuse { tree: vec![0; uses + 1], ..Reuse::default() }
    }

    fn change(&mut self, number: usize, bytes: u64, more: bool) {
        self.all = if more { self.all.wrapping_add(bytes) } else { self.all.wrapping_sub(bytes) };
        let mut at = number + 1;
        while let Some(sum) = self.tree.get_mut(at) {
            *sum = if more { sum.wrapping_add(bytes) } else { sum.wrapping_sub(bytes) };
            at += at & at.wrapping_neg();
        }
    }

    /// Bytes whose last use came later than that one.
    fn later(&self, number: usize) -> u64 {
        let (mut at, mut sum) = (number + 1, 0_u64);
        while at > 0 {
            sum = sum.wrapping_add(self.tree.get(at).copied().unwrap_or(0));
            at &= at - 1;
        }
        self.all.wrapping_sub(sum)
    }

    /// Takes a range out: its pieces that were used before.
    pub fn forget(&mut self, address: u64, bytes: u64) -> Vec<Again> {
        let end = address.saturating_add(bytes);
        let before = self.ranges.range(..address).next_back().filter(|(_, (over, _))| *over > address);
        let first = before.map_or(address, |(from, _)| *from);
        let held: Vec<_> = self.ranges.range(first..end).map(|(from, rest)| (*from, *rest)).collect();
        let mut again = Vec::with_capacity(held.len());
        for (from, (over, used)) in &held {
            let bytes_here = over.min(&end) - from.max(&address);
            again.push(Again { bytes: bytes_here, set: self.later(*used).saturating_add(bytes) });
        }
        for (from, (over, used)) in held {
            self.ranges.remove(&from);
            self.change(used, over.min(end) - from.max(address), false);
            if from < address {
                self.ranges.insert(from, (address, used));
            }
            if over > end {
                self.ranges.insert(end, (over, used));
            }
        }
        again
    }

    /// Uses a range: its pieces that were used before.
    pub fn touch(&mut self, address: u64, bytes: u64) -> Vec<Again> {
        let again = self.forget(address, bytes);
        let end = address.saturating_add(bytes);
        if end > address && self.uses + 1 < self.tree.len() {
            self.ranges.insert(address, (end, self.uses));
            self.change(self.uses, end - address, true);
            self.uses += 1;
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    #[test]
    fn sets_hold_every_byte_once() {
        let mut reuse = Reuse::new(10);
        assert_eq!((reuse.touch(0, 100), reuse.touch(1000, 50)), (vec![], vec![]));
        (0..3).for_each(|_| drop(reuse.touch(1000, 50)));
        assert_eq!(reuse.touch(0, 100), [Again { bytes: 100, set: 150 }], "50 bytes, though used four times");
        assert_eq!(reuse.touch(50, 100), [Again { bytes: 50, set: 100 }], "the rest is new");
        assert_eq!(reuse.forget(0, 50), [Again { bytes: 50, set: 150 }]);
        assert_eq!(reuse.touch(0, 50), []);
    }

    /// Beside a list of single bytes in the order of their last use.
    #[test]
    fn pieces_and_sets_are_those_of_a_list() {
        let (mut reuse, mut random) = (Reuse::new(2000), Random::new(4));
        let mut list: Vec<u64> = Vec::new();
        for _ in 0..2000 {
            let (address, bytes) = (random.below(60), 1 + random.below(20));
            let found = reuse.touch(address, bytes);
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
    }
}
