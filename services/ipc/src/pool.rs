// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool: payload segments of one direction, and who holds which part of them.
//!
//! Flow    writer: `allocate` ─▶ fill ─▶ message with (segment, offset) ─▶ … ─▶ peer is done ─▶ `free`
//! Layout  slots start at multiples of 256 bytes; segments are never unmapped while the session lives
//! Owner   the allocation state lives in the writer's private memory; the reader only ever sees offsets, and
//!         checks them against the segments it has mapped.

use crate::layout::{GRANULE_BYTES, SEGMENTS_MAX};
use memlift_engine::region::Region;
use offset_allocator::{Allocation, Allocator};
use std::sync::Arc;

/// A part of a pool that is in use.
pub struct Slot {
    pub segment: u32,
    pub offset: u64,
    pub bytes: u64,
    allocation: Option<Allocation>,
}

struct Segment {
    region: Arc<Region>,
    allocator: Allocator,
}

/// The writer's side of one direction.
pub struct Pool {
    segments: Vec<Segment>,
    limit: u64,
    used: u64,
}

impl Pool {
    /// An empty pool that may grow to `limit` bytes.
    pub fn new(limit: u64) -> Pool {
        Pool { segments: Vec::new(), limit, used: 0 }
    }

    /// Adds a segment and gives its number.
    pub fn add(&mut self, region: Arc<Region>) -> u32 {
        let granules = u32::try_from(region.bytes() / GRANULE_BYTES).unwrap_or(u32::MAX);
        self.segments.push(Segment { region, allocator: Allocator::new(granules) });
        self.segments.len() as u32 - 1
    }

    /// Takes `bytes` (zero counts as one) if some segment has room for them.
    pub fn allocate(&mut self, bytes: u64) -> Option<Slot> {
        let granules = u32::try_from(bytes.div_ceil(GRANULE_BYTES).max(1)).ok()?;
        for (index, segment) in self.segments.iter_mut().enumerate() {
            if let Some(allocation) = segment.allocator.allocate(granules) {
                self.used += bytes;
                return Some(Slot {
                    segment: index as u32,
                    offset: u64::from(allocation.offset) * GRANULE_BYTES,
                    bytes,
                    allocation: Some(allocation),
                });
            }
        }
        None
    }

    /// Gives a slot back.
    pub fn free(&mut self, mut slot: Slot) {
        if let Some(allocation) = slot.allocation.take() {
            self.used -= slot.bytes;
            self.segments[slot.segment as usize].allocator.free(allocation);
        }
    }

    /// How large a segment to add so that `bytes` fit, or `None` if the pool may not grow that far. Rounded up to
    /// an eighth of the power of two below, which is the allocator's size class, so that the slot is sure to fit.
    pub fn growth(&self, bytes: u64) -> Option<u64> {
        const SMALLEST: u64 = 4 << 20;
        let step = (bytes.checked_next_power_of_two()? / 16).max(4096);
        let wanted = bytes.checked_next_multiple_of(step)?.max(SMALLEST);
        let room = self.limit.checked_sub(self.total())?;
        let bytes = bytes.checked_next_multiple_of(step)?;
        (self.segments.len() < SEGMENTS_MAX && bytes <= room).then(|| wanted.min(room).max(bytes))
    }

    /// Segments mapped.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Bytes mapped.
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

    /// The memory of a segment.
    pub fn region(&self, segment: u32) -> &Arc<Region> {
        &self.segments[segment as usize].region
    }

    /// Which segment and offset an address of this process lies at, if it lies in the pool.
    pub fn locate(&self, address: *const u8) -> Option<(u32, u64)> {
        self.segments.iter().enumerate().find_map(|(index, segment)| {
            let offset = (address as usize).checked_sub(segment.region.base() as usize)?;
            (offset < segment.region.bytes() as usize).then_some((index as u32, offset as u64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift_engine::region::RegionOptions;
    use proptest::prelude::*;

    fn pool(segments: &[u64]) -> Pool {
        let mut pool = Pool::new(1 << 30);
        for &bytes in segments {
            let region = Region::memfd("memlift-test", bytes, &RegionOptions::default()).unwrap();
            pool.add(Arc::new(region));
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
                } else if let Some(slot) = pool.allocate(number) {
                    prop_assert!(slot.offset + slot.bytes <= pool.region(slot.segment).bytes());
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
