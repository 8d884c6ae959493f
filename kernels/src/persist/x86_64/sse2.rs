// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SSE2: stores of 16 bytes past the caches. The CRC comes from tables, as in `arch/x86_64/sse2`.

use core::arch::x86_64::__m128i;

/// See [`nt_copy`](super::super::nt_copy).
#[target_feature(enable = "sse2")]
pub(in super::super) unsafe fn nt_copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: both buffers hold `bytes` bytes, a number of lines, and are apart, as the caller vouches.
    unsafe { super::nt_copy::<__m128i>(target, source, bytes) }
}

/// See [`copy_lines`](super::super::copy_lines).
#[target_feature(enable = "sse2")]
pub(in super::super) unsafe fn copy_lines(target: *mut u8, source: *const u8, lines: u64) {
    // SAFETY: the named lines of both pages are there, and the pages are apart, as the caller vouches.
    unsafe { super::copy_lines::<__m128i>(target, source, lines) }
}
