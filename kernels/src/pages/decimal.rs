// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packs floating-point numbers that are decimals: prices, measured values with few digits, integers with gaps.
//!
//! - **Flow** a number times 10^e is rounded to an integer; if dividing it by 10^e gives the same number bit by bit, the integer is
//!   packed in a frame of reference.
//! - **Layout** e, number of exceptions (2 bytes), for each exception its index (2 bytes) and its 8 bytes, then the frames of the integers.
//! - **Order** a quotient of two exact numbers is rounded once, so it equals the number that parsing the decimal gives.
//! - **Not here** numbers of 4 bytes.
//!
//! Source: Afroozeh, Kuffó, Boncz: ALP, Adaptive Lossless floating-Point Compression, 2023 (the idea of exact decimals).

use super::PAGE_BYTES;
use super::integers;

const NUMBERS: usize = PAGE_BYTES / 8;

/// With more exceptions than this the method is not worth it.
const MAX_EXCEPTIONS: usize = 64;

const EXCEPTION_BYTES: usize = 10;

const POWERS: [f64; 10] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// Returns the integer that gives the number back, if there is one.
fn integer(number: u64, power: f64) -> Option<i64> {
    let number = f64::from_bits(number);
    let scaled = (number * power).round_ties_even();
    if scaled.abs() >= 4_503_599_627_370_496.0 || scaled.is_nan() {
        return None;
    }
    let integer = scaled as i64;
    (integer as f64 / power).to_bits().eq(&number.to_bits()).then_some(integer)
}

/// Returns the exponent with which some of the page's numbers are integers, or `None` if the page does not look like decimals.
pub(super) fn exponent(page: &[u8; PAGE_BYTES]) -> Option<usize> {
    let (numbers, _) = page.as_chunks::<8>();
    let sample: [u64; 8] = std::array::from_fn(|index| u64::from_le_bytes(numbers[index * 61 + 17]));
    // Plausible numbers have exponents of 2^-64 to 2^63, or are zero; others are no decimals.
    let plausible = |number: u64| number << 1 == 0 || (959..1087).contains(&(number >> 52 & 0x7ff));
    if sample.iter().filter(|number| plausible(**number)).count() < 7 {
        return None;
    }
    POWERS
        .iter()
        .position(|power| sample.iter().filter(|number| integer(**number, *power).is_some()).count() >= 7)
}

/// Packs the page; returns `None` if it does not fit, or the numbers are no decimals.
pub(super) fn pack(
    page: &[u8; PAGE_BYTES],
    scratch: &mut [u8; PAGE_BYTES],
    target: &mut [u8],
) -> Option<usize> {
    let exponent = exponent(page)?;
    let power = POWERS[exponent];
    let (header, _) = target.split_at_mut_checked(3)?;
    header[0] = exponent as u8;
    let (mut exceptions, mut before) = (0, 0);
    for (index, (number, scratch)) in
        page.as_chunks::<8>().0.iter().zip(scratch.as_chunks_mut::<8>().0).enumerate()
    {
        match integer(u64::from_le_bytes(*number), power) {
            Some(integer) => before = integer,
            None => {
                let at = 3 + exceptions * EXCEPTION_BYTES;
                let exception = target.get_mut(at..at + EXCEPTION_BYTES)?;
                exception[..2].copy_from_slice(&(index as u16).to_le_bytes());
                exception[2..].copy_from_slice(number);
                exceptions += 1;
                if exceptions > MAX_EXCEPTIONS {
                    return None;
                }
            }
        }
        // Flipping the sign bit makes the order of unsigned numbers that of the signed ones.
        *scratch = (before as u64 ^ 1 << 63).to_le_bytes();
    }
    target[1..3].copy_from_slice(&(exceptions as u16).to_le_bytes());
    let at = 3 + exceptions * EXCEPTION_BYTES;
    Some(at + integers::pack::<u64>(scratch, false, &mut target[at..])?)
}

/// Unpacks a page; returns `None` if the bytes are not one.
pub(super) fn unpack(source: &[u8], page: &mut [u8; PAGE_BYTES]) -> Option<()> {
    let (header, rest) = source.split_first_chunk::<3>()?;
    let power = *POWERS.get(usize::from(header[0]))?;
    let exceptions = usize::from(u16::from_le_bytes([header[1], header[2]]));
    let (exceptions, rest) = rest.split_at_checked(exceptions * EXCEPTION_BYTES)?;
    integers::unpack::<u64>(rest, false, page)?;
    for number in page.as_chunks_mut::<8>().0 {
        let integer = (u64::from_le_bytes(*number) ^ 1 << 63) as i64;
        *number = (integer as f64 / power).to_bits().to_le_bytes();
    }
    for exception in exceptions.as_chunks::<EXCEPTION_BYTES>().0 {
        let index = usize::from(u16::from_le_bytes([exception[0], exception[1]]));
        if index >= NUMBERS {
            return None;
        }
        page[index * 8..index * 8 + 8].copy_from_slice(&exception[2..]);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_come_back_bit_by_bit() {
        for power in POWERS.into_iter().take(5) {
            let mut page = [0; PAGE_BYTES];
            for (index, number) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let value = (index as i64 * 7919 % 20_000 - 300) as f64 / power;
                let value = match index {
                    100 => f64::NAN,
                    101 => -0.0,
                    102 => f64::INFINITY,
                    103 => 1.0 / 3.0,
                    104 => 5e-324,
                    _ => value,
                };
                *number = value.to_bits().to_le_bytes();
            }
            let (mut scratch, mut target, mut again) = ([0; PAGE_BYTES], [0; PAGE_BYTES], [0; PAGE_BYTES]);
            let bytes = pack(&page, &mut scratch, &mut target).expect("they are decimals");
            assert!(bytes < 1200, "{bytes}");
            unpack(&target[..bytes], &mut again).expect("our own bytes");
            assert!(page == again);
            assert!(unpack(&target[..bytes - 1], &mut again).is_none());
        }
    }
}
