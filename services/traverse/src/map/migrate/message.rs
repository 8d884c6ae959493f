// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages between the source and the target of a migration.
//!
//! - **Layout** 0 CRC-32C of the rest u32 · 4 kind u8 · then the migration's id and the fields, as in `bytes`. To the target: 1
//!   offer · 2 piece · 3 record · 4 seal; to the source: 5 accept · 6 refuse · 7 got · 8 got record · 9 sealed
//! - **Order** a piece carries a version that grows with each sending of any piece, and the target keeps the newest. So a delayed
//!   copy never replaces a later one
//! - **Owner** a message that can be decoded has at most [`MESSAGE_BYTES_MAX`] bytes and encodes to the same bytes

use memlift_offload::Engine;

use crate::map::MapError;
use crate::map::bytes::{Reader, Writer};

/// Bytes of one piece of a range, so small that its packet fits in an Ethernet frame.
pub const PIECE_BYTES: u64 = 1024;
/// Most bytes of one record.
pub const RECORD_BYTES_MAX: usize = 1024;
/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 1100;
/// Most pieces that one message acknowledges.
pub(super) const GOT_MAX: usize = 64;

/// One message of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are named by what they are; the module says what they do")]
pub enum Message {
    /// Offers a range to the target.
    Offer { id: u64, base: u64, bytes: u64 },
    /// A piece of the range; without bytes it is all zero.
    Piece { id: u64, index: u64, version: u32, bytes: Vec<u8> },
    /// A record of the range: part of the data that travels with its bytes.
    Record { id: u64, index: u32, total: u32, bytes: Vec<u8> },
    /// All pieces and records were sent and acknowledged.
    Seal { id: u64, records: u32 },
    /// The target has reserved memory for the range.
    Accept { id: u64 },
    /// The target cannot take the range.
    Refuse { id: u64, why: String },
    /// These pieces have arrived, in these versions.
    Got { id: u64, pieces: Vec<(u64, u32)> },
    /// This record has arrived.
    GotRecord { id: u64, index: u32 },
    /// The whole range has arrived and is durable.
    Sealed { id: u64 },
}

impl Message {
    /// Returns the migration's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        match *self {
            Message::Offer { id, .. }
            | Message::Piece { id, .. }
            | Message::Record { id, .. }
            | Message::Seal { id, .. }
            | Message::Accept { id }
            | Message::Refuse { id, .. }
            | Message::Got { id, .. }
            | Message::GotRecord { id, .. }
            | Message::Sealed { id } => id,
        }
    }

    /// Returns true if the target sends this message to the source.
    #[must_use]
    pub fn is_for_source(&self) -> bool {
        !matches!(
            self,
            Message::Offer { .. } | Message::Piece { .. } | Message::Record { .. } | Message::Seal { .. }
        )
    }

    /// Encodes the message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let (kind, numbers, rest): (u8, Vec<u64>, &[u8]) = match self {
            Message::Offer { base, bytes, .. } => (1, vec![*base, *bytes], &[]),
            Message::Piece { index, version, bytes, .. } => (2, vec![*index, u64::from(*version)], bytes),
            Message::Record { index, total, bytes, .. } => {
                (3, vec![u64::from(*index), u64::from(*total)], bytes)
            }
            Message::Seal { records, .. } => (4, vec![u64::from(*records)], &[]),
            Message::Accept { .. } => (5, vec![], &[]),
            Message::Refuse { why, .. } => (6, vec![], &why.as_bytes()[..why.floor_char_boundary(512)]),
            Message::Got { pieces, .. } => {
                (7, pieces.iter().flat_map(|(index, version)| [*index, u64::from(*version)]).collect(), &[])
            }
            Message::GotRecord { index, .. } => (8, vec![u64::from(*index)], &[]),
            Message::Sealed { .. } => (9, vec![], &[]),
        };
        writer.bytes.extend([0; 4]);
        writer.bytes.push(kind);
        writer.number(self.id());
        for number in numbers {
            writer.number(number);
        }
        writer.bytes.extend(rest);
        let crc = Engine::global().crc32c(&writer.bytes[4..], 0);
        writer.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        writer.bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// [`MapError::Encoding`]
    pub fn decode(bytes: &[u8]) -> Result<Message, MapError> {
        let mut reader = Reader::new(bytes);
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(reader.fault("a message"));
        }
        let crc = u32::from_le_bytes(reader.fixed()?);
        if crc != Engine::global().crc32c(&bytes[4..], 0) {
            return Err(reader.fault("the checksum"));
        }
        let (kind, id) = (reader.byte()?, reader.number()?);
        let message = match kind {
            1 => Message::Offer { id, base: reader.number()?, bytes: reader.number()? },
            2 => {
                let (index, version) = (reader.number()?, small(&mut reader)?);
                let bytes = rest(&mut reader, PIECE_BYTES as usize)?;
                if !bytes.len().is_multiple_of(8) {
                    return Err(reader.fault("whole words"));
                }
                Message::Piece { id, index, version, bytes }
            }
            3 => {
                let (index, total) = (small(&mut reader)?, small(&mut reader)?);
                Message::Record { id, index, total, bytes: rest(&mut reader, RECORD_BYTES_MAX)? }
            }
            4 => Message::Seal { id, records: small(&mut reader)? },
            5 => Message::Accept { id },
            6 => {
                let why = String::from_utf8(rest(&mut reader, 512)?).map_err(|_| reader.fault("text"))?;
                Message::Refuse { id, why }
            }
            7 => {
                let mut pieces = Vec::new();
                while reader.left() > 0 {
                    if pieces.len() == GOT_MAX {
                        return Err(reader.fault("fewer pieces"));
                    }
                    pieces.push((reader.number()?, small(&mut reader)?));
                }
                Message::Got { id, pieces }
            }
            8 => Message::GotRecord { id, index: small(&mut reader)? },
            9 => Message::Sealed { id },
            _ => return Err(reader.fault("a kind of message")),
        };
        reader.end()?;
        Ok(message)
    }
}

fn small(reader: &mut Reader<'_>) -> Result<u32, MapError> {
    u32::try_from(reader.number()?).map_err(|_| reader.fault("a number below 2^32"))
}

fn rest(reader: &mut Reader<'_>, limit: usize) -> Result<Vec<u8>, MapError> {
    let count = reader.left();
    if count > limit { Err(reader.fault("fewer bytes")) } else { Ok(reader.take(count)?.to_vec()) }
}
