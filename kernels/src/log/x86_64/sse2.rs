// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The SSE2 level: stores of 16 bytes past the caches. The CRC uses tables, as in `arch/x86_64/sse2`.

use core::arch::x86_64::__m128i;

/// See [`nt_copy`](super::super::nt_copy).
#[target_feature(enable = "sse2")]
pub(in super::super) unsafe fn nt_copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees `bytes` bytes, a multiple of a line, in both buffers, which do not overlap.
    unsafe { super::nt_copy::<__m128i>(target, source, bytes) }
}
