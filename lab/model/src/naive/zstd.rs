// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zstandard frames of raw blocks and of repeated bytes.
//!
//! - **Layout** magic u32 · descriptor u8 · window u8 (unless single segment) · dictionary 0, 1, 2, 4 bytes · content size 0, 1,
//!   2, 4, 8 bytes · blocks: 3 bytes (last:1, kind:2, size:21), then `size` bytes, or one that is repeated
//! - **Not here** compressed blocks, checksums, dictionaries
//!
//! Source: RFC 8878.

use super::Inflated;
use super::UnpackError;

const CORRUPT: UnpackError = UnpackError::Corrupt;
const MAGIC: u32 = 0xfd2f_b528;
/// Most bytes of a block.
const BLOCK_BYTES: usize = 128 * 1024;

/// Raw blocks; the content size is told in 8 bytes.
pub(super) fn pack(message: &[u8]) -> Vec<u8> {
    let mut frame = MAGIC.to_le_bytes().to_vec();
    // Content size of 8 bytes, single segment.
    frame.push(3 << 6 | 1 << 5);
    frame.extend((message.len() as u64).to_le_bytes());
    let blocks = message.len().div_ceil(BLOCK_BYTES).max(1);
    for index in 0..blocks {
        let begin = index * BLOCK_BYTES;
        let block = &message[begin..message.len().min(begin + BLOCK_BYTES)];
        let header = (block.len() as u32) << 3 | u32::from(index + 1 == blocks);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend_from_slice(block);
    }
    frame
}

/// The next `count` bytes.
fn take<'a>(source: &mut &'a [u8], count: usize) -> Result<&'a [u8], UnpackError> {
    let (taken, rest) = source.split_at_checked(count).ok_or(CORRUPT)?;
    *source = rest;
    Ok(taken)
}

fn number(source: &mut &[u8], bytes: usize) -> Result<u64, UnpackError> {
    Ok(take(source, bytes)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// The first frame of `source`.
pub(super) fn unpack(source: &[u8], most: usize) -> Result<Inflated, UnpackError> {
    let mut rest = source;
    let magic = number(&mut rest, 4)? as u32;
    if magic >> 4 == 0x184_d2a5 {
        // A frame to be skipped.
        let bytes = number(&mut rest, 4)? as usize;
        take(&mut rest, bytes)?;
        return Ok(Inflated { bytes: Vec::new(), read: source.len() - rest.len() });
    }
    if magic != MAGIC {
        return Err(CORRUPT);
    }
    let bytes = frame(&mut rest, most)?;
    Ok(Inflated { bytes, read: source.len() - rest.len() })
}

/// All of `source`, a frame without its magic number.
pub(super) fn magicless(mut source: &[u8], most: usize) -> Result<Vec<u8>, UnpackError> {
    let bytes = frame(&mut source, most)?;
    if source.is_empty() { Ok(bytes) } else { Err(CORRUPT) }
}

/// A frame behind its magic number; what follows it is left.
fn frame(rest: &mut &[u8], most: usize) -> Result<Vec<u8>, UnpackError> {
    let descriptor = number(rest, 1)?;
    let single = descriptor >> 5 & 1 == 1;
    if descriptor >> 3 & 1 == 1 {
        return Err(CORRUPT);
    }
    if descriptor & 7 != 0 {
        return Err(UnpackError::Unknown);
    }
    let window = if single { 0 } else { number(rest, 1)? };
    let size = match (descriptor >> 6, single) {
        (0, false) => None,
        (0, true) => Some(number(rest, 1)?),
        (1, _) => Some(number(rest, 2)? + 256),
        (2, _) => Some(number(rest, 4)?),
        _ => Some(number(rest, 8)?),
    };
    let window = if single { size.unwrap_or(0) } else { (8 + (window & 7)) << (window >> 3) << 7 };
    let most_of_block = (BLOCK_BYTES as u64).min(window) as usize;
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let header = number(rest, 3)? as usize;
        let (last, kind, count) = (header & 1 == 1, header >> 1 & 3, header >> 3);
        let block = match kind {
            0 => take(rest, count)?.to_vec(),
            1 => vec![number(rest, 1)? as u8; count],
            2 => return Err(UnpackError::Unknown),
            _ => return Err(CORRUPT),
        };
        if count > most_of_block {
            return Err(CORRUPT);
        }
        if bytes.len() + count > most {
            return Err(UnpackError::TargetTooSmall);
        }
        bytes.extend(block);
        if last {
            break;
        }
    }
    if size.is_some_and(|size| size != bytes.len() as u64) {
        return Err(CORRUPT);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_byte_behind_a_raw_block() {
        let frame = [
            MAGIC.to_le_bytes().to_vec(),
            vec![1 << 5, 7],
            vec![2 << 3, 0, 0, b'a', b'b'],
            vec![5 << 3 | 1 << 1 | 1, 0, 0, b'c', 0xaa],
        ]
        .concat();
        let bytes = b"abccccc".to_vec();
        assert_eq!(unpack(&frame, 7), Ok(Inflated { bytes, read: 15 }));
        assert_eq!(unpack(&frame, 6), Err(UnpackError::TargetTooSmall));
        assert_eq!(unpack(&frame[..14], 7), Err(CORRUPT));
    }
}
