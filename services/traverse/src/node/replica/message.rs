// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages between a primary and its backup, each a frame of their connection (`map/frame`).
//!
//! - **Layout** kind u8, then fields, little endian; `docs/formats/replica-stream.md`. Records are a stream of bytes that is cut anywhere: each
//!   entry behind its length u32
//! - **Owner** a decoder checks everything; what it returns encodes to the same bytes

use crate::map::{Address, is_name};

/// Version of these messages.
pub(super) const VERSION: u16 = 1;
/// Most bytes of records in one message.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Message of the process that asks to become the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromBackup {
    /// The first message: version, number of the new copy, true if its records are on the disk when it acknowledges them, its bytes
    /// of memory, the node's name, and the address at which clients reach the process.
    Hello { version: u16, replica: u64, syncs: bool, bytes: u64, name: String, address: String },
    /// It has this many records: those before the first one of the stream included.
    Has(u64),
    /// It has the whole snapshot.
    Complete,
}

/// Message of the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromPrimary {
    /// The copy begins: epoch of the copies in etcd, the cluster, and the number of records before the first one of the stream.
    Begin { epoch: u64, cluster: u64, first: u64 },
    /// Bytes of the snapshot's entries.
    Snapshot(Vec<u8>),
    /// The snapshot is complete.
    Complete,
    /// Bytes of records; none: the primary is there.
    Records { epoch: u64, bytes: Vec<u8> },
    /// The primary cannot take this backup, for the reason in the text.
    Refused(String),
}

struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        self.fixed().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let [length] = self.fixed()?;
        let (text, rest) = self.0.split_at_checked(length.into())?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(255)];
    to.push(text.len() as u8);
    to.extend_from_slice(text.as_bytes());
}

impl FromBackup {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            FromBackup::Hello { version, replica, syncs, bytes, name, address } => {
                to.push(1);
                to.extend_from_slice(&version.to_le_bytes());
                to.extend_from_slice(&replica.to_le_bytes());
                to.push(u8::from(*syncs));
                to.extend_from_slice(&bytes.to_le_bytes());
                put_text(&mut to, name);
                put_text(&mut to, address);
            }
            FromBackup::Has(records) => {
                to.push(2);
                to.extend_from_slice(&records.to_le_bytes());
            }
            FromBackup::Complete => to.push(3),
        }
        to
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<FromBackup> {
        let mut fields = Fields(bytes);
        let message = match fields.fixed()? {
            [1] => {
                let version = u16::from_le_bytes(fields.fixed()?);
                let replica = fields.number().filter(|replica| *replica != 0)?;
                let syncs = match fields.fixed()? {
                    [0] => false,
                    [1] => true,
                    _ => return None,
                };
                let bytes = fields.number()?;
                let name = fields.text().filter(|name| is_name(name))?;
                let address = fields.text()?;
                FromBackup::Hello { version, replica, syncs, bytes, name, address }
            }
            [2] => FromBackup::Has(fields.number()?),
            [3] => FromBackup::Complete,
            _ => return None,
        };
        fields.0.is_empty().then_some(message)
    }
}

impl FromPrimary {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            FromPrimary::Begin { epoch, cluster, first } => {
                to.push(1);
                [epoch, cluster, first].iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
            }
            FromPrimary::Snapshot(bytes) => {
                to.push(2);
                to.extend_from_slice(bytes);
            }
            FromPrimary::Complete => to.push(3),
            FromPrimary::Records { epoch, bytes } => {
                to.push(4);
                to.extend_from_slice(&epoch.to_le_bytes());
                to.extend_from_slice(bytes);
            }
            FromPrimary::Refused(why) => {
                to.push(5);
                put_text(&mut to, why);
            }
        }
        to
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<FromPrimary> {
        let mut fields = Fields(bytes);
        let message = match fields.fixed()? {
            [1] => FromPrimary::Begin {
                epoch: fields.number()?,
                cluster: fields.number()?,
                first: fields.number()?,
            },
            [2] => FromPrimary::Snapshot(fields.rest()),
            [3] => FromPrimary::Complete,
            [4] => FromPrimary::Records { epoch: fields.number()?, bytes: fields.rest() },
            [5] => FromPrimary::Refused(fields.text()?),
            _ => return None,
        };
        fields.0.is_empty().then_some(message)
    }
}

/// Returns the address that a backup names, if clients can use it.
pub(super) fn address_of(text: &str) -> Option<Address> {
    // Only numbers: names from another process are not looked up.
    let socket: std::net::SocketAddr = text.parse().ok()?;
    let address = Address::Udp(socket);
    address.is_good().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of version 1, which every later release reads.
    #[test]
    fn the_bytes_of_version_1_stay() {
        let hello = FromBackup::Hello {
            version: 1,
            replica: 7,
            syncs: true,
            bytes: 4096,
            name: "a".to_owned(),
            address: "127.0.0.1:1".to_owned(),
        };
        let number = |value: u8| [value, 0, 0, 0, 0, 0, 0, 0];
        let parts: [&[u8]; 8] =
            [&[1, 1, 0], &number(7), &[1], &[0, 16, 0, 0, 0, 0, 0, 0], &[1], b"a", &[11], b"127.0.0.1:1"];
        assert_eq!(hello.encode(), parts.concat());
        assert_eq!(FromBackup::Has(3).encode(), [&[2][..], &number(3)].concat());
        assert_eq!(FromBackup::Complete.encode(), [3]);
        let begin = FromPrimary::Begin { epoch: 1, cluster: 2, first: 3 };
        assert_eq!(begin.encode(), [&[1][..], &number(1), &number(2), &number(3)].concat());
        assert_eq!(FromPrimary::Snapshot(vec![8]).encode(), [2, 8]);
        assert_eq!(FromPrimary::Complete.encode(), [3]);
        let records = FromPrimary::Records { epoch: 1, bytes: vec![9] };
        assert_eq!(records.encode(), [&[4][..], &number(1), &[9]].concat());
        assert_eq!(FromPrimary::Refused("no".to_owned()).encode(), [5, 2, b'n', b'o']);
    }

    #[test]
    fn messages_are_read_as_written_and_nothing_else_is() {
        let from_backup = [
            FromBackup::Hello {
                version: 1,
                replica: 7,
                syncs: true,
                bytes: 1 << 30,
                name: "a".to_owned(),
                address: "127.0.0.1:7700".to_owned(),
            },
            FromBackup::Has(9),
            FromBackup::Complete,
        ];
        for message in from_backup {
            let bytes = message.encode();
            assert_eq!(FromBackup::decode(&bytes), Some(message));
            assert!((0..bytes.len()).all(|length| FromBackup::decode(&bytes[..length]).is_none()));
            assert_eq!(FromBackup::decode(&[&bytes[..], &[0]].concat()), None);
        }
        let from_primary = [
            FromPrimary::Begin { epoch: 1, cluster: 2, first: 3 },
            FromPrimary::Snapshot(vec![1, 2]),
            FromPrimary::Complete,
            FromPrimary::Records { epoch: 4, bytes: vec![] },
            FromPrimary::Refused("no".to_owned()),
        ];
        for message in from_primary {
            assert_eq!(FromPrimary::decode(&message.encode()), Some(message));
        }
        for wrong in [&[][..], &[0], &[3, 0], &[4, 1], &[5, 2, 65], &[6]] {
            assert_eq!(FromPrimary::decode(wrong), None, "{wrong:?}");
        }
        assert!(address_of("127.0.0.1:0").is_none() && address_of("localhost:1").is_none());
        assert!(address_of("127.0.0.1:1").is_some());
    }
}
