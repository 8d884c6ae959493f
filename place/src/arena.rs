// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The buffers on which calibration measures, and the clock with which it measures.

use memlift_ground::region::{Headroom, HugePages, Region, RegionError, RegionOptions};
use memlift_kernels::cache_flush;
use std::time::Instant;

/// Preferred size of each of the two buffers.
pub(super) const ARENA_BYTES: usize = 128 << 20;
pub(super) const ARENA_BYTES_MIN: usize = 16 << 20;

/// Two buffers, and the offset of the next cold window.
pub(super) struct Arena {
    pub(super) source: Region,
    pub(super) target: Region,
    /// Bytes of each buffer.
    pub(super) bytes: usize,
    cursor: usize,
}

impl Arena {
    pub(super) fn new(most_bytes: usize) -> Result<Arena, RegionError> {
        let headroom = usize::try_from(Headroom::read().bytes).unwrap_or(usize::MAX);
        let mut bytes = most_bytes;
        while bytes > ARENA_BYTES_MIN && bytes * 3 > headroom {
            bytes /= 2;
        }
        // Ordinary pages, because most callers' buffers consist of them.
        let options =
            RegionOptions { huge_pages: HugePages::Never, dont_fork: true, ..RegionOptions::default() };
        let source = Region::anonymous(bytes as u64, &options)?;
        let target = Region::anonymous(bytes as u64, &options)?;
        Ok(Arena { source, target, bytes, cursor: 0 })
    }

    pub(super) fn pair(&self, offset: usize) -> (*mut u8, *const u8) {
        (self.target.base().wrapping_add(offset).cast_mut(), self.source.base().wrapping_add(offset))
    }

    /// Returns a window of both buffers that is in no cache. The additional page per window keeps windows from being
    /// aligned to each other in the same way every time.
    pub(super) fn cold(&mut self, bytes: usize) -> (*mut u8, *const u8) {
        let step = bytes.next_multiple_of(4096) + 4096;
        if self.cursor + bytes > self.bytes {
            self.cursor = 0;
        }
        let pair = self.pair(self.cursor);
        self.cursor += step;
        if self.bytes < ARENA_BYTES {
            // SAFETY: the window lies in both buffers of the arena, which are mapped.
            unsafe {
                cache_flush(pair.0, bytes);
                cache_flush(pair.1, bytes);
            }
        }
        pair
    }

    /// Returns the sizes at which shapes are measured: small, middle and large for this arena.
    pub(super) fn shape_sizes(&self) -> [usize; 3] {
        [self.bytes / 128, self.bytes / 16, self.bytes / 4]
    }
}

/// Returns the nanoseconds that the calling thread has run on a core.
pub(super) fn core_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Returns the nanoseconds of `work` on this thread. If the thread lost its core meanwhile, its time on the core is
/// used instead of the clock's, so that other load is not taken for slow memory.
pub(super) fn time(work: impl FnOnce()) -> f64 {
    let before_ns = core_ns();
    let start = Instant::now();
    work();
    let wall_ns = start.elapsed().as_nanos() as f64;
    if wall_ns < 50_000.0 { wall_ns } else { wall_ns.min(core_ns() - before_ns) }
}
