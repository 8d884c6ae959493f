// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's cache as its best honest form has it: values of one size in one block, the least recently used goes first.
//!
//! - **Layout** a hash table by linear probing over slot numbers, at most half full; slots are linked in the order of their use
//! - **Order** get and put take constant time and allocate nothing
//! - **Not here** invalidation: no row of this cache writes

const NONE: u32 = u32::MAX;

/// A cache of values of type `V` by address.
#[derive(Debug)]
pub struct Lru<V> {
    table: Vec<u32>,
    slots: Vec<Slot<V>>,
    capacity: usize,
    /// Least and most recently used.
    ends: [u32; 2],
}

#[derive(Debug)]
struct Slot<V> {
    key: u64,
    value: V,
    /// Used before and after this one.
    beside: [u32; 2],
}

impl<V: Copy> Lru<V> {
    /// Room for so many.
    pub fn new(capacity: usize) -> Lru<V> {
        let capacity = capacity.clamp(2, 1 << 30);
        let table = vec![NONE; (capacity * 2).next_power_of_two()];
        Lru { table, slots: Vec::with_capacity(capacity), capacity, ends: [NONE; 2] }
    }

    fn start(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.table.len() - 1)
    }

    /// Where a key is in the table, or would be.
    fn find(&self, key: u64) -> usize {
        let mut at = self.start(key);
        while self.table[at] != NONE && self.slots[self.table[at] as usize].key != key {
            at = (at + 1) & (self.table.len() - 1);
        }
        at
    }

    fn unlink(&mut self, slot: u32) {
        let [before, after] = self.slots[slot as usize].beside;
        if before == NONE {
            self.ends[0] = after
        } else {
            self.slots[before as usize].beside[1] = after
        }
        if after == NONE { self.ends[1] = before } else { self.slots[after as usize].beside[0] = before }
    }

    fn link(&mut self, slot: u32) {
        let last = self.ends[1];
        self.slots[slot as usize].beside = [last, NONE];
        if last == NONE {
            self.ends[0] = slot
        } else {
            self.slots[last as usize].beside[1] = slot
        }
        self.ends[1] = slot;
    }

    /// Returns the value of a key, which becomes the most recently used.
    pub fn get(&mut self, key: u64) -> Option<V> {
        let slot = self.table[self.find(key)];
        if slot == NONE {
            return None;
        }
        self.unlink(slot);
        self.link(slot);
        Some(self.slots[slot as usize].value)
    }

    /// Keeps a value.
    pub fn put(&mut self, key: u64, value: V) {
        let at = self.find(key);
        if self.table[at] != NONE {
            self.slots[self.table[at] as usize].value = value;
            return;
        }
        let slot = if self.slots.len() < self.capacity {
            self.slots.push(Slot { key, value, beside: [NONE; 2] });
            self.table[at] = self.slots.len() as u32 - 1;
            self.slots.len() as u32 - 1
        } else {
            let oldest = self.ends[0];
            self.unlink(oldest);
            self.forget(self.slots[oldest as usize].key);
            (self.slots[oldest as usize].key, self.slots[oldest as usize].value) = (key, value);
            // Removing may have moved the place.
            let at = self.free(key);
            self.table[at] = oldest;
            oldest
        };
        self.link(slot);
    }

    /// The first place without a slot from where a key starts.
    fn free(&self, key: u64) -> usize {
        let mut at = self.start(key);
        while self.table[at] != NONE {
            at = (at + 1) & (self.table.len() - 1);
        }
        at
    }

    /// Takes a key out of the table; what was pushed behind it moves up.
    fn forget(&mut self, key: u64) {
        let mask = self.table.len() - 1;
        let mut hole = self.find(key);
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            if self.table[at] == NONE {
                break;
            }
            let home = self.start(self.slots[self.table[at] as usize].key);
            // It may move to the hole if its home is not between the two.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::traverse::ycsb::Random;

    #[test]
    fn it_is_a_list_in_the_order_of_use() {
        let (mut cache, mut model, mut random) = (Lru::new(50), VecDeque::<(u64, u64)>::new(), Random(3));
        for turn in 0..20_000 {
            let key = random.below(120) * 64;
            let place = model.iter().position(|pair| pair.0 == key);
            let right = place.and_then(|place| model.remove(place));
            assert_eq!(cache.get(key), right.map(|pair| pair.1), "turn {turn}");
            let pair = right.unwrap_or((key, turn));
            if right.is_none() {
                cache.put(key, turn);
                if model.len() == 50 {
                    model.pop_front();
                }
            }
            model.push_back(pair);
        }
    }
}
