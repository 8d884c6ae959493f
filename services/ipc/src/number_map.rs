// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps with keys that this process chose itself: job ids, slots, sessions. A multiplication is hash enough for them.
//!
//! - **Not here** keys that a peer chooses to be inserted: those need the standard hasher, against floods of collisions. A peer's keys
//!   may be looked up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are numbers, or pairs of them.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, §6.4), folded so that both ends of the word vary.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    #[test]
    fn numbers_in_a_row_and_offsets_of_slots_spread() {
        let hasher = BuildHasherDefault::<NumberHasher>::default();
        for step in [1u64, 2, 256, 4096, 1 << 20] {
            // A map takes its place from the low bits and tells entries there apart by the top seven.
            let low: HashSet<u64> = (0..128).map(|i| hasher.hash_one(i * step) & 1023).collect();
            let top: HashSet<u64> = (0..128).map(|i| hasher.hash_one((0u32, i * step)) >> 57).collect();
            assert!(low.len() > 100 && top.len() > 60, "{step}: {} {}", low.len(), top.len());
        }
    }
}
