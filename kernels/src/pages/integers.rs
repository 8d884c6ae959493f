// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packs integers of 4 or 8 bytes into the bits that each block of 128 needs: frame of reference, or differences.
//!
//! - **Flow** numbers, or their differences to the previous number ──minus the block's base, or zigzag──▶ the low bits of all numbers,
//!   and the few numbers that need more bits beside them ──▶ bytes.
//! - **Layout** per block: bits (7 bits; bit 7: zigzag), number of exceptions, base (unless zigzag), 16 · bits bytes, then for each
//!   exception its index and its whole value. Lane l of row r is number r · lanes + l; the lanes are 16 bytes together, and each lane is
//!   a stream of bits of its own, so all lanes shift alike.
//! - **Order** a block's width is the one that makes the block smallest.
//! - **Not here** the decision if a page holds numbers (`choose`).

use super::PAGE_BYTES;

/// Numbers of a block.
const BLOCK: usize = 128;

/// Bit 7 of a block's first byte.
const ZIGZAG: u8 = 0x80;

/// Numbers of 4 or 8 bytes, with the operations that this file needs.
pub(super) trait Number: Copy + Default + Eq {
    /// Bytes of one number.
    const BYTES: usize;
    /// Bits of one number.
    const BITS: usize = Self::BYTES * 8;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    /// Maps signed numbers to unsigned ones, so that small numbers of either sign become small.
    fn zigzag(self) -> Self;
    fn unzigzag(self) -> Self;
    /// Returns the bits that the number needs.
    fn width(self) -> usize;
    /// Compares as signed numbers.
    fn signed_less(self, other: Self) -> bool;
    fn less(self, other: Self) -> bool;
    /// Packs the low `bits` of each number.
    fn pack(numbers: &[Self; BLOCK], bits: usize, target: &mut [u8]);
    /// Unpacks numbers that `pack` packed with the same `bits`.
    fn unpack(source: &[u8], bits: usize, numbers: &mut [Self; BLOCK]);
}

macro_rules! number {
    ($number:ty, $signed:ty, $lanes:expr) => {
        impl Number for $number {
            const BYTES: usize = size_of::<$number>();
            fn read(bytes: &[u8]) -> Self {
                let mut value = [0; size_of::<$number>()];
                value.copy_from_slice(&bytes[..size_of::<$number>()]);
                Self::from_le_bytes(value)
            }
            fn write(self, bytes: &mut [u8]) {
                bytes[..size_of::<$number>()].copy_from_slice(&self.to_le_bytes());
            }
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            fn zigzag(self) -> Self {
                self << 1 ^ (self as $signed >> (Self::BITS - 1)) as Self
            }
            fn unzigzag(self) -> Self {
                self >> 1 ^ (self & 1).wrapping_neg()
            }
            fn width(self) -> usize {
                Self::BITS as usize - self.leading_zeros() as usize
            }
            fn signed_less(self, other: Self) -> bool {
                (self as $signed) < (other as $signed)
            }
            fn less(self, other: Self) -> bool {
                self < other
            }
            fn pack(numbers: &[Self; BLOCK], bits: usize, target: &mut [u8]) {
                const ROWS: usize = BLOCK / $lanes;
                const WIDTH: usize = <$number>::BITS as usize;
                let mask = if bits == 0 { 0 } else { <$number>::MAX >> (WIDTH - bits) };
                let mut words = [[0 as $number; $lanes]; WIDTH + 1];
                for (row, values) in numbers.as_chunks::<{ $lanes }>().0.iter().enumerate().take(ROWS) {
                    let (word, shift) = (row * bits / WIDTH, row * bits % WIDTH);
                    for (lane, value) in values.iter().enumerate() {
                        words[word][lane] |= (value & mask) << shift;
                        if shift + bits > WIDTH {
                            words[word + 1][lane] |= (value & mask) >> (WIDTH - shift);
                        }
                    }
                }
                for (bytes, word) in target
                    .chunks_exact_mut(size_of::<$number>())
                    .zip(words.as_flattened())
                    .take(bits * $lanes)
                {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
            #[inline(always)]
            fn unpack(source: &[u8], bits: usize, numbers: &mut [Self; BLOCK]) {
                const WIDTH: usize = <$number>::BITS as usize;
                if bits == 0 {
                    *numbers = [0; BLOCK];
                    return;
                }
                let mask = <$number>::MAX >> (WIDTH - bits);
                let mut words = [[0 as $number; $lanes]; WIDTH + 1];
                for (word, bytes) in
                    words.as_flattened_mut().iter_mut().zip(source.as_chunks::<{ size_of::<$number>() }>().0)
                {
                    *word = <$number>::from_le_bytes(*bytes);
                }
                for (row, values) in numbers.as_chunks_mut::<{ $lanes }>().0.iter_mut().enumerate() {
                    let (word, shift) = (row * bits / WIDTH, row * bits % WIDTH);
                    let (low, high) = (&words[word], &words[word + 1]);
                    for lane in 0..$lanes {
                        // Shifted in two steps, so that a shift by the whole width gives zero.
                        let above = (high[lane] << 1) << (WIDTH - 1 - shift);
                        values[lane] = (low[lane] >> shift | above) & mask;
                    }
                }
            }
        }
    };
}

number!(u32, i32, 4);
number!(u64, i64, 2);

/// The numbers of a block minus its base, and their width.
struct Frame<N> {
    residuals: [N; BLOCK],
    zigzag: bool,
    base: N,
    bits: usize,
    exceptions: usize,
    bytes: usize,
}

/// Returns the width that makes the block smallest: bits, exceptions, bytes.
fn best_width<N: Number>(residuals: &[N; BLOCK], header: usize) -> (usize, usize, usize) {
    let mut count = [0u8; 65];
    for residual in residuals {
        count[residual.width()] += 1;
    }
    let widest = (0..=N::BITS).rev().find(|bits| count[*bits] > 0).unwrap_or(0);
    let mut best = (widest, 0, header + 16 * widest);
    let mut exceptions = 0;
    for bits in (0..widest).rev() {
        exceptions += usize::from(count[bits + 1]);
        let bytes = header + 16 * bits + exceptions * (1 + N::BYTES);
        if exceptions > 40 {
            break;
        }
        if bytes < best.2 {
            best = (bits, exceptions, bytes);
        }
    }
    best
}

fn frame<N: Number>(numbers: &[N; BLOCK], differences: bool) -> Frame<N> {
    let mut base = numbers[0];
    for number in numbers {
        let below = if differences { number.signed_less(base) } else { number.less(base) };
        base = if below { *number } else { base };
    }
    let residuals = numbers.map(|number| number.minus(base));
    let (bits, exceptions, bytes) = best_width(&residuals, 2 + N::BYTES);
    let by_base = Frame { residuals, zigzag: false, base, bits, exceptions, bytes };
    if !differences || bits == 0 {
        return by_base;
    }
    let residuals = numbers.map(N::zigzag);
    let (bits, exceptions, bytes) = best_width(&residuals, 2);
    let by_sign = Frame { residuals, zigzag: true, base: N::default(), bits, exceptions, bytes };
    if by_sign.bytes < by_base.bytes { by_sign } else { by_base }
}

/// Returns the numbers of a block, or their differences to the previous numbers.
fn block<N: Number>(bytes: &[u8], differences: bool, before: &mut N) -> [N; BLOCK] {
    let mut numbers = [N::default(); BLOCK];
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(N::BYTES)) {
        let value = N::read(bytes);
        *number = if differences { value.minus(*before) } else { value };
        *before = value;
    }
    numbers
}

/// Returns the bytes that a block of 128 numbers takes; its first number counts as a difference of 0.
pub(super) fn sample<N: Number>(bytes: &[u8], differences: bool) -> usize {
    let mut before = N::read(bytes);
    frame(&block::<N>(bytes, differences, &mut before), differences).bytes
}

/// Packs the page; returns `None` if it does not fit.
pub(super) fn pack<N: Number>(
    page: &[u8; PAGE_BYTES],
    differences: bool,
    target: &mut [u8],
) -> Option<usize> {
    let (mut before, mut at) = (N::default(), 0);
    for source in page.chunks_exact(BLOCK * N::BYTES) {
        let frame = frame(&block::<N>(source, differences, &mut before), differences);
        let target = target.get_mut(at..at + frame.bytes)?;
        at += frame.bytes;
        target[0] = frame.bits as u8 | if frame.zigzag { ZIGZAG } else { 0 };
        target[1] = frame.exceptions as u8;
        let mut to = 2;
        if !frame.zigzag {
            frame.base.write(&mut target[to..]);
            to += N::BYTES;
        }
        N::pack(&frame.residuals, frame.bits, &mut target[to..to + 16 * frame.bits]);
        to += 16 * frame.bits;
        for (index, residual) in frame.residuals.iter().enumerate() {
            if residual.width() > frame.bits {
                target[to] = index as u8;
                residual.write(&mut target[to + 1..]);
                to += 1 + N::BYTES;
            }
        }
    }
    Some(at)
}

/// Unpacks a page; returns `None` if the bytes are not one.
pub(super) fn unpack<N: Number>(
    mut source: &[u8],
    differences: bool,
    page: &mut [u8; PAGE_BYTES],
) -> Option<()> {
    let mut sum = N::default();
    for target in page.chunks_exact_mut(BLOCK * N::BYTES) {
        let (header, rest) = source.split_first_chunk::<2>()?;
        let (bits, zigzag) = (usize::from(header[0] & !ZIGZAG), header[0] & ZIGZAG != 0);
        if bits > N::BITS {
            return None;
        }
        let (base, rest) = if zigzag { (&[][..], rest) } else { rest.split_at_checked(N::BYTES)? };
        let base = if zigzag { N::default() } else { N::read(base) };
        let (packed, rest) = rest.split_at_checked(16 * bits)?;
        let (exceptions, rest) = rest.split_at_checked(usize::from(header[1]) * (1 + N::BYTES))?;
        source = rest;
        let mut numbers = [N::default(); BLOCK];
        N::unpack(packed, bits, &mut numbers);
        for exception in exceptions.chunks_exact(1 + N::BYTES) {
            *numbers.get_mut(usize::from(exception[0]))? = N::read(&exception[1..]);
        }
        if zigzag {
            numbers = numbers.map(N::unzigzag);
        } else {
            numbers = numbers.map(|number| number.plus(base));
        }
        if differences {
            for number in &mut numbers {
                sum = sum.plus(*number);
                *number = sum;
            }
        }
        for (number, bytes) in numbers.iter().zip(target.chunks_exact_mut(N::BYTES)) {
            number.write(bytes);
        }
    }
    source.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<N: Number>(page: &[u8; PAGE_BYTES], differences: bool) -> Option<usize> {
        let (mut target, mut again) = ([0; 6000], [0; PAGE_BYTES]);
        let bytes = pack::<N>(page, differences, &mut target)?;
        unpack::<N>(&target[..bytes], differences, &mut again)?;
        assert!(*page == again);
        assert!(unpack::<N>(&target[..bytes - 1], differences, &mut again).is_none());
        assert!(unpack::<N>(&target[..=bytes], differences, &mut again).is_none());
        Some(bytes)
    }

    #[test]
    fn every_width_comes_back() {
        let mut random = 1u64;
        for bits in 0..=64 {
            let mut page = [0; PAGE_BYTES];
            for (index, number) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(index as u64);
                let value = if bits == 0 { 7 } else { (random ^ random >> 32) >> (64 - bits) };
                *number = value.to_le_bytes();
            }
            for differences in [false, true] {
                there_and_back::<u64>(&page, differences).expect("it fits");
                there_and_back::<u32>(&page, differences).expect("it fits");
            }
        }
    }

    #[test]
    fn sizes_are_what_the_numbers_need() {
        let page = |value: &dyn Fn(u64) -> u64| {
            let mut page = [0; PAGE_BYTES];
            for (index, number) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *number = value(index as u64).to_le_bytes();
            }
            page
        };
        let clock = page(&|index| 1_700_000_000_000_000_000 + index * 1_000_000_000);
        assert!(there_and_back::<u64>(&clock, true) < Some(60));
        let small = page(&|index| index * 7919 % 1000);
        assert!(there_and_back::<u64>(&small, false) < Some(4 * (16 * 10 + 11)));
        let rare = page(&|index| if index % 100 == 99 { u64::MAX / 3 } else { index % 16 });
        assert!(there_and_back::<u64>(&rare, false) < Some(4 * (16 * 4 + 10 + 2 * 9) + 1));
    }
}
