// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The codes of a block's tokens: counts of symbols, and tables that turn tokens into bits.
//!
//! - **Layout** an entry holds the number of bits in the low 8 bits; code and extra bits above
//! - **Not here** choosing a code: `block`

use super::bits::Bits;
use super::codes::{DISTANCE_SYMBOLS, END_OF_BLOCK, INDICES, LENGTH_BASE, LENGTH_EXTRA, distance_extra};
use super::huffman;

/// Number of occurrences of each literal, length and distance symbol in the tokens of one block.
#[repr(align(64))]
pub struct Counts {
    /// By literal or length, with the index that tokens use.
    pub index: [u32; INDICES],
    /// By distance symbol; the entry for literals is not used.
    pub distance: [u32; 32],
}

impl Counts {
    pub const fn new() -> Counts {
        Counts { index: [0; INDICES], distance: [0; 32] }
    }

    pub fn clear(&mut self) {
        self.index.fill(0);
        self.distance.fill(0);
    }

    /// Adds the counts of other tokens.
    pub fn add(&mut self, other: &Counts) {
        for (count, more) in self.index.iter_mut().zip(&other.index) {
            *count += more;
        }
        for (count, more) in self.distance.iter_mut().zip(&other.distance) {
            *count += more;
        }
    }
}

/// Codes and extra bits of each index and each distance symbol.
#[repr(align(64))]
pub struct Table {
    /// For each index: the number of bits in the low 8 bits; code and extra bits above.
    index: [u32; INDICES],
    distance: [Distance; 32],
    /// Code of the end of the block, in the form of an entry of `index`.
    end: u32,
}

/// Code of a distance symbol.
#[derive(Clone, Copy)]
#[repr(C)]
struct Distance {
    code: u16,
    /// Length of the code in bits; `all` is the length with the extra bits.
    bits: u8,
    all: u8,
}

impl Table {
    pub const fn new() -> Table {
        Table { index: [0; INDICES], distance: [Distance { code: 0, bits: 0, all: 0 }; 32], end: 0 }
    }

    /// Fills the table with the canonical code that has these lengths.
    pub fn fill(&mut self, litlen: &[u8], distance: &[u8]) {
        let mut codes = [0u16; 288];
        huffman::codes(litlen, &mut codes[..litlen.len()]);
        for byte in 0..256 {
            self.index[byte] = u32::from(codes[byte]) << 8 | u32::from(litlen[byte]);
        }
        self.end = u32::from(codes[END_OF_BLOCK]) << 8 | u32::from(litlen[END_OF_BLOCK]);
        for symbol in 0..29 {
            let (code, bits) = (u32::from(codes[257 + symbol]), u32::from(litlen[257 + symbol]));
            let (base, extra) = (256 + LENGTH_BASE[symbol] as usize, LENGTH_EXTRA[symbol]);
            let span = if symbol == 27 { 31 } else { 1 << extra }; // a match of 258 bytes has a symbol of its own
            for (rest, entry) in self.index[base..base + span].iter_mut().enumerate() {
                *entry = (code | (rest as u32) << bits) << 8 | (bits + u32::from(extra));
            }
        }
        huffman::codes(distance, &mut codes[..distance.len()]);
        for symbol in 0..distance.len().min(DISTANCE_SYMBOLS) {
            let bits = distance[symbol];
            self.distance[symbol] =
                Distance { code: codes[symbol], bits, all: bits + distance_extra(symbol) as u8 };
        }
    }

    /// Returns the code of a literal and its length in bits.
    #[inline(always)]
    pub fn literal(&self, byte: u8) -> (u64, u32) {
        let entry = self.index[byte as usize];
        (u64::from(entry >> 8), entry & 63)
    }

    /// Returns the code of a token with its extra bits, at most 48 bits, and its length in bits.
    #[inline(always)]
    pub fn pair(&self, token: u32) -> (u64, u32) {
        let index = self.index[(token & 511) as usize];
        let distance = self.distance[(token >> 9 & 31) as usize];
        let second = u32::from(distance.code) | (token >> 14) << (distance.bits & 31);
        let value = u64::from(index >> 8) | u64::from(second) << (index & 63);
        (value, (index + u32::from(distance.all)) & 63)
    }

    /// Returns the length of the end-of-block code, bits.
    pub fn end_bits(&self) -> usize {
        (self.end & 63) as usize
    }

    /// Writes the end-of-block code.
    pub fn end(&self, bits: &mut Bits<'_>) {
        bits.put(u64::from(self.end >> 8), self.end & 63);
        bits.flush();
    }

    /// Returns the size in bits of the tokens with these counts, the end of the block included.
    pub fn price(&self, counts: &Counts) -> usize {
        let mut bits = self.end & 63;
        for (count, entry) in counts.index.iter().zip(&self.index) {
            bits += count * (entry & 63);
        }
        for (count, entry) in counts.distance.iter().zip(&self.distance) {
            bits += count * u32::from(entry.all);
        }
        bits as usize
    }

    /// Writes the tokens and the end of the block.
    pub fn write(&self, tokens: &[u32], fast: bool, bits: &mut Bits<'_>) {
        self.write_some(tokens, fast, bits);
        self.end(bits);
    }

    /// Writes the tokens.
    pub fn write_some(&self, tokens: &[u32], fast: bool, bits: &mut Bits<'_>) {
        #[cfg(target_arch = "x86_64")]
        if fast {
            // SAFETY: `fast` is only true if the CPU has BMI2.
            return unsafe { put_each_bmi2(self, tokens, bits) };
        }
        let _ = fast;
        bits.put_each(tokens, |token| self.pair(token));
    }
}

/// Does the same as [`Bits::put_each`], compiled with shift instructions that need no particular register.
///
/// # Safety
/// The CPU has BMI2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
unsafe fn put_each_bmi2(table: &Table, tokens: &[u32], bits: &mut Bits<'_>) {
    bits.put_each(tokens, |token| table.pair(token));
}

/// The fixed code of RFC 1951.
pub static FIXED: Table = {
    let mut table = Table::new();
    let mut byte = 0u32;
    while byte < 256 {
        let (code, bits) = if byte < 144 { (0x30 + byte, 8) } else { (400 + byte - 144, 9) };
        table.index[byte as usize] = (code.reverse_bits() >> (32 - bits)) << 8 | bits;
        byte += 1;
    }
    table.end = 7;
    let mut symbol = 0;
    while symbol < 29 {
        let (code, bits) = if symbol < 23 { (1 + symbol as u32, 7) } else { (192 + symbol as u32 - 23, 8) };
        let code = code.reverse_bits() >> (32 - bits);
        let extra = LENGTH_EXTRA[symbol] as u32;
        let span = if symbol == 27 { 31 } else { 1 << extra };
        let mut rest = 0;
        while rest < span {
            let value = code | rest << bits;
            table.index[256 + LENGTH_BASE[symbol] as usize + rest as usize] = value << 8 | (bits + extra);
            rest += 1;
        }
        symbol += 1;
    }
    symbol = 0;
    while symbol < DISTANCE_SYMBOLS {
        let code = ((symbol as u32).reverse_bits() >> 27) as u16;
        table.distance[symbol] = Distance { code, bits: 5, all: 5 + distance_extra(symbol) as u8 };
        symbol += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_code_is_the_standards() {
        let mut litlen = [8u8; 288];
        litlen[144..256].fill(9);
        litlen[256..280].fill(7);
        let mut table = Table::new();
        table.fill(&litlen, &[5; 32]);
        assert!(table.index == FIXED.index && table.end == FIXED.end);
        for symbol in 0..DISTANCE_SYMBOLS as u32 {
            assert_eq!(table.pair(symbol << 9), FIXED.pair(symbol << 9));
        }
    }
}
