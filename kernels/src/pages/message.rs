// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of any size as packed pages: the format `pages` of the operations PACK and UNPACK.
//!
//! - **Layout** one piece per 4096 bytes of the message, the last one for the rest: a u16 (bits 0–12: bytes that follow, 1 to 4096; bits
//!   13–15: kind), then the bytes. Kind 0: a packed page. Kind 1: the 8 bytes that the page repeats. Kind 2: the page itself, or the
//!   last, shorter piece. Kind 3, without bytes: the end.
//! - **Order** checks of a piece: its header is invalid or its bytes are cut off (corrupt), the target has no room for its contents, its
//!   bytes are no page (corrupt).
//! - **Not here** the packing of a page (the parent module).

use super::{Effort, MAX_PACKED_BYTES, PAGE_BYTES, Packed, Packer, fill};

const HEADER_BYTES: usize = 2;
const LENGTH_BITS: u32 = 13;
const PACKED: u16 = 0;
const WORD: u16 = 1;
const PLAIN: u16 = 2;
const END: u16 = 3;

/// Reason why a message was not unpacked. The target's contents are then undefined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The target is too small.
    #[error("the target is too small for the message: give it more room")]
    TargetTooSmall,
    /// The bytes are no packed message, or only a part of one.
    #[error("the packed pages are corrupt or cut off: get them again")]
    Corrupt,
}

/// Returns the most bytes that a packed message of `bytes` bytes takes.
pub const fn bound(bytes: usize) -> usize {
    bytes + (bytes.div_ceil(PAGE_BYTES) + 1) * HEADER_BYTES
}

/// Writes one piece; returns the rest of the target.
fn piece<'a>(target: &'a mut [u8], kind: u16, bytes: &[u8]) -> Option<&'a mut [u8]> {
    let (header, rest) = target.split_first_chunk_mut::<HEADER_BYTES>()?;
    let (body, rest) = rest.split_at_mut_checked(bytes.len())?;
    *header = (kind << LENGTH_BITS | bytes.len() as u16).to_le_bytes();
    body.copy_from_slice(bytes);
    Some(rest)
}

impl Packer {
    /// Packs a message; returns the bytes written, or `None` if the target has too little room ([`bound`] is enough).
    pub fn pack_message(&mut self, source: &[u8], target: &mut [u8], effort: Effort) -> Option<usize> {
        let room = target.len();
        let mut rest = target;
        let (pages, last) = source.as_chunks::<PAGE_BYTES>();
        let mut packed = [0; PAGE_BYTES];
        for page in pages {
            rest = match self.pack(page, &mut packed, effort) {
                Packed::Filled(word) => piece(rest, WORD, &word.to_le_bytes())?,
                Packed::Bytes(bytes) => piece(rest, PACKED, packed.get(..bytes)?)?,
                Packed::Raw => piece(rest, PLAIN, page)?,
            };
        }
        if !last.is_empty() {
            rest = piece(rest, PLAIN, last)?;
        }
        rest = piece(rest, END, &[])?;
        Some(room - rest.len())
    }

    /// Unpacks the message at the start of `source`; returns the bytes read and written.
    ///
    /// # Errors
    ///
    /// [`MessageError`] if the message is corrupt, or does not fit into the target.
    pub fn unpack_message(
        &mut self,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<(usize, usize), MessageError> {
        use MessageError::{Corrupt, TargetTooSmall};
        let (mut left, mut written, mut short) = (source, 0, false);
        loop {
            let (header, rest) = left.split_first_chunk::<HEADER_BYTES>().ok_or(Corrupt)?;
            let header = u16::from_le_bytes(*header);
            let (kind, bytes) = (header >> LENGTH_BITS, usize::from(header & ((1 << LENGTH_BITS) - 1)));
            let fits = match kind {
                PACKED => (1..=MAX_PACKED_BYTES).contains(&bytes),
                WORD => bytes == size_of::<u64>(),
                PLAIN => (1..=PAGE_BYTES).contains(&bytes),
                END if bytes == 0 => return Ok((source.len() - rest.len(), written)),
                _ => false,
            };
            // After a piece that is not a whole page only the end may follow.
            if !fits || short {
                return Err(Corrupt);
            }
            short = bytes < PAGE_BYTES && kind == PLAIN;
            let (body, rest) = rest.split_at_checked(bytes).ok_or(Corrupt)?;
            let room = target.get_mut(written..).unwrap_or_default();
            if kind == PLAIN {
                room.get_mut(..bytes).ok_or(TargetTooSmall)?.copy_from_slice(body);
                written += bytes;
            } else {
                let page = room.first_chunk_mut::<PAGE_BYTES>().ok_or(TargetTooSmall)?;
                match body.first_chunk::<8>() {
                    Some(word) if kind == WORD => fill(u64::from_le_bytes(*word), page),
                    _ => self.unpack(body, page).map_err(|_| Corrupt)?,
                }
                written += PAGE_BYTES;
            }
            left = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_come_back() {
        let mut packer = Packer::new();
        let mut random = 1u64;
        let mut message = vec![0; 5 * PAGE_BYTES + 77];
        for (at, byte) in message.iter_mut().enumerate() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = match at / PAGE_BYTES {
                0 => 7,
                1 => (random >> 56) as u8,
                _ => (at / 9 % 40) as u8,
            };
        }
        for bytes in [0, 1, 4095, 4096, 4097, 8192, 3 * PAGE_BYTES + 1, message.len()] {
            let message = &message[..bytes];
            for effort in [Effort::Fast, Effort::Cold] {
                let (mut packed, mut again) = (vec![0; bound(bytes)], vec![0; bytes]);
                let length = packer.pack_message(message, &mut packed, effort).expect("the bound is enough");
                assert_eq!(packer.unpack_message(&packed[..length], &mut again), Ok((length, bytes)));
                assert!(again == message);
                packed.truncate(length);
                packed.extend([0xaa; 3]);
                assert_eq!(packer.unpack_message(&packed, &mut again), Ok((length, bytes)));
                let less = packer.unpack_message(&packed[..length - 1], &mut again);
                assert_eq!(less, Err(MessageError::Corrupt), "{bytes}");
                packed.resize(bound(bytes), 0);
                assert_eq!(packer.pack_message(message, &mut packed[..length - 1], effort), None, "{bytes}");
                if let Some(less) = again.len().checked_sub(1) {
                    packer.pack_message(message, &mut packed, effort).expect("room");
                    let less = packer.unpack_message(&packed[..length], &mut again[..less]);
                    assert_eq!(less, Err(MessageError::TargetTooSmall));
                }
            }
        }
    }
}
