// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last-level cache, page by page: what is in it, and which ways a device may use.
//!
//! - **Order** least recently used of the ways that the access may fill; a hit may be in any way
//! - **Rule** a core that streams reads past it: the cache takes what cores give up, so only what they come back for is allocated

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// See the module.
#[derive(Clone, Debug)]
pub struct Cache {
    ways: usize,
    injected: usize,
    sets: u64,
    /// For each way of each set: block and time of the last use; 0 is never.
    lines: Vec<(u64, u64)>,
    clock: u64,
}

impl Cache {
    /// An empty one; devices may use the last `injected` ways.
    #[must_use]
    pub fn new(bytes: u64, ways: usize, injected: usize) -> Cache {
        let sets = (bytes / BLOCK / ways as u64).max(1);
        Cache { ways, injected, sets, lines: vec![(0, 0); sets as usize * ways], clock: 0 }
    }

    fn set(&mut self, block: u64) -> &mut [(u64, u64)] {
        let first = (block % self.sets) as usize * self.ways;
        &mut self.lines[first..first + self.ways]
    }

    /// Puts a block into one of the ways from there on, unless it is in any: whether it was.
    fn fill(&mut self, block: u64, from: usize) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let set = self.set(block);
        if let Some(line) = set.iter_mut().find(|line| line.1 > 0 && line.0 == block) {
            line.1 = clock;
            return true;
        }
        let oldest = set[from..].iter_mut().min_by_key(|line| line.1);
        if let Some(line) = oldest {
            *line = (block, clock);
        }
        false
    }

    /// A core uses a block and comes back for it: whether it was there; it is afterwards.
    pub fn reuse(&mut self, block: u64) -> bool {
        self.fill(block, 0)
    }

    /// A core reads a block once: whether it was there.
    pub fn read(&mut self, block: u64) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let line = self.set(block).iter_mut().find(|line| line.1 > 0 && line.0 == block);
        line.is_some_and(|line| {
            line.1 = clock;
            true
        })
    }

    /// A device writes a block: into its ways, or to memory, which makes what the cache had worthless.
    pub fn write(&mut self, block: u64, inject: bool) {
        if inject {
            let from = self.ways - self.injected;
            self.fill(block, from);
        } else if let Some(line) = self.set(block).iter_mut().find(|line| line.0 == block) {
            *line = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_keep_to_their_ways_and_cores_have_all() {
        let mut cache = Cache::new(8 * BLOCK, 8, 2);
        assert!((1..=8).all(|block| !cache.reuse(block)) && (1..=8).all(|block| cache.reuse(block)));
        // Two of the blocks give way to what a device writes, however much that is.
        (100..110).for_each(|block| cache.write(block, true));
        assert!(cache.read(109) && cache.read(108) && !cache.read(107));
        assert_eq!((1..=8).filter(|&block| cache.read(block)).count(), 6);
        cache.write(109, false);
        assert!(!cache.read(109));
    }
}
