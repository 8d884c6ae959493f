// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node of an ordered map as a value, for building new versions of it.
//!
//! - **Layout** 256 bytes, as `programs/collections/ordered.h` defines them
//! - **Order** keys ascend; an inner node's key i is not less than any key under child i and less than every key under child i + 1
//! - **Owner** these are copies; nodes in memory never change

use crate::client::{ClientError, Result};

/// Bytes of a node.
pub const NODE_BYTES: usize = 256;
/// Most keys of a node.
pub const KEYS: usize = 15;
/// Most levels of a tree, more than 2^60 keys need.
pub const LEVELS_MAX: usize = 24;

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Node {
    /// Level of the node; 0: a leaf.
    pub level: u8,
    /// Keys of the node, at most [`KEYS`].
    pub keys: Vec<u64>,
    /// For a leaf a value word for each key; for an inner node the children, one more than keys.
    pub places: Vec<u64>,
}

impl Node {
    /// Decodes a node.
    ///
    /// # Errors
    /// [`ClientError::Corrupt`]
    pub fn parse(address: u64, bytes: &[u8]) -> Result<Node> {
        let corrupt = ClientError::Corrupt { address, what: "node of an ordered map" };
        if bytes.len() != NODE_BYTES {
            return Err(corrupt);
        }
        let count = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let level = bytes[2];
        if count > KEYS || usize::from(level) > LEVELS_MAX {
            return Err(corrupt);
        }
        let words = |at: usize, many: usize| -> Vec<u64> {
            let word = |word: &[u8]| u64::from_le_bytes(word.try_into().expect("eight bytes"));
            bytes[at..at + many * 8].chunks_exact(8).map(word).collect()
        };
        let keys = words(8, count);
        if !keys.is_sorted() {
            return Err(corrupt);
        }
        Ok(Node { level, keys, places: words(128, count + usize::from(level != 0)) })
    }

    /// Encodes the node as it lies in memory.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; NODE_BYTES];
        bytes[..2].copy_from_slice(&(self.keys.len() as u16).to_le_bytes());
        bytes[2] = self.level;
        for index in 0..KEYS {
            let key = self.keys.get(index).copied().unwrap_or(u64::MAX);
            bytes[8 + index * 8..][..8].copy_from_slice(&key.to_le_bytes());
        }
        for (index, place) in self.places.iter().enumerate() {
            bytes[128 + index * 8..][..8].copy_from_slice(&place.to_le_bytes());
        }
        bytes
    }

    /// Returns the number of keys that are less than `key`.
    #[must_use]
    pub fn lower_bound(&self, key: u64) -> usize {
        self.keys.partition_point(|&one| one < key)
    }

    /// Returns the index of the key in a leaf.
    #[must_use]
    pub fn position(&self, key: u64) -> Option<usize> {
        let place = self.lower_bound(key);
        (self.keys.get(place) == Some(&key)).then_some(place)
    }

    /// Splits the node if it has too many keys; returns the left node's last key, and the right node.
    pub fn split(&mut self) -> Option<(u64, Node)> {
        if self.keys.len() <= KEYS {
            return None;
        }
        let half = self.keys.len() / 2;
        let mut right = Node { level: self.level, keys: self.keys.split_off(half), places: Vec::new() };
        if self.level == 0 {
            right.places = self.places.split_off(half);
            return Some((self.keys[half - 1], right));
        }
        // The key between the two halves moves to the level above.
        right.places = self.places.split_off(half);
        let between = self.keys.pop().expect("half of sixteen keys");
        Some((between, right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_as_it_was_written_and_nonsense_is_not() {
        let node = Node { level: 1, keys: vec![3, 9, u64::MAX], places: vec![256, 512, 768, 1024] };
        let mut bytes = node.to_bytes();
        assert_eq!(Node::parse(0, &bytes).expect("a node"), node);
        assert!(Node::parse(0, &bytes[..255]).is_err(), "cut");
        bytes[8] = 200;
        assert!(Node::parse(0, &bytes).is_err(), "keys that do not ascend");
        bytes[0] = 16;
        assert!(Node::parse(0, &bytes).is_err(), "too many keys");
    }

    #[test]
    fn a_split_keeps_every_place() {
        for level in [0, 1] {
            let keys: Vec<u64> = (0..16).map(|key| key * 10).collect();
            let mut left = Node { level, keys: keys.clone(), places: (0..16 + u64::from(level)).collect() };
            let (between, right) = left.split().expect("one too many");
            let places: Vec<u64> = [&left.places[..], &right.places].concat();
            assert_eq!(places, (0..16 + u64::from(level)).collect::<Vec<_>>());
            assert!(
                left.keys.iter().all(|&key| key <= between) && right.keys.iter().all(|&key| key > between)
            );
            assert_eq!(left.places.len(), left.keys.len() + usize::from(level));
            assert_eq!(right.places.len(), right.keys.len() + usize::from(level));
            assert!(left.split().is_none());
        }
    }
}
