// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sealing, packing and checking, written down from their standards, one byte or bit at a time.
//!
//! - **Flow** `gcm` on `aes` · `unpack` ──▶ `wrapper` ──▶ `inflate`, or `lz4`, `zstd`, `pages` · `pack` ──▶ stored bytes in the format
//!   that was asked for; `streams` also makes what is less plain, for unpackers to be tried on
//! - **Not here** anything fast, or in constant time: keys in here are tests' keys

mod aes;
mod checksum;
mod gcm;
mod inflate;
mod lz4;
mod pages;
mod streams;
mod wrapper;
mod zstd;

pub(crate) use aes::Aes;
pub use checksum::{adler32, crc32, crc32c};
pub use gcm::gcm;
#[cfg(test)]
pub(crate) use gcm::{CASE_3, bytes};
pub(crate) use gcm::{Multiplier, blocks, times};
pub(crate) use lz4::unpack_to as unpack_lz4;
pub(crate) use streams::Bits;
pub use streams::{dynamic, fixed, stored};
pub use wrapper::wrap;

use memlift_spec::Format;

/// Reason that a stream is not unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnpackError {
    /// The stream is corrupt, truncated or of another format.
    Corrupt,
    /// The message is longer than there is room.
    TargetTooSmall,
    /// A Zstandard frame has compressed blocks, checksums or dictionaries, which is more than is known here.
    Unknown,
}

impl std::fmt::Display for UnpackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            UnpackError::Corrupt => "the packed stream is corrupt, truncated or of another format",
            UnpackError::TargetTooSmall => "the target is too small for the result",
            UnpackError::Unknown => "the packed stream uses what the model does not know",
        })
    }
}

impl std::error::Error for UnpackError {}

/// A message and how much of the source its stream took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inflated {
    /// Bytes of the unpacked message.
    pub bytes: Vec<u8>,
    /// Bytes of the source that belong to the stream.
    pub read: usize,
}

/// Makes a stream of `message` that any decoder reads, without trying to make it smaller.
pub fn pack(format: Format, message: &[u8]) -> Vec<u8> {
    match format {
        Format::Lz4 => lz4::pack(message),
        Format::Zstd => zstd::pack(message),
        Format::Pages => pages::pack(message),
        _ => wrap(format, message, stored(message, 65_535)),
    }
}

/// The message at the start of `source`, at most `most` bytes.
///
/// # Errors
///
/// [`UnpackError`].
pub fn unpack(format: Format, source: &[u8], most: usize) -> Result<Inflated, UnpackError> {
    match format {
        Format::Lz4 => lz4::unpack(source, most),
        Format::Zstd => zstd::unpack(source, most),
        Format::Pages => pages::unpack(source, most),
        _ => wrapper::unwrap(format, source, most),
    }
}
