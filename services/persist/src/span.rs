// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of more than a zone: redo and undo pools.
//!
//! - **Layout** the object starts with slab 4 of a zone, behind the directory; what does not fit there lies in the zones that
//!   follow, and those have no directory: the object's bytes are where it would be. Slab 4's entry ([`Entry::SPAN`]) names type,
//!   section and how many slabs; the zone's other entries are zero. A bit per zone without a directory is in the superblock's
//!   slab ([`BODIES_OFFSET`])
//! - **Rule** the bits of zones and the entry of an object change separately. A zone loses its directory when it is empty, and
//!   its bit is durable before a byte of an object is stored there. A zone without a directory that no entry covers is idle: for
//!   the next such object, or, with a new directory, for slabs. So a transaction logs one entry only, and an abort or a crash
//!   leaves idle zones
//! - **Order** to lose a directory: log applied (it may have words of the old directory) ─▶ the feature in both headers, once ─▶
//!   bits stored, hardened. To get it back: log applied ─▶ zeros stored, hardened ─▶ bits stored, hardened. A word of bits is
//!   stored as one, so a crash leaves it old or new
//! - **Owner** the thread that took the zones out of `free_slabs`; words of bits are changed under `bodies`
//! - **Not here** finding room for slabs and runs: `heap`

use std::collections::BTreeSet;

use crate::checksums::Taken;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::{
    BODIES_BYTES, BODIES_OFFSET, BODIES_ZONES, DIRECTORY_SLABS, Entry, FEATURE_SPANS, Header, RUN_SLABS_MAX,
    SLAB_BYTES, SUPERBLOCK_SLAB, ZONE_BYTES, ZONE_SLABS,
};
use crate::lock::lock;
use crate::medium::Counters;
use crate::store::Store;
use crate::zones::{HEAD_SLAB, Zones, body_zones, zones};

/// Returns true if an entry can be that of an object of more than a zone, in a heap of so many slabs.
pub(crate) fn fits(slab: u64, entry: Entry, slabs: u64) -> bool {
    entry.state == Entry::SPAN
        && slab % ZONE_SLABS == HEAD_SLAB
        && slab != SUPERBLOCK_SLAB
        && u64::from(entry.run) > RUN_SLABS_MAX
        && slab + u64::from(entry.run) <= slabs
        && slab / ZONE_SLABS + body_zones(entry.run.into()) < BODIES_ZONES
}

/// Zones whose bit is set in the bitmap `word`; an error when there are no such zones.
pub(crate) fn marked(header: &Header, mut word: impl FnMut(u64) -> Result<u64>) -> Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    if !header.has_spans() {
        return Ok(found);
    }
    let zones = zones(header.heap_bytes / SLAB_BYTES);
    for at in 0..BODIES_BYTES / 8 {
        let mut bits = word(BODIES_OFFSET + at * 8)?;
        while bits != 0 {
            let zone = at * 64 + u64::from(bits.trailing_zeros());
            if zone == 0 || zone >= zones {
                return Err(Error::corrupt(format!("zone {zone} cannot be without a directory")));
            }
            found.insert(zone);
            bits &= bits - 1;
        }
    }
    Ok(found)
}

/// The objects of more than a zone, as far as the directory was read in order; each zone that one covers belongs to it alone.
#[derive(Debug)]
pub(crate) struct Covered {
    spans: bool,
    slabs: u64,
    /// Slabs up to this one lie in the first zone of the last one.
    head_end: u64,
    /// Zones without a directory that none covers so far.
    pub idle: BTreeSet<u64>,
}

impl Covered {
    /// Reads the bits, and tells the image of them.
    pub fn read(image: &Image, header: &Header) -> Result<Covered> {
        let idle = marked(header, |at| Ok(image.word(at)))?;
        idle.first().into_iter().for_each(|zone| image.bodies_from(*zone));
        Ok(Covered { spans: header.has_spans(), slabs: header.heap_bytes / SLAB_BYTES, head_end: 0, idle })
    }

    /// Returns true if a slab lies in the first zone of an object of more than a zone, behind its start.
    pub fn within(&self, slab: u64) -> bool {
        slab < self.head_end
    }

    /// Returns true if an object can be there.
    pub fn admit(&mut self, slab: u64, entry: Entry) -> bool {
        let zone = slab / ZONE_SLABS;
        self.head_end = (zone + 1) * ZONE_SLABS;
        self.spans
            && fits(slab, entry, self.slabs)
            && (1..=body_zones(entry.run.into())).all(|behind| self.idle.remove(&(zone + behind)))
    }
}

/// The first slab of the object that covers `slab`, if one of more than a zone does. `entry` reads a slab's entry.
pub(crate) fn start_of(
    slab: u64,
    is_body: impl Fn(u64) -> bool,
    entry: impl Fn(u64) -> Entry,
) -> Option<(u64, Entry)> {
    let zone = (0..=slab / ZONE_SLABS).rev().find(|zone| !is_body(*zone))?;
    let first = zone * ZONE_SLABS + HEAD_SLAB;
    let found = entry(first);
    let covers = first <= slab && slab - first < u64::from(found.run);
    (found.state == Entry::SPAN && covers).then_some((first, found))
}

impl Store {
    /// Slabs for an object of more than a zone.
    pub fn take_span(&self, slabs: u64) -> Result<u64> {
        if self.by_pages() {
            let what = format!(
                "an object of {} bytes is larger than a {} pool takes ({}): redo and undo pools take it (`memlift pool convert`)",
                slabs * SLAB_BYTES,
                self.mechanism.name(),
                RUN_SLABS_MAX * SLAB_BYTES
            );
            return Err(Error::Argument { what });
        }
        if u32::try_from(slabs).is_err() || body_zones(slabs) + 2 > BODIES_ZONES {
            let what = format!("an object of {slabs} slabs is larger than any pool");
            return Err(Error::Argument { what });
        }
        let zones = loop {
            let (found, end) = {
                let mut free = lock(&self.free_slabs);
                (free.take_span(slabs), free.span_end(slabs))
            };
            match found {
                Some(zones) => break zones,
                None if end > BODIES_ZONES * ZONE_SLABS => {
                    let heap_bytes = self.image.len();
                    return Err(Error::Full { bytes: slabs * SLAB_BYTES, heap_bytes });
                }
                None => self.grow_to(end * SLAB_BYTES, slabs * SLAB_BYTES)?,
            }
        };
        // After a failure in the middle, what the file has is not known until the next open.
        self.prepare(&zones).map_err(|error| self.stop(error))?;
        Ok(zones.first)
    }

    /// An idle zone gets its directory back, and its slabs are free. False: there is none.
    pub fn restore_zone(&self) -> Result<bool> {
        let Some((zone, slabs)) = lock(&self.free_slabs).take_idle() else { return Ok(false) };
        let restore = Zones { restore: Some(zone), ..Zones::default() };
        self.prepare(&restore).map_err(|error| self.stop(error))?;
        lock(&self.free_slabs).give(zone * ZONE_SLABS + DIRECTORY_SLABS, slabs - DIRECTORY_SLABS);
        Ok(true)
    }

    fn prepare(&self, zones: &Zones) -> Result<()> {
        let enabled = lock(&self.header).has_spans();
        if enabled && zones.restore.is_none() && zones.lose.is_empty() {
            return Ok(());
        }
        self.apply_all()?;
        let guard = lock(&self.bodies);
        let mut counters = Counters::default();
        if !enabled {
            self.enable_spans(&mut counters)?;
        }
        if let Some(zone) = zones.restore {
            let (at, bytes) = (zone * ZONE_BYTES, DIRECTORY_SLABS * SLAB_BYTES);
            let bytes = bytes.min(self.image.len() - at);
            self.image.write_words(at, &vec![0; bytes as usize / 8]);
            self.medium.store(self.heap_start + at, &vec![0; bytes as usize], &mut counters)?;
            self.medium.write_back(self.heap_start + at, bytes, &mut counters);
            if let Some(checksums) = &self.checksums {
                checksums.renew_slabs(&self.medium, at / SLAB_BYTES, bytes / SLAB_BYTES, &mut counters)?;
            }
            self.medium.harden(&mut counters)?;
            self.set_body(zone, false, &mut counters)?;
        }
        for zone in &zones.lose {
            self.image.body_changes();
            self.set_body(*zone, true, &mut counters)?;
            self.image.bodies_from(*zone);
        }
        self.medium.harden(&mut counters)?;
        drop(guard);
        Ok(())
    }

    /// Stores a zone's bit: durable after the next harden.
    fn set_body(&self, zone: u64, body: bool, counters: &mut Counters) -> Result<()> {
        let at = BODIES_OFFSET + zone / 64 * 8;
        let (word, bit) = (self.image.word(at), 1 << (zone % 64));
        let word = if body { word | bit } else { word & !bit };
        let bytes = word.to_le_bytes();
        if let Some(checksums) = &self.checksums {
            checksums.change(&self.medium, at, &bytes, |_| false, &mut Taken::default(), counters)?;
        }
        self.medium.store(self.heap_start + at, &bytes, counters)?;
        self.medium.write_back(self.heap_start + at, 8, counters);
        self.image.set_word(at, word);
        Ok(())
    }

    /// From now on older programs must not open the pool: both headers say so before the first bit is set.
    fn enable_spans(&self, counters: &mut Counters) -> Result<()> {
        let zeros = vec![0; BODIES_BYTES as usize];
        if self.image.bytes(BODIES_OFFSET, BODIES_BYTES) != zeros {
            self.image.write_words(BODIES_OFFSET, &vec![0; zeros.len() / 8]);
            self.medium.store(self.heap_start + BODIES_OFFSET, &zeros, counters)?;
            self.medium.write_back(self.heap_start + BODIES_OFFSET, BODIES_BYTES, counters);
            if let Some(checksums) = &self.checksums {
                checksums.renew_bodies(&self.medium, counters)?;
            }
            self.medium.harden(counters)?;
        }
        let mut header = lock(&self.header);
        let mut next = *header;
        next.incompat |= FEATURE_SPANS;
        next.generation += 1;
        self.medium.write_header(&next, counters)?;
        self.medium.harden(counters)?;
        *header = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::FreeSlabs;
    use crate::layout::HEAD_SLABS;

    /// Three zones and a half, of which all but the first slabs are free.
    fn free() -> FreeSlabs {
        let mut free = FreeSlabs::default();
        let slabs = 3 * ZONE_SLABS + ZONE_SLABS / 2;
        free.grow(slabs);
        free.give(5, ZONE_SLABS - 5);
        for zone in 1..4 {
            let first = zone * ZONE_SLABS + 4;
            free.give(first, ((zone + 1) * ZONE_SLABS).min(slabs) - first);
        }
        free
    }

    #[test]
    fn zones_are_taken_once_and_come_back_without_a_directory() {
        let mut free = free();
        let all = free.free();
        let one = free.take_span(HEAD_SLABS + 1).expect("zones 1 and 2");
        assert_eq!(one, Zones { first: ZONE_SLABS + 4, restore: None, lose: vec![2] });
        assert_eq!(free.take_span(HEAD_SLABS), None, "zone 3 is half a zone");
        assert_eq!(free.span_end(HEAD_SLABS), 4 * ZONE_SLABS);
        free.give_span(one.first, HEAD_SLABS + 1);
        assert_eq!(free.free(), all);
        // The idle zone is used as it is, as a body; as a first zone it needs its directory.
        let again = free.take_span(HEAD_SLABS + 1).expect("the same");
        assert_eq!(again, Zones { lose: Vec::new(), ..one.clone() });
        free.give_span(again.first, HEAD_SLABS + 1);
        let taken = free.take(1).expect("of zone 0");
        assert!(taken < ZONE_SLABS);
        while let Some(slab) = free.take(1) {
            assert!(slab / ZONE_SLABS != 2, "an idle zone has no slabs");
        }
        assert_eq!(
            free.take_span(HEAD_SLABS),
            Some(Zones { first: 2 * ZONE_SLABS + 4, restore: Some(2), lose: Vec::new() })
        );
        assert_eq!((free.free(), free.take_idle()), (0, None));
    }

    #[test]
    fn the_object_that_covers_a_slab_is_found() {
        let head = Entry { tag: 99, state: Entry::SPAN, run: (HEAD_SLABS + 10) as u32, ..Entry::default() };
        let first = ZONE_SLABS + HEAD_SLAB;
        let entry = |slab| if slab == first { head } else { Entry::default() };
        let find = |slab| start_of(slab, |zone| zone == 2, entry).map(|(first, _)| first);
        assert_eq!(find(first - 1), None);
        assert_eq!([first, first + 9, 2 * ZONE_SLABS, 2 * ZONE_SLABS + 9].map(find), [Some(first); 4]);
        assert_eq!([2 * ZONE_SLABS + 10, 3 * ZONE_SLABS + 5].map(find), [None; 2]);
        assert!(fits(first, head, 3 * ZONE_SLABS) && !fits(first, head, 2 * ZONE_SLABS + 9));
        assert!(!fits(first + 1, head, 3 * ZONE_SLABS) && !fits(4, head, 3 * ZONE_SLABS));
    }
}
