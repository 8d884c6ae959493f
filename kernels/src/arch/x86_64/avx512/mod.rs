// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The AVX-512 level: 64-byte vectors; CRC by folding with VPCLMULQDQ, on the registers that the copy has loaded.

pub(crate) mod crc;
mod short;
mod vector;

use crate::Isa;
use crate::arch::generic;
use core::arch::x86_64::__m512i;

entry_points! {
    isa: Isa::Avx512,
    features: "avx512f,avx512bw,avx512vl,vpclmulqdq,avx2,sse4.2,pclmulqdq",
    vector: __m512i,
    crc: crc::crc32c, crc::copy_crc32c, crc::copy_crc32c_nt,
}
