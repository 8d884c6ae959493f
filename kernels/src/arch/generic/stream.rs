// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Non-temporal walks: the order in which lines are visited when both buffers are larger than the cache.
//!
//! Flow    blocks of `LANES` pages: line 0 of each page, line 1 of each page, … while the next block's lines are
//!         prefetched; then the lines that do not fill a block, one after the other
//!
//! ```text
//! for i in (0..4096).step_by(64) { for k in 0..LANES { prefetch(+LANES pages); line(k * 4096 + i) } }
//! ```
//!
//! Several pages at once keep several DRAM pages and several streams of the hardware prefetcher busy. On Sapphire
//! Rapids four pages copy cold buffers 1.7 (32 MiB) and 1.3 (64 MiB and more) times as fast as the C library's memcpy
//! (`memlift bench copy --only '*1core'`). Nothing beyond the source is prefetched.
//!
//! Order   `copy_nt` ends with a fence; `lines` and `walk` do not: their callers do.

use super::copy::copy;
use crate::vector::Vector;

/// Bytes of one line: what one step visits.
pub(crate) const LINE_BYTES: usize = 64;
/// Bytes of one lane of a block.
pub(crate) const LANE_BYTES: usize = 4096;
/// Below this, the non-temporal routines store normally, in bytes.
pub(crate) const STREAM_FROM: usize = 512;

/// What happens to a line.
pub(crate) trait Lines {
    /// Handles the 64 bytes at `offset`, which belong to this lane of the current block.
    unsafe fn line(&mut self, lane: usize, offset: usize);
    /// The block is complete.
    #[inline(always)]
    unsafe fn block(&mut self) {}
}

/// Visits as many blocks of `LANES` pages as fit, then the remaining whole lines (all in lane 0, one "block" each).
/// Gives the bytes visited: the largest multiple of 64 within `bytes`.
#[inline(always)]
pub(crate) unsafe fn walk<V: Vector, const LANES: usize, L: Lines>(
    lines: &mut L,
    source: *const u8,
    bytes: usize,
) -> usize {
    let block_bytes = LANES * LANE_BYTES;
    let mut start = 0;
    // SAFETY: every line visited, and every line prefetched, lies within `bytes`, for which the caller promises the
    // buffers.
    unsafe {
        while bytes - start >= 2 * block_bytes {
            let mut offset = start;
            while offset < start + LANE_BYTES {
                let mut lane = 0;
                while lane < LANES {
                    V::prefetch(source.add(offset + lane * LANE_BYTES + block_bytes));
                    lines.line(lane, offset + lane * LANE_BYTES);
                    lane += 1;
                }
                offset += LINE_BYTES;
            }
            lines.block();
            start += block_bytes;
        }
        if bytes - start >= block_bytes {
            let mut offset = start;
            while offset < start + LANE_BYTES {
                let mut lane = 0;
                while lane < LANES {
                    lines.line(lane, offset + lane * LANE_BYTES);
                    lane += 1;
                }
                offset += LINE_BYTES;
            }
            lines.block();
            start += block_bytes;
        }
        while bytes - start >= LINE_BYTES {
            lines.line(0, start);
            start += LINE_BYTES;
        }
    }
    start
}

/// Copies a line past the cache.
struct Copy<V> {
    target: *mut u8,
    source: *const u8,
    vector: core::marker::PhantomData<V>,
}

impl<V: Vector> Lines for Copy<V> {
    #[inline(always)]
    unsafe fn line(&mut self, _lane: usize, offset: usize) {
        // SAFETY: `walk` stays within the buffers; the target is aligned to a line.
        unsafe { stream_line::<V>(self.target.add(offset), self.source.add(offset)) }
    }
}

/// Copies one line past the cache, to an aligned target.
#[inline(always)]
pub(crate) unsafe fn stream_line<V: Vector>(target: *mut u8, source: *const u8) {
    let mut i = 0;
    while i < LINE_BYTES {
        // SAFETY: the caller promises 64 bytes on both sides, the target aligned.
        unsafe { V::load(source.add(i)).stream(target.add(i)) };
        i += V::BYTES;
    }
}

/// Streams the whole lines of `bytes` to an aligned target, without a fence. Gives the bytes copied.
#[inline(always)]
pub(crate) unsafe fn lines<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) -> usize {
    let mut copy = Copy::<V> { target, source, vector: core::marker::PhantomData };
    // SAFETY: the caller promises both buffers, the target aligned to a line.
    unsafe { walk::<V, 4, _>(&mut copy, source, bytes) }
}

/// Bytes from the target's start to its first whole line.
#[inline(always)]
pub(crate) fn head_bytes(target: *const u8) -> usize {
    target.addr().wrapping_neg() % LINE_BYTES
}

/// See [`Kernels::copy_nt`](crate::Kernels::copy_nt).
#[inline(always)]
pub(crate) unsafe fn copy_nt<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller promises both buffers. The head is shorter than a line, and `bytes` is longer.
    unsafe {
        if bytes < STREAM_FROM {
            copy::<V>(target, source, bytes);
        } else {
            let head = head_bytes(target);
            V::short(target, source, head);
            let done = head + lines::<V>(target.add(head), source.add(head), bytes - head);
            V::short(target.add(done), source.add(done), bytes - done);
        }
        V::fence();
    }
}
