// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CRC-32C by folding 64-byte vectors, alone and while copying.
//!
//! A remainder is a vector that represents everything read so far: the CRC of those bytes is the CRC of its 64 bytes, from state 0.
//! Folding moves a remainder n bytes on: each 16-byte lane is multiplied by x^(8n), carry-less, modulo the polynomial, and the data
//! at the new position is added. Four remainders are computed side by side; they are joined by moving each to the position of the last.
//!
//! - **Flow** short messages: the CRC instruction. Others: the first line (with the state added to its first 4 bytes) is the first
//!   remainder; it is folded line by line; the CRC instruction over its 64 bytes gives the state; the unaligned tail follows.
//! - **Order** the CRC is over the bytes that were stored: each vector is loaded once.
//!
//! Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.

use super::super::crc_instruction::{rest, update};
use crate::arch::all::polynomial;
use crate::arch::generic::stream::{LANE_BYTES, LINE_BYTES, Lines, STREAM_FROM, head_bytes, is_narrow, walk};
use crate::shape::Shape;
use crate::vector::Vector;
use core::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_set_epi64x, _mm512_broadcast_i32x4,
    _mm512_clmulepi64_epi128, _mm512_setzero_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};

/// From this size on, in bytes, folding is faster than the CRC instruction.
const FOLD_FROM: usize = 512;

/// Returns the multipliers for a distance of `BYTES`.
#[inline(always)]
pub(crate) unsafe fn multipliers<const BYTES: u32>() -> __m512i {
    let [low, high] = const { polynomial::fold(BYTES) };
    // SAFETY: the function that this is inlined into enables AVX-512.
    unsafe { _mm512_broadcast_i32x4(_mm_set_epi64x(high as i64, low as i64)) }
}

/// Moves a remainder by the distance of the multipliers and adds the data at the new position.
#[inline(always)]
pub(crate) unsafe fn fold(remainder: __m512i, multipliers: __m512i, data: __m512i) -> __m512i {
    // SAFETY: the function that this is inlined into enables AVX-512 and VPCLMULQDQ. 0x96 is the three-way exclusive or.
    unsafe {
        let low = _mm512_clmulepi64_epi128::<0x00>(remainder, multipliers);
        let high = _mm512_clmulepi64_epi128::<0x11>(remainder, multipliers);
        _mm512_ternarylogic_epi64::<0x96>(low, high, data)
    }
}

/// Returns the first remainder: the first line with the state added.
#[inline(always)]
unsafe fn start(state: u32, line: __m512i) -> __m512i {
    // SAFETY: the function that this is inlined into enables AVX-512.
    unsafe { _mm512_xor_si512(line, _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32))) }
}

/// Returns the state that a remainder represents.
#[inline(always)]
pub(crate) unsafe fn finish(remainder: __m512i) -> u32 {
    let mut state = 0;
    // SAFETY: the function that this is inlined into enables SSE4.2; a vector and eight words have the same size and no padding.
    unsafe {
        for word in core::mem::transmute::<__m512i, [u64; 8]>(remainder) {
            state = _mm_crc32_u64(state, word);
        }
    }
    state as u32
}

/// See [`Kernels::crc32c`](crate::Kernels::crc32c).
#[inline(always)]
pub(super) unsafe fn crc32c(source: *const u8, bytes: usize, seed: u32) -> u32 {
    // SAFETY: the source is readable for `bytes`, as the caller guarantees.
    unsafe {
        if bytes < FOLD_FROM {
            !update(!seed, source, bytes)
        } else {
            !folded::<false>(core::ptr::null_mut(), source, bytes, !seed)
        }
    }
}

/// See [`Kernels::copy_crc32c`](crate::Kernels::copy_crc32c).
#[inline(always)]
pub(super) unsafe fn copy_crc32c(target: *mut u8, source: *const u8, bytes: usize, seed: u32) -> u32 {
    // SAFETY: the caller guarantees both buffers of `bytes`; `FOLD_FROM` bytes are eight vectors.
    unsafe {
        if bytes < FOLD_FROM {
            __m512i::short(target, source, bytes);
            !update(!seed, source, bytes)
        } else {
            !folded::<true>(target, source, bytes, !seed)
        }
    }
}

/// Reads the line at `offset`, and with `COPY` stores it.
#[inline(always)]
unsafe fn take<const COPY: bool>(target: *mut u8, source: *const u8, offset: usize) -> __m512i {
    // SAFETY: the caller guarantees the line in the source and, with `COPY`, in the target.
    unsafe {
        let data = __m512i::load(source.add(offset));
        if COPY {
            data.store(target.add(offset));
        }
        data
    }
}

/// Folds at least four lines, 256 bytes per turn, and with `COPY` also stores them.
#[inline(always)]
unsafe fn folded<const COPY: bool>(target: *mut u8, source: *const u8, bytes: usize, state: u32) -> u32 {
    // SAFETY: the caller guarantees the source, at least four lines of it, and with `COPY` the target; every piece is
    // checked to lie within `bytes`.
    unsafe {
        let by_256 = multipliers::<256>();
        let by_64 = multipliers::<64>();
        let mut a = start(state, take::<COPY>(target, source, 0));
        let mut b = take::<COPY>(target, source, LINE_BYTES);
        let mut c = take::<COPY>(target, source, 2 * LINE_BYTES);
        let mut d = take::<COPY>(target, source, 3 * LINE_BYTES);
        let mut offset = 4 * LINE_BYTES;
        while bytes - offset >= 4 * LINE_BYTES {
            a = fold(a, by_256, take::<COPY>(target, source, offset));
            b = fold(b, by_256, take::<COPY>(target, source, offset + LINE_BYTES));
            c = fold(c, by_256, take::<COPY>(target, source, offset + 2 * LINE_BYTES));
            d = fold(d, by_256, take::<COPY>(target, source, offset + 3 * LINE_BYTES));
            offset += 4 * LINE_BYTES;
        }
        let mut remainder = fold(fold(fold(a, by_64, b), by_64, c), by_64, d);
        while bytes - offset >= LINE_BYTES {
            remainder = fold(remainder, by_64, take::<COPY>(target, source, offset));
            offset += LINE_BYTES;
        }
        if COPY {
            __m512i::short(target.add(offset), source.add(offset), bytes - offset);
        }
        rest(finish(remainder), source.add(offset), bytes - offset)
    }
}

/// Streams lines and folds them: one remainder per lane of a block.
struct StreamAndFold<const LANES: usize> {
    target: *mut u8,
    source: *const u8,
    by_64: __m512i,
    narrow: bool,
    remainders: [__m512i; LANES],
}

impl<const LANES: usize> Lines for StreamAndFold<LANES> {
    #[inline(always)]
    unsafe fn line(&mut self, lane: usize, offset: usize) {
        // SAFETY: `walk` stays within the buffers; the target is aligned to a line.
        unsafe {
            let data = __m512i::load(self.source.add(offset));
            if self.narrow {
                data.stream_halves(self.target.add(offset));
            } else {
                data.stream(self.target.add(offset));
            }
            self.remainders[lane] = fold(self.remainders[lane], self.by_64, data);
        }
    }

    #[inline(always)]
    unsafe fn prefetch(&self, offset: usize) {
        // SAFETY: `walk` stays within the source.
        unsafe { __m512i::prefetch(self.source.add(offset)) }
    }

    /// Joins the remainders of the lanes, each of which is at the end of its page.
    #[inline(always)]
    unsafe fn block(&mut self) {
        const PAGE: u32 = LANE_BYTES as u32;
        // SAFETY: the function that this is inlined into enables AVX-512 and VPCLMULQDQ.
        unsafe {
            let zero = _mm512_setzero_si512();
            let joined = match self.remainders[..] {
                [a, b, c, d] => {
                    let ab =
                        fold(a, multipliers::<{ 3 * PAGE }>(), fold(b, multipliers::<{ 2 * PAGE }>(), d));
                    fold(c, multipliers::<PAGE>(), ab)
                }
                [a, b] => fold(a, multipliers::<PAGE>(), b),
                _ => return,
            };
            self.remainders = [zero; LANES];
            self.remainders[0] = joined;
        }
    }
}

/// Streams and folds the whole lines of `bytes`, beginning with the remainder `start`. Returns the last remainder and the bytes
/// copied.
#[inline(always)]
unsafe fn stream_and_fold<const LANES: usize>(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    start: __m512i,
    shape: Shape,
) -> (__m512i, usize) {
    // SAFETY: the caller guarantees both buffers of `bytes`, the target aligned to a line.
    unsafe {
        let mut lines = StreamAndFold::<LANES> {
            target,
            source,
            by_64: multipliers::<64>(),
            narrow: is_narrow::<__m512i>(shape),
            remainders: [_mm512_setzero_si512(); LANES],
        };
        lines.remainders[0] = start;
        let done = walk::<LANES, _>(&mut lines, bytes, shape.ahead_bytes());
        (lines.remainders[0], done)
    }
}

/// See [`Shaped::copy_crc32c`](crate::Shaped::copy_crc32c).
#[inline(always)]
pub(super) unsafe fn copy_crc32c_nt(
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    seed: u32,
    shape: Shape,
) -> u32 {
    // SAFETY: the caller guarantees both buffers of `bytes`. The head is shorter than a line, and `bytes` is longer than two;
    // after the head the target is aligned.
    unsafe {
        if bytes < STREAM_FROM {
            let value = copy_crc32c(target, source, bytes, seed);
            __m512i::fence();
            return value;
        }
        let head = head_bytes(target);
        __m512i::short(target, source, head);
        let state = rest(!seed, source, head);
        let first = __m512i::load(source.add(head));
        first.stream(target.add(head));
        let first = start(state, first);
        let done = head + LINE_BYTES;
        let (to, from, left) = (target.add(done), source.add(done), bytes - done);
        let (remainder, walked) = match shape.lanes() {
            4 => stream_and_fold::<4>(to, from, left, first, shape),
            2 => stream_and_fold::<2>(to, from, left, first, shape),
            _ => stream_and_fold::<1>(to, from, left, first, shape),
        };
        let done = done + walked;
        __m512i::short(target.add(done), source.add(done), bytes - done);
        let state = rest(finish(remainder), source.add(done), bytes - done);
        __m512i::fence();
        !state
    }
}
