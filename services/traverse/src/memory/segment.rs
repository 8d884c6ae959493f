// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stretches of global addresses, and the mapping of each.
//!
//! - **Order** stretches are added and never removed, so a reader needs no lock: it sees those that were complete when it read
//!   the count
//! - **Owner** a stretch stays mapped as long as the node's memory exists; its pages may go back to the system before
//!   ([`Segment::forget`])

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use memlift_ground::region::{Region, RegionError, RegionOptions};
use rustix::mm::{Advice, madvise};

/// Most stretches that a node can map in its life: its own, and one for each range that arrived and had never been here
/// before.
pub const SEGMENTS_MAX: usize = 1024;

/// A stretch of global addresses, and its mapping.
#[derive(Debug)]
pub(super) struct Segment {
    pub base: u64,
    pub bytes: u64,
    pub region: Region,
}

impl Segment {
    pub fn map(base: u64, bytes: u64, prefault: bool) -> Result<Segment, RegionError> {
        let options = RegionOptions { prefault, ..RegionOptions::default() };
        Ok(Segment { base, bytes, region: Region::anonymous(bytes, &options)? })
    }

    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset < self.bytes && bytes <= self.bytes - offset
    }

    pub fn overlaps(&self, base: u64, bytes: u64) -> bool {
        self.base < base.saturating_add(bytes) && base < self.base + self.bytes
    }

    pub fn host(&self, address: u64) -> *const u8 {
        self.region.base().wrapping_add((address - self.base) as usize)
    }

    /// Gives whole pages back to the system: they read as zero from now on. Returns false if the system refused; then
    /// nothing has changed.
    pub fn forget(&self, address: u64, bytes: u64) -> bool {
        if !self.holds(address, bytes) {
            return false;
        }
        // SAFETY: the pages lie in this mapping, which is private and anonymous and stays mapped. Rust code accesses its
        // bytes by atomics only, for which zero is a valid value.
        unsafe { madvise(self.host(address).cast_mut().cast(), bytes as usize, Advice::LinuxDontNeed) }
            .is_ok()
    }
}

/// All stretches, in the order in which they were added.
#[derive(Debug)]
pub(super) struct Segments {
    all: Box<[OnceLock<Segment>]>,
    count: AtomicUsize,
    grow: Mutex<()>,
}

impl Default for Segments {
    fn default() -> Segments {
        let all = (0..SEGMENTS_MAX).map(|_| OnceLock::new()).collect();
        Segments { all, count: AtomicUsize::new(0), grow: Mutex::new(()) }
    }
}

impl Segments {
    /// Adds a stretch. The caller has checked that there is room.
    pub fn push(&self, segment: Segment) {
        let _one = self.grow.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Relaxed);
        let stored = self.all.get(count).is_some_and(|place| place.set(segment).is_ok());
        assert!(stored, "the caller has looked that there is room");
        self.count.store(count + 1, Ordering::Release);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.all[..self.count.load(Ordering::Acquire)].iter().filter_map(OnceLock::get)
    }

    #[inline]
    pub fn first(&self) -> Option<&Segment> {
        self.all[0].get()
    }

    #[inline]
    pub fn find(&self, address: u64) -> Option<&Segment> {
        self.iter().find(|segment| address.wrapping_sub(segment.base) < segment.bytes)
    }
}
