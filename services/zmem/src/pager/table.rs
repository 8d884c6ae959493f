// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of the arena's pages and chunks, and the waiting for a busy page or chunk.
//!
//! - **Layout** entries: 8 bytes per page (one page of table per chunk) · chunks: 16 bytes each, with the access of all their
//!   pages if it is the same · access: 1 byte per page (0 unmapped, else `MAPPED` | PROT_*) for chunks in which it differs.
//!   Memory of the tables is touched only for those parts of the arena that are used: reserving 1 TiB costs 8 MiB
//! - **Flow** claim: the entry becomes `Busy` by compare-and-swap, and the thread has the old entry ──work──▶ publish: the
//!   new entry is stored, waiting threads are woken
//! - **Order** claims acquire, publications release. The holder of a busy entry never waits for another entry, except in
//!   calls that change mappings, of which only one runs at a time
//! - **Owner** `mapped` and access change only under the space lock, the rest only while the entry or chunk is busy

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::entry::{Entry, WAITERS};
use crate::Result;
use crate::lock::{futex_wait, futex_wake};
use crate::mapping::{Mapping, PAGE_BYTES};

/// Bytes of a chunk, the unit that is armed.
pub(super) const CHUNK_BYTES: usize = 2 << 20;
/// Pages of a chunk.
pub(super) const CHUNK_PAGES: usize = CHUNK_BYTES / PAGE_BYTES;
/// Most chunks of a small process, which are charged with a part of their size.
pub(super) const FIRST_CHUNKS: usize = 4;

const GATES: usize = 256;

/// Mode of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Mode {
    /// Nothing is mapped.
    Vacant = 0,
    /// The kernel brings pages in; the chunk is charged in full.
    Native = 1,
    /// Nothing is present; the first touch faults.
    Guarded = 2,
    /// Each page has an entry.
    Armed = 3,
    /// A thread is changing the mode.
    Busy = 4,
}

const MODE: u32 = 7;
const CHUNK_WAITERS: u32 = 1 << 3;
/// One pin of a native chunk, in the chunk's word; the bits from here up are the number of pins.
pub(super) const CHUNK_PIN: u32 = 1 << 4;

/// Bit of a page's access that says that the page is mapped; its `PROT_*` are the bits below.
pub(super) const MAPPED: u8 = 1 << 3;
/// Value of a chunk's access if each page has its own.
const BY_PAGE: u8 = 1 << 7;

/// Mode, pins, counts and access of one chunk.
#[repr(C)]
pub(super) struct Chunk {
    word: AtomicU32,
    /// Number of pages of an armed chunk that are present; these are charged.
    pub present: AtomicU32,
    /// Number of pages of the chunk that are mapped.
    pub mapped: AtomicU32,
    /// The mode that the chunk had before a thread made it busy.
    mode_before: AtomicU8,
    /// The access of all its pages, or [`BY_PAGE`].
    access: AtomicU8,
}

const _: () = assert!(size_of::<Chunk>() == 16);
const _: () =
    assert!(std::mem::offset_of!(Chunk, mode_before) == 12 && std::mem::offset_of!(Chunk, access) == 13);

/// The record of a chunk, read from another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub mode: Mode,
    /// The mode from before, if the chunk is busy.
    pub before: Mode,
    /// The access of all pages of the chunk, or `None` if each page has its own.
    pub access: Option<u8>,
}

impl Record {
    /// Bytes of a record.
    pub const BYTES: usize = size_of::<Chunk>();

    /// Reads a record from its bytes.
    pub fn read(bytes: &[u8; Record::BYTES]) -> Record {
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let access = (bytes[13] != BY_PAGE).then_some(bytes[13]);
        Record { mode: mode_of(word), before: mode_of(bytes[12].into()), access }
    }
}

impl Chunk {
    pub fn mode(&self) -> Mode {
        mode_of(self.word.load(Ordering::Acquire))
    }

    /// Returns the number of pins of the chunk as a whole; only native chunks have any.
    pub fn pins(&self) -> u32 {
        self.word.load(Ordering::Acquire) / CHUNK_PIN
    }

    /// Adds a pin if the chunk is native. Returns false if it is not.
    pub fn pin(&self) -> bool {
        let add = |word: u32| (mode_of(word) == Mode::Native).then(|| word.wrapping_add(CHUNK_PIN));
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    /// Takes a pin from the chunk. Returns false if it has none.
    pub fn unpin(&self) -> bool {
        let take = |word: u32| (word >= CHUNK_PIN).then(|| word - CHUNK_PIN);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// Returns the mode that the chunk had before it was claimed, for the thread that claimed it.
    pub fn mode_before(&self) -> Mode {
        mode_of(self.mode_before.load(Ordering::Relaxed).into())
    }

    /// Makes the chunk busy if its mode is `from` and, with `unpinned`, if it has no pins. Returns true if it did.
    pub fn claim(&self, from: Mode, unpinned: bool) -> bool {
        let claim = |word: u32| {
            (mode_of(word) == from && !(unpinned && word >= CHUNK_PIN))
                .then_some(word & !MODE | Mode::Busy as u32)
        };
        let claimed = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim).is_ok();
        if claimed {
            self.mode_before.store(from as u8, Ordering::Relaxed);
        }
        claimed
    }
}

fn mode_of(word: u32) -> Mode {
    match word & MODE {
        0 => Mode::Vacant,
        1 => Mode::Native,
        2 => Mode::Guarded,
        3 => Mode::Armed,
        _ => Mode::Busy,
    }
}

/// The tables of an arena of `pages` pages.
pub(super) struct Table {
    pages: usize,
    entries: Mapping,
    chunks: Mapping,
    access: Mapping,
    gates: [AtomicU32; GATES],
}

impl Table {
    /// Makes the tables for an arena of `bytes` bytes, which is a multiple of a chunk.
    pub fn new(bytes: usize) -> Result<Table> {
        let pages = bytes / PAGE_BYTES;
        Ok(Table {
            pages,
            entries: Mapping::reserve("the page table", pages * size_of::<AtomicU64>())?,
            chunks: Mapping::reserve("the chunk table", pages / CHUNK_PAGES * size_of::<Chunk>())?,
            access: Mapping::reserve("the table of access rights", pages)?,
            gates: [const { AtomicU32::new(0) }; GATES],
        })
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the addresses of the entries, of the chunks and of the access bytes.
    pub fn addresses(&self) -> [usize; 3] {
        [&self.entries, &self.chunks, &self.access].map(|part| part.pointer().as_ptr() as usize)
    }

    pub fn chunk_count(&self) -> usize {
        self.pages / CHUNK_PAGES
    }

    /// Returns the entry of a page.
    ///
    /// # Panics
    ///
    /// Panics if the page does not lie in the arena.
    pub fn entry(&self, page: usize) -> &AtomicU64 {
        assert!(page < self.pages, "the page is of the arena");
        // SAFETY: the mapping has an AtomicU64 for each page, zero at first touch, and lives as long as `self`.
        unsafe { &*self.entries.pointer().as_ptr().cast::<AtomicU64>().add(page) }
    }

    pub fn load(&self, page: usize) -> Entry {
        Entry(self.entry(page).load(Ordering::Acquire))
    }

    /// # Panics
    ///
    /// Panics if the chunk does not lie in the arena.
    pub fn chunk(&self, chunk: usize) -> &Chunk {
        assert!(chunk < self.chunk_count(), "the chunk is of the arena");
        // SAFETY: the mapping has a Chunk for each chunk of the arena, for which all zero bytes are valid, and lives as long
        // as `self`.
        unsafe { &*self.chunks.pointer().as_ptr().cast::<Chunk>().add(chunk) }
    }

    /// Returns the access byte of a page whose chunk has [`BY_PAGE`].
    fn access_byte(&self, page: usize) -> &AtomicU8 {
        assert!(page < self.pages, "the page is of the arena");
        // SAFETY: the mapping has a byte for each page, zero at first touch, and lives as long as `self`.
        unsafe { &*self.access.pointer().as_ptr().cast::<AtomicU8>().add(page) }
    }

    /// Returns the access of a page: 0 if it is unmapped, else [`MAPPED`] with its `PROT_*`.
    ///
    /// # Panics
    ///
    /// Panics if the page does not lie in the arena.
    pub fn access(&self, page: usize) -> u8 {
        match self.chunk(page / CHUNK_PAGES).access.load(Ordering::Acquire) {
            BY_PAGE => self.access_byte(page).load(Ordering::Acquire),
            access => access,
        }
    }

    /// Sets the access of `count` pages. The caller holds the space lock. Returns the number of these pages that were mapped
    /// before.
    pub fn set_access(&self, first: usize, count: usize, access: u8) -> usize {
        let (mut page, end, mut mapped) = (first, first + count, 0);
        while page < end {
            let chunk = page / CHUNK_PAGES;
            let part = page..end.min((chunk + 1) * CHUNK_PAGES);
            let of_all = &self.chunk(chunk).access;
            mapped += match of_all.load(Ordering::Relaxed) {
                BY_PAGE => part.clone().filter(|page| self.is_mapped(*page)).count(),
                all => {
                    if all & MAPPED != 0 {
                        part.len()
                    } else {
                        0
                    }
                }
            };
            if part.len() == CHUNK_PAGES {
                of_all.store(access, Ordering::Release);
            } else if of_all.load(Ordering::Relaxed) != access {
                self.set_by_page(chunk);
                for page in part.clone() {
                    self.access_byte(page).store(access, Ordering::Release);
                }
            }
            page = part.end;
        }
        mapped
    }

    /// Gives each page of a chunk an access byte of its own, with the chunk's access. A thread that reads the chunk's access
    /// before this, and one that reads the page's after it, get the same value.
    fn set_by_page(&self, chunk: usize) {
        let of_all = &self.chunk(chunk).access;
        let access = of_all.load(Ordering::Relaxed);
        if access != BY_PAGE {
            for page in chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES {
                self.access_byte(page).store(access, Ordering::Relaxed);
            }
            of_all.store(BY_PAGE, Ordering::Release);
        }
    }

    /// Returns true if `holds` is true for the access of each of `count` pages. It is called once for a chunk whose pages
    /// have the same access.
    pub fn every_access(&self, first: usize, count: usize, holds: impl Fn(u8) -> bool) -> bool {
        let (mut page, end) = (first, first + count);
        while page < end {
            let chunk = page / CHUNK_PAGES;
            let after = end.min((chunk + 1) * CHUNK_PAGES);
            let all = match self.chunk(chunk).access.load(Ordering::Acquire) {
                BY_PAGE => (page..after).all(|page| holds(self.access(page))),
                access => holds(access),
            };
            if !all {
                return false;
            }
            page = after;
        }
        true
    }

    /// Returns true if a page is mapped with write access, or for `write` false with read or execute access.
    pub fn allows(&self, page: usize, write: bool) -> bool {
        let access = self.access(page);
        let wanted = if write { libc::PROT_WRITE } else { libc::PROT_READ | libc::PROT_EXEC };
        access & MAPPED != 0 && i32::from(access) & wanted != 0
    }

    pub fn is_mapped(&self, page: usize) -> bool {
        self.access(page) & MAPPED != 0
    }

    /// Changes a page's entry from `from` to `Busy`, with `from` in it. Returns false if the entry is not `from` any more.
    pub fn claim(&self, page: usize, from: Entry) -> bool {
        let (entry, busy) = (self.entry(page), from.parked());
        entry.compare_exchange(from.0, busy.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Waits until the page is not busy, then claims it. Returns the entry from before.
    pub fn claim_now(&self, page: usize) -> Entry {
        loop {
            let entry = self.load(page);
            if entry.is_busy() {
                self.wait(page);
            } else if self.claim(page, entry) {
                return entry;
            }
        }
    }

    /// Puts `entry` into the word of the page, which this thread has claimed and which stays busy. A thread that is about to
    /// free the copy that the word names puts another entry there first: who reads this process from outside relies on it.
    pub fn park(&self, page: usize, entry: Entry) {
        let keep = |word: u64| Some(entry.parked().0 | word & WAITERS);
        let _ = self.entry(page).fetch_update(Ordering::AcqRel, Ordering::Acquire, keep);
    }

    /// Returns the entry that [`Table::claim`] or [`Table::park`] put into the page's word.
    pub fn parked(&self, page: usize) -> Entry {
        self.load(page).unparked()
    }

    /// Ends the claim of a page with a new entry, and wakes the threads that wait.
    pub fn publish(&self, page: usize, entry: Entry) {
        let old = self.entry(page).swap(entry.0, Ordering::AcqRel);
        if old & WAITERS != 0 && Entry(old).is_busy() {
            self.wake(page);
        }
    }

    /// Waits while the page is busy; may return early.
    pub fn wait(&self, page: usize) {
        let gate = self.gate(page);
        let seen = gate.load(Ordering::Acquire);
        let mark = |word: u64| Entry(word).is_busy().then_some(word | WAITERS);
        if self.entry(page).fetch_update(Ordering::AcqRel, Ordering::Acquire, mark).is_ok() {
            futex_wait(gate, seen, false, None);
        }
    }

    /// Ends the claim of a chunk with a new mode, and wakes the threads that wait.
    pub fn settle(&self, chunk: usize, mode: Mode) {
        let set = |word: u32| Some(word & !(MODE | CHUNK_WAITERS) | mode as u32);
        if let Ok(old) = self.chunk(chunk).word.fetch_update(Ordering::AcqRel, Ordering::Acquire, set)
            && old & CHUNK_WAITERS != 0
        {
            self.wake(chunk * CHUNK_PAGES);
        }
    }

    /// Waits while the chunk is busy; may return early.
    pub fn wait_chunk(&self, chunk: usize) {
        let gate = self.gate(chunk * CHUNK_PAGES);
        let seen = gate.load(Ordering::Acquire);
        let mark = |word: u32| (mode_of(word) == Mode::Busy).then_some(word | CHUNK_WAITERS);
        if self.chunk(chunk).word.fetch_update(Ordering::AcqRel, Ordering::Acquire, mark).is_ok() {
            futex_wait(gate, seen, false, None);
        }
    }

    /// Opens the entries of a chunk that this thread has made busy and is about to arm; all of them are `Empty` afterwards.
    pub fn open(&self, chunk: usize) {
        for page in chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES {
            self.entry(page).store(Entry::EMPTY.0, Ordering::Relaxed);
        }
    }

    /// Closes the entry of an empty page of an armed chunk, so that no thread claims the page any more. Returns false if the
    /// page is not empty, or is pinned or busy. The caller holds the space lock.
    pub fn close(&self, page: usize) -> bool {
        let (from, to) = (Entry::EMPTY.0, Entry::CLOSED.0);
        self.entry(page).compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Undoes [`Table::close`].
    pub fn reopen(&self, page: usize) {
        self.entry(page).store(Entry::EMPTY.0, Ordering::Release);
    }

    /// Gives the entries of a chunk back to the kernel; all of them are `Closed` afterwards.
    pub fn forget(&self, chunk: usize) {
        self.entries
            .release(chunk * CHUNK_PAGES * size_of::<AtomicU64>(), CHUNK_PAGES * size_of::<AtomicU64>());
    }

    fn gate(&self, page: usize) -> &AtomicU32 {
        // Neighbouring pages share a gate, so that a cluster wakes only a few gates.
        &self.gates[(page / 16) % GATES]
    }

    fn wake(&self, page: usize) {
        let gate = self.gate(page);
        gate.fetch_add(1, Ordering::AcqRel);
        futex_wake(gate, i32::MAX, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::entry::Tag;

    #[test]
    fn a_waiter_is_woken_and_claims_are_exclusive() {
        let table = Table::new(2 * CHUNK_BYTES).expect("address space");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let entry = table.claim_now(700);
                        table.publish(700, Entry::new(Tag::Dirty, entry.handle() + 1));
                    }
                });
            }
        });
        assert_eq!(table.load(700).handle(), 15_000);
        table.forget(1);
        assert!(table.load(700) == Entry::CLOSED);
    }

    #[test]
    fn a_page_that_a_thread_works_on_is_not_closed() {
        let table = Table::new(CHUNK_BYTES).expect("address space");
        assert!(!table.claim(5, Entry::EMPTY), "the chunk was never armed");
        table.open(0);
        assert!(table.claim(5, Entry::EMPTY));
        assert!(!table.close(5));
        table.publish(5, Entry::EMPTY.with_pins(1));
        assert!(!table.close(5));
        table.publish(5, Entry::EMPTY);
        assert!(table.close(5));
        assert!(!table.claim(5, Entry::EMPTY));
        table.reopen(5);
        assert!(table.claim(5, Entry::EMPTY));
    }

    #[test]
    fn the_access_of_each_page_is_what_was_set_last() {
        const CHUNKS: usize = 4;
        let table = Table::new(CHUNKS * CHUNK_BYTES).expect("address space");
        let mut wanted = vec![0_u8; CHUNKS * CHUNK_PAGES];
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for round in 0..2000 {
            // A third of the ranges consists of whole chunks.
            let (first, count) = if next(3) == 0 {
                let first = next(CHUNKS);
                (first * CHUNK_PAGES, (1 + next(CHUNKS - first)) * CHUNK_PAGES)
            } else {
                let first = next(wanted.len());
                (first, 1 + next(wanted.len() - first))
            };
            let access = if next(3) == 0 { 0 } else { MAPPED | next(8) as u8 };
            let range = &mut wanted[first..first + count];
            let mapped = range.iter().filter(|access| **access & MAPPED != 0).count();
            range.fill(access);
            assert_eq!(table.set_access(first, count, access), mapped, "round {round}");
            let seen: Vec<u8> = (0..wanted.len()).map(|page| table.access(page)).collect();
            assert!(seen == wanted, "round {round}");
            let (first, count) = (next(wanted.len()), 1 + next(200));
            let count = count.min(wanted.len() - first);
            let all = wanted[first..first + count].iter().all(|access| access & MAPPED != 0);
            assert_eq!(table.every_access(first, count, |access| access & MAPPED != 0), all, "round {round}");
        }
    }

    #[test]
    fn a_pinned_native_chunk_is_not_claimed() {
        let table = Table::new(CHUNK_BYTES).expect("address space");
        let chunk = table.chunk(0);
        assert!(!chunk.pin());
        assert!(chunk.claim(Mode::Vacant, false));
        table.settle(0, Mode::Native);
        assert!(chunk.pin());
        assert!(!chunk.claim(Mode::Native, true));
        assert!(chunk.unpin());
        assert!(!chunk.unpin());
        assert!(chunk.claim(Mode::Native, true));
        assert_eq!(chunk.mode(), Mode::Busy);
    }
}
