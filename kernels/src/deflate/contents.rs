// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells text from other bytes, by zlib's rule for `data_type`.
//!
//! - **Order** bytes are text if none of them is a control character that text does not have, and at least one is a tab, an end of a line,
//!   or 32 or more. No bytes at all are not text.

use super::code_table::Counts;

/// Kind of the bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Characters, spaces and ends of lines.
    Text,
    /// Anything else, and no bytes at all.
    Binary,
}

/// Bytes that are tested before the next look at the result.
const PIECE_BYTES: usize = 4096;

/// Returns 1 if text does not have this byte.
const fn is_odd(byte: u8) -> u8 {
    (byte <= 6) as u8 | (byte.wrapping_sub(14) <= 11) as u8 | (byte.wrapping_sub(28) <= 3) as u8
}

/// Returns 1 if only text has this byte.
const fn is_plain(byte: u8) -> u8 {
    (byte >= 32) as u8 | (byte.wrapping_sub(9) <= 1) as u8 | (byte == 13) as u8
}

impl Contents {
    /// Returns the kind of these bytes.
    pub fn of(bytes: &[u8]) -> Contents {
        let mut plain = 0;
        for piece in bytes.chunks(PIECE_BYTES) {
            let mut odd = 0;
            for &byte in piece {
                odd |= is_odd(byte);
                plain |= is_plain(byte);
            }
            if odd != 0 {
                return Contents::Binary;
            }
        }
        if plain != 0 { Contents::Text } else { Contents::Binary }
    }

    /// Returns the kind of the literals of a block.
    pub(super) fn of_literals(counts: &Counts) -> Contents {
        let (mut odd, mut plain) = (0, 0);
        for (byte, &count) in (0u8..=255).zip(&counts.index) {
            if count != 0 {
                odd |= is_odd(byte);
                plain |= is_plain(byte);
            }
        }
        if odd == 0 && plain != 0 { Contents::Text } else { Contents::Binary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_of_zlibs_kind() {
        for byte in 0..=255u8 {
            let odd = matches!(byte, 0..=6 | 14..=25 | 28..=31);
            let plain = matches!(byte, 9 | 10 | 13 | 32..);
            assert_eq!((is_odd(byte), is_plain(byte)), (odd.into(), plain.into()), "{byte}");
            let expected = if plain { Contents::Text } else { Contents::Binary };
            assert_eq!(Contents::of(&[byte]), expected, "{byte}");
            assert_eq!(
                Contents::of(&[b'a', byte]),
                if odd { Contents::Binary } else { Contents::Text },
                "{byte}"
            );
            let mut counts = Counts::new();
            counts.index[byte as usize] = 1;
            assert_eq!(Contents::of_literals(&counts), expected, "{byte}");
        }
        assert_eq!(Contents::of(&[]), Contents::Binary);
        let mut long = vec![b'x'; 3 * PIECE_BYTES];
        assert_eq!(Contents::of(&long), Contents::Text);
        long[2 * PIECE_BYTES + 5] = 0;
        assert_eq!(Contents::of(&long), Contents::Binary);
    }
}
