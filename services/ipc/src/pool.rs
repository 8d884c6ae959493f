// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool: payload segments of one direction, and who holds which part of them.
//!
//! - **Flow** writer: `allocate` ─▶ fill ─▶ message with (segment, offset) ─▶ … ─▶ peer is done ─▶ `free`
//!   grows by a segment when nothing fits; a segment that was not used for a while is retired and removed
//! - **Layout** slots start at multiples of 256 bytes; segments are numbered from 0 on and no number is given twice
//! - **Owner** the allocation state lives in the writer's private memory; the reader only ever sees offsets, and
//!   checks them against the segments it has mapped. Whoever holds a slot keeps its segment mapped

use crate::layout::{GRANULE_BYTES, SEGMENTS_MAX};
use memlift_ground::region::Region;
use offset_allocator::{Allocation, Allocator};
use std::sync::Arc;

/// Ticks of the caller's clock without a new slot after which an empty segment is quiet.
const QUIET_TICKS: u32 = 2;
/// Most slots of one segment. The books of a slot take 32 bytes of private memory, which exist from the start.
const SLOTS_MAX: u32 = 4096;
/// Smallest segment that a pool grows by, bytes.
const GROWTH_MIN: u64 = 64 << 10;
/// A pool doubles until it grows by this much at a time, bytes; from then on by an eighth of what it has.
const GROWTH_STEP: u64 = 4 << 20;

/// A part of a pool that is in use.
pub struct Slot {
    pub segment: u32,
    pub offset: u64,
    pub bytes: u64,
    allocation: Option<Allocation>,
}

struct Segment {
    number: u32,
    region: Arc<Region>,
    allocator: Allocator,
    slots: u32,
    /// Ticks since a slot was taken last.
    quiet: u32,
    /// Gives no slots: the peer was asked to let go of it.
    retired: bool,
}

/// The writer's side of one direction.
pub struct Pool {
    segments: Vec<Segment>,
    next: u32,
    limit: u64,
    used: u64,
    ended: bool,
}

impl Pool {
    /// An empty pool that may grow to `limit` bytes.
    pub fn new(limit: u64) -> Pool {
        Pool { segments: Vec::new(), next: 0, limit, used: 0, ended: false }
    }

    /// Number that the next segment will have.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Adds a segment; gives it back after the end, to be dropped outside the lock.
    #[must_use]
    pub fn add(&mut self, region: Arc<Region>) -> Option<Arc<Region>> {
        if self.ended {
            return Some(region);
        }
        let granules = u32::try_from(region.bytes() / GRANULE_BYTES).unwrap_or(u32::MAX);
        // One more for what is free, and one that the allocator never gives out.
        let allocator = Allocator::with_max_allocs(granules, granules.saturating_add(2).min(SLOTS_MAX));
        let number = self.next;
        self.next += 1;
        self.segments.push(Segment { number, region, allocator, slots: 0, quiet: 0, retired: false });
        None
    }

    /// Takes `bytes` (zero counts as one) if some segment has room for them; gives the segment's memory, too.
    pub fn allocate(&mut self, bytes: u64) -> Option<(Slot, Arc<Region>)> {
        let granules = u32::try_from(bytes.div_ceil(GRANULE_BYTES).max(1)).ok()?;
        for segment in self.segments.iter_mut().filter(|segment| !segment.retired) {
            if let Some(allocation) = segment.allocator.allocate(granules) {
                self.used += bytes;
                segment.slots += 1;
                segment.quiet = 0;
                let slot = Slot {
                    segment: segment.number,
                    offset: u64::from(allocation.offset) * GRANULE_BYTES,
                    bytes,
                    allocation: Some(allocation),
                };
                return Some((slot, Arc::clone(&segment.region)));
            }
        }
        None
    }

    /// Gives a slot back. One of a segment that was removed is gone already.
    pub fn free(&mut self, mut slot: Slot) {
        let segment = self.segments.iter_mut().find(|segment| segment.number == slot.segment);
        if let (Some(segment), Some(allocation)) = (segment, slot.allocation.take()) {
            self.used -= slot.bytes;
            segment.slots -= 1;
            segment.allocator.free(allocation);
        }
    }

    /// How large a segment to add so that `bytes` fit, or `None` if the pool may not grow that far. Rounded up to
    /// an eighth of the power of two below, which is the allocator's size class, so that the slot is sure to fit.
    pub fn growth(&self, bytes: u64) -> Option<u64> {
        growth(bytes, self.total(), self.segments.len(), self.limit)
    }

    /// A tick of the clock: marks the segments as retired that are empty and quiet, and gives their numbers. The first segment
    /// stays.
    pub fn retire_quiet(&mut self) -> Vec<u32> {
        let mut retired = Vec::new();
        for segment in self.segments.iter_mut().filter(|segment| segment.number != 0 && !segment.retired) {
            segment.quiet += 1;
            if segment.slots == 0 && segment.quiet > QUIET_TICKS {
                segment.retired = true;
                retired.push(segment.number);
            }
        }
        retired
    }

    /// Returns true if the peer was asked to let go of some segment and has not answered.
    pub fn has_retired(&self) -> bool {
        self.segments.iter().any(|segment| segment.retired)
    }

    /// Takes [`retire_quiet`](Pool::retire_quiet) back for a segment: the peer was not asked.
    pub fn revive(&mut self, number: u32) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            segment.retired = false;
        }
    }

    /// Removes a segment other than the first in which there is no slot; drop it outside the lock. `Ok(None)`: it has slots.
    ///
    /// # Errors
    ///
    /// There is no such segment.
    pub fn remove(&mut self, number: u32) -> Result<Option<Arc<Region>>, NoSuchSegment> {
        let at = self.segments.iter().position(|segment| segment.number == number && number != 0);
        let at = at.ok_or(NoSuchSegment)?;
        Ok((self.segments[at].slots == 0).then(|| self.segments.remove(at).region))
    }

    /// Returns true if the peer was asked to let go of that segment.
    pub fn is_retired(&self, number: u32) -> bool {
        self.segments.iter().any(|segment| segment.number == number && segment.retired)
    }

    /// Removes all segments, with whatever lies in them, and never grows again; drop them outside the lock.
    pub fn end(&mut self) -> Vec<Arc<Region>> {
        self.ended = true;
        self.limit = 0;
        self.used = 0;
        std::mem::take(&mut self.segments).into_iter().map(|segment| segment.region).collect()
    }

    /// Number of mapped segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Bytes of all mapped segments.
    pub fn total(&self) -> u64 {
        self.segments.iter().map(|segment| segment.region.bytes()).sum()
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes it may grow to.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Segment and offset of an address of this process, if it lies in the pool.
    pub fn locate(&self, address: *const u8) -> Option<(u32, u64)> {
        self.segments.iter().find_map(|segment| {
            let offset = (address as usize).checked_sub(segment.region.base() as usize)?;
            (offset < segment.region.bytes() as usize).then_some((segment.number, offset as u64))
        })
    }
}

/// No segment has that number.
#[derive(Clone, Copy, Debug)]
pub struct NoSuchSegment;

/// Bytes to grow by so that `bytes` fit into a pool that has `segments` of `total` bytes and may have `limit`.
pub fn growth(bytes: u64, total: u64, segments: usize, limit: u64) -> Option<u64> {
    let step = (bytes.checked_next_power_of_two()? / 16).max(4096);
    let needed = bytes.checked_next_multiple_of(step)?;
    let room = limit.checked_sub(total)?;
    let wanted = total.min(GROWTH_STEP.max(total / 8)).max(GROWTH_MIN).next_multiple_of(4096);
    (segments < SEGMENTS_MAX && needed <= room).then(|| needed.max(wanted.min(room)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift_ground::region::RegionOptions;
    use proptest::prelude::*;

    fn pool(segments: &[u64]) -> Pool {
        let mut pool = Pool::new(1 << 30);
        for &bytes in segments {
            let region = Region::memfd("memlift-test", bytes, &RegionOptions::default()).unwrap();
            assert!(pool.add(Arc::new(region)).is_none());
        }
        pool
    }

    #[test]
    fn a_grown_pool_takes_what_it_grew_for() {
        for bytes in [1, 4096, 5 << 20, 24_000_000, (128 << 20) + 1, 200_000_000] {
            let empty = Pool::new(1 << 30);
            let mut grown = pool(&[empty.growth(bytes).unwrap()]);
            assert!(grown.allocate(bytes).is_some(), "{bytes}");
        }
    }

    #[test]
    fn a_pool_doubles_and_then_grows_by_an_eighth() {
        let mut total = 64 << 10;
        let mut steps = Vec::new();
        for segments in 1..SEGMENTS_MAX {
            let step = growth(1, total, segments, 1 << 40).unwrap();
            steps.push(step);
            total += step;
        }
        assert_eq!(steps[..3], [64 << 10, 128 << 10, 256 << 10]);
        assert!(steps.iter().all(|step| step.is_multiple_of(4096)));
        assert!(total > 2 << 30, "{total}: as many segments as may be hold enough");
        assert_eq!(growth(1, total, SEGMENTS_MAX, 1 << 40), None);
    }

    #[test]
    fn segments_that_are_empty_and_quiet_go_and_their_numbers_do_not_come_back() {
        let mut pool = pool(&[64 << 10, 1 << 20, 1 << 20]);
        let (held, _) = pool.allocate(900 << 10).unwrap();
        assert_eq!(held.segment, 1);
        let quiet: Vec<_> = (0..QUIET_TICKS).map(|_| pool.retire_quiet()).collect();
        assert!(quiet.iter().all(Vec::is_empty));
        assert_eq!(pool.retire_quiet(), [2], "neither the first nor one in use");
        assert!(pool.allocate(900 << 10).is_none(), "what is retired gives no slots");
        pool.revive(2);
        let (other, _) = pool.allocate(900 << 10).unwrap();
        assert!(matches!(pool.remove(2), Ok(None)), "it has a slot");
        pool.free(other);
        assert!(matches!(pool.remove(2), Ok(Some(_))));
        assert!(matches!(pool.remove(2), Err(NoSuchSegment)));
        assert!(matches!(pool.remove(0), Err(NoSuchSegment)));
        pool.free(held);
        let region = Region::memfd("memlift-test", 4096, &RegionOptions::default()).unwrap();
        let region = Arc::new(region);
        assert!(pool.add(Arc::clone(&region)).is_none());
        assert_eq!(pool.locate(region.base()), Some((3, 0)));
        let (held, _) = pool.allocate(4096).unwrap();
        assert_eq!(pool.end().len(), 3);
        pool.free(held);
        assert_eq!((pool.used(), pool.growth(1)), (0, None));
        assert!(pool.add(region).is_some(), "after the end there is nothing to add to");
    }

    #[test]
    fn growth_respects_the_limit() {
        let pool = Pool::new(10 << 20);
        assert!(pool.growth(10 << 20).is_some_and(|bytes| bytes <= 10 << 20));
        assert_eq!(pool.growth(11 << 20), None);
        assert_eq!(pool.growth(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn slots_never_overlap_and_all_come_back(steps in proptest::collection::vec((0u8..3, 0u64..300_000), 1..200)) {
            let mut pool = pool(&[1 << 20, 2 << 20]);
            let mut held: Vec<Slot> = Vec::new();
            for (what, number) in steps {
                if what == 0 && !held.is_empty() {
                    let slot = held.swap_remove(number as usize % held.len());
                    pool.free(slot);
                } else if let Some((slot, region)) = pool.allocate(number) {
                    prop_assert!(slot.offset + slot.bytes <= region.bytes());
                    for other in &held {
                        prop_assert!(other.segment != slot.segment
                            || other.offset + other.bytes.max(1) <= slot.offset
                            || slot.offset + slot.bytes.max(1) <= other.offset);
                    }
                    held.push(slot);
                }
            }
            held.drain(..).for_each(|slot| pool.free(slot));
            prop_assert_eq!(pool.used(), 0);
            prop_assert!(pool.allocate(2 << 20).is_some());
        }
    }
}
