// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where entries were found last: most lookups need not go down a tree.
//!
//! - **Flow** hash of a key ─▶ bucket of 4 slots ─▶ leaf and slot of the leaf, which the tree compares with the key ([`BTree::at`]); after a
//!   miss the tree is searched and a slot overwritten
//! - **Layout** a slot is one word: 12 bits of the hash, 4 of the leaf's slot, 48 of the leaf's offset; 0: empty. Slots lie in segments,
//!   each as long as all before it, which are made when the table grows to them
//! - **Rule** a hint may be wrong at any time and is never trusted: other threads overwrite slots, entries move and are removed
//! - **Rule** the table takes 8 bytes per slot and has about two slots per entry, up to [`SLOTS_MAX`]: 8 MiB
//!
//! [`BTree::at`]: crate::structures::BTree::at

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::structures::EntryPlace;

/// Slots of the first segment.
const SLOTS_MIN: u64 = 1 << 10;
/// Slots of all segments.
const SLOTS_MAX: u64 = 1 << 20;
const SEGMENTS: usize = (SLOTS_MAX / SLOTS_MIN).ilog2() as usize + 1;
/// Slots of a bucket: half a cache line.
const WAYS: u64 = 4;
const OFFSET_BITS: u32 = 48;
const SLOT_BITS: u32 = 4;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Places {
    segments: [OnceLock<Box<[AtomicU64]>>; SEGMENTS],
    /// Slots in use, a power of two.
    slots: AtomicU64,
    /// Slots that were empty and are not.
    filled: AtomicU64,
}

fn tag(hash: u64) -> u64 {
    hash >> (OFFSET_BITS + SLOT_BITS) << (OFFSET_BITS + SLOT_BITS)
}

impl Places {
    pub fn new() -> Places {
        Places {
            segments: [const { OnceLock::new() }; SEGMENTS],
            slots: AtomicU64::new(SLOTS_MIN),
            filled: AtomicU64::new(0),
        }
    }

    /// The slots that the key of a hash may have.
    #[inline]
    fn bucket(&self, hash: u64) -> &[AtomicU64] {
        let at = (hash >> 16) & (self.slots.load(Ordering::Relaxed) - 1) & !(WAYS - 1);
        // Segment 0 has the first SLOTS_MIN slots, segment s the SLOTS_MIN · 2^(s − 1) behind those before it.
        let segment = (at / SLOTS_MIN).checked_ilog2().map_or(0, |log| log + 1);
        let (start, length) = match segment {
            0 => (0, SLOTS_MIN),
            segment => (SLOTS_MIN << (segment - 1), SLOTS_MIN << (segment - 1)),
        };
        let slots = &self.segments[segment as usize];
        let slots = slots.get_or_init(|| (0..length).map(|_| AtomicU64::new(0)).collect());
        &slots[(at - start) as usize..][..WAYS as usize]
    }

    /// Where the key of a hash was found last, if that is known.
    #[inline]
    pub fn get(&self, hash: u64) -> Option<EntryPlace> {
        let mut words = self.bucket(hash).iter().map(|slot| slot.load(Ordering::Relaxed));
        let word = words.find(|word| *word != 0 && tag(*word) == tag(hash))?;
        Some(EntryPlace {
            leaf: word & ((1 << OFFSET_BITS) - 1),
            slot: (word >> OFFSET_BITS) as usize & ((1 << SLOT_BITS) - 1),
        })
    }

    /// Notes where the key of a hash was found.
    pub fn note(&self, hash: u64, place: EntryPlace) {
        if place.leaf >> OFFSET_BITS != 0 {
            return;
        }
        let word = tag(hash) | (place.slot as u64) << OFFSET_BITS | place.leaf;
        let bucket = self.bucket(hash);
        let known = |slot: &&AtomicU64| {
            let word = slot.load(Ordering::Relaxed);
            word != 0 && tag(word) == tag(hash)
        };
        let empty = |slot: &&AtomicU64| slot.load(Ordering::Relaxed) == 0;
        let slot = bucket.iter().find(known).or_else(|| bucket.iter().find(empty));
        let slot = slot.unwrap_or(&bucket[(hash >> 50) as usize % WAYS as usize]);
        if slot.swap(word, Ordering::Relaxed) != 0 {
            return;
        }
        let filled = self.filled.fetch_add(1, Ordering::Relaxed) + 1;
        let slots = self.slots.load(Ordering::Relaxed);
        if filled > slots / 2 && slots < SLOTS_MAX {
            // Half of the hints are not found from now on; they come again.
            let _ = self.slots.compare_exchange(slots, slots * 2, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structures::spread;

    #[test]
    fn places_come_back_and_the_table_stays_bounded() {
        let places = Places::new();
        let place = |key: u64| EntryPlace { leaf: (key + 1) * 64, slot: key as usize % 14 };
        (0..3 * SLOTS_MAX).for_each(|key| places.note(spread(key + 1), place(key)));
        assert_eq!(places.slots.load(Ordering::Relaxed), SLOTS_MAX);
        let segments: usize = places.segments.iter().filter_map(OnceLock::get).map(|slots| slots.len()).sum();
        assert_eq!(segments as u64, SLOTS_MAX);
        let right = (0..3 * SLOTS_MAX).filter(|key| places.get(spread(key + 1)) == Some(place(*key))).count();
        assert!(right as u64 > SLOTS_MAX / 2, "{right}");
    }

    #[test]
    fn a_small_table_holds_all_that_it_was_told() {
        let places = Places::new();
        let keys = SLOTS_MIN / 4;
        (0..keys).for_each(|key| places.note(spread(key + 1), EntryPlace { leaf: 64 * (key + 1), slot: 1 }));
        let right = (0..keys)
            .filter(|key| places.get(spread(key + 1)).is_some_and(|place| place.leaf == 64 * (key + 1)));
        assert!(right.count() as u64 > keys * 9 / 10);
        assert!(places.segments[1..].iter().all(|segment| segment.get().is_none()));
    }

    #[test]
    fn an_offset_that_does_not_fit_is_not_noted() {
        let places = Places::new();
        places.note(1 << 16, EntryPlace { leaf: 1 << 48, slot: 0 });
        assert_eq!(places.get(1 << 16), None);
    }
}
