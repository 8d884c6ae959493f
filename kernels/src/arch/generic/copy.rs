// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copy and memmove with ordinary stores.
//!
//! - **Flow** up to 16 bytes: integers from both ends. Up to 2, 4 or 8 vectors: all loads, then all stores, from both ends. Longer: `rep
//!   movsb` from the calibrated size on, else four aligned vectors per turn; the unaligned head and tail are loaded before the loop and
//!   stored after it.
//! - **Order** loads go before the stores that could overwrite them; this makes `move_overlapping` right. Up to 8 vectors nothing is
//!   stored before everything is loaded; the forward loop is used if the target lies below the source, the backward loop if it lies
//!   above.

use super::small::{copy_16, ends};
use crate::vector::{Sixteen, Vector};

/// See [`Kernels::copy`](crate::Kernels::copy).
#[inline(always)]
pub(crate) unsafe fn copy<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees `bytes` in both buffers; the minimum length of each routine is checked before it.
    unsafe {
        if V::short(target, source, bytes) {
        } else if bytes >= V::repeat_from() {
            V::repeat(target, source, bytes);
        } else {
            forward::<V>(target, source, bytes);
        }
    }
}

/// See [`Kernels::move_overlapping`](crate::Kernels::move_overlapping).
#[inline(always)]
pub(crate) unsafe fn move_overlapping<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the conditions of `copy`. Only buffers that do not overlap go to `repeat`.
    unsafe {
        if V::short(target, source, bytes) {
        } else if target.addr().wrapping_sub(source.addr()) < bytes {
            backward::<V>(target, source, bytes);
        } else if bytes >= V::repeat_from() && source.addr().wrapping_sub(target.addr()) >= bytes {
            V::repeat(target, source, bytes);
        } else {
            forward::<V>(target, source, bytes);
        }
    }
}

/// See [`Vector::short`].
#[inline(always)]
pub(crate) unsafe fn short<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) -> bool {
    // SAFETY: each branch has checked that its pieces fit into `bytes`.
    unsafe {
        if bytes <= 32 {
            if bytes >= 16 {
                ends::<Sixteen<V>>(target, source, bytes);
            } else {
                copy_16(target, source, bytes);
            }
        } else if V::BYTES > 32 && bytes <= 64 {
            ends::<V::Half>(target, source, bytes);
        } else if V::BYTES > 16 && bytes <= 2 * V::BYTES {
            ends::<V>(target, source, bytes);
        } else if bytes <= 4 * V::BYTES {
            both_ends::<V, 2>(target, source, bytes);
        } else if bytes <= 8 * V::BYTES {
            both_ends::<V, 4>(target, source, bytes);
        } else {
            return false;
        }
        true
    }
}

/// Copies `COUNT` to twice `COUNT` vectors; all are loaded before any is stored.
#[inline(always)]
unsafe fn both_ends<V: Vector, const COUNT: usize>(target: *mut u8, source: *const u8, bytes: usize) {
    let last = bytes - COUNT * V::BYTES;
    // SAFETY: `COUNT` vectors fit into `bytes`, so they fit at its start and at its end.
    unsafe {
        let head: [V; COUNT] = load_row(source);
        let tail: [V; COUNT] = load_row(source.add(last));
        store_row(head, target);
        store_row(tail, target.add(last));
    }
}

/// Reads `COUNT` vectors in a row.
#[inline(always)]
pub(crate) unsafe fn load_row<V: Vector, const COUNT: usize>(source: *const u8) -> [V; COUNT] {
    // SAFETY: the caller guarantees `COUNT * V::BYTES` readable bytes.
    unsafe {
        let mut row = [V::load(source); COUNT];
        let mut i = 1;
        while i < COUNT {
            row[i] = V::load(source.add(i * V::BYTES));
            i += 1;
        }
        row
    }
}

/// Writes `COUNT` vectors in a row.
#[inline(always)]
pub(crate) unsafe fn store_row<V: Vector, const COUNT: usize>(row: [V; COUNT], target: *mut u8) {
    let mut i = 0;
    while i < COUNT {
        // SAFETY: the caller guarantees `COUNT * V::BYTES` writable bytes.
        unsafe { row[i].store(target.add(i * V::BYTES)) };
        i += 1;
    }
}

/// Writes `COUNT` vectors in a row to an aligned target.
#[inline(always)]
unsafe fn store_row_aligned<V: Vector, const COUNT: usize>(row: [V; COUNT], target: *mut u8) {
    let mut i = 0;
    while i < COUNT {
        // SAFETY: the caller guarantees `COUNT * V::BYTES` writable bytes, aligned to a vector.
        unsafe { row[i].store_aligned(target.add(i * V::BYTES)) };
        i += 1;
    }
}

/// Copies more than 4 vectors from the start. Right for overlapping buffers if the target lies below the source.
#[inline(always)]
unsafe fn forward<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    let end = bytes - 4 * V::BYTES;
    // SAFETY: `bytes` is more than 4 vectors. The loop starts at the first aligned address after the target's
    // start, at most one vector on, and a turn starts below `end`, so that it stays within `bytes`.
    unsafe {
        let head = V::load(source);
        let tail: [V; 4] = load_row(source.add(end));
        let mut offset = V::BYTES - target.addr() % V::BYTES;
        while offset < end {
            let row: [V; 4] = load_row(source.add(offset));
            store_row_aligned(row, target.add(offset));
            offset += 4 * V::BYTES;
        }
        store_row(tail, target.add(end));
        head.store(target);
    }
}

/// Copies more than 4 vectors from the end. Right for overlapping buffers if the target lies above the source.
#[inline(always)]
unsafe fn backward<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    let last = bytes - V::BYTES;
    // SAFETY: `bytes` is more than 4 vectors. The loop starts at the last aligned address of the target, less than
    // one vector before its end, and a turn needs more than 4 vectors below it.
    unsafe {
        let head: [V; 4] = load_row(source);
        let tail = V::load(source.add(last));
        let mut offset = bytes - (target.addr() + bytes) % V::BYTES;
        while offset > 4 * V::BYTES {
            offset -= 4 * V::BYTES;
            let row: [V; 4] = load_row(source.add(offset));
            store_row_aligned(row, target.add(offset));
        }
        store_row(head, target);
        tail.store(target.add(last));
    }
}
