// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control block: the 64 bytes that the paper defines, and the arithmetic on them.
//!
//! - **Layout**
//!   - 64 bytes, one cache line:
//!   - 0 total · 8 unused · 16 unused objective · 24 min uncompressed · 32 accesses to compressed pages ·
//!   - 40 pages per visit · 44 LRU · 48 MRU · 52 ring link · 56 state · 60 generation
//! - **Flow** a charge is `unused -= bytes`, and [`Charge::Over`] if that is below zero; [`ControlBlock::try_charge`]
//!   succeeds only while at least `keep` bytes stay unused
//! - **Order** `unused` alone decides if there is room. Every change is one atomic operation, so the sums are exact in every
//!   interleaving. With `AcqRel`, a thread that sees room also sees that the memory was freed
//! - **Owner** each process ranks its own pages, so LRU and MRU name processes instead of pages: the slot that evicts next
//!   and the slot that evicted last. The ring link only records the last successor; the bits in the registry's header decide
//!   who is in the ring
//! - **Not here** grace and events ([`super::overflow`])

use std::sync::atomic::Ordering;

use super::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// Outcome of a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Charge {
    /// There was room.
    Ok,
    /// The bytes were charged although there was no room.
    Over {
        /// Bytes by which `unused` is below zero now.
        by: usize,
    },
}

/// The objectives of one job, and the memory that it has left.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ControlBlock {
    /// Total Allocation Objective, bytes of real memory.
    pub(super) total: AtomicI64,
    /// Unused Allocation, bytes; negative while the job uses more than its total.
    pub(super) unused: AtomicI64,
    /// Unused Allocation Objective, bytes: the evictor works ahead of need until this much is unused.
    pub(super) unused_objective: AtomicI64,
    /// Min Uncompressed Objective, bytes.
    pub(super) min_uncompressed: AtomicU64,
    /// #Accesses to Compressed Pages (the paper's name).
    pub(super) compressed_accesses: AtomicU64,
    /// Pages to Compress During a Visit (the paper's name).
    pub(super) pages_per_visit: AtomicU32,
    /// Slot whose process evicts at the next visit, plus one.
    pub(super) lru: AtomicU32,
    /// Slot whose process evicted last, plus one.
    pub(super) mru: AtomicU32,
    /// The block that got the turn when it last left this block, plus one.
    pub(super) ring_next: AtomicU32,
    /// State of the block: free, claimed or live, see [`super::registry`].
    pub(super) state: AtomicU32,
    /// Number of jobs that have had this block. A change that was meant for an earlier job is recognised by it.
    pub(super) generation: AtomicU32,
}

const _: () = {
    assert!(size_of::<ControlBlock>() == 64 && align_of::<ControlBlock>() == 64);
    assert!(std::mem::offset_of!(ControlBlock, unused) == 8);
    assert!(std::mem::offset_of!(ControlBlock, unused_objective) == 16);
    assert!(std::mem::offset_of!(ControlBlock, min_uncompressed) == 24);
    assert!(std::mem::offset_of!(ControlBlock, compressed_accesses) == 32);
    assert!(std::mem::offset_of!(ControlBlock, pages_per_visit) == 40);
    assert!(std::mem::offset_of!(ControlBlock, lru) == 44);
    assert!(std::mem::offset_of!(ControlBlock, mru) == 48);
    assert!(std::mem::offset_of!(ControlBlock, ring_next) == 52);
    assert!(std::mem::offset_of!(ControlBlock, state) == 56);
    assert!(std::mem::offset_of!(ControlBlock, generation) == 60);
};

/// `unused` before and after one change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub before: i64,
    pub after: i64,
}

impl Step {
    /// Returns true if this change took `unused` from zero or more to below zero. That is the one event of a
    /// compressed-memory fault.
    pub fn flips_negative(self) -> bool {
        self.before >= 0 && self.after < 0
    }

    pub fn falls_below(self, mark: i64) -> bool {
        self.before >= mark && self.after < mark
    }

    pub fn charge(self) -> Charge {
        match self.after {
            0.. => Charge::Ok,
            after => Charge::Over { by: usize::try_from(after.unsigned_abs()).unwrap_or(usize::MAX) },
        }
    }
}

impl ControlBlock {
    /// Changes `unused` by `bytes`, up or down.
    pub(super) fn add(&self, bytes: i64) -> Step {
        let before = self.unused.fetch_add(bytes, Ordering::AcqRel);
        Step { before, after: before.wrapping_add(bytes) }
    }

    /// Takes `bytes` if at least `keep` bytes stay unused; else changes nothing.
    pub(super) fn try_charge(&self, bytes: i64, keep: i64) -> Option<Step> {
        let take = |unused: i64| unused.checked_sub(bytes).filter(|left| *left >= keep);
        let before = self.unused.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(Step { before, after: before - bytes })
    }

    /// Sets the total; `unused` changes by the same amount.
    pub(super) fn set_total(&self, bytes: i64) -> Step {
        let before = self.total.swap(bytes, Ordering::AcqRel);
        self.add(bytes.wrapping_sub(before))
    }

    /// Returns the Total Allocation Objective, bytes.
    pub fn total(&self) -> i64 {
        self.total.load(Ordering::Acquire)
    }

    /// Returns the Unused Allocation, bytes; negative while the job uses more than its total.
    pub fn unused(&self) -> i64 {
        self.unused.load(Ordering::Acquire)
    }

    /// Returns the Unused Allocation Objective, bytes.
    pub fn unused_objective(&self) -> i64 {
        self.unused_objective.load(Ordering::Acquire)
    }

    /// Returns the Min Uncompressed Objective, bytes.
    pub fn min_uncompressed(&self) -> u64 {
        self.min_uncompressed.load(Ordering::Acquire)
    }

    /// #Accesses to Compressed Pages (the paper's name).
    pub fn compressed_accesses(&self) -> u64 {
        self.compressed_accesses.load(Ordering::Relaxed)
    }

    /// Pages to Compress During a Visit (the paper's name).
    pub fn pages_per_visit(&self) -> u32 {
        self.pages_per_visit.load(Ordering::Relaxed)
    }

    /// Returns the number of jobs that have had this block.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }
}

/// Converts a size to a signed change. A size that does not fit becomes `i64::MAX / 2`, which is more than any job has.
pub(super) fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_only_one_change_flips() {
        let block = ControlBlock::default();
        let _ = block.set_total(64_000);
        let flips = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..16_001 {
                        if block.add(-1).flips_negative() {
                            flips.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(block.unused(), -4);
        assert_eq!(flips.into_inner(), 1);
        assert_eq!(block.add(0).charge(), Charge::Over { by: 4 });
    }

    #[test]
    fn what_must_stay_stays() {
        let block = ControlBlock::default();
        let _ = block.set_total(100);
        assert!(block.try_charge(51, 50).is_none());
        assert_eq!(block.try_charge(50, 50), Some(Step { before: 100, after: 50 }));
        let step = block.set_total(40);
        assert_eq!(step, Step { before: 50, after: -10 });
        assert!(block.try_charge(1, 0).is_none());
    }
}
