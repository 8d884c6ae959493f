// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies and computes CRC-32C in one pass over memory, for levels that use different registers for the two: each block is
//! copied, then checked while it is in the first-level cache.
//!
//! - **Flow** head up to an aligned target ──▶ blocks ──▶ tail; each piece is copied or streamed, then goes to `Crc::update`.
//! - **Order** the checksum reads the source a second time, from cache. If a peer changes the source between the two reads, the value may
//!   fit neither version, as with any checksum.

use super::copy::copy;
use super::stream::{LANE_BYTES, STREAM_FROM, head_bytes, lines};
use crate::shape::Shape;
use crate::vector::Vector;

/// Continues a CRC state over bytes.
pub(crate) trait Crc {
    /// Returns the state (inverted CRC) after `bytes` bytes.
    unsafe fn update(state: u32, source: *const u8, bytes: usize) -> u32;
}

/// See [`Kernels::copy_crc32c`](crate::Kernels::copy_crc32c).
#[inline(always)]
pub(crate) unsafe fn copy_crc32c<V: Vector, C: Crc>(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    seed: u32,
) -> u32 {
    let mut state = !seed;
    let mut offset = 0;
    while offset < bytes {
        let block_bytes = (bytes - offset).min(LANE_BYTES);
        // SAFETY: the block lies within `bytes`, for which the caller guarantees both buffers.
        unsafe {
            copy::<V>(target.add(offset), source.add(offset), block_bytes);
            state = C::update(state, source.add(offset), block_bytes);
        }
        offset += block_bytes;
    }
    !state
}

/// Works in blocks as large as those of the shape's walk.
///
/// See [`Shaped::copy_crc32c`](crate::Shaped::copy_crc32c).
#[inline(always)]
pub(crate) unsafe fn copy_crc32c_nt<V: Vector, C: Crc>(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    seed: u32,
    shape: Shape,
) -> u32 {
    // SAFETY: the caller guarantees both buffers of `bytes`. The head is shorter than a line and `bytes` is longer; blocks lie
    // within `bytes` and start at aligned targets, because a block is a number of lines.
    unsafe {
        if bytes < STREAM_FROM {
            let value = copy_crc32c::<V, C>(target, source, bytes, seed);
            V::fence();
            return value;
        }
        let mut offset = head_bytes(target);
        let mut state = !copy_crc32c::<V, C>(target, source, offset, seed);
        while offset < bytes {
            let block_bytes = (bytes - offset).min(shape.lanes() * LANE_BYTES);
            let done = lines::<V>(target.add(offset), source.add(offset), block_bytes, shape);
            copy::<V>(target.add(offset + done), source.add(offset + done), block_bytes - done);
            state = C::update(state, source.add(offset), block_bytes);
            offset += block_bytes;
        }
        V::fence();
        !state
    }
}
