// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recycling: in a run of faults without room, the memory of pages that leave is used for the pages that come.
//!
//! ```text
//! arena ──MOVE out: what leaves──▶ the seat's slot ──written──▶ MOVE in ──▶ arena ──write-protect, compare──▶ kept or dirty
//! ```
//!
//! - **Flow** [`Pager::recycle`] (one batch leaves into the slot) ──▶ [`Pager::place_cluster`] ──▶ what is left over is dropped
//! - **Order** a moved page is writable until it is protected: it is compared afterwards with what was written, and one that
//!   another thread changed meanwhile is dirty from the start
//! - **Layout** a slot has room for a cluster; it belongs to its seat, and is empty whenever the seat is free
//! - **Owner** a page in a slot keeps the charge that it had in the arena
//! - **Not here** which pages leave ([`super::evict`]). A single page is better copied: MOVE, protection and comparison pay off
//!   from [`LEAST_RUN`] pages on. Without MOVE everything is copied ([`super::engine`])

use std::sync::atomic::Ordering;

use super::evict::BATCH;
use super::seat::{CLUSTER, Seat};
use super::{Pager, address_of, kernel};
use crate::mapping::PAGE_BYTES;
use crate::uffd::Progress;

/// The shortest run that is moved.
pub(super) const LEAST_RUN: usize = 16;

/// One cluster in `HANDS_TURN` evicts at the clock hand instead of behind the stream.
const HANDS_TURN: usize = 8;

const _: () = assert!(BATCH <= CLUSTER && CLUSTER <= u64::BITS as usize);

impl Pager {
    /// Returns true if the memory of pages that leave may be written at once. It may not if the kernel can still send its
    /// contents without a pin (zero-copy sockets, pipes into which memory was spliced).
    pub(super) fn recycles(&self) -> bool {
        self.recycling.load(Ordering::Relaxed)
    }

    /// Makes memory that leaves go back to the kernel from now on, since the kernel may still send what it holds.
    pub fn stop_recycling(&self) {
        self.recycling.store(false, Ordering::Relaxed);
    }

    /// If room is short, evicts a batch for a cluster of `pages` pages. Returns how many of its pages lie in the seat's slot now,
    /// with their charge. A stream that passes through and is `at` a page gives up what it left behind.
    pub(super) fn recycle(&self, seat: &mut Seat, pages: usize, at: Option<usize>) -> usize {
        if !self.recycles() {
            return 0;
        }
        let ahead = self.job.unused_objective().saturating_add((2 * CLUSTER * PAGE_BYTES) as i64);
        if pages < LEAST_RUN || self.job.unused() >= ahead {
            return 0;
        }
        // Every so often the hand evicts instead: pages that are present and no longer used must leave too.
        if let Some(at) = at.filter(|at| !(at / CLUSTER).is_multiple_of(HANDS_TURN)) {
            let behind = self.evict_behind(seat, at);
            if behind.steps > 0 {
                return behind.moved;
            }
        }
        if self.engine.slot(seat.index).is_none() {
            return 0;
        }
        self.evict_into(seat, pages * PAGE_BYTES, BATCH, true).moved
    }

    /// Puts a cluster from the seat's pages into its place, with the `moved` pages of the slot first; says which pages
    /// another thread changed already, by bits.
    pub(super) fn place_cluster(
        &self,
        seat: &mut Seat,
        page: usize,
        pages: usize,
        protect: bool,
        moved: usize,
    ) -> (Progress, u64) {
        let slot = self.engine.slot(seat.index).filter(|_| moved > 0);
        let (_, _, room) = seat.parts();
        let (mut used, mut changed) = (0, 0);
        if let Some(slot) = slot {
            let wanted = moved.min(pages);
            // SAFETY: the slot's first `moved` pages are present, writable and this seat's; the room is elsewhere.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    room.as_ptr().cast::<u8>(),
                    slot as *mut u8,
                    wanted * PAGE_BYTES,
                );
            }
            // SAFETY: nobody relies on the slot; the target pages are busy, by this thread, and absent.
            let step = unsafe { self.engine.uffd.relocate(address_of(page), slot, wanted * PAGE_BYTES) };
            used = step.bytes / PAGE_BYTES;
            if protect && used > 0 {
                changed = self.protect_moved(page, &room[..used]);
            }
            if used < moved {
                kernel::drop_range(slot + used * PAGE_BYTES, (moved - used) * PAGE_BYTES);
                self.job.uncharge((moved - wanted) * PAGE_BYTES);
            }
        }
        if used == pages {
            return (Progress { bytes: pages * PAGE_BYTES, error: 0 }, changed);
        }
        // SAFETY: the seat's pages are plain memory; the target pages are busy and absent.
        let rest = unsafe { self.place(page + used, room[used..].as_ptr(), pages - used, protect) };
        (Progress { bytes: used * PAGE_BYTES + rest.bytes, error: rest.error }, changed)
    }

    /// Protects pages that were moved in; says which do not hold `written` any more, and lets those be written.
    fn protect_moved(&self, page: usize, written: &[super::seat::Page]) -> u64 {
        if self.freeze(page, written.len()).is_err() {
            return u64::MAX;
        }
        let mut changed = 0;
        for (index, written) in written.iter().enumerate() {
            if self.contents_in_place(page + index) != Some(written) {
                self.thaw_again(page + index, 1, true);
                changed |= 1 << index;
            }
        }
        changed
    }
}
