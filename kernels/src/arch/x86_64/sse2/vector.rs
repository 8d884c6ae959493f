// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The 16-byte vector.

use crate::vector::Vector;
use core::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_and_si128, _mm_castsi128_pd, _mm_cmpeq_epi8, _mm_cmpeq_epi32, _mm_loadu_si128,
    _mm_movemask_epi8, _mm_movemask_pd, _mm_or_si128, _mm_prefetch, _mm_set_epi64x, _mm_setzero_si128,
    _mm_sfence, _mm_shuffle_epi32, _mm_store_si128, _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
};

impl Vector for __m128i {
    const BYTES: usize = 16;
    type Half = __m128i;

    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: 16 readable bytes.
        unsafe { _mm_loadu_si128(source.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: 16 writable bytes.
        unsafe { _mm_storeu_si128(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn store_aligned(self, target: *mut u8) {
        // SAFETY: 16 writable bytes, aligned.
        unsafe { _mm_store_si128(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: 16 writable bytes, aligned; the routine that streams ends with a fence.
        unsafe { _mm_stream_si128(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn stream_halves(self, target: *mut u8) {
        // SAFETY: the caller guarantees an aligned target with room for a vector, the conditions of `stream`.
        unsafe { self.stream(target) }
    }

    #[inline(always)]
    unsafe fn splat(pattern: u128) -> Self {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_set_epi64x((pattern >> 64) as i64, pattern as i64) }
    }

    #[inline(always)]
    unsafe fn differing_bytes(self, other: Self) -> u64 {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { (_mm_movemask_epi8(_mm_cmpeq_epi8(self, other)) ^ 0xffff) as u64 }
    }

    #[inline(always)]
    unsafe fn differing_words(self, other: Self) -> u32 {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            // SSE2 compares 4 bytes at a time: a word is equal if both of its halves are.
            let halves = _mm_cmpeq_epi32(self, other);
            let words = _mm_and_si128(halves, _mm_shuffle_epi32(halves, 0b10_11_00_01));
            (_mm_movemask_pd(_mm_castsi128_pd(words)) ^ 0b11) as u32
        }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_xor_si128(self, other) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_or_si128(self, other) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self, _mm_setzero_si128())) == 0xffff }
    }

    #[inline(always)]
    unsafe fn prefetch(source: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch(source.cast(), _MM_HINT_T0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn short(target: *mut u8, source: *const u8, bytes: usize) -> bool {
        // SAFETY: both buffers hold `bytes` bytes, as the caller guarantees.
        unsafe { crate::arch::generic::copy::short::<Self>(target, source, bytes) }
    }

    #[inline(always)]
    fn repeat_from() -> usize {
        crate::repeat::from_bytes()
    }

    #[inline(always)]
    unsafe fn repeat(target: *mut u8, source: *const u8, bytes: usize) {
        // SAFETY: both buffers hold `bytes` bytes, more than a line, and are apart, as the caller guarantees.
        unsafe { super::super::repeat::copy::<Self>(target, source, bytes) }
    }
}
