// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process slot: the process, the bytes that it charged, and the bytes that it reports to hold.
//!
//! - **Layout** 128 bytes
//! - **Flow** free ──claim──▶ claimed ──pid, start, block──▶ live ──death or leave──▶ claimed (its charge goes back) ──▶ free
//! - **Order** the pid is written before the state becomes `live`. The process that changes a dead process's slot from `live`
//!   to `claimed` gives its charge back, so that this happens once
//! - **Owner** the process itself while it lives. A claimed slot carries the pid of the process that claimed it, so that a
//!   claim can be swept too

use std::sync::atomic::Ordering;

use super::atomic::{AtomicI64, AtomicU32, AtomicU64};

pub(super) const FREE: u32 = 0;
/// The slot is claimed by the process whose pid is in the upper 30 bits.
pub(super) const CLAIMED: u32 = 1;
pub(super) const LIVE: u32 = 2;

/// One process of a job.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Slot {
    pub(super) state: AtomicU32,
    /// Index of the process's block.
    pub(super) block: AtomicU32,
    pub(super) pid: AtomicU32,
    /// Not used: aligns the next word to eight bytes.
    padding: AtomicU32,
    /// Start time of the process, clock ticks since boot. It tells the process from a later one with the same pid.
    pub(super) started: AtomicU64,
    /// Bytes that the process has charged.
    pub(super) charged: AtomicI64,
    /// Bytes of the process's arena that are present, as last published.
    pub(super) arena: AtomicU64,
    /// Bytes of the process's store, as last published.
    pub(super) store: AtomicU64,
    /// Bytes of the process's tables, as last published.
    pub(super) tables: AtomicU64,
    /// Bit 0: the process is active.
    pub(super) flags: AtomicU32,
    /// Generation of the block when the slot was claimed.
    pub(super) generation: AtomicU32,
    /// Bytes of the charge that were inherited by fork: the parent's charge when the fork began.
    pub(super) inherited: AtomicI64,
    /// Bytes that are charged but not present: the untouched part of native chunks, and floats (charges taken in advance).
    pub(super) slack: AtomicI64,
    /// Bytes of the process's pages that are kept compressed or in the spill file, as last published.
    pub(super) away: AtomicU64,
    /// Address of the process's [`crate::pager::View`], or 0.
    pub(super) view: AtomicU64,
    words: [AtomicU64; 3],
}

const _: () = assert!(size_of::<Slot>() == 128);

impl Slot {
    /// Returns the process's pid, if the slot is live.
    pub fn pid(&self) -> Option<u32> {
        (self.state.load(Ordering::Acquire) == LIVE).then(|| self.pid.load(Ordering::Relaxed))
    }

    /// Returns the process that has the slot or had it last.
    pub(super) fn process(&self) -> super::Process {
        super::Process {
            pid: self.pid.load(Ordering::Relaxed),
            started: self.started.load(Ordering::Relaxed),
        }
    }

    /// Bytes that the process has charged.
    pub fn charged(&self) -> i64 {
        self.charged.load(Ordering::Acquire)
    }

    /// Subtracts up to `bytes` from the inherited bytes. Returns false if none are left.
    pub(super) fn share_less(&self, bytes: i64) -> bool {
        let less = |inherited: i64| (inherited > 0).then(|| inherited - bytes.min(inherited));
        self.inherited.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// Does the same as [`Slot::share_less`], but only if the slot is that of a live process of `block`.
    pub(super) fn of_block_shares_less(&self, block: usize, bytes: i64) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
            && self.block.load(Ordering::Relaxed) as usize == block
            && self.share_less(bytes)
    }

    /// Returns the bytes of the arena, store and tables that are present, as the process last published them.
    pub fn published(&self) -> (u64, u64, u64) {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (load(&self.arena), load(&self.store), load(&self.tables))
    }

    /// Returns the address of the view by which the process's memory is read from outside, if it has one.
    pub fn view(&self) -> Option<u64> {
        Some(self.view.load(Ordering::Relaxed)).filter(|address| *address != 0)
    }

    /// Returns the bytes of pages that are kept compressed or in the spill file, as the process last published them.
    pub fn away(&self) -> u64 {
        self.away.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the charge that are present in memory; bytes charged in advance do not count.
    pub fn present(&self) -> i64 {
        let charged = self.charged().max(0);
        charged.saturating_sub(self.slack.load(Ordering::Acquire)).clamp(0, charged)
    }

    /// Returns true if the process is active: the sizes that it publishes are then exact.
    pub fn active(&self) -> bool {
        self.flags.load(Ordering::Acquire) & 1 != 0
    }
}
