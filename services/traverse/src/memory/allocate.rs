// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for nodes: size classes out of extents, each extent one tenant's.
//!
//! Layout   classes: multiples of 16 up to 128 bytes, then four to a doubling up to 128 KiB; beyond, an extent of its own
//!          an extent: [`super::MARGIN_BYTES`] that stay empty, allocations, as many again
//! Order    the same calls give the same addresses: a log replays allocations by their sizes, and compares
//!          no extent and no free run reaches over a cut, where a range that moves begins or ends, or a mapping does
//! Owner    the node's writer. What is free is kept here and not in the memory itself, which tenants write
//! Flow     a range that leaves: [`Allocator::cut`] ─▶ [`Allocator::detach`] ─▶ [`Allocator::give`], or [`Allocator::attach`] when it
//!          stays. One that comes: [`Allocator::take`]
//! Not here exactly once: `node` remembers what it has answered

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{MARGIN_BYTES, Memory, Part, Ranges};

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
    /// The same of extents that came with ranges.
    spare: Vec<(u64, u64)>,
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
    /// Where neither extents nor free runs are joined.
    cuts: BTreeSet<u64>,
    /// Extents: first → how many, whose.
    extents: BTreeMap<u64, (u64, u32)>,
    heaps: BTreeMap<u32, Heap>,
    ranges: Ranges,
    /// What was detached: first → how many, and all that is known about it.
    detached: BTreeMap<u64, (u64, Part)>,
}

/// What an allocation of `bytes` takes up, where it is one of a class.
fn class_of(bytes: u64) -> Option<u64> {
    match bytes {
        0..=SMALL_BYTES => Some(bytes.max(1).next_multiple_of(SMALL_STEP)),
        _ if bytes <= CLASS_BYTES_MAX => Some(bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2))),
        _ => None,
    }
}

/// Whether a class of this size exists.
pub(super) fn is_class(class: u64) -> bool {
    class > 0 && class_of(class) == Some(class)
}

/// What an address of a class is a multiple of: a node of whole cache lines starts one.
pub(super) fn align_of(class: u64) -> u64 {
    if class.is_multiple_of(64) { 64 } else { SMALL_STEP }
}

impl Allocator {
    /// All of a memory.
    #[must_use]
    pub fn new(memory: Arc<Memory>) -> Allocator {
        let mut allocator = Allocator::restore(memory, [], &Part::default());
        if allocator.memory.bytes() > 0 {
            allocator.grant(allocator.memory.base(), allocator.memory.bytes());
        }
        allocator
    }

    /// Addresses that are mapped and that nobody had are free from now on.
    pub fn grant(&mut self, base: u64, bytes: u64) {
        self.cuts.extend([base, base + bytes]);
        self.give_back(base, bytes);
    }

    /// `bytes` bytes for a tenant, or `None` when there are none left. Nodes of a multiple of 64 bytes start a cache line.
    pub fn allocate(&mut self, tenant: u32, bytes: u64) -> Option<u64> {
        let Some(class) = class_of(bytes) else { return self.large(tenant, bytes) };
        let heap = self.heaps.entry(tenant).or_default();
        if let Some(address) = heap.free.get_mut(&class).and_then(Vec::pop) {
            return Some(address);
        }
        let fits = |fresh: (u64, u64)| {
            Some(fresh.0.next_multiple_of(align_of(class))).filter(|address| address + class <= fresh.1)
        };
        let mut found = fits(heap.fresh);
        while found.is_none()
            && let Some(spare) = heap.spare.pop()
        {
            heap.fresh = spare;
            found = fits(spare);
        }
        let address = if let Some(address) = found {
            address
        } else {
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
            heap.fresh.0.next_multiple_of(align_of(class))
        };
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
        self.extents.insert(base, (bytes, tenant));
        self.ranges.add(tenant, base, bytes, &self.cuts);
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
                self.extents.remove(&extent);
                self.ranges.remove(tenant, extent, length);
                self.memory.publish(self.ranges.clone());
                // Whoever gets these addresses next must not read what was there.
                self.memory.clear(extent, length);
                self.give_back(extent, length);
                true
            }
        }
    }

    fn give_back(&mut self, mut base: u64, mut bytes: u64) {
        if let Some((&before, &length)) = self.free.range(..base).next_back()
            && before + length == base
            && !self.cuts.contains(&base)
        {
            self.free.remove(&before);
            (base, bytes) = (before, bytes + length);
        }
        let end = base + bytes;
        if !self.cuts.contains(&end)
            && let Some(length) = self.free.remove(&end)
        {
            bytes += length;
        }
        self.free.insert(base, bytes);
    }

    /// A range of addresses is to leave: nothing that is given out from now on reaches over its ends.
    ///
    /// # Errors
    ///
    /// Something does so already; for people to read.
    pub fn cut(&mut self, base: u64, bytes: u64) -> Result<(), String> {
        for at in [base, base + bytes] {
            if let Some((&extent, &(length, _))) = self.extents.range(..at).next_back()
                && extent + length > at
            {
                return Err(format!(
                    "{at:#x} lies within what was given out as one piece, {extent:#x} to {:#x}: move one of these ends instead",
                    extent + length
                ));
            }
        }
        for at in [base, base + bytes] {
            self.cuts.insert(at);
            if let Some((&run, &length)) = self.free.range(..at).next_back()
                && run + length > at
            {
                self.free.insert(run, at - run);
                self.free.insert(at, run + length - at);
            }
        }
        Ok(())
    }

    /// Nothing of these addresses is given out or taken back from now on; what was given stays readable and writable. What is known
    /// about them stays here until [`Allocator::give`] or [`Allocator::attach`].
    ///
    /// # Errors
    ///
    /// As [`Allocator::cut`], which it does before.
    pub fn detach(&mut self, base: u64, bytes: u64) -> Result<&Part, String> {
        if !self.detached.contains_key(&base) {
            self.cut(base, bytes)?;
            let part = self.part(base, bytes);
            for (run, _) in &part.runs {
                self.free.remove(run);
            }
            for &(extent, length, tenant) in &part.extents {
                self.extents.remove(&extent);
                self.heaps.entry(tenant).or_default().bytes -= length;
            }
            let inside = |address: u64| address.wrapping_sub(base) < bytes;
            for heap in self.heaps.values_mut() {
                heap.free.values_mut().for_each(|free| free.retain(|address| !inside(*address)));
                heap.spare.retain(|spare| !inside(spare.0));
                heap.large.retain(|address, _| !inside(*address));
                if inside(heap.fresh.0) {
                    heap.fresh = (0, 0);
                }
            }
            self.detached.insert(base, (bytes, part));
        }
        Ok(&self.detached[&base].1)
    }

    /// All that is known about a stretch whose ends are cuts.
    #[must_use]
    pub fn part(&self, base: u64, bytes: u64) -> Part {
        let inside = |address: u64| address.wrapping_sub(base) < bytes;
        let mut part = Part::default();
        let end = base.saturating_add(bytes);
        part.extents =
            self.extents.range(base..end).map(|(&at, &(length, whose))| (at, length, whose)).collect();
        part.runs = self.free.range(base..end).map(|(&run, &length)| (run, length)).collect();
        for (&tenant, heap) in &self.heaps {
            for (&class, free) in &heap.free {
                let free: Vec<u64> = free.iter().copied().filter(|address| inside(*address)).collect();
                if !free.is_empty() {
                    part.free.push((tenant, class, free));
                }
            }
            let fresh = std::iter::once(&heap.fresh)
                .chain(&heap.spare)
                .filter(|fresh| **fresh != (0, 0) && inside(fresh.0));
            part.fresh.extend(fresh.map(|&(from, to)| (tenant, from, to)));
            part.large.extend(heap.large.keys().filter(|address| inside(**address)).map(|&at| (tenant, at)));
        }
        part
    }

    /// What was detached stays after all.
    pub fn attach(&mut self, base: u64) {
        if let Some((_, part)) = self.detached.remove(&base) {
            self.adopt(&part);
        }
    }

    /// What was detached is another node's: nobody here may touch it any more. Its pages go back to the system.
    pub fn give(&mut self, base: u64) {
        let Some((bytes, part)) = self.detached.remove(&base) else { return };
        for &(extent, length, tenant) in &part.extents {
            self.ranges.remove(tenant, extent, length);
        }
        self.memory.publish(self.ranges.clone());
        self.memory.clear(base, bytes);
    }

    /// A range has come, with what its last node knew about it; it is mapped already.
    pub fn take(&mut self, base: u64, bytes: u64, part: &Part) {
        self.cuts.extend([base, base + bytes]);
        for &(extent, length, tenant) in &part.extents {
            self.ranges.add(tenant, extent, length, &self.cuts);
        }
        self.adopt(part);
        self.memory.publish(self.ranges.clone());
    }

    fn adopt(&mut self, part: &Part) {
        for &(extent, length, tenant) in &part.extents {
            self.extents.insert(extent, (length, tenant));
            self.heaps.entry(tenant).or_default().bytes += length;
        }
        for &(run, length) in &part.runs {
            self.give_back(run, length);
        }
        for (tenant, class, addresses) in &part.free {
            self.heaps.entry(*tenant).or_default().free.entry(*class).or_default().extend(addresses);
        }
        for &(tenant, from, to) in &part.fresh {
            let heap = self.heaps.entry(tenant).or_default();
            if heap.fresh == (0, 0) {
                heap.fresh = (from, to);
            } else {
                heap.spare.push((from, to));
            }
        }
        for &(tenant, address) in &part.large {
            let extent = address - MARGIN_BYTES;
            let whole = self.extents.get(&extent).map_or(0, |(length, _)| *length);
            self.heaps.entry(tenant).or_default().large.insert(address, (extent, whole));
        }
    }

    /// Where extents and free runs end whatever is free beside them.
    pub fn cuts(&self) -> impl Iterator<Item = u64> {
        self.cuts.iter().copied()
    }

    /// One that gives the same addresses as the one that said `cuts`, and `part` of all addresses.
    #[must_use]
    pub fn restore(memory: Arc<Memory>, cuts: impl IntoIterator<Item = u64>, part: &Part) -> Allocator {
        let mut allocator = Allocator {
            free: BTreeMap::new(),
            cuts: cuts.into_iter().collect(),
            extents: BTreeMap::new(),
            heaps: BTreeMap::new(),
            ranges: Ranges::default(),
            detached: BTreeMap::new(),
            memory,
        };
        for &(extent, length, tenant) in &part.extents {
            allocator.ranges.add(tenant, extent, length, &allocator.cuts);
        }
        allocator.adopt(part);
        allocator.memory.publish(allocator.ranges.clone());
        allocator
    }

    /// What is detached: first address, bytes.
    #[must_use]
    pub fn detached(&self) -> Vec<(u64, u64)> {
        self.detached.iter().map(|(base, (bytes, _))| (*base, *bytes)).collect()
    }

    /// Whether something is detached, and waits for how that ends.
    #[must_use]
    pub fn waits(&self) -> bool {
        !self.detached.is_empty()
    }

    /// Extents in order: first address, bytes, tenant; those detached are not among them.
    pub fn extents(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        self.extents.iter().map(|(&base, &(bytes, tenant))| (base, bytes, tenant))
    }

    /// All addresses that it gives out or has given, neighbours joined; those detached are not among them.
    #[must_use]
    pub fn stretches(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = self.free.iter().map(|(&base, &bytes)| (base, bytes)).collect();
        all.extend(self.extents.iter().map(|(&base, &(bytes, _))| (base, bytes)));
        all.sort_unstable();
        all.dedup_by(|later, earlier| {
            let joined = earlier.0 + earlier.1 == later.0;
            if joined {
                earlier.1 += later.1;
            }
            joined
        });
        all
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

    #[test]
    fn a_part_leaves_comes_back_and_gives_what_it_would_have_given() {
        let memory = |base| Arc::new(Memory::new(base, 4 << 20, false).expect("four MiB"));
        let (here, there) = (memory(1 << 32), memory(1 << 33));
        let mut source = Allocator::new(here.clone());
        let mut target = Allocator::new(there.clone());
        let small: Vec<u64> = (0..100).filter_map(|_| source.allocate(1, 64)).collect();
        let large = source.allocate(2, 300 << 10).expect("large");
        assert!(source.free(1, small[3], 64) && source.free(1, small[9], 64));
        let middle = (1 << 32) + (128 << 10);
        assert!(source.cut(1 << 32, middle - (1 << 32)).expect_err("in an extent").contains("0x100040000"));
        let bytes = 1 << 20;
        here.store(small[5], &[9; 8]);
        let part = source.detach(1 << 32, bytes).expect("at ends of extents").clone();
        assert_eq!(source.detach(1 << 32, bytes).expect("again"), &part);
        let other = source.allocate(1, 64).expect("elsewhere");
        assert!(other >= (1 << 32) + bytes && source.may_write(1, small[5], 8));
        source.attach(1 << 32);
        assert_eq!(source.allocate(1, 64), Some(small[9]), "as if it had never been away");
        assert!(source.free(1, small[9], 64));
        let part = source.detach(1 << 32, bytes).expect("at ends of extents").clone();
        let sent = Part::decode(&part.encode(), 1 << 32, bytes).expect("what was encoded");
        there.add(1 << 32, bytes, false).expect("mapped");
        target.take(1 << 32, bytes, &sent);
        source.give(1 << 32);
        assert!(!source.may_write(1, small[5], 8) && target.may_write(1, small[5], 8));
        assert!(
            here.ranges().find(1, small[5], 8).is_none() && there.ranges().find(1, small[5], 8).is_some()
        );
        assert_eq!(here.word(small[5]).load(std::sync::atomic::Ordering::Relaxed), 0, "given back");
        assert_eq!(target.allocate(1, 64), Some(small[9]));
        assert_eq!(target.allocate(1, 64), Some(small[3]));
        assert!(target.free(2, large, 300 << 10) && !source.free(2, large, 300 << 10));
        assert_eq!(target.free_bytes() + source.free_bytes() + (256 << 10) * 2, 8 << 20);
    }
}
