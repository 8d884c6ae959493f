// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Putting entries into a B+tree.
//!
//! - **Flow** leaf with room: key, value, order ─▶ full leaf: the upper half moves to a new one, its first key goes to the parent
//!   ─▶ full parent: the same there ─▶ a new top
//! - **Why** at the right end a split moves nothing: keys that arrive in order fill their leaves
//! - **Order** the way up is looked up only when a leaf is full, once in several inserts

use std::mem::{offset_of, replace};

use super::node::{BTreeInner, BTreeLeaf, KEYS, Order, SLOTS};
use super::{BTree, BTreeRoot, LEVELS_MAX, Path};
use crate::Persist;
use crate::error::{Error, Result};
use crate::ptr::PPtr;
use crate::structures::Key;
use crate::tx::Tx;
use crate::view::View;

impl<K: Key, V: Persist> BTree<K, V> {
    /// Puts an entry in; gives back the value that the key had.
    ///
    /// # Errors
    ///
    /// [`Error::Full`]; as [`Tx::get_mut`].
    #[inline]
    pub fn insert(&self, t: &mut Tx<'_>, key: &K::Query, value: V) -> Result<Option<V>> {
        let root = *t.get(self.root)?;
        let section = root.section as u16;
        if root.top == 0 {
            let key = K::store(t, section, key)?;
            let leaf = t.alloc_in(section, BTreeLeaf::with(key, value))?;
            t.set(self.root, BTreeRoot { top: leaf.offset(), height: 0, len: 1, first: leaf, ..root })?;
            return Ok(None);
        }
        let at = root.leaf(t, key)?;
        let leaf = t.get(at)?;
        leaf.prefetch_head();
        let order = leaf.order()?;
        let (rank, found) = leaf.search(t, order, key)?;
        if found {
            let place = t.part_mut(at, BTreeLeaf::<K, V>::value_at(order.slot(rank)))?;
            return Ok(Some(replace(place, value)));
        }
        let stored = K::store(t, section, key)?;
        if order.count() < SLOTS {
            put(t, at, order, rank, stored, value)?;
        } else {
            self.split(t, &root, key, (stored, value))?;
        }
        self.count(t, 1)?;
        Ok(None)
    }

    #[cold]
    fn split(&self, t: &mut Tx<'_>, root: &BTreeRoot<K, V>, query: &K::Query, entry: (K, V)) -> Result<()> {
        let section = root.section as u16;
        let (path, at) = root.path(t, query)?;
        let mut right = *t.get(at)?;
        let order = right.order()?;
        let (rank, _) = right.search(t, order, query)?;
        let behind_all = rank == SLOTS && right.next.is_null();
        let stay = if behind_all { SLOTS } else { SLOTS / 2 };
        let mut right_order = order.without_first(stay);
        let goes_right = behind_all || rank > stay;
        if goes_right {
            let slot = right_order.slot(right_order.count());
            right_order = right_order.insert(rank - stay);
            right.set(slot, entry.0, entry.1)?;
        }
        right.order = right_order.word();
        let separator = right.key(right_order.slot(0))?.duplicate(t, section)?;
        let new = t.alloc_in(section, right)?;
        let left = order.first(stay);
        *t.part_mut::<_, [u64; 2]>(at, offset_of!(BTreeLeaf<K, V>, order))? = [left.word(), new.offset()];
        if !goes_right {
            put(t, at, left, rank, entry.0, entry.1)?;
        }
        self.raise(t, root, path, separator, new.offset())
    }

    /// Puts a separator and the node behind it into the inner nodes of the path, from below.
    fn raise(
        &self,
        t: &mut Tx<'_>,
        root: &BTreeRoot<K, V>,
        mut path: Path<K>,
        mut key: K,
        mut child: u64,
    ) -> Result<()> {
        let section = root.section as u16;
        while let Some((node, at)) = path.pop() {
            let inner = t.get_mut(node)?;
            if inner.count()? < KEYS {
                return inner.insert(at, key, child);
            }
            // At the right end little moves, as in leaves.
            let middle = if at == KEYS { KEYS - 2 } else { KEYS / 2 };
            let (up, mut right) = inner.split(middle);
            if at <= middle {
                inner.insert(at, key, child)?;
            } else {
                right.insert(at - middle - 1, key, child)?;
            }
            (key, child) = (up, t.alloc_in(section, right)?.offset());
        }
        if root.height + 1 >= LEVELS_MAX as u64 {
            return Err(Error::Argument { what: "the B+tree has as many levels as it can".to_owned() });
        }
        let mut children = [0; KEYS + 1];
        children[..2].copy_from_slice(&[root.top, child]);
        let top = t.alloc_in(section, BTreeInner { count: 1, children, keys: [key; KEYS] })?;
        let place: &mut [u64; 2] = t.part_mut(self.root, offset_of!(BTreeRoot<K, V>, top))?;
        *place = [top.offset(), root.height + 1];
        Ok(())
    }
}

/// Puts an entry into a leaf that has room.
#[inline]
pub(super) fn put<K: Key, V: Persist>(
    t: &mut Tx<'_>,
    leaf: PPtr<BTreeLeaf<K, V>>,
    order: Order,
    rank: usize,
    key: K,
    value: V,
) -> Result<()> {
    let slot = order.slot(order.count());
    *t.part_mut(leaf, BTreeLeaf::<K, V>::key_at(slot))? = key;
    *t.part_mut(leaf, BTreeLeaf::<K, V>::value_at(slot))? = value;
    *t.part_mut(leaf, offset_of!(BTreeLeaf<K, V>, order))? = order.insert(rank).word();
    Ok(())
}
