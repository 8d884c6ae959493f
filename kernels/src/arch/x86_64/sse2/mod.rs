// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The SSE2 level: 16-byte vectors, on every x86-64 CPU. The CRC uses tables, because SSE2 has no instruction for it.

mod vector;

use crate::Isa;
use crate::arch::{all, generic};
use core::arch::x86_64::__m128i;

/// CRC by tables, for [`generic::crc`].
struct Tables;

impl generic::crc::Crc for Tables {
    #[inline(always)]
    unsafe fn update(state: u32, source: *const u8, bytes: usize) -> u32 {
        // SAFETY: the source is readable for `bytes`, as the caller guarantees.
        unsafe { all::crc::update(state, source, bytes) }
    }
}

entry_points! {
    isa: Isa::Sse2,
    features: "sse2",
    vector: __m128i,
    crc: all::crc::crc32c, generic::crc::copy_crc32c::<__m128i, Tables>,
        generic::crc::copy_crc32c_nt::<__m128i, Tables>,
}
