// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies to two targets with one read: every vector is loaded once and stored twice.
//!
//! - **Order** both targets get the same bytes, even if another process changes the source meanwhile.

use super::copy::{load_row, store_row};
use super::stream::{LINE_BYTES, Lines, STREAM_FROM, head_bytes, is_narrow, walk_shaped};
use crate::shape::Shape;
use crate::vector::{Sixteen, Vector};

/// See [`Kernels::dualcast`](crate::Kernels::dualcast).
#[inline(always)]
pub(crate) unsafe fn dualcast<V: Vector>(
    target1: *mut u8,
    target2: *mut u8,
    source: *const u8,
    bytes: usize,
) {
    // SAFETY: the caller guarantees `bytes` in all three buffers; each branch has checked that its pieces fit.
    unsafe {
        if bytes > 2 * V::BYTES {
            let last = bytes - V::BYTES;
            let tail = V::load(source.add(last));
            let mut offset = 0;
            while last - offset >= 4 * V::BYTES {
                let row: [V; 4] = load_row(source.add(offset));
                store_row(row, target1.add(offset));
                store_row(row, target2.add(offset));
                offset += 4 * V::BYTES;
            }
            while offset < last {
                let vector = V::load(source.add(offset));
                vector.store(target1.add(offset));
                vector.store(target2.add(offset));
                offset += V::BYTES;
            }
            tail.store(target1.add(last));
            tail.store(target2.add(last));
        } else if bytes >= V::BYTES {
            ends::<V>(target1, target2, source, bytes);
        } else if V::BYTES > 32 && bytes >= 32 {
            ends::<V::Half>(target1, target2, source, bytes);
        } else if bytes >= 16 {
            ends::<Sixteen<V>>(target1, target2, source, bytes);
        } else if bytes >= 8 {
            ends_integer::<u64>(target1, target2, source, bytes);
        } else if bytes >= 4 {
            ends_integer::<u32>(target1, target2, source, bytes);
        } else if bytes >= 2 {
            ends_integer::<u16>(target1, target2, source, bytes);
        } else if bytes == 1 {
            ends_integer::<u8>(target1, target2, source, bytes);
        }
    }
}

#[inline(always)]
unsafe fn ends<V: Vector>(target1: *mut u8, target2: *mut u8, source: *const u8, bytes: usize) {
    let last = bytes - V::BYTES;
    // SAFETY: both pieces lie within `bytes`, for which the caller guarantees all three buffers.
    unsafe {
        let head = V::load(source);
        let tail = V::load(source.add(last));
        head.store(target1);
        tail.store(target1.add(last));
        head.store(target2);
        tail.store(target2.add(last));
    }
}

#[inline(always)]
unsafe fn ends_integer<T: Copy>(target1: *mut u8, target2: *mut u8, source: *const u8, bytes: usize) {
    let last = bytes - size_of::<T>();
    // SAFETY: both pieces lie within `bytes`, for which the caller guarantees all three buffers.
    unsafe {
        let head = source.cast::<T>().read_unaligned();
        let tail = source.add(last).cast::<T>().read_unaligned();
        target1.cast::<T>().write_unaligned(head);
        target1.add(last).cast::<T>().write_unaligned(tail);
        target2.cast::<T>().write_unaligned(head);
        target2.add(last).cast::<T>().write_unaligned(tail);
    }
}

struct Dual<V> {
    target1: *mut u8,
    target2: *mut u8,
    source: *const u8,
    vector: core::marker::PhantomData<V>,
}

/// Copies a line of `N` vectors past the caches to both targets.
///
/// # Safety
///
/// `source` is readable and both targets are writable for `N` vectors; the targets are aligned to a vector.
#[inline(always)]
unsafe fn line_to_both<V: Vector, const N: usize>(target1: *mut u8, target2: *mut u8, source: *const u8) {
    // SAFETY: the caller guarantees `N` vectors in all three buffers.
    unsafe {
        let row: [V; N] = load_row(source);
        for target in [target1, target2] {
            for (index, vector) in row.iter().enumerate() {
                vector.stream(target.add(index * V::BYTES));
            }
        }
    }
}

impl<V: Vector> Lines for Dual<V> {
    /// Both targets get a whole line at a time. Stores that change target every half line would keep two write-combining
    /// buffers open at once, which costs 9 % on Zen 3 (`dualcast/*/cold`).
    #[inline(always)]
    unsafe fn line(&mut self, _lane: usize, offset: usize) {
        // SAFETY: `walk` stays within the buffers; both targets are aligned to a line.
        unsafe {
            let (source, target1, target2) =
                (self.source.add(offset), self.target1.add(offset), self.target2.add(offset));
            match LINE_BYTES / V::BYTES {
                1 => line_to_both::<V, 1>(target1, target2, source),
                2 => line_to_both::<V, 2>(target1, target2, source),
                _ => line_to_both::<V, 4>(target1, target2, source),
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(&self, offset: usize) {
        // SAFETY: `walk` stays within the source.
        unsafe { V::prefetch(self.source.add(offset)) }
    }
}

/// See [`Shaped::dualcast`](crate::Shaped::dualcast).
#[inline(always)]
pub(crate) unsafe fn dualcast_nt<V: Vector>(
    target1: *mut u8,
    target2: *mut u8,
    source: *const u8,
    bytes: usize,
    shape: Shape,
) {
    let head = head_bytes(target1);
    // SAFETY: the caller guarantees all three buffers. The head is shorter than a line and `bytes` is longer; after it
    // both targets are aligned, because they agree modulo a line.
    unsafe {
        if bytes < STREAM_FROM || head != head_bytes(target2) {
            dualcast::<V>(target1, target2, source, bytes);
        } else {
            dualcast::<V>(target1, target2, source, head);
            let (to1, to2, from) = (target1.add(head), target2.add(head), source.add(head));
            let done = head
                + if is_narrow::<V>(shape) {
                    dual::<V::Half>(to1, to2, from, bytes - head, shape)
                } else {
                    dual::<V>(to1, to2, from, bytes - head, shape)
                };
            dualcast::<V>(target1.add(done), target2.add(done), source.add(done), bytes - done);
        }
        V::fence();
    }
}

/// Copies the whole lines of `bytes` to aligned targets; returns the bytes copied.
#[inline(always)]
unsafe fn dual<V: Vector>(
    target1: *mut u8,
    target2: *mut u8,
    source: *const u8,
    bytes: usize,
    shape: Shape,
) -> usize {
    let mut dual = Dual::<V> { target1, target2, source, vector: core::marker::PhantomData };
    // SAFETY: the caller guarantees all three buffers, the targets aligned to a line.
    unsafe { walk_shaped(&mut dual, bytes, shape) }
}
