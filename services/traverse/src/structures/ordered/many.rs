// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes many keys together: reads the part of the tree that contains them, and builds new nodes for it with all of them.
//!
//! - **Flow** paths of some keys ──[`PartialTree::add`]──▶ these cover many other keys; paths of the remaining keys ──▶ [`PartialTree::put`]:
//!   new nodes, and the old ones that they replace ──[`Rebuilt::place`]──▶ bytes to write, and the new root
//! - **Order** all paths of a part start at one root, so they belong to one version of the tree
//! - **Layout** there are as few new nodes as possible, and all have the same number of entries, up to one
//! - **Not here** memory and requests: this file only computes

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::edit::STEP_BYTES;
use super::node::{KEYS, Node};
use crate::client::{ClientError, Result};

/// A part of a tree: some of its nodes, from the root on.
#[derive(Debug, Default)]
pub struct PartialTree {
    root: Option<u64>,
    nodes: HashMap<u64, Node>,
}

/// A child of a node: the address of an old node, or the index of a new one.
#[derive(Clone, Copy, Debug)]
enum Child {
    Old(u64),
    New(usize),
}

/// Adjacent new nodes, and the keys between them.
#[derive(Default)]
struct Row {
    children: Vec<Child>,
    between: Vec<u64>,
}

/// New nodes that replace those of a part.
#[derive(Debug, Default)]
pub struct Rebuilt {
    /// The new nodes, children before their parents; addresses in inner nodes are filled in by [`Rebuilt::place`].
    fresh: Vec<(Node, Vec<Child>)>,
    /// Addresses of nodes that do not belong to the new tree.
    pub old: Vec<u64>,
    /// Value words that were replaced.
    pub replaced: Vec<u64>,
    /// Keys that had no value.
    pub inserted: u64,
}

impl PartialTree {
    /// Adds a path that `ordered_path` emitted; returns false if it starts at another root, because the tree has
    /// changed.
    ///
    /// # Errors
    /// [`ClientError::Corrupt`]
    pub fn add(&mut self, emitted: &[u8]) -> Result<bool> {
        let mut level = None;
        for step in emitted.chunks(STEP_BYTES) {
            let (address, bytes) = step
                .split_first_chunk::<8>()
                .ok_or(ClientError::Corrupt { address: 0, what: "whole node of an ordered map" })?;
            let address = u64::from_le_bytes(*address);
            // Nodes never change, so a node that is already known is not parsed again.
            let node = match self.nodes.entry(address) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(Node::parse(address, bytes)?),
            };
            if level.is_some_and(|above| node.level + 1 != above) {
                return Err(ClientError::Corrupt { address, what: "path of an ordered map" });
            }
            if level.is_none() && *self.root.get_or_insert(address) != address {
                return Ok(false);
            }
            level = Some(node.level);
        }
        match level {
            None => Ok(*self.root.get_or_insert(0) == 0),
            Some(0) => Ok(true),
            Some(_) => Err(ClientError::Corrupt { address: self.root(), what: "path of an ordered map" }),
        }
    }

    /// Returns the address of the root; 0 if the tree is empty.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.root.unwrap_or(0)
    }

    /// Returns true if the leaf of this key is in the part.
    #[must_use]
    pub fn covers(&self, key: u64) -> bool {
        let Some(mut at) = self.root else { return false };
        if at == 0 {
            return true;
        }
        let mut above = None;
        while let Some(node) = self.nodes.get(&at) {
            if above.is_some_and(|above| node.level + 1 != above) {
                return false;
            }
            if node.level == 0 {
                return true;
            }
            above = Some(node.level);
            at = node.places[node.lower_bound(key)];
        }
        false
    }

    /// Rebuilds the part with these keys and value words. The keys must ascend, and the part must cover them.
    ///
    /// # Errors
    /// [`ClientError::Corrupt`]
    pub fn put(&self, pairs: &[(u64, u64)]) -> Result<Rebuilt> {
        let mut rebuilt = Rebuilt::default();
        let mut row = match self.root() {
            0 => rebuilt.leaves(&Node::default(), pairs),
            root => self.rebuild(root, None, pairs, &mut rebuilt)?,
        };
        let mut level = self.nodes.get(&self.root()).map_or(0, |node| node.level);
        while row.children.len() > 1 {
            level += 1;
            row = rebuilt.inner(level, row);
        }
        Ok(rebuilt)
    }

    fn rebuild(
        &self,
        at: u64,
        above: Option<u8>,
        pairs: &[(u64, u64)],
        rebuilt: &mut Rebuilt,
    ) -> Result<Row> {
        // Levels descend, so the recursion ends whatever the nodes contain.
        let node = self
            .nodes
            .get(&at)
            .filter(|node| above.is_none_or(|above| node.level + 1 == above))
            .ok_or(ClientError::Corrupt { address: at, what: "known node of an ordered map" })?;
        rebuilt.old.push(at);
        if node.level == 0 {
            return Ok(rebuilt.leaves(node, pairs));
        }
        let mut row = Row::default();
        let mut rest = pairs;
        for (index, &place) in node.places.iter().enumerate() {
            let under =
                node.keys.get(index).map_or(rest.len(), |&last| rest.partition_point(|one| one.0 <= last));
            let (mine, others) = rest.split_at(under);
            rest = others;
            if mine.is_empty() {
                row.children.push(Child::Old(place));
            } else {
                let below = self.rebuild(place, Some(node.level), mine, rebuilt)?;
                row.children.extend(below.children);
                row.between.extend(below.between);
            }
            row.between.extend(node.keys.get(index));
        }
        Ok(rebuilt.inner(node.level, row))
    }
}

/// Returns the sizes of as few pieces as possible of at most `most`; the sizes differ by at most one.
fn pieces(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let pieces = count.div_ceil(most).max(1);
    (0..pieces).map(move |index| count / pieces + usize::from(index < count % pieces))
}

impl Rebuilt {
    /// Builds leaves with the entries of a leaf and these pairs.
    fn leaves(&mut self, leaf: &Node, pairs: &[(u64, u64)]) -> Row {
        let mut all: Vec<(u64, u64)> = Vec::with_capacity(leaf.keys.len() + pairs.len());
        let mut had = leaf.keys.iter().copied().zip(leaf.places.iter().copied()).peekable();
        for &(key, value) in pairs {
            while let Some(one) = had.next_if(|one| one.0 < key) {
                all.push(one);
            }
            match had.next_if(|one| one.0 == key) {
                Some((_, old)) => self.replaced.push(old),
                None => self.inserted += 1,
            }
            all.push((key, value));
        }
        all.extend(had);
        let mut row = Row::default();
        let mut rest = &all[..];
        for size in pieces(all.len(), KEYS) {
            let (mine, others) = rest.split_at(size);
            rest = others;
            let (keys, places): (Vec<u64>, Vec<u64>) = mine.iter().copied().unzip();
            if !others.is_empty() {
                row.between.extend(keys.last());
            }
            row.children.push(self.add_fresh(Node { level: 0, keys, places }, Vec::new()));
        }
        row
    }

    /// Builds the inner nodes above a row.
    fn inner(&mut self, level: u8, below: Row) -> Row {
        let mut row = Row::default();
        let (mut children, mut between) = (below.children.into_iter(), below.between.into_iter());
        for size in pieces(children.len(), KEYS + 1) {
            let mine: Vec<Child> = children.by_ref().take(size).collect();
            let keys = between.by_ref().take(size - 1).collect();
            row.children.push(self.add_fresh(Node { level, keys, places: Vec::new() }, mine));
            row.between.extend(between.next());
        }
        row
    }

    fn add_fresh(&mut self, node: Node, children: Vec<Child>) -> Child {
        self.fresh.push((node, children));
        Child::New(self.fresh.len() - 1)
    }

    /// Returns the number of new nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.fresh.len()
    }

    /// Assigns these addresses to the nodes. Returns the addresses and bytes to write, and the root's address.
    ///
    /// # Panics
    /// If there are fewer addresses than [`Rebuilt::count`].
    pub fn place<'a>(&'a mut self, addresses: &'a [u64]) -> (impl Iterator<Item = (u64, Vec<u8>)> + 'a, u64) {
        let root = self.fresh.len().checked_sub(1).map_or(0, |last| addresses[last]);
        let written = self.fresh.iter_mut().zip(addresses).map(|((node, children), &address)| {
            if node.level != 0 {
                let at = |child: &Child| match *child {
                    Child::Old(address) => address,
                    Child::New(index) => addresses[index],
                };
                node.places = children.iter().map(at).collect();
            }
            (address, node.to_bytes())
        });
        (written, root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the path of a key, as `ordered_path` emits it, in nodes by address.
    fn path(nodes: &HashMap<u64, Node>, root: u64, key: u64) -> Vec<u8> {
        let (mut path, mut at) = (Vec::new(), root);
        while let Some(node) = nodes.get(&at) {
            path.extend(at.to_le_bytes());
            path.extend(node.to_bytes());
            if node.level == 0 {
                break;
            }
            at = node.places[node.lower_bound(key)];
        }
        path
    }

    fn all(nodes: &HashMap<u64, Node>, at: u64, found: &mut Vec<(u64, u64)>) {
        let Some(node) = nodes.get(&at) else { return };
        assert!(
            node.keys.len() <= KEYS && node.places.len() == node.keys.len() + usize::from(node.level != 0)
        );
        assert!(node.level != 0 || !node.keys.is_empty(), "no empty leaf");
        if node.level == 0 {
            found.extend(node.keys.iter().copied().zip(node.places.iter().copied()));
            return;
        }
        for (index, &place) in node.places.iter().enumerate() {
            let from = found.len();
            all(nodes, place, found);
            assert_eq!(nodes[&place].level + 1, node.level);
            if let Some(&last) = node.keys.get(index) {
                assert!(found[from..].iter().all(|one| one.0 <= last), "keys under child {index}");
                assert!(index == 0 || found[from..].iter().all(|one| one.0 > node.keys[index - 1]));
            }
        }
    }

    #[test]
    fn any_batches_make_the_tree_that_they_say() {
        let mut random = 7_u64;
        let mut draw = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        for round in 0..60 {
            let span = [40, 400, 40_000, u64::MAX >> 34][round % 4];
            let (mut nodes, mut root, mut next) = (HashMap::new(), 0, 16);
            let mut expected = std::collections::BTreeMap::new();
            for _ in 0..12 {
                let start = draw(span);
                let mut pairs: Vec<(u64, u64)> = (0..=draw(300))
                    .map(|index| (if round % 3 == 0 { start + index } else { draw(span) }, draw(1 << 30)))
                    .collect();
                pairs.sort_by_key(|pair| pair.0);
                pairs.dedup_by_key(|pair| pair.0);
                let mut part = PartialTree::default();
                for &(key, _) in &pairs {
                    if !part.covers(key) {
                        assert!(part.add(&path(&nodes, root, key)).expect("a path"));
                    }
                }
                let mut rebuilt = part.put(&pairs).expect("whole paths");
                let addresses: Vec<u64> =
                    (0..rebuilt.count() as u64).map(|index| next + 16 * index).collect();
                next += 16 * addresses.len() as u64;
                let (written, fresh) = rebuilt.place(&addresses);
                let written: Vec<_> = written.collect();
                root = fresh;
                for old in &rebuilt.old {
                    nodes.remove(old).expect("an old node");
                }
                for (address, bytes) in written {
                    nodes.insert(address, Node::parse(address, &bytes).expect("a node"));
                }
                let before = expected.len() as u64;
                let replaced = pairs.iter().filter_map(|(key, value)| expected.insert(*key, *value)).count();
                assert_eq!(rebuilt.replaced.len(), replaced);
                assert_eq!(rebuilt.inserted, expected.len() as u64 - before);
                let mut found = Vec::new();
                all(&nodes, root, &mut found);
                assert_eq!(found, expected.clone().into_iter().collect::<Vec<_>>(), "round {round}");
            }
        }
    }

    #[test]
    fn a_path_of_another_root_is_refused() {
        let leaf = Node { level: 0, keys: vec![1], places: vec![1] };
        let mut part = PartialTree::default();
        let nodes = HashMap::from([(16, leaf.clone()), (32, leaf)]);
        assert!(part.add(&path(&nodes, 16, 1)).expect("a path"));
        assert!(!part.add(&path(&nodes, 32, 1)).expect("a path"));
        assert!(!part.add(&[]).expect("an empty tree"));
    }

    #[test]
    fn nodes_that_lead_in_a_circle_are_damage() {
        let inner = |level, place| Node { level, keys: Vec::new(), places: vec![place] };
        let leaf = Node { level: 0, keys: vec![1], places: vec![1] };
        let emitted = |path: &[(u64, &Node)]| -> Vec<u8> {
            path.iter().flat_map(|(at, node)| [&at.to_le_bytes()[..], &node.to_bytes()].concat()).collect()
        };
        let mut part = PartialTree::default();
        let paths = [
            emitted(&[(16, &inner(2, 32)), (32, &inner(1, 48)), (48, &leaf)]),
            emitted(&[(16, &inner(2, 16)), (64, &inner(1, 16)), (48, &leaf)]),
        ];
        assert!(paths.iter().all(|path| part.add(path).is_ok_and(|same| same)));
        for damaged in [
            emitted(&[(16, &inner(2, 32)), (48, &leaf)]),
            emitted(&[(16, &inner(2, 32))]),
            emitted(&[(16, &inner(2, 32)), (32, &inner(1, 48)), (16, &leaf)]),
            vec![0; 7],
        ] {
            assert!(part.add(&damaged).is_err());
        }
        let mut circle = PartialTree::default();
        circle.nodes.extend([(16, inner(1, 16)), (32, inner(2, 16))]);
        circle.root = Some(16);
        assert!(!circle.covers(1) && circle.put(&[(1, 1)]).is_err());
    }
}
