// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packed streams to unpack: stored blocks, and blocks with the fixed code, where literals stand beside matches.

use super::inflate::{adler32, crc32};
use memlift_spec::Format;

/// Stored blocks of at most `block` bytes.
pub(crate) fn stored(message: &[u8], block: usize) -> Vec<u8> {
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

struct Bits {
    bytes: Vec<u8>,
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

    /// A Huffman code: highest bit first.
    fn code(&mut self, code: u32, length: u32) {
        (0..length).rev().for_each(|place| self.bit(code >> place & 1));
    }

    fn literal(&mut self, symbol: u32) {
        match symbol {
            0..144 => self.code(0x30 + symbol, 8),
            144..256 => self.code(0x190 + symbol - 144, 9),
            256..280 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }
}

/// One block with the fixed code; a byte that comes three times or more is a match with distance 1.
pub(crate) fn fixed(message: &[u8]) -> Vec<u8> {
    let mut bits = Bits { bytes: Vec::new(), count: 0 };
    [1, 1, 0].into_iter().for_each(|bit| bits.bit(bit));
    let mut at = 0;
    while at < message.len() {
        let byte = message[at];
        bits.literal(u32::from(byte));
        at += 1;
        let run = message[at..].iter().take_while(|&&other| other == byte).count().min(10);
        if run >= 3 {
            bits.literal(254 + run as u32);
            bits.code(0, 5);
            at += run;
        }
    }
    bits.literal(256);
    bits.bytes
}

/// Puts the format around a deflate stream of `message`.
pub(crate) fn wrap(format: Format, message: &[u8], stream: Vec<u8>) -> Vec<u8> {
    match format {
        Format::Zlib => [vec![0x78, 0x01], stream, adler32(message).to_be_bytes().to_vec()].concat(),
        Format::Gzip => [
            vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255],
            stream,
            crc32(message).to_le_bytes().to_vec(),
            (message.len() as u32).to_le_bytes().to_vec(),
        ]
        .concat(),
        _ => stream,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Inflated, unpack};
    use super::*;

    #[test]
    fn streams_come_back() {
        let message: Vec<u8> = (0..3000u32).map(|index| (index / 9 * 37) as u8).collect();
        for format in [Format::Deflate, Format::Zlib, Format::Gzip] {
            for stream in [stored(&message, 700), fixed(&message), stored(&message, 65_535)] {
                let packed = wrap(format, &message, stream);
                let read = packed.len();
                assert_eq!(unpack(format, &packed, 3000), Ok(Inflated { bytes: message.clone(), read }));
                assert_eq!(unpack(format, &packed, 2999), Err(memlift_spec::Status::TARGET_TOO_SMALL));
                assert_eq!(
                    unpack(format, &packed[..read - 1], 3000),
                    Err(memlift_spec::Status::CORRUPT_STREAM)
                );
            }
        }
    }
}
