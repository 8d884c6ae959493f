// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A map as bytes: for coordinators, etcd and, one range at a time, for the answer that a range belongs to another node.
//!
//! - **Layout** 0 magic "MLMP" · 4 version u16 · 6 kind u16 (0 map, 1 entry) · 8 CRC-32C of all from byte 12 · 12 bytes of all u32 ·
//!   16 epoch u64 · 24 nodes u16 · 26 moves u16 · 28 ranges u32 · 32 cluster u64 · then varints, see docs/formats/map.md. A range
//!   takes about 6 bytes: the gap before it and its size in pages, owner, permissions, tenant, age
//! - **Order** a map has exactly one encoding: varints are in their shortest form, everything is sorted, and no bytes are left over.
//!   So equal bytes mean equal maps, and a decoded map encodes to the same bytes
//! - **Owner** hostile bytes give [`MapError`]; a count is only believed if as many bytes are there
//! - **Not here** authentication of the sender: the packet, the frame or etcd was authenticated before

use std::net::{IpAddr, SocketAddr};

use memlift_offload::Engine;

use super::bytes::{Reader, Writer};
use super::node::{ADDRESSES_MAX, Address, Node, NodeId, State};
use super::range::{
    ADDRESS_END, MOVES_MAX, Map, Move, NODES_MAX, PAGE_BYTES, Permissions, RANGES_MAX, Range,
};
use super::{MapError, Place};

/// First bytes of every encoding.
pub const MAGIC: [u8; 4] = *b"MLMP";
/// Version of this layout.
pub const VERSION: u16 = 2;
/// Bytes before the varints.
pub const HEADER_BYTES: usize = 40;
/// Most bytes of a map: the limit of a value in etcd, and enough for 100,000 ranges.
pub const MAP_BYTES_MAX: usize = 4 << 20;
/// Most bytes of an [`Entry`], so that it fits in a packet.
pub const ENTRY_BYTES_MAX: usize = 640;

const KIND_MAP: u16 = 0;
const KIND_ENTRY: u16 = 1;

/// A node's answer for a range that is not its own: the range, and the node to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Cluster of the map from which the entry was taken.
    pub cluster: u64,
    /// Epoch of that map.
    pub epoch: u64,
    /// The range, with its owner and permissions.
    pub range: Range,
    /// The owner of the range; `None` if its data was lost.
    pub node: Option<Node>,
}

impl Entry {
    /// Returns the map's entry for an address; `None` if no range has it.
    #[must_use]
    pub fn of(map: &Map, address: u64) -> Option<Entry> {
        let (range, node) = match map.place(address) {
            Place::Owned(range, node) | Place::Down(range, node) => (*range, Some(node.clone())),
            Place::Lost(range) => (*range, None),
            Place::Nowhere => return None,
        };
        Some(Entry { cluster: map.cluster(), epoch: map.epoch(), range, node })
    }

    /// Encodes the entry as bytes, at most [`ENTRY_BYTES_MAX`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer =
            Writer::new(KIND_ENTRY, self.cluster, self.epoch, usize::from(self.node.is_some()), 0, 1);
        if let Some(node) = &self.node {
            writer.node(node, 0);
        }
        writer.range(&self.range, 0);
        writer.finish()
    }

    /// Decodes an entry.
    ///
    /// # Errors
    ///
    /// [`MapError::Encoding`], [`MapError::Invalid`]
    pub fn decode(bytes: &[u8]) -> Result<Entry, MapError> {
        let (mut reader, counts) = Reader::open(bytes, KIND_ENTRY)?;
        if counts.nodes > 1 || counts.ranges != 1 || counts.moves != 0 {
            return Err(reader.fault("one range and its node"));
        }
        let node = if counts.nodes == 1 { Some(reader.node(0)?) } else { None };
        let range = reader.range(0)?;
        reader.end()?;
        // The checks are those of a map with this one range.
        let map = Map {
            cluster: counts.cluster,
            epoch: counts.epoch,
            next_base: range.end(),
            next_node: node.as_ref().map_or(0, |node| node.id.0.saturating_add(1)),
            nodes: node.iter().cloned().collect(),
            ranges: vec![range],
            moves: Vec::new(),
        };
        map.validate()?;
        if range.owner != node.as_ref().map(|node| node.id) {
            return Err(MapError::invalid("the entry's node is not the owner of its range"));
        }
        Ok(Entry { cluster: counts.cluster, epoch: counts.epoch, range, node })
    }
}

impl Map {
    /// Encodes the map as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(
            KIND_MAP,
            self.cluster,
            self.epoch,
            self.nodes.len(),
            self.moves.len(),
            self.ranges.len(),
        );
        writer.number(self.next_base / PAGE_BYTES);
        writer.number(u64::from(self.next_node));
        let mut after = 0;
        for node in &self.nodes {
            writer.node(node, after);
            after = u64::from(node.id.0) + 1;
        }
        let mut end = 0;
        for range in &self.ranges {
            writer.range(range, end);
            end = range.end();
        }
        for one in &self.moves {
            writer.movement(one);
        }
        writer.finish()
    }

    /// Decodes a map.
    ///
    /// # Errors
    ///
    /// [`MapError::Encoding`], [`MapError::Invalid`]
    pub fn decode(bytes: &[u8]) -> Result<Map, MapError> {
        let (mut reader, counts) = Reader::open(bytes, KIND_MAP)?;
        if counts.nodes > NODES_MAX || counts.ranges > RANGES_MAX || counts.moves > MOVES_MAX {
            return Err(reader.fault("counts within the limits"));
        }
        let next_base = reader.pages()?;
        let next_node =
            u16::try_from(reader.number()?).map_err(|_| reader.fault("the next node's number"))?;
        // A node takes at least 8 bytes, a range 6: so an impossible count allocates nothing.
        let left = reader.left();
        if counts.nodes * 8 + counts.ranges * 6 + counts.moves * 7 > left {
            return Err(reader.fault("as many nodes and ranges as announced"));
        }
        let mut nodes = Vec::with_capacity(counts.nodes);
        let mut after = 0;
        for _ in 0..counts.nodes {
            let node = reader.node(after)?;
            after = u64::from(node.id.0) + 1;
            nodes.push(node);
        }
        let mut ranges = Vec::with_capacity(counts.ranges);
        let mut end = 0;
        for _ in 0..counts.ranges {
            let range = reader.range(end)?;
            end = range.end();
            ranges.push(range);
        }
        let moves = (0..counts.moves).map(|_| reader.movement()).collect::<Result<Vec<_>, _>>()?;
        reader.end()?;
        let (cluster, epoch) = (counts.cluster, counts.epoch);
        let map = Map { cluster, epoch, next_base, next_node, nodes, ranges, moves };
        map.validate()?;
        Ok(map)
    }
}

impl Writer {
    fn new(kind: u16, cluster: u64, epoch: u64, nodes: usize, moves: usize, ranges: usize) -> Writer {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 40 * nodes + 8 * ranges);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(epoch.to_le_bytes());
        bytes.extend((nodes as u16).to_le_bytes());
        bytes.extend((moves as u16).to_le_bytes());
        bytes.extend((ranges as u32).to_le_bytes());
        bytes.extend(cluster.to_le_bytes());
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        Writer { bytes }
    }

    /// Appends a node. `after` is the number that follows the id of the node before.
    pub(super) fn node(&mut self, node: &Node, after: u64) {
        self.number(u64::from(node.id.0) - after);
        self.bytes.push((node.state == State::Down) as u8);
        self.number(node.incarnation);
        self.text(&node.name);
        self.bytes.push(node.addresses.len() as u8);
        for address in &node.addresses {
            self.address(address);
        }
    }

    pub(super) fn address(&mut self, address: &Address) {
        match address {
            Address::Shm(path) => {
                self.bytes.push(1);
                self.text(path);
            }
            Address::Udp(address) => {
                match address.ip() {
                    IpAddr::V4(ip) => {
                        self.bytes.push(4);
                        self.bytes.extend(ip.octets());
                    }
                    IpAddr::V6(ip) => {
                        self.bytes.push(6);
                        self.bytes.extend(ip.octets());
                    }
                }
                self.bytes.extend(address.port().to_be_bytes());
            }
        }
    }

    /// Appends a range. `end` is the end of the range before.
    fn range(&mut self, range: &Range, end: u64) {
        self.number((range.base - end) / PAGE_BYTES);
        self.number(range.bytes / PAGE_BYTES);
        self.number(range.owner.map_or(0, |owner| u64::from(owner.0) + 1));
        self.number(range.since);
        self.bytes.push(range.permissions.bits());
        self.number(u64::from(range.tenant));
    }

    fn movement(&mut self, one: &Move) {
        self.number(one.id);
        self.number(one.base / PAGE_BYTES);
        self.number(one.bytes / PAGE_BYTES);
        for (node, incarnation) in [one.from, one.to] {
            self.number(u64::from(node.0));
            self.number(incarnation);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let bytes = self.bytes.len() as u32;
        self.bytes[12..16].copy_from_slice(&bytes.to_le_bytes());
        let crc = Engine::global().crc32c(&self.bytes[12..], 0);
        self.bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        self.bytes
    }
}

struct Counts {
    cluster: u64,
    epoch: u64,
    nodes: usize,
    moves: usize,
    ranges: usize,
}

/// Decodes the parts of a map.
impl<'b> Reader<'b> {
    fn open(bytes: &'b [u8], kind: u16) -> Result<(Reader<'b>, Counts), MapError> {
        let mut reader = Reader::new(bytes);
        if bytes.len() < HEADER_BYTES || bytes.len() > MAP_BYTES_MAX {
            return Err(reader.fault("a header, and no more bytes than a map may have"));
        }
        if reader.take(4)? != MAGIC {
            return Err(MapError::Encoding { what: "the magic bytes", at: 0 });
        }
        if reader.fixed::<2>()? != VERSION.to_le_bytes() || reader.fixed::<2>()? != kind.to_le_bytes() {
            return Err(MapError::Encoding { what: "version and kind", at: 4 });
        }
        let crc = u32::from_le_bytes(reader.fixed()?);
        if crc != Engine::global().crc32c(&bytes[12..], 0) {
            return Err(MapError::Encoding { what: "the checksum", at: 8 });
        }
        if u32::from_le_bytes(reader.fixed()?) as usize != bytes.len() {
            return Err(MapError::Encoding { what: "all of the bytes", at: 12 });
        }
        let epoch = u64::from_le_bytes(reader.fixed()?);
        let nodes = u16::from_le_bytes(reader.fixed()?).into();
        let moves = u16::from_le_bytes(reader.fixed()?).into();
        let ranges = u32::from_le_bytes(reader.fixed()?) as usize;
        let cluster = u64::from_le_bytes(reader.fixed()?);
        Ok((reader, Counts { cluster, epoch, nodes, moves, ranges }))
    }

    /// Reads a number of pages, and returns it in bytes.
    fn pages(&mut self) -> Result<u64, MapError> {
        let pages = self.number()?;
        if pages > ADDRESS_END / PAGE_BYTES { Err(self.fault("an address")) } else { Ok(pages * PAGE_BYTES) }
    }

    pub(super) fn id(&mut self, after: u64) -> Result<NodeId, MapError> {
        let id = self.number()?.checked_add(after).and_then(|id| u16::try_from(id).ok());
        id.map(NodeId).ok_or_else(|| self.fault("a node's number"))
    }

    fn node(&mut self, after: u64) -> Result<Node, MapError> {
        let id = self.id(after)?;
        let state = match self.byte()? {
            0 => State::Up,
            1 => State::Down,
            _ => return Err(self.fault("a node's state")),
        };
        let incarnation = self.number()?;
        let name = self.text()?;
        let count = usize::from(self.byte()?);
        if count > ADDRESSES_MAX {
            return Err(self.fault("a few addresses"));
        }
        let addresses = (0..count).map(|_| self.address()).collect::<Result<Vec<_>, _>>()?;
        Ok(Node { id, name, addresses, incarnation, state })
    }

    pub(super) fn address(&mut self) -> Result<Address, MapError> {
        let ip: IpAddr = match self.byte()? {
            1 => return Ok(Address::Shm(self.text()?)),
            4 => self.fixed::<4>()?.into(),
            6 => self.fixed::<16>()?.into(),
            _ => return Err(self.fault("an address")),
        };
        Ok(Address::Udp(SocketAddr::new(ip, u16::from_be_bytes(self.fixed()?))))
    }

    fn range(&mut self, end: u64) -> Result<Range, MapError> {
        let base = self.pages()? + end;
        let bytes = self.pages()?;
        if base > ADDRESS_END || bytes > ADDRESS_END - base {
            return Err(self.fault("a range below the end of all addresses"));
        }
        let owner = self.number()?;
        let owner = match owner.checked_sub(1).map(u16::try_from) {
            None => None,
            Some(Ok(id)) => Some(NodeId(id)),
            Some(Err(_)) => return Err(self.fault("an owner's number")),
        };
        let since = self.number()?;
        let permissions = Permissions::from_bits(self.byte()?).ok_or_else(|| self.fault("permissions"))?;
        let tenant = u32::try_from(self.number()?).map_err(|_| self.fault("a tenant's number"))?;
        Ok(Range { base, bytes, owner, since, permissions, tenant })
    }

    fn movement(&mut self) -> Result<Move, MapError> {
        let id = self.number()?;
        let (base, bytes) = (self.pages()?, self.pages()?);
        if bytes > ADDRESS_END - base {
            return Err(self.fault("a migration below the end of all addresses"));
        }
        let from = (self.id(0)?, self.number()?);
        let to = (self.id(0)?, self.number()?);
        Ok(Move { id, base, bytes, from, to })
    }
}
