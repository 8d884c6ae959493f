// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a node: one stretch of global addresses, mapped once, written by one thread and read by all.
//!
//! Flow     [`Allocator`] gives extents to tenants ─▶ [`Ranges`] is published ─▶ each shard takes it at its next turn
//!          ─▶ [`Ranges::find`] ─▶ a host address for a whole window
//! Order    only the node's writer stores, eight bytes at a time and atomically, so a reader sees old or new words and never a
//!          mixture; what a link points to is stored before the link (Release)
//! Owner    [`Memory`] owns the mapping for as long as anyone holds it; it is never unmapped or moved before
//! Not here what the bytes mean, and the log that outlives the process (`node`)

mod allocate;
mod range;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memlift_engine::region::{Region, RegionError, RegionOptions};

pub use allocate::{ALLOCATION_BYTES_MAX, Allocator};
pub use range::{Range, Ranges};

/// Bytes at both ends of whatever a tenant gets that no allocation lies in: so each node's whole window (at most 256 bytes, from
/// 256 before it on) lies in its tenant's range.
pub const MARGIN_BYTES: u64 = 256;

/// What of its own memory a node may touch.
#[derive(Debug)]
pub struct Memory {
    region: Region,
    base: u64,
    ranges: RwLock<Arc<Ranges>>,
    generation: AtomicU64,
}

impl Memory {
    /// Maps `bytes` (rounded up to 4 KiB) behind the global addresses from `base` on: in huge pages where there are any, and
    /// touched now, so that memory which is not there is missed here and not in the middle of a walk.
    ///
    /// # Errors
    ///
    /// [`RegionError::Headroom`] when there is not as much memory; what mmap says.
    pub fn new(base: u64, bytes: u64, prefault: bool) -> Result<Memory, RegionError> {
        let bytes = bytes.next_multiple_of(4096);
        let options = RegionOptions { prefault, ..RegionOptions::default() };
        Ok(Memory {
            region: Region::anonymous(bytes, &options)?,
            base,
            ranges: RwLock::default(),
            generation: AtomicU64::new(1),
        })
    }

    /// First global address.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// How many addresses.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.region.bytes()
    }

    /// How its pages came about.
    #[must_use]
    pub fn huge(&self) -> memlift_engine::region::Huge {
        self.region.huge()
    }

    /// Whether an address is one of this memory, whoever it belongs to.
    #[must_use]
    pub fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes()
    }

    /// Grows when [`Memory::ranges`] changes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Who has what, now.
    #[must_use]
    pub fn ranges(&self) -> Arc<Ranges> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, ranges: Ranges) {
        *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ranges);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Where an address is mapped.
    ///
    /// # Panics
    ///
    /// When it is not one of this memory.
    #[must_use]
    pub fn host(&self, address: u64) -> *const u8 {
        assert!(self.holds(address), "{address:#x} is none of this memory's addresses");
        self.region.base().wrapping_add((address - self.base) as usize)
    }

    pub(crate) fn word(&self, address: u64) -> &AtomicU64 {
        assert!(
            self.holds(address) && address.is_multiple_of(8),
            "{address:#x} names no word of this memory"
        );
        // SAFETY: mapped and writable while `self` lives (the region's size is a multiple of 4096, so all eight bytes are), and
        // aligned: the mapping is, and `base` is a multiple of 4096. Rust code touches these bytes by atomics only.
        unsafe { AtomicU64::from_ptr(self.host(address).cast_mut().cast()) }
    }

    /// Stores bytes, each aligned word of them at once. Only the node's writer calls this, for a range that it has checked.
    ///
    /// # Panics
    ///
    /// When the bytes do not lie in this memory.
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

    /// Zeros.
    fn clear(&self, address: u64, bytes: u64) {
        for at in (address..address + bytes).step_by(8) {
            self.word(at).store(0, Ordering::Relaxed);
        }
    }

    /// Appends `bytes` bytes to `target`, each aligned word of them as it was at one moment.
    ///
    /// # Panics
    ///
    /// When the bytes do not lie in this memory.
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

    /// If the word is `expected`, it becomes `new`; gives what it was.
    ///
    /// # Panics
    ///
    /// When the address names no word of this memory.
    pub fn compare_swap(&self, address: u64, expected: u64, new: u64) -> u64 {
        match self.word(address).compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(was) | Err(was) => was,
        }
    }

    /// Adds to a word, wrapping; gives what it was.
    ///
    /// # Panics
    ///
    /// When the address names no word of this memory.
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
}
