// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every change of a map, as a function from one map to the next: without clock, network or file.
//!
//! - **Flow** [`Map::join`] when a node joins, [`Map::down`] when its lease runs out, [`Map::forget`] when it will not come back;
//!   [`Map::plan`] ─▶ [`Map::commit`] or [`Map::cancel`] for a migration
//! - **Order** each function returns a map of the next epoch, or the reason for refusing. The map is only stored if the stored epoch
//!   is still the one from which the change began; of two concurrent changes one is computed again
//! - **Owner** coordinator and etcd both use these functions, so a cluster behaves the same on both
//!
//! A migration is valid for one start of its source and of its target. So a commit after either has crashed is refused, without
//! asking a clock for its lease.

use super::MapError;
use super::node::{Address, Node, NodeId, State};
use super::range::{Map, Move, PAGE_BYTES, Permissions, Range};

/// A node's request to join the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Name of the node, which stays the same from start to start.
    pub name: String,
    /// Addresses at which the node listens.
    pub addresses: Vec<Address>,
    /// Number of this start of the node; no two starts have the same.
    pub incarnation: u64,
    /// Bytes of memory that the node brings.
    pub bytes: u64,
    /// True if the node has the data of its earlier starts (from its log). Otherwise that data is lost, and the map says so.
    pub recovered: bool,
    /// The newest epoch that the node knows; 0 for none. An older map has lost changes, and the node may not join it.
    pub epoch: u64,
    /// Tenant that owns its memory; 0: all tenants may use it.
    pub tenant: u32,
    /// Number of the cluster to which the node's memory and log belong; 0: none yet.
    pub cluster: u64,
}

impl Map {
    fn next(&self) -> Result<Map, MapError> {
        let mut map = self.clone();
        map.epoch = self.epoch.checked_add(1).ok_or_else(|| MapError::invalid("there are no epochs left"))?;
        Ok(map)
    }

    fn checked(mut self) -> Result<Map, MapError> {
        self.merge_lost();
        self.validate()?;
        Ok(self)
    }

    fn named_mut(&mut self, name: &str) -> Result<&mut Node, MapError> {
        self.nodes.iter_mut().find(|node| node.name == name).ok_or_else(|| {
            MapError::refused(format!(
                "no memory node is called {name}: `memlift map show` names those there are"
            ))
        })
    }

    /// A node joins, with new memory or with the ranges that it had. Returns the map and the node's number.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`] if the map is older than the epoch that the node knows, or another node of that name is up;
    /// [`MapError::Invalid`]
    /// The first node to join founds the cluster. Its incarnation becomes the cluster's number, because no two starts have
    /// the same.
    pub fn join(&self, join: &Join) -> Result<(Map, NodeId), MapError> {
        if join.epoch > self.epoch {
            return Err(MapError::refused(format!(
                "node {} knows epoch {}, this map is of epoch {}: the map file is an old one; put the newest back",
                join.name, join.epoch, self.epoch
            )));
        }
        if join.cluster != 0 && join.cluster != self.cluster {
            return Err(MapError::refused(format!(
                "the memory of node {} belongs to cluster {:#x}, this is the map of {}: it was made anew after the old one was lost, or \
                 is another cluster's. Put the old map back, or start the node without its log and lose its data",
                join.name,
                join.cluster,
                if self.cluster == 0 {
                    "a new cluster".to_owned()
                } else {
                    format!("cluster {:#x}", self.cluster)
                }
            )));
        }
        let bytes = join.bytes / PAGE_BYTES * PAGE_BYTES;
        let mut map = self.next()?;
        if map.cluster == 0 {
            // The first node to join founds the cluster. Its incarnation serves as the number, because no two starts have the
            // same.
            map.cluster = join.incarnation.max(1);
        }
        let known = self.node_named(&join.name).cloned();
        let id = match &known {
            Some(node) if node.state == State::Up && node.incarnation != join.incarnation => {
                return Err(MapError::refused(format!(
                    "a node called {} is up ({}): give this one another name, or wait until the lease of that one has run out",
                    join.name, node.addresses[0]
                )));
            }
            Some(node) => {
                let entry = map.named_mut(&join.name)?;
                entry.addresses.clone_from(&join.addresses);
                entry.state = State::Up;
                entry.incarnation = join.incarnation;
                node.id
            }
            None => {
                let id = NodeId(map.next_node);
                map.next_node = map
                    .next_node
                    .checked_add(1)
                    .ok_or_else(|| MapError::refused("65,535 nodes have joined: start a new cluster"))?;
                map.nodes.push(Node {
                    id,
                    name: join.name.clone(),
                    addresses: join.addresses.clone(),
                    incarnation: join.incarnation,
                    state: State::Up,
                });
                id
            }
        };
        let same_start = known.is_some_and(|node| node.incarnation == join.incarnation);
        if !same_start {
            map.moves.retain(|one| one.from.0 != id && one.to.0 != id);
            if !join.recovered {
                map.lose(id);
            }
        }
        let has: u64 =
            map.ranges.iter().filter(|range| range.owner == Some(id)).map(|range| range.bytes).sum();
        if has == 0 && bytes > 0 && !same_start {
            map.grant(id, bytes, join.tenant)?;
        }
        if map.cluster == self.cluster
            && map.nodes == self.nodes
            && map.ranges == self.ranges
            && map.moves == self.moves
        {
            return Ok((self.clone(), id));
        }
        Ok((map.checked()?, id))
    }

    /// Makes a map of the next epoch, in which a node has these addresses.
    pub(super) fn readdressed(&self, name: &str, addresses: &[Address]) -> Result<Map, MapError> {
        let mut map = self.next()?;
        map.named_mut(name)?.addresses = addresses.to_vec();
        map.checked()
    }

    /// Assigns addresses to a node that no node ever had.
    fn grant(&mut self, id: NodeId, bytes: u64, tenant: u32) -> Result<(), MapError> {
        let base = self.next_base;
        self.next_base = base
            .checked_add(bytes)
            .filter(|end| *end <= super::range::ADDRESS_END)
            .ok_or_else(|| MapError::refused("there are no addresses left: start a new cluster"))?;
        // The next range starts at a multiple of 1 GiB, so that a switch can match a prefix of the address.
        self.next_base = self.next_base.next_multiple_of(1 << 30).min(super::range::ADDRESS_END);
        let permissions = Permissions::READ_WRITE;
        self.ranges.push(Range { base, bytes, owner: Some(id), since: self.epoch, permissions, tenant });
        Ok(())
    }

    fn lose(&mut self, id: NodeId) {
        for range in self.ranges.iter_mut().filter(|range| range.owner == Some(id)) {
            range.owner = None;
            range.since = self.epoch;
        }
    }

    /// Merges adjacent lost ranges, so that lost data does not fill the map.
    fn merge_lost(&mut self) {
        self.ranges.dedup_by(|later, earlier| {
            let both = earlier.owner.is_none() && later.owner.is_none() && earlier.end() == later.base;
            if both {
                earlier.bytes += later.bytes;
                earlier.since = earlier.since.max(later.since);
            }
            both
        });
    }

    /// The lease of one start of a node has run out: its ranges stay assigned to it, its migrations are cancelled.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`] if the node has been started again since, or is down already
    pub fn down(&self, id: NodeId, incarnation: u64) -> Result<Map, MapError> {
        let mut map = self.next()?;
        let node = map.nodes.iter_mut().find(|node| node.id == id && node.incarnation == incarnation);
        let Some(node) = node.filter(|node| node.state == State::Up) else {
            return Err(MapError::refused(format!("node {id} is not up, or was started again")));
        };
        node.state = State::Down;
        map.moves.retain(|one| one.from.0 != id && one.to.0 != id);
        map.checked()
    }

    /// A node that is down will not come back: its data is lost.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`] if the node is up or unknown
    pub fn forget(&self, name: &str) -> Result<Map, MapError> {
        let mut map = self.next()?;
        let node = map.named_mut(name)?;
        let (id, state) = (node.id, node.state);
        if state == State::Up {
            return Err(MapError::refused(format!(
                "node {name} is up: stop it, and wait until its lease has run out"
            )));
        }
        map.lose(id);
        map.moves.retain(|one| one.from.0 != id && one.to.0 != id);
        map.nodes.retain(|node| node.id != id);
        map.checked()
    }

    /// Plans that a range, or whole pages of one, move to another node. Returns the map and the migration's id.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`], [`MapError::Invalid`]
    pub fn plan(&self, base: u64, bytes: u64, to: &str) -> Result<(Map, u64), MapError> {
        let mut map = self.next()?;
        let target = self.node_named(to).ok_or_else(|| {
            MapError::refused(format!(
                "no memory node is called {to}: `memlift map show` names those there are"
            ))
        })?;
        let source = self.node_of(base)?;
        if target.state != State::Up {
            return Err(MapError::refused(format!("node {to} is down: start it first")));
        }
        let id = map.epoch;
        let from = (source.id, source.incarnation);
        map.moves.push(Move { id, base, bytes, from, to: (target.id, target.incarnation) });
        Ok((map.checked()?, id))
    }

    /// A migration's data has arrived: the range belongs to the target from this epoch on.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`] if the migration was cancelled or committed already, or one of its nodes was restarted
    pub fn commit(&self, id: u64) -> Result<Map, MapError> {
        let mut map = self.next()?;
        let Some(place) = map.moves.iter().position(|one| one.id == id) else {
            return Err(MapError::refused(format!(
                "migration {id} is not planned: it was cancelled, or made already"
            )));
        };
        let one = map.moves.remove(place);
        for (node, incarnation) in [one.from, one.to] {
            if !self.node(node).is_some_and(|node| node.incarnation == incarnation && node.state == State::Up)
            {
                return Err(MapError::refused(format!(
                    "migration {id}: node {node} is down, or was started again"
                )));
            }
        }
        let index = map.index(one.base).ok_or_else(|| MapError::invalid("a migration of no range"))?;
        let whole = map.ranges[index];
        let mut parts = Vec::with_capacity(3);
        if whole.base < one.base {
            parts.push(Range { bytes: one.base - whole.base, ..whole });
        }
        parts.push(Range {
            base: one.base,
            bytes: one.bytes,
            owner: Some(one.to.0),
            since: map.epoch,
            ..whole
        });
        if one.end() < whole.end() {
            parts.push(Range { base: one.end(), bytes: whole.end() - one.end(), ..whole });
        }
        map.ranges.splice(index..=index, parts);
        map.checked()
    }

    /// Cancels a planned migration.
    ///
    /// # Errors
    ///
    /// [`MapError::Refused`] if no such migration is planned
    pub fn cancel(&self, id: u64) -> Result<Map, MapError> {
        let mut map = self.next()?;
        let before = map.moves.len();
        map.moves.retain(|one| one.id != id);
        if map.moves.len() == before {
            return Err(MapError::refused(format!(
                "migration {id} is not planned: it was cancelled, or made already"
            )));
        }
        map.checked()
    }
}

/// A change that a node or an operator asks the map's authority to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// [`Map::plan`].
    Plan {
        /// First address of the range.
        base: u64,
        /// Length of the range, in bytes.
        bytes: u64,
        /// Name of the node to which the range moves.
        to: String,
    },
    /// [`Map::commit`].
    Commit(u64),
    /// [`Map::cancel`].
    Cancel(u64),
    /// [`Map::forget`].
    Forget(String),
    /// [`Map::down`], requested by the node itself: its id and incarnation.
    Leave(NodeId, u64),
}

impl Order {
    /// Returns the changed map, and the id of the migration if one was planned.
    ///
    /// # Errors
    ///
    /// The errors of the function that the order names
    pub fn carry_out(&self, map: &Map) -> Result<(Map, u64), MapError> {
        match self {
            Order::Plan { base, bytes, to } => map.plan(*base, *bytes, to),
            Order::Commit(id) => Ok((map.commit(*id)?, *id)),
            Order::Cancel(id) => Ok((map.cancel(*id)?, *id)),
            Order::Forget(name) => Ok((map.forget(name)?, 0)),
            Order::Leave(id, incarnation) => Ok((map.down(*id, *incarnation)?, 0)),
        }
    }
}
