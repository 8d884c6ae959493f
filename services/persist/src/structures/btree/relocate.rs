// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moving the nodes of a B+tree, and the bytes of its keys, out of slabs that a compaction closed.
//!
//! - **Flow** the way to a leaf, from the top: each node that has to move is copied, and the link to it changed ─▶ the leaf, with the link
//!   from the leaf before it ─▶ bytes of its keys; its values are the caller's
//! - **Not here** which slabs are closed: `compact`

use std::mem::offset_of;

use super::node::{BTreeInner, BTreeLeaf};
use super::{BTree, BTreeRoot, Path};
use crate::Persist;
use crate::closing::Moving;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::structures::Key;
use crate::tx::Tx;
use crate::view::View;

/// Where a relocation goes on.
pub(crate) enum Next<K> {
    /// With the same leaf: it has more than one transaction may move.
    Same,
    /// With the leaf whose first key this is.
    Leaf(K),
    /// Nowhere: this was the last leaf.
    End,
}

impl<K: Key, V: Persist> BTree<K, V> {
    /// Tags of the nodes of such a tree.
    pub(crate) fn tags() -> [u32; 2] {
        [BTreeInner::<K>::TAG, BTreeLeaf::<K, V>::TAG]
    }

    /// Moves what the leaf of `query`, and the way to it, have in closed slabs. `moved` gives the value that takes another's place.
    pub(crate) fn relocate(
        &self,
        t: &mut Tx<'_>,
        query: &K::Query,
        moving: &mut Moving,
        mut moved: impl FnMut(&mut Tx<'_>, &mut Moving, V) -> Result<Option<V>>,
    ) -> Result<Next<K>> {
        let root = *t.get(self.root)?;
        if root.top == 0 {
            return Ok(Next::End);
        }
        let section = root.section as u16;
        let (mut path, mut leaf) = root.path(t, query)?;
        for level in 0..path.depth {
            let (mut node, child) = path.steps[level];
            if moving.takes(t, section, node.offset()) {
                let copy = *t.get(node)?;
                let new = t.alloc_in(section, copy)?;
                self.link(t, &path, level, new.offset())?;
                t.free(node)?;
                path.steps[level].0 = new;
                node = new;
            }
            // Each separator is behind one child only.
            let inner = t.get(node)?;
            if child < inner.count()? {
                let key = inner.keys[child];
                if let Some(new) = key_moved(t, section, moving, key)? {
                    t.get_mut(node)?.keys[child] = new;
                }
            }
        }
        if moving.takes(t, section, leaf.offset()) {
            let copy = *t.get(leaf)?;
            let new = t.alloc_in(section, copy)?;
            match before(t, &path)? {
                Some(before) => t.get_mut::<BTreeLeaf<K, V>>(before)?.next = new,
                None => *t.part_mut(self.root, offset_of!(BTreeRoot<K, V>, first))? = new,
            }
            self.link(t, &path, path.depth, new.offset())?;
            t.free(leaf)?;
            leaf = new;
        }
        let node = *t.get(leaf)?;
        let order = node.order()?;
        for rank in 0..order.count() {
            let slot = order.slot(rank);
            if let Some(new) = key_moved(t, section, moving, *node.key(slot)?)? {
                *t.part_mut(leaf, BTreeLeaf::<K, V>::key_at(slot))? = new;
            }
            if let Some(new) = moved(t, moving, *node.value(slot)?)? {
                *t.part_mut(leaf, BTreeLeaf::<K, V>::value_at(slot))? = new;
            }
        }
        if moving.is_full() {
            return Ok(Next::Same);
        }
        if node.next.is_null() {
            return Ok(Next::End);
        }
        let behind = t.get(node.next)?;
        Ok(Next::Leaf(*behind.key(behind.order()?.slot(0))?))
    }

    /// Changes the link to the node of a level: the root's, or the one in the node above.
    fn link(&self, t: &mut Tx<'_>, path: &Path<K>, level: usize, place: u64) -> Result<()> {
        match level.checked_sub(1) {
            None => *t.part_mut(self.root, offset_of!(BTreeRoot<K, V>, top))? = place,
            Some(above) => {
                let (node, child) = path.steps[above];
                t.get_mut(node)?.children[child] = place;
            }
        }
        Ok(())
    }
}

/// The leaf before the one at the end of a path.
fn before<K: Key, V: Persist>(t: &Tx<'_>, path: &Path<K>) -> Result<Option<PPtr<BTreeLeaf<K, V>>>> {
    let Some(level) = (0..path.depth).rev().find(|level| path.steps[*level].1 > 0) else { return Ok(None) };
    let (node, child) = path.steps[level];
    let mut at = t.get(node)?.children[child - 1];
    for _ in level + 1..path.depth {
        let inner = t.get(PPtr::<BTreeInner<K>>::from_offset(at))?;
        at = inner.children[inner.count()?];
    }
    Ok(Some(PPtr::from_offset(at)))
}

/// A key with its bytes elsewhere, if those are to move.
fn key_moved<K: Key>(t: &mut Tx<'_>, section: u16, moving: &mut Moving, key: K) -> Result<Option<K>> {
    let place = key.place();
    if place == 0 || !moving.takes(t, section, place) {
        return Ok(None);
    }
    let new = key.duplicate(t, section)?;
    key.discard(t)?;
    Ok(Some(new))
}
