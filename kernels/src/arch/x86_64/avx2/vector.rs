// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The 32-byte vector.

use crate::vector::Vector;
use core::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_prefetch, _mm_set_epi64x, _mm_sfence, _mm256_broadcastsi128_si256,
    _mm256_castsi256_pd, _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_cmpeq_epi64,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_movemask_pd, _mm256_or_si256,
    _mm256_store_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm256_testz_si256, _mm256_xor_si256,
};

impl Vector for __m256i {
    const BYTES: usize = 32;
    type Half = __m128i;

    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: 32 readable bytes.
        unsafe { _mm256_loadu_si256(source.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: 32 writable bytes.
        unsafe { _mm256_storeu_si256(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn store_aligned(self, target: *mut u8) {
        // SAFETY: 32 writable bytes, aligned.
        unsafe { _mm256_store_si256(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: 32 writable bytes, aligned; the routine that streams ends with a fence.
        unsafe { _mm256_stream_si256(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn stream_halves(self, target: *mut u8) {
        // SAFETY: 32 writable bytes, aligned; the routine that streams ends with a fence.
        unsafe {
            _mm256_castsi256_si128(self).stream(target);
            _mm256_extracti128_si256::<1>(self).stream(target.add(16));
        }
    }

    #[inline(always)]
    unsafe fn splat(pattern: u128) -> Self {
        // SAFETY: the function that this is inlined into enables AVX2.
        unsafe { _mm256_broadcastsi128_si256(_mm_set_epi64x((pattern >> 64) as i64, pattern as i64)) }
    }

    #[inline(always)]
    unsafe fn differing_bytes(self, other: Self) -> u64 {
        // SAFETY: the function that this is inlined into enables AVX2.
        unsafe { u64::from(!_mm256_movemask_epi8(_mm256_cmpeq_epi8(self, other)) as u32) }
    }

    #[inline(always)]
    unsafe fn differing_words(self, other: Self) -> u32 {
        // SAFETY: the function that this is inlined into enables AVX2.
        unsafe {
            let equal = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(self, other)));
            (equal ^ 0b1111) as u32
        }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the function that this is inlined into enables AVX2.
        unsafe { _mm256_xor_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the function that this is inlined into enables AVX2.
        unsafe { _mm256_or_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: the function that this is inlined into enables AVX2.
        unsafe { _mm256_testz_si256(self, self) == 1 }
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
