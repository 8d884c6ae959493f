// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Differences between a map and a later one: ranges that a cache must forget, and lines for an operator to read.
//!
//! - **Layout** the address line is cut at every boundary of either map; adjacent pieces with the same change are merged
//! - **Not here** the reaction to a change

use std::fmt;

use super::node::{NodeId, State};
use super::range::{Map, Range};

/// Kind of change to a piece of the address line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The piece has an owner, and had none before.
    Added(NodeId),
    /// The piece moved from one node to another.
    Moved(NodeId, NodeId),
    /// The data of the piece is lost.
    Lost(NodeId),
    /// The piece is not in the map any more.
    Removed,
    /// The permissions or the tenant of the piece changed.
    Rights(NodeId),
}

/// A piece of the address line, and its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address of the piece.
    pub base: u64,
    /// First address behind the piece.
    pub end: u64,
    /// Change of the piece.
    pub change: Change,
}

/// All changes from one map to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diff {
    /// Epochs of the earlier and the later map.
    pub epochs: (u64, u64),
    /// The changed pieces, sorted by address.
    pub pieces: Vec<Piece>,
    /// Nodes that came, went, or have another address: id, name and change.
    pub nodes: Vec<(NodeId, String, NodeChange)>,
}

/// Kind of change to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// The node is new, or up again.
    Up,
    /// The lease of the node ran out.
    Down,
    /// The node has another address or was started again.
    Changed,
    /// The node is not in the map any more.
    Removed,
}

impl Map {
    /// Returns all changes between `earlier` and this map.
    #[must_use]
    pub fn since(&self, earlier: &Map) -> Diff {
        Diff {
            epochs: (earlier.epoch, self.epoch),
            pieces: pieces(earlier, self),
            nodes: nodes(earlier, self),
        }
    }
}

impl Diff {
    /// Returns true if nothing changed but the epoch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.nodes.is_empty()
    }

    /// Returns true if the bytes of an address are still at the same node, so that cached copies of them
    /// remain valid.
    #[must_use]
    pub fn keeps(&self, address: u64) -> bool {
        let after = self.pieces.partition_point(|piece| piece.base <= address);
        after.checked_sub(1).is_none_or(|index| {
            let piece = &self.pieces[index];
            address >= piece.end || matches!(piece.change, Change::Rights(_))
        })
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} to {}", self.epochs.0, self.epochs.1)?;
        for (id, name, change) in &self.nodes {
            let what = match change {
                NodeChange::Up => "is up",
                NodeChange::Down => "is down",
                NodeChange::Changed => "was started again or has another address",
                NodeChange::Removed => "is removed",
            };
            write!(f, "\nnode {id} {name} {what}")?;
        }
        for piece in &self.pieces {
            write!(f, "\n{:#x}..{:#x} ", piece.base, piece.end)?;
            match piece.change {
                Change::Added(node) => write!(f, "is new, on node {node}")?,
                Change::Moved(from, to) => write!(f, "went from node {from} to node {to}")?,
                Change::Lost(node) => write!(f, "was lost with node {node}")?,
                Change::Removed => write!(f, "is removed")?,
                Change::Rights(node) => write!(f, "on node {node} has other permissions or another tenant")?,
            }
        }
        Ok(())
    }
}

fn change(before: Option<&Range>, after: Option<&Range>) -> Option<Change> {
    match (before, after) {
        (None, None) => None,
        (Some(_), None) => Some(Change::Removed),
        (Some(Range { owner: Some(was), .. }), Some(Range { owner: None, .. })) => Some(Change::Lost(*was)),
        (_, Some(Range { owner: None, .. })) => None,
        (None | Some(Range { owner: None, .. }), Some(Range { owner: Some(owner), .. })) => {
            Some(Change::Added(*owner))
        }
        (Some(before), Some(after)) => {
            let (from, to) = (before.owner?, after.owner?);
            if from != to || before.since != after.since {
                Some(Change::Moved(from, to))
            } else if (before.permissions, before.tenant) != (after.permissions, after.tenant) {
                Some(Change::Rights(to))
            } else {
                None
            }
        }
    }
}

fn pieces(earlier: &Map, later: &Map) -> Vec<Piece> {
    let both = || earlier.ranges.iter().chain(&later.ranges);
    let mut cuts: Vec<u64> = both().map(|range| range.base).chain(both().map(Range::end)).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces: Vec<Piece> = Vec::new();
    for pair in cuts.windows(2) {
        let (base, end) = (pair[0], pair[1]);
        let Some(change) = change(earlier.find(base), later.find(base)) else { continue };
        match pieces.last_mut() {
            Some(last) if last.end == base && last.change == change => last.end = end,
            _ => pieces.push(Piece { base, end, change }),
        }
    }
    pieces
}

fn nodes(earlier: &Map, later: &Map) -> Vec<(NodeId, String, NodeChange)> {
    let mut changes = Vec::new();
    for node in &later.nodes {
        let before = earlier.node(node.id);
        let change = match (before.map(|node| node.state), node.state) {
            (None | Some(State::Down), State::Up) => NodeChange::Up,
            (None | Some(State::Up), State::Down) => NodeChange::Down,
            _ if before == Some(node) => continue,
            _ => NodeChange::Changed,
        };
        changes.push((node.id, node.name.clone(), change));
    }
    for node in earlier.nodes.iter().filter(|node| later.node(node.id).is_none()) {
        changes.push((node.id, node.name.clone(), NodeChange::Removed));
    }
    changes.sort_by_key(|(id, ..)| *id);
    changes
}
