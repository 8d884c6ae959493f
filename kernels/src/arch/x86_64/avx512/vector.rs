// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The 64-byte vector.

use crate::vector::Vector;
use core::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm_set_epi64x, _mm_sfence, _mm512_broadcast_i32x4,
    _mm512_castsi512_si256, _mm512_cmpneq_epi8_mask, _mm512_cmpneq_epi64_mask, _mm512_extracti64x4_epi64,
    _mm512_loadu_si512, _mm512_or_si512, _mm512_store_si512, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_test_epi64_mask, _mm512_xor_si512,
};

impl Vector for __m512i {
    const BYTES: usize = 64;
    type Half = __m256i;

    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: 64 readable bytes.
        unsafe { _mm512_loadu_si512(source.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: 64 writable bytes.
        unsafe { _mm512_storeu_si512(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn store_aligned(self, target: *mut u8) {
        // SAFETY: 64 writable bytes, aligned.
        unsafe { _mm512_store_si512(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn stream(self, target: *mut u8) {
        // SAFETY: 64 writable bytes, aligned; the routine that streams ends with a fence.
        unsafe { _mm512_stream_si512(target.cast(), self) }
    }

    #[inline(always)]
    unsafe fn stream_halves(self, target: *mut u8) {
        // SAFETY: 64 writable bytes, aligned; the routine that streams ends with a fence.
        unsafe {
            _mm512_castsi512_si256(self).stream(target);
            _mm512_extracti64x4_epi64::<1>(self).stream(target.add(32));
        }
    }

    #[inline(always)]
    unsafe fn splat(pattern: u128) -> Self {
        // SAFETY: the function that this is inlined into enables AVX-512 F and BW.
        unsafe { _mm512_broadcast_i32x4(_mm_set_epi64x((pattern >> 64) as i64, pattern as i64)) }
    }

    #[inline(always)]
    unsafe fn differing_bytes(self, other: Self) -> u64 {
        // SAFETY: the function that this is inlined into enables AVX-512 F and BW.
        unsafe { _mm512_cmpneq_epi8_mask(self, other) }
    }

    #[inline(always)]
    unsafe fn differing_words(self, other: Self) -> u32 {
        // SAFETY: the function that this is inlined into enables AVX-512 F and BW.
        unsafe { u32::from(_mm512_cmpneq_epi64_mask(self, other)) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the function that this is inlined into enables AVX-512 F and BW.
        unsafe { _mm512_xor_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the function that this is inlined into enables AVX-512 F and BW.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: the function that this is inlined into enables AVX-512 F and BW.
        unsafe { _mm512_test_epi64_mask(self, self) == 0 }
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
        unsafe { super::short::copy(target, source, bytes) }
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
