// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last-level cache in lines: sets, ways, least recently used, written back; who may fill which ways.
//!
//! - **Order** a line is looked for in all ways of its set and fills the oldest of those that it may (Cache Allocation Technology)
//! - **Owner** data are the cores': the cache says which dirty line left
//! - **Not here** the cache of pages that DSA injects into (`dsa::cache`): it has no dirty lines

use super::LINE;

/// A way: bit 0 dirty, bits 1 to 39 one more than the line, the rest when it was used, counted in its set.
type Way = u64;
const LINE_BITS: u32 = 39;
const USED: u32 = LINE_BITS + 1;
const LATEST: u64 = u64::MAX >> USED;

fn tag(address: u64) -> u64 {
    (address / LINE + 1) << 1 & ((1 << USED) - 2)
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

impl Cache {
    /// A cache of `ways` ways of `way_bytes` bytes each.
    #[must_use]
    pub fn new(ways: usize, way_bytes: u64) -> Cache {
        let sets = (way_bytes / LINE).max(1);
        Cache { sets, ways, lines: vec![0; sets as usize * ways] }
    }

    fn set(&mut self, tag: u64) -> &mut [Way] {
        // Sets are chosen by a hash of the address, as on the machines meant.
        let hash = ((tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * self.sets) >> 32;
        let begin = hash as usize * self.ways;
        &mut self.lines[begin..begin + self.ways]
    }

    /// Reads or writes the line of an address; if it is not there it fills one of the first `mask` ways.
    pub fn access(&mut self, address: u64, mask: usize, write: bool) -> Access {
        let tag = tag(address);
        let set = self.set(tag);
        let (mut at, mut oldest, mut latest) = (None, 0, 0);
        for (index, way) in set.iter().enumerate() {
            if way & ((1 << USED) - 2) == tag {
                at = Some(index);
            }
            if index < mask && way >> USED < set[oldest] >> USED {
                oldest = index;
            }
            latest = latest.max(way >> USED);
        }
        if latest == LATEST {
            age(set);
            return self.access(address, mask, write);
        }
        let way = &mut set[at.unwrap_or(oldest)];
        let left = if at.is_some() { 0 } else { std::mem::take(way) };
        *way = (latest + 1) << USED | tag | *way & 1 | u64::from(write);
        let written = (left & 1 == 1).then(|| ((left & ((1 << USED) - 2)) >> 1).wrapping_sub(1) * LINE);
        Access { hit: at.is_some(), written }
    }

    /// Takes a line out (CLFLUSH); whether it was dirty.
    pub fn flush(&mut self, address: u64) -> bool {
        let tag = tag(address);
        let way = self.set(tag).iter_mut().find(|way| **way & ((1 << USED) - 2) == tag);
        way.is_some_and(|way| std::mem::take(way) & 1 == 1)
    }
}

/// Begins to count uses from the beginning, in their order.
fn age(set: &mut [Way]) {
    let mut order: Vec<usize> = (0..set.len()).collect();
    order.sort_by_key(|&index| set[index] >> USED);
    for (used, index) in order.into_iter().enumerate() {
        set[index] = set[index] & ((1 << USED) - 1) | (used as u64) << USED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_allowed_ways_leaves_and_dirty_lines_are_written() {
        let mut cache = Cache::new(4, 64);
        let at = |line: u64| line * LINE;
        assert_eq!(cache.access(at(1), 2, true), Access { hit: false, written: None });
        assert_eq!(cache.access(at(2), 2, false), Access { hit: false, written: None });
        assert!(cache.access(at(1), 4, false).hit);
        assert_eq!(cache.access(at(3), 2, true), Access { hit: false, written: None }, "2 was clean");
        assert_eq!(cache.access(at(4), 2, false), Access { hit: false, written: Some(at(1)) });
        assert_eq!(
            cache.access(at(5), 4, false),
            Access { hit: false, written: None },
            "ways that others left empty"
        );
        age(&mut cache.lines);
        assert!(cache.access(at(5), 4, false).hit);
        assert!(cache.flush(at(3)) && !cache.flush(at(3)) && !cache.access(at(3), 4, false).hit);
    }
}
