// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that the objects of more than a zone and the zones without a directory agree.
//!
//! - **Flow** objects all of whose zones are marked ─▶ an object that lacks one mark, or whose size is a bit too large ─▶ marked
//!   zones that nobody covers: idle, or a directory whose mark is a flipped bit ─▶ marks of zones that are not there
//! - **Rule** an idle zone may hold anything, so it is taken as a directory only if every entry in it makes sense and there is
//!   one. What lies in a zone without a directory is claimed: nothing else is looked for there
//! - **Not here** zones with a directory: the parent

use std::collections::{BTreeMap, BTreeSet};

use super::{Judge, Odd, Words};
use crate::check::snapshot::Snapshot;
use crate::error::Result;
use crate::layout::{BODIES_BYTES, BODIES_OFFSET, Entry, Header, SUPERBLOCK_SLAB, ZONE_SLABS};
use crate::span::fits;
use crate::zones::{HEAD_SLAB, body_zones, zones};

/// State of a slab in an object of more than a zone, but for its first: in memory only.
pub(crate) const SPAN_REST: u8 = 6;

/// Zones that are marked as without a directory, also such as are not there.
pub(crate) fn marked(snapshot: &Snapshot, header: &Header) -> Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    if header.has_spans() {
        let mut bytes = vec![0; BODIES_BYTES as usize];
        snapshot.heap(BODIES_OFFSET, &mut bytes)?;
        let set = |zone: &u64| bytes[*zone as usize / 8] >> (zone % 8) & 1 == 1;
        found.extend((0..BODIES_BYTES * 8).filter(set));
    }
    Ok(found)
}

impl Judge<'_> {
    /// An entry as that of an object of more than a zone, whatever the marks say.
    pub(super) fn span_form(&self, slab: usize, words: Words) -> Option<Entry> {
        let entry = Entry::from_words(words);
        let possible = self.spans
            && Self::reserved_clear(words)
            && fits(slab as u64, entry, self.words.len() as u64)
            && entry.tag >= 16
            && u32::from(entry.section) < self.sections
            && self.types.run_fits(entry.tag, entry.stride, entry.run) != Some(false);
        possible.then_some(entry)
    }

    /// Zones behind the first of such an object that are not marked, or belong to another one.
    pub(super) fn unmarked(&self, slab: usize, entry: Entry) -> Vec<u64> {
        let zone = slab as u64 / ZONE_SLABS;
        let behind = (zone + 1)..=zone + body_zones(entry.run.into());
        behind.filter(|one| !self.idle.contains(one)).collect()
    }

    /// Gives an object its slabs, so that nothing else is looked for there.
    pub(super) fn cover(&mut self, slab: usize, entry: Entry) {
        let zone = slab as u64 / ZONE_SLABS;
        let last = zone + body_zones(entry.run.into());
        let end = (((last + 1) * ZONE_SLABS) as usize).min(self.words.len());
        let head_end = (((zone + 1) * ZONE_SLABS) as usize).min(end);
        for one in slab + 1..head_end {
            if self.words[one] != [0; 2] {
                self.propose(one, Entry::default(), &format!("it lies within the object of slab {slab}"));
            }
        }
        self.idle = self.idle.difference(&(zone + 1..=last).collect()).copied().collect();
        self.bodies.extend(zone + 1..=last);
        self.sane[slab] = entry;
        self.sane[slab + 1..end].fill(Entry { state: SPAN_REST, ..entry });
        self.claimed[slab..end].fill(true);
    }

    /// Returns true if all of a zone is what a directory has, and not nothing.
    fn is_directory(&self, zone: u64) -> bool {
        let first = (zone * ZONE_SLABS + HEAD_SLAB) as usize;
        let end = (((zone + 1) * ZONE_SLABS) as usize).min(self.words.len());
        let (mut slab, mut any) = (first, false);
        while slab < end {
            let words = self.words[slab];
            let run =
                self.run_form(slab, words).filter(|run| self.followers(slab, *run) + 1 == run.run as usize);
            let span = self.span_form(slab, words).filter(|span| self.unmarked(slab, *span).is_empty());
            slab += match run.or(span) {
                Some(entry) if self.types.get(entry.tag).is_some() => entry.copies() as usize,
                _ if words == [0; 2] => {
                    slab += 1;
                    continue;
                }
                _ if self.slots_form(words) == Some(true) => 1,
                _ => return false,
            };
            any = true;
        }
        any
    }

    /// The object that may start in a zone.
    fn zone(&mut self, zone: u64, wrong: &mut BTreeMap<u64, (bool, String)>) {
        let slab = (zone * ZONE_SLABS + HEAD_SLAB) as usize;
        let Some(entry) = self.words.get(slab).and_then(|words| self.span_form(slab, *words)) else { return };
        let missing = self.unmarked(slab, entry);
        if missing.is_empty() {
            let known = |entry: &Entry| self.types.get(entry.tag).is_some();
            let mut others = (0..32).map(|bit| Entry { tag: entry.tag ^ 1 << bit, ..entry }).filter(known);
            // A type that the catalog lost is as good as one that it has.
            if !known(&entry)
                && let (Some(other), None) = (others.next(), others.next())
                && self.span_form(slab, other.words()).is_some()
            {
                self.propose(slab, other, "no such type is known, and one bit makes it one");
                return self.cover(slab, other);
            }
            return self.cover(slab, entry);
        }
        // Its size, or a mark.
        let marks = (zone + 1..).take_while(|one| self.idle.contains(one)).count() as u64;
        let smaller = (0..32).map(|bit| Entry { run: entry.run ^ 1 << bit, ..entry });
        let mut smaller = smaller.filter(|one| body_zones(one.run.into()) == marks && one.run < entry.run);
        let smaller = smaller.find_map(|one| self.span_form(slab, one.words()));
        if let Some(other) = smaller.filter(|_| missing.len() > 1) {
            self.propose(slab, other, "behind it there are as many zones without a directory");
            self.cover(slab, other);
        } else if let [one] = missing[..]
            && !self.bodies.contains(&one)
        {
            let what = format!(
                "zone {one} is marked to have a directory, and lies within the object of slab {slab}"
            );
            wrong.insert(one, (true, what));
            self.cover(slab, entry);
        }
    }

    /// Zones without a directory.
    pub(super) fn zones(&mut self, marked: &BTreeSet<u64>) {
        let count = zones(self.words.len() as u64);
        let mut wrong = BTreeMap::new();
        for zone in marked.iter().filter(|zone| **zone == 0 || **zone >= count) {
            let what = format!(
                "zone {zone} is marked to have no directory, and that cannot be: marked that it has one"
            );
            wrong.insert(*zone, (false, what));
        }
        self.idle = marked.iter().copied().filter(|zone| (1..count).contains(zone)).collect();
        for zone in 1..count {
            if !self.idle.contains(&zone) && !self.bodies.contains(&zone) {
                self.zone(zone, &mut wrong);
            }
        }
        for zone in self.idle.clone() {
            if self.idle.contains(&zone) && self.is_directory(zone) {
                let what =
                    format!("zone {zone} is marked to have no directory, and has one: marked that it has");
                wrong.insert(zone, (false, what));
                self.idle.remove(&zone);
                self.zone(zone, &mut wrong);
            }
        }
        for zone in self.idle.clone() {
            let end = (((zone + 1) * ZONE_SLABS) as usize).min(self.words.len());
            self.sane[(zone * ZONE_SLABS) as usize..end].fill(Entry::default());
            self.claimed[(zone * ZONE_SLABS) as usize..end].fill(true);
            self.bodies.insert(zone);
        }
        let is = |zone: u64| wrong.get(&zone).map_or(marked.contains(&zone), |(mark, _)| *mark);
        for (zone, (_, what)) in &wrong {
            let first = zone / 64 * 64;
            let word = (0..64).filter(|bit| is(first + bit)).fold(0, |word, bit| word | 1 << bit);
            let proposed = vec![(BODIES_OFFSET + zone / 64 * 8, word)];
            self.odd.push(Odd {
                slab: SUPERBLOCK_SLAB,
                proposed,
                candidates: Vec::new(),
                what: what.clone(),
            });
        }
    }
}
