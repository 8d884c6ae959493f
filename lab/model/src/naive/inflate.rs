// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inflate (RFC 1951), one bit at a time.

use super::Inflated;
use super::UnpackError;

struct Bits<'a> {
    source: &'a [u8],
    at: usize,
}

type Result<T> = std::result::Result<T, UnpackError>;

const CORRUPT: UnpackError = UnpackError::Corrupt;

impl Bits<'_> {
    fn bit(&mut self) -> Result<u32> {
        let byte = *self.source.get(self.at / 8).ok_or(CORRUPT)?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Ok(u32::from(bit))
    }

    fn bits(&mut self, count: u32) -> Result<u32> {
        let mut number = 0;
        for place in 0..count {
            number |= self.bit()? << place;
        }
        Ok(number)
    }

    fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }

    fn symbol(&mut self, lengths: &[u8]) -> Result<usize> {
        let (mut code, mut first) = (0, 0);
        for length in 1..=15 {
            code |= self.bit()?;
            let of_length = || (0..lengths.len()).filter(|&symbol| lengths[symbol] == length);
            let count = of_length().count() as u32;
            if code - first < count {
                return of_length().nth((code - first) as usize).ok_or(CORRUPT);
            }
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(CORRUPT)
    }
}

fn match_length(bits: &mut Bits<'_>, symbol: usize) -> Result<usize> {
    let index = symbol - 257;
    Ok(match index {
        0..8 => 3 + index,
        28 => 258,
        8..28 => {
            let extra = index as u32 / 4 - 1;
            ((4 + index % 4) << extra) + 3 + bits.bits(extra)? as usize
        }
        _ => return Err(CORRUPT),
    })
}

fn distance(bits: &mut Bits<'_>, symbol: usize) -> Result<usize> {
    Ok(match symbol {
        0..4 => 1 + symbol,
        4..30 => {
            let extra = symbol as u32 / 2 - 1;
            ((2 + symbol % 2) << extra) + 1 + bits.bits(extra)? as usize
        }
        _ => return Err(CORRUPT),
    })
}

fn dynamic(bits: &mut Bits<'_>) -> Result<(Vec<u8>, Vec<u8>)> {
    const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    let literals = bits.bits(5)? as usize + 257;
    let distances = bits.bits(5)? as usize + 1;
    let mut of_lengths = [0; 19];
    for &place in &ORDER[..bits.bits(4)? as usize + 4] {
        of_lengths[place] = bits.bits(3)? as u8;
    }
    let mut lengths: Vec<u8> = Vec::new();
    while lengths.len() < literals + distances {
        let symbol = bits.symbol(&of_lengths)?;
        let (length, times) = match symbol {
            0..16 => (symbol as u8, 1),
            16 => (*lengths.last().ok_or(CORRUPT)?, 3 + bits.bits(2)?),
            17 => (0, 3 + bits.bits(3)?),
            _ => (0, 11 + bits.bits(7)?),
        };
        lengths.extend((0..times).map(|_| length));
    }
    if lengths.len() > literals + distances {
        return Err(CORRUPT);
    }
    let of_distances = lengths.split_off(literals);
    Ok((lengths, of_distances))
}

/// The message of the stream at the start of `source`, at most `most` bytes.
pub(super) fn inflate(source: &[u8], most: usize) -> Result<Inflated> {
    let mut bits = Bits { source, at: 0 };
    let mut bytes: Vec<u8> = Vec::new();
    let room = |bytes: &[u8], more: usize| {
        if bytes.len() + more > most { Err(UnpackError::TargetTooSmall) } else { Ok(()) }
    };
    loop {
        let last = bits.bit()? == 1;
        let (literals, distances) = match bits.bits(2)? {
            0 => {
                bits.align();
                let (count, complement) = (bits.bits(16)?, bits.bits(16)?);
                if count != !complement & 0xffff {
                    return Err(CORRUPT);
                }
                let begin = bits.at / 8;
                let block = source.get(begin..begin + count as usize).ok_or(CORRUPT)?;
                room(&bytes, block.len())?;
                bytes.extend_from_slice(block);
                bits.at += block.len() * 8;
                (Vec::new(), Vec::new())
            }
            1 => {
                let length = |symbol: usize| match symbol {
                    0..144 => 8,
                    144..256 => 9,
                    256..280 => 7,
                    _ => 8,
                };
                ((0..288).map(length).collect(), vec![5; 30])
            }
            2 => dynamic(&mut bits)?,
            _ => return Err(CORRUPT),
        };
        while !literals.is_empty() {
            match bits.symbol(&literals)? {
                symbol @ 0..256 => {
                    room(&bytes, 1)?;
                    bytes.push(symbol as u8);
                }
                256 => break,
                symbol => {
                    let length = match_length(&mut bits, symbol)?;
                    let symbol = bits.symbol(&distances)?;
                    let back = distance(&mut bits, symbol)?;
                    let begin = bytes.len().checked_sub(back).ok_or(CORRUPT)?;
                    room(&bytes, length)?;
                    (0..length).for_each(|at| bytes.push(bytes[begin + at]));
                }
            }
        }
        if last {
            return Ok(Inflated { bytes, read: bits.at.div_ceil(8) });
        }
    }
}
