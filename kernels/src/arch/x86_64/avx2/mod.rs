// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The AVX2 level: 32-byte vectors; CRC by the instruction of SSE4.2, three streams at a time.

mod crc;
mod vector;

use super::crc_instruction::Instruction;
use crate::Isa;
use crate::arch::generic;
use core::arch::x86_64::__m256i;

entry_points! {
    isa: Isa::Avx2,
    features: "avx2,sse4.2,pclmulqdq",
    vector: __m256i,
    crc: crc::crc32c, generic::crc::copy_crc32c::<__m256i, Instruction>, crc::copy_crc32c_nt,
}
