// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recycling: in a run of faults without room, the memory of pages that leave is reused for the pages that come in.
//!
//! ```text
//! arena ──leaving pages: MOVE out──▶ the seat's slot ──overwritten──▶ MOVE in ──▶ arena ──protect, compare──▶ clean or dirty
//! ```
//!
//! - **Flow** [`Pager::recycle`] (one batch leaves into the slot) ──▶ [`Pager::place_cluster`] ──▶ unused pages of the slot
//!   are dropped
//! - **Order** a moved page is writable until it is protected. Therefore it is afterwards compared with what was written; a
//!   page that another thread has changed meanwhile is dirty from the start
//! - **Layout** a slot has room for a cluster; it belongs to its seat, and is empty whenever the seat is free
//! - **Owner** a page in a slot keeps the charge that it had in the arena
//! - **Not here** the choice of pages that leave ([`super::evict`]). Single pages are copied, because MOVE, protection and
//!   comparison are worth their time only from [`LEAST_RUN`] pages on. Without MOVE all pages are copied ([`super::engine`])

use std::sync::atomic::Ordering;

use super::evict::BATCH;
use super::seat::{CLUSTER, Seat};
use super::{Pager, address_of, kernel};
use crate::mapping::PAGE_BYTES;
use crate::uffd::Progress;

/// Length of the shortest run that is moved, pages.
pub(super) const LEAST_RUN: usize = 16;

/// One cluster in `HANDS_TURN` evicts at the clock hand instead of behind the stream.
const HANDS_TURN: usize = 8;

const _: () = assert!(BATCH <= CLUSTER && CLUSTER <= u64::BITS as usize);

impl Pager {
    /// Returns true if the memory of pages that leave may be overwritten immediately. It may not if the kernel can still send
    /// the old contents without a pin (zero-copy sockets, pipes into which memory was spliced).
    pub(super) fn recycles(&self) -> bool {
        self.recycling.load(Ordering::Relaxed)
    }

    /// Makes memory of leaving pages go back to the kernel from now on, because the kernel may still send what it contains.
    pub fn stop_recycling(&self) {
        self.recycling.store(false, Ordering::Relaxed);
    }

    /// If room is short, evicts a batch for a cluster of `pages` pages. Returns the number of pages that lie in the seat's
    /// slot now, still charged. If `at` is a page, the cluster there belongs to a stream that is not kept in memory, and the
    /// pages behind it are evicted first.
    pub(super) fn recycle(&self, seat: &mut Seat, pages: usize, at: Option<usize>) -> usize {
        if !self.recycles() {
            return 0;
        }
        let ahead = self.job.unused_objective().saturating_add((2 * CLUSTER * PAGE_BYTES) as i64);
        if pages < LEAST_RUN || self.job.unused() >= ahead {
            return 0;
        }
        // One cluster in `HANDS_TURN` evicts at the hand nevertheless, because present pages that are no longer used must
        // leave too.
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

    /// Puts a cluster from the seat's pages into its place, the `moved` pages of the slot first. Also returns a bit for each
    /// page that another thread has changed already.
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
            // SAFETY: nobody relies on the contents of the slot; the target pages are absent, and this thread has made them
            // busy.
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
        // SAFETY: the seat's pages are plain readable memory; the target pages are absent, and this thread has made them
        // busy.
        let rest = unsafe { self.place(page + used, room[used..].as_ptr(), pages - used, protect) };
        (Progress { bytes: used * PAGE_BYTES + rest.bytes, error: rest.error }, changed)
    }

    /// Protects pages that were moved in. Returns a bit for each page that differs from `written`, and makes those writable
    /// again.
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
