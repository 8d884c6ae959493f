// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fills with a 16-byte pattern.
//!
//! The pattern starts at the target. A store at offset k needs the pattern rotated by k modulo 16. Vectors of 16, 32 and 64 bytes
//! in a row all need the same rotation, so it is computed once for the aligned middle and once for the tail.

use super::stream::{LINE_BYTES, Lines, STREAM_FROM, head_bytes, is_narrow, walk_shaped};
use crate::shape::Shape;
use crate::vector::{Sixteen, Vector};

/// Returns the pattern as it reads from `offset` on.
#[inline(always)]
fn turned(pattern: u128, offset: usize) -> u128 {
    pattern.rotate_right((offset % 16 * 8) as u32)
}

/// See [`Kernels::fill`](crate::Kernels::fill).
#[inline(always)]
pub(crate) unsafe fn fill<V: Vector>(target: *mut u8, pattern: u128, bytes: usize) {
    // SAFETY: the caller guarantees the target; each branch has checked that its pieces fit. The loop starts at most a
    // vector after the start, aligned, and a turn needs 4 vectors before the last one.
    unsafe {
        if bytes > 2 * V::BYTES {
            let last = bytes - V::BYTES;
            V::splat(pattern).store(target);
            let mut offset = V::BYTES - target.addr() % V::BYTES;
            let middle = V::splat(turned(pattern, offset));
            while offset + 4 * V::BYTES <= last {
                middle.store_aligned(target.add(offset));
                middle.store_aligned(target.add(offset + V::BYTES));
                middle.store_aligned(target.add(offset + 2 * V::BYTES));
                middle.store_aligned(target.add(offset + 3 * V::BYTES));
                offset += 4 * V::BYTES;
            }
            while offset < last {
                middle.store_aligned(target.add(offset));
                offset += V::BYTES;
            }
            V::splat(turned(pattern, last)).store(target.add(last));
        } else if bytes >= V::BYTES {
            ends::<V>(target, pattern, bytes);
        } else if V::BYTES > 32 && bytes >= 32 {
            ends::<V::Half>(target, pattern, bytes);
        } else if bytes >= 16 {
            ends::<Sixteen<V>>(target, pattern, bytes);
        } else if bytes >= 8 {
            target.cast::<u64>().write_unaligned(pattern as u64);
            target.add(bytes - 8).cast::<u64>().write_unaligned(turned(pattern, bytes - 8) as u64);
        } else if bytes >= 4 {
            target.cast::<u32>().write_unaligned(pattern as u32);
            target.add(bytes - 4).cast::<u32>().write_unaligned(turned(pattern, bytes - 4) as u32);
        } else if bytes >= 1 {
            target.write(pattern as u8);
            target.add(bytes / 2).write(turned(pattern, bytes / 2) as u8);
            target.add(bytes - 1).write(turned(pattern, bytes - 1) as u8);
        }
    }
}

#[inline(always)]
unsafe fn ends<V: Vector>(target: *mut u8, pattern: u128, bytes: usize) {
    let last = bytes - V::BYTES;
    // SAFETY: both pieces lie within `bytes`, which the caller guarantees to be writable.
    unsafe {
        V::splat(pattern).store(target);
        V::splat(turned(pattern, last)).store(target.add(last));
    }
}

/// Streams one vector over all lines.
struct Fill<V> {
    target: *mut u8,
    middle: V,
}

impl<V: Vector> Lines for Fill<V> {
    #[inline(always)]
    unsafe fn line(&mut self, _lane: usize, offset: usize) {
        let mut i = offset;
        while i < offset + LINE_BYTES {
            // SAFETY: `walk` stays within the target, which is aligned to a line.
            unsafe { self.middle.stream(self.target.add(i)) };
            i += V::BYTES;
        }
    }

    /// Does nothing: a fill reads no source.
    #[inline(always)]
    unsafe fn prefetch(&self, _offset: usize) {}
}

/// See [`Shaped::fill`](crate::Shaped::fill).
#[inline(always)]
pub(crate) unsafe fn fill_nt<V: Vector>(target: *mut u8, pattern: u128, bytes: usize, shape: Shape) {
    // SAFETY: the caller guarantees the target. The head is shorter than a line, and `bytes` is longer. A lane is a multiple of
    // the pattern, so the same vector is right at every offset.
    unsafe {
        if bytes < STREAM_FROM {
            fill::<V>(target, pattern, bytes);
        } else {
            let head = head_bytes(target);
            fill::<V>(target, pattern, head);
            let (middle, start) = (turned(pattern, head), target.add(head));
            let done = head
                + if is_narrow::<V>(shape) {
                    let mut lines = Fill { target: start, middle: V::Half::splat(middle) };
                    walk_shaped(&mut lines, bytes - head, shape)
                } else {
                    let mut lines = Fill { target: start, middle: V::splat(middle) };
                    walk_shaped(&mut lines, bytes - head, shape)
                };
            fill::<V>(target.add(done), turned(pattern, done), bytes - done);
        }
        V::fence();
    }
}
