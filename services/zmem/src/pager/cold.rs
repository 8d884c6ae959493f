// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cold packing: pages that have been absent for long, or that did not compress, are compressed again by Zstandard. The
//! evictor does that ahead of need; a fault does it when nothing is left to evict or spill.
//!
//! - **Flow** nothing left to evict or spill ──▶ [`Pager::pack_cold`]: stored pages that left some rounds ago, and present
//!   pages that did not compress ──claim──▶ unpack, or protect ──▶ [`Effort::Cold`] ──smaller by an eighth──▶ store the new
//!   copy, free the old one ──▶ publish ──▶ compaction gives the memory back
//! - **Order** the new copy is complete and charged before the old one is freed. A present page is protected before it is
//!   read, and dropped after its copy is complete. A thread that touches the page meanwhile waits for `Busy` to end
//! - **Layout** the entry of a page that was tried has a mark beside its handle. The mark stays as long as that copy, or as
//!   long as the page counts as raw
//! - **Owner** the eviction's lock: one thread at a time, and the eviction's float
//! - **Not here** the ratio that is worth it ([`memlift_kernels::pages`]); the moment when nothing is left to evict
//!   ([`super::evict`])

use std::cell::Cell;
use std::sync::atomic::Ordering;

use memlift_kernels::pages::{Effort, Method, Packed};

use super::depart::Way;
use super::entry::{Entry, Tag};
use super::evict::{Evict, LEAST_FLOAT_BYTES};
use super::seat::Seat;
use super::table::{CHUNK_PAGES, Mode};
use super::{Pager, store_handle};
use crate::block::Counter;
use crate::mapping::PAGE_BYTES;

/// Upper bound of the pages that one call tries, which takes some hundred microseconds.
pub(super) const BATCH: usize = 32;
/// Upper bound of the entries that one call checks when it works ahead of need.
const LOOKED_AT: usize = 8192;
/// Rounds of the clock hand for which a page must be absent before it is packed again ahead of need.
pub(super) const COLD_ROUNDS: u64 = 8;
/// Upper bound of the objects that compaction moves after a batch, for each page that became smaller.
const MOVES: usize = 8;

/// Outcome of a batch.
#[derive(Clone, Copy, Default)]
pub(super) struct Repacked {
    /// Pages that were tried, including those that did not become smaller.
    pub tried: usize,
    /// Pages that became smaller.
    pub smaller: usize,
}

impl Pager {
    /// Packs up to [`BATCH`] cold pages once more, of those that left at least `rounds` ago. With 0, entries of the whole
    /// arena are checked to find them.
    pub(super) fn pack_cold(&self, seat: &mut Seat, rounds: u64) -> Repacked {
        let mut done = Repacked::default();
        // All cold pages were tried, and nothing was packed since.
        let packed = self.counts.packed.load(Ordering::Relaxed) + self.counts.raw.load(Ordering::Relaxed);
        if rounds == 0 && packed == self.cold_packed.load(Ordering::Relaxed) {
            return done;
        }
        let state = &mut *self.evict.lock();
        if seat.reached == 0 {
            self.job.charge_ahead(PAGE_BYTES);
            self.counts.tables.fetch_add(PAGE_BYTES, Ordering::Relaxed);
            seat.reached = 1;
        }
        let reached = self.reached.load(Ordering::Acquire) * CHUNK_PAGES;
        let most = if rounds == 0 { reached } else { LOOKED_AT.min(reached) };
        let now = self.round.load(Ordering::Relaxed);
        let (mut looked, mut full) = (0, false);
        while done.tried < BATCH && looked < most && !full {
            let page = if state.cold_hand < reached { state.cold_hand } else { 0 };
            if page % CHUNK_PAGES == 0 && self.table.chunk(page / CHUNK_PAGES).mode() != Mode::Armed {
                (state.cold_hand, looked) = (page + CHUNK_PAGES, looked + CHUNK_PAGES);
                continue;
            }
            (state.cold_hand, looked) = (page + 1, looked + 1);
            let entry = self.table.load(page);
            let cold = match entry.tag() {
                Tag::Stored => now.wrapping_sub(entry.round()) & 0xff >= rounds,
                Tag::Shared => rounds == 0 && entry.pins() == 0,
                _ => entry.is_raw() && entry.pins() == 0,
            };
            if !cold || entry.was_tried() || !self.table.allows(page, false) || !self.table.claim(page, entry)
            {
                continue;
            }
            let new = if entry.is_present() {
                self.pack_raw(seat, state, page, entry)
            } else {
                self.repack(seat, state, page, entry)
            };
            full = new.is_none();
            let new = new.unwrap_or(entry);
            done.tried += usize::from(!full);
            done.smaller +=
                usize::from(new.tag() != entry.tag() || new.handle_of_store() != entry.handle_of_store());
            self.table.publish(page, new);
        }
        self.settle_store();
        if done.tried > 0 {
            self.refill(state, self.store.compact(done.smaller * MOVES));
        } else if rounds == 0 && !full {
            self.cold_packed.store(packed, Ordering::Relaxed);
        }
        done
    }

    /// Packs a claimed page of the store again. Returns its new entry, or `None` if the store has no room for both copies.
    fn repack(&self, seat: &mut Seat, state: &mut Evict, page: usize, entry: Entry) -> Option<Entry> {
        let handle = store_handle(entry)?;
        let (before, method) = self.store.get(handle, |packed| (packed.len(), Method::of(packed)));
        if method.is_some_and(Method::is_dense) {
            return Some(entry.tried());
        }
        self.unpack(seat, &[page], &[entry]);
        let (packer, packed, room) = seat.parts();
        let result = packer.pack(&room[0], packed, Effort::Cold);
        self.count_workspace(seat, false);
        let Packed::Bytes(bytes) = result else { return Some(entry.tried()) };
        if bytes + bytes / 8 > before {
            return Some(entry.tried());
        }
        let new = self.put_cold(seat, state, bytes)?;
        let new = new.with_round(entry.round()).with_left(entry.left().unwrap_or(0));
        self.table.park(page, new);
        self.refill(state, self.store.free(handle));
        Some(new)
    }

    /// Packs a claimed page that is present and did not compress before. Returns its new entry, or `None` if the store has no
    /// room.
    fn pack_raw(&self, seat: &mut Seat, state: &mut Evict, page: usize, entry: Entry) -> Option<Entry> {
        let staging = self.engine.staging(seat.index);
        let (mut old, mut way) = ([entry], [Way::InPlace]);
        self.depart(staging, page, &mut 0, &mut old, &mut way);
        let [entry] = old;
        let staged = match (staging, way[0]) {
            (Some(slot), Way::Staged(index)) => Some((slot, index)),
            _ => None,
        };
        if way[0] == Way::Pinned || staged.is_none() && self.freeze(page, 1).is_err() {
            return Some(entry.tried());
        }
        let (packer, packed, room) = seat.parts();
        let contents = match staged {
            Some((slot, index)) => self.staged(slot, index),
            None => self.contents(page, &mut room[0]),
        };
        let result = packer.pack(contents, packed, Effort::Cold);
        self.count_workspace(seat, false);
        let new = match result {
            Packed::Bytes(bytes) => self.put_cold(seat, state, bytes),
            // The page has changed since, or still does not compress: it is left to eviction.
            _ => Some(entry.tried()),
        };
        match new {
            Some(new) if !new.is_present() => {
                self.drop_memory(page, staged);
                Some(new.with_round(self.round.load(Ordering::Relaxed)).with_left(self.steps()))
            }
            _ => {
                match staged {
                    Some((slot, index)) => self.bring_back(slot, index, page),
                    None => self.thaw_again(page, 1, !entry.is_protected()),
                }
                new
            }
        }
    }

    /// Stores the bytes that the seat's packer wrote. Returns the page's new entry, or `None` if the store has no room.
    fn put_cold(&self, seat: &mut Seat, state: &mut Evict, bytes: usize) -> Option<Entry> {
        let (_, packed, _) = seat.parts();
        let float = Cell::new(state.float);
        let charge = |bytes: usize| self.charge_or_float(&float, bytes);
        let handle = self.store.put_charged(packed.get(..bytes)?, charge);
        state.float = float.get();
        let handle = handle?;
        self.counts.packed_cold.fetch_add(1, Ordering::Relaxed);
        self.job.count(Counter::PagesColdPacked, 1);
        self.job.count(Counter::BytesColdPacked, bytes as u64);
        Some(Entry::new(Tag::Stored, u64::from(handle.0.get())).tried())
    }

    /// Gives back bytes that the store freed: first to the float, up to its least size, and the rest to the job.
    fn refill(&self, state: &mut Evict, bytes: usize) {
        let refill = LEAST_FLOAT_BYTES.saturating_sub(state.float).min(bytes);
        state.float += refill;
        if bytes > refill {
            self.job.uncharge(bytes - refill);
        }
    }

    /// Charges the memory that Zstandard has touched in the seat's packer, after its first packing or unpacking there.
    pub(super) fn count_workspace(&self, seat: &mut Seat, unpacks: bool) {
        if std::mem::replace(&mut seat.dense[usize::from(unpacks)], true) {
            return;
        }
        let touched = seat.packer_bytes();
        if let Some(more) = touched.checked_sub(seat.packer_charged).filter(|more| *more > 0) {
            seat.packer_charged = touched;
            self.job.charge_ahead(more);
            self.counts.tables.fetch_add(more, Ordering::Relaxed);
        }
    }
}
