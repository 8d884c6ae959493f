// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes room for a fault in every possible way, the cheapest first.
//!
//! - **Flow** [`Pager::make_room`] ─▶ wait for an overdue look of the watcher ─▶ charge ─▶ evict ─▶ give back the charges of
//!   ended processes ─▶ spill ─▶ pack cold pages better ─▶ compact ─▶ wait for the job's other processes ─▶ charge without
//!   room, and ask for the job's verdict
//! - **Signals** the program's signals wait until a fault is answered. What takes long therefore ends early if one waits, after
//!   some progress; the fault happens again if the program goes on
//! - **Order** the time that this takes is counted, and the ledger says since when no thread got room. A charge stays while it waits for a verdict, because taking it back would look as if there were room again
//! - **Not here** the implementation of these ways ([`super::evict`], [`super::cold`], [`super::spill`])

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cold::COLD_ROUNDS;
use super::seat::Seat;
use super::{Pager, Quiet, kernel};
use crate::block::{Charge, Counter, Job, Verdict};
use crate::mapping::PAGE_BYTES;

/// Pages that a fault without room evicts together: few enough to be done soon, and enough to share the cost of dropping.
const SYNC_PAGES: usize = 32;
/// Pages that must come in after an eviction that found no victim before eviction is tried again.
const NO_VICTIM_PAGES: u64 = 32;

/// Outcome of a request for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// The bytes are charged.
    Made,
    /// The bytes are not charged; try again later, or with fewer bytes. The thread returns to the program first, so that a signal
    /// that waits is delivered.
    Short,
}

/// Charges the bytes that a process or thread which starts now will take outside the arenas, and waits for room
/// ([`Job::charge_start`]), also by eviction from `pager`'s memory if there is one. The caller holds no lock of zmem. Its
/// signals wait meanwhile; one that is for the program ends the wait.
pub fn charge_start(job: &Job, pager: Option<&Pager>, bytes: usize) {
    let _quiet = Quiet::new();
    job.charge_start(bytes, || {
        if kernel::signal_waits() {
            return ControlFlow::Break(());
        }
        let active = pager.filter(|pager| pager.active());
        ControlFlow::Continue(active.is_some_and(|pager| {
            let mut seat = pager.seats.take();
            pager.evict(&mut seat, bytes, SYNC_PAGES).steps > 0
        }))
    });
}

impl Pager {
    /// Charges `bytes`, after making room if there is none. With `must`, the job may overflow for them.
    pub(super) fn make_room(&self, seat: &mut Seat, bytes: usize, must: bool) -> Room {
        self.job.await_watcher(bytes);
        if self.job.try_charge(bytes, self.job.reserved_bytes()) {
            return Room::Made;
        }
        let (began, mut paused) = (Instant::now(), Duration::ZERO);
        let room = self.make_room_now(seat, bytes, must, &mut paused);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.job.count(Counter::RoomNs, nanoseconds(began.elapsed().saturating_sub(paused)));
        if paused > Duration::ZERO {
            self.job.count(Counter::PausedNs, nanoseconds(paused));
        }
        room
    }

    /// Does the rest of [`Pager::make_room`] if there is no room; adds the time for which the job was paused to `paused`.
    fn make_room_now(&self, seat: &mut Seat, bytes: usize, must: bool, paused: &mut Duration) -> Room {
        self.counts.evictions.fetch_add(1, Ordering::Relaxed);
        self.job.count(Counter::SynchronousEvictions, 1);
        let no_victims =
            self.time().wrapping_sub(self.no_victim_at.load(Ordering::Relaxed)) < NO_VICTIM_PAGES;
        if self.spill_ahead(seat) > 0 && self.job.try_charge(bytes, self.job.reserved_bytes()) {
            return Room::Made;
        }
        loop {
            if no_victims {
                break;
            }
            let evicted = self.evict(seat, bytes.max(SYNC_PAGES * PAGE_BYTES), SYNC_PAGES);
            if self.job.try_charge(bytes, self.job.reserved_bytes()) {
                return Room::Made;
            }
            if evicted.interrupted {
                return Room::Short;
            }
            if evicted.steps == 0 {
                self.no_victim_at.store(self.time(), Ordering::Relaxed);
                break;
            }
        }
        if !must {
            return Room::Short;
        }
        // Nothing more can be evicted: take bytes that other charges leave unused.
        if self.job.try_charge(bytes, 0) {
            return Room::Made;
        }
        self.job.note_shortage();
        let room = self.make_room_at_any_cost(seat, bytes, no_victims, paused);
        if room == Room::Made {
            self.job.note_room();
        }
        room
    }

    /// Makes room in the ways that take long; the job may overflow for it.
    fn make_room_at_any_cost(
        &self,
        seat: &mut Seat,
        bytes: usize,
        no_victims: bool,
        paused: &mut Duration,
    ) -> Room {
        // A child that has ended may have held the memory. Finding that out is cheaper than the steps below.
        self.job.sweep();
        if self.job.try_charge(bytes, 0) {
            return Room::Made;
        }
        // Spilling a page makes more room in less time than packing it better.
        for rounds in [COLD_ROUNDS, 0] {
            while self.spill_cold(seat, bytes.max(SYNC_PAGES * PAGE_BYTES), rounds).steps > 0 {
                if self.job.try_charge(bytes, 0) {
                    return Room::Made;
                }
                if seat.is_interrupted() {
                    return Room::Short;
                }
            }
        }
        if let Some(room) = self.squeeze(seat, bytes) {
            return room;
        }
        // Eviction was skipped above, but pages that came in since the last one may still be packed.
        if no_victims && self.evict(seat, bytes, SYNC_PAGES).steps > 0 && self.job.try_charge(bytes, 0) {
            return Room::Made;
        }
        if no_victims && let Some(room) = self.squeeze(seat, bytes) {
            return room;
        }
        if !no_victims && self.compact(usize::MAX) > 0 && self.job.try_charge(bytes, 0) {
            return Room::Made;
        }
        if self.job.charge_by_others(bytes, self.forked()) {
            return Room::Made;
        }
        let Charge::Over { by } = self.job.charge(bytes) else { return Room::Made };
        // The charge stays while the job waits, because taking it back would look as if there were room again.
        loop {
            let began = Instant::now();
            let verdict = self.job.overflow(by);
            if verdict == Verdict::Wait {
                *paused += began.elapsed();
            }
            match verdict {
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

    /// Packs cold pages better until `bytes` can be charged, or a signal waits. Returns `None` if no more pages can be tried.
    fn squeeze(&self, seat: &mut Seat, bytes: usize) -> Option<Room> {
        while self.pack_cold(seat, 0).tried > 0 {
            if self.job.try_charge(bytes, 0) {
                return Some(Room::Made);
            }
            if seat.is_interrupted() {
                return Some(Room::Short);
            }
        }
        None
    }
}
