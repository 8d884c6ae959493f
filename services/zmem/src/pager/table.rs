// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of the arena's pages and chunks, and how threads wait for a busy one.
//!
//! - **Layout** entries: 8 bytes per page (one page of table per chunk) · chunks: 16 bytes · access: 1 byte per page
//!   (0 unmapped, else 8 | PROT_*). All in address space that is touched where the arena is used
//! - **Flow** claim: entry → `Busy` by compare-and-swap, the old one in hand ──work──▶ publish: the new one, waiters woken
//! - **Order** claims acquire, publications release. The holder of a busy entry never waits for another entry, except in calls
//!   that change mappings, of which one runs at a time
//! - **Owner** `mapped` and the access bytes change under the space lock; the rest under a busy entry or chunk

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::entry::{Entry, WAITERS};
use crate::Result;
use crate::lock::{futex_wait, futex_wake};
use crate::mapping::{Mapping, PAGE_BYTES};

/// Bytes of a chunk, which is armed as a whole.
pub(super) const CHUNK_BYTES: usize = 2 << 20;
/// Pages of a chunk.
pub(super) const CHUNK_PAGES: usize = CHUNK_BYTES / PAGE_BYTES;

const GATES: usize = 256;

/// Mode of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Mode {
    /// Nothing is mapped.
    Vacant = 0,
    /// The kernel brings pages in and out; charged in full.
    Native = 1,
    /// Nothing is present; the first touch is a fault.
    Guarded = 2,
    /// Each page has an entry.
    Armed = 3,
    /// A thread changes the mode.
    Busy = 4,
}

const MODE: u32 = 7;
const CHUNK_WAITERS: u32 = 1 << 3;
/// Pins of a native chunk count from here.
pub(super) const CHUNK_PIN: u32 = 1 << 4;

/// Mode, pins and counts of one chunk.
#[repr(C)]
pub(super) struct Chunk {
    word: AtomicU32,
    /// Pages of an armed chunk that are charged.
    pub present: AtomicU32,
    /// Pages of the chunk that are mapped.
    pub mapped: AtomicU32,
    /// The mode before a call that changes mappings made the chunk busy.
    held: AtomicU32,
}

impl Chunk {
    pub fn mode(&self) -> Mode {
        mode_of(self.word.load(Ordering::Acquire))
    }

    /// Pins of the chunk as a whole (native chunks).
    pub fn pins(&self) -> u32 {
        self.word.load(Ordering::Acquire) / CHUNK_PIN
    }

    /// Adds a pin if the chunk is native.
    pub fn pin(&self) -> bool {
        let add = |word: u32| (mode_of(word) == Mode::Native).then(|| word.wrapping_add(CHUNK_PIN));
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    /// Takes a pin of a native chunk back; false when it has none.
    pub fn unpin(&self) -> bool {
        let take = |word: u32| (word >= CHUNK_PIN).then(|| word - CHUNK_PIN);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// Notes the mode that the chunk had before this thread made it busy.
    pub fn set_held(&self, mode: Mode) {
        self.held.store(mode as u32, Ordering::Relaxed);
    }

    /// The mode that [`Chunk::set_held`] noted.
    pub fn held(&self) -> Mode {
        mode_of(self.held.load(Ordering::Relaxed))
    }

    /// Makes the chunk busy if it is in `from` and, where asked for, without pins.
    pub fn claim(&self, from: Mode, unpinned: bool) -> bool {
        let claim = |word: u32| {
            (mode_of(word) == from && !(unpinned && word >= CHUNK_PIN))
                .then_some(word & !MODE | Mode::Busy as u32)
        };
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim).is_ok()
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

/// Tables of an arena of `pages` pages.
pub(super) struct Table {
    pages: usize,
    entries: Mapping,
    chunks: Mapping,
    access: Mapping,
    gates: [AtomicU32; GATES],
}

impl Table {
    /// For an arena of `bytes` bytes, a multiple of a chunk.
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

    pub fn chunk_count(&self) -> usize {
        self.pages / CHUNK_PAGES
    }

    /// The entry of a page.
    ///
    /// # Panics
    ///
    /// When the page is not of the arena.
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
    /// When the chunk is not of the arena.
    pub fn chunk(&self, chunk: usize) -> &Chunk {
        assert!(chunk < self.chunk_count(), "the chunk is of the arena");
        // SAFETY: the mapping has a Chunk for each chunk; all zero bytes are a valid one.
        unsafe { &*self.chunks.pointer().as_ptr().cast::<Chunk>().add(chunk) }
    }

    /// The access byte of a page.
    ///
    /// # Panics
    ///
    /// When the page is not of the arena.
    pub fn access(&self, page: usize) -> &AtomicU8 {
        assert!(page < self.pages, "the page is of the arena");
        // SAFETY: the mapping has a byte for each page.
        unsafe { &*self.access.pointer().as_ptr().cast::<AtomicU8>().add(page) }
    }

    /// Returns true if a page is mapped and allows reading, or writing.
    pub fn allows(&self, page: usize, write: bool) -> bool {
        let access = i32::from(self.access(page).load(Ordering::Acquire));
        access & 8 != 0
            && access & if write { libc::PROT_WRITE } else { libc::PROT_READ | libc::PROT_EXEC } != 0
    }

    pub fn is_mapped(&self, page: usize) -> bool {
        self.access(page).load(Ordering::Acquire) & 8 != 0
    }

    /// `from` → `Busy`, if it still is `from`.
    pub fn claim(&self, page: usize, from: Entry) -> bool {
        let entry = self.entry(page);
        entry.compare_exchange(from.0, Entry::BUSY.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Waits until the page is not busy, and claims it.
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

    /// Keeps `entry` in the claimed page's word.
    pub fn park(&self, page: usize, entry: Entry) {
        let keep = |word: u64| Some(entry.parked().0 | word & WAITERS);
        let _ = self.entry(page).fetch_update(Ordering::AcqRel, Ordering::Acquire, keep);
    }

    /// The entry that [`Table::park`] keeps in the page's word.
    pub fn parked(&self, page: usize) -> Entry {
        self.load(page).unparked()
    }

    /// Ends a claim.
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

    /// Ends the claim of a chunk.
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

    /// Gives the entries of a chunk back to the kernel: all are `Empty` again.
    pub fn forget(&self, chunk: usize) {
        self.entries
            .release(chunk * CHUNK_PAGES * size_of::<AtomicU64>(), CHUNK_PAGES * size_of::<AtomicU64>());
    }

    fn gate(&self, page: usize) -> &AtomicU32 {
        // Neighbours in one gate, so that a cluster wakes one.
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
        assert!(table.load(700) == Entry::EMPTY);
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
