// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taking entries out of a B+tree.
//!
//! - **Flow** the slot is freed ─▶ a low leaf joins a neighbour, if they fit together ─▶ their separator leaves the parent ─▶ a
//!   low inner node joins a neighbour, or borrows from it ─▶ a top with one child goes
//! - **Rule** a leaf is never empty, an inner node but the top has `INNER_LOW` keys or more. Leaves that do not fit together stay
//!   low: the two have enough entries as they are

use std::mem::offset_of;

use super::node::{BTreeInner, BTreeLeaf, INNER_LOW, KEYS, LEAF_JOIN, LEAF_LOW, SLOTS};
use super::{BTree, BTreeRoot, Path};
use crate::Persist;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::structures::{Key, damaged};
use crate::tx::Tx;
use crate::view::View;

impl<K: Key, V: Persist> BTree<K, V> {
    /// Takes an entry out and gives its value back.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn remove(&self, t: &mut Tx<'_>, key: &K::Query) -> Result<Option<V>> {
        let root = *t.get(self.root)?;
        if root.top == 0 {
            return Ok(None);
        }
        let at = root.leaf(t, key)?;
        let leaf = t.get(at)?;
        let order = leaf.order()?;
        let (rank, found) = leaf.search(t, order, key)?;
        if !found {
            return Ok(None);
        }
        let slot = order.slot(rank);
        let (stored, value) = (*leaf.key(slot)?, *leaf.value(slot)?);
        let order = order.remove(rank);
        if order.count() < LEAF_LOW {
            let (path, _) = root.path(t, key)?; // while the key's bytes are still there
            *t.part_mut(at, offset_of!(BTreeLeaf<K, V>, order))? = order.word();
            self.join_leaf(t, &root, path, at)?;
        } else {
            *t.part_mut(at, offset_of!(BTreeLeaf<K, V>, order))? = order.word();
        }
        stored.discard(t)?;
        self.count(t, -1)?;
        Ok(Some(value))
    }

    /// Takes the entry with the least key out.
    ///
    /// # Errors
    ///
    /// As [`BTree::remove`].
    pub fn pop_first(&self, t: &mut Tx<'_>) -> Result<Option<(K, V)>>
    where
        K: Key<Query = K>,
    {
        let Some(key) = self.first(t)?.map(|(key, _)| *key) else { return Ok(None) };
        Ok(self.remove(t, &key)?.map(|value| (key, value)))
    }

    #[cold]
    fn join_leaf(
        &self,
        t: &mut Tx<'_>,
        root: &BTreeRoot<K, V>,
        mut path: Path<K>,
        at: PPtr<BTreeLeaf<K, V>>,
    ) -> Result<()> {
        let count = t.get(at)?.order()?.count();
        let Some((parent, child)) = path.pop() else {
            if count == 0 {
                t.free(at)?;
                t.set(self.root, BTreeRoot { top: 0, height: 0, first: PPtr::NULL, ..*root })?;
            }
            return Ok(());
        };
        let node = t.get(parent)?;
        let neighbours = [
            child.checked_sub(1).map(|left| (left, node.children[left])),
            (child < node.count()?).then(|| (child, node.children[child + 1])),
        ];
        for (separator, neighbour) in neighbours.into_iter().flatten() {
            let neighbour = PPtr::<BTreeLeaf<K, V>>::from_offset(neighbour);
            let theirs = t.get(neighbour)?.order()?.count();
            if count != 0 && count + theirs > LEAF_JOIN || count + theirs > SLOTS {
                continue;
            }
            let (left, right) = if separator == child { (at, neighbour) } else { (neighbour, at) };
            let from = *t.get(right)?;
            let from_order = from.order()?;
            let target = t.get_mut(left)?;
            let mut order = target.order()?;
            for rank in 0..from_order.count() {
                let slot = from_order.slot(rank);
                target.set(order.slot(order.count()), *from.key(slot)?, *from.value(slot)?)?;
                order = order.insert(order.count());
            }
            target.order = order.word();
            target.next = from.next;
            t.free(right)?;
            return self.lower(t, root, path, parent, separator);
        }
        if count == 0 { Err(damaged("a leaf of a B+tree has no neighbour")) } else { Ok(()) }
    }

    /// Takes a separator out of `node`, the last of the way, and the child behind it; mends what gets low, upwards.
    fn lower(
        &self,
        t: &mut Tx<'_>,
        root: &BTreeRoot<K, V>,
        mut path: Path<K>,
        mut node: PPtr<BTreeInner<K>>,
        mut separator: usize,
    ) -> Result<()> {
        let gone = t.get_mut(node)?.remove(separator)?;
        gone.discard(t)?;
        loop {
            let count = t.get(node)?.count()?;
            let Some((parent, child)) = path.pop() else {
                if count == 0 {
                    let only = t.get(node)?.children[0];
                    t.free(node)?;
                    let place: &mut [u64; 2] = t.part_mut(self.root, offset_of!(BTreeRoot<K, V>, top))?;
                    *place = [only, root.height - 1];
                }
                return Ok(());
            };
            if count >= INNER_LOW {
                return Ok(());
            }
            let above = *t.get(parent)?;
            let (left, right);
            (separator, left, right) = match child {
                0 if above.count()? == 0 => return Err(damaged("an inner node of a B+tree has one child")),
                0 => (0, node, PPtr::from_offset(above.children[1])),
                _ => (child - 1, PPtr::from_offset(above.children[child - 1]), node),
            };
            let between = above.keys[separator];
            let (theirs, ours) = t.two_mut(left, right)?;
            let (few, many) = (theirs.count()?, ours.count()?);
            if few + many < KEYS {
                theirs.join(between, ours);
                t.free(right)?;
                t.get_mut(parent)?.remove(separator)?; // the separator came down: it is not discarded
                node = parent;
                continue;
            }
            let up = if left == node {
                let up = ours.keys[0];
                theirs.insert(few, between, ours.children[0])?;
                ours.children[0] = ours.children[1];
                ours.remove(0)?;
                up
            } else {
                let (up, child) = (theirs.keys[few - 1], theirs.children[few]);
                theirs.count -= 1;
                let first = ours.children[0];
                ours.insert(0, between, first)?;
                ours.children[0] = child;
                up
            };
            t.get_mut(parent)?.keys[separator] = up;
            return Ok(());
        }
    }
}
