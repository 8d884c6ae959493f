// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A B+tree: a sorted map.
//!
//! - **Flow** descent through inner nodes ─▶ leaf ─▶ slot. Insert: into a free slot, else the leaf is split (`insert`). Remove:
//!   frees the slot; a leaf that gets low joins its neighbour (`remove`)
//! - **Layout** [`BTreeRoot`]: the top node and its height; nodes: `node`. An empty tree has no node
//! - **Cost** an insert logs a key, a value, the leaf's order and the length: 136 bytes with u64 keys and 64-byte values
//! - **Not here** scans: `range`

use std::cmp::Ordering;
use std::fmt;
use std::mem::offset_of;

use super::{Key, damaged};
use crate::Persist;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::tx::Tx;
use crate::view::{View, prefetch};

mod insert;
mod node;
mod range;
mod relocate;
mod remove;

pub use range::{Range, RangeBack};
pub(crate) use relocate::Next;

use node::{BTreeInner, BTreeLeaf};

/// More levels than any tree that fits a file has.
const LEVELS_MAX: usize = 16;

/// Where a tree starts; kept in the pool.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub struct BTreeRoot<K, V> {
    top: u64,
    height: u64,
    len: u64,
    section: u64,
    first: PPtr<BTreeLeaf<K, V>>,
}

/// A sorted map from K to V, as a B+tree. Keys are of 4, 8 or more bytes: a leaf has no room for padding.
///
/// ```
/// use memlift_persist::{Error, Options, Pool, structures::BTree};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("ages.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
/// let tree = pool.tx(|t| {
///     let tree: BTree<u64, u64> = BTree::create(t)?;
///     t.set_root(tree.pointer())?;
///     tree.insert(t, &7, 70)?;
///     tree.insert(t, &3, 30)?;
///     Ok::<_, Error>(tree)
/// })?;
/// pool.read(|r| {
///     assert_eq!(tree.get(r, &7)?, Some(&70));
///     let all: Vec<(u64, u64)> = tree.iter(r)?.map(|entry| entry.map(|(k, v)| (*k, *v))).collect::<Result<_, _>>()?;
///     assert_eq!(all, [(3, 30), (7, 70)]);
///     Ok::<_, Error>(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
pub struct BTree<K, V> {
    root: PPtr<BTreeRoot<K, V>>,
}

impl<K, V> Clone for BTree<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for BTree<K, V> {}

impl<K, V> fmt::Debug for BTree<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BTree({:#x})", self.root.offset())
    }
}

/// A leaf, by its offset in the heap, and the slot of an entry in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryPlace {
    pub leaf: u64,
    pub slot: usize,
}

/// The way down to a leaf: inner nodes and which child of each.
struct Path<K> {
    steps: [(PPtr<BTreeInner<K>>, usize); LEVELS_MAX],
    depth: usize,
}

/// A path and the leaf at its end.
type Way<K, V> = (Path<K>, PPtr<BTreeLeaf<K, V>>);
/// A leaf, and the places of those behind it in the same inner node.
type Leaves<'v, K, V> = (PPtr<BTreeLeaf<K, V>>, &'v [u64]);

impl<K> Path<K> {
    fn new() -> Path<K> {
        Path { steps: [(PPtr::NULL, 0); LEVELS_MAX], depth: 0 }
    }

    fn push(&mut self, node: PPtr<BTreeInner<K>>, child: usize) {
        self.steps[self.depth] = (node, child);
        self.depth += 1;
    }

    fn pop(&mut self) -> Option<(PPtr<BTreeInner<K>>, usize)> {
        self.depth = self.depth.checked_sub(1)?;
        Some(self.steps[self.depth])
    }
}

impl<K: Key, V: Persist> BTreeRoot<K, V> {
    #[inline]
    fn levels(&self) -> Result<usize> {
        if self.height >= LEVELS_MAX as u64 {
            return Err(damaged("a B+tree has more levels than any"));
        }
        Ok(self.height as usize)
    }

    /// The leaf where `query` is or would be; the tree is not empty.
    #[inline(always)]
    fn leaf<W: View>(&self, view: &W, query: &K::Query) -> Result<PPtr<BTreeLeaf<K, V>>> {
        self.leaves(view, query).map(|(leaf, _)| leaf)
    }

    /// The leaf, as `leaf` finds it, and those behind it in the same inner node.
    #[inline(always)]
    fn leaves<'v, W: View>(&self, view: &'v W, query: &K::Query) -> Result<Leaves<'v, K, V>> {
        let (mut at, mut behind) = (self.top, &[][..]);
        for _ in 0..self.levels()? {
            let inner = view.get(PPtr::<BTreeInner<K>>::from_offset(at))?;
            prefetch(inner);
            let child = inner.child(view, query)?;
            at = inner.children[child];
            behind = inner.children.get(child + 1..=inner.count()?).unwrap_or_default();
        }
        Ok((PPtr::from_offset(at), behind))
    }

    /// The leaf, as `leaf` finds it, and the path to it.
    fn path<W: View>(&self, view: &W, query: &K::Query) -> Result<Way<K, V>> {
        let (mut path, mut at) = (Path::new(), self.top);
        for _ in 0..self.levels()? {
            let node = PPtr::<BTreeInner<K>>::from_offset(at);
            let inner = view.get(node)?;
            let child = inner.child(view, query)?;
            path.push(node, child);
            at = inner.children[child];
        }
        Ok((path, PPtr::from_offset(at)))
    }
}

impl<K: Key, V: Persist> BTree<K, V> {
    /// A new, empty tree in the transaction's home section.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`].
    pub fn create(t: &mut Tx<'_>) -> Result<Self> {
        BTree::create_in(t, t.home())
    }

    /// A new, empty tree in a section that the transaction holds.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`], [`crate::Error::Section`].
    pub fn create_in(t: &mut Tx<'_>, section: u16) -> Result<Self> {
        let root = BTreeRoot { top: 0, height: 0, len: 0, section: u64::from(section), first: PPtr::NULL };
        Ok(BTree { root: t.alloc_in(section, root)? })
    }

    /// The tree that starts at `root`.
    pub fn open(root: PPtr<BTreeRoot<K, V>>) -> Self {
        BTree { root }
    }

    /// Where it starts; keep this.
    pub fn pointer(&self) -> PPtr<BTreeRoot<K, V>> {
        self.root
    }

    /// How many entries it has.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn len<W: View>(&self, view: &W) -> Result<u64> {
        Ok(view.get(self.root)?.len)
    }

    /// Returns true if the map has no entries.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn is_empty<W: View>(&self, view: &W) -> Result<bool> {
        Ok(self.len(view)? == 0)
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    #[inline]
    pub fn get<'v, W: View>(&self, view: &'v W, key: &K::Query) -> Result<Option<&'v V>> {
        let root = view.get(self.root)?;
        if root.top == 0 {
            return Ok(None);
        }
        let leaf = view.get(root.leaf(view, key)?)?;
        prefetch(leaf);
        let order = leaf.order()?;
        match leaf.search(view, order, key)? {
            (rank, true) => leaf.value(order.slot(rank)).map(Some),
            _ => Ok(None),
        }
    }

    /// Where a key's entry is now.
    pub(crate) fn place<W: View>(&self, view: &W, key: &K::Query) -> Result<Option<EntryPlace>> {
        let root = view.get(self.root)?;
        if root.top == 0 {
            return Ok(None);
        }
        let at = root.leaf(view, key)?;
        let leaf = view.get(at)?;
        leaf.prefetch_head();
        let order = leaf.order()?;
        let (rank, found) = leaf.search(view, order, key)?;
        Ok(found.then(|| EntryPlace { leaf: at.offset(), slot: order.slot(rank) }))
    }

    /// The value of a key, if its entry is at a place that [`BTree::place`] gave once. A leaf whose slot is taken is in a tree: in this
    /// one, as long as the section has no other tree of these types.
    #[inline]
    pub(crate) fn at<'v, W: View>(&self, view: &'v W, place: EntryPlace, key: &K::Query) -> Option<&'v V> {
        let leaf = view.get(PPtr::<BTreeLeaf<K, V>>::from_offset(place.leaf)).ok()?;
        if !view.is_taken(leaf, place.leaf) {
            return None;
        }
        let order = leaf.order().ok()?;
        let in_use = (0..order.count()).any(|rank| order.slot(rank) == place.slot);
        if !in_use || leaf.key(place.slot).ok()?.compare(view, key).ok()? != Ordering::Equal {
            return None;
        }
        leaf.value(place.slot).ok()
    }

    /// The value at a place that [`BTree::place`] has just given.
    pub(crate) fn value_at<'v, W: View>(&self, view: &'v W, place: EntryPlace) -> Result<&'v V> {
        view.get(PPtr::<BTreeLeaf<K, V>>::from_offset(place.leaf))?.value(place.slot)
    }

    /// As [`BTree::value_at`], to be changed.
    pub(crate) fn value_at_mut<'t>(&self, t: &'t mut Tx<'_>, place: EntryPlace) -> Result<&'t mut V> {
        let leaf = PPtr::<BTreeLeaf<K, V>>::from_offset(place.leaf);
        t.part_mut(leaf, BTreeLeaf::<K, V>::value_at(place.slot))
    }

    /// The value of a key, to be changed.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn get_mut<'t>(&self, t: &'t mut Tx<'_>, key: &K::Query) -> Result<Option<&'t mut V>> {
        let root = t.get(self.root)?;
        if root.top == 0 {
            return Ok(None);
        }
        let at = root.leaf(t, key)?;
        let leaf = t.get(at)?;
        let order = leaf.order()?;
        match leaf.search(t, order, key)? {
            (rank, true) => t.part_mut(at, BTreeLeaf::<K, V>::value_at(order.slot(rank))).map(Some),
            _ => Ok(None),
        }
    }

    /// The entry with the least key.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn first<'v, W: View>(&self, view: &'v W) -> Result<Option<(&'v K, &'v V)>> {
        self.iter(view)?.next().transpose()
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn last<'v, W: View>(&self, view: &'v W) -> Result<Option<(&'v K, &'v V)>> {
        self.iter_back(view)?.next().transpose()
    }

    /// Takes everything out. All of it is one transaction: a very large tree wants to be emptied in steps, by `remove`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::TooLarge`] at the commit; as [`Tx::free`].
    pub fn clear(&self, t: &mut Tx<'_>) -> Result<()> {
        let root = *t.get(self.root)?;
        if root.top != 0 {
            self.free_below(t, root.top, root.levels()?)?;
        }
        t.set(self.root, BTreeRoot { top: 0, height: 0, len: 0, first: PPtr::NULL, ..root })
    }

    fn free_below(&self, t: &mut Tx<'_>, at: u64, height: usize) -> Result<()> {
        if height == 0 {
            let leaf = PPtr::<BTreeLeaf<K, V>>::from_offset(at);
            let node = *t.get(leaf)?;
            let order = node.order()?;
            for rank in 0..order.count() {
                node.key(order.slot(rank))?.discard(t)?;
            }
            return t.free(leaf);
        }
        let inner = PPtr::<BTreeInner<K>>::from_offset(at);
        let node = *t.get(inner)?;
        let count = node.count()?;
        for key in &node.keys[..count] {
            key.discard(t)?;
        }
        for child in &node.children[..=count] {
            self.free_below(t, *child, height - 1)?;
        }
        t.free(inner)
    }

    /// Takes everything out and gives back the root; the pointer is stale then.
    ///
    /// # Errors
    ///
    /// As [`BTree::clear`].
    pub fn destroy(self, t: &mut Tx<'_>) -> Result<()> {
        self.clear(t)?;
        t.free(self.root)
    }

    fn count(&self, t: &mut Tx<'_>, more: i64) -> Result<()> {
        let len: &mut u64 = t.part_mut(self.root, offset_of!(BTreeRoot<K, V>, len))?;
        *len = len.checked_add_signed(more).ok_or_else(|| damaged("a B+tree has fewer than no entries"))?;
        Ok(())
    }
}
