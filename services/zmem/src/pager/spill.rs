// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Spilling: pages that do not fit in memory even when packed are written to the spill file.
//!
//! - **Flow** no room and nothing to evict ──▶ [`Pager::spill_cold`]: packed pages, and present pages that do not compress,
//!   in the order of the hand ──▶ one write ──▶ `Spilled` ──▶ copies and memory are given back
//! - **Order** a page is claimed while it is written, and dropped after the write is done. If the disk refuses, the page
//!   stays as it was, one line reports that, and the disk is tried again a moment later
//! - **Owner** the file is set once, and lives as long as the process
//! - **Not here** the file ([`crate::spill`]); reading pages back ([`super::fault`])

use std::fmt::Write;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicUsize, Ordering};

use super::Pager;
use super::cold::COLD_ROUNDS;
use super::depart::Way;
use super::entry::{Entry, MAX_HEAT, MAX_PINS, Tag};
use super::evict::Evicted;
use super::seat::{CLUSTER, Page, Seat};
use super::table::{CHUNK_PAGES, Mode};
use crate::block::Counter;
use crate::line::Line;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::spill::{Slot, Spill, SpillError};
use crate::{Error, Result};

/// Upper bound of the pages that are written together. A write of a cluster takes hardly longer than that of one page.
const BATCH: usize = CLUSTER;
/// Cost of reading one page alone, measured in faults on stored pages.
const READ_COST: i64 = 16;
/// Upper bound of the credit, and of the debt, pages.
const MOST_CREDIT: i64 = 4096;

/// The spill file, and the decision if spilling ahead of need pays.
#[derive(Default)]
pub(super) struct Spiller {
    file: AtomicPtr<Spill>,
    /// Page at which the search for cold pages goes on.
    hand: AtomicUsize,
    /// The error number that the last message about a refused spill named.
    refused: AtomicI32,
    /// Pages: faults that more room would have saved, minus the cost of spilling and reading back.
    credit: AtomicI64,
}

impl Spiller {
    fn set(&self, spill: Spill) -> Result<()> {
        let place = Mapping::reserve("the spill file's tables", size_of::<Spill>())?;
        let pointer = place.pointer().as_ptr().cast::<Spill>();
        // SAFETY: the mapping is as large as the value and belongs to this call alone; once it is stored below, it is never
        // unmapped.
        unsafe { pointer.write(spill) };
        let none = std::ptr::null_mut();
        if self.file.compare_exchange(none, pointer, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the value was written above, and only this thread has the pointer; it is read once.
            drop(unsafe { pointer.read() });
            return Err(Error::Started);
        }
        std::mem::forget(place);
        Ok(())
    }

    /// Returns the spill file, if there is one.
    pub(super) fn file(&self) -> Option<&Spill> {
        // SAFETY: a pointer that is stored there refers to a value that lives as long as the process.
        unsafe { self.file.load(Ordering::Acquire).as_ref() }
    }

    /// Returns true if a batch that is spilled ahead of need pays.
    fn pays_ahead(&self) -> bool {
        self.file().is_some() && self.credit.load(Ordering::Relaxed) >= BATCH as i64
    }

    fn add_credit(&self, more: i64) {
        let sum = self.credit.load(Ordering::Relaxed) + more;
        self.credit.store(sum.clamp(-MOST_CREDIT, MOST_CREDIT), Ordering::Relaxed);
    }

    /// Prints the reason why nothing more is spilled, each time it changes. The job goes on without spilling as long as it
    /// fits.
    fn say_refused(&self, error: SpillError) {
        let kind = match error {
            SpillError::Device(errno) => errno,
            SpillError::Full { .. } => -1,
            _ => -2,
        };
        if self.refused.swap(kind, Ordering::Relaxed) != kind {
            let mut line = Line::new();
            let _ = writeln!(line, "memlift: no more pages are spilled for now: {error}");
            line.write();
        }
    }
}

impl Pager {
    /// Sets the spill file; possible only once.
    ///
    /// # Errors
    ///
    /// There is a spill file already, or there is no memory.
    pub fn spill_to(&self, spill: Spill) -> Result<()> {
        self.spill.set(spill)?;
        self.publish_view();
        Ok(())
    }

    /// Spills the pages that left longest ago, if the credit says that this pays. Returns the number of pages.
    pub(super) fn spill_ahead(&self, seat: &mut Seat) -> usize {
        if !self.spill.pays_ahead() {
            return 0;
        }
        let spilled = self.spill_cold(seat, BATCH * PAGE_BYTES / 4, COLD_ROUNDS).steps;
        // Looking for pages has a cost, too, even if none was found.
        self.spill.add_credit(-(spilled.max(BATCH / 4) as i64));
        spilled
    }

    /// Counts a fault on a single page for or against spilling. A page that left only recently would have stayed if there
    /// were more room, so it counts for spilling. A page in the spill file had better stayed in memory, so it counts against
    /// it.
    pub(super) fn update_credit(&self, entry: Entry) {
        match entry.tag() {
            Tag::Stored if self.left_soon(entry) => self.spill.add_credit(1),
            Tag::Spilled => self.spill.add_credit(-READ_COST),
            _ => {}
        }
    }

    /// Spills pages that left at least `rounds` ago, until `want` bytes came back to the job or there are no more such pages.
    /// With 0, present pages that do not compress, and pages shared by a fork, are spilled too.
    pub(super) fn spill_cold(&self, seat: &mut Seat, want: usize, rounds: u64) -> Evicted {
        let mut evicted = Evicted::default();
        let Some(spill) = self.spill.file().filter(|spill| spill.is_open()) else { return evicted };
        // The seat gets room for a whole batch, because one write takes no longer than a write of one page. That room pays
        // for itself with the first batch.
        let bytes = BATCH.saturating_sub(seat.reached) * PAGE_BYTES;
        if bytes > 0 {
            self.job.charge_ahead(bytes);
            self.counts.tables.fetch_add(bytes, Ordering::Relaxed);
            seat.reached = BATCH;
        }
        let reached = self.reached.load(Ordering::Acquire) * CHUNK_PAGES;
        let (mut looked, mut hand) = (0, self.spill.hand.load(Ordering::Relaxed));
        // The hand goes round until every page has lost its heat.
        let most = if rounds == 0 { reached * (MAX_HEAT as usize + 1) } else { reached };
        let now = self.round.load(Ordering::Relaxed);
        while evicted.bytes < want && looked < most {
            let (mut pages, mut old, mut count) = ([0; BATCH], [Entry::EMPTY; BATCH], 0);
            while count < BATCH && looked < most {
                let page = if hand < reached { hand } else { 0 };
                if page % CHUNK_PAGES == 0 && self.table.chunk(page / CHUNK_PAGES).mode() != Mode::Armed {
                    (hand, looked) = (page + CHUNK_PAGES, looked + CHUNK_PAGES);
                    continue;
                }
                (hand, looked) = (page + 1, looked + 1);
                let entry = self.table.load(page);
                let cold = match entry.tag() {
                    Tag::Stored => now.wrapping_sub(entry.round()) & MAX_PINS >= rounds,
                    // Shared pages are spilled last of all, because they make room only after the other process drops them
                    // too.
                    tag => {
                        let last = entry.is_raw() || tag == Tag::Shared;
                        rounds == 0 && last && entry.pins() == 0 && self.age(page, entry)
                    }
                };
                if cold && self.table.allows(page, false) && self.table.claim(page, entry) {
                    (pages[count], old[count]) = (page, entry);
                    count += 1;
                }
            }
            let done = self.spill_batch(seat, spill, &pages[..count], &old[..count]);
            // Stop if the disk refused. If all pages of the batch were pinned, go on.
            if done.steps == 0 && !spill.is_open() {
                break;
            }
            evicted.steps += done.steps;
            evicted.bytes += done.bytes;
        }
        self.spill.hand.store(hand, Ordering::Relaxed);
        evicted
    }

    /// Writes claimed pages to the file and publishes their new entries.
    fn spill_batch(&self, seat: &mut Seat, spill: &Spill, pages: &[usize], old: &[Entry]) -> Evicted {
        let mut evicted = Evicted::default();
        let staging = self.engine.staging(seat.index);
        let (mut frozen, round) = (true, self.round.load(Ordering::Relaxed));
        let (mut leaving, mut entries, mut ways) = ([0; BATCH], [Entry::EMPTY; BATCH], [Way::InPlace; BATCH]);
        let (mut count, mut next) = (0, 0);
        for (page, old) in pages.iter().zip(old) {
            let (mut entry, mut way) = ([*old], [Way::InPlace]);
            if old.is_present() {
                self.depart(staging, *page, &mut next, &mut entry, &mut way);
            }
            if way[0] == Way::Pinned {
                self.table.publish(*page, entry[0].with_heat(MAX_HEAT));
                continue;
            }
            if old.is_present() && way[0] == Way::InPlace {
                frozen &= self.freeze(*page, 1).is_ok();
            }
            (leaving[count], entries[count], ways[count]) = (*page, entry[0], way[0]);
            count += 1;
        }
        let (pages, old, ways) = (&leaving[..count], &entries[..count], &ways[..count]);
        let staged = |way: Way| match (staging, way) {
            (Some(slot), Way::Staged(index)) => Some((slot, index)),
            _ => None,
        };
        self.unpack_from(seat, pages, old, |index| staged(ways[index]));
        let (_, _, room) = seat.parts();
        let mut parts = [(0, &room[0]); BATCH];
        for (part, (page, contents)) in parts.iter_mut().zip(pages.iter().zip(room.iter())) {
            *part = (*page as u64, contents);
        }
        let mut slots = [Slot::default(); BATCH];
        let outcome = (frozen && count > 0).then(|| spill.write(&parts[..count], &mut slots));
        let written = outcome == Some(Ok(()));
        if let Some(Err(error)) = outcome {
            self.spill.say_refused(error);
        }
        for (((page, old), way), slot) in pages.iter().zip(old).zip(ways).zip(slots) {
            let staged = staged(*way);
            if !written {
                match staged {
                    Some((slot, index)) => self.bring_back(slot, index, *page),
                    None if old.is_present() => self.thaw_again(*page, 1, !old.is_protected()),
                    None => {}
                }
                self.table.publish(*page, *old);
                continue;
            }
            let new = Entry::new(Tag::Spilled, slot.0).with_round(round);
            self.table.park(*page, new);
            if old.is_present() {
                self.drop_memory(*page, staged);
                evicted.bytes += PAGE_BYTES;
            } else {
                evicted.bytes += self.free_copy(*old);
            }
            evicted.steps += 1;
            self.table.publish(*page, new);
        }
        if written {
            self.counts.spilled.fetch_add(count as u64, Ordering::Relaxed);
            self.job.count(Counter::PagesSpilled, count as u64);
            evicted.bytes += self.compact(count);
        }
        evicted
    }

    /// Copies a present, protected page, so that the disk write reads the copy and not arena memory.
    pub(super) fn copy_out(&self, page: usize, target: &mut Page) {
        if let Some(contents) = self.contents_in_place(page) {
            target.copy_from_slice(contents);
        } else {
            let _ = self.contents(page, target);
        }
    }
}
