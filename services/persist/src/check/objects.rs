// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of a heap: which are in use, what they point to, and which nothing points to.
//!
//! - **Flow** bitmaps of all slabs ─▶ from the root along every pointer that the catalog names ─▶ what was not met
//! - **Rule** an object is walked once, so circles end. A pointer that the catalog does not name is not seen, so an object
//!   without pointers to it may still be in use
//! - **Owner** a bit per slot is kept in memory, and another for those that were met
//! - **Not here** what it means: `check` reports, `repair` repairs

use super::directory::{Odd, SPAN_REST, describe};
use super::snapshot::Snapshot;
use super::types::{Kind, Types};
use crate::error::Result;
use crate::layout::{Entry, SLAB_BYTES, SUPERBLOCK_OFFSET, ZONE_SLABS, slots};
use crate::zones::HEAD_SLAB;

/// A heap whose directory was judged.
pub(crate) struct Heap<'a> {
    pub snapshot: &'a Snapshot,
    pub directory: Vec<Entry>,
    pub types: &'a Types,
    /// By slab; slots only.
    used: Vec<Option<Box<[u64]>>>,
}

/// A place where an object is or may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub slab: u64,
    pub slot: u64,
    pub start: u64,
    /// Bytes that an object has there.
    pub room: u64,
    pub tag: u32,
    pub section: u16,
    pub used: bool,
}

/// Bits behind a slab's last slot.
#[derive(Clone, Debug)]
pub(crate) struct Beyond {
    pub slab: u64,
    /// Offset of the word in the heap, the word, and what it should be.
    pub words: Vec<(u64, u64, u64)>,
}

/// A pointer that leads nowhere.
#[derive(Clone, Debug)]
pub(crate) struct Dangling {
    /// The object that holds it; 0: the heap's root.
    pub holder: u64,
    pub field: String,
    pub target: u64,
    pub wanted: String,
    /// Where it leads, if an object of its type could be there.
    pub free: Option<Place>,
}

/// Result of the walk: the objects that it met, and the pointers that lead nowhere.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    pub met: u64,
    pub dangling: Vec<Dangling>,
    pub dangling_count: u64,
    marks: Vec<Option<Box<[u64]>>>,
}

/// Most dangling pointers that are listed one by one.
const TOLD: usize = 1000;

impl<'a> Heap<'a> {
    /// Reads the bitmaps.
    pub fn new(
        snapshot: &'a Snapshot,
        directory: Vec<Entry>,
        types: &'a Types,
    ) -> Result<(Heap<'a>, Vec<Beyond>)> {
        let (mut used, mut beyond) = (Vec::with_capacity(directory.len()), Vec::new());
        for (slab, entry) in directory.iter().enumerate() {
            if entry.state != Entry::SLOTS {
                used.push(None);
                continue;
            }
            let (count, first) = slots(entry.stride.into());
            let start = slab as u64 * SLAB_BYTES;
            let mut bytes = vec![0; first as usize];
            snapshot.heap(start, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            let mut words: Box<[u64]> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let mut wrong = Vec::new();
            for (at, word) in words.iter_mut().enumerate() {
                let valid = count.saturating_sub(at as u64 * 64).min(64);
                let mask = if valid == 64 { u64::MAX } else { (1 << valid) - 1 };
                if *word & !mask != 0 {
                    wrong.push((start + at as u64 * 8, *word, *word & mask));
                    *word &= mask;
                }
            }
            if !wrong.is_empty() {
                beyond.push(Beyond { slab: slab as u64, words: wrong });
            }
            used.push(Some(words));
        }
        Ok((Heap { snapshot, directory, types, used }, beyond))
    }

    /// The slot or run that holds the byte at `offset`.
    pub fn place(&self, offset: u64) -> Option<Place> {
        let slab = offset / SLAB_BYTES;
        let entry = *self.directory.get(usize::try_from(slab).ok()?)?;
        match entry.state {
            Entry::SLOTS => {
                let (stride, inside) = (u64::from(entry.stride), offset % SLAB_BYTES);
                let (count, first) = slots(stride);
                let slot = inside.checked_sub(first)? / stride;
                (slot < count).then(|| self.slot(slab, entry, slot))
            }
            Entry::RUN | Entry::SPAN => Some(self.run(slab, entry)),
            SPAN_REST => {
                let starts = (0..=slab / ZONE_SLABS).rev().map(|zone| zone * ZONE_SLABS + HEAD_SLAB);
                let first = starts
                    .filter(|first| *first < slab)
                    .find(|first| self.directory[*first as usize].state == Entry::SPAN)?;
                Some(self.run(first, self.directory[first as usize]))
            }
            Entry::RUN_REST => {
                let run = u64::from(entry.run);
                let first = (slab.saturating_sub(run)..slab)
                    .rev()
                    .find(|one| self.directory[*one as usize].state == Entry::RUN)?;
                Some(self.run(first, self.directory[first as usize]))
            }
            _ => None,
        }
    }

    fn slot(&self, slab: u64, entry: Entry, slot: u64) -> Place {
        let (_, first) = slots(entry.stride.into());
        let bits = self.used[slab as usize].as_deref().unwrap_or(&[]);
        Place {
            slab,
            slot,
            start: slab * SLAB_BYTES + first + slot * u64::from(entry.stride),
            room: entry.stride.into(),
            tag: entry.tag,
            section: entry.section,
            used: bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1),
        }
    }

    fn run(&self, slab: u64, entry: Entry) -> Place {
        Place {
            slab,
            slot: 0,
            start: slab * SLAB_BYTES,
            room: u64::from(entry.run) * SLAB_BYTES,
            tag: entry.tag,
            section: entry.section,
            used: true,
        }
    }

    /// The places of one slab, in use or not, in order.
    pub fn slots_of(&self, slab: u64) -> impl Iterator<Item = Place> + '_ {
        let entry = self.directory[slab as usize];
        let count = match entry.state {
            Entry::SLOTS => slots(entry.stride.into()).0,
            Entry::RUN | Entry::SPAN => 1,
            _ => 0,
        };
        (0..count).map(move |slot| {
            if entry.state != Entry::SLOTS { self.run(slab, entry) } else { self.slot(slab, entry, slot) }
        })
    }

    /// The places in use of one slab, in order.
    pub fn in_slab(&self, slab: u64) -> impl Iterator<Item = Place> + '_ {
        self.slots_of(slab).filter(|place| place.used)
    }

    /// Everything in use.
    pub fn in_use(&self) -> impl Iterator<Item = Place> + '_ {
        (0..self.directory.len() as u64).flat_map(|slab| self.in_slab(slab))
    }

    /// The root: place and layout hash.
    pub fn root(&self) -> Result<(u64, u64)> {
        let word = |at| self.snapshot.word(SUPERBLOCK_OFFSET + at);
        Ok((word(0)?, word(8)?))
    }

    /// Walks from the root. With `revive`, an object that is pointed to and not in use is walked like any other.
    pub fn reach(&self, revive: bool) -> Result<Reach> {
        let mut walk = Walk { heap: self, reach: Reach::default(), stack: Vec::new(), revive };
        walk.reach.marks = self.used.iter().map(|_| None).collect();
        let (root, layout) = self.root()?;
        if root != 0 {
            walk.root(root, layout);
        }
        let mut bytes = Vec::new();
        while let Some((place, elements)) = walk.stack.pop() {
            let Some(known) = self.types.get(place.tag).filter(|known| known.kind.points()) else { continue };
            let wanted = known.bytes.saturating_mul(elements).min(place.room);
            // In pieces of whole elements: an array may be as large as a zone.
            let each = known.bytes.max(1);
            let piece = (1 << 20) / each.min(1 << 20) * each;
            let mut at = 0;
            while at < wanted {
                let now = piece.min(wanted - at);
                bytes.resize(now as usize, 0);
                self.snapshot.heap(place.start + at, &mut bytes)?;
                for one in bytes.chunks(each as usize) {
                    walk.follow(&known.kind, one, place.start, &known.name);
                }
                at += now;
            }
        }
        Ok(walk.reach)
    }
}

/// Where several entries are possible, takes the one with the fewest pointers that lead nowhere and unreachable objects.
pub(crate) fn resolve(
    snapshot: &Snapshot,
    directory: &mut [Entry],
    odd: &mut [Odd],
    types: &Types,
) -> Result<()> {
    for one in odd.iter_mut().filter(|one| one.candidates.len() > 1).take(RESOLVED) {
        let mut scores = Vec::new();
        for candidate in &one.candidates {
            let mut tried = directory.to_vec();
            tried[one.slab as usize] = *candidate;
            let (heap, beyond) = Heap::new(snapshot, tried, types)?;
            let reach = heap.reach(false)?;
            let lost = heap.in_use().filter(|place| !reach.met(place)).count() as u64;
            let bits = beyond.iter().map(|one| one.words.len() as u64).sum::<u64>();
            scores.push((reach.dangling_count + lost + bits, *candidate));
        }
        scores.sort_by_key(|(score, _)| *score);
        if let [(best, entry), (next, _), ..] = scores[..]
            && best < next
        {
            directory[one.slab as usize] = entry;
            one.proposed = Odd::words(one.slab, entry);
            one.what = format!(
                "slab {} is impossible in the directory; with \"{}\" the pointers fit best: taken as that",
                one.slab,
                describe(entry, types)
            );
        }
    }
    Ok(())
}

/// Most entries that are tried out: each costs a few walks.
const RESOLVED: usize = 8;

struct Walk<'h> {
    heap: &'h Heap<'h>,
    reach: Reach,
    stack: Vec<(Place, u64)>,
    revive: bool,
}

impl Walk<'_> {
    fn root(&mut self, root: u64, layout: u64) {
        let place = self.heap.place(root);
        if self.heap.types.migrating(layout) {
            // Its slot may have been given up already; only the migration knows what comes next.
            if let Some(place) = place.filter(|place| place.start == root && place.used) {
                self.meet(place, u64::MAX);
            }
            return;
        }
        let fits = place.is_some_and(|place| {
            let known = self.heap.types.get(place.tag);
            place.start == root
                && (place.used || self.revive)
                && known.is_none_or(|known| known.layout == layout || known.slice)
        });
        match place.filter(|_| fits) {
            Some(place) => self.meet(place, u64::MAX),
            None => {
                let free = place.filter(|place| place.start == root && !place.used);
                self.dangle(0, "the root", root, "the root's type", free);
            }
        }
        if let Some(place) = place.filter(|place| fits && !place.used) {
            self.dangle(0, "the root", root, "the root's type", Some(place));
        }
    }

    fn dangle(&mut self, holder: u64, field: &str, target: u64, wanted: &str, free: Option<Place>) {
        // A free slot in a slab that a migration moves holds the new place of its object, so it must not become an object again.
        let free = free.filter(|place| !self.heap.types.moving(place.tag));
        self.reach.dangling_count += 1;
        if self.reach.dangling.len() < TOLD || (self.revive && free.is_some()) {
            let (field, wanted) = (field.to_owned(), wanted.to_owned());
            self.reach.dangling.push(Dangling { holder, field, target, wanted, free });
        }
    }

    fn meet(&mut self, place: Place, elements: u64) {
        let words = self.heap.used[place.slab as usize].as_ref().map_or(1, |bits| bits.len());
        let marks = self.reach.marks[place.slab as usize].get_or_insert_with(|| vec![0; words].into());
        let (word, bit) = (place.slot as usize / 64, 1 << (place.slot % 64));
        if marks[word] & bit == 0 {
            marks[word] |= bit;
            self.reach.met += 1;
            self.stack.push((place, elements));
        }
    }

    fn follow(&mut self, kind: &Kind, bytes: &[u8], holder: u64, field: &str) {
        match kind {
            Kind::Pointer { name, tags } => {
                if let Some(offset) = word(bytes, 0).filter(|offset| *offset != 0) {
                    self.pointer(holder, field, offset, None, name, tags);
                }
            }
            Kind::Slice { name, tags } => {
                if let (Some(offset), Some(elements @ 1..)) = (word(bytes, 0), word(bytes, 8)) {
                    self.pointer(holder, field, offset, Some(elements), name, tags);
                }
            }
            Kind::Array { element, bytes: each, count } if element.points() => {
                for (at, one) in bytes.chunks_exact(*each as usize).take(*count as usize).enumerate() {
                    self.follow(element, one, holder, &format!("{field}[{at}]"));
                }
            }
            Kind::Struct { fields, .. } => {
                for (at, size, name, kind) in fields.iter().filter(|(.., kind)| kind.points()) {
                    if let Some(one) = bytes.get(*at as usize..*at as usize + *size as usize) {
                        self.follow(kind, one, holder, &format!("{field}.{name}"));
                    }
                }
            }
            Kind::Array { .. } | Kind::Number(_) | Kind::Bytes => {}
        }
    }

    fn pointer(
        &mut self,
        holder: u64,
        field: &str,
        target: u64,
        elements: Option<u64>,
        name: &str,
        tags: &[u32],
    ) {
        let place = self.heap.place(target);
        let typed = place.filter(|place| {
            let known = self.heap.types.get(place.tag);
            let kind_fits = known.is_none_or(|known| known.slice == elements.is_some());
            let starts = match (elements, known) {
                // Part of an array is as good as the whole.
                (Some(elements), Some(known)) => {
                    let inside = target - place.start;
                    let end = elements.checked_mul(known.bytes).and_then(|bytes| bytes.checked_add(inside));
                    inside.is_multiple_of(known.bytes.max(1)) && end.is_some_and(|end| end <= place.room)
                }
                _ => target == place.start,
            };
            kind_fits && starts && (tags.is_empty() || tags.contains(&place.tag))
        });
        match typed {
            Some(place) if place.used => self.meet(place, elements.unwrap_or(1)),
            Some(place) => {
                self.dangle(holder, field, target, name, Some(place));
                if self.revive {
                    self.meet(place, elements.unwrap_or(1));
                }
            }
            None => self.dangle(holder, field, target, name, None),
        }
    }
}

impl Reach {
    /// Returns true if the walk met it.
    pub fn met(&self, place: &Place) -> bool {
        let marks = self.marks.get(place.slab as usize).and_then(Option::as_deref);
        marks.is_some_and(|marks| marks[place.slot as usize / 64] >> (place.slot % 64) & 1 == 1)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
