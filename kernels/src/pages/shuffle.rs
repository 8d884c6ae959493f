// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sorts the bytes of numbers into planes: all lowest bytes first, all highest last; also computes differences of neighbours.
//!
//! - **Flow** [`shuffle`] makes planes and [`unshuffle`] undoes it. [`difference`] may come before the one, [`sum`] after the other.
//! - **Layout** plane b of numbers of w bytes is `[b · 4096/w, (b+1) · 4096/w)`.
//! - **Order** one pass of unpack instructions over 16·w bytes is a perfect shuffle, which rotates the index of a byte by one bit; four
//!   passes shuffle, log₂ w passes unshuffle.
//! - **Not here** the packing of planes.

use super::PAGE_BYTES;

/// Puts bytes of numbers of `W` bytes (2, 4 or 8) into planes.
pub(super) fn shuffle<const W: usize>(page: &[u8; PAGE_BYTES], planes: &mut [u8; PAGE_BYTES]) {
    let plane = PAGE_BYTES / W;
    for group in 0..plane / 16 {
        let mut rows = [[0u8; 16]; W];
        for (row, bytes) in rows.iter_mut().enumerate() {
            let at = group * 16 * W + row * 16;
            bytes.copy_from_slice(&page[at..at + 16]);
        }
        for _ in 0..4 {
            rows = perfect_shuffle(rows);
        }
        for (row, bytes) in rows.iter().enumerate() {
            let at = row * plane + group * 16;
            planes[at..at + 16].copy_from_slice(bytes);
        }
    }
}

/// Undoes [`shuffle`].
pub(super) fn unshuffle<const W: usize>(planes: &[u8; PAGE_BYTES], page: &mut [u8; PAGE_BYTES]) {
    let plane = PAGE_BYTES / W;
    for group in 0..plane / 16 {
        let mut rows = [[0u8; 16]; W];
        for (row, bytes) in rows.iter_mut().enumerate() {
            let at = row * plane + group * 16;
            bytes.copy_from_slice(&planes[at..at + 16]);
        }
        for _ in 0..W.trailing_zeros() {
            rows = perfect_shuffle(rows);
        }
        for (row, bytes) in rows.iter().enumerate() {
            let at = group * 16 * W + row * 16;
            page[at..at + 16].copy_from_slice(bytes);
        }
    }
}

/// The perfect shuffle: takes the bytes of the first half and of the second half alternately.
#[inline(always)]
fn perfect_shuffle<const W: usize>(rows: [[u8; 16]; W]) -> [[u8; 16]; W] {
    let mut turned = [[0; 16]; W];
    for row in 0..W / 2 {
        (turned[2 * row], turned[2 * row + 1]) = interleave(rows[row], rows[row + W / 2]);
    }
    turned
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn interleave(first: [u8; 16], second: [u8; 16]) -> ([u8; 16], [u8; 16]) {
    use std::arch::x86_64::{__m128i, _mm_unpackhi_epi8, _mm_unpacklo_epi8};
    // SAFETY: arrays and vectors of 16 bytes may hold any bits; SSE2 is part of x86-64.
    unsafe {
        let first: __m128i = std::mem::transmute(first);
        let second: __m128i = std::mem::transmute(second);
        (
            std::mem::transmute::<__m128i, [u8; 16]>(_mm_unpacklo_epi8(first, second)),
            std::mem::transmute::<__m128i, [u8; 16]>(_mm_unpackhi_epi8(first, second)),
        )
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn interleave(first: [u8; 16], second: [u8; 16]) -> ([u8; 16], [u8; 16]) {
    let byte = |index: usize| if index.is_multiple_of(2) { first[index / 2] } else { second[index / 2] };
    (std::array::from_fn(byte), std::array::from_fn(|index| byte(16 + index)))
}

/// Replaces each number by its difference to the previous one; `W` is 4 or 8.
pub(super) fn difference<const W: usize>(page: &[u8; PAGE_BYTES], target: &mut [u8; PAGE_BYTES]) {
    if W == 8 {
        let mut before = 0u64;
        for (number, target) in page.as_chunks::<8>().0.iter().zip(target.as_chunks_mut::<8>().0) {
            let number = u64::from_le_bytes(*number);
            *target = number.wrapping_sub(before).to_le_bytes();
            before = number;
        }
    } else {
        let mut before = 0u32;
        for (number, target) in page.as_chunks::<4>().0.iter().zip(target.as_chunks_mut::<4>().0) {
            let number = u32::from_le_bytes(*number);
            *target = number.wrapping_sub(before).to_le_bytes();
            before = number;
        }
    }
}

/// Undoes [`difference`], in place.
pub(super) fn sum<const W: usize>(page: &mut [u8; PAGE_BYTES]) {
    if W == 8 {
        let mut sum = 0u64;
        for number in page.as_chunks_mut::<8>().0 {
            sum = sum.wrapping_add(u64::from_le_bytes(*number));
            *number = sum.to_le_bytes();
        }
    } else {
        let mut sum = 0u32;
        for number in page.as_chunks_mut::<4>().0 {
            sum = sum.wrapping_add(u32::from_le_bytes(*number));
            *number = sum.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> [u8; PAGE_BYTES] {
        std::array::from_fn(|index| ((index as u32).wrapping_mul(2_654_435_761) >> 13) as u8)
    }

    fn there_and_back<const W: usize>() {
        let (page, mut planes, mut again) = (page(), [0; PAGE_BYTES], [0; PAGE_BYTES]);
        shuffle::<W>(&page, &mut planes);
        for (index, byte) in page.iter().enumerate() {
            assert_eq!(planes[index % W * (PAGE_BYTES / W) + index / W], *byte);
        }
        unshuffle::<W>(&planes, &mut again);
        assert_eq!(page, again);
    }

    #[test]
    fn planes_hold_like_bytes() {
        there_and_back::<2>();
        there_and_back::<4>();
        there_and_back::<8>();
    }

    #[test]
    fn sums_undo_differences() {
        let (page, mut target) = (page(), [0; PAGE_BYTES]);
        difference::<4>(&page, &mut target);
        sum::<4>(&mut target);
        assert_eq!(page, target);
        difference::<8>(&page, &mut target);
        sum::<8>(&mut target);
        assert_eq!(page, target);
    }
}
