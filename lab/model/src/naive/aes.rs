// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The AES block cipher (FIPS 197), encryption only: the S-box is computed, not copied.

use std::sync::OnceLock;

/// Multiplication modulo x⁸ + x⁴ + x³ + x + 1.
fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    product
}

/// Inverse in the field, then the affine map.
fn substitute(byte: u8) -> u8 {
    let inverse = (0..=255).find(|&other| times(byte, other) == 1).unwrap_or(0);
    (0..5).fold(0x63, |sum, turn| sum ^ inverse.rotate_left(turn))
}

#[derive(Clone, Debug)]
pub(crate) struct Aes {
    /// Four columns for each round, the first row in the highest byte.
    rounds: Vec<[u32; 4]>,
    tables: &'static Tables,
}

/// The S-box, and for each row the column that it makes of a byte of that row: of the first times 2, once, once, times 3.
#[derive(Debug)]
struct Tables {
    once: [u8; 256],
    columns: [[u32; 256]; 4],
}

impl Aes {
    /// Expands a key of 16 or 32 bytes.
    pub fn new(key: &[u8]) -> Aes {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        let tables = TABLES.get_or_init(|| {
            let once: [u8; 256] = std::array::from_fn(|byte| substitute(byte as u8));
            let first = once.map(|byte| u32::from_be_bytes([times(byte, 2), byte, byte, times(byte, 3)]));
            let columns = [0, 8, 16, 24].map(|bits| first.map(|column| column.rotate_right(bits)));
            Tables { once, columns }
        });
        let words = key.len() / 4;
        let mut schedule: Vec<[u8; 4]> =
            key.chunks(4).map(|word| [word[0], word[1], word[2], word[3]]).collect();
        let mut constant = 1;
        while schedule.len() < 4 * (words + 7) {
            let index = schedule.len();
            let mut word = schedule[index - 1];
            if index.is_multiple_of(words) {
                word.rotate_left(1);
                word = word.map(|byte| tables.once[usize::from(byte)]);
                word[0] ^= constant;
                constant = times(constant, 2);
            } else if words > 6 && index % words == 4 {
                word = word.map(|byte| tables.once[usize::from(byte)]);
            }
            let before = schedule[index - words];
            schedule.push(std::array::from_fn(|at| word[at] ^ before[at]));
        }
        let rounds = schedule.as_chunks::<4>().0.iter().map(|words| words.map(u32::from_be_bytes)).collect();
        Aes { rounds, tables }
    }

    pub fn block(&self, block: [u8; 16]) -> [u8; 16] {
        let Tables { once, columns: [first, second, third, fourth] } = self.tables;
        let [Some((begin, rounds)), Some((end, _))] = [self.rounds.split_first(), self.rounds.split_last()]
            .map(|parts| parts.map(|(key, rest)| (*key, rest)))
        else {
            return block;
        };
        let words = block.as_chunks::<4>().0;
        let mut state: [u32; 4] = std::array::from_fn(|at| u32::from_be_bytes(words[at]) ^ begin[at]);
        // Row r of a column comes from r columns further on.
        let of = |state: &[u32; 4], at: usize| {
            let row = |row: usize| (state[(at + row) % 4] >> (24 - 8 * row)) as u8;
            [row(0), row(1), row(2), row(3)].map(usize::from)
        };
        for key in &rounds[..rounds.len() - 1] {
            state = std::array::from_fn(|at| {
                let [a, b, c, d] = of(&state, at);
                first[a] ^ second[b] ^ third[c] ^ fourth[d] ^ key[at]
            });
        }
        let last: [u32; 4] =
            std::array::from_fn(|at| u32::from_be_bytes(of(&state, at).map(|byte| once[byte])) ^ end[at]);
        let mut found = [0; 16];
        for (place, word) in found.as_chunks_mut::<4>().0.iter_mut().zip(last) {
            *place = word.to_be_bytes();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        let plain: [u8; 16] = std::array::from_fn(|at| (at * 0x11) as u8);
        let key: Vec<u8> = (0..32).collect();
        let cipher = |bytes| u128::from_be_bytes(Aes::new(&key[..bytes]).block(plain));
        assert_eq!(cipher(16), 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a);
        assert_eq!(cipher(32), 0x8ea2_b7ca_5167_45bf_eafc_4990_4b49_6089);
    }
}
