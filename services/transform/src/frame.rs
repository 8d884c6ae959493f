// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Encodes and checks the headers and records of a framed chain. `docs/formats/transform.md` describes the same format for other languages.
//!
//! - **Layout** header: 0 magic `MLFRAME1` · 8 version u16 · 10 header bytes u16 · 12 flags u32 (1 checksums, 2 packed,
//!   4 sealed) · 16 format u8 · 17 zero 3 bytes · 20 block bytes u32 · 24 source bytes u64 · 32 blocks u64 ·
//!   40 zero 20 bytes · 60 CRC-32C of bytes 0..60 u32 · 64 end
//!   record, before each block: 0 number u32 · 4 plain bytes u32 · 8 stored bytes u32 · 12 CRC-32C of the plain
//!   block u32 (flag 1, else 0) · 16 tag 16 bytes (flag 4, else 0) · 32 end; stored bytes follow
//! - **Order** blocks follow each other without gaps; all but the last have `block bytes` plain bytes.
//! - **Sealed** nonce: the first seven bytes of the caller's nonce, the block's number (u32, big endian), 1 for the last block, else 0.
//!   Additional data: the header, the first 16 bytes of the record, the caller's additional data. So blocks cannot be cut, dropped,
//!   swapped or moved to another message without a wrong tag. A sealed block has no checksum in its record, because the checksum would
//!   tell something about the plain bytes.
//!
//! A block whose stored bytes are as many as its plain bytes is stored unpacked.

use crate::Error;
use memlift_offload::Engine;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"MLFRAME1";
const VERSION: u16 = 1;
/// Bytes of a record that are authenticated.
pub(crate) const RECORD_AAD_BYTES: usize = 16;
pub(crate) const FLAG_CRC: u32 = 1;
pub(crate) const FLAG_PACKED: u32 = 2;
pub(crate) const FLAG_SEALED: u32 = 4;

/// Returns the target bytes that always suffice, or `None` if there would be more blocks than a u32 counts.
pub(crate) fn bound(bytes: usize, block_bytes: usize) -> Option<usize> {
    let blocks = blocks(bytes as u64, block_bytes as u64);
    if blocks > u64::from(u32::MAX) {
        return None;
    }
    bytes.checked_add(HEADER_BYTES)?.checked_add((blocks as usize).checked_mul(RECORD_BYTES)?)
}

/// Returns the number of blocks. An empty source has one block, too, so that its end is authenticated.
pub(crate) fn blocks(bytes: u64, block_bytes: u64) -> u64 {
    bytes.div_ceil(block_bytes).max(1)
}

/// Fields of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub flags: u32,
    pub format: u8,
    pub block_bytes: u32,
    pub source_bytes: u64,
    pub blocks: u64,
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has this length")
}

impl Header {
    pub fn to_bytes(self, engine: &Engine) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, 0, *MAGIC);
        put(&mut bytes, 8, VERSION.to_le_bytes());
        put(&mut bytes, 10, (HEADER_BYTES as u16).to_le_bytes());
        put(&mut bytes, 12, self.flags.to_le_bytes());
        put(&mut bytes, 16, [self.format]);
        put(&mut bytes, 20, self.block_bytes.to_le_bytes());
        put(&mut bytes, 24, self.source_bytes.to_le_bytes());
        put(&mut bytes, 32, self.blocks.to_le_bytes());
        let crc = engine.crc32c(&bytes[..60], 0);
        put(&mut bytes, 60, crc.to_le_bytes());
        bytes
    }

    /// Decodes a header and checks everything that does not need a key.
    pub fn from_bytes(engine: &Engine, source: &[u8]) -> Result<Header, Error> {
        let bytes: [u8; HEADER_BYTES] =
            source.get(..HEADER_BYTES).and_then(|bytes| bytes.try_into().ok()).ok_or(Error::Corrupt)?;
        let header = Header {
            flags: u32::from_le_bytes(get(&bytes, 12)),
            format: bytes[16],
            block_bytes: u32::from_le_bytes(get(&bytes, 20)),
            source_bytes: u64::from_le_bytes(get(&bytes, 24)),
            blocks: u64::from_le_bytes(get(&bytes, 32)),
        };
        let block_bytes = header.block_bytes as usize;
        let sized = (crate::BLOCK_BYTES_MIN..=crate::BLOCK_BYTES_MAX).contains(&block_bytes)
            && block_bytes.is_multiple_of(4096)
            && header.blocks == blocks(header.source_bytes, u64::from(header.block_bytes))
            && header.blocks <= u64::from(u32::MAX);
        // A header that `to_bytes` would write differently (its checksum included) is corrupt.
        if header.to_bytes(engine) != bytes || !sized {
            return Err(Error::Corrupt);
        }
        Ok(header)
    }

    /// Returns the plain bytes of block `number`.
    pub fn plain_bytes(&self, number: u64) -> usize {
        let begin = number * u64::from(self.block_bytes);
        (self.source_bytes - begin).min(u64::from(self.block_bytes)) as usize
    }
}

/// Record that stands before a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub number: u32,
    pub plain_bytes: u32,
    pub stored_bytes: u32,
    pub crc: u32,
    pub tag: [u8; 16],
}

impl Record {
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        put(&mut bytes, 0, self.number.to_le_bytes());
        put(&mut bytes, 4, self.plain_bytes.to_le_bytes());
        put(&mut bytes, 8, self.stored_bytes.to_le_bytes());
        put(&mut bytes, 12, self.crc.to_le_bytes());
        put(&mut bytes, 16, self.tag);
        bytes
    }

    /// Decodes the record of block `number` and checks it against the header.
    pub fn from_bytes(source: &[u8], header: &Header, number: u64) -> Result<Record, Error> {
        let bytes: [u8; RECORD_BYTES] =
            source.get(..RECORD_BYTES).and_then(|bytes| bytes.try_into().ok()).ok_or(Error::Corrupt)?;
        let record = Record {
            number: u32::from_le_bytes(get(&bytes, 0)),
            plain_bytes: u32::from_le_bytes(get(&bytes, 4)),
            stored_bytes: u32::from_le_bytes(get(&bytes, 8)),
            crc: u32::from_le_bytes(get(&bytes, 12)),
            tag: get(&bytes, 16),
        };
        let plain = header.plain_bytes(number);
        let fits = record.stored_bytes <= record.plain_bytes
            && (header.flags & FLAG_PACKED != 0 || record.stored_bytes == record.plain_bytes);
        if u64::from(record.number) != number || record.plain_bytes as usize != plain || !fits {
            return Err(Error::Corrupt);
        }
        Ok(record)
    }
}

/// Returns the nonce of one block.
pub(crate) fn nonce(of_message: [u8; 12], number: u64, last: bool) -> [u8; 12] {
    let mut nonce = of_message;
    put(&mut nonce, 7, (number as u32).to_be_bytes());
    nonce[11] = u8::from(last);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_any_byte_changed_is_refused() {
        let engine = Engine::global();
        let header = Header { flags: 6, format: 2, block_bytes: 4096, source_bytes: 10_000, blocks: 3 };
        let bytes = header.to_bytes(engine);
        assert_eq!(Header::from_bytes(engine, &bytes), Ok(header));
        for at in 0..HEADER_BYTES {
            let mut changed = bytes;
            changed[at] ^= 0x10;
            assert_eq!(Header::from_bytes(engine, &changed), Err(Error::Corrupt), "byte {at}");
        }
        assert_eq!(Header::from_bytes(engine, &bytes[..63]), Err(Error::Corrupt));
    }

    #[test]
    fn nonces_differ_by_block_and_by_end() {
        let message = [1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0];
        assert_eq!(nonce(message, 0x0102_0304, true), [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 1]);
        assert_ne!(nonce(message, 1, false), nonce(message, 1, true));
    }
}
