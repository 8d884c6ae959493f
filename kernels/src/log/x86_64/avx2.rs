// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The AVX2 level: stores of 32 bytes past the caches; CRC by the instruction of SSE4.2, four lines at a time.

use super::{
    LINE_BYTES, SHORT, WORDS, load_words, short, state_after_four_lines, state_after_line, streams, word,
};
use crate::vector::Vector;
use core::arch::x86_64::__m256i;

/// See [`nt_copy`](super::super::nt_copy).
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn nt_copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees `bytes` bytes, a multiple of a line, in both buffers, which do not overlap.
    unsafe { super::nt_copy::<__m256i>(target, source, bytes) }
}

/// See [`append`](super::super::append).
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
pub(in super::super) unsafe fn append(target: *mut u8, record: *mut u8, bytes: usize, salt: u32) -> u32 {
    let lines = bytes / LINE_BYTES;
    // SAFETY: the caller guarantees `bytes` on both sides, at least a line; every line accessed is one of `lines`.
    unsafe {
        let state = if lines <= SHORT { short(salt, record, lines) } else { long(salt, record, lines) };
        let checksum = !(state as u32);
        for line in (0..lines).rev() {
            let at = line * LINE_BYTES;
            let mut words = load_words(record.add(at));
            if line == 0 {
                words[0] = words[0] >> 32 << 32 | u64::from(checksum);
            }
            // Two vectors and eight words have the same size and no padding.
            let [low, high] = core::mem::transmute::<[u64; WORDS], [__m256i; 2]>(words);
            low.stream(target.add(at));
            high.stream(target.add(at + 32));
        }
        record.cast::<u32>().write_unaligned(checksum);
        checksum
    }
}

/// Returns the CRC state after a record of more than eight lines.
#[inline(always)]
unsafe fn long(salt: u32, record: *const u8, lines: usize) -> u64 {
    // SAFETY: the caller guarantees the lines, and its function enables SSE4.2 and PCLMULQDQ.
    unsafe {
        let mut state = streams::<SHORT>(salt, record);
        let mut line = SHORT;
        while lines - line >= 4 {
            state = state_after_four_lines(state, record.add(line * LINE_BYTES));
            line += 4;
        }
        while line < lines {
            let mut words = [0; WORDS];
            let mut i = 0;
            while i < WORDS {
                words[i] = word(record.add(line * LINE_BYTES), i);
                i += 1;
            }
            state = state_after_line(state, words);
            line += 1;
        }
        state
    }
}

/// See [`copy_lines_crc`](super::super::copy_lines_crc).
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
pub(in super::super) unsafe fn copy_lines_crc(
    target: *mut u8,
    source: *const u8,
    mut lines: u64,
    seed: u32,
) -> u32 {
    let mut state = u64::from(!seed);
    while lines != 0 {
        let at = lines.trailing_zeros() as usize * LINE_BYTES;
        // SAFETY: the caller guarantees the selected lines on both sides. Two vectors and eight words have the same size and no
        // padding.
        unsafe {
            let (low, high) = (__m256i::load(source.add(at)), __m256i::load(source.add(at + 32)));
            low.stream(target.add(at));
            high.stream(target.add(at + 32));
            state = state_after_line(state, core::mem::transmute::<[__m256i; 2], [u64; WORDS]>([low, high]));
        }
        lines &= lines - 1;
    }
    !(state as u32)
}
