// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that each slab's directory entry makes sense, and finds what a damaged one was.
//!
//! - **Flow** objects of more than a zone, and zones without a directory ─▶ runs whose slabs agree ─▶ runs where most agree ─▶
//!   slabs that name their run, but whose run lacks its first slab ─▶ everything else on its own
//! - **Rule** entries have no checksum. Instead: free is all zeros, the catalog knows each type's size, and a run says the same
//!   in each of its slabs. A senseless entry is restored if exactly one entry that differs by one bit makes sense; else it
//!   is free, and what was there is lost
//! - **Not here** what is in the slabs: `objects`

mod zones;

use std::collections::BTreeSet;

use super::types::Types;
use crate::layout::{Entry, Header, SLAB_BYTES, STRIDE_MAX, ZONE_SLABS, is_system};

pub(crate) use zones::{SPAN_REST, marked};

/// An entry's two words as they lie in the file.
pub(crate) type Words = [u64; 2];

/// An entry that makes no sense.
#[derive(Clone, Debug)]
pub(crate) struct Odd {
    pub slab: u64,
    /// The words to write instead, by their offset in the heap.
    pub proposed: Vec<(u64, u64)>,
    /// Other things that one flipped bit makes of it: `objects::resolve` chooses.
    pub candidates: Vec<Entry>,
    pub what: String,
}

impl Odd {
    /// The two words of an entry, by their offset in the heap.
    pub fn words(slab: u64, entry: Entry) -> Vec<(u64, u64)> {
        let offset = Entry::offset(slab);
        entry.words().into_iter().zip([offset, offset + 8]).map(|(word, at)| (at, word)).collect()
    }
}

struct Judge<'a> {
    words: &'a [Words],
    spans: bool,
    /// Zones that are marked as without a directory, and that nobody covers so far.
    idle: BTreeSet<u64>,
    /// Zones without a directory.
    bodies: BTreeSet<u64>,
    sane: Vec<Entry>,
    claimed: Vec<bool>,
    sections: u32,
    types: &'a Types,
    odd: Vec<Odd>,
}

/// The directory with every odd entry replaced by its proposal, and the odd ones. `marked` are the zones that have none. A slab
/// in an object of more than a zone has [`SPAN_REST`].
pub(crate) fn judge(
    words: &[Words],
    marked: &BTreeSet<u64>,
    header: &Header,
    types: &Types,
) -> (Vec<Entry>, Vec<Odd>) {
    let sane = words.iter().map(|words| Entry::from_words(*words)).collect();
    let claimed = (0..words.len() as u64).map(is_system).collect();
    let (sections, spans) = (header.sections, header.has_spans());
    let (idle, bodies) = (BTreeSet::new(), BTreeSet::new());
    let mut judge = Judge { words, spans, idle, bodies, sane, claimed, sections, types, odd: Vec::new() };
    judge.zones(marked);
    judge.system();
    judge.whole_runs();
    judge.runs_by_majority();
    judge.runs_without_first();
    judge.single();
    judge.odd.sort_by_key(|odd| odd.slab);
    (judge.sane, judge.odd)
}

/// An entry in words.
pub(crate) fn describe(entry: Entry, types: &Types) -> String {
    let name = types.name(entry.tag);
    match entry.state {
        Entry::FREE if entry == Entry::default() => "free".to_owned(),
        Entry::SLOTS => format!("slots of {} bytes for {name}, section {}", entry.stride, entry.section),
        Entry::RUN => format!("first of {} slabs of a {name}, section {}", entry.run, entry.section),
        Entry::RUN_REST => format!("later one of {} slabs of a {name}, section {}", entry.run, entry.section),
        Entry::SPAN => format!("start of {} slabs of a {name}, section {}", entry.run, entry.section),
        Entry::SYSTEM => "the heap's own".to_owned(),
        state => format!("state {state}, {name}"),
    }
}

impl Judge<'_> {
    fn propose(&mut self, slab: usize, proposed: Entry, why: &str) {
        let found = self.words[slab];
        let (was, is) = (describe(Entry::from_words(found), self.types), describe(proposed, self.types));
        let what = format!("slab {slab} is \"{was}\" in the directory: {why}; taken as \"{is}\"");
        let words = Odd::words(slab as u64, proposed);
        self.odd.push(Odd { slab: slab as u64, proposed: words, candidates: Vec::new(), what });
        self.sane[slab] = proposed;
        self.claimed[slab] = true;
    }

    /// Directory and superblock: what a new pool writes, or nothing in zones that came later.
    fn system(&mut self) {
        let system = Entry { tag: Entry::TAG_SYSTEM, state: Entry::SYSTEM, ..Entry::default() };
        for slab in (0..self.words.len()).filter(|slab| is_system(*slab as u64)) {
            if self.bodies.contains(&(slab as u64 / ZONE_SLABS)) {
                continue;
            }
            let later = slab as u64 >= ZONE_SLABS && self.words[slab] == [0; 2];
            if self.words[slab] != system.words() && !later {
                self.propose(slab, system, "it holds the directory or the superblock");
            }
        }
    }

    fn reserved_clear(words: Words) -> bool {
        words[0] >> 56 == 0
    }

    /// Returns true if the slabs [first, first + count) are there, in one zone, and nobody's own.
    fn room(&self, first: usize, count: u32) -> bool {
        let end = first.saturating_add(count as usize);
        count >= 1
            && end <= self.words.len()
            && first as u64 / ZONE_SLABS == (end as u64 - 1) / ZONE_SLABS
            && !(first..end).any(|slab| is_system(slab as u64))
    }

    fn run_form(&self, slab: usize, words: Words) -> Option<Entry> {
        let entry = Entry::from_words(words);
        let fits = entry.state == Entry::RUN
            && Self::reserved_clear(words)
            && entry.tag >= 16
            && u32::from(entry.section) < self.sections
            && self.room(slab, entry.run)
            && self.types.run_fits(entry.tag, entry.stride, entry.run) != Some(false);
        fits.then_some(entry)
    }

    /// How many of a run's later slabs say that they are its.
    fn followers(&self, slab: usize, entry: Entry) -> usize {
        let rest = Entry { state: Entry::RUN_REST, ..entry }.words();
        let end = slab + entry.run as usize;
        (slab + 1..end).filter(|one| !self.claimed[*one] && self.words[*one] == rest).count()
    }

    fn claim(&mut self, slab: usize, count: u32) {
        self.claimed[slab..slab + count as usize].fill(true);
    }

    fn whole_runs(&mut self) {
        for slab in 0..self.words.len() {
            if !self.claimed[slab]
                && let Some(entry) = self.run_form(slab, self.words[slab])
                && self.followers(slab, entry) + 1 == entry.run as usize
            {
                self.claim(slab, entry.run);
            }
        }
    }

    fn runs_by_majority(&mut self) {
        for slab in 0..self.words.len() {
            let Some(entry) = self.run_form(slab, self.words[slab]).filter(|_| !self.claimed[slab]) else {
                continue;
            };
            let (agree, of) = (self.followers(slab, entry), entry.run as usize - 1);
            let end = slab + entry.run as usize;
            if agree == 0 || agree * 2 < of || self.claimed[slab..end].contains(&true) {
                continue;
            }
            let rest = Entry { state: Entry::RUN_REST, ..entry };
            for one in (slab + 1..end).filter(|one| self.words[*one] != rest.words()).collect::<Vec<_>>() {
                self.propose(one, rest, &format!("it lies within the run of slab {slab}"));
            }
            self.claim(slab, entry.run);
        }
    }

    fn runs_without_first(&mut self) {
        let mut slab = 1;
        while slab < self.words.len() {
            let words = self.words[slab];
            let entry = Entry::from_words(words);
            if self.claimed[slab] || entry.state != Entry::RUN_REST || entry.run < 2 {
                slab += 1;
                continue;
            }
            let stretch = self.words[slab..]
                .iter()
                .zip(&self.claimed[slab..])
                .take_while(|(one, claimed)| **one == words && !**claimed)
                .count();
            let first = Entry { state: Entry::RUN, ..entry };
            let fits = stretch == entry.run as usize - 1
                && !self.claimed[slab - 1]
                && self.run_form(slab - 1, first.words()).is_some();
            if fits && (stretch > 1 || !self.slots_sane(self.words[slab - 1])) {
                self.propose(slab - 1, first, "the slabs behind it are the rest of a run");
                self.claim(slab - 1, entry.run);
            }
            slab += stretch.max(1);
        }
    }

    /// None if the entry cannot be a slab of slots; else true if the catalog knows its type.
    fn slots_form(&self, words: Words) -> Option<bool> {
        let entry = Entry::from_words(words);
        let fits = entry.state == Entry::SLOTS
            && Self::reserved_clear(words)
            && entry.tag >= 16
            && entry.run == 0
            && u32::from(entry.section) < self.sections
            && (16..=STRIDE_MAX).contains(&u64::from(entry.stride))
            && entry.stride.is_multiple_of(16);
        if !fits {
            return None;
        }
        match self.types.stride_fits(entry.tag, entry.stride.into()) {
            Some(false) => None,
            known => Some(known.is_some()),
        }
    }

    fn slots_sane(&self, words: Words) -> bool {
        self.slots_form(words).is_some()
    }

    /// The entries that make sense and differ from this one by one bit.
    fn nearest(&self, slab: usize) -> Vec<Entry> {
        let words = self.words[slab];
        let mut found = Vec::new();
        for bit in 0..128 {
            let mut other = words;
            other[bit / 64] ^= 1 << (bit % 64);
            let run = self.run_form(slab, other).filter(|entry| {
                self.types.get(entry.tag).is_some() && self.followers(slab, *entry) + 1 == entry.run as usize
            });
            let span = self.span_form(slab, other).filter(|entry| {
                self.types.get(entry.tag).is_some() && self.unmarked(slab, *entry).is_empty()
            });
            if other == [0; 2] || self.slots_form(other) == Some(true) || run.or(span).is_some() {
                let entry = Entry::from_words(other);
                if !found.contains(&entry) {
                    found.push(entry);
                }
            }
        }
        found
    }

    fn single(&mut self) {
        for slab in 0..self.words.len() {
            if self.claimed[slab] {
                continue;
            }
            let words = self.words[slab];
            let known = if words == [0; 2] { Some(true) } else { self.slots_form(words) };
            match known {
                Some(true) => continue,
                Some(false) if self.types.is_empty() => continue,
                _ => {}
            }
            let nearest = self.nearest(slab);
            match (nearest.as_slice(), known) {
                ([entry], _) => {
                    self.propose(slab, *entry, "that fits nothing, and one bit makes it fit");
                    match entry.state {
                        Entry::RUN => self.claim(slab, entry.run),
                        Entry::SPAN => self.cover(slab, *entry),
                        _ => {}
                    }
                }
                // A type that the catalog lost.
                (_, Some(_)) => {}
                (_, None) => {
                    let why =
                        format!("that is impossible, and what was in its {SLAB_BYTES} bytes cannot be told");
                    self.propose(slab, Entry::default(), &why);
                    if let Some(odd) = self.odd.last_mut() {
                        odd.candidates = nearest;
                        odd.candidates.retain(|one| one.state != Entry::SPAN);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::TypeRecord;

    fn judge(words: &[Words], header: &Header, types: &Types) -> (Vec<Entry>, Vec<Odd>) {
        super::judge(words, &BTreeSet::new(), header, types)
    }

    const NODE: u32 = 100;
    const BIG: u32 = 200;

    fn types() -> Types {
        let record = |tag, name: &str, bytes| TypeRecord {
            tag,
            layout: 1,
            bytes,
            name: name.to_owned(),
            fields: vec![(0, 8, "u64".to_owned(), "x".to_owned())],
        };
        Types::new(&[record(NODE, "Node", 48), record(BIG, "Big", 60_000)])
    }

    fn good() -> Vec<Words> {
        let system = Entry { tag: 1, state: Entry::SYSTEM, ..Entry::default() };
        let slots = Entry { tag: NODE, section: 1, state: Entry::SLOTS, stride: 48, ..Entry::default() };
        let run = Entry { tag: BIG, state: Entry::RUN, stride: 60_000, run: 4, ..Entry::default() };
        let rest = Entry { state: Entry::RUN_REST, ..run };
        let mut words = vec![system.words(); 5];
        words.extend(
            [slots, run, rest, rest, rest, Entry::default(), slots, Entry::default()].map(Entry::words),
        );
        words
    }

    fn header(slabs: usize) -> Header {
        Header {
            generation: 1,
            uuid: [0; 16],
            compat: 0,
            ro_compat: 0,
            incompat: 0,
            mechanism: 0,
            lanes: 2,
            lane_bytes: 4096,
            heap_start: 1 << 20,
            heap_bytes: slabs as u64 * SLAB_BYTES,
            sections: 2,
            epoch: 1,
            clean: true,
            device: 0,
            devices: 1,
            stripe_bytes: 0,
            checksum_index: 0,
            checksum_chunks: 0,
        }
    }

    #[test]
    fn a_good_directory_has_nothing_odd() {
        let words = good();
        let (sane, odd) = judge(&words, &header(words.len()), &types());
        assert!(odd.is_empty(), "{odd:?}");
        assert_eq!(sane.iter().map(|one| one.words()).collect::<Vec<_>>(), words);
    }

    #[test]
    fn each_flipped_bit_is_put_back_or_was_of_no_account() {
        let words = good();
        let mut unseen = Vec::new();
        for bit in 0..words.len() * 128 {
            let mut spoilt = words.clone();
            spoilt[bit / 128][bit / 64 % 2] ^= 1 << (bit % 64);
            let (sane, odd) = judge(&spoilt, &header(words.len()), &types());
            if odd.is_empty() {
                unseen.push(bit % 128);
                continue;
            }
            let sane: Vec<Words> = sane.iter().map(|one| one.words()).collect();
            assert_eq!(sane, words, "bit {bit}: {odd:?}");
        }
        // Another section of the two is as good as the first: two slabs of slots.
        assert_eq!(unseen, [32, 32]);
    }

    #[test]
    fn nonsense_is_free_again_and_said() {
        let mut words = good();
        words[11] = [0x0009_0000_dead_beef, 77];
        let (sane, odd) = judge(&words, &header(words.len()), &types());
        assert_eq!((odd.len(), odd[0].slab, sane[11]), (1, 11, Entry::default()));
        let lost = "cannot be told";
        assert!(odd[0].what.contains(lost), "{}", odd[0].what);
    }
}
