// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header of a dynamic block: its code lengths as run-length items, which are themselves Huffman-coded.
//!
//! - **Flow** the lengths of both alphabets, without trailing zeros ──runs──▶ items (symbol, extra bits) ──Huffman──▶ bits.
//! - **Not here** the choice of a block's code: see [`block`](super::block).

use super::bits::Bits;
use super::codes::{DISTANCE_SYMBOLS, LITLEN_SYMBOLS};
use super::huffman;

const SYMBOLS: usize = 19;
/// Order in which the lengths of the header's own code are written.
const ORDER: [usize; SYMBOLS] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// A value that is no code length.
const NONE: u8 = 0xff;

/// A planned header: its size is known, and it can be written any number of times.
pub struct Header {
    items: [u16; LITLEN_SYMBOLS + DISTANCE_SYMBOLS],
    count: usize,
    lengths: [u8; SYMBOLS],
    litlen: usize,
    distance: usize,
    order: usize,
    /// Size in bits, without the three bits of the block's kind.
    pub bits: usize,
}

/// Returns the extra bits of a symbol of the header's alphabet.
const fn extra(symbol: usize) -> usize {
    [0, 2, 3, 7][if symbol < 16 { 0 } else { symbol - 15 }]
}

impl Header {
    /// Plans the header of these code lengths.
    pub fn plan(litlen: &[u8; LITLEN_SYMBOLS], distance: &[u8; DISTANCE_SYMBOLS]) -> Header {
        let to_last = |lengths: &[u8]| lengths.iter().rposition(|&bits| bits != 0).map_or(0, |last| last + 1);
        let (litlen_used, distance_used) = (to_last(litlen).max(257), to_last(distance).max(1));
        // Entries behind the last length differ from every length, so a run ends there.
        let mut all = [NONE; LITLEN_SYMBOLS + DISTANCE_SYMBOLS + 8];
        all[..litlen_used].copy_from_slice(&litlen[..litlen_used]);
        all[litlen_used..litlen_used + distance_used].copy_from_slice(&distance[..distance_used]);
        let used = litlen_used + distance_used;

        let mut header = Header {
            items: [0; LITLEN_SYMBOLS + DISTANCE_SYMBOLS],
            count: 0,
            lengths: [0; SYMBOLS],
            litlen: litlen_used,
            distance: distance_used,
            order: 0,
            bits: 0,
        };
        let mut frequencies = [0u32; SYMBOLS];
        let mut item = |symbol: usize, rest: usize| {
            header.items[header.count] = (symbol | rest << 5) as u16;
            header.count += 1;
            frequencies[symbol] += 1;
        };
        let mut at = 0;
        while at < used {
            // Compares eight lengths at a time: most runs are short, and the end of a loop over single lengths would be
            // mispredicted.
            let bits = all[at];
            let mut run = 0;
            while run == 0 || all[at + run] == bits {
                let eight: [u8; 8] = all[at + run..at + run + 8].try_into().unwrap_or_default();
                let same = u64::from(bits) * 0x0101_0101_0101_0101;
                let other = u64::from_le_bytes(eight) ^ same;
                run += other.trailing_zeros() as usize / 8;
            }
            at += run;
            if bits == 0 {
                while run >= 11 {
                    let take = run.min(138);
                    item(18, take - 11);
                    run -= take;
                }
                if run >= 3 {
                    item(17, run - 3);
                    run = 0;
                }
            } else if run >= 4 {
                item(bits as usize, 0);
                run -= 1;
                while run >= 3 {
                    let take = run.min(6);
                    item(16, take - 3);
                    run -= take;
                }
            }
            for _ in 0..run {
                item(bits as usize, 0);
            }
        }
        header.bits = huffman::lengths::<20>(&frequencies, 7, &mut header.lengths);
        header.order =
            ORDER.iter().rposition(|&symbol| header.lengths[symbol] != 0).map_or(4, |last| (last + 1).max(4));
        header.bits += 14 + 3 * header.order;
        header.bits += (16..=18).map(|symbol| frequencies[symbol] as usize * extra(symbol)).sum::<usize>();
        header
    }

    /// Writes the header. The block's kind must be written before, and the writer flushed.
    pub fn write(&self, bits: &mut Bits<'_>) {
        let mut codes = [0u16; SYMBOLS];
        huffman::codes(&self.lengths, &mut codes);
        bits.put((self.litlen - 257) as u64, 5);
        bits.put((self.distance - 1) as u64, 5);
        bits.put((self.order - 4) as u64, 4);
        bits.flush();
        let lengths = ORDER[..self.order].iter().rev();
        bits.put(
            lengths.fold(0, |all, &symbol| all << 3 | u64::from(self.lengths[symbol])),
            3 * self.order as u32,
        );
        bits.flush();
        // An item has at most 14 bits.
        for items in self.items[..self.count].chunks(4) {
            for &item in items {
                let symbol = (item & 31) as usize;
                let length = u32::from(self.lengths[symbol]);
                let value = u64::from(codes[symbol]) | u64::from(item >> 5) << length;
                bits.put(value, length + extra(symbol) as u32);
            }
            bits.flush();
        }
    }
}
