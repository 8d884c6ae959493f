// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The AVX-512 level: a line is one load and one store past the caches; the CRC of more than eight lines is computed by folding the
//! loaded vectors.
//!
//! - **Flow** remainders of four lines ──fold by 256 bytes──▶ … ──fold by 64──▶ one remainder ──▶ state.
//! - **Order** the checksum does not cover the first four bytes: they count as zeros, which leave a state of 0 unchanged; the state of
//!   the salt is added to the four bytes after them.
//!
//! Source: the one of `arch/x86_64/avx512/crc`.

use super::super::{HEAD_WORDS, PageLines};
use super::{LINE_BYTES, SHORT, WORDS, load_words, short};
use crate::arch::x86_64::avx512::crc::{finish, fold, multipliers};
use crate::vector::Vector;
use core::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm_slli_si128, _mm512_alignr_epi64, _mm512_mask_set1_epi32,
    _mm512_maskz_mov_epi32, _mm512_setzero_si512, _mm512_xor_si512, _mm512_zextsi128_si512,
};

/// See [`nt_copy`](super::super::nt_copy).
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn nt_copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees `bytes` bytes, a multiple of a line, in both buffers, which do not overlap.
    unsafe { super::nt_copy::<__m512i>(target, source, bytes) }
}

/// See [`scatter_lines`](super::super::scatter_lines).
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn scatter_lines(target: *mut u8, mut source: *const u8, mut lines: u64) {
    while lines != 0 {
        let at = lines.trailing_zeros() as usize * LINE_BYTES;
        // SAFETY: the caller guarantees the selected line of the page, and as many lines of the source.
        unsafe {
            __m512i::load(source).stream(target.add(at));
            source = source.add(LINE_BYTES);
        }
        lines &= lines - 1;
    }
}

/// See [`append`](super::super::append).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
pub(in super::super) unsafe fn append(target: *mut u8, record: *mut u8, bytes: usize, salt: u32) -> u32 {
    let lines = bytes / LINE_BYTES;
    // SAFETY: the caller guarantees `bytes` on both sides, at least a line.
    unsafe {
        let checksum = if lines <= SHORT {
            let checksum = !(short(salt, record, lines) as u32);
            (1..lines).for_each(|line| {
                take(target, record, line);
            });
            checksum
        } else {
            !long(target, record, lines, salt)
        };
        _mm512_mask_set1_epi32(gathered(record), 1, checksum as i32).stream(target);
        record.cast::<u32>().write_unaligned(checksum);
        checksum
    }
}

/// Loads a line, which may have been stored a moment ago, as a vector.
#[inline(always)]
unsafe fn gathered(line: *const u8) -> __m512i {
    // SAFETY: the caller guarantees a line, aligned to 8; a vector and eight words have the same size and no padding.
    unsafe { core::mem::transmute::<[u64; 8], __m512i>(load_words(line)) }
}

/// Stores a line of a record in the log, and returns it.
#[inline(always)]
unsafe fn take(target: *mut u8, record: *const u8, line: usize) -> __m512i {
    // SAFETY: the caller guarantees the line on both sides.
    unsafe {
        let data = gathered(record.add(line * LINE_BYTES));
        data.stream(target.add(line * LINE_BYTES));
        data
    }
}

/// Returns the CRC state after a record of more than eight lines, and stores all of them but the first on the way.
#[inline(always)]
unsafe fn long(target: *mut u8, record: *const u8, lines: usize, salt: u32) -> u32 {
    // SAFETY: the caller guarantees more than eight lines on both sides, and its function enables the features.
    unsafe {
        summed(_mm512_maskz_mov_epi32(!1, gathered(record)), lines, salt, |line| take(target, record, line))
    }
}

/// Returns the CRC state after a record of `lines` lines: `first`, whose first four bytes are 0, and those that `take` returns, from
/// line 1 on.
#[inline(always)]
unsafe fn summed(first: __m512i, lines: usize, salt: u32, mut take: impl FnMut(usize) -> __m512i) -> u32 {
    // SAFETY: the function that this is inlined into enables the features.
    unsafe {
        let (by_256, by_64) = (multipliers::<256>(), multipliers::<64>());
        let state = _mm_slli_si128::<4>(_mm_cvtsi32_si128(!salt as i32));
        let mut remainder = _mm512_xor_si512(first, _mm512_zextsi128_si512(state));
        let mut line = 1;
        if lines >= 8 {
            let (mut b, mut c, mut d) = (take(1), take(2), take(3));
            line = 4;
            while lines - line >= 4 {
                remainder = fold(remainder, by_256, take(line));
                b = fold(b, by_256, take(line + 1));
                c = fold(c, by_256, take(line + 2));
                d = fold(d, by_256, take(line + 3));
                line += 4;
            }
            remainder = fold(fold(fold(remainder, by_64, b), by_64, c), by_64, d);
        }
        while line < lines {
            remainder = fold(remainder, by_64, take(line));
            line += 1;
        }
        finish(remainder)
    }
}

/// See [`append_lines`](super::super::append_lines). The lines lie behind the head's words, so each line of the record has the end of one
/// and the start of the next.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,avx2,sse4.2,pclmulqdq,popcnt")]
pub(in super::super) unsafe fn append_lines(
    target: *mut u8,
    record: *mut u8,
    head: &[u64; HEAD_WORDS],
    lines: &PageLines<'_>,
    salt: u32,
) -> u32 {
    const BEHIND: i32 = (WORDS - HEAD_WORDS) as i32;
    // SAFETY: the caller guarantees the lines, and a line more on both sides. A vector and eight words have the same size and no padding.
    unsafe {
        let mut words = [0; WORDS];
        words[WORDS - HEAD_WORDS..].copy_from_slice(head);
        let mut before = core::mem::transmute::<[u64; WORDS], __m512i>(words);
        let mut starts = lines.starts();
        let mut next = || {
            let line = starts.next().map_or(_mm512_setzero_si512(), |(_, start)| gathered(start));
            let joined = _mm512_alignr_epi64::<BEHIND>(line, before);
            before = line;
            joined
        };
        let first = next();
        let state = summed(first, lines.count() + 1, salt, |line| {
            let data = next();
            data.store_aligned(record.add(line * LINE_BYTES));
            data.stream(target.add(line * LINE_BYTES));
            data
        });
        let first = _mm512_mask_set1_epi32(first, 1, !state as i32);
        first.store_aligned(record);
        first.stream(target);
        !state
    }
}

/// See [`fill_lines`](super::super::fill_lines).
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn fill_lines(target: *mut u8, lines: &PageLines<'_>) {
    for (line, start) in lines.starts() {
        // SAFETY: the caller guarantees the line on both sides, aligned.
        unsafe { gathered(start).store_aligned(target.add(line * LINE_BYTES)) };
    }
}

/// See [`copy_lines_crc`](super::super::copy_lines_crc).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,avx2,sse4.2,pclmulqdq")]
pub(in super::super) unsafe fn copy_lines_crc(
    target: *mut u8,
    source: *const u8,
    mut lines: u64,
    seed: u32,
) -> u32 {
    if lines == 0 {
        return seed;
    }
    // SAFETY: the caller guarantees the selected lines on both sides.
    unsafe {
        let take = |lines: u64| {
            let at = lines.trailing_zeros() as usize * LINE_BYTES;
            let data = gathered(source.add(at));
            data.stream(target.add(at));
            data
        };
        let by_64 = multipliers::<64>();
        let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128(!seed as i32));
        let mut remainder = _mm512_xor_si512(take(lines), state);
        lines &= lines - 1;
        while lines != 0 {
            remainder = fold(remainder, by_64, take(lines));
            lines &= lines - 1;
        }
        !finish(remainder)
    }
}
