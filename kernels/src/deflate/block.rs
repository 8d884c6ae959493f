// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes one block: chooses the cheapest encoding of its tokens and writes them.
//!
//! - **Flow** from [`Counts`] the sizes of all encodings are computed: stored, fixed code, preset code, a code of the block's own. The
//!   smallest one gives a [`Table`], which turns the tokens into bits.
//! - **Order** the size of every encoding is known to the bit before anything is written, and stored is one of them: so a block never
//!   takes more than its bytes, 4 bytes of length and the bits up to a whole byte.

use super::bits::Bits;
use super::code_table::{Counts, FIXED, Table};
use super::codes::{
    DISTANCE_SYMBOLS, END_OF_BLOCK, LENGTH_BASE, LENGTH_EXTRA, LITLEN_SYMBOLS, distance_extra,
};
use super::header::Header;
use super::huffman;
use super::isa::has_avx2;
use super::preset::Preset;
use crate::Isa;

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
