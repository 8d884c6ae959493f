// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a stream that the unpacker takes is one that zlib takes: [`is_plain`].
//!
//! Flow    blocks are looked at from the first on: stored ones are skipped, fixed ones are walked symbol by symbol, of a dynamic
//!         one the code lengths are added up. The last block decides. Where a dynamic block is not the last, the place of
//!         the next one is known to whoever decodes only: such a stream is plain if it has a checksum
//! Layout  what libdeflate takes and zlib refuses: code lengths that leave codes over where there is a single code, or none; more
//!         than 286 or 30 symbols; symbols 286, 287 and distances 30, 31 of fixed blocks; a single code's other bit. With complete
//!         codes of no more symbols every bit pattern has a meaning, and both agree. A block without an end is refused by both
//! Order   `false` says no more than that zlib-rs has to look. Nothing here reads outside of the source, and bits behind its
//!         end are zeros
//! Not here whether the stream is whole and right: the unpacker says that afterwards.
#![deny(unsafe_code)]

use memlift_kernels::deflate::Format;

/// Whether zlib takes the stream if the unpacker does.
pub fn is_plain(format: Format, source: &[u8]) -> bool {
    front(format, source).and_then(|bytes| source.get(bytes..)).is_some_and(|blocks| {
        let mut bits = Bits { source: blocks, at: 0, buffer: 0, count: 0 };
        loop {
            bits.refill();
            let (last, kind) = (bits.take(1) == 1, bits.take(2));
            let fine = match kind {
                0 => bits.skip_stored(),
                1 => bits.walk_fixed(),
                2 if last => return bits.has_complete_codes(),
                // A checksum vouches for what comes out of the blocks that follow.
                2 => return format != Format::Raw && bits.has_complete_codes(),
                _ => false,
            };
            if last || !fine {
                return fine;
            }
        }
    })
}

/// Bytes before the first block. `None`: cut off.
fn front(format: Format, source: &[u8]) -> Option<usize> {
    match format {
        Format::Raw => Some(0),
        Format::Zlib => Some(2),
        Format::Gzip => {
            let (flags, mut at) = (*source.get(3)?, 10);
            if flags & 4 != 0 {
                let &[low, high] = source.get(at..at + 2)? else { return None };
                at += 2 + usize::from(u16::from_le_bytes([low, high]));
            }
            for text in [8, 16] {
                if flags & text != 0 {
                    at += source.get(at..)?.iter().position(|&byte| byte == 0)? + 1;
                }
            }
            Some(at + if flags & 2 != 0 { 2 } else { 0 })
        }
    }
}

/// The order in which the lengths of the code length code come.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// The share of all codes, in 2^-15, that a code of each length takes.
const SHARE: [u64; 16] = {
    let mut shares = [0; 16];
    let mut bits = 1;
    while bits < 16 {
        shares[bits] = 1 << (15 - bits);
        bits += 1;
    }
    shares
};
/// The sum of the shares of a complete code.
const COMPLETE: u64 = 1 << 15;

/// What a fixed literal/length code says, by its 9 bits as they come: bits to skip, extra bits included, and what follows.
const FIXED: [(u8, Next); 512] = {
    let mut table = [(0, Next::Refused); 512];
    let mut bits = 0;
    while bits < 512 {
        let code = (bits as u16).reverse_bits() >> 7;
        let (seven, eight) = (code >> 2, code >> 1);
        table[bits] = if seven < 24 {
            let extra = if seven < 9 { 0 } else { (seven - 5) / 4 };
            (7 + extra as u8, if seven == 0 { Next::End } else { Next::Distance })
        } else if eight < 192 {
            (8, Next::Symbol)
        } else if eight < 198 {
            (8 + [4, 5, 5, 5, 5, 0][eight as usize - 192], Next::Distance)
        } else if eight < 200 {
            (0, Next::Refused)
        } else {
            (9, Next::Symbol)
        };
        bits += 1;
    }
    table
};

/// What comes behind a literal/length code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Symbol,
    Distance,
    End,
    Refused,
}

/// The bits of a stream, zeros behind its end.
struct Bits<'a> {
    source: &'a [u8],
    /// The first byte that is not in the buffer.
    at: usize,
    buffer: u64,
    count: u32,
}

impl Bits<'_> {
    /// Makes it 56 bits at least.
    #[inline(always)]
    fn refill(&mut self) {
        if let Some(word) = self.source.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            self.buffer |= u64::from_le_bytes(*word) << self.count;
            self.at += (63 - self.count as usize) >> 3;
            self.count |= 56;
            return;
        }
        while self.count < 56 {
            let byte = self.source.get(self.at).copied().unwrap_or(0);
            self.buffer |= u64::from(byte) << self.count;
            self.at += 1;
            self.count += 8;
        }
    }

    /// The next bits, at most as many as a refill left.
    #[inline(always)]
    fn take(&mut self, bits: u32) -> usize {
        let value = self.buffer & ((1 << bits) - 1);
        self.skip(bits);
        value as usize
    }

    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.buffer >>= bits;
        self.count -= bits;
    }

    fn skip_stored(&mut self) -> bool {
        let at = self.at - self.count as usize / 8;
        let Some(&[a, b, c, d]) = self.source.get(at..).and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        let (length, inverse) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        (self.at, self.buffer, self.count) = (at + 4 + usize::from(length), 0, 0);
        length == !inverse
    }

    fn walk_fixed(&mut self) -> bool {
        while self.at <= self.source.len() + 8 {
            self.refill();
            let (bits, next) = FIXED[self.buffer as usize % 512];
            self.skip(bits.into());
            match next {
                Next::Symbol => {}
                Next::Distance => {
                    let distance = (self.take(5) as u8).reverse_bits() >> 3;
                    if distance > 29 {
                        return false;
                    }
                    self.skip((u32::from(distance) / 2).saturating_sub(1));
                }
                Next::End => return true,
                Next::Refused => return false,
            }
        }
        false
    }

    /// Whether the codes of the dynamic block that begins here have a meaning for all bits.
    fn has_complete_codes(mut self) -> bool {
        self.refill();
        let (literals, distances, orders) = (self.take(5) + 257, self.take(5) + 1, self.take(4) + 4);
        if literals > 286 || distances > 30 {
            return false;
        }
        let mut lengths = [0; 19];
        for &place in &ORDER[..orders] {
            if self.count < 3 {
                self.refill();
            }
            lengths[place] = self.take(3);
        }
        let Some(table) = code_length_table(&lengths) else { return false };
        let all = literals + distances;
        let (mut done, mut before) = (0, None);
        // The shares of literals in the lower half, those of distances in the upper.
        let mut shares = 0;
        while done < all {
            if self.count < 14 {
                self.refill();
            }
            let entry = table[self.buffer as usize % 128];
            self.skip(u32::from(entry) & 7);
            let length = entry >> 3;
            if length < 16 {
                shares += SHARE[usize::from(length)] << if done < literals { 0 } else { 32 };
                (done, before) = (done + 1, Some(length));
                continue;
            }
            let (length, times) = match (length, before) {
                (16, Some(length)) => (length, 3 + self.take(2)),
                (16, None) => return false,
                (17, _) => (0, 3 + self.take(3)),
                _ => (0, 11 + self.take(7)),
            };
            // A run may go on from the one code to the other.
            let of_literals = (done + times).min(literals).saturating_sub(done);
            let share = SHARE[usize::from(length)];
            shares += share * of_literals as u64 + ((share * (times - of_literals) as u64) << 32);
            (done, before) = (done + times, Some(length));
        }
        done == all && shares == COMPLETE << 32 | COMPLETE
    }
}

/// By seven bits as they come: symbol · 8 + bits. `None`: not complete.
fn code_length_table(lengths: &[usize; 19]) -> Option<[u8; 128]> {
    let mut counts = [0; 8];
    lengths.iter().for_each(|&bits| counts[bits & 7] += 1);
    // The next code of each length, and behind the last one, in 2^-7.
    let (mut next, mut code) = ([0; 8], 0);
    for bits in 1..8 {
        next[bits] = code;
        code += counts[bits] * (128 >> bits);
    }
    if code != 128 {
        return None;
    }
    let mut table = [0; 128];
    for (symbol, &bits) in lengths.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        let mut place = usize::from((next[bits & 7] as u8).reverse_bits() >> 1);
        next[bits & 7] += 128 >> bits;
        while place < 128 {
            table[place] = (symbol << 3 | bits) as u8;
            place += 1 << bits;
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits from the first to the last: numbers low bit first, codes high bit first.
    #[derive(Default)]
    struct Writer(Vec<u8>, u32);

    impl Writer {
        fn number(mut self, value: usize, bits: u32) -> Writer {
            for bit in 0..bits {
                if self.1.is_multiple_of(8) {
                    self.0.push(0);
                }
                *self.0.last_mut().expect("pushed") |= ((value >> bit & 1) as u8) << (self.1 % 8);
                self.1 += 1;
            }
            self
        }

        fn code(self, value: usize, bits: u32) -> Writer {
            (0..bits).rev().fold(self, |writer, bit| writer.number(value >> bit & 1, 1))
        }
    }

    fn raw(writer: Writer) -> bool {
        is_plain(Format::Raw, &writer.0)
    }

    #[test]
    fn fixed_symbols_without_a_meaning_are_found() {
        let block = || Writer::default().number(1, 1).number(1, 2).code(48 + 65, 8).code(400 + 3, 9);
        assert!(raw(block().code(0, 7)));
        // Length 258 (285: no extra bits), distance 1; then 286.
        assert!(raw(block().code(197, 8).code(0, 5).code(0, 7)));
        assert!(!raw(block().code(198, 8).code(0, 5).code(0, 7)));
        assert!(!raw(block().code(197, 8).code(30, 5).code(0, 7)));
        // Extra bits are skipped: all ones, of length 277 (4) and of distance 29 (13).
        assert!(raw(block().code(21, 7).number(15, 4).code(29, 5).number(0x1fff, 13).code(0, 7)));
        assert!(raw(block().code(192, 8).number(15, 4).code(0, 5).code(0, 7)));
        assert!(raw(block().code(193, 8).number(31, 5).code(4, 5).number(1, 1).code(0, 7)));
    }

    /// A dynamic block whose literals 0 to 255 and end have a code of 9 bits each but for one of 1 bit, and these distances.
    fn dynamic(last: usize, literals: usize, distances: &[usize]) -> Writer {
        // Code lengths 0 (1 bit: 0), 1 (2 bits: 10), 8 (3 bits: 110), 18 (3 bits: 111).
        let mut writer = Writer::default().number(last, 1).number(2, 2);
        writer = writer.number(literals - 257, 5).number(distances.len() - 1, 5).number(18 - 4, 4);
        for symbol in &ORDER[..18] {
            writer = writer.number(
                match symbol {
                    0 => 1,
                    1 => 2,
                    8 | 18 => 3,
                    _ => 0,
                },
                3,
            );
        }
        // 128 lengths of 8 make a half, 256 has the other.
        writer = (0..128).fold(writer, |writer, _| writer.code(6, 3));
        writer = writer.code(7, 3).number(128 - 11, 7).code(2, 2);
        writer = (257..literals).fold(writer, |writer, _| writer.code(0, 1));
        distances.iter().fold(writer, |writer, length| match length {
            0 => writer.code(0, 1),
            1 => writer.code(2, 2),
            _ => writer.code(6, 3),
        })
    }

    #[test]
    fn codes_that_leave_something_over_are_found() {
        assert!(raw(dynamic(1, 257, &[1, 1])));
        assert!(raw(dynamic(1, 286, &[1, 1])));
        assert!(!raw(dynamic(1, 287, &[1, 1])));
        assert!(!raw(dynamic(1, 257, &[1])));
        assert!(!raw(dynamic(1, 257, &[0])));
        assert!(!raw(dynamic(1, 257, &[1, 1, 8])));
        assert!(raw(dynamic(1, 257, &[[1, 1].as_slice(), &[0; 28]].concat())));
        assert!(!raw(dynamic(1, 257, &[[1, 1].as_slice(), &[0; 29]].concat())));
        // What follows a block that is not the last is only known to be right where there is a checksum.
        assert!(!raw(dynamic(0, 257, &[1, 1])));
        let framed = [&[0x78, 0x9c], &dynamic(0, 257, &[1, 1]).0[..]].concat();
        assert!(is_plain(Format::Zlib, &framed));
        let framed = [&[0x78, 0x9c], &dynamic(0, 257, &[1]).0[..]].concat();
        assert!(!is_plain(Format::Zlib, &framed));
    }

    #[test]
    fn stored_blocks_and_gzip_fronts_are_skipped() {
        let blocks = [&[0, 3, 0, 0xfc, 0xff, 1, 2, 3][..], &[1, 0, 0, 0xff, 0xff]].concat();
        assert!(is_plain(Format::Raw, &blocks));
        assert!(!is_plain(Format::Raw, &blocks[..8]));
        assert!(!is_plain(Format::Raw, &[0, 3, 0, 0xfc, 0xfe, 1, 2, 3, 1, 0, 0, 0xff, 0xff]));
        let front = [0x1f, 0x8b, 8, 4 | 8 | 16, 0, 0, 0, 0, 0, 3, 2, 0, 0xaa, 0xbb, b'n', 0, b'c', 0];
        assert!(is_plain(Format::Gzip, &[&front, &blocks[..]].concat()));
        for bytes in 0..front.len() {
            assert!(!is_plain(Format::Gzip, &front[..bytes]));
        }
        assert!(!is_plain(Format::Raw, &[7, 0, 0, 0]));
    }
}
