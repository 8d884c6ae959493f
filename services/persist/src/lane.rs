// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One lane of the log: a ring in the file, its mirror in memory, and how far each is.
//!
//! - **Layout** positions count bytes for ever; position p lies at p mod capacity. A record does not wrap: a WRAP record
//!   says that the rest up to the ring's end is skipped
//! - **Flow** build in the mirror ─▶ `tail` published ─▶ applier reads the mirror ─▶ `head` (may be reused)
//! - **Why** the mirror is in cache; reading the log back would fetch from memory what was just stored past the caches
//! - **Blocks** a new pool's lanes have none: they are allocated in the file chunk by chunk, as far as the log gets
//! - **Owner** [tail, head + capacity) of mirror and file belong to the holder of `state`; [head, tail) to the applier, to read
//! - **Order** `tail` is stored with Release after the record is whole; `head` with Release after what it frees is durable
//!   elsewhere

use std::alloc::{self, Layout};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::biased::Biased;

/// A lane's mirror: `capacity` bytes of zeros, page-aligned. What the log never got to takes no memory.
#[derive(Debug)]
struct Mirror {
    base: *mut u8,
    capacity: usize,
}

impl Mirror {
    fn new(capacity: usize) -> Mirror {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), capacity, access, MapFlags::PRIVATE) };
        let Ok(base) = mapped else {
            alloc::handle_alloc_error(
                Layout::from_size_align(capacity, 4096).expect("lanes have page-sized lengths"),
            )
        };
        Mirror { base: base.cast(), capacity }
    }

    fn prefault(&self) {
        // SAFETY: populating changes no byte of the mapping.
        let _ = unsafe { rustix::mm::madvise(self.base.cast(), self.capacity, Advice::LinuxPopulateWrite) };
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.capacity) };
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Lane<S> {
    /// The lane's number; 0 is the shared one.
    pub index: u32,
    /// Where it starts in the file.
    pub start: u64,
    /// Bytes of the ring.
    pub capacity: u64,
    /// Bytes behind a record that its write may spoil.
    gap: u64,
    /// Records before this are published.
    tail: AtomicU64,
    /// Room before this may be reused.
    head: AtomicU64,
    /// State that the lane's owner keeps from transaction to transaction.
    pub state: Biased<S>,
    mirror: Mirror,
    /// A bit for each chunk that is known to have blocks in the file.
    allocated: Box<[AtomicU64]>,
}

/// Bytes of the log that get their blocks at once.
const CHUNK_BYTES: u64 = 64 << 10;

// SAFETY: the mirror's bytes have one writer, the holder of `state`, and readers only of what `tail` published.
unsafe impl<S: Send> Send for Lane<S> {}
// SAFETY: `head` and `tail` are atomics, `state` has its lock. The mirror's free part belongs to the holder of `state`;
// others read only bytes that `tail` published and `head` has not released.
unsafe impl<S: Send> Sync for Lane<S> {}

impl<S> Lane<S> {
    pub fn new(index: u32, start: u64, capacity: u64, gap: u64, position: u64, state: S) -> Lane<S> {
        assert!(capacity.is_power_of_two());
        Lane {
            index,
            start,
            capacity,
            gap,
            tail: AtomicU64::new(position),
            head: AtomicU64::new(position),
            state: Biased::new(state),
            mirror: Mirror::new(usize::try_from(capacity).expect("fits")),
            allocated: (0..capacity.div_ceil(CHUNK_BYTES * 64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Touches all of the mirror, so that no transaction pays for it.
    pub fn prefault(&self) {
        self.mirror.prefault();
    }

    fn chunks(&self, position: u64, bytes: u64) -> std::ops::RangeInclusive<u64> {
        let at = self.at(position);
        at / CHUNK_BYTES..=(at + bytes - 1) / CHUNK_BYTES
    }

    /// Returns true if the file is known to have blocks for a record; it does not wrap.
    #[inline]
    pub fn is_allocated(&self, position: u64, bytes: u64) -> bool {
        let bit =
            |chunk: u64| self.allocated[chunk as usize / 64].load(Ordering::Relaxed) >> (chunk % 64) & 1;
        self.chunks(position, bytes).all(|chunk| bit(chunk) == 1)
    }

    /// Parts of the file, offset and bytes, that need blocks for a record that goes to `position`, and for a WRAP at `tail`.
    #[cold]
    pub fn unallocated(&self, tail: u64, position: u64, bytes: u64) -> Vec<(u64, u64)> {
        let chunks = self.chunks(tail, 64).chain(self.chunks(position, bytes));
        let part = |chunk: u64| {
            let (from, to) = (chunk * CHUNK_BYTES, self.capacity.min((chunk + 1) * CHUNK_BYTES));
            (self.start + from, to - from)
        };
        chunks.map(part).collect()
    }

    /// Notes that a part that [`Lane::unallocated`] gave has blocks.
    pub fn set_allocated(&self, offset: u64) {
        let chunk = (offset - self.start) / CHUNK_BYTES;
        self.allocated[chunk as usize / 64].fetch_or(1 << (chunk % 64), Ordering::Relaxed);
    }

    /// Offset of a position in the ring; capacities are powers of two.
    #[inline]
    fn at(&self, position: u64) -> u64 {
        position & (self.capacity - 1)
    }

    #[inline]
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    #[inline]
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Publishes what lies before `position`. Only the holder of `state` calls it.
    #[inline]
    pub fn publish(&self, position: u64) {
        self.tail.store(position, Ordering::Release);
    }

    /// Gives room back. Only the applier calls it.
    pub fn release(&self, position: u64) {
        self.head.store(position, Ordering::Release);
    }

    /// Where in the file `position` is.
    #[inline]
    pub fn offset(&self, position: u64) -> u64 {
        self.start + self.at(position)
    }

    /// Where a record of up to `bytes` that follows `tail` would start: there, or at the ring's start. None: no room now.
    #[inline]
    pub fn room(&self, tail: u64, bytes: u64) -> Option<u64> {
        let left = self.capacity - self.at(tail);
        let at = if bytes <= left { tail } else { tail + left };
        let (head, end) = (self.head(), at + bytes);
        // Of an empty lane nothing can be spoilt.
        let gap = if head == tail { 0 } else { self.gap };
        (end + gap - head <= self.capacity).then_some(at)
    }

    /// The mirror's bytes from `position` on; the caller holds `state`, and the range is not published.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the ring's free part belongs to the holder of `state`")]
    pub fn free(&self, position: u64, bytes: u64) -> &mut [u8] {
        let at = self.at(position);
        assert!(at + bytes <= self.capacity && position >= self.tail.load(Ordering::Relaxed));
        // SAFETY: in bounds (above). Positions from `tail` on belong to the holder of `state`, which the caller is; `room`
        // has checked that the applier is done with what was there.
        unsafe { std::slice::from_raw_parts_mut(self.mirror.base.add(at as usize), bytes as usize) }
    }

    /// The mirror's published bytes [position, position + bytes), before they are released.
    #[inline]
    pub fn published(&self, position: u64, bytes: u64) -> &[u8] {
        let at = self.at(position);
        assert!(at + bytes <= self.capacity && position + bytes <= self.tail());
        // SAFETY: in bounds (above); published bytes are not written until the applier, the caller, releases them.
        unsafe { std::slice::from_raw_parts(self.mirror.base.add(at as usize), bytes as usize) }
    }

    /// The mirror's bytes that were appended and are not published: those whose flushing is under way. The caller is the one
    /// flusher, and appenders write behind them only.
    pub fn appended(&self, position: u64, bytes: u64) -> &[u8] {
        let at = self.at(position);
        assert!(at + bytes <= self.capacity);
        // SAFETY: in bounds (above); appended records are whole and nobody writes them again before they are published,
        // applied and released.
        unsafe { std::slice::from_raw_parts(self.mirror.base.add(at as usize), bytes as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_of_a_record_spoils_nothing_that_counts() {
        const GAP: u64 = 512;
        let lane = Lane::new(0, 0, 4096, GAP, 8192, ());
        assert_eq!(lane.room(8192, 4096), Some(8192), "an empty lane has nothing to spoil");
        lane.publish(8192 + 2048);
        assert_eq!(lane.room(8192 + 2048, 2048), None, "the rest of the last sector is the first record's");
        for bytes in (64..=2048u64).step_by(64) {
            let spoilt = (8192 + 2048 + bytes).next_multiple_of(GAP);
            let fits = lane.room(8192 + 2048, bytes).is_some();
            assert!(!fits || spoilt <= 8192 + 4096, "{bytes}");
            assert!(fits || bytes > 2048 - GAP, "{bytes}");
        }
        lane.release(8192 + 2048);
        assert_eq!(lane.room(8192 + 2048, 2048), Some(8192 + 2048));
    }
}
