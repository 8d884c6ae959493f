// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Non-temporal stores and checksums of records, by level.
//!
//! - **Flow** append of up to eight lines: one stream of the CRC instruction for each line, because a result takes three
//!   cycles but one can be started every cycle; the states are moved to the end by one carry-less product each,
//!   and one CRC of the products' sum joins them. More lines: AVX-512 folds four at a time, AVX2 goes on in
//!   groups of four.
//! - **Order** the first line is stored last, because its first four bytes are the checksum
//! - **Why** records are loaded by words: see `gather`
//! - **Owner** a record that is appended is its caller's alone, and read twice; a line of a page is read once, so that the
//!   checksum belongs to what was stored
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
/// Up to this many lines a record has a stream for each: folding more of them is faster.
const SHORT: usize = 8;

/// The state times what moves it on by the bytes that `shift` stands for; the CRC of the product's 8 bytes is the
/// state there. Products may be added before that.
#[inline(always)]
unsafe fn product(state: u64, shift: u32) -> __m128i {
    // SAFETY: the caller's function enables PCLMULQDQ.
    unsafe { _mm_clmulepi64_si128(_mm_cvtsi32_si128(state as i32), _mm_cvtsi32_si128(shift as i32), 0) }
}

#[inline(always)]
unsafe fn reduced(product: __m128i) -> u64 {
    // SAFETY: the caller's function enables SSE4.2.
    unsafe { _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64) }
}

/// The state after one line.
#[inline(always)]
unsafe fn one(mut state: u64, line: [u64; WORDS]) -> u64 {
    let mut i = 0;
    while i < WORDS {
        // SAFETY: the caller's function enables SSE4.2.
        state = unsafe { _mm_crc32_u64(state, line[i]) };
        i += 1;
    }
    state
}

#[inline(always)]
unsafe fn word(line: *const u8, i: usize) -> u64 {
    // SAFETY: the caller promises a line.
    unsafe { line.add(8 * i).cast::<u64>().read_unaligned() }
}

/// A line that was stored a moment ago, word by word.
///
/// A load that spans several stores which have not reached the cache waits until they have, and behind a fence that is a hundred
/// nanoseconds and more; a load of a word is served from the store itself. Volatile, so that the compiler does not make one load of
/// them.
#[inline(always)]
unsafe fn gather(line: *const u8) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut i = 0;
    while i < WORDS {
        // SAFETY: the caller promises a line, aligned to 8.
        words[i] = unsafe { line.add(8 * i).cast::<u64>().read_volatile() };
        i += 1;
    }
    words
}

/// The state after `LINES` lines of which the first is a record's, with one stream for each.
#[inline(always)]
unsafe fn streams<const LINES: usize>(salt: u32, record: *const u8) -> u64 {
    // SAFETY: the caller promises `LINES` lines, and its function enables SSE4.2 and PCLMULQDQ.
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

/// The state after groups of four lines, from the state before them.
#[inline(always)]
unsafe fn four(state: u64, lines: *const u8) -> u64 {
    // SAFETY: the caller promises four lines, and its function enables SSE4.2 and PCLMULQDQ.
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

/// One state out of those of lines in a row, all but the first of which started from 0.
#[inline(always)]
unsafe fn joined<const LINES: usize>(states: [u64; LINES]) -> u64 {
    const SHIFTS: [u32; SHORT] =
        [0, shift(64), shift(128), shift(192), shift(256), shift(320), shift(384), shift(448)];
    // SAFETY: the caller's function enables SSE4.2 and PCLMULQDQ.
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
        // SAFETY: the caller promises `bytes`, a number of lines, on both sides.
        unsafe { stream_line::<V>(target.add(at), source.add(at)) };
        at += LINE_BYTES;
    }
}

/// See [`copy_lines`](super::copy_lines).
#[inline(always)]
unsafe fn copy_lines<V: Vector>(target: *mut u8, source: *const u8, mut lines: u64) {
    while lines != 0 {
        let at = lines.trailing_zeros() as usize * LINE_BYTES;
        // SAFETY: the caller promises the lines that are named, on both sides.
        unsafe { stream_line::<V>(target.add(at), source.add(at)) };
        lines &= lines - 1;
    }
}

/// The state after a record of at most [`SHORT`] lines, from the salt.
#[inline(always)]
unsafe fn short(salt: u32, record: *const u8, lines: usize) -> u64 {
    // SAFETY: the caller promises the lines, and its function enables SSE4.2 and PCLMULQDQ.
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
