// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room for a fault: every way to make some, the cheapest first.
//!
//! - **Flow** [`Pager::make_room`] ─▶ an overdue look ─▶ charge ─▶ evict ─▶ charges of ended processes ─▶ spill ─▶ cold pages packed better ─▶
//!   compaction ─▶ the job's other processes ─▶ charged all the same: the job's verdict
//! - **Order** a charge that waits for a verdict stays: taking it back would look as if there were room again
//! - **Not here** how each of them does it ([`super::evict`], [`super::cold`], [`super::spill`])

use std::sync::atomic::Ordering;

use super::cold::COLD_ROUNDS;
use super::seat::Seat;
use super::{Pager, kernel};
use crate::block::{Charge, Counter, Verdict};
use crate::mapping::PAGE_BYTES;

/// Pages put away by a fault that found no room: few enough to be soon done, enough to share the cost of dropping.
const SYNC_PAGES: usize = 32;
/// Pages that must come in after an eviction without victims before the next one is worth a try.
const BARREN_PAGES: u64 = 32;

/// Outcome of a request for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// The bytes are charged.
    Made,
    /// They are not; try again later, or with less.
    Short,
}

impl Pager {
    /// Charges `bytes`, after making room where there is none. If they `must` be had, the job may overflow for them.
    pub(super) fn make_room(&self, seat: &mut Seat, bytes: usize, must: bool) -> Room {
        self.job.await_look(bytes);
        if self.job.try_charge(bytes, self.job.keep()) {
            return Room::Made;
        }
        self.counts.evictions.fetch_add(1, Ordering::Relaxed);
        self.job.count(Counter::SynchronousEvictions, 1);
        let barren = self.time().wrapping_sub(self.barren.load(Ordering::Relaxed)) < BARREN_PAGES;
        if self.spill_ahead(seat) > 0 && self.job.try_charge(bytes, self.job.keep()) {
            return Room::Made;
        }
        loop {
            if barren {
                break;
            }
            let evicted = self.evict(seat, bytes.max(SYNC_PAGES * PAGE_BYTES), SYNC_PAGES);
            if self.job.try_charge(bytes, self.job.keep()) {
                return Room::Made;
            }
            if evicted.steps == 0 {
                self.barren.store(self.time(), Ordering::Relaxed);
                break;
            }
        }
        if !must {
            return Room::Short;
        }
        // Nothing more can be evicted: take the bytes that other charges leave unused.
        if self.job.try_charge(bytes, 0) {
            return Room::Made;
        }
        // A child that ended may have held the memory: finding out is cheaper than what follows.
        self.job.sweep();
        if self.job.try_charge(bytes, 0) {
            return Room::Made;
        }
        // A page in the file makes more room than one that is packed better, in less time.
        for rounds in [COLD_ROUNDS, 0] {
            while self.spill_cold(seat, bytes.max(SYNC_PAGES * PAGE_BYTES), rounds).steps > 0 {
                if self.job.try_charge(bytes, 0) {
                    return Room::Made;
                }
            }
        }
        if self.squeeze(seat, bytes) {
            return Room::Made;
        }
        // Eviction was skipped above: pages that came in since the last one may still be packed.
        if barren && self.evict(seat, bytes, SYNC_PAGES).steps > 0 && self.job.try_charge(bytes, 0)
            || barren && self.squeeze(seat, bytes)
        {
            return Room::Made;
        }
        if !barren && self.compact(usize::MAX) > 0 && self.job.try_charge(bytes, 0) {
            return Room::Made;
        }
        if self.job.charge_by_others(bytes, self.forked()) {
            return Room::Made;
        }
        let Charge::Over { by } = self.job.charge(bytes) else { return Room::Made };
        // The charge stays while the job waits: taking it back would look as if there were room again.
        loop {
            match self.job.overflow(by) {
                Verdict::Spill => return Room::Made,
                Verdict::Wait => {
                    self.evict(seat, by, SYNC_PAGES);
                    self.pack_cold(seat, 0);
                    self.spill_cold(seat, by, 0);
                }
                Verdict::Fail(code) => kernel::end("", code),
            }
        }
    }

    /// Charges `bytes` after packing cold pages better, as many as that takes.
    fn squeeze(&self, seat: &mut Seat, bytes: usize) -> bool {
        loop {
            let cold = self.pack_cold(seat, 0);
            if cold.tried > 0 && self.job.try_charge(bytes, 0) {
                return true;
            }
            if cold.tried == 0 {
                return false;
            }
        }
    }
}
