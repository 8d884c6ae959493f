// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walking through a B+tree in the order of keys, and against it.
//!
//! - **Flow** forwards: down to the first leaf, then along the links. Backwards: down to the last leaf, then back through the
//!   path
//! - **Rule** a walk meets no empty leaf and no more entries than the tree has: a damaged file cannot make it go on for ever
//! - **Not here** changing entries while walking: the view is borrowed

use std::cmp::Ordering;
use std::ops::{Bound, RangeBounds};

use super::node::{BTreeInner, BTreeLeaf, Order};
use super::{BTree, Path};
use crate::Persist;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::structures::{Key, at_most, damaged};
use crate::view::{View, prefetch};

impl<K: Key, V: Persist> BTree<K, V> {
    /// All entries, keys ascending.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn iter<'v, W: View>(&self, view: &'v W) -> Result<Range<'v, W, K, V>> {
        self.walk(view, Bound::Unbounded, Bound::Unbounded)
    }

    /// All entries, keys descending.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn iter_back<'v, W: View>(&self, view: &'v W) -> Result<RangeBack<'v, W, K, V>> {
        self.walk_back(view, Bound::Unbounded, Bound::Unbounded)
    }

    /// The entries of a range, keys ascending.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn range<'v, W: View>(
        &self,
        view: &'v W,
        range: impl RangeBounds<&'v K::Query>,
    ) -> Result<Range<'v, W, K, V>> {
        self.walk(view, range.start_bound().cloned(), range.end_bound().cloned())
    }

    /// The entries of a range, keys descending.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn range_back<'v, W: View>(
        &self,
        view: &'v W,
        range: impl RangeBounds<&'v K::Query>,
    ) -> Result<RangeBack<'v, W, K, V>> {
        self.walk_back(view, range.start_bound().cloned(), range.end_bound().cloned())
    }

    fn walk<'v, W: View>(
        &self,
        view: &'v W,
        start: Bound<&'v K::Query>,
        end: Bound<&'v K::Query>,
    ) -> Result<Range<'v, W, K, V>> {
        let root = view.get(self.root)?;
        let left = at_most(view, root.len);
        let behind = [].iter();
        let mut range =
            Range { view, leaf: None, ahead: None, behind, order: Order::EMPTY, rank: 0, end, left };
        if root.top == 0 {
            return Ok(range);
        }
        let (first, rank) = match start {
            Bound::Unbounded => (view.get(root.first)?, 0),
            Bound::Included(key) | Bound::Excluded(key) => {
                let (leaf, behind) = root.leaves(view, key)?;
                let leaf = view.get(leaf)?;
                prefetch(leaf);
                range.behind = behind.get(1..).unwrap_or_default().iter();
                let (rank, found) = leaf.search(view, leaf.order()?, key)?;
                (leaf, rank + usize::from(found && matches!(start, Bound::Excluded(_))))
            }
        };
        (range.leaf, range.order, range.rank) = (Some(first), first.order()?, rank);
        range.read_ahead(first);
        Ok(range)
    }

    fn walk_back<'v, W: View>(
        &self,
        view: &'v W,
        start: Bound<&'v K::Query>,
        end: Bound<&'v K::Query>,
    ) -> Result<RangeBack<'v, W, K, V>> {
        let root = view.get(self.root)?;
        let (path, left) = (Path::new(), at_most(view, root.len));
        let mut range = RangeBack { view, path, leaf: None, order: Order::EMPTY, rank: 0, start, left };
        if root.top == 0 {
            return Ok(range);
        }
        let (leaf, rank) = match end {
            Bound::Unbounded => {
                let levels = root.levels()?;
                let leaf = range.go_down(root.top, levels)?;
                (leaf, leaf.order()?.count())
            }
            Bound::Included(key) | Bound::Excluded(key) => {
                let (path, leaf) = root.path(view, key)?;
                range.path = path;
                let leaf = view.get(leaf)?;
                let (rank, found) = leaf.search(view, leaf.order()?, key)?;
                (leaf, rank + usize::from(found && matches!(end, Bound::Included(_))))
            }
        };
        (range.leaf, range.order, range.rank) = (Some(leaf), leaf.order()?, rank);
        Ok(range)
    }
}

/// Leaves that a walk asks for with each leaf that it comes to.
const FURTHER: usize = 2;

/// Entries in ascending order; an item is an error when the file is damaged.
pub struct Range<'v, W, K: Key, V> {
    view: &'v W,
    leaf: Option<&'v BTreeLeaf<K, V>>,
    /// The one behind it, on its way from memory.
    ahead: Option<&'v BTreeLeaf<K, V>>,
    /// Leaves behind `ahead`, as far as the first leaf's inner node names them.
    behind: std::slice::Iter<'v, u64>,
    order: Order,
    rank: usize,
    end: Bound<&'v K::Query>,
    /// Entries that can still come.
    left: u64,
}

impl<'v, W: View, K: Key, V: Persist> Range<'v, W, K, V> {
    /// Asks for the leaf behind `leaf`. What is wrong with it is said when the walk gets there.
    #[inline]
    fn read_ahead(&mut self, leaf: &BTreeLeaf<K, V>) {
        self.ahead = if leaf.next.is_null() { None } else { self.view.get(leaf.next).ok() };
        if let Some(ahead) = self.ahead {
            prefetch(ahead);
        }
    }

    /// Asks for the leaves behind `ahead`, too. A leaf names only the next one, and says so only once it has come from memory: a walk
    /// that has gone past its first leaf does not wait for one after the other.
    #[inline]
    fn read_further(&mut self) {
        for at in self.behind.by_ref().take(FURTHER) {
            self.view.read_soon(*at, size_of::<BTreeLeaf<K, V>>());
        }
    }

    #[inline]
    fn step(&mut self) -> Result<Option<(&'v K, &'v V)>> {
        loop {
            let Some(leaf) = self.leaf else { return Ok(None) };
            if self.rank < self.order.count() {
                let slot = self.order.slot(self.rank);
                self.rank += 1;
                let key = leaf.key(slot)?;
                let within = match self.end {
                    Bound::Unbounded => true,
                    Bound::Included(end) => key.compare(self.view, end)? != Ordering::Greater,
                    Bound::Excluded(end) => key.compare(self.view, end)? == Ordering::Less,
                };
                if !within {
                    return Ok(None);
                }
                return leaf.value(slot).map(|value| Some((key, value)));
            }
            self.leaf = match (self.ahead, leaf.next.is_null()) {
                (_, true) => None,
                (Some(ahead), false) => Some(ahead),
                (None, false) => Some(self.view.get(leaf.next)?),
            };
            if let Some(next) = self.leaf {
                self.read_ahead(next);
                self.read_further();
                self.order = next.order()?;
                self.rank = 0;
                if self.order.count() == 0 || self.left == 0 {
                    return Err(damaged("the leaves of a B+tree go in a circle"));
                }
            }
        }
    }
}

impl<'v, W: View, K: Key, V: Persist> Iterator for Range<'v, W, K, V> {
    type Item = Result<(&'v K, &'v V)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step().transpose();
        if matches!(step, Some(Ok(_))) {
            self.left = self.left.saturating_sub(1);
        } else {
            self.leaf = None;
        }
        step
    }
}

/// Entries in descending order; an item is an error when the file is damaged.
pub struct RangeBack<'v, W, K: Key, V> {
    view: &'v W,
    path: Path<K>,
    leaf: Option<&'v BTreeLeaf<K, V>>,
    order: Order,
    rank: usize,
    start: Bound<&'v K::Query>,
    /// Entries that can still come.
    left: u64,
}

impl<'v, W: View, K: Key, V: Persist> RangeBack<'v, W, K, V> {
    /// The last leaf below a node.
    fn go_down(&mut self, mut at: u64, levels: usize) -> Result<&'v BTreeLeaf<K, V>> {
        for _ in 0..levels {
            let node = PPtr::<BTreeInner<K>>::from_offset(at);
            let inner = self.view.get(node)?;
            let last = inner.count()?;
            self.path.push(node, last);
            at = inner.children[last];
        }
        self.view.get(PPtr::from_offset(at))
    }

    fn step(&mut self) -> Result<Option<(&'v K, &'v V)>> {
        loop {
            let Some(leaf) = self.leaf else { return Ok(None) };
            if let Some(rank) = self.rank.checked_sub(1) {
                self.rank = rank;
                let slot = self.order.slot(rank);
                let key = leaf.key(slot)?;
                let within = match self.start {
                    Bound::Unbounded => true,
                    Bound::Included(start) => key.compare(self.view, start)? != Ordering::Less,
                    Bound::Excluded(start) => key.compare(self.view, start)? == Ordering::Greater,
                };
                if !within {
                    return Ok(None);
                }
                return leaf.value(slot).map(|value| Some((key, value)));
            }
            self.leaf = self.before()?;
            if let Some(leaf) = self.leaf {
                self.order = leaf.order()?;
                self.rank = self.order.count();
                if self.rank == 0 || self.left == 0 {
                    return Err(damaged("a leaf of a B+tree comes twice, or is empty"));
                }
            }
        }
    }

    /// The leaf before: up to where the way can be further to the left, and down again.
    fn before(&mut self) -> Result<Option<&'v BTreeLeaf<K, V>>> {
        let mut levels = 0;
        while let Some((node, child)) = self.path.pop() {
            if let Some(left) = child.checked_sub(1) {
                self.path.push(node, left);
                let at = self.view.get(node)?.children[left];
                return self.go_down(at, levels).map(Some);
            }
            levels += 1;
        }
        Ok(None)
    }
}

impl<'v, W: View, K: Key, V: Persist> Iterator for RangeBack<'v, W, K, V> {
    type Item = Result<(&'v K, &'v V)>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step().transpose();
        if matches!(step, Some(Ok(_))) {
            self.left = self.left.saturating_sub(1);
        } else {
            self.leaf = None;
        }
        step
    }
}
