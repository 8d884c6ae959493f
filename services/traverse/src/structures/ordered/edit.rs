// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of a tree: new versions of the nodes from a leaf to the root, with a key added or removed.
//!
//! - **Flow** [`Path`] (emitted by `ordered_path`) ──[`Path::put`], [`Path::take`]──▶ [`Edit`]: new nodes by level, whose addresses
//!   the caller chooses ──▶ [`Edit::place`] ──▶ bytes to write, and the new root
//! - **Not here** memory and requests: this file only computes

use super::node::{LEVELS_MAX, NODE_BYTES, Node};
use crate::client::{ClientError, Result};

/// Bytes that `ordered_path` emits for a node: its address and its contents.
pub const STEP_BYTES: usize = 8 + NODE_BYTES;

/// Average number of children of an inner node.
const CHILDREN: u64 = 12;

/// Result of [`Path::before`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The key to begin at.
    Key(u64),
    /// The path ends here: `leaves` more leaves are wanted, counted back from the leaf of `key`, which is the first of them.
    Left {
        /// Last key that the left neighbour may have.
        key: u64,
        /// Number of leaves still wanted.
        leaves: u64,
    },
}

/// The nodes from the root to a leaf, each with its address; empty if the tree is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<(u64, Node)>);

impl Path {
    /// Parses the bytes that `ordered_path` emitted.
    ///
    /// # Errors
    /// [`ClientError::Corrupt`]
    pub fn parse(emitted: &[u8]) -> Result<Path> {
        let mut path = Vec::new();
        for step in emitted.chunks(STEP_BYTES) {
            let corrupt = ClientError::Corrupt { address: 0, what: "whole node of an ordered map" };
            let (address, node) = step.split_first_chunk::<8>().ok_or(corrupt)?;
            let address = u64::from_le_bytes(*address);
            path.push((address, Node::parse(address, node)?));
        }
        let descends = path.windows(2).all(|pair| pair[0].1.level == pair[1].1.level + 1);
        if path.len() > LEVELS_MAX || !descends || path.last().is_some_and(|(_, leaf)| leaf.level != 0) {
            let address = path.first().map_or(0, |(address, _)| *address);
            return Err(ClientError::Corrupt { address, what: "path of an ordered map" });
        }
        Ok(Path(path))
    }

    /// Returns the address of the root; 0 if there is none.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.0.first().map_or(0, |(address, _)| *address)
    }

    /// Returns the value word that the leaf has for a key.
    #[must_use]
    pub fn value(&self, key: u64) -> Option<u64> {
        let (_, leaf) = self.0.last()?;
        leaf.position(key).map(|place| leaf.places[place])
    }

    /// Returns a key about `leaves` leaves before `key`, whose path this is. If the path has too few leaves to the left,
    /// returns the key to continue at.
    #[must_use]
    pub fn before(&self, key: u64, mut leaves: u64) -> Before {
        for (_, node) in self.0.iter().rev().filter(|(_, node)| node.level != 0) {
            let child = node.lower_bound(key) as u64;
            // Approximate number of leaves under a child of this node.
            let under = CHILDREN.saturating_pow(u32::from(node.level) - 1);
            if child > 0 && leaves >= under {
                let back = leaves.div_ceil(under).min(child);
                if let Some(bound) = (child - back).checked_sub(1) {
                    return Before::Key(node.keys[bound as usize].saturating_add(1));
                }
                // All children to the left are used; the rest is counted in this node's left neighbours.
                leaves = leaves.saturating_sub(child * under).max(1);
            } else if child > 0 {
                return Before::Left { key: node.keys[child as usize - 1], leaves };
            }
        }
        Before::Key(0)
    }

    /// Returns the edit that sets `key` to `value`.
    #[must_use]
    pub fn put(&self, key: u64, value: u64) -> Edit {
        let mut nodes = self.0.iter().rev();
        let mut leaf = nodes.next().map(|(_, leaf)| leaf.clone()).unwrap_or_default();
        match leaf.position(key) {
            Some(place) => leaf.places[place] = value,
            None => {
                let place = leaf.lower_bound(key);
                leaf.keys.insert(place, key);
                leaf.places.insert(place, value);
            }
        }
        let mut levels = Vec::new();
        let mut split = leaf.split();
        levels.push(Level { left: leaf, right: split.as_ref().map(|(_, right)| right.clone()), child: None });
        for (_, node) in nodes {
            let (mut node, child) = (node.clone(), node.lower_bound(key));
            if let Some((between, _)) = split {
                node.keys.insert(child, between);
                node.places.insert(child + 1, 0);
            }
            split = node.split();
            levels.push(Level {
                left: node,
                right: split.as_ref().map(|(_, right)| right.clone()),
                child: Some(child),
            });
        }
        if let Some((between, _)) = split {
            let level = levels.len() as u8;
            let root = Node { level, keys: vec![between], places: vec![0, 0] };
            levels.push(Level { left: root, right: None, child: Some(0) });
        }
        Edit { levels }
    }

    /// Returns the edit that removes `key`; `None` if the tree does not have it.
    #[must_use]
    pub fn take(&self, key: u64) -> Option<Edit> {
        let mut nodes = self.0.iter().rev();
        let mut leaf = nodes.next()?.1.clone();
        let place = leaf.position(key)?;
        leaf.keys.remove(place);
        leaf.places.remove(place);
        let mut levels: Vec<Level> = Vec::new();
        let mut gone = leaf.keys.is_empty();
        if !gone {
            levels.push(Level { left: leaf, right: None, child: None });
        }
        for (_, node) in nodes {
            let (mut node, child) = (node.clone(), node.lower_bound(key));
            if gone {
                node.places.remove(child);
                // Removing a child also removes the key to its right; for the last child, the key to its left.
                if !node.keys.is_empty() {
                    node.keys.remove(child.min(node.keys.len() - 1));
                }
                gone = node.places.is_empty();
                if !gone {
                    levels.push(Level { left: node, right: None, child: None });
                }
            } else {
                levels.push(Level { left: node, right: None, child: Some(child) });
            }
        }
        // A root with one child is dropped, and the child becomes the root.
        while levels.last().is_some_and(|top| top.left.level != 0 && top.left.keys.is_empty()) {
            let top = levels.last().expect("just seen");
            if top.child.is_none() {
                // The only child is an existing node, which becomes the root.
                let root = top.left.places[0];
                return Some(Edit { levels: vec![Level::kept(root)] });
            }
            levels.pop();
        }
        Some(Edit { levels })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    left: Node,
    right: Option<Node>,
    /// Index of the child that is the left node of the level below; the child after it is the right one.
    child: Option<usize>,
}

impl Level {
    /// Makes the level of an edit without new nodes, in which an existing node becomes the root.
    fn kept(root: u64) -> Level {
        Level {
            left: Node { level: u8::MAX, keys: Vec::new(), places: vec![root] },
            right: None,
            child: None,
        }
    }
}

/// New nodes, from the leaf up, without addresses yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    levels: Vec<Level>,
}

impl Edit {
    fn kept(&self) -> Option<u64> {
        self.levels.first().filter(|level| level.left.level == u8::MAX).map(|level| level.left.places[0])
    }

    /// Returns the number of new nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        if self.kept().is_some() {
            return 0;
        }
        self.levels.iter().map(|level| 1 + usize::from(level.right.is_some())).sum()
    }

    /// Assigns these addresses, [`Edit::count`] of them, to the nodes. Returns the addresses and bytes to write, and the
    /// root's address (0: the tree is empty).
    ///
    /// # Panics
    /// If there are too few addresses.
    #[must_use]
    pub fn place(self, addresses: &[u64]) -> (Vec<(u64, Vec<u8>)>, u64) {
        if let Some(root) = self.kept() {
            return (Vec::new(), root);
        }
        let mut addresses = addresses.iter().copied();
        let mut next = || addresses.next().expect("an address for each node");
        let mut writes = Vec::new();
        let (mut left, mut right) = (0, 0);
        for mut level in self.levels {
            if let Some(child) = level.child {
                // After a split, children beyond the left node's belong to the right node.
                let here = level.left.places.len();
                let mut set = |at: usize, address: u64| match &mut level.right {
                    Some(node) if at >= here => node.places[at - here] = address,
                    _ => level.left.places[at] = address,
                };
                set(child, left);
                if right != 0 {
                    set(child + 1, right);
                }
            }
            left = next();
            writes.push((left, level.left.to_bytes()));
            right = 0;
            if let Some(node) = level.right {
                right = next();
                writes.push((right, node.to_bytes()));
            }
        }
        (writes, left)
    }
}
