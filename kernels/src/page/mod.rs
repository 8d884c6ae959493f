// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of 4 KiB, packed by what they hold: [`Packer`].
//!
//! Flow    page ──one word repeated?──▶ [`Packed::Filled`]; else packed ──▶ [`Packed::Bytes`]; not worth it ──▶ [`Packed::Raw`]
//! Layout  a packed page is one method byte, then what the method says; its length travels apart
//! Owner   a [`Packer`] allocates in `new` and never again: it also runs in signal handlers. One per thread
//! Not here where packed pages are kept
use crate::lz4::Lz4;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page that takes more than this many bytes packed is left alone: 4096 / 1.15.
pub const MAX_PACKED_BYTES: usize = 3561;

/// The method bytes of packed pages.
mod method {
    pub(super) const LZ4: u8 = 1;
}

/// How much time a page is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Packs in some microseconds and unpacks in about one.
    Fast,
    /// For a page that was not wanted for long: may take ten times as long to unpack where that saves a quarter.
    Cold,
}

/// What became of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packed {
    /// The page is this word, repeated.
    Filled(u64),
    /// The page is in the first that many bytes of the target; at most [`MAX_PACKED_BYTES`].
    Bytes(usize),
    /// Packing would save less than 13 %: leave the page alone.
    Raw,
}

/// Why bytes are not a page. What the target holds then is undefined, but nothing beside it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// Not a packed page, or not all of it.
    #[error("the packed page is corrupt or cut off: its owner must end, or read it from elsewhere")]
    Corrupt,
}

/// Packs and unpacks pages: keep one per thread.
pub struct Packer {
    lz4: Lz4,
    room: [u8; 4608],
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new()
    }
}

/// The word that the page repeats, if it does.
pub fn filled(page: &[u8; PAGE_BYTES]) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = words[0];
    // The last word differs in most pages that are not filled.
    (words[511] == first && words.iter().all(|word| *word == first)).then(|| u64::from_le_bytes(first))
}

/// Writes the page that [`filled`] gave the word for.
pub fn fill(word: u64, page: &mut [u8; PAGE_BYTES]) {
    page.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
}

/// The checksum (CRC-32C) of a tag and a page.
pub fn checksum(tag: u64, page: &[u8; PAGE_BYTES]) -> u32 {
    let crc32c = crate::active().crc32c;
    let tag = tag.to_le_bytes();
    // SAFETY: both are borrowed for the calls, and as long as said.
    unsafe { crc32c(page.as_ptr(), PAGE_BYTES, crc32c(tag.as_ptr(), tag.len(), 0)) }
}

impl Packer {
    /// Allocates what packing needs.
    pub fn new() -> Packer {
        Packer { lz4: Lz4::new(), room: [0; 4608] }
    }

    /// Packs one page.
    pub fn pack(&mut self, page: &[u8; PAGE_BYTES], target: &mut [u8; PAGE_BYTES], effort: Effort) -> Packed {
        if let Some(word) = filled(page) {
            return Packed::Filled(word);
        }
        let _ = effort;
        match self.lz4.pack(page, &mut self.room) {
            Ok(bytes) if bytes < MAX_PACKED_BYTES => {
                target[0] = method::LZ4;
                target[1..=bytes].copy_from_slice(&self.room[..bytes]);
                Packed::Bytes(1 + bytes)
            }
            _ => Packed::Raw,
        }
    }

    /// Unpacks what [`Packer::pack`] called [`Packed::Bytes`].
    ///
    /// # Errors
    ///
    /// [`PageError::Corrupt`].
    pub fn unpack(&mut self, packed: &[u8], page: &mut [u8; PAGE_BYTES]) -> Result<(), PageError> {
        match packed {
            [method::LZ4, block @ ..] if self.lz4.unpack(block, page) == Ok(PAGE_BYTES) => Ok(()),
            _ => Err(PageError::Corrupt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back() {
        let mut packer = Packer::new();
        let (mut target, mut again) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        let mut page = [0; PAGE_BYTES];
        fill(0x0123_4567_89ab_cdef, &mut page);
        assert_eq!(packer.pack(&page, &mut target, Effort::Fast), Packed::Filled(0x0123_4567_89ab_cdef));
        for (index, byte) in page.iter_mut().enumerate() {
            *byte = (index / 7 % 50) as u8;
        }
        let Packed::Bytes(bytes) = packer.pack(&page, &mut target, Effort::Fast) else {
            panic!("it repeats")
        };
        assert!(bytes < 1000);
        packer.unpack(&target[..bytes], &mut again).expect("our own bytes");
        assert_eq!(page, again);
    }
}
