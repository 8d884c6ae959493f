// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes before and behind a deflate stream: zlib (RFC 1950), one member of gzip (RFC 1952), or nothing.
//!
//! - **Layout** zlib: 2 bytes, a multiple of 31 as a big-endian number · stream · Adler-32 big endian
//!   gzip: 1f 8b 08 · flags u8 · 6 bytes · extra field, name, comment, header's CRC, as flags say · stream · CRC-32
//!   u32 · length u32

use super::checksum::{adler32, crc32};
use super::inflate::inflate;
use super::{Inflated, UnpackError};
use memlift_spec::Format;

const CORRUPT: UnpackError = UnpackError::Corrupt;

/// Puts the format around a deflate stream of `message`.
pub fn wrap(format: Format, message: &[u8], stream: Vec<u8>) -> Vec<u8> {
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

/// Bytes before the stream.
fn front(format: Format, source: &[u8]) -> Result<usize, UnpackError> {
    if format == Format::Deflate {
        return Ok(0);
    }
    let head = source.get(..2).ok_or(CORRUPT)?;
    if format == Format::Zlib {
        let checked = (u32::from(head[0]) << 8 | u32::from(head[1])).is_multiple_of(31);
        let known = head[0] & 15 == 8 && head[0] >> 4 <= 7 && head[1] & 0x20 == 0;
        return if checked && known { Ok(2) } else { Err(CORRUPT) };
    }
    let flags = *source.get(3).ok_or(CORRUPT)?;
    if source[..3] != [0x1f, 0x8b, 8] || flags & 0xe0 != 0 {
        return Err(CORRUPT);
    }
    let mut at = 10;
    if flags & 4 != 0 {
        let length = source.get(at..at + 2).ok_or(CORRUPT)?;
        at += 2 + usize::from(length[0]) + (usize::from(length[1]) << 8);
    }
    for text in [8, 16] {
        if flags & text != 0 {
            let rest = source.get(at..).ok_or(CORRUPT)?;
            at += rest.iter().position(|&byte| byte == 0).ok_or(CORRUPT)? + 1;
        }
    }
    Ok(if flags & 2 != 0 { at + 2 } else { at })
}

/// The message at the start of `source`, at most `most` bytes.
pub(super) fn unwrap(format: Format, source: &[u8], most: usize) -> Result<Inflated, UnpackError> {
    let front = front(format, source)?;
    let back = match format {
        Format::Zlib => 4,
        Format::Gzip => 8,
        _ => 0,
    };
    let end = source.len().checked_sub(back).ok_or(CORRUPT)?;
    let mut done = inflate(source.get(front..end).ok_or(CORRUPT)?, most)?;
    let trailer = &source[front + done.read..front + done.read + back];
    let right = match format {
        Format::Zlib => trailer == adler32(&done.bytes).to_be_bytes(),
        Format::Gzip => {
            let length = (done.bytes.len() as u32).to_le_bytes();
            trailer[..4] == crc32(&done.bytes).to_le_bytes() && trailer[4..] == length
        }
        _ => true,
    };
    done.read += front + back;
    if right { Ok(done) } else { Err(CORRUPT) }
}
