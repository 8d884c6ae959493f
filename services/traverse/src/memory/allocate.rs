// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Allocates the memory of a node: pages to tenants, and blocks of any size to their clients.
//!
//! - **Layout** an extent is whole pages of one tenant: [`super::MARGIN_BYTES`] unused bytes, blocks, and the same number of
//!   unused bytes. Neighbouring extents of a tenant are merged, up to 64 MiB
//! - **Flow** [`Allocator::allocate`]: best fit in the tenant's extents ─▶ otherwise a new extent ─▶ otherwise adjacent free
//!   pages are taken back from all tenants, and the search is repeated. [`Allocator::free`]: joins the block with its free
//!   neighbours, whatever their sizes; an extent that is all free goes back to the free pages. [`Allocator::retire`] frees
//!   later (`retired`)
//! - **Bound** in a memory of 256 times the largest allocation, with sizes drawn uniformly, more than 90 % is allocated when an
//!   allocation fails for the first time, even after a hundred times the memory's size was allocated and freed (test `churn`)
//! - **Order** a log records the address of each block and replays it with [`Allocator::claim`]: no choice made here is
//!   repeated. No extent and no free run crosses a cut: an address at which a moving range, or a mapping, begins or ends
//! - **Owner** the node's writer. The records of free memory lie outside the memory itself, which tenants can write
//! - **Ranges** one that leaves: [`Allocator::cut`] ─▶ [`Allocator::detach`] ─▶ [`Allocator::give_away`], or [`Allocator::attach`]
//!   if it stays. One that arrives: [`Allocator::adopt_range`]
//! - **Not here** making each change once: `node` remembers its answers

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::blocks::{Blocks, GRAIN_BYTES, rounded};
use super::retired::Retired;
use super::runs::{PageContents, Runs};
use super::{AllocatorState, MARGIN_BYTES, Memory, PAGE_BYTES, Ranges};

/// Extents grow with the memory that a tenant has, from the first size to the second.
const EXTENT_BYTES: (u64, u64) = (256 << 10, 64 << 20);

/// The largest allocation.
pub const ALLOCATION_BYTES_MAX: u64 = 1 << 40;

/// Memory of one tenant.
#[derive(Debug, Default)]
struct Heap {
    free: Blocks,
    /// Bytes of the tenant's extents.
    bytes: u64,
}

/// Use of a node's memory, in bytes. Live, retired, free and waste add up to all memory, except for ranges that are leaving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that tenants have allocated and still use.
    pub live: u64,
    /// Bytes that were unlinked and become free once no walk can be there.
    pub retired: u64,
    /// Bytes that can be allocated.
    pub free: u64,
    /// The unused ends of extents.
    pub waste: u64,
    /// The largest contiguous free piece.
    pub largest_free: u64,
}

/// See the module's header.
#[derive(Debug)]
pub struct Allocator {
    memory: Arc<Memory>,
    /// Pages that no tenant has.
    runs: Runs,
    /// Addresses across which neither extents nor free runs are merged.
    cuts: BTreeSet<u64>,
    /// Extents: first address → bytes, tenant.
    extents: BTreeMap<u64, (u64, u32)>,
    heaps: BTreeMap<u32, Heap>,
    retired: Retired,
    ranges: Ranges,
    /// Detached ranges: first address → bytes, and the allocator's data about the range.
    detached: BTreeMap<u64, (u64, AllocatorState)>,
}

/// Returns the bytes of a new extent that has room for a block of `bytes` bytes.
fn room_for(bytes: u64) -> u64 {
    (bytes + 64 + 2 * MARGIN_BYTES).next_multiple_of(PAGE_BYTES)
}

impl Allocator {
    /// Makes an allocator of a whole memory.
    #[must_use]
    pub fn new(memory: Arc<Memory>) -> Allocator {
        let (base, bytes) = (memory.base(), memory.bytes());
        Allocator::for_range(memory, base, bytes)
    }

    /// Makes an allocator of `bytes` bytes of a memory, from `base` on.
    #[must_use]
    pub fn for_range(memory: Arc<Memory>, base: u64, bytes: u64) -> Allocator {
        let mut allocator = Allocator::restore(memory, [], &AllocatorState::default());
        if bytes > 0 {
            allocator.grant(base, bytes);
        }
        allocator
    }

    /// Adds free addresses that follow the present ones in the same mapping.
    pub fn grow(&mut self, base: u64, bytes: u64) {
        self.cuts.remove(&base);
        self.cuts.insert(base + bytes);
        self.runs.give(base, bytes, PageContents::Clean, &self.cuts);
    }

    /// Adds free addresses that are mapped and that no node had before.
    pub fn grant(&mut self, base: u64, bytes: u64) {
        self.cuts.extend([base, base + bytes]);
        self.runs.give(base, bytes, PageContents::Clean, &self.cuts);
    }

    /// Allocates `bytes` bytes for a tenant; returns `None` if there is no room. A block of a multiple of 64 bytes starts at
    /// a cache line.
    pub fn allocate(&mut self, tenant: u32, bytes: u64) -> Option<u64> {
        if bytes > ALLOCATION_BYTES_MAX {
            return None;
        }
        let bytes = rounded(bytes);
        if let Some(address) = self.heaps.entry(tenant).or_default().free.take(bytes) {
            return Some(address);
        }
        if !self.extend(tenant, bytes) {
            self.gather(room_for(bytes))?;
            self.extend(tenant, bytes);
        }
        self.heaps.entry(tenant).or_default().free.take(bytes)
    }

    /// Adds an extent for a tenant, with room for a block of `bytes` bytes; returns false if there are no such pages.
    fn extend(&mut self, tenant: u32, bytes: u64) -> bool {
        let least = room_for(bytes);
        let has = self.heaps.entry(tenant).or_default().bytes;
        let wanted = has.clamp(EXTENT_BYTES.0, EXTENT_BYTES.1).next_multiple_of(PAGE_BYTES).max(least);
        // If the wanted size is not free, a smaller run that has room for the block serves too. All of it is taken, so that
        // no gap is left between two extents.
        let Some((base, length)) = self.runs.find(wanted).or_else(|| self.runs.find(least)) else {
            return false;
        };
        self.occupy(tenant, base, length.min(wanted));
        self.publish();
        true
    }

    /// Takes free blocks back from all tenants, so that they and the free pages between them form a free run of at least
    /// `bytes` bytes. The shortest such stretch is chosen; `None`: there is none.
    fn gather(&mut self, bytes: u64) -> Option<()> {
        let mut pieces: Vec<(u64, u64)> =
            self.runs.within(0, u64::MAX).map(|(at, length)| (at, at + length)).collect();
        let mut blocks = BTreeMap::new();
        for (&tenant, heap) in &self.heaps {
            for (at, length) in heap.free.of_at_least(PAGE_BYTES) {
                if let Some((from, to)) = self.pages_of(at, length) {
                    pieces.push((from, to));
                    blocks.insert(from, (tenant, at, length));
                }
            }
        }
        pieces.sort_unstable();
        let mut best: Option<(u64, u64)> = None;
        let mut stretch = (0, 0);
        for (from, to) in pieces.into_iter().chain([(u64::MAX, u64::MAX)]) {
            if stretch.1 == from && !self.cuts.contains(&from) {
                stretch.1 = to;
                continue;
            }
            let length = stretch.1 - stretch.0;
            if length >= bytes && best.is_none_or(|best| length < best.1 - best.0) {
                best = Some(stretch);
            }
            stretch = (from, to);
        }
        let (from, to) = best?;
        for (_, &(tenant, at, length)) in blocks.range(from..to) {
            self.release(tenant, at, length);
        }
        Some(())
    }

    /// Makes free pages into an extent of a tenant.
    fn occupy(&mut self, tenant: u32, base: u64, bytes: u64) {
        if self.runs.take(base, bytes).is_foreign_to(tenant) {
            // The tenant must not read bytes that another tenant left there.
            self.memory.clear(base, bytes);
        }
        self.extents.insert(base, (bytes, tenant));
        let heap = self.heaps.entry(tenant).or_default();
        heap.bytes += bytes;
        heap.free.give(base + MARGIN_BYTES, bytes - 2 * MARGIN_BYTES);
        self.ranges.add(tenant, base, bytes, &self.cuts);
        self.join(base + bytes, EXTENT_BYTES.1);
        self.join(base, EXTENT_BYTES.1);
    }

    /// Merges the two extents that meet at an address, if they belong to one tenant and are together no longer than `most`.
    fn join(&mut self, at: u64, most: u64) {
        let Some((&left, &(left_bytes, tenant))) = self.extents.range(..at).next_back() else { return };
        let Some(&(right_bytes, other)) = self.extents.get(&at) else { return };
        if left + left_bytes != at
            || tenant != other
            || self.cuts.contains(&at)
            || left_bytes + right_bytes > most
        {
            return;
        }
        self.extents.remove(&at);
        self.extents.insert(left, (left_bytes + right_bytes, tenant));
        self.heaps.entry(tenant).or_default().free.give(at - MARGIN_BYTES, 2 * MARGIN_BYTES);
    }

    /// Takes the whole pages of all free blocks back from their tenants.
    fn trim(&mut self) {
        let tenants: Vec<u32> = self.heaps.keys().copied().collect();
        for tenant in tenants {
            for (at, length) in self.heaps[&tenant].free.of_at_least(PAGE_BYTES) {
                self.release(tenant, at, length);
            }
        }
        self.publish();
    }

    /// Returns the whole pages of a free block that can be taken out of its extent: from, to.
    fn pages_of(&self, at: u64, length: u64) -> Option<(u64, u64)> {
        let (&extent, &(bytes, _)) = self.extents.range(..=at).next_back()?;
        let end = extent + bytes;
        let first = at == extent + MARGIN_BYTES;
        let last = at + length == end - MARGIN_BYTES;
        let from = if first { extent } else { (at + MARGIN_BYTES).next_multiple_of(PAGE_BYTES) };
        let to = if last { end } else { (at + length - MARGIN_BYTES) / PAGE_BYTES * PAGE_BYTES };
        (from < to).then_some((from, to))
    }

    /// Takes the whole pages of a free block back from its tenant; the remaining extents on both sides get unused ends.
    fn release(&mut self, tenant: u32, at: u64, length: u64) {
        let Some((&extent, &(bytes, _))) = self.extents.range(..=at).next_back() else { return };
        let Some((from, to)) = self.pages_of(at, length) else { return };
        let end = extent + bytes;
        let (first, last) = (from == extent, to == end);
        let heap = self.heaps.entry(tenant).or_default();
        heap.free.remove(at);
        heap.bytes -= to - from;
        self.extents.remove(&extent);
        if !first {
            self.extents.insert(extent, (from - extent, tenant));
            if from - MARGIN_BYTES > at {
                heap.free.give(at, from - MARGIN_BYTES - at);
            }
        }
        if !last {
            self.extents.insert(to, (end - to, tenant));
            if at + length > to + MARGIN_BYTES {
                heap.free.give(to + MARGIN_BYTES, at + length - to - MARGIN_BYTES);
            }
        }
        self.ranges.remove(tenant, from, to - from);
        self.runs.give(from, to - from, PageContents::Of(tenant), &self.cuts);
    }

    fn publish(&self) {
        self.memory.publish(self.ranges.clone());
    }

    /// Allocates the block that a log recorded at this address.
    ///
    /// # Errors
    ///
    /// The block cannot have been there: other blocks lie there, or the addresses do not belong to this node.
    pub fn claim(&mut self, tenant: u32, address: u64, bytes: u64) -> Result<(), &'static str> {
        let good =
            address.is_multiple_of(GRAIN_BYTES) && bytes <= ALLOCATION_BYTES_MAX && address >= MARGIN_BYTES;
        let bytes = rounded(bytes);
        let end = address.checked_add(bytes).and_then(|end| end.checked_add(MARGIN_BYTES + PAGE_BYTES));
        if !good || end.is_none() {
            return Err("no block lies there");
        }
        if self.heaps.entry(tenant).or_default().free.take_at(address, bytes) {
            return Ok(());
        }
        let from = (address - MARGIN_BYTES) / PAGE_BYTES * PAGE_BYTES;
        let to = (address + bytes + MARGIN_BYTES).next_multiple_of(PAGE_BYTES);
        if !self.covers(tenant, from, to) {
            self.trim();
            if !self.covers(tenant, from, to) {
                return Err("other memory lies there");
            }
        }
        let mut at = from;
        while at < to {
            match self.extents.range(..=at).next_back() {
                Some((&extent, &(length, _))) if at < extent + length => at = extent + length,
                _ => {
                    let next = self.extents.range(at..to).next().map_or(to, |(&extent, _)| extent);
                    self.occupy(tenant, at, next - at);
                    at = next;
                }
            }
        }
        let inside: Vec<u64> = self.extents.range(from + 1..to).map(|(&extent, _)| extent).collect();
        inside.into_iter().for_each(|at| self.join(at, u64::MAX));
        self.publish();
        match self.heaps.entry(tenant).or_default().free.take_at(address, bytes) {
            true => Ok(()),
            false => Err("it was given before"),
        }
    }

    /// Returns true if these pages are free or belong to the tenant.
    fn covers(&self, tenant: u32, from: u64, to: u64) -> bool {
        let mut at = from;
        while at < to {
            let extent =
                self.extents.range(..=at).next_back().map(|(&base, &(length, whose))| (base + length, whose));
            at = match (extent, self.runs.around(at)) {
                (Some((end, whose)), _) if at < end && whose == tenant => end,
                (_, Some((base, length))) => base + length,
                _ => return false,
            };
        }
        true
    }

    /// Returns true if these bytes are allocated to the tenant, and neither free nor retired.
    fn is_live(&self, tenant: u32, address: u64, bytes: u64) -> bool {
        let extent = self.extents.range(..=address).next_back();
        address.is_multiple_of(GRAIN_BYTES)
            && bytes <= ALLOCATION_BYTES_MAX
            && extent.is_some_and(|(&base, &(length, whose))| {
                whose == tenant
                    && address - base >= MARGIN_BYTES
                    && address - base + bytes <= length - MARGIN_BYTES
            })
            && !self.heaps.get(&tenant).is_some_and(|heap| heap.free.overlaps(address, bytes))
            && !self.retired.overlaps(address, bytes)
    }

    /// Frees an allocation, or any part of it at multiples of 16. Returns false if the tenant has no allocation there, or
    /// freed it before.
    pub fn free(&mut self, tenant: u32, address: u64, bytes: u64) -> bool {
        let bytes = rounded(bytes);
        let live = self.is_live(tenant, address, bytes);
        if live {
            self.reclaim(tenant, address, bytes);
        }
        live
    }

    fn reclaim(&mut self, tenant: u32, address: u64, bytes: u64) {
        let (at, length) = self.heaps.entry(tenant).or_default().free.give(address, bytes);
        let extent = self.extents.range(..=at).next_back();
        if extent.is_some_and(|(_, &(bytes, _))| bytes - 2 * MARGIN_BYTES == length) {
            self.release(tenant, at, length);
            self.publish();
        }
    }

    /// Retires memory that was unlinked just now: it becomes free when no walk can be there any more ([`Allocator::ripe`]).
    /// Returns false in the same cases as [`Allocator::free`].
    pub fn retire(&mut self, tenant: u32, address: u64, bytes: u64) -> bool {
        let bytes = rounded(bytes);
        let live = self.is_live(tenant, address, bytes);
        if live {
            self.retired.add(tenant, address, bytes);
        }
        live
    }

    /// Assigns this clock to all blocks retired so far; they were retired at this clock or earlier.
    pub fn stamp(&mut self, now: u32) {
        self.retired.stamp(now);
    }

    /// Frees retired memory that no walk can be at any more; returns tenant, address and bytes of each piece.
    pub fn ripe(&mut self, now: u32) -> Vec<(u32, u64, u64)> {
        let ripe = self.retired.ripe(now);
        for &(tenant, address, bytes) in &ripe {
            self.reclaim(tenant, address, bytes);
        }
        ripe
    }

    /// Returns the time until `bytes` retired bytes are free; `None`: fewer bytes are retired.
    #[must_use]
    pub fn wait_for(&self, bytes: u64, now: u32) -> Option<Duration> {
        self.retired.wait_for(rounded(bytes), now)
    }

    /// Sets the seconds of the clock for which retired memory rests; 0: it is freed without a rest.
    pub fn set_grace(&mut self, grace_s: u32) {
        self.retired.grace_s = grace_s;
    }

    /// Frees a retired piece, as a log recorded; returns false if it is not retired.
    pub fn unretire(&mut self, tenant: u32, address: u64, bytes: u64) -> bool {
        let retired = self.retired.remove(tenant, address, bytes);
        if retired {
            self.reclaim(tenant, address, bytes);
        }
        retired
    }

    /// Prepares a range of addresses to leave: no allocation from now on crosses its ends.
    ///
    /// # Errors
    ///
    /// An allocation crosses one of the ends; the text is for people to read.
    pub fn cut(&mut self, base: u64, bytes: u64) -> Result<(), String> {
        for at in [base, base + bytes] {
            if let Some((&extent, &(length, tenant))) = self.extents.range(..at).next_back()
                && extent + length > at
                && !self.split(tenant, extent, at)
            {
                return Err(format!(
                    "{at:#x} lies within what was given out as one piece, {extent:#x} to {:#x}: move one of these ends instead",
                    extent + length
                ));
            }
        }
        self.cuts.extend([base, base + bytes]);
        self.runs.cut(base);
        self.runs.cut(base + bytes);
        Ok(())
    }

    /// Splits an extent in two, if the bytes around the address are free for the unused ends.
    fn split(&mut self, tenant: u32, extent: u64, at: u64) -> bool {
        let (length, _) = self.extents[&extent];
        let free = &mut self.heaps.entry(tenant).or_default().free;
        if !at.is_multiple_of(PAGE_BYTES) || !free.take_at(at - MARGIN_BYTES, 2 * MARGIN_BYTES) {
            return false;
        }
        self.extents.insert(extent, (at - extent, tenant));
        self.extents.insert(at, (extent + length - at, tenant));
        self.cuts.insert(at);
        // The tenant's ranges on the two sides of the cut must be separate.
        self.ranges.remove(tenant, extent, length);
        self.ranges.add(tenant, extent, at - extent, &self.cuts);
        self.ranges.add(tenant, at, extent + length - at, &self.cuts);
        self.publish();
        true
    }

    /// Detaches a range: from now on nothing in it is allocated or freed; allocated blocks stay readable and writable. The
    /// allocator's data about the range is kept here until [`Allocator::give_away`] or [`Allocator::attach`].
    ///
    /// # Errors
    ///
    /// The errors of [`Allocator::cut`], which is called first.
    pub fn detach(&mut self, base: u64, bytes: u64) -> Result<&AllocatorState, String> {
        if !self.detached.contains_key(&base) {
            self.cut(base, bytes)?;
            let part = self.part(base, bytes);
            for &(run, length) in &part.runs {
                self.runs.take(run, length);
            }
            for &(extent, length, tenant) in &part.extents {
                self.extents.remove(&extent);
                self.heaps.entry(tenant).or_default().bytes -= length;
            }
            for &(tenant, address, _) in &part.free {
                self.heaps.entry(tenant).or_default().free.remove(address);
            }
            for &(tenant, address, length) in &part.retired {
                self.retired.remove(tenant, address, length);
            }
            self.detached.insert(base, (bytes, part));
        }
        Ok(&self.detached[&base].1)
    }

    /// Returns the allocator's data about a stretch whose ends are cuts.
    #[must_use]
    pub fn part(&self, base: u64, bytes: u64) -> AllocatorState {
        let end = base.saturating_add(bytes);
        let blocks = |(&tenant, heap): (&u32, &Heap)| -> Vec<(u32, u64, u64)> {
            heap.free.within(base, end).map(|(at, length)| (tenant, at, length)).collect()
        };
        AllocatorState {
            extents: self
                .extents
                .range(base..end)
                .map(|(&at, &(length, whose))| (at, length, whose))
                .collect(),
            free: self.heaps.iter().flat_map(blocks).collect(),
            retired: self.retired.within(base, end),
            runs: self.runs.within(base, end).collect(),
        }
    }

    /// Ends the detachment of a range that stays after all.
    pub fn attach(&mut self, base: u64) {
        if let Some((_, part)) = self.detached.remove(&base) {
            self.adopt(&part);
        }
    }

    /// Gives a detached range to another node: no tenant may access it here any more. Its pages go back to the system.
    pub fn give_away(&mut self, base: u64) {
        let Some((bytes, part)) = self.detached.remove(&base) else { return };
        for &(extent, length, tenant) in &part.extents {
            self.ranges.remove(tenant, extent, length);
        }
        self.publish();
        self.memory.clear(base, bytes);
    }

    /// Adopts a range that has arrived, with the data of its last node's allocator; the range is already mapped.
    pub fn adopt_range(&mut self, base: u64, bytes: u64, part: &AllocatorState) {
        self.cuts.extend([base, base + bytes]);
        for &(extent, length, tenant) in &part.extents {
            self.ranges.add(tenant, extent, length, &self.cuts);
        }
        self.adopt(part);
        self.publish();
    }

    fn adopt(&mut self, part: &AllocatorState) {
        for &(extent, length, tenant) in &part.extents {
            self.extents.insert(extent, (length, tenant));
            self.heaps.entry(tenant).or_default().bytes += length;
        }
        for &(run, length) in &part.runs {
            self.runs.give(run, length, PageContents::Mixed, &self.cuts);
        }
        for &(tenant, address, length) in &part.free {
            self.heaps.entry(tenant).or_default().free.give(address, length);
        }
        for &(tenant, address, length) in &part.retired {
            self.retired.add(tenant, address, length);
        }
    }

    /// Returns the addresses that no extent and no free run crosses.
    pub fn cuts(&self) -> impl Iterator<Item = u64> {
        self.cuts.iter().copied()
    }

    /// Makes an allocator with the state of the one that returned these `cuts`, and `part` for all addresses.
    #[must_use]
    pub fn restore(
        memory: Arc<Memory>,
        cuts: impl IntoIterator<Item = u64>,
        part: &AllocatorState,
    ) -> Allocator {
        let mut allocator = Allocator {
            runs: Runs::default(),
            cuts: cuts.into_iter().collect(),
            extents: BTreeMap::new(),
            heaps: BTreeMap::new(),
            retired: Retired::default(),
            ranges: Ranges::default(),
            detached: BTreeMap::new(),
            memory,
        };
        for &(extent, length, tenant) in &part.extents {
            allocator.ranges.add(tenant, extent, length, &allocator.cuts);
        }
        allocator.adopt(part);
        allocator.publish();
        allocator
    }

    /// Returns the detached ranges: first address, bytes of each.
    #[must_use]
    pub fn detached(&self) -> Vec<(u64, u64)> {
        self.detached.iter().map(|(base, (bytes, _))| (*base, *bytes)).collect()
    }

    /// Returns true if a range is detached, and was neither attached again nor given away yet.
    #[must_use]
    pub fn has_detached(&self) -> bool {
        !self.detached.is_empty()
    }

    /// Returns the extents in order: first address, bytes, tenant; without detached ranges.
    pub fn extents(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        self.extents.iter().map(|(&base, &(bytes, tenant))| (base, bytes, tenant))
    }

    /// Returns all addresses that the allocator manages, neighbours merged; without detached ranges.
    #[must_use]
    pub fn stretches(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = self.runs.within(0, u64::MAX).collect();
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

    /// Returns true if a tenant may change these bytes.
    #[must_use]
    pub fn may_write(&self, tenant: u32, address: u64, bytes: u64) -> bool {
        self.ranges.find(tenant, address, bytes).is_some_and(|range| range.writable)
    }

    /// Returns how the memory is used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let (nobodys, largest) = self.runs.bytes();
        let extents: u64 = self.heaps.values().map(|heap| heap.bytes).sum();
        let free: u64 = self.heaps.values().map(|heap| heap.free.bytes()).sum();
        let waste = self.extents.len() as u64 * 2 * MARGIN_BYTES;
        let retired = self.retired.bytes();
        Usage {
            live: extents.saturating_sub(free + waste + retired),
            retired,
            free: nobodys + free,
            waste,
            largest_free: self.heaps.values().map(|heap| heap.free.largest()).fold(largest, u64::max),
        }
    }
}

#[cfg(test)]
mod tests;
