// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Non-temporal walks: the order in which lines are visited when both buffers are larger than the cache.
//!
//! - **Flow** blocks of `LANES` pages: line 0 of each page, line 1 of each page, and so on, while lines further on are prefetched; then
//!   the lines that do not fill a block, one after the other. [`Shape`] says how many lanes, which vectors and how far ahead.
//!
//! ```text
//! for i in (0..4096).step_by(64) { for k in 0..LANES { prefetch(line i + ahead of lane k); line(k * 4096 + i) } }
//! ```
//!
//! - **Prefetch** the last `ahead` bytes of a page prefetch the first lines of the same lane in the next block; nothing beyond the source
//!   is prefetched.
//! - **Order** `copy_nt` ends with a fence; `lines` and `walk` do not: their callers add one.

use super::copy::copy;
pub(crate) use crate::shape::LANE_BYTES;
use crate::shape::Shape;
use crate::vector::Vector;
use core::marker::PhantomData;

/// Bytes of one cache line, which one step visits.
pub(crate) const LINE_BYTES: usize = 64;
/// Below this size, in bytes, the non-temporal routines use ordinary stores.
pub(crate) const STREAM_FROM: usize = 512;

/// The work that a walk does on each line.
pub(crate) trait Lines {
    /// Handles the 64 bytes at `offset`, which belong to this lane of the current block.
    unsafe fn line(&mut self, lane: usize, offset: usize);
    /// Prefetches the line at `offset`, which will be handled soon.
    unsafe fn prefetch(&self, offset: usize);
    /// Called after each complete block.
    #[inline(always)]
    unsafe fn block(&mut self) {}
}

/// Visits as many blocks of `LANES` pages as fit, then the remaining whole lines (all in lane 0). `ahead_bytes` is a multiple
/// of a line, at most a lane. Returns the bytes visited: the largest multiple of 64 within `bytes`.
#[inline(always)]
pub(crate) unsafe fn walk<const LANES: usize, L: Lines>(
    lines: &mut L,
    bytes: usize,
    ahead_bytes: usize,
) -> usize {
    let block_bytes = LANES * LANE_BYTES;
    let mut start = 0;
    // SAFETY: every line visited, and every line prefetched, lies within `bytes`, for which the caller guarantees the
    // buffers.
    unsafe {
        while bytes - start >= block_bytes {
            // The last lines of a page prefetch from the next block; if there is none, they prefetch themselves, which does
            // nothing.
            let next_bytes = block_bytes - LANE_BYTES + ahead_bytes;
            let rest_ahead = if bytes - start >= 2 * block_bytes { next_bytes } else { 0 };
            let turn = start + LANE_BYTES - ahead_bytes;
            let stretches = [(start, turn, ahead_bytes), (turn, start + LANE_BYTES, rest_ahead)];
            for (from, to, ahead) in stretches {
                let mut offset = from;
                while offset < to {
                    let mut lane = 0;
                    while lane < LANES {
                        lines.prefetch(offset + lane * LANE_BYTES + ahead);
                        lines.line(lane, offset + lane * LANE_BYTES);
                        lane += 1;
                    }
                    offset += LINE_BYTES;
                }
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

/// Runs [`walk`] with the number of lanes and the prefetch distance of a shape.
#[inline(always)]
pub(crate) unsafe fn walk_shaped<L: Lines>(lines: &mut L, bytes: usize, shape: Shape) -> usize {
    // SAFETY: the caller guarantees the buffers of `walk`. A shape's distance is a multiple of a line and at most a lane.
    unsafe {
        match shape.lanes() {
            4 => walk::<4, L>(lines, bytes, shape.ahead_bytes()),
            2 => walk::<2, L>(lines, bytes, shape.ahead_bytes()),
            _ => walk::<1, L>(lines, bytes, shape.ahead_bytes()),
        }
    }
}

/// Copies lines past the caches.
struct Copy<V> {
    target: *mut u8,
    source: *const u8,
    vector: PhantomData<V>,
}

impl<V: Vector> Lines for Copy<V> {
    #[inline(always)]
    unsafe fn line(&mut self, _lane: usize, offset: usize) {
        // SAFETY: `walk` stays within the buffers; the target is aligned to a line.
        unsafe { stream_line::<V>(self.target.add(offset), self.source.add(offset)) }
    }

    #[inline(always)]
    unsafe fn prefetch(&self, offset: usize) {
        // SAFETY: `walk` stays within the source.
        unsafe { V::prefetch(self.source.add(offset)) }
    }
}

/// Copies one line past the caches, to an aligned target.
#[inline(always)]
pub(crate) unsafe fn stream_line<V: Vector>(target: *mut u8, source: *const u8) {
    let mut i = 0;
    while i < LINE_BYTES {
        // SAFETY: the caller guarantees 64 bytes on both sides, the target aligned.
        unsafe { V::load(source.add(i)).stream(target.add(i)) };
        i += V::BYTES;
    }
}

/// Returns true if the shape asks for vectors smaller than `V` and there are such vectors.
#[inline(always)]
pub(crate) fn is_narrow<V: Vector>(shape: Shape) -> bool {
    V::BYTES > 16 && shape.vector_bytes() < V::BYTES
}

/// Streams the whole lines of `bytes` to an aligned target, without a fence; returns the bytes copied.
#[inline(always)]
pub(crate) unsafe fn lines<V: Vector>(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    shape: Shape,
) -> usize {
    // SAFETY: the caller guarantees both buffers of `bytes`, the target aligned to a line.
    unsafe {
        if is_narrow::<V>(shape) {
            walk_shaped(&mut Copy::<V::Half> { target, source, vector: PhantomData }, bytes, shape)
        } else {
            walk_shaped(&mut Copy::<V> { target, source, vector: PhantomData }, bytes, shape)
        }
    }
}

/// Returns the bytes from the target's start to its first whole line.
#[inline(always)]
pub(crate) fn head_bytes(target: *const u8) -> usize {
    target.addr().wrapping_neg() % LINE_BYTES
}

/// See [`Shaped::copy`](crate::Shaped::copy).
#[inline(always)]
pub(crate) unsafe fn copy_nt<V: Vector>(target: *mut u8, source: *const u8, bytes: usize, shape: Shape) {
    // SAFETY: the caller guarantees both buffers of `bytes`. The head is shorter than a line, and `bytes` is longer.
    unsafe {
        if bytes < STREAM_FROM {
            copy::<V>(target, source, bytes);
        } else if shape.is_string() {
            V::repeat(target, source, bytes);
        } else {
            let head = head_bytes(target);
            V::short(target, source, head);
            let done = head + lines::<V>(target.add(head), source.add(head), bytes - head, shape);
            V::short(target.add(done), source.add(done), bytes - done);
        }
        V::fence();
    }
}
