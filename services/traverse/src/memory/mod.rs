// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a node: stretches of global addresses, each mapped once, written by one thread and read by all.
//!
//! - **Flow** [`Allocator`] gives extents to tenants ─▶ [`Ranges`] is published ─▶ each shard adopts it at its next turn ─▶
//!   [`Ranges::find`] ─▶ a host address for a whole window
//! - **Order** only the node's writer stores, eight bytes at a time and atomically, so a reader sees old or new words and never a
//!   mixture. A new node is stored before the link to it (Release)
//! - **Owner** [`Memory`] owns the mappings while a reference to it exists; none is unmapped or moved before. When a stretch goes
//!   to another node its pages go back to the system, and its mapping stays, in case the stretch comes back
//! - **Not here** the meaning of the bytes, and the log that survives the process (`node`)

mod allocate;
mod blocks;
mod part;
mod range;
mod retired;
mod runs;
mod segment;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memlift_ground::region::RegionError;

pub use allocate::{ALLOCATION_BYTES_MAX, Allocator, Usage};
pub use part::AllocatorState;
pub use range::{Range, Ranges};
pub use retired::GRACE;
pub use segment::SEGMENTS_MAX;
use segment::{Segment, Segments};

/// Bytes at both ends of an extent that no allocation uses. With them the whole window of each node (at most 256 bytes,
/// starting at most 256 before it) lies in its tenant's range.
pub const MARGIN_BYTES: u64 = 256;

/// Tenants get whole pages of this size, whatever the mapping's page size is.
const PAGE_BYTES: u64 = 4096;

/// Memory that a node serves: mapped stretches of addresses, and the ranges of its tenants.
#[derive(Debug)]
pub struct Memory {
    segments: Segments,
    ranges: RwLock<Arc<Ranges>>,
    generation: AtomicU64,
}

impl Memory {
    /// Maps `bytes` bytes (rounded up to 4 KiB; 0: nothing yet) behind the global addresses from `base` on, in huge pages if
    /// there are any. With `prefault` the pages are touched now, so that missing memory is found here and not in the middle
    /// of a walk.
    ///
    /// # Errors
    ///
    /// [`RegionError::Headroom`] if the machine has not enough memory; errors of mmap.
    pub fn new(base: u64, bytes: u64, prefault: bool) -> Result<Memory, RegionError> {
        let memory = Memory {
            segments: Segments::default(),
            ranges: RwLock::default(),
            generation: AtomicU64::new(1),
        };
        let bytes = bytes.next_multiple_of(4096);
        if bytes > 0 {
            memory.segments.push(Segment::map(base, bytes, prefault)?);
        }
        Ok(memory)
    }

    /// Maps more addresses, all zero. Addresses in a stretch that is mapped already become zero again.
    ///
    /// # Errors
    ///
    /// The machine has not enough memory, or these addresses overlap a mapped stretch in part; for people to read.
    pub(crate) fn add(&self, base: u64, bytes: u64, prefault: bool) -> Result<(), String> {
        if let Some(segment) = self.segments.iter().find(|segment| segment.overlaps(base, bytes)) {
            if !segment.holds(base, bytes) {
                return Err(format!("{base:#x} to {:#x} lie partly in memory that is mapped", base + bytes));
            }
            self.clear(base, bytes);
            return Ok(());
        }
        if self.segments.iter().count() >= SEGMENTS_MAX {
            return Err(format!(
                "this node has mapped {SEGMENTS_MAX} stretches of addresses: start it again"
            ));
        }
        let segment = Segment::map(base, bytes, prefault).map_err(|error| error.to_string())?;
        self.segments.push(segment);
        Ok(())
    }

    /// Returns the first global address of the first stretch; 0 while there is none.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.base)
    }

    /// Returns the number of bytes of the first stretch, which starts at [`Memory::base`].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.bytes)
    }

    /// Returns first address and bytes of each mapped stretch, including those that belong to another node by now.
    pub fn stretches(&self) -> impl Iterator<Item = (u64, u64)> {
        self.segments.iter().map(|segment| (segment.base, segment.bytes))
    }

    /// Returns the kind of pages behind the first stretch.
    #[must_use]
    pub fn huge(&self) -> memlift_ground::region::Huge {
        self.segments.first().map_or(memlift_ground::region::Huge::None, |segment| segment.region.huge())
    }

    /// Returns true if an address is mapped here, even if it belongs to another node by now.
    #[must_use]
    pub fn holds(&self, address: u64) -> bool {
        self.segments.find(address).is_some()
    }

    /// Returns true if all of these addresses lie in one stretch of this memory.
    #[must_use]
    pub fn holds_all(&self, address: u64, bytes: u64) -> bool {
        self.segments.find(address).is_some_and(|segment| segment.holds(address, bytes))
    }

    /// Returns a number that grows whenever [`Memory::ranges`] changes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the present ranges of all tenants.
    #[must_use]
    pub fn ranges(&self) -> Arc<Ranges> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, ranges: Ranges) {
        *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ranges);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the host address at which a global address is mapped.
    ///
    /// # Panics
    ///
    /// If the address is not in this memory.
    #[must_use]
    pub fn host(&self, address: u64) -> *const u8 {
        match self.segments.find(address) {
            Some(segment) => segment.host(address),
            None => panic!("{address:#x} is none of this memory's addresses"),
        }
    }

    pub(crate) fn word(&self, address: u64) -> &AtomicU64 {
        assert!(address.is_multiple_of(8), "{address:#x} names no word of this memory");
        // SAFETY: the word is mapped and writable while `self` lives (a segment's size is a multiple of 4096, so all eight
        // bytes are). It is aligned: the mapping is, and its base is a multiple of 4096. Rust code accesses these bytes by
        // atomics only.
        unsafe { AtomicU64::from_ptr(self.host(address).cast_mut().cast()) }
    }

    /// Stores bytes; each aligned word is stored in one piece. Only the node's writer calls this, for a range that it has
    /// checked.
    ///
    /// # Panics
    ///
    /// If the bytes do not lie in this memory.
    pub fn store(&self, address: u64, bytes: &[u8]) {
        let mut at = address;
        let mut left = bytes;
        while !left.is_empty() {
            let skip = (at % 8) as usize;
            let (now, rest) = left.split_at(left.len().min(8 - skip));
            let word = self.word(at - skip as u64);
            let mut value = if now.len() == 8 { [0; 8] } else { word.load(Ordering::Relaxed).to_le_bytes() };
            value[skip..skip + now.len()].copy_from_slice(now);
            word.store(u64::from_le_bytes(value), Ordering::Release);
            at += now.len() as u64;
            left = rest;
        }
    }

    /// Sets bytes to zero. Whole pages are given back to the system if it accepts them.
    pub(crate) fn clear(&self, address: u64, bytes: u64) {
        let (from, to) = (address.next_multiple_of(4096), (address + bytes) / 4096 * 4096);
        if from < to && self.segments.find(from).is_some_and(|segment| segment.forget(from, to - from)) {
            self.zero(address, from);
            return self.zero(to, address + bytes);
        }
        self.zero(address, address + bytes);
    }

    fn zero(&self, from: u64, to: u64) {
        for at in (from..to).step_by(8) {
            self.word(at).store(0, Ordering::Relaxed);
        }
    }

    /// Appends `bytes` bytes to `target`; each aligned word is read in one piece.
    ///
    /// # Panics
    ///
    /// If the bytes do not lie in this memory.
    pub fn load(&self, address: u64, bytes: usize, target: &mut Vec<u8>) {
        let (mut at, end) = (address, address + bytes as u64);
        while at < end {
            let skip = (at % 8) as usize;
            let count = (8 - skip).min((end - at) as usize);
            let value = self.word(at - skip as u64).load(Ordering::Acquire).to_le_bytes();
            target.extend_from_slice(&value[skip..skip + count]);
            at += count as u64;
        }
    }

    /// Replaces the word by `new` if it is `expected`; returns the value before.
    ///
    /// # Panics
    ///
    /// If the address is not that of a word in this memory.
    pub fn compare_swap(&self, address: u64, expected: u64, new: u64) -> u64 {
        match self.word(address).compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(was) | Err(was) => was,
        }
    }

    /// Adds to a word, wrapping; returns the value before.
    ///
    /// # Panics
    ///
    /// If the address is not that of a word in this memory.
    pub fn fetch_add(&self, address: u64, addend: u64) -> u64 {
        self.word(address).fetch_add(addend, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_alignment_come_back_and_their_neighbours_stay() {
        let memory = Memory::new(1 << 32, 8192, false).expect("two pages");
        memory.store(1 << 32, &[0xff; 64]);
        for offset in 0..9u64 {
            for length in 0..20usize {
                let bytes: Vec<u8> = (0..length as u8).collect();
                memory.store((1 << 32) + 4096 + 8, &[0xee; 48]);
                memory.store((1 << 32) + 4096 + 16 + offset, &bytes);
                let mut all = Vec::new();
                memory.load((1 << 32) + 4096 + 8, 48, &mut all);
                let start = 8 + offset as usize;
                assert_eq!(all[start..start + length], bytes);
                assert!(all[..start].iter().chain(&all[start + length..]).all(|&byte| byte == 0xee));
            }
        }
        assert_eq!(memory.compare_swap((1 << 32) + 8, u64::MAX, 7), u64::MAX);
        assert_eq!(memory.compare_swap((1 << 32) + 8, u64::MAX, 8), 7);
        assert_eq!((memory.fetch_add((1 << 32) + 8, 3), memory.fetch_add((1 << 32) + 8, 0)), (7, 10));
    }

    #[test]
    fn stretches_come_are_cleared_and_come_again() {
        let memory = Memory::new(1 << 32, 8192, false).expect("two pages");
        assert!(!memory.holds(1 << 33));
        memory.add(1 << 33, 64 << 10, false).expect("mapped");
        memory.store((1 << 33) + 4000, &[7; 200]);
        assert!(memory.holds_all(1 << 33, 64 << 10) && !memory.holds_all(1 << 33, (64 << 10) + 1));
        assert!(!memory.holds_all((1 << 32) + 4096, u64::MAX), "no wrapping");
        memory.clear((1 << 33) + 4008, 96);
        let mut all = Vec::new();
        memory.load((1 << 33) + 4000, 200, &mut all);
        assert!(all[8..104].iter().all(|byte| *byte == 0) && all[..8] == [7; 8] && all[104..] == [7; 96]);
        memory.add((1 << 33) + 4096, 4096, false).expect("it is there, and zero again");
        all.clear();
        memory.load((1 << 33) + 4000, 200, &mut all);
        assert!(all[..8] == [7; 8] && all[96..].iter().all(|byte| *byte == 0));
        assert!(memory.add((1 << 33) + 4096, 64 << 10, false).is_err(), "partly there");
    }
}
