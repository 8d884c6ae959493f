// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The free slabs of a heap, and the layout of a heap at the start and when it grows.
//!
//! - **Owner** [`FreeSlabs`] is in memory only: at open it is read off the directory. A slab leaves it when a transaction takes
//!   it, and comes back when the transaction aborts, or when the freeing is durable
//! - **Zones** free zones without a directory are in a list of their own, because they have no slabs (`span`)
//! - **Layout** see `layout`

use std::collections::BTreeSet;

use crate::image::Image;
use crate::layout::{
    BODIES_ZONES, DIRECTORY_SLABS, Entry, HEAD_SLABS, RUN_SLABS_MAX, SLAB_BYTES, ZONE_SLABS, is_system, slots,
};
use crate::section::Section;
use crate::zones::{HEAD_SLAB, Zones, body_zones, zones};

/// A bit for each slab: 1 = free.
#[derive(Debug, Default)]
pub(crate) struct FreeSlabs {
    words: Vec<u64>,
    slabs: u64,
    hint: usize,
    /// Free zones without a directory.
    idle: BTreeSet<u64>,
}

impl FreeSlabs {
    /// Makes room for slabs up to `slabs`; new ones are not free yet.
    pub fn grow(&mut self, slabs: u64) {
        self.slabs = slabs;
        self.words.resize(slabs.div_ceil(64) as usize, 0);
    }

    /// Slabs that there are bits for.
    pub fn slabs(&self) -> u64 {
        self.slabs
    }

    /// How many are free, or would be if idle zones had their directory.
    pub fn free(&self) -> u64 {
        let slabs: u64 = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        slabs + self.idle.iter().map(|zone| self.in_zone(*zone).saturating_sub(DIRECTORY_SLABS)).sum::<u64>()
    }

    /// Slabs of a zone: the last one may be shorter.
    fn in_zone(&self, zone: u64) -> u64 {
        ZONE_SLABS.min(self.slabs.saturating_sub(zone * ZONE_SLABS))
    }

    /// Adds a zone without a directory to the free ones.
    pub fn give_idle(&mut self, zone: u64) {
        self.idle.insert(zone);
    }

    /// Takes a free zone without a directory that has room for slabs; returns it with its slabs, the directory's included.
    pub fn take_idle(&mut self) -> Option<(u64, u64)> {
        let zone = *self.idle.iter().find(|zone| self.in_zone(**zone) > DIRECTORY_SLABS)?;
        self.idle.remove(&zone);
        Some((zone, self.in_zone(zone)))
    }

    /// Returns true if nothing is in a zone.
    fn is_empty(&self, zone: u64) -> bool {
        let first = zone * ZONE_SLABS;
        self.idle.contains(&zone)
            || (first + DIRECTORY_SLABS..first + self.in_zone(zone)).all(|slab| self.is_free(slab))
    }

    /// Takes the zones of an object of `count` slabs, more than a zone has.
    pub fn take_span(&mut self, count: u64) -> Option<Zones> {
        let bodies = body_zones(count);
        let (mut zone, last) = (1, zones(self.slabs).min(BODIES_ZONES));
        while zone + bodies < last && zone * ZONE_SLABS + HEAD_SLAB + count <= self.slabs {
            if let Some(taken) = (zone..=zone + bodies).rev().find(|one| !self.is_empty(*one)) {
                zone = taken + 1;
                continue;
            }
            let mut found = Zones { first: zone * ZONE_SLABS + HEAD_SLAB, ..Zones::default() };
            for one in zone..=zone + bodies {
                match (self.idle.remove(&one), one == zone) {
                    (true, true) => found.restore = Some(one),
                    (false, false) => found.lose.push(one),
                    _ => {}
                }
                for slab in one * ZONE_SLABS..one * ZONE_SLABS + self.in_zone(one) {
                    self.words[slab as usize / 64] &= !(1 << (slab % 64));
                }
            }
            return Some(found);
        }
        None
    }

    /// Slabs that the heap has to have for such an object.
    pub fn span_end(&self, count: u64) -> u64 {
        let mut first = zones(self.slabs);
        while first > 1 && self.is_empty(first - 1) {
            first -= 1;
        }
        first.max(1) * ZONE_SLABS + HEAD_SLAB + count
    }

    /// Gives an object's slabs back, however many they are.
    pub fn give_back(&mut self, first: u64, count: u64) {
        if count > RUN_SLABS_MAX { self.give_span(first, count) } else { self.give(first, count) }
    }

    /// Gives such an object's zones back: the first has a directory, the others are idle.
    pub fn give_span(&mut self, first: u64, count: u64) {
        self.give(first, HEAD_SLABS);
        let zone = first / ZONE_SLABS;
        self.idle.extend(zone + 1..=zone + body_zones(count));
    }

    pub fn give(&mut self, first: u64, count: u64) {
        for slab in first..first + count {
            self.words[slab as usize / 64] |= 1 << (slab % 64);
        }
        self.hint = self.hint.min(first as usize / 64);
    }

    /// Takes slabs out that nobody may take; false: one of them is not free.
    pub fn withhold(&mut self, first: u64, count: u64) -> bool {
        let free = (first..first + count).all(|slab| self.is_free(slab));
        for slab in (first..first + count).filter(|_| free) {
            self.words[slab as usize / 64] &= !(1 << (slab % 64));
        }
        free
    }

    /// Takes up to `most` free slabs from `from` on that `wanted` names: runs of slabs side by side.
    pub fn take_from(&mut self, from: u64, most: u64, wanted: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let (mut found, mut taken): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
        for slab in from..self.slabs {
            if taken == most {
                break;
            }
            if !self.is_free(slab) || !wanted(slab) {
                continue;
            }
            self.words[slab as usize / 64] &= !(1 << (slab % 64));
            taken += 1;
            match found.last_mut() {
                Some((first, count)) if *first + *count == slab => *count += 1,
                _ => found.push((slab, 1)),
            }
        }
        found
    }

    fn is_free(&self, slab: u64) -> bool {
        slab < self.slabs && self.words[slab as usize / 64] >> (slab % 64) & 1 == 1
    }

    /// Takes `count` slabs side by side in one zone.
    pub fn take(&mut self, count: u64) -> Option<u64> {
        if count == 1 {
            for at in self.hint..self.words.len() {
                let word = self.words[at];
                if word != 0 {
                    let bit = u64::from(word.trailing_zeros());
                    self.words[at] &= word - 1;
                    self.hint = at;
                    return Some(at as u64 * 64 + bit);
                }
            }
            self.hint = self.words.len();
            return None;
        }
        let mut start = 0;
        while start + count <= self.slabs {
            match (start..start + count).rev().find(|slab| !self.is_free(*slab)) {
                None => {
                    for slab in start..start + count {
                        self.words[slab as usize / 64] &= !(1 << (slab % 64));
                    }
                    return Some(start);
                }
                Some(taken) => start = taken + 1,
            }
        }
        None
    }
}

/// Returns true if no slot of a slab is in use.
pub(crate) fn is_empty(image: &Image, slab: u64, stride: u32) -> bool {
    let (_, first) = slots(u64::from(stride).max(16));
    (0..first / 8).all(|word| image.word(slab * SLAB_BYTES + word * 8) == 0)
}

/// Returns true if a noted slab is still this section's, and empty.
pub(crate) fn is_left(image: &Image, slab: u64, section: u16) -> bool {
    let entry = image.entry(slab);
    entry.state == Entry::SLOTS && entry.section == section && is_empty(image, slab, entry.stride)
}

/// Notes slabs that were empty when the pool was opened, once. The lists have none that a migration is at.
pub(crate) fn search(section: &mut Section, number: u16, image: &Image) {
    if !section.searched {
        section.searched = true;
        let found: Vec<u64> = section.unseen().filter(|slab| is_left(image, *slab, number)).collect();
        section.emptied.extend(found.into_iter().map(|slab| (slab, 0)));
    }
}

/// Reads the directory: calls `each` for every slab with its entry; system slabs, and zones without a directory, are skipped.
pub(crate) fn walk(image: &Image, from: u64, to: u64, mut each: impl FnMut(u64, Entry)) {
    let mut slab = from;
    while slab < to {
        if image.is_body(slab / ZONE_SLABS) {
            slab = (slab / ZONE_SLABS + 1) * ZONE_SLABS;
            continue;
        }
        if !is_system(slab) {
            each(slab, image.entry(slab));
        }
        slab += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_taken_once_and_side_by_side() {
        let mut free = FreeSlabs::default();
        free.grow(200);
        free.give(5, 3);
        free.give(10, 100);
        assert_eq!(free.free(), 103);
        assert_eq!(free.take(4), Some(10));
        assert_eq!(free.take(1), Some(5));
        assert_eq!(free.take(2), Some(6));
        assert_eq!(free.take(97), None);
        assert_eq!(free.take(96), Some(14));
        assert_eq!(free.take(1), None);
        free.give(50, 1);
        assert_eq!(free.take(1), Some(50));
    }
}
