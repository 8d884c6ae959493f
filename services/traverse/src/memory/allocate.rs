// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for nodes: size classes out of extents, each extent one tenant's.
//!
//! Layout   classes: multiples of 16 up to 128 bytes, then four to a doubling up to 128 KiB; beyond, an extent of its own
//!          an extent: [`super::MARGIN_BYTES`] that stay empty, allocations, as many again
//! Order    the same calls give the same addresses: a log replays allocations by their sizes, and compares
//! Owner    the node's writer. What is free is kept here and not in the memory itself, which tenants write
//! Not here exactly once: `node` remembers what it has answered

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{MARGIN_BYTES, Memory, Ranges};

const SMALL_BYTES: u64 = 128;
const SMALL_STEP: u64 = 16;
const CLASS_BYTES_MAX: u64 = 128 << 10;
const EXTENT_ALIGN: u64 = 4096;
/// Extents double with what a tenant has, from the first to the second.
const EXTENT_BYTES: (u64, u64) = (256 << 10, 64 << 20);

/// The largest allocation.
pub const ALLOCATION_BYTES_MAX: u64 = 1 << 40;

/// What one tenant has.
#[derive(Debug, Default)]
struct Heap {
    /// Free addresses of each class.
    free: BTreeMap<u64, Vec<u64>>,
    /// What of the newest extent was not given out yet: from, to.
    fresh: (u64, u64),
    /// Extents that are one allocation: address → (extent, bytes of the extent).
    large: BTreeMap<u64, (u64, u64)>,
    bytes: u64,
}

/// Gives out the memory of a node.
#[derive(Debug)]
pub struct Allocator {
    memory: Arc<Memory>,
    /// Free addresses: first → how many. Neighbours are one.
    free: BTreeMap<u64, u64>,
    heaps: BTreeMap<u32, Heap>,
    ranges: Ranges,
}

/// What an allocation of `bytes` takes up, where it is one of a class.
fn class_of(bytes: u64) -> Option<u64> {
    match bytes {
        0..=SMALL_BYTES => Some(bytes.max(1).next_multiple_of(SMALL_STEP)),
        _ if bytes <= CLASS_BYTES_MAX => Some(bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2))),
        _ => None,
    }
}

/// What an address of a class is a multiple of: a node of whole cache lines starts one.
fn align_of(class: u64) -> u64 {
    if class.is_multiple_of(64) { 64 } else { SMALL_STEP }
}

impl Allocator {
    /// All of a memory.
    #[must_use]
    pub fn new(memory: Arc<Memory>) -> Allocator {
        let free = BTreeMap::from([(memory.base(), memory.bytes())]);
        Allocator { memory, free, heaps: BTreeMap::new(), ranges: Ranges::default() }
    }

    /// `bytes` bytes for a tenant, or `None` when there are none left. Nodes of a multiple of 64 bytes start a cache line.
    pub fn allocate(&mut self, tenant: u32, bytes: u64) -> Option<u64> {
        let Some(class) = class_of(bytes) else { return self.large(tenant, bytes) };
        let heap = self.heaps.entry(tenant).or_default();
        if let Some(address) = heap.free.get_mut(&class).and_then(Vec::pop) {
            return Some(address);
        }
        let mut address = heap.fresh.0.next_multiple_of(align_of(class));
        if address + class > heap.fresh.1 {
            let wanted = heap.bytes.clamp(EXTENT_BYTES.0, EXTENT_BYTES.1);
            // A small rest of the memory still serves: half as much, down to what is needed now.
            let least = (class + 64 + 2 * MARGIN_BYTES).next_multiple_of(EXTENT_ALIGN);
            let mut tried = wanted.max(least);
            let (extent, got) = loop {
                match self.extent(tenant, tried) {
                    Some(extent) => break (extent, tried),
                    None if tried > least => tried = (tried / 2).next_multiple_of(EXTENT_ALIGN).max(least),
                    None => return None,
                }
            };
            let heap = self.heaps.entry(tenant).or_default();
            heap.fresh = (extent + MARGIN_BYTES, extent + got - MARGIN_BYTES);
            address = heap.fresh.0.next_multiple_of(align_of(class));
        }
        self.heaps.entry(tenant).or_default().fresh.0 = address + class;
        Some(address)
    }

    fn large(&mut self, tenant: u32, bytes: u64) -> Option<u64> {
        if bytes > ALLOCATION_BYTES_MAX {
            return None;
        }
        let whole = (bytes + 2 * MARGIN_BYTES).next_multiple_of(EXTENT_ALIGN);
        let extent = self.extent(tenant, whole)?;
        let address = extent + MARGIN_BYTES;
        self.heaps.entry(tenant).or_default().large.insert(address, (extent, whole));
        Some(address)
    }

    /// The first free addresses that are enough become the tenant's.
    fn extent(&mut self, tenant: u32, bytes: u64) -> Option<u64> {
        let (&base, &length) = self.free.iter().find(|&(_, &length)| length >= bytes)?;
        self.free.remove(&base);
        if length > bytes {
            self.free.insert(base + bytes, length - bytes);
        }
        self.heaps.entry(tenant).or_default().bytes += bytes;
        self.ranges.add(tenant, base, bytes);
        self.memory.publish(self.ranges.clone());
        Some(base)
    }

    /// Takes an allocation back. False: the tenant has none there, of that size. A tenant that gives back what it goes on using
    /// harms only itself: the addresses stay its own, large ones aside, which become nobody's.
    pub fn free(&mut self, tenant: u32, address: u64, bytes: u64) -> bool {
        let Some(heap) = self.heaps.get_mut(&tenant) else { return false };
        match class_of(bytes) {
            Some(class) => {
                let good = address.is_multiple_of(align_of(class))
                    && address.checked_sub(MARGIN_BYTES).is_some_and(|from| {
                        self.ranges.find(tenant, from, class + 2 * MARGIN_BYTES).is_some()
                    });
                if good {
                    heap.free.entry(class).or_default().push(address);
                }
                good
            }
            None => {
                let whole =
                    (bytes.min(ALLOCATION_BYTES_MAX) + 2 * MARGIN_BYTES).next_multiple_of(EXTENT_ALIGN);
                let Some(&(extent, length)) = heap.large.get(&address) else { return false };
                if length != whole {
                    return false;
                }
                heap.large.remove(&address);
                heap.bytes -= length;
                self.ranges.remove(tenant, extent, length);
                self.memory.publish(self.ranges.clone());
                // Whoever gets these addresses next must not read what was there.
                self.memory.clear(extent, length);
                self.give(extent, length);
                true
            }
        }
    }

    fn give(&mut self, mut base: u64, mut bytes: u64) {
        if let Some((&before, &length)) = self.free.range(..base).next_back()
            && before + length == base
        {
            self.free.remove(&before);
            (base, bytes) = (before, bytes + length);
        }
        if let Some(length) = self.free.remove(&(base + bytes)) {
            bytes += length;
        }
        self.free.insert(base, bytes);
    }

    /// Whether a tenant may change these bytes.
    #[must_use]
    pub fn may_write(&self, tenant: u32, address: u64, bytes: u64) -> bool {
        self.ranges.find(tenant, address, bytes).is_some_and(|range| range.writable)
    }

    /// Bytes that no tenant has.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_are_as_large_as_asked_and_not_much_larger() {
        for bytes in 0..=CLASS_BYTES_MAX {
            let class = class_of(bytes).expect("small enough");
            assert!(
                class >= bytes && class <= (bytes + bytes / 4).max(bytes + SMALL_STEP),
                "{bytes}: {class}"
            );
            assert_eq!(class_of(class), Some(class), "a class holds itself");
        }
        assert_eq!(class_of(CLASS_BYTES_MAX + 1), None);
    }

    proptest! {
        #[test]
        fn allocations_never_overlap_and_stay_with_their_tenant(
            calls in prop::collection::vec((0u32..3, 0u64..40, 0u32..20, any::<bool>()), 1..200),
        ) {
            let memory = Arc::new(Memory::new(1 << 32, 4 << 20, false).expect("four MiB"));
            let mut allocator = Allocator::new(memory.clone());
            let mut live: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
            for (tenant, small, shift, back) in calls {
                if back && !live.is_empty() {
                    let (&address, &(bytes, owner)) = live.iter().nth(small as usize % live.len()).expect("one");
                    prop_assert!(!allocator.free(owner + 1, address, bytes), "another tenant gave it back");
                    if allocator.free(owner, address, bytes) {
                        live.remove(&address);
                    }
                    continue;
                }
                let bytes = (small + 1) << (shift % 14);
                let Some(address) = allocator.allocate(tenant, bytes) else { continue };
                let ranges = memory.ranges();
                prop_assert!(ranges.find(tenant, address - MARGIN_BYTES, bytes + 2 * MARGIN_BYTES).is_some());
                prop_assert!((0..3).filter(|&t| ranges.find(t, address, 1).is_some()).count() == 1);
                if bytes % 64 == 0 && bytes <= CLASS_BYTES_MAX {
                    prop_assert_eq!(address % 64, 0);
                }
                if let Some((&other, &(length, _))) = live.range(..address + bytes).next_back() {
                    prop_assert!(other + length <= address, "{:#x}+{} and {:#x}+{}", other, length, address, bytes);
                }
                live.insert(address, (bytes, tenant));
            }
        }
    }

    #[test]
    fn memory_that_is_full_says_so_and_what_comes_back_serves_again() {
        let memory = Arc::new(Memory::new(1 << 32, 1 << 20, false).expect("one MiB"));
        let mut allocator = Allocator::new(memory);
        let mut all = Vec::new();
        while let Some(address) = allocator.allocate(1, 64) {
            all.push(address);
        }
        assert!(all.len() > 15_000, "{}", all.len());
        assert_eq!(allocator.allocate(2, 1), None);
        assert_eq!(allocator.allocate(1, 1 << 50), None);
        assert!(allocator.free(1, all[5], 64));
        assert_eq!(allocator.allocate(1, 64), Some(all[5]));
        assert!(
            !allocator.free(1, all[5] + 3, 64)
                && !allocator.free(1, 12, 64)
                && !allocator.free(3, all[5], 64)
        );
    }
}
