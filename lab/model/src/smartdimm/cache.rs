// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last-level cache in lines: sets, ways, least recently used, written back.
//!
//! - **Layout** the ways of a set lie in the order of their last uses, the latest first: what leaves is the last one, and a use shifts those
//!   that were used later by one place. A way is 32 bits, so that all sets stay near the core that simulates them: 0 without a line; for a line
//!   of others 1 and its number from [`OTHERS`] on; for one of a call's buffers bit 31, bit 30 if it is dirty, core, line of the core
//! - **Rule** others only read. Buffers of a core begin [`APART`] apart, and have at most [`OWN`] bytes
//! - **Owner** data are the cores': the cache says which dirty line left
//! - **Not here** the cache of pages that DSA injects into (`dsa::cache`): it has no dirty lines, and devices may fill some ways only

use super::LINE;

/// Between the buffers of two cores (§VII-A: 32 MB between calls).
pub const APART: u64 = 1 << 33;
/// Most bytes of a core's buffers.
pub const OWN: u64 = 1 << 30;
/// Most cores that have buffers.
pub const CORES: u64 = 64;
/// Where others' lines are, 64 GiB of them.
pub const OTHERS: u64 = 1 << 40;

type Way = u32;
const BUFFER: Way = 1 << 31;
const DIRTY: Way = 1 << 30;
const OWN_BITS: u32 = (OWN / LINE).ilog2();

const _: () = assert!(CORES << OWN_BITS == DIRTY as u64);

/// The way that holds a line, clean.
#[inline]
fn way(address: u64) -> Way {
    if address >= OTHERS {
        return 1 + ((address - OTHERS) / LINE) as Way;
    }
    let (core, line) = (address / APART, address % APART / LINE);
    debug_assert!(core < CORES && line < OWN / LINE, "{address:#x} is in no core's buffers");
    BUFFER | (core << OWN_BITS | line) as Way
}

/// The address of a dirty line that had to leave.
#[inline]
fn written(left: Way) -> Option<u64> {
    let line = u64::from(left & (DIRTY - 1));
    let address = (line >> OWN_BITS) * APART + (line & ((1 << OWN_BITS) - 1)) * LINE;
    (left & (BUFFER | DIRTY) == BUFFER | DIRTY).then_some(address)
}

/// Effect of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// True if the line was in the cache.
    pub hit: bool,
    /// Address of a dirty line that had to leave.
    pub written: Option<u64>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Cache {
    sets: u64,
    ways: usize,
    lines: Vec<Way>,
}

/// Uses a line of a set: whether it was there, and what left.
#[inline(always)]
fn uses(set: &mut [Way], clean: Way, write: bool) -> (bool, Way) {
    let dirty = if write { DIRTY } else { 0 };
    // Numbers of others may have the bit, too; they have no other one that differs in it alone.
    let mask = if clean & BUFFER != 0 { !DIRTY } else { !0 };
    let (mut at, mut hit) = (set.len() - 1, false);
    for (index, way) in set.iter().enumerate() {
        if way & mask == clean {
            (at, hit) = (index, true);
        }
    }
    let last = set[at];
    if hit {
        set.copy_within(..at, 1);
        set[0] = last | dirty;
        return (true, 0);
    }
    for index in (1..set.len()).rev() {
        set[index] = set[index - 1];
    }
    set[0] = clean | dirty;
    (false, last)
}

impl Cache {
    /// A cache of `ways` ways of `way_bytes` bytes each.
    ///
    /// # Panics
    /// Without a way.
    #[must_use]
    pub fn new(ways: usize, way_bytes: u64) -> Cache {
        assert!(ways > 0, "a cache has ways");
        let sets = (way_bytes / LINE).max(1);
        Cache { sets, ways, lines: vec![0; sets as usize * ways] }
    }

    /// Where the set of an address begins: sets are chosen by a hash, as on the machines meant.
    #[inline]
    fn begin(&self, address: u64) -> usize {
        let number = (address / LINE + 1) << 1;
        let hash = ((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * self.sets) >> 32;
        hash as usize * self.ways
    }

    /// Reads or writes the line of an address; if it is not there it takes the place of the one that was used longest ago.
    #[inline]
    pub fn access(&mut self, address: u64, write: bool) -> Access {
        let begin = self.begin(address);
        let (hit, left) = uses(&mut self.lines[begin..begin + self.ways], way(address), write);
        Access { hit, written: written(left) }
    }

    /// Others read lines, one after the other, by their numbers from [`OTHERS`] on; dirty lines that leave are added to `left`, in their order.
    #[inline]
    pub fn read(&mut self, lines: impl Iterator<Item = u32>, left: &mut Vec<u64>) {
        // The number of ways that runs are made with gets code of its own: its accesses overlap in the CPU that simulates them.
        if self.ways != 4 {
            let address = |line: u32| OTHERS + u64::from(line) * LINE;
            return left.extend(lines.filter_map(|line| self.access(address(line), false).written));
        }
        for line in lines {
            let clean = 1 + line;
            let begin = self.begin(OTHERS + u64::from(line) * LINE);
            let Some(set) = self.lines[begin..].first_chunk_mut::<4>() else { continue };
            let [a, b, c, d] = *set;
            if (a == clean) | (b == clean) | (c == clean) | (d == clean) {
                uses(set, clean, false);
                continue;
            }
            *set = [clean, a, b, c];
            if d & (BUFFER | DIRTY) == BUFFER | DIRTY {
                left.extend(written(d));
            }
        }
    }

    /// Takes a line out (CLFLUSH); whether it was dirty.
    pub fn flush(&mut self, address: u64) -> bool {
        let begin = self.begin(address);
        let set = &mut self.lines[begin..begin + self.ways];
        let Some(at) = set.iter().position(|held| held & !DIRTY == way(address)) else { return false };
        let dirty = set[at] & DIRTY != 0;
        set.copy_within(at + 1.., at);
        set[self.ways - 1] = 0;
        dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    #[test]
    fn the_line_that_was_used_longest_ago_leaves_and_dirty_lines_are_written() {
        let mut cache = Cache::new(2, 64);
        let at = |line: u64| line * LINE;
        assert_eq!(cache.access(at(1), true), Access { hit: false, written: None });
        assert_eq!(cache.access(at(2), false), Access { hit: false, written: None });
        assert!(cache.access(at(1), false).hit);
        assert_eq!(cache.access(at(3), true), Access { hit: false, written: None }, "2 was clean");
        assert_eq!(cache.access(at(4), false), Access { hit: false, written: Some(at(1)) });
        assert!(cache.flush(at(3)) && !cache.flush(at(3)) && !cache.flush(at(9)));
        assert_eq!(cache.access(at(5), false), Access { hit: false, written: None }, "a place that is free");
        assert!(cache.access(at(4), false).hit && cache.access(at(5), false).hit);
    }

    #[test]
    fn ways_tell_lines_apart_and_give_addresses_back() {
        for address in [0, OWN - LINE, APART, 63 * APART + OWN - LINE, 7 * APART + 77 * LINE] {
            assert_eq!(written(way(address) | DIRTY), Some(address));
            assert_eq!(written(way(address)), None);
        }
        let others = [OTHERS, OTHERS + LINE, OTHERS + (64 << 30) - LINE].map(way);
        assert_eq!(others, [1, 2, 1 << 30]);
        assert!(others.iter().all(|way| written(*way).is_none()));
    }

    /// Beside ways with the times of their last uses: the same hits and write-backs, one by one and many at once.
    #[test]
    fn accesses_are_those_of_ways_with_times() {
        for (ways, sets) in [(1, 1), (2, 3), (4, 1), (4, 8), (7, 2)] {
            let mut cache = Cache::new(ways, sets * LINE);
            let mut list = vec![(0, false, 0_u64); sets as usize * ways];
            let (mut random, mut clock) = (Random::new(ways as u64), 0);
            for _ in 0..20_000 {
                let (kind, line) = (random.below(12), random.below(sets * ways as u64) * LINE);
                let address = if kind < 8 { line } else { OTHERS + line };
                let begin = cache.begin(address);
                let set = &mut list[begin..begin + ways];
                let held = set.iter().position(|way| way.2 > 0 && way.0 == address);
                if kind == 0 {
                    let wanted = held.is_some_and(|way| std::mem::take(&mut set[way]).1);
                    assert_eq!(cache.flush(address), wanted);
                    continue;
                }
                clock += 1;
                let way = held.unwrap_or_else(|| (0..ways).min_by_key(|way| set[*way].2).unwrap());
                let left = held.map_or(set[way], |_| (0, false, 0));
                let write = kind < 5;
                let dirty = write || held.is_some() && set[way].1;
                set[way] = (address, dirty, clock);
                let wanted = left.1.then_some(left.0);
                if address < OTHERS {
                    assert_eq!(cache.access(address, write), Access { hit: held.is_some(), written: wanted });
                } else {
                    let mut found = Vec::new();
                    cache.read(std::iter::once(((address - OTHERS) / LINE) as u32), &mut found);
                    assert_eq!(found, Vec::from_iter(wanted));
                }
            }
        }
    }
}
