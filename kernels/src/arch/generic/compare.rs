// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the first difference of two buffers, or of a buffer and a repeated 8-byte pattern.
//!
//! - **Flow** four vectors per turn, their differences combined. A turn with a difference, and the rest of the buffer, are compared one
//!   vector at a time. The last vector overlaps the one before; the overlapping bytes are already known to be equal.

use crate::vector::{Sixteen, Vector};

/// The second operand of a comparison: a buffer or a pattern.
trait Side: Copy {
    /// Returns the operand's vector at `offset`.
    unsafe fn vector<V: Vector>(self, offset: usize) -> V;
    /// Returns the operand's 8 bytes at `offset`.
    unsafe fn word(self, offset: usize) -> u64;
    /// Returns the operand's byte at `offset`.
    unsafe fn byte(self, offset: usize) -> u8;
}

/// A buffer as an operand.
#[derive(Clone, Copy)]
struct Buffer(*const u8);

impl Side for Buffer {
    #[inline(always)]
    unsafe fn vector<V: Vector>(self, offset: usize) -> V {
        // SAFETY: the caller keeps `offset` and the vector inside the buffer.
        unsafe { V::load(self.0.add(offset)) }
    }

    #[inline(always)]
    unsafe fn word(self, offset: usize) -> u64 {
        // SAFETY: the caller keeps `offset` and the 8 bytes inside the buffer.
        unsafe { self.0.add(offset).cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn byte(self, offset: usize) -> u8 {
        // SAFETY: the caller keeps `offset` inside the buffer.
        unsafe { self.0.add(offset).read() }
    }
}

/// A repeated pattern as an operand.
#[derive(Clone, Copy)]
struct Pattern(u64);

impl Side for Pattern {
    #[inline(always)]
    unsafe fn vector<V: Vector>(self, offset: usize) -> V {
        // SAFETY: the function that this is inlined into has the vector's target features.
        unsafe { V::splat(crate::repeat_8(self.word(offset))) }
    }

    #[inline(always)]
    unsafe fn word(self, offset: usize) -> u64 {
        self.0.rotate_right((offset % 8 * 8) as u32)
    }

    #[inline(always)]
    unsafe fn byte(self, offset: usize) -> u8 {
        self.0.rotate_right((offset % 8 * 8) as u32) as u8
    }
}

/// See [`Kernels::compare`](crate::Kernels::compare).
#[inline(always)]
pub(crate) unsafe fn compare<V: Vector>(first: *const u8, second: *const u8, bytes: usize) -> Option<usize> {
    // SAFETY: the caller guarantees `bytes` readable bytes in both buffers.
    unsafe { difference::<V, _>(Buffer(first), Buffer(second), bytes) }
}

/// See [`Kernels::compare_pattern`](crate::Kernels::compare_pattern).
#[inline(always)]
pub(crate) unsafe fn compare_pattern<V: Vector>(
    source: *const u8,
    pattern: u64,
    bytes: usize,
) -> Option<usize> {
    // SAFETY: the caller guarantees that the source is readable for `bytes`.
    unsafe { difference::<V, _>(Buffer(source), Pattern(pattern), bytes) }
}

#[inline(always)]
unsafe fn difference<V: Vector, S: Side>(first: Buffer, second: S, bytes: usize) -> Option<usize> {
    // SAFETY: every piece lies within `bytes`: its size was checked, or it ends at the last byte of a buffer that is known to
    // hold a whole piece.
    unsafe {
        if bytes >= V::BYTES {
            let mut offset = 0;
            while bytes - offset >= 4 * V::BYTES {
                let [a, b, c, d] = [
                    first.vector::<V>(offset).xor(second.vector(offset)),
                    first.vector::<V>(offset + V::BYTES).xor(second.vector(offset + V::BYTES)),
                    first.vector::<V>(offset + 2 * V::BYTES).xor(second.vector(offset + 2 * V::BYTES)),
                    first.vector::<V>(offset + 3 * V::BYTES).xor(second.vector(offset + 3 * V::BYTES)),
                ];
                if !a.or(b).or(c.or(d)).is_zero() {
                    break;
                }
                offset += 4 * V::BYTES;
            }
            while bytes - offset >= V::BYTES {
                if let Some(at) = piece::<V, S>(first, second, offset) {
                    return Some(at);
                }
                offset += V::BYTES;
            }
            return if offset < bytes { piece::<V, S>(first, second, bytes - V::BYTES) } else { None };
        }
        if V::BYTES > 32 && bytes >= 32 {
            return piece::<V::Half, S>(first, second, 0)
                .or_else(|| piece::<V::Half, S>(first, second, bytes - 32));
        }
        if bytes >= 16 {
            return piece::<Sixteen<V>, S>(first, second, 0)
                .or_else(|| piece::<Sixteen<V>, S>(first, second, bytes - 16));
        }
        if bytes >= 8 {
            return word(first, second, 0).or_else(|| word(first, second, bytes - 8));
        }
        let mut offset = 0;
        while offset < bytes {
            if first.byte(offset) != second.byte(offset) {
                return Some(offset);
            }
            offset += 1;
        }
        None
    }
}

/// Returns the first difference in one vector.
#[inline(always)]
unsafe fn piece<V: Vector, S: Side>(first: Buffer, second: S, offset: usize) -> Option<usize> {
    // SAFETY: the caller guarantees that the vector lies within both sides.
    let differing = unsafe { first.vector::<V>(offset).differing_bytes(second.vector(offset)) };
    if differing == 0 { None } else { Some(offset + differing.trailing_zeros() as usize) }
}

/// Returns the first difference in 8 bytes.
#[inline(always)]
unsafe fn word<S: Side>(first: Buffer, second: S, offset: usize) -> Option<usize> {
    // SAFETY: the caller guarantees that the word lies within both sides.
    let differing = unsafe { first.word(offset) ^ second.word(offset) };
    if differing == 0 { None } else { Some(offset + differing.trailing_zeros() as usize / 8) }
}
