// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deflate streams to unpack: stored blocks, and blocks with the fixed code or one of their own, where literals stand
//! beside matches.

/// Stored blocks of at most `block` bytes.
pub fn stored(message: &[u8], block: usize) -> Vec<u8> {
    let blocks = message.len().div_ceil(block).max(1);
    let mut stream = Vec::new();
    for index in 0..blocks {
        let part = &message[(index * block).min(message.len())..((index + 1) * block).min(message.len())];
        let count = part.len() as u16;
        stream.push(u8::from(index + 1 == blocks));
        stream.extend(count.to_le_bytes().into_iter().chain((!count).to_le_bytes()));
        stream.extend_from_slice(part);
    }
    stream
}

/// A stream as it grows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    pub bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    fn bit(&mut self, bit: u32) {
        if self.count.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= (bit as u8) << (self.count % 8);
        }
        self.count += 1;
    }

    /// A number: lowest bit first.
    pub fn number(&mut self, number: u32, count: u32) {
        (0..count).for_each(|place| self.bit(number >> place & 1));
    }

    /// A Huffman code: highest bit first.
    pub fn code(&mut self, code: u32, length: u32) {
        (0..length).rev().for_each(|place| self.bit(code >> place & 1));
    }

    /// A symbol of the fixed code of literals and lengths.
    pub fn literal(&mut self, symbol: u32) {
        match symbol {
            0..144 => self.code(0x30 + symbol, 8),
            144..256 => self.code(0x190 + symbol - 144, 9),
            256..280 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }

    /// A message in some literals' code, and one of distances, where 1 is `zeros` zeros.
    fn runs(&mut self, message: &[u8], literal: impl Fn(&mut Bits, u32), zeros: u32) {
        let mut at = 0;
        while at < message.len() {
            let byte = message[at];
            literal(self, u32::from(byte));
            at += 1;
            let run = message[at..].iter().take_while(|&&other| other == byte).count().min(10);
            if run >= 3 {
                literal(self, 254 + run as u32);
                self.code(0, zeros);
                at += run;
            }
        }
    }
}

/// One block with the fixed code; a byte that comes three times or more is a match with distance 1.
pub fn fixed(message: &[u8]) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.number(1 | 1 << 1, 3);
    bits.runs(message, Bits::literal, 5);
    bits.literal(256);
    bits.bytes
}

/// One block with a code of its own, the same for any message: bytes of 8 and 9 bits, distances of 4 and 5. A byte that
/// comes three times or more is a match with distance 1.
pub fn dynamic(message: &[u8]) -> Vec<u8> {
    /// In a code of 286 symbols those from here on have 9 bits, which makes it complete.
    const LONG: u32 = 226;
    let mut bits = Bits::default();
    bits.number(1 | 2 << 1, 3);
    bits.number(286 - 257, 5);
    bits.number(30 - 1, 5);
    // Lengths' code: 2 bits each for 4, 5, 8, 9, which stand at places 11, 9, 4, 6 of 19.
    bits.number(12 - 4, 4);
    for place in 0..12 {
        bits.number(if [4, 6, 9, 11].contains(&place) { 2 } else { 0 }, 3);
    }
    // In order of the symbols, 4 is 00, 5 is 01, 8 is 10, 9 is 11.
    (0..286).for_each(|symbol| bits.code(if symbol < LONG { 2 } else { 3 }, 2));
    (0..30).for_each(|symbol| bits.code(u32::from(symbol >= 2), 2));
    let literal = |bits: &mut Bits, symbol: u32| match symbol {
        0..LONG => bits.code(symbol, 8),
        _ => bits.code(2 * LONG + symbol - LONG, 9),
    };
    bits.runs(message, literal, 4);
    literal(&mut bits, 256);
    bits.bytes
}

#[cfg(test)]
mod tests {
    use super::super::{Inflated, UnpackError, pack, unpack, wrap};
    use super::*;
    use memlift_spec::Format;

    #[test]
    fn streams_come_back() {
        let message: Vec<u8> = (0..3000u32).map(|index| (index / 9 * 37) as u8).collect();
        for format in [Format::Deflate, Format::Zlib, Format::Gzip] {
            let streams =
                [stored(&message, 700), fixed(&message), dynamic(&message), stored(&message, 65_535)];
            for stream in streams {
                let packed = wrap(format, &message, stream);
                let read = packed.len();
                assert_eq!(unpack(format, &packed, 3000), Ok(Inflated { bytes: message.clone(), read }));
                assert_eq!(unpack(format, &packed, 2999), Err(UnpackError::TargetTooSmall));
                assert_eq!(unpack(format, &packed[..read - 1], 3000), Err(UnpackError::Corrupt));
            }
        }
    }

    #[test]
    fn what_is_packed_comes_back_in_every_format() {
        for bytes in [0, 1, 14, 15, 16, 269, 270, 271, 300, 65_535, 65_536, 300_000] {
            let message: Vec<u8> =
                (0..bytes).map(|index: u32| (index.wrapping_mul(index) >> 5) as u8).collect();
            for format in Format::ALL {
                let packed = pack(format, &message);
                let again = unpack(format, &packed, message.len());
                assert_eq!(again, Ok(Inflated { bytes: message.clone(), read: packed.len() }), "{format:?}");
            }
        }
    }
}
