// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copy, fill and compare in plain Rust, a byte or a word at a time.
//!
//! The compiler turns the copies into calls of the C library's `memcpy` and `memmove`, which is the best that portable code can get.

/// See [`Kernels::copy`](crate::Kernels::copy).
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    if bytes != 0 {
        // SAFETY: the caller guarantees `bytes` readable and writable bytes that do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(source, target, bytes) }
    }
}

/// See [`Kernels::move_overlapping`](crate::Kernels::move_overlapping).
pub(crate) unsafe fn move_overlapping(target: *mut u8, source: *const u8, bytes: usize) {
    if bytes != 0 {
        // SAFETY: the caller guarantees `bytes` readable and writable bytes.
        unsafe { core::ptr::copy(source, target, bytes) }
    }
}

/// See [`Kernels::fill`](crate::Kernels::fill).
pub(crate) unsafe fn fill(target: *mut u8, pattern: u128, bytes: usize) {
    let pattern = pattern.to_le_bytes();
    let mut offset = 0;
    // SAFETY: every offset is below `bytes`, which the caller guarantees to be writable.
    unsafe {
        while bytes - offset >= pattern.len() {
            target.add(offset).cast::<[u8; 16]>().write_unaligned(pattern);
            offset += pattern.len();
        }
        while offset < bytes {
            target.add(offset).write(pattern[offset % pattern.len()]);
            offset += 1;
        }
    }
}

/// See [`Kernels::compare`](crate::Kernels::compare).
pub(crate) unsafe fn compare(first: *const u8, second: *const u8, bytes: usize) -> Option<usize> {
    let mut offset = 0;
    // SAFETY: every offset is below `bytes`, which the caller guarantees to be readable in both.
    unsafe {
        while bytes - offset >= 8
            && first.add(offset).cast::<u64>().read_unaligned()
                == second.add(offset).cast::<u64>().read_unaligned()
        {
            offset += 8;
        }
        while offset < bytes {
            if first.add(offset).read() != second.add(offset).read() {
                return Some(offset);
            }
            offset += 1;
        }
    }
    None
}

/// See [`Kernels::compare_pattern`](crate::Kernels::compare_pattern).
pub(crate) unsafe fn compare_pattern(source: *const u8, pattern: u64, bytes: usize) -> Option<usize> {
    let pattern = pattern.to_le_bytes();
    let mut offset = 0;
    // SAFETY: every offset is below `bytes`, which the caller guarantees to be readable.
    unsafe {
        while bytes - offset >= 8 && source.add(offset).cast::<[u8; 8]>().read_unaligned() == pattern {
            offset += 8;
        }
        while offset < bytes {
            if source.add(offset).read() != pattern[offset % 8] {
                return Some(offset);
            }
            offset += 1;
        }
    }
    None
}

/// See [`Kernels::dualcast`](crate::Kernels::dualcast). Works block by block, so that the second copy reads from the cache.
pub(crate) unsafe fn dualcast(target1: *mut u8, target2: *mut u8, source: *const u8, bytes: usize) {
    let mut offset = 0;
    while offset < bytes {
        let block_bytes = (bytes - offset).min(4096);
        // SAFETY: the block lies within `bytes`, which the caller guarantees for all three buffers. The second copy reads the
        // first target, so both targets are equal even if the source changes meanwhile.
        unsafe {
            copy(target1.add(offset), source.add(offset), block_bytes);
            copy(target2.add(offset), target1.add(offset), block_bytes);
        }
        offset += block_bytes;
    }
}

/// See [`Kernels::copy_strided`](crate::Kernels::copy_strided).
pub(crate) unsafe fn copy_strided(
    target: *mut u8,
    source: *const u8,
    rows: usize,
    row_bytes: usize,
    source_stride: i64,
) {
    for row in 0..rows {
        let source = source.wrapping_offset((row as i64).wrapping_mul(source_stride) as isize);
        // SAFETY: the caller guarantees every row of the source, and `rows * row_bytes` writable bytes.
        unsafe { copy(target.wrapping_add(row * row_bytes), source, row_bytes) }
    }
}
