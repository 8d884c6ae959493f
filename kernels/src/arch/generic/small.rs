// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies at most 16 bytes; also the method of all short copies: two pieces, one from each end, that may overlap.
//!
//! - **Order** everything is loaded before anything is stored, so source and target may overlap.

use crate::vector::Vector;

/// Copies between `size_of::<T>()` and twice as many bytes. `T` is an integer.
#[inline(always)]
pub(crate) unsafe fn ends_integer<T: Copy>(target: *mut u8, source: *const u8, bytes: usize) {
    let last = bytes - size_of::<T>();
    // SAFETY: both pieces lie within `bytes`, for which the caller guarantees both buffers.
    unsafe {
        let head = source.cast::<T>().read_unaligned();
        let tail = source.add(last).cast::<T>().read_unaligned();
        target.cast::<T>().write_unaligned(head);
        target.add(last).cast::<T>().write_unaligned(tail);
    }
}

/// Copies between `V::BYTES` and twice as many bytes.
#[inline(always)]
pub(crate) unsafe fn ends<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    let last = bytes - V::BYTES;
    // SAFETY: both pieces lie within `bytes`, for which the caller guarantees both buffers.
    unsafe {
        let head = V::load(source);
        let tail = V::load(source.add(last));
        head.store(target);
        tail.store(target.add(last));
    }
}

/// Copies 0 to 16 bytes.
#[inline(always)]
pub(crate) unsafe fn copy_16(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: each branch has checked that its pieces fit.
    unsafe {
        if bytes >= 8 {
            ends_integer::<u64>(target, source, bytes);
        } else if bytes >= 4 {
            ends_integer::<u32>(target, source, bytes);
        } else if bytes >= 2 {
            ends_integer::<u16>(target, source, bytes);
        } else if bytes == 1 {
            target.write(source.read());
        }
    }
}
