// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frame around a deflate stream: none, that of zlib (RFC 1950), or that of gzip (RFC 1952).

use super::bits::Bits;
use super::effort::Effort;
use super::segment::SEGMENT_BYTES;

/// The frame around the deflate stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// No frame (RFC 1951).
    Raw,
    /// Two bytes before the stream, an Adler-32 after it (RFC 1950).
    Zlib,
    /// Ten bytes before the stream, a CRC-32 and the length after it (RFC 1952).
    Gzip,
}

impl Format {
    /// Returns the bytes of the frame, before and after the stream.
    const fn bytes(self) -> usize {
        match self {
            Format::Raw => 0,
            Format::Zlib => 2 + 4,
            Format::Gzip => 10 + 8,
        }
    }
}

/// Returns the most bytes that a message of `bytes` bytes takes when it is packed in one call, with any effort.
pub const fn bound(format: Format, bytes: usize) -> usize {
    let blocks = if bytes == 0 { 1 } else { bytes.div_ceil(SEGMENT_BYTES) };
    format.bytes() + bytes + 5 * blocks
}

/// Writes the bytes before the stream. `window_bits` is 8–15; only zlib's format has a field for it.
pub fn front(format: Format, effort: Effort, window_bits: u32, bits: &mut Bits<'_>) {
    match format {
        Format::Raw => {}
        Format::Zlib => {
            let method = (window_bits - 8) << 4 | 8;
            let level = match effort {
                Effort::Fast => 0,
                Effort::Default => 1,
                Effort::Small => 2,
            };
            let word = method << 8 | level << 6;
            bits.bytes_from(&((word + 31 - word % 31) as u16).to_be_bytes());
        }
        Format::Gzip => {
            let extra = match effort {
                Effort::Fast => 4,
                Effort::Default | Effort::Small => 0,
            };
            bits.bytes_from(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, extra, 3]);
        }
    }
}

/// Writes the bytes after the stream. The writer must be at a whole byte.
pub fn back(format: Format, sum: u32, total: u64, bits: &mut Bits<'_>) {
    match format {
        Format::Raw => {}
        Format::Zlib => bits.bytes_from(&sum.to_be_bytes()),
        Format::Gzip => {
            bits.bytes_from(&sum.to_le_bytes());
            bits.bytes_from(&(total as u32).to_le_bytes());
        }
    }
}
