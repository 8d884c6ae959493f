// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CRC-32C with the instruction of SSE4.2, in three streams: the instruction takes three cycles, but one can be started in
//! every cycle.
//!
//! - **Flow** 3 × 4096, 3 × 512, 3 × 64 bytes while they fit; the three states of each are joined by carry-less multiplication. Then
//!   words, then bytes.
//!
//! Source: Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel, 2011.

use crate::arch::all::polynomial::shift;
use core::arch::x86_64::{
    _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64,
};

/// CRC by the instruction, for [`generic::crc`](crate::arch::generic::crc).
pub(super) struct Instruction;

impl crate::arch::generic::crc::Crc for Instruction {
    #[inline(always)]
    unsafe fn update(state: u32, source: *const u8, bytes: usize) -> u32 {
        // SAFETY: the source is readable for `bytes`, and the CPU has SSE4.2 and PCLMULQDQ, as the caller guarantees.
        unsafe { update(state, source, bytes) }
    }
}

/// Continues the state over `bytes` bytes. Needs SSE4.2 and PCLMULQDQ.
#[inline(always)]
pub(crate) unsafe fn update(mut state: u32, source: *const u8, bytes: usize) -> u32 {
    let mut offset = 0;
    // SAFETY: every piece is checked to lie within `bytes`, which the caller guarantees to be readable.
    unsafe {
        while bytes - offset >= 3 * 4096 {
            state = three::<4096>(state, source.add(offset));
            offset += 3 * 4096;
        }
        while bytes - offset >= 3 * 512 {
            state = three::<512>(state, source.add(offset));
            offset += 3 * 512;
        }
        while bytes - offset >= 3 * 64 {
            state = three::<64>(state, source.add(offset));
            offset += 3 * 64;
        }
        rest(state, source.add(offset), bytes - offset)
    }
}

/// Continues the state over a few bytes, in one stream.
#[inline(always)]
pub(crate) unsafe fn rest(state: u32, source: *const u8, bytes: usize) -> u32 {
    let mut offset = 0;
    let mut state = u64::from(state);
    // SAFETY: every piece is checked to lie within `bytes`, which the caller guarantees to be readable.
    unsafe {
        while bytes - offset >= 8 {
            state = _mm_crc32_u64(state, source.add(offset).cast::<u64>().read_unaligned());
            offset += 8;
        }
        let mut state = state as u32;
        while offset < bytes {
            state = _mm_crc32_u8(state, source.add(offset).read());
            offset += 1;
        }
        state
    }
}

/// Continues the state over three streams of `STREAM` bytes each.
#[inline(always)]
unsafe fn three<const STREAM: usize>(state: u32, source: *const u8) -> u32 {
    let (mut a, mut b, mut c) = (u64::from(state), 0, 0);
    let mut offset = 0;
    // SAFETY: the caller guarantees `3 * STREAM` readable bytes.
    unsafe {
        while offset < STREAM {
            let word = source.add(offset).cast::<u64>();
            a = _mm_crc32_u64(a, word.read_unaligned());
            b = _mm_crc32_u64(b, word.byte_add(STREAM).read_unaligned());
            c = _mm_crc32_u64(c, word.byte_add(2 * STREAM).read_unaligned());
            offset += 8;
        }
        join::<STREAM>(a as u32, b as u32, c as u32)
    }
}

/// Joins the states of three adjacent streams of `STREAM` bytes, the later two of which started from 0.
#[inline(always)]
pub(super) unsafe fn join<const STREAM: usize>(a: u32, b: u32, c: u32) -> u32 {
    // SAFETY: the function that this is inlined into enables SSE4.2 and PCLMULQDQ.
    unsafe { moved(a, const { shift(2 * STREAM as u32) }) ^ moved(b, const { shift(STREAM as u32) }) ^ c }
}

/// Continues the state over `BYTES` bytes, a multiple of 8.
#[inline(always)]
pub(crate) unsafe fn words<const BYTES: usize>(mut state: u64, source: *const u8) -> u64 {
    let mut offset = 0;
    while offset < BYTES {
        // SAFETY: the caller guarantees `BYTES` readable bytes, and its function enables SSE4.2.
        state = unsafe { _mm_crc32_u64(state, source.add(offset).cast::<u64>().read_unaligned()) };
        offset += 8;
    }
    state
}

/// Returns the state moved over the zero bytes that the multiplier represents.
#[inline(always)]
unsafe fn moved(state: u32, shift: u32) -> u32 {
    // SAFETY: the function that this is inlined into enables SSE4.2 and PCLMULQDQ.
    unsafe {
        let product =
            _mm_clmulepi64_si128(_mm_cvtsi32_si128(state as i32), _mm_cvtsi32_si128(shift as i32), 0);
        _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64) as u32
    }
}
