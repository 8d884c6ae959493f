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
    rounds: Vec<[u8; 16]>,
    tables: &'static Tables,
}

/// The S-box, and what it gives times 2 and times 3.
#[derive(Debug)]
struct Tables {
    once: [u8; 256],
    twice: [u8; 256],
    thrice: [u8; 256],
}

impl Aes {
    /// Expands a key of 16 or 32 bytes.
    pub fn new(key: &[u8]) -> Aes {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        let tables = TABLES.get_or_init(|| {
            let once: [u8; 256] = std::array::from_fn(|byte| substitute(byte as u8));
            Tables { once, twice: once.map(|byte| times(byte, 2)), thrice: once.map(|byte| times(byte, 3)) }
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
        let rounds =
            schedule.chunks(4).map(|words| std::array::from_fn(|at: usize| words[at / 4][at % 4])).collect();
        Aes { rounds, tables }
    }

    pub fn block(&self, block: [u8; 16]) -> [u8; 16] {
        let add = |state: [u8; 16], key: &[u8; 16]| std::array::from_fn(|at: usize| state[at] ^ key[at]);
        let last = self.rounds.len() - 1;
        let mut state: [u8; 16] = add(block, &self.rounds[0]);
        for (number, key) in self.rounds.iter().enumerate().skip(1) {
            let Tables { once, twice, thrice } = self.tables;
            // Row r of the column-major state moves r columns to the left.
            let moved: [usize; 16] = std::array::from_fn(|at| usize::from(state[(at + 4 * (at % 4)) % 16]));
            state = std::array::from_fn(|at| {
                let byte = |turn: usize| moved[at / 4 * 4 + (at + turn) % 4];
                if number == last {
                    return once[byte(0)];
                }
                twice[byte(0)] ^ thrice[byte(1)] ^ once[byte(2)] ^ once[byte(3)]
            });
            state = add(state, key);
        }
        state
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
