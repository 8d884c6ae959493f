// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AVX2: 32-byte vectors; CRC by the instruction of SSE4.2, three streams at once.

mod vector;

use super::crc_instruction::{Instruction, update};
use crate::Isa;
use crate::arch::generic;
use core::arch::x86_64::__m256i;

/// See [`Kernels::crc32c`](crate::Kernels::crc32c).
#[inline(always)]
unsafe fn crc(source: *const u8, bytes: usize, seed: u32) -> u32 {
    // SAFETY: the caller's promise is the same.
    unsafe { !update(!seed, source, bytes) }
}

entry_points! {
    isa: Isa::Avx2,
    features: "avx2,sse4.2,pclmulqdq",
    vector: __m256i,
    crc: crc, generic::crc::copy_crc32c::<__m256i, Instruction>,
        generic::crc::copy_crc32c_nt::<__m256i, Instruction>,
}
