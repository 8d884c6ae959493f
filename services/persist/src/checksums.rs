// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checksums of the heap's pages, kept apart from the pages: damage and stale copies are seen before they are believed.
//!
//! - **Layout** an entry of 16 bytes per page of 4 KiB, in chunks: runs of slabs that the directory calls free. The header names
//!   the index, a slab with the chunks' places. Chunk 0 is for 4 MiB of heap, each later one for as much as all before it, up to
//!   8 GiB. A chunk never moves, and growth adds chunks
//! - **Sum** the page's 1,024 words of 32 bits, each times a number of its own, modulo 2^64. So a changed word changes the sum by
//!   its difference, and damage elsewhere in the page stays visible. The sum of a page of zeros is 0, and so is an entry of zeros
//! - **Order** whoever stores to a page stores its entry before the same harden. What a crash tears is named by a record that
//!   waits, and recovery sums these pages anew
//! - **Rule** pages of free slabs may hold anything. The record that takes a slab sums its pages
//! - **Source** multilinear hashing over 64-bit keys (D. Lemire and O. Kaser, Strongly universal string hashing is fast, 2014)
//! - **Not here** undo and shadow pools; which pages were compared since they were opened: `verify`

use std::collections::{BTreeSet, HashSet};
use std::sync::{PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::layout::{
    BODIES_BYTES, BODIES_OFFSET, DIRECTORY_SLABS, Entry, Header, SLAB_BYTES, ZONE_BYTES, ZONE_SLABS,
    is_system,
};
use crate::medium::{Counters, Medium};

/// Bytes that a sum is for.
pub(crate) const PAGE: u64 = 4096;
/// Pages of a slab.
pub(crate) const SLAB_PAGES: u64 = SLAB_BYTES / PAGE;
const ENTRY_BYTES: u64 = 16;
/// Pages that one slab of entries is for.
const SLAB_ENTRIES: u64 = SLAB_BYTES / ENTRY_BYTES;
/// Bytes that are compared at once: most ranges are short.
const PIECE: usize = 256;
/// Chunks double up to this one; from it on each has as many slabs.
const LARGE: u64 = 12;
/// Slabs of a large chunk.
const LARGE_SLABS: u64 = 1 << (LARGE - 1);

/// The next state of a splitmix64 generator, mixed.
const fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The number of each word.
const KEYS: [u64; (PAGE / 4) as usize] = {
    let mut keys = [0; (PAGE / 4) as usize];
    let mut at = 0;
    while at < keys.len() {
        keys[at] = mixed(at as u64 + 1) | 1;
        at += 1;
    }
    keys
};

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)))
}

/// The sum of part of a page; the part starts at `from`, a multiple of 4.
fn sum(from: u64, part: &[u8]) -> u64 {
    let keys = &KEYS[from as usize / 4..];
    words(part).zip(keys).fold(0, |sum, (word, key)| sum.wrapping_add(word.wrapping_mul(*key)))
}

/// The sum of a page.
pub(crate) fn page_sum(page: &[u8]) -> u64 {
    sum(0, page)
}

/// By how much the sum of a page changes with part of it.
fn difference(from: u64, old: &[u8], new: &[u8]) -> u64 {
    let keys = &KEYS[from as usize / 4..];
    words(old)
        .zip(words(new))
        .zip(keys)
        .fold(0, |sum, ((old, new), key)| sum.wrapping_add(new.wrapping_sub(old).wrapping_mul(*key)))
}

/// The content of a page's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    Sum(u64),
    /// The entry itself is damaged.
    Unknown,
}

/// Number of a chunk, and the entry in it, for a page.
fn find(page: u64) -> (usize, u64) {
    let large = SLAB_ENTRIES << (LARGE - 1);
    if page < SLAB_ENTRIES {
        (0, page)
    } else if page < large {
        let chunk = (page / SLAB_ENTRIES).ilog2() + 1;
        (chunk as usize, page - (SLAB_ENTRIES << (chunk - 1)))
    } else {
        ((LARGE + (page - large) / large) as usize, page % large)
    }
}

/// Slabs of a chunk.
const fn chunk_slabs(chunk: u64) -> u64 {
    match chunk {
        0 => 1,
        1..LARGE => 1 << (chunk - 1),
        _ => LARGE_SLABS,
    }
}

/// Chunks that a heap of so many slabs needs.
fn chunks_for(slabs: u64) -> u64 {
    find((slabs * SLAB_PAGES).saturating_sub(1)).0 as u64 + 1
}

/// Places for the index, if there is none yet, and for chunks, in a heap that has no object from a slab on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub index: u64,
    /// First slabs of new chunks.
    pub chunks: Vec<u64>,
    /// Slabs that the heap must have.
    pub slabs: u64,
    /// Slabs from here on are nobody's.
    pub end: u64,
}

impl Plan {
    /// For a heap that is to have `slabs` slabs, or more, and has nothing in those from `from` on. `index` and `have` are of the
    /// chunks that there are.
    pub fn new(slabs: u64, from: u64, index: Option<u64>, have: u64) -> Plan {
        let mut plan = Plan { index: 0, chunks: Vec::new(), slabs, end: from };
        plan.index = index.unwrap_or_else(|| plan.take(1));
        while have + (plan.chunks.len() as u64) < chunks_for(plan.slabs) {
            let chunk = have + plan.chunks.len() as u64;
            let first = plan.take(chunk_slabs(chunk));
            plan.chunks.push(first);
        }
        plan
    }

    /// Slabs side by side in one zone, behind its directory.
    fn take(&mut self, count: u64) -> u64 {
        let (zone, inside) = (self.end / ZONE_SLABS, self.end % ZONE_SLABS);
        let first = if inside < DIRECTORY_SLABS {
            zone * ZONE_SLABS + DIRECTORY_SLABS
        } else if inside + count > ZONE_SLABS {
            (zone + 1) * ZONE_SLABS + DIRECTORY_SLABS
        } else {
            self.end
        };
        self.end = first + count;
        self.slabs = self.slabs.max(self.end);
        first
    }
}

/// Pages of a directory's slabs in use, and of the directory itself. Zones in `bodies` have none.
pub(crate) fn used_pages(directory: &[Entry], bodies: &BTreeSet<u64>) -> impl Iterator<Item = u64> {
    let system = |slab: u64| is_system(slab) && !bodies.contains(&(slab / ZONE_SLABS));
    let used = move |(slab, entry): &(u64, &Entry)| entry.state != Entry::FREE || system(*slab);
    (0..).zip(directory).filter(used).flat_map(|(slab, _)| slab * SLAB_PAGES..(slab + 1) * SLAB_PAGES)
}

/// Slabs that records of a batch take: their pages are summed at its end.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    slabs: HashSet<u64>,
    /// Objects of more than a zone: first slab and count.
    spans: Vec<(u64, u64)>,
}

impl Taken {
    fn insert(&mut self, first: u64, count: u64) {
        if count == 1 {
            self.slabs.insert(first);
        } else {
            self.spans.push((first, count));
        }
    }

    fn contains(&self, slab: u64) -> bool {
        self.slabs.contains(&slab)
            || self.spans.iter().any(|(first, count)| slab.wrapping_sub(*first) < *count)
    }
}

/// Pages that a recovery stored to, and those ranges that may be parts of a directory.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pages: HashSet<u64>,
    directory: Vec<(u64, u64)>,
}

impl Replayed {
    pub fn note(&mut self, offset: u64, bytes: u64) {
        self.pages.extend(offset / PAGE..(offset + bytes).div_ceil(PAGE));
        if offset % ZONE_BYTES < DIRECTORY_SLABS * SLAB_BYTES {
            self.directory.push((offset, bytes));
        }
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Checksums {
    heap_start: u64,
    salt: u64,
    index: u64,
    /// First slab of each chunk.
    chunks: RwLock<Vec<u64>>,
}

impl Checksums {
    /// Those of a pool; None: it has none.
    pub fn read(medium: &Medium, header: &Header) -> Result<Option<Checksums>> {
        if !header.has_checksums() {
            return Ok(None);
        }
        let found = Checksums::of(header);
        let slabs = header.heap_bytes / SLAB_BYTES;
        let mut bytes = vec![0; header.checksum_chunks as usize * 8];
        medium.read(header.heap_start + found.index * SLAB_BYTES, &mut bytes)?;
        let mut chunks = Vec::new();
        for (chunk, entry) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let entry = u64::from_le_bytes(*entry);
            let (first, count) = (entry & u64::from(u32::MAX), chunk_slabs(chunk as u64));
            let free = first % ZONE_SLABS >= DIRECTORY_SLABS && first % ZONE_SLABS + count <= ZONE_SLABS;
            let apart = |(other, one): (usize, &u64)| {
                first + count <= *one || *one + chunk_slabs(other as u64) <= first
            };
            let inside = first + count <= slabs && free && !(first..first + count).contains(&found.index);
            if entry != found.index_entry(chunk as u64, first)
                || !inside
                || !chunks.iter().enumerate().all(apart)
            {
                return Err(Error::corrupt(format!("the place of part {chunk} of the checksums is damaged")));
            }
            chunks.push(first);
        }
        if (chunks.len() as u64) < chunks_for(slabs) {
            return Err(Error::corrupt("the checksums are not for the whole heap"));
        }
        *found.chunks.write().unwrap_or_else(PoisonError::into_inner) = chunks;
        Ok(Some(found))
    }

    fn of(header: &Header) -> Checksums {
        let word = |at: usize| u64::from_le_bytes(header.uuid[at..at + 8].try_into().expect("8 bytes"));
        Checksums {
            heap_start: header.heap_start,
            salt: mixed(word(0) ^ mixed(word(8))),
            index: u64::from(header.checksum_index),
            chunks: RwLock::default(),
        }
    }

    /// The index's word for a chunk: its first slab, and a check.
    fn index_entry(&self, chunk: u64, first: u64) -> u64 {
        first | mixed(self.salt ^ mixed(chunk << 32 | first)) >> 32 << 32
    }

    /// Stores the places of new chunks; they hold from the header on that counts them.
    pub fn add(&self, medium: &Medium, plan: &Plan, counters: &mut Counters) -> Result<()> {
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        for first in &plan.chunks {
            let chunk = chunks.len() as u64;
            let place = self.heap_start + self.index * SLAB_BYTES + chunk * 8;
            medium.store(place, &self.index_entry(chunk, *first).to_le_bytes(), counters)?;
            medium.write_back(place, 8, counters);
            chunks.push(*first);
        }
        Ok(())
    }

    /// Makes the checksums of a heap that has none, as a plan says whose slabs are zero: every page gets its entry for which
    /// `counts` says so of its slab.
    pub fn make(
        medium: &Medium,
        header: &Header,
        plan: &Plan,
        counts: impl Fn(u64) -> bool,
        counters: &mut Counters,
    ) -> Result<()> {
        let made = Checksums::of(header);
        made.add(medium, plan, counters)?;
        for slab in (0..header.heap_bytes / SLAB_BYTES).filter(|slab| counts(*slab)) {
            made.renew_slabs(medium, slab, 1, counters)?;
        }
        Ok(())
    }

    /// Slabs of chunks and index: first and count.
    pub fn slabs(&self) -> Vec<(u64, u64)> {
        let chunks = self.chunks.read().unwrap_or_else(PoisonError::into_inner);
        let chunks = chunks.iter().zip(0..).map(|(first, chunk)| (*first, chunk_slabs(chunk)));
        chunks.chain([(self.index, 1)]).collect()
    }

    /// Places for the chunks that a heap of so many slabs needs, from a slab on behind which there is nothing.
    pub fn plan(&self, slabs: u64, from: u64) -> Plan {
        let have = self.chunks.read().unwrap_or_else(PoisonError::into_inner).len() as u64;
        Plan::new(slabs, from, Some(self.index), have)
    }

    /// Where in the file a page's entry is.
    pub fn place(&self, page: u64) -> u64 {
        let (chunk, entry) = find(page);
        let first = self.chunks.read().unwrap_or_else(PoisonError::into_inner)[chunk];
        self.heap_start + first * SLAB_BYTES + entry * ENTRY_BYTES
    }

    fn entry(&self, page: u64, sum: u64) -> [u8; ENTRY_BYTES as usize] {
        let check = mixed(sum ^ mixed(self.salt ^ page)) >> 32;
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes[8..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The sum that a page should have.
    pub fn expected(&self, medium: &Medium, page: u64) -> Result<Expected> {
        let mut bytes = [0; ENTRY_BYTES as usize];
        medium.load(self.place(page), &mut bytes)?;
        Ok(self.known(page, &bytes))
    }

    /// The sums that `count` pages from `first` on should have.
    #[cfg(feature = "replicate")]
    pub fn expected_run(&self, medium: &Medium, first: u64, count: u64) -> Result<Vec<Expected>> {
        let mut found = Vec::with_capacity(count as usize);
        let (mut page, end) = (first, first + count);
        while page < end {
            // Entries of one part lie side by side.
            let place = self.place(page);
            let here =
                (page + 1..end).take_while(|next| self.place(*next) == place + (next - page) * ENTRY_BYTES);
            let mut bytes = vec![0; (1 + here.count()) * ENTRY_BYTES as usize];
            medium.load(place, &mut bytes)?;
            for (entry, page) in bytes.as_chunks::<{ ENTRY_BYTES as usize }>().0.iter().zip(page..) {
                found.push(self.known(page, entry));
            }
            page = first + found.len() as u64;
        }
        Ok(found)
    }

    fn known(&self, page: u64, entry: &[u8; ENTRY_BYTES as usize]) -> Expected {
        let sum = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
        let known = *entry == [0; ENTRY_BYTES as usize] || *entry == self.entry(page, sum);
        if known { Expected::Sum(sum) } else { Expected::Unknown }
    }

    /// Returns true if a page is what its entry says.
    pub fn holds(&self, medium: &Medium, page: u64) -> Result<bool> {
        let mut bytes = [0; PAGE as usize];
        medium.load(self.heap_start + page * PAGE, &mut bytes)?;
        Ok(self.expected(medium, page)? == Expected::Sum(sum(0, &bytes)))
    }

    fn set(&self, medium: &Medium, page: u64, sum: u64, counters: &mut Counters) -> Result<()> {
        let place = self.place(page);
        medium.store(place, &self.entry(page, sum), counters)?;
        medium.write_back(place, ENTRY_BYTES, counters);
        Ok(())
    }

    /// Sums a page as it is.
    pub fn renew(&self, medium: &Medium, page: u64, counters: &mut Counters) -> Result<()> {
        let mut bytes = [0; PAGE as usize];
        medium.load(self.heap_start + page * PAGE, &mut bytes)?;
        self.set(medium, page, sum(0, &bytes), counters)
    }

    /// Sums the pages of slabs as they are.
    pub fn renew_slabs(
        &self,
        medium: &Medium,
        first: u64,
        count: u64,
        counters: &mut Counters,
    ) -> Result<()> {
        (first * SLAB_PAGES..(first + count) * SLAB_PAGES)
            .try_for_each(|page| self.renew(medium, page, counters))
    }

    /// Notes that `new` is about to be stored at `offset`, both in whole words. Slabs that are taken by it go to `taken`: their
    /// pages have to be renewed when everything is stored.
    pub fn change(
        &self,
        medium: &Medium,
        offset: u64,
        new: &[u8],
        is_body: impl Fn(u64) -> bool,
        taken: &mut Taken,
        counters: &mut Counters,
    ) -> Result<()> {
        let (mut old, mut done) = ([0; PIECE], 0);
        while done < new.len() {
            let at = offset + done as u64;
            let (page, inside) = (at / PAGE, at % PAGE);
            let bytes = (new.len() - done).min(PIECE - inside as usize % PIECE);
            let (old, new) = (&mut old[..bytes], &new[done..done + bytes]);
            if taken.contains(at / SLAB_BYTES) {
                done += bytes;
                continue;
            }
            medium.load(self.heap_start + at, old)?;
            done += bytes;
            if at % ZONE_BYTES < DIRECTORY_SLABS * SLAB_BYTES && !is_body(at / ZONE_BYTES) {
                takes(at, old, new, taken);
            }
            // A damaged entry stays so: nobody knows what the rest of its page should be.
            if let Expected::Sum(before) = self.expected(medium, page)? {
                self.set(medium, page, before.wrapping_add(difference(inside, old, new)), counters)?;
            }
        }
        Ok(())
    }

    /// Pages of taken slabs are summed.
    pub fn renew_taken(&self, medium: &Medium, taken: &mut Taken, counters: &mut Counters) -> Result<()> {
        let singles = taken.slabs.drain().map(|slab| (slab, 1));
        singles
            .chain(taken.spans.drain(..))
            .try_for_each(|(first, count)| self.renew_slabs(medium, first, count, counters))
    }

    /// After a recovery: sums all pages that it stored to, and those of slabs that it took. Zones in `bodies` have no directory.
    pub fn recovered(
        &self,
        medium: &Medium,
        header: &Header,
        replayed: Replayed,
        bodies: &BTreeSet<u64>,
        counters: &mut Counters,
    ) -> Result<()> {
        let mut taken = Taken::default();
        for (offset, bytes) in replayed.directory {
            if bodies.contains(&(offset / ZONE_BYTES)) {
                continue;
            }
            let mut now = vec![0; bytes as usize];
            medium.load(self.heap_start + offset, &mut now)?;
            takes(offset, &vec![0; now.len()], &now, &mut taken);
        }
        let slabs = header.heap_bytes / SLAB_BYTES;
        taken.slabs.retain(|slab| *slab < slabs);
        taken.spans.retain(|(first, count)| first.checked_add(*count).is_some_and(|end| end <= slabs));
        self.renew_taken(medium, &mut taken, counters)?;
        replayed.pages.into_iter().try_for_each(|page| self.renew(medium, page, counters))
    }

    /// Sums the pages of the bitmap of zones, which is stored without a record.
    pub fn renew_bodies(&self, medium: &Medium, counters: &mut Counters) -> Result<()> {
        (BODIES_OFFSET / PAGE..(BODIES_OFFSET + BODIES_BYTES) / PAGE)
            .try_for_each(|page| self.renew(medium, page, counters))
    }

    /// The first page of directory or superblock that is not what it should be. `is_body` says which zones have no directory.
    pub fn odd_system_page(
        &self,
        medium: &Medium,
        slabs: u64,
        is_body: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>> {
        for slab in (0..slabs).step_by(ZONE_SLABS as usize).filter(|slab| !is_body(slab / ZONE_SLABS)) {
            for slab in (slab..slabs).take_while(|slab| is_system(*slab)) {
                for page in slab * SLAB_PAGES..(slab + 1) * SLAB_PAGES {
                    if !self.holds(medium, page)? {
                        return Ok(Some(page));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Finds slabs that are free in `old` and not in `new`, if that is part of a directory.
fn takes(at: u64, old: &[u8], new: &[u8], taken: &mut Taken) {
    let (zone, inside) = (at / ZONE_BYTES, at % ZONE_BYTES);
    if inside >= DIRECTORY_SLABS * SLAB_BYTES {
        return;
    }
    let skip = (inside.next_multiple_of(16) - inside) as usize;
    let (old, new) = (old.get(skip..).unwrap_or_default(), new.get(skip..).unwrap_or_default());
    let entries = old.as_chunks::<16>().0.iter().zip(new.as_chunks::<16>().0);
    for ((old, new), index) in entries.zip((inside + skip as u64) / 16..) {
        if index >= DIRECTORY_SLABS && old[6] == Entry::FREE && new[6] != Entry::FREE {
            let run = u32::from_le_bytes([new[12], new[13], new[14], new[15]]);
            let count = if new[6] == Entry::SPAN { u64::from(run) } else { 1 };
            taken.insert(zone * ZONE_SLABS + index, count);
        }
    }
}

/// The error for a page that is not what it should be.
#[cold]
pub(crate) fn damaged(page: u64) -> Error {
    Error::corrupt(format!(
        "bytes {:#x} to {:#x} of the heap do not have their checksum: the disk changed them, or lost a write (`memlift pool check` says what lies there)",
        page * PAGE,
        (page + 1) * PAGE
    ))
}
