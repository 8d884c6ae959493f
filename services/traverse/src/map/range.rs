// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map itself: which node has which addresses, valid from one epoch to the next.
//!
//! - **Layout** ranges are sorted by base and do not overlap; gaps are allowed. Bases and sizes are multiples of a page.
//!   Addresses 0 to 4095 belong to nobody, so that a null pointer is never an address
//! - **Order** each change makes a new map with the next epoch. An address is given out once: a node that comes back without its
//!   data gets new addresses, so that an old pointer leads to [`Place::Lost`] and never to other data
//! - **Owner** a map is an immutable value; `shared` holds the current one
//! - **Not here** changing a map (`change`), encoding it (`encode`), obtaining it (`file`, `coordinator`, `etcd`)

use std::collections::HashSet;

use super::MapError;
use super::node::{Node, NodeId, State};

/// Bases and sizes of ranges are multiples of this.
pub const PAGE_BYTES: u64 = 4096;
/// End of the addresses, so low that a window before or after an address never wraps.
pub const ADDRESS_END: u64 = 1 << 62;
/// Most nodes of a map.
pub const NODES_MAX: usize = 4096;
/// Most ranges of a map.
pub const RANGES_MAX: usize = 1 << 17;
/// Most migrations at a time.
pub const MOVES_MAX: usize = 256;

/// Accesses that a range allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(u8);

impl Permissions {
    /// Walks may read.
    pub const READ: Permissions = Permissions(1);
    /// Walks may read, and requests may change the memory.
    pub const READ_WRITE: Permissions = Permissions(3);

    /// Decodes permissions; `None` if the bits mean nothing.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Permissions> {
        matches!(bits, 1 | 3).then_some(Permissions(bits))
    }

    /// Encodes permissions: bit 0 read, bit 1 write.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if the memory may be changed.
    #[must_use]
    pub fn write(self) -> bool {
        self.0 & 2 != 0
    }
}

/// A run of addresses with one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address of the range.
    pub base: u64,
    /// Length of the range, in bytes.
    pub bytes: u64,
    /// The node that owns the range; `None`: its data was lost.
    pub owner: Option<NodeId>,
    /// The epoch in which the owner got the range, or in which it was lost.
    pub since: u64,
    /// Accesses that the range allows.
    pub permissions: Permissions,
    /// Tenant that owns the range; 0: all tenants may use it.
    pub tenant: u32,
}

impl Range {
    /// Returns the first address behind the range.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Returns true if an address lies in the range.
    #[must_use]
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }
}

/// A range, or a part of one, that is moving to another node. Until the commit it belongs to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The epoch in which the move was planned; no two moves have the same.
    pub id: u64,
    /// First address of the range.
    pub base: u64,
    /// Length of the range, in bytes.
    pub bytes: u64,
    /// Source node, and the incarnation for which the migration is valid.
    pub from: (NodeId, u64),
    /// Target node, and the incarnation for which the migration is valid.
    pub to: (NodeId, u64),
}

impl Move {
    /// Returns the first address behind the range.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.base + self.bytes
    }
}

/// Owner of an address, and the owner's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'m> {
    /// The node owns the address and is up.
    Owned(&'m Range, &'m Node),
    /// The node owns the address and is down.
    Down(&'m Range, &'m Node),
    /// No node owns it any more: the data was lost.
    Lost(&'m Range),
    /// No range has the address.
    Nowhere,
}

/// All nodes and ranges of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The cluster's number: the incarnation of the first node that joined; 0 before that, and in maps written by hand.
    pub(super) cluster: u64,
    pub(super) epoch: u64,
    pub(super) next_base: u64,
    pub(super) next_node: u16,
    pub(super) nodes: Vec<Node>,
    pub(super) ranges: Vec<Range>,
    pub(super) moves: Vec<Move>,
}

impl Map {
    /// Makes a map without nodes, of epoch 1.
    #[must_use]
    pub fn empty() -> Map {
        Map {
            cluster: 0,
            epoch: 1,
            next_base: 1 << 32,
            next_node: 0,
            nodes: Vec::new(),
            ranges: Vec::new(),
            moves: Vec::new(),
        }
    }

    /// Makes a map of these nodes and ranges, given in any order.
    ///
    /// # Errors
    ///
    /// [`MapError::Invalid`]
    pub fn new(epoch: u64, mut nodes: Vec<Node>, mut ranges: Vec<Range>) -> Result<Map, MapError> {
        nodes.sort_by_key(|node| node.id);
        ranges.sort_by_key(|range| range.base);
        let next_node = nodes.last().map_or(0, |node| node.id.0.saturating_add(1));
        let next_base =
            ranges.last().map_or(1 << 32, |range| range.base.saturating_add(range.bytes).max(1 << 32));
        let map = Map { cluster: 0, epoch, next_base, next_node, nodes, ranges, moves: Vec::new() };
        map.validate()?;
        Ok(map)
    }

    /// Returns the cluster's number, which no other cluster has; 0 for maps written by hand. An address is only valid in its
    /// cluster.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Returns the version of the map, from 1.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the nodes, sorted by id.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the ranges, sorted by base.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the planned migrations, sorted by id.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Returns the node with this number.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|index| &self.nodes[index])
    }

    /// Returns the node with this name.
    #[must_use]
    pub fn node_named(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Returns the index of the range that contains an address.
    pub(super) fn index(&self, address: u64) -> Option<usize> {
        let after = self.ranges.partition_point(|range| range.base <= address);
        let index = after.checked_sub(1)?;
        self.ranges[index].contains(address).then_some(index)
    }

    /// Returns the range that contains an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Range> {
        self.index(address).map(|index| &self.ranges[index])
    }

    /// Returns the owner of an address.
    #[must_use]
    pub fn place(&self, address: u64) -> Place<'_> {
        self.find(address).map_or(Place::Nowhere, |range| self.owner(range))
    }

    /// Returns the owner of a range of this map.
    pub(super) fn owner<'m>(&'m self, range: &'m Range) -> Place<'m> {
        match range.owner.and_then(|id| self.node(id)) {
            None => Place::Lost(range),
            Some(node) if node.state == State::Down => Place::Down(range, node),
            Some(node) => Place::Owned(range, node),
        }
    }

    /// Returns the node that owns an address and is up.
    ///
    /// # Errors
    ///
    /// [`MapError::Nowhere`], [`MapError::Lost`], [`MapError::Down`]
    pub fn node_of(&self, address: u64) -> Result<&Node, MapError> {
        match self.place(address) {
            Place::Owned(_, node) => Ok(node),
            Place::Down(_, node) => {
                Err(MapError::Down { address, node: node.name.clone(), epoch: self.epoch })
            }
            Place::Lost(range) => Err(MapError::Lost { address, since: range.since }),
            Place::Nowhere => Err(MapError::Nowhere { address, epoch: self.epoch }),
        }
    }

    /// Checks the whole map: every decoded, parsed or changed map then has the properties of the module's *Layout*.
    pub(super) fn validate(&self) -> Result<(), MapError> {
        if self.epoch == 0 || self.epoch == u64::MAX {
            return Err(MapError::invalid("epochs count from 1"));
        }
        self.validate_nodes()?;
        self.validate_ranges()?;
        self.validate_moves()
    }

    fn validate_nodes(&self) -> Result<(), MapError> {
        if self.nodes.len() > NODES_MAX {
            return Err(MapError::invalid(format!(
                "{} nodes: at most {NODES_MAX} are possible",
                self.nodes.len()
            )));
        }
        let mut names = HashSet::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            node.validate()?;
            if index > 0 && self.nodes[index - 1].id >= node.id {
                return Err(MapError::invalid(format!("two nodes have id {}", node.id)));
            }
            if node.id.0 >= self.next_node {
                return Err(MapError::invalid(format!("node id {} was never given", node.id)));
            }
            if !names.insert(node.name.as_str()) {
                return Err(MapError::invalid(format!("two nodes are called {}", node.name)));
            }
        }
        let mut addresses = HashSet::new();
        for node in &self.nodes {
            if let Some(twice) = node.addresses.iter().find(|address| !addresses.insert(*address)) {
                return Err(MapError::invalid(format!(
                    "node {} has address {twice}, which is also another's",
                    node.name
                )));
            }
        }
        Ok(())
    }

    fn validate_ranges(&self) -> Result<(), MapError> {
        if self.ranges.len() > RANGES_MAX {
            return Err(MapError::invalid(format!(
                "{} ranges: at most {RANGES_MAX} are possible",
                self.ranges.len()
            )));
        }
        let mut end = PAGE_BYTES;
        for range in &self.ranges {
            let Range { base, bytes, .. } = *range;
            if !base.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) || bytes == 0 {
                return Err(MapError::invalid(format!(
                    "range {base:#x} of {bytes} bytes: base and size are multiples of {PAGE_BYTES}, the size not 0"
                )));
            }
            if bytes > ADDRESS_END || base > ADDRESS_END - bytes {
                return Err(MapError::invalid(format!(
                    "range {base:#x} of {bytes} bytes leads past {ADDRESS_END:#x}"
                )));
            }
            if base < PAGE_BYTES {
                return Err(MapError::invalid(
                    "the first page belongs to nobody, so that address 0 means none",
                ));
            }
            if base < end {
                return Err(MapError::invalid(format!(
                    "range {base:#x} of {bytes} bytes overlaps the one before it, which ends at {end:#x}"
                )));
            }
            if range.since == 0 || range.since > self.epoch {
                return Err(MapError::invalid(format!(
                    "range {base:#x} is since epoch {}, which is to come",
                    range.since
                )));
            }
            if let Some(owner) = range.owner
                && self.node(owner).is_none()
            {
                return Err(MapError::invalid(format!(
                    "range {base:#x} belongs to node {owner}, which is not in the map"
                )));
            }
            end = base + bytes;
        }
        if !self.next_base.is_multiple_of(PAGE_BYTES) || self.next_base > ADDRESS_END || self.next_base < end
        {
            return Err(MapError::invalid(
                "the next free address lies before a range, or past all addresses",
            ));
        }
        Ok(())
    }

    fn validate_moves(&self) -> Result<(), MapError> {
        if self.moves.len() > MOVES_MAX {
            return Err(MapError::invalid(format!(
                "{} migrations: at most {MOVES_MAX} at a time",
                self.moves.len()
            )));
        }
        for (index, one) in self.moves.iter().enumerate() {
            let here = format!("migration {} of {:#x}", one.id, one.base);
            if one.id == 0 || one.id > self.epoch || (index > 0 && self.moves[index - 1].id >= one.id) {
                return Err(MapError::invalid(format!("{here}: its id is no epoch of its own")));
            }
            let whole =
                one.bytes != 0 && one.base.is_multiple_of(PAGE_BYTES) && one.bytes.is_multiple_of(PAGE_BYTES);
            let Some(range) = self.find(one.base) else {
                return Err(MapError::invalid(format!("{here}: that address is in no range")));
            };
            if !whole || one.bytes > range.end() - one.base || range.owner != Some(one.from.0) {
                return Err(MapError::invalid(format!(
                    "{here}: it is not whole pages of one range of its source"
                )));
            }
            if one.from.0 == one.to.0 || self.node(one.to.0).is_none() {
                return Err(MapError::invalid(format!("{here}: its target is not another node of the map")));
            }
            if self.moves[..index].iter().any(|other| other.base < one.end() && one.base < other.end()) {
                return Err(MapError::invalid(format!(
                    "{here}: another migration has some of these addresses"
                )));
            }
        }
        Ok(())
    }
}

/// Remembers the index at which the last address was found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    index: usize,
}

impl Cursor {
    /// Returns the range that contains an address; takes one comparison if the last address was in the same range.
    #[must_use]
    #[inline]
    pub fn find<'m>(&mut self, map: &'m Map, address: u64) -> Option<&'m Range> {
        if let Some(range) = map.ranges.get(self.index)
            && range.contains(address)
        {
            return Some(range);
        }
        self.index = map.index(address)?;
        Some(&map.ranges[self.index])
    }
}
