// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process slot: its process, the bytes that it charged, and the bytes that it says it holds.
//!
//! - **Layout** 128 bytes
//! - **Flow** free ──claim──▶ claimed ──pid, start, block──▶ live ──death or leave──▶ claimed (its charge goes back) ──▶ free
//! - **Order** the pid is written before `live`; the process that takes a dead one's slot from `live` to `claimed`
//!   gives its charge back, so that happens once
//! - **Owner** the process itself while it lives; a claimed slot carries its claimer's pid, so that a claim can be swept too

use std::sync::atomic::Ordering;

use super::atomic::{AtomicI64, AtomicU32, AtomicU64};

pub(super) const FREE: u32 = 0;
/// Of the process whose pid is in the upper 30 bits.
pub(super) const CLAIMED: u32 = 1;
pub(super) const LIVE: u32 = 2;

/// One process of a job.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Slot {
    pub(super) state: AtomicU32,
    /// Index of its block.
    pub(super) block: AtomicU32,
    pub(super) pid: AtomicU32,
    /// 1 while the process waits for a visit.
    pub(super) wants: AtomicU32,
    /// When it started, clock ticks since boot: tells it from a later process of the same pid.
    pub(super) started: AtomicU64,
    /// Bytes that the process has charged.
    pub(super) charged: AtomicI64,
    /// Bytes of its arena that are present, as it last said.
    pub(super) arena: AtomicU64,
    /// Bytes of its store.
    pub(super) store: AtomicU64,
    /// Bytes of its tables.
    pub(super) tables: AtomicU64,
    /// Bit 0: it is active.
    pub(super) flags: AtomicU32,
    /// The block's generation that it belongs to.
    pub(super) generation: AtomicU32,
    /// Bytes of the charge that came by fork: the parent's charge when the fork began.
    pub(super) inherited: AtomicI64,
    /// Bytes that are charged and not present: the untouched part of native chunks, floats.
    pub(super) slack: AtomicI64,
    words: [AtomicU64; 5],
}

const _: () = assert!(size_of::<Slot>() == 128);

impl Slot {
    /// Its pid, while it is live.
    pub fn pid(&self) -> Option<u32> {
        (self.state.load(Ordering::Acquire) == LIVE).then(|| self.pid.load(Ordering::Relaxed))
    }

    /// The process that has the slot, or had it last.
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

    /// Takes `bytes` off what came by fork; false where nothing is left of that.
    pub(super) fn share_less(&self, bytes: i64) -> bool {
        let less = |inherited: i64| (inherited > 0).then(|| inherited - bytes.min(inherited));
        self.inherited.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// As [`Slot::share_less`], if it is a live process's of that block.
    pub(super) fn of_block_shares_less(&self, block: usize, bytes: i64) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
            && self.block.load(Ordering::Relaxed) as usize == block
            && self.share_less(bytes)
    }

    /// Bytes of arena, store and tables that are present, as it last said.
    pub fn published(&self) -> (u64, u64, u64) {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (load(&self.arena), load(&self.store), load(&self.tables))
    }

    /// Bytes of its charge that are present in memory: what it charged in advance does not count.
    pub fn present(&self) -> i64 {
        let charged = self.charged().max(0);
        charged.saturating_sub(self.slack.load(Ordering::Acquire)).clamp(0, charged)
    }

    /// Returns true if the process is active: the sizes that it publishes are exact then.
    pub fn active(&self) -> bool {
        self.flags.load(Ordering::Acquire) & 1 != 0
    }
}
