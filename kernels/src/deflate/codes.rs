// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The symbols of RFC 1951 and the tokens between the match finder and the writer.
//!
//! - **Layout** a token is one `u32`: bits 0–8 the literal (0–255) or 256 + length − 3; bits 9–13 the distance symbol, or
//!   [`NO_DISTANCE`] for a literal; bits 14–26 the extra bits of the distance. A literal and a match have the
//!   same shape, so that counting and writing them needs no branch.

/// Symbols of the literal and length alphabet that may occur in a block (286 and 287 are never written).
pub const LITLEN_SYMBOLS: usize = 286;
/// Symbols of the distance alphabet that may occur in a block.
pub const DISTANCE_SYMBOLS: usize = 30;
/// The symbol that ends a block.
pub const END_OF_BLOCK: usize = 256;
/// The longest code that a literal, length or distance may have, in bits.
pub const CODE_BITS: usize = 15;
/// The shortest and longest match of the format, in bytes.
pub const MATCH_BYTES: (usize, usize) = (3, 258);
/// The largest distance of the format, in bytes.
pub const WINDOW_BYTES: usize = 32768;
/// Distance symbol of a literal: it has no code, so nothing is written for it.
pub const NO_DISTANCE: u32 = 31;
/// Number of indices of literals and lengths in tokens: 256 literals, then one per length.
pub const INDICES: usize = 512;

/// Extra bits of the length symbols 257–285.
pub const LENGTH_EXTRA: [u8; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];

/// For each length symbol 257–285, its first length minus 3.
pub const LENGTH_BASE: [u8; 29] = {
    let mut base = [0u8; 29];
    let mut symbol = 0;
    let mut next = 0u32;
    while symbol < 28 {
        base[symbol] = next as u8;
        next += 1 << LENGTH_EXTRA[symbol];
        symbol += 1;
    }
    base[28] = 255; // a match of 258 bytes has a symbol of its own
    base
};

/// Returns the extra bits of a distance symbol.
pub const fn distance_extra(symbol: usize) -> u32 {
    if symbol < 4 || symbol >= DISTANCE_SYMBOLS { 0 } else { symbol as u32 / 2 - 1 }
}

/// Returns the token of one literal byte.
#[inline(always)]
pub const fn literal(byte: u8) -> u32 {
    byte as u32 | NO_DISTANCE << 9
}

/// Returns the token of one match. `length` is 3–258, `distance` 1–32768.
#[inline(always)]
pub const fn matched(length: usize, distance: usize) -> u32 {
    let from_zero = distance as u32 - 1;
    let extra = 30 - (from_zero | 2).leading_zeros();
    let symbol = (from_zero >> extra) + 2 * extra;
    let rest = from_zero & !(u32::MAX << extra);
    (256 + length as u32 - 3) | symbol << 9 | rest << 14
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_have_the_symbols_of_the_standard() {
        // RFC 1951, section 3.2.5.
        let mut base = 1;
        for symbol in 0..DISTANCE_SYMBOLS {
            let extra = distance_extra(symbol);
            for distance in [base, base + (1 << extra) - 1] {
                let token = matched(3, distance);
                assert_eq!(token >> 9 & 31, symbol as u32, "distance {distance}");
                assert_eq!((token >> 14) as usize, distance - base, "distance {distance}");
            }
            base += 1 << extra;
        }
        assert_eq!(base, WINDOW_BYTES + 1);
    }

    #[test]
    fn lengths_have_the_bases_of_the_standard() {
        assert_eq!(LENGTH_BASE[8] + 3, 11);
        assert_eq!(LENGTH_BASE[20] + 3, 67);
        assert_eq!(u32::from(LENGTH_BASE[27]) + 3, 227);
    }
}
