// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples a segment to decide if a search for matches of three bytes is worth its time.
//!
//! - **Flow** 64 bytes are sampled; if most are text, which is the usual case, the result is no. Otherwise the positions of 1 KiB from
//!   the middle are looked up by their first three bytes; if many repeat for exactly three or four bytes, the result is yes.
//! - **Order** tables of numbers, addresses and symbols repeat in this way; text, machine code and noise do not.

/// Number of bytes sampled first, and the most of them that may be no text for the result no.
const SAMPLES: usize = 64;
const NOT_TEXT: usize = 12;
/// Number of bytes that are then searched; shorter segments are not worth it.
const LOOK_BYTES: usize = 1024;
/// One position in this many has to repeat.
const ONE_IN: usize = 6;
const HASH_BITS: u32 = 10;

/// Returns true if many positions of these bytes repeat exactly three or four bytes.
pub fn repeats_threes(bytes: &[u8]) -> bool {
    if bytes.len() < LOOK_BYTES {
        return false;
    }
    let text = |byte: u8| matches!(byte, 9..=13 | 32..=126);
    let step = bytes.len() / SAMPLES;
    // An odd step, so that the samples come from all columns of a table.
    let step = step - usize::from(step & 1 == 0);
    if (0..SAMPLES).filter(|sample| !text(bytes[sample * step])).count() <= NOT_TEXT {
        return false;
    }
    let middle = (bytes.len() - LOOK_BYTES) / 2;
    let bytes = &bytes[middle..middle + LOOK_BYTES];
    let mut places = [0u16; 1 << HASH_BITS];
    let mut found = 0;
    for (at, window) in bytes.windows(8).enumerate() {
        let eight = u64::from_le_bytes(window.try_into().unwrap_or_default());
        let hash = (eight << 40).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - HASH_BITS);
        let place = core::mem::replace(&mut places[hash as usize], at as u16) as usize;
        let other = u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap_or_default());
        let same = (eight ^ other).trailing_zeros() / 8;
        found += usize::from(same == 3 || same == 4);
    }
    found > LOOK_BYTES / ONE_IN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_numbers_repeat_threes_and_others_do_not() {
        let numbers: Vec<u8> = (0..4096u32).flat_map(|n| (n * 7 + n * n % 301).to_le_bytes()).collect();
        let noise: Vec<u8> = (0..4096u64)
            .flat_map(|n| (n + 1).wrapping_mul(0x9E37_79B1_85EB_CA87).rotate_left(29).to_be_bytes())
            .collect();
        let text: Vec<u8> =
            (0..900).flat_map(|n: u32| format!("{n} bottles of {}, ", n * n % 301).into_bytes()).collect();
        assert!(repeats_threes(&numbers));
        assert!(!repeats_threes(&noise));
        assert!(!repeats_threes(&text));
        assert!(!repeats_threes(&[0; 4096]));
        assert!(!repeats_threes(&numbers[..1000]));
    }
}
