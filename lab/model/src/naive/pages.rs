// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages in packed pages, number by number.
//!
//! - **Layout** pieces: u16 (bits 0–12 bytes, 13–15 kind), bytes. Kind 0 is a packed page (its first byte says how), 1 a word
//!   of 8 bytes that the page repeats, 2 the bytes themselves: 4096, or fewer at the end, 3 the end
//! - **Not here** pages that Zstandard packed, unless in blocks that `zstd` knows
//!
//! Source: the page format of this project (`kernels/src/page`), written down a second time from its layout.

use super::UnpackError;
use super::{Inflated, lz4, zstd};

const CORRUPT: UnpackError = UnpackError::Corrupt;
const PAGE: usize = 4096;
/// A page that takes more is not packed.
const MOST: usize = 3561;

/// Pages that repeat a word, and plain ones.
pub(super) fn pack(message: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for piece in message.chunks(PAGE) {
        let repeats = piece.len() == PAGE && piece.chunks(8).all(|word| word == &piece[..8]);
        let (kind, bytes) = if repeats { (1, &piece[..8]) } else { (2, piece) };
        stream.extend(((kind << 13) + bytes.len() as u16).to_le_bytes());
        stream.extend(bytes);
    }
    stream.extend((3u16 << 13).to_le_bytes());
    stream
}

/// The message at the start of `source`.
pub(super) fn unpack(source: &[u8], most: usize) -> Result<Inflated, UnpackError> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    loop {
        let header = source.get(at..at + 2).ok_or(CORRUPT)?;
        let header = usize::from(header[0]) + 256 * usize::from(header[1]);
        let (kind, length) = (header / 8192, header % 8192);
        if (kind, length) == (3, 0) {
            return Ok(Inflated { bytes, read: at + 2 });
        }
        let possible = match kind {
            0 => length > 0 && length <= MOST,
            1 => length == 8,
            2 => length > 0 && length <= PAGE,
            _ => false,
        };
        let body = source
            .get(at + 2..at + 2 + length)
            .filter(|_| possible && bytes.len() % PAGE == 0)
            .ok_or(CORRUPT)?;
        if bytes.len() + if kind == 2 { length } else { PAGE } > most {
            return Err(UnpackError::TargetTooSmall);
        }
        match kind {
            0 => bytes.extend(page(body)?),
            1 => bytes.extend(body.repeat(PAGE / 8)),
            _ => bytes.extend(body),
        }
        at += 2 + length;
    }
}

/// The change of the page's numbers before it was packed.
enum Numbers {
    Nothing,
    /// All first bytes of numbers of so many bytes, then all second ones, and so on.
    Planes(usize),
    /// The same of the differences between neighbours.
    Differences(usize),
}

/// One packed page.
fn page(packed: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let (&method, body) = packed.split_first().ok_or(CORRUPT)?;
    let numbers = match method {
        1 | 11 => Numbers::Nothing,
        2 => Numbers::Planes(2),
        3 | 12 => Numbers::Planes(4),
        4 | 13 => Numbers::Planes(8),
        5 | 14 => Numbers::Differences(4),
        6 | 15 => Numbers::Differences(8),
        7 => return frames(body, 4, false),
        8 => return frames(body, 8, false),
        9 => return frames(body, 4, true),
        10 => return frames(body, 8, true),
        16 => return decimals(body),
        _ => return Err(CORRUPT),
    };
    let bytes = if method < 11 {
        lz4::unpack(body, PAGE).map_err(|_| CORRUPT)?.bytes
    } else {
        zstd::magicless(body, PAGE)
            .map_err(|status| if status == UnpackError::Unknown { status } else { CORRUPT })?
    };
    if bytes.len() != PAGE {
        return Err(CORRUPT);
    }
    Ok(match numbers {
        Numbers::Nothing => bytes,
        Numbers::Planes(width) => beside(&bytes, width),
        Numbers::Differences(width) => {
            let mut sum = 0u64;
            let differences = beside(&bytes, width);
            let sums = differences.chunks(width).flat_map(|difference| {
                sum = sum.wrapping_add(number(difference));
                sum.to_le_bytes().into_iter().take(width)
            });
            sums.collect()
        }
    })
}

/// Bytes of numbers that lie in planes, beside each other.
fn beside(planes: &[u8], width: usize) -> Vec<u8> {
    (0..PAGE).map(|at| planes[at % width * (PAGE / width) + at / width]).collect()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], UnpackError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(CORRUPT)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Frames of reference: blocks of 128 numbers of `width` bytes.
fn frames(body: &[u8], width: usize, differences: bool) -> Result<Vec<u8>, UnpackError> {
    let mut source = Source(body);
    let mut page = Vec::new();
    let mut before = 0u64;
    while page.len() < PAGE {
        let header = source.take(2)?;
        let (bits, zigzag) = (usize::from(header[0] % 128), header[0] >= 128);
        if bits > 8 * width {
            return Err(CORRUPT);
        }
        let base = if zigzag { 0 } else { number(source.take(width)?) };
        let packed = source.take(16 * bits)?;
        // Lanes of `width` bytes stand side by side in 16; each is a stream of bits, lowest first.
        let lanes = 16 / width;
        let bit = |lane: usize, place: usize| {
            let (word, within) = (place / (8 * width), place % (8 * width));
            let byte = packed[(word * lanes + lane) * width + within / 8];
            u64::from(byte >> (within % 8) & 1)
        };
        let mut numbers: Vec<u64> = (0..128)
            .map(|index| {
                let (row, lane) = (index / lanes, index % lanes);
                (0..bits).map(|place| bit(lane, row * bits + place) << place).sum()
            })
            .collect();
        for _ in 0..header[1] {
            let exception = source.take(1 + width)?;
            *numbers.get_mut(usize::from(exception[0])).ok_or(CORRUPT)? = number(&exception[1..]);
        }
        for value in numbers {
            let value =
                if zigzag { value >> 1 ^ (value & 1).wrapping_neg() } else { value.wrapping_add(base) };
            before = if differences { before.wrapping_add(value) } else { value };
            page.extend(before.to_le_bytes().into_iter().take(width));
        }
    }
    if source.0.is_empty() { Ok(page) } else { Err(CORRUPT) }
}

/// Integers that were floating-point numbers times a power of ten, and the numbers that were none.
fn decimals(body: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let mut source = Source(body);
    let header = source.take(3)?;
    if header[0] > 9 {
        return Err(CORRUPT);
    }
    let power = 10f64.powi(i32::from(header[0]));
    let exceptions: Vec<&[u8]> =
        (0..number(&header[1..])).map(|_| source.take(10)).collect::<Result<_, _>>()?;
    let integers = frames(source.0, 8, false)?;
    let mut page: Vec<u8> = integers
        .chunks(8)
        .flat_map(|integer| {
            let integer = (number(integer) ^ 1 << 63) as i64;
            (integer as f64 / power).to_bits().to_le_bytes()
        })
        .collect();
    for exception in exceptions {
        let at = 8 * number(&exception[..2]) as usize;
        page.get_mut(at..at + 8).ok_or(CORRUPT)?.copy_from_slice(&exception[2..]);
    }
    Ok(page)
}
