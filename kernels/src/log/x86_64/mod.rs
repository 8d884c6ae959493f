// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Non-temporal stores, and checksums of records, by level.
//!
//! - **Flow** a record of up to eight lines has one stream of the CRC instruction per line, because a result takes three cycles but one
//!   can be started in every cycle. Each state is moved to the record's end by one carry-less product, and one CRC of the sum of the
//!   products joins them. With more lines AVX-512 folds four at a time, and AVX2 continues in groups of four.
//! - **Order** the first line is stored last, because its first four bytes are the checksum.
//! - **Why** records are loaded by words: see `load_words`.
//! - **Owner** an appended record belongs to its caller alone, and is read twice; a line of a page is read once, so its checksum is that
//!   of the stored bytes.
//!
//! Source: Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel, 2011.

pub(super) mod avx2;
pub(super) mod avx512;
pub(super) mod sse2;

use super::LINE_BYTES;
use crate::arch::all::polynomial::shift;
use crate::arch::generic::stream::stream_line;
use crate::vector::Vector;
use core::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64,
    _mm_xor_si128,
};

const WORDS: usize = LINE_BYTES / 8;
/// Records of up to this many lines have one stream per line; for longer ones folding is faster.
const SHORT: usize = 8;

/// Returns the product of a state and a multiplier. The CRC of the product's 8 bytes is the state moved on by the bytes that
/// `shift` stands for. Products may be added before the CRC is taken.
#[inline(always)]
unsafe fn product(state: u64, shift: u32) -> __m128i {
    // SAFETY: the function that this is inlined into enables PCLMULQDQ.
    unsafe { _mm_clmulepi64_si128(_mm_cvtsi32_si128(state as i32), _mm_cvtsi32_si128(shift as i32), 0) }
}

#[inline(always)]
unsafe fn reduced(product: __m128i) -> u64 {
    // SAFETY: the function that this is inlined into enables SSE4.2.
    unsafe { _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64) }
}

/// Returns the state after one more line.
#[inline(always)]
unsafe fn state_after_line(mut state: u64, line: [u64; WORDS]) -> u64 {
    let mut i = 0;
    while i < WORDS {
        // SAFETY: the function that this is inlined into enables SSE4.2.
        state = unsafe { _mm_crc32_u64(state, line[i]) };
        i += 1;
    }
    state
}

#[inline(always)]
unsafe fn word(line: *const u8, i: usize) -> u64 {
    // SAFETY: the caller guarantees a line.
    unsafe { line.add(8 * i).cast::<u64>().read_unaligned() }
}

/// Loads, word by word, a line that was stored a moment ago.
///
/// A wide load that covers several stores which have not reached the cache yet waits until they have; behind a fence this takes a
/// hundred nanoseconds and more. A load of one word is served from the store itself. The loads are volatile, so that the compiler
/// does not combine them.
#[inline(always)]
unsafe fn load_words(line: *const u8) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut i = 0;
    while i < WORDS {
        // SAFETY: the caller guarantees a line, aligned to 8.
        words[i] = unsafe { line.add(8 * i).cast::<u64>().read_volatile() };
        i += 1;
    }
    words
}

/// Returns the state after `LINES` lines, the first of which is a record's first line, with one stream per line.
#[inline(always)]
unsafe fn streams<const LINES: usize>(salt: u32, record: *const u8) -> u64 {
    // SAFETY: the caller guarantees `LINES` lines, and its function enables SSE4.2 and PCLMULQDQ.
    unsafe {
        let mut states = [0u64; LINES];
        states[0] = u64::from(_mm_crc32_u32(!salt, record.add(4).cast::<u32>().read_unaligned()));
        let mut line = 1;
        while line < LINES {
            states[line] = _mm_crc32_u64(0, word(record.add(line * LINE_BYTES), 0));
            line += 1;
        }
        let mut i = 1;
        while i < WORDS {
            let mut line = 0;
            while line < LINES {
                states[line] = _mm_crc32_u64(states[line], word(record.add(line * LINE_BYTES), i));
                line += 1;
            }
            i += 1;
        }
        joined(states)
    }
}

/// Returns the state after four more lines.
#[inline(always)]
unsafe fn state_after_four_lines(state: u64, lines: *const u8) -> u64 {
    // SAFETY: the caller guarantees four lines, and its function enables SSE4.2 and PCLMULQDQ.
    unsafe {
        let mut states = [state, 0, 0, 0];
        let mut i = 0;
        while i < WORDS {
            let mut line = 0;
            while line < 4 {
                states[line] = _mm_crc32_u64(states[line], word(lines.add(line * LINE_BYTES), i));
                line += 1;
            }
            i += 1;
        }
        joined(states)
    }
}

/// Joins the states of adjacent lines, all but the first of which started from 0.
#[inline(always)]
unsafe fn joined<const LINES: usize>(states: [u64; LINES]) -> u64 {
    const SHIFTS: [u32; SHORT] =
        [0, shift(64), shift(128), shift(192), shift(256), shift(320), shift(384), shift(448)];
    // SAFETY: the function that this is inlined into enables SSE4.2 and PCLMULQDQ.
    unsafe {
        if LINES == 1 {
            return states[0];
        }
        let mut sum = product(states[0], SHIFTS[LINES - 1]);
        let mut line = 1;
        while line + 1 < LINES {
            sum = _mm_xor_si128(sum, product(states[line], SHIFTS[LINES - 1 - line]));
            line += 1;
        }
        reduced(sum) ^ states[LINES - 1]
    }
}

/// See [`nt_copy`](super::nt_copy).
#[inline(always)]
unsafe fn nt_copy<V: Vector>(target: *mut u8, source: *const u8, bytes: usize) {
    let mut at = 0;
    while at < bytes {
        // SAFETY: the caller guarantees `bytes`, a multiple of a line, on both sides.
        unsafe { stream_line::<V>(target.add(at), source.add(at)) };
        at += LINE_BYTES;
    }
}

/// Returns the state after a record of at most [`SHORT`] lines, beginning with the salt.
#[inline(always)]
unsafe fn short(salt: u32, record: *const u8, lines: usize) -> u64 {
    // SAFETY: the caller guarantees the lines, and its function enables SSE4.2 and PCLMULQDQ.
    unsafe {
        match lines {
            1 => streams::<1>(salt, record),
            2 => streams::<2>(salt, record),
            3 => streams::<3>(salt, record),
            4 => streams::<4>(salt, record),
            5 => streams::<5>(salt, record),
            6 => streams::<6>(salt, record),
            7 => streams::<7>(salt, record),
            _ => streams::<SHORT>(salt, record),
        }
    }
}
