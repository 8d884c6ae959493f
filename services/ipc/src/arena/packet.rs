// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets between an arena and a reader. Nothing of a value crosses here.
//!
//! - **Flow** arena: [`Welcome`] + 3 descriptors ─▶ reader · reader: [`Packet`]s of the kinds below ─▶ arena · arena: [`PUBLISHED`] ─▶
//!   subscriber, one for each [`NEXT`]
//! - **Owner** what comes in is hostile: kinds, names and numbers are checked where they are used

use super::layout::{MAGIC, VERSION};
use crate::error::Error;
use crate::handshake;
use bytemuck::{Pod, Zeroable};

/// Descriptors that come with a welcome: directory, data, the reader's table.
pub const DESCRIPTORS: usize = 3;
/// Longest name of a topic, bytes.
pub const NAME_MAX: usize = 64;

/// A lease has ended while the arena waited for room.
pub const ROOM: u32 = 1;
/// The value is not needed any more: `block`, `generation`.
pub const RELEASE: u32 = 2;
/// This session follows a topic: `name`; `number`: values that may wait, 0: only the latest.
pub const SUBSCRIBE: u32 = 3;
/// The subscriber wants the next value.
pub const NEXT: u32 = 4;
/// The subscriber has its lease of the value that came last, or does not want it.
pub const TAKEN: u32 = 5;
/// A value for a subscriber: `block`, `generation`, `number` of the value in its topic, and `missed` so far.
pub const PUBLISHED: u32 = 6;
/// The arena has noted what a subscriber follows.
pub const FOLLOWS: u32 = 7;

const _: () = assert!(MAGIC.to_le_bytes()[7] == handshake::ARENA);

/// The arena's greeting.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Welcome {
    pub magic: u64,
    pub version: u32,
    /// 0: welcome. Otherwise the reason says why not.
    pub refused: u32,
    pub id: [u64; 2],
    pub data_bytes: u64,
    pub blocks: u32,
    pub reserved: u32,
    pub reason: [u8; 160],
}

/// Any later packet; what a kind does not name is zero.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Packet {
    pub magic: u64,
    pub kind: u32,
    pub block: u32,
    pub generation: u64,
    pub number: u64,
    pub missed: u64,
    pub name: [u8; NAME_MAX],
}

const _: () = {
    assert!(size_of::<Welcome>() == 208);
    assert!(size_of::<Packet>() == 104);
};

impl Welcome {
    pub fn new(id: [u64; 2], data_bytes: u64, blocks: u32) -> Welcome {
        Welcome { magic: MAGIC, version: VERSION, id, data_bytes, blocks, ..Welcome::zeroed() }
    }

    /// Makes a refusal; the reason is cut to 160 bytes.
    pub fn refused(reason: &str) -> Welcome {
        let mut welcome = Welcome { refused: 1, ..Welcome::new([0; 2], 0, 0) };
        welcome.reason = handshake::cut(reason);
        welcome
    }

    /// Returns the reason of a refusal.
    pub fn reason(&self) -> String {
        handshake::text(&self.reason)
    }
}

impl Packet {
    pub fn new(kind: u32) -> Packet {
        Packet { magic: MAGIC, kind, ..Packet::zeroed() }
    }

    /// The topic's name.
    pub fn topic(&self) -> Result<String, Error> {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_MAX);
        let name = std::str::from_utf8(&self.name[..end]);
        name.map(str::to_owned).map_err(|_| Error::peer_fault("a topic's name that is not text"))
    }

    /// As it is, with a topic's name.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] if the name is longer than [`NAME_MAX`] or has a zero byte.
    pub fn named(mut self, topic: &str) -> Result<Packet, Error> {
        if topic.len() > NAME_MAX || topic.contains('\0') {
            let reason = format!("a topic's name has at most {NAME_MAX} bytes, and no zero byte");
            return Err(Error::BadAddress { address: topic.to_owned(), reason });
        }
        self.name[..topic.len()].copy_from_slice(topic.as_bytes());
        Ok(self)
    }
}

/// Reads a packet as `T` if its length and magic are right.
pub fn parse<T: Pod>(packet: &[u8]) -> Result<T, Error> {
    if packet.len() != size_of::<T>() || packet[..8] != MAGIC.to_le_bytes() {
        return Err(Error::peer_fault("a packet that no arena or reader sends"));
    }
    Ok(bytemuck::pod_read_unaligned(packet))
}
