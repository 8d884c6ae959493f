// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The translation table: three hash tables of a third of the entries each, and a small content-addressable memory in front.
//!
//! - **Flow** [`Table::insert`] puts an entry into the CAM at once ─▶ [`Table::settle`], off the critical path: a free place of its three,
//!   or it displaces what is in one of them, which is settled next
//! - **Order** places are tried in order; what is displaced goes round the three tables. Equal entries give equal tables everywhere
//! - **Rule** an entry is found from its insertion to its removal, wherever it is
//!
//! Source: SmartDIMM §IV-C; d-ary cuckoo hashing: Fotakis, Pagh, Sanders, Spirakis, Space Efficient Hash Tables with Worst Case
//! Constant Access Time, 2005.

use std::collections::VecDeque;

/// Number of hash functions, each with a table of its own.
const WAYS: usize = 3;
/// More displacements than this are a failure.
const MOST: usize = 64;
/// Steps of settling after which a table is too full.
const STEPS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry<V> {
    key: u64,
    value: V,
    /// Displacements that its insertion has caused; those who are displaced carry it on.
    moves: usize,
    /// The table that gives way next.
    turn: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Table<V> {
    ways: [Vec<Option<(u64, V)>>; WAYS],
    cam: VecDeque<Entry<V>>,
    cam_entries: usize,
    held: usize,
    /// Insertions by how many displacements they took; the last place is for failures.
    settled: Vec<u64>,
    /// Most entries that the CAM had.
    most: usize,
}

/// The CAM is full: the table has to settle first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl<V: Copy> Table<V> {
    /// A table of so many entries in all, rounded up to three, and so many in the CAM.
    #[must_use]
    pub fn new(entries: usize, cam_entries: usize) -> Table<V> {
        let way = vec![None; entries.div_ceil(WAYS).max(1)];
        let settled = vec![0; MOST + 2];
        Table {
            ways: [way.clone(), way.clone(), way],
            cam: VecDeque::new(),
            cam_entries,
            held: 0,
            settled,
            most: 0,
        }
    }

    /// Entries that it holds, the CAM's included.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Insertions by how many displacements they took; failures last.
    #[must_use]
    pub fn settled(&self) -> &[u64] {
        &self.settled
    }

    /// Most entries that the CAM had at a time.
    #[must_use]
    pub fn cam_most(&self) -> usize {
        self.most
    }

    fn place(&self, way: usize, key: u64) -> usize {
        const FACTORS: [u64; WAYS] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9];
        let mut hash = key.wrapping_mul(FACTORS[way]);
        hash = (hash ^ hash >> 32).wrapping_mul(FACTORS[(way + 1) % WAYS]);
        ((u128::from(hash) * self.ways[way].len() as u128) >> 64) as usize
    }

    /// The value of a key.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<V> {
        (0..WAYS)
            .filter_map(|way| self.ways[way][self.place(way, key)])
            .find(|(own, _)| *own == key)
            .map(|(_, value)| value)
            .or_else(|| self.cam.iter().find(|entry| entry.key == key).map(|entry| entry.value))
    }

    /// Inserts a key that is not there, into the CAM.
    ///
    /// # Errors
    /// If the CAM is full.
    pub fn insert(&mut self, key: u64, value: V) -> Result<(), Busy> {
        if self.cam.len() >= self.cam_entries {
            return Err(Busy);
        }
        self.cam.push_back(Entry { key, value, moves: 0, turn: (key % 3) as usize });
        self.most = self.most.max(self.cam.len());
        self.held += 1;
        Ok(())
    }

    /// Settles until the CAM has room for so many; false if that does not come, since the table is too full.
    pub fn room(&mut self, entries: usize) -> bool {
        for _ in 0..STEPS {
            if self.cam.len() + entries <= self.cam_entries {
                return true;
            }
            self.settle();
        }
        false
    }

    /// One step of settling; whether anything is left in the CAM. An entry that displaces too many stays there.
    pub fn settle(&mut self) -> bool {
        let Some(mut entry) = self.cam.pop_front() else { return false };
        let free = (0..WAYS)
            .map(|way| (way, self.place(way, entry.key)))
            .find(|(way, at)| self.ways[*way][*at].is_none());
        if let Some((way, at)) = free {
            self.ways[way][at] = Some((entry.key, entry.value));
            self.settled[entry.moves.min(MOST)] += 1;
        } else if entry.moves == MOST {
            self.settled[MOST + 1] += 1;
            entry.moves = 0;
            self.cam.push_back(entry);
        } else {
            let at = self.place(entry.turn, entry.key);
            let displaced = self.ways[entry.turn][at].replace((entry.key, entry.value));
            let (moves, turn) = (entry.moves + 1, (entry.turn + 1) % WAYS);
            // A displaced entry is found in the CAM until it has a place: the CAM has room, an entry has just left it.
            self.cam.extend(displaced.map(|(key, value)| Entry { key, value, moves, turn }));
            self.cam.rotate_right(1);
        }
        !self.cam.is_empty()
    }

    /// Takes a key out; its value, if it was there.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let table = (0..WAYS)
            .map(|way| (way, self.place(way, key)))
            .find(|(way, at)| self.ways[*way][*at].is_some_and(|(own, _)| own == key));
        let removed = match table {
            Some((way, at)) => self.ways[way][at].take().map(|(_, value)| value),
            None => {
                let at = self.cam.iter().position(|entry| entry.key == key)?;
                self.cam.remove(at).map(|entry| entry.value)
            }
        };
        self.held -= usize::from(removed.is_some());
        removed
    }
}

/// Inserts into a table that is kept at so many entries, random ones leaving. Returns displacements, failures last, and the most
/// that the CAM had, with two steps of settling for each insertion.
#[must_use]
pub fn churn(
    entries: usize,
    cam_entries: usize,
    kept: usize,
    insertions: u64,
    seed: u64,
) -> (Vec<u64>, usize) {
    let (mut table, mut random) = (Table::new(entries, cam_entries), crate::event::Random::new(seed));
    let mut keys: Vec<u64> = Vec::new();
    for _ in 0..insertions {
        if keys.len() >= kept {
            let key = keys.swap_remove(random.below(keys.len() as u64) as usize);
            table.remove(key);
        }
        // Page numbers of 64 GiB.
        let key = random.below(1 << 24);
        if table.find(key).is_some() {
            continue;
        }
        if !table.room(1) || table.insert(key, ()).is_err() {
            break;
        }
        keys.push(key);
        table.settle();
        table.settle();
    }
    table.room(cam_entries);
    (table.settled().to_vec(), table.cam_most())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;
    use std::collections::BTreeMap;

    #[test]
    fn entries_are_found_from_insertion_to_removal() {
        for (entries, kept) in [(12_288, 4096), (96, 70)] {
            let (mut table, mut random, mut wanted) =
                (Table::new(entries, 8), Random::new(3), BTreeMap::new());
            for step in 0..20_000_u64 {
                let key = random.below(4 * kept);
                let removed = wanted.remove(&key);
                assert_eq!((table.find(key), table.remove(key)), (removed, removed), "step {step}");
                if (wanted.len() as u64) < kept && table.insert(key, step).is_ok() {
                    wanted.insert(key, step);
                }
                if step % 3 > 0 {
                    table.settle();
                }
                let probe = random.below(4 * kept);
                assert_eq!((table.find(probe), table.held()), (wanted.get(&probe).copied(), wanted.len()));
            }
            assert!(wanted.iter().all(|(key, value)| table.find(*key) == Some(*value)));
        }
    }

    #[test]
    fn a_third_full_most_insertions_displace_nothing_and_none_fails() {
        let (settled, most) = churn(12_288, 8, 4096, 60_000, 1);
        let all: u64 = settled.iter().sum();
        assert!(settled[0] * 100 > all * 97 && (settled[0] + settled[1]) * 100 > all * 99, "{settled:?}");
        assert_eq!(settled[MOST + 1], 0);
        assert!(most <= 8);
        let (full, _) = churn(300, 8, 210, 2000, 1);
        assert!(full[0] * 10 < full.iter().sum::<u64>() * 9, "more than half full, it has to work: {full:?}");
    }

    #[test]
    fn the_cam_says_when_it_is_full() {
        let mut table = Table::new(30, 2);
        assert_eq!([1, 2, 3].map(|key| table.insert(key, key)), [Ok(()), Ok(()), Err(Busy)]);
        assert!(table.settle() && !table.settle() && !table.settle());
        assert_eq!((table.insert(3, 3), table.find(1), table.remove(9)), (Ok(()), Some(1), None));
        let mut full = Table::new(3, 1);
        let inserted = (0..9).filter(|&key| full.room(1) && full.insert(key, key).is_ok()).count();
        assert!(inserted <= 4 && !full.room(1), "{inserted}");
    }
}
