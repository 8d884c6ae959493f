// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes one block: chooses the cheapest encoding of its tokens and writes them.
//!
//! - **Flow** from [`Counts`] the sizes of all encodings are computed: stored, fixed code, preset code, a code of the block's own. The
//!   smallest one gives a [`Table`], which turns the tokens into bits.
//! - **Order** the size of every encoding is known to the bit before anything is written, and stored is one of them: so a block never
//!   takes more than its bytes, 4 bytes of length and the bits up to a whole byte.

use super::bits::Bits;
use super::codes::{
    DISTANCE_SYMBOLS, END_OF_BLOCK, INDICES, LENGTH_BASE, LENGTH_EXTRA, LITLEN_SYMBOLS, distance_extra,
};
use super::header::Header;
use super::huffman;
use super::matcher::has_avx2;
use super::preset::Preset;
use crate::Isa;

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
    fn write(&self, tokens: &[u32], fast: bool, bits: &mut Bits<'_>) {
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

/// A code for the tokens of one block, and the block's size with this code.
pub struct Plan {
    pub litlen: [u8; LITLEN_SYMBOLS],
    pub distance: [u8; DISTANCE_SYMBOLS],
    pub header: Header,
    /// Size of the block in bits, header included.
    pub bits: usize,
}

impl Plan {
    /// Computes the best code for tokens with these counts.
    pub fn new(counts: &Counts) -> Plan {
        let mut litlen_counts = [0u32; LITLEN_SYMBOLS];
        litlen_counts[..256].copy_from_slice(&counts.index[..256]);
        litlen_counts[END_OF_BLOCK] = 1;
        for symbol in 0..29 {
            let base = 256 + LENGTH_BASE[symbol] as usize;
            let span = if symbol == 27 { 31 } else { 1 << LENGTH_EXTRA[symbol] };
            litlen_counts[257 + symbol] = counts.index[base..base + span].iter().sum();
        }
        let mut litlen = [0u8; LITLEN_SYMBOLS];
        let mut distance = [0u8; DISTANCE_SYMBOLS];
        let mut bits = 3 + huffman::lengths::<288>(&litlen_counts, 15, &mut litlen);
        bits += huffman::lengths::<32>(&counts.distance[..DISTANCE_SYMBOLS], 15, &mut distance);
        let header = Header::plan(&litlen, &distance);
        bits += header.bits;
        for (count, extra) in litlen_counts[257..].iter().zip(LENGTH_EXTRA) {
            bits += *count as usize * extra as usize;
        }
        for (symbol, &count) in counts.distance[..DISTANCE_SYMBOLS].iter().enumerate() {
            bits += count as usize * distance_extra(symbol) as usize;
        }
        Plan { litlen, distance, header, bits }
    }
}

/// Largest block for which the preset and the fixed code are considered, bytes.
const KNOWN_CODE_BYTES: usize = 1024;

/// Memory for writing blocks, reused from one block to the next.
pub struct Writer {
    own: Table,
    /// True if the CPU has BMI2 and may use it.
    fast: bool,
}

/// Error: the target has no room for the block.
pub struct Full;

impl Writer {
    pub fn new(isa: Isa) -> Writer {
        Writer { own: Table::new(), fast: has_avx2(isa) }
    }

    /// Writes one block of these tokens, which encode `source` (at most 65535 bytes), in its smallest form. `source` is `None` if
    /// there are so few tokens that a stored block cannot be smaller.
    pub fn write(
        &mut self,
        source: Option<&[u8]>,
        tokens: &[u32],
        counts: &Counts,
        preset: &Preset,
        last: bool,
        bits: &mut Bits<'_>,
    ) -> Result<(), Full> {
        let Plan { litlen, distance, header, bits: own_bits } = Plan::new(counts);
        let (_, in_hand) = bits.rest();
        let stored_bits = source.map_or(usize::MAX, |source| stored_bits(in_hand, source.len()));
        // The preset and the fixed code are only considered for short blocks, where the header of another code would be a large
        // part.
        let (mut preset_bits, mut fixed_bits) = (usize::MAX, usize::MAX);
        if source.is_some_and(|source| source.len() <= KNOWN_CODE_BYTES) {
            preset_bits = 3 + preset.header.bits + preset.code.price(counts);
            fixed_bits = 3 + FIXED.price(counts);
        }
        let cheapest = own_bits.min(preset_bits).min(fixed_bits).min(stored_bits);
        if (in_hand as usize + cheapest).div_ceil(8) > bits.room() {
            return Err(Full);
        }
        if let Some(source) = source
            && cheapest == stored_bits
        {
            stored(source, last, bits);
        } else if cheapest == fixed_bits {
            bits.put(u64::from(last) | 1 << 1, 3);
            bits.flush();
            FIXED.write(tokens, self.fast, bits);
        } else if cheapest == preset_bits {
            preset.begin(last, bits);
            preset.code.write(tokens, self.fast, bits);
        } else {
            bits.put(u64::from(last) | 2 << 1, 3);
            bits.flush();
            header.write(bits);
            self.own.fill(&litlen, &distance);
            self.own.write(tokens, self.fast, bits);
        }
        Ok(())
    }
}

/// Returns the size in bits of a stored block that begins after `in_hand` unstored bits.
pub fn stored_bits(in_hand: u32, bytes: usize) -> usize {
    (in_hand as usize + 3).next_multiple_of(8) - in_hand as usize + 32 + 8 * bytes
}

/// Writes a stored block of at most 65535 bytes. The caller has checked the room for it.
pub fn stored(source: &[u8], last: bool, bits: &mut Bits<'_>) {
    bits.put(u64::from(last), 3);
    bits.align();
    let length = source.len() as u64;
    bits.put(length | (length ^ 0xffff) << 16, 32);
    bits.flush();
    bits.bytes_from(source);
}

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
