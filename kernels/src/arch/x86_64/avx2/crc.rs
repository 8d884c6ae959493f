// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CRC-32C with the instruction of SSE4.2, alone and while streaming.
//!
//! - **Flow** streaming with four lanes: three pages are copied side by side, each with a CRC stream of its own, because the instruction
//!   is fastest with three streams. Every line is checked and stored before the next one; at the end of each block the three states are
//!   joined. With fewer lanes: block by block, as in `generic`.
//! - **Order** the checksum reads a line right before the copy reads it.

use super::super::crc_instruction::{join, rest, update, words};
use crate::arch::generic::stream::{LANE_BYTES, LINE_BYTES, Lines, head_bytes, stream_line, walk};
use crate::shape::Shape;
use crate::vector::Vector;
use core::arch::x86_64::__m256i;

/// From this size on, in bytes, three pages side by side are faster than checking block by block: one block and its head.
const SIDE_BY_SIDE_FROM: usize = 3 * LANE_BYTES + LINE_BYTES;

/// See [`Kernels::crc32c`](crate::Kernels::crc32c).
#[inline(always)]
pub(super) unsafe fn crc32c(source: *const u8, bytes: usize, seed: u32) -> u32 {
    // SAFETY: the caller guarantees that the source is readable for `bytes`.
    unsafe { !update(!seed, source, bytes) }
}

/// Streams lines and checks them, with one state per lane of a block.
struct StreamAndCheck {
    target: *mut u8,
    source: *const u8,
    states: [u64; 3],
}

impl Lines for StreamAndCheck {
    #[inline(always)]
    unsafe fn line(&mut self, lane: usize, offset: usize) {
        // SAFETY: `walk` stays within the buffers; the target is aligned to a line.
        unsafe {
            self.states[lane] = words::<LINE_BYTES>(self.states[lane], self.source.add(offset));
            stream_line::<__m256i>(self.target.add(offset), self.source.add(offset));
        }
    }

    #[inline(always)]
    unsafe fn prefetch(&self, offset: usize) {
        // SAFETY: `walk` stays within the source.
        unsafe { __m256i::prefetch(self.source.add(offset)) }
    }

    #[inline(always)]
    unsafe fn block(&mut self) {
        let [a, b, c] = self.states.map(|state| state as u32);
        // SAFETY: the function that this is inlined into enables SSE4.2 and PCLMULQDQ.
        self.states = [u64::from(unsafe { join::<LANE_BYTES>(a, b, c) }), 0, 0];
    }
}

/// Copies whole blocks side by side, and the rest (less than a block) by the generic routine.
///
/// See [`Shaped::copy_crc32c`](crate::Shaped::copy_crc32c).
#[inline(always)]
pub(super) unsafe fn copy_crc32c_nt(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    seed: u32,
    shape: Shape,
) -> u32 {
    use super::super::crc_instruction::Instruction;
    use crate::arch::generic::crc::copy_crc32c_nt as by_block;
    // SAFETY: the caller guarantees both buffers of `bytes`. The head is shorter than a line and `bytes` is longer; after it the
    // target is aligned. `by_block` fences.
    unsafe {
        if bytes < SIDE_BY_SIDE_FROM || shape.lanes() < 4 {
            return by_block::<__m256i, Instruction>(target, source, bytes, seed, shape);
        }
        let head = head_bytes(target);
        __m256i::short(target, source, head);
        let state = rest(!seed, source, head);
        let (target, source, bytes) = (target.add(head), source.add(head), bytes - head);
        let blocks_bytes = bytes - bytes % (3 * LANE_BYTES);
        let mut lines = StreamAndCheck { target, source, states: [u64::from(state), 0, 0] };
        walk::<3, _>(&mut lines, blocks_bytes, shape.ahead_bytes());
        let value = !(lines.states[0] as u32);
        by_block::<__m256i, Instruction>(
            target.add(blocks_bytes),
            source.add(blocks_bytes),
            bytes - blocks_bytes,
            value,
            shape,
        )
    }
}
