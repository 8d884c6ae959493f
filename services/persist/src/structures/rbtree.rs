// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A red-black tree: a sorted map with an object per entry.
//!
//! - **Layout** [`RbTreeRoot`] ─▶ nodes: left, right, colour, key, value. No way up: a path remembers it while a change is under
//!   way
//! - **Why** without parents a rotation changes four words; with them, seven. All words before the key are lent as one part
//! - **Source** Guibas and Sedgewick 1978; cases as in Cormen et al., chapter 13
//! - **Not here** moving nodes: an entry with two children takes over key and value of its successor, whose node goes

use std::cmp::Ordering;
use std::fmt;
use std::mem::{offset_of, replace};
use std::ops::Bound;

use super::{at_most, damaged};
use crate::Persist;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::tx::Tx;
use crate::view::View;

/// Twice the levels that a balanced tree of 2⁴⁸ nodes has.
const DEPTH_MAX: usize = 96;

type Node<K, V> = PPtr<RbNode<K, V>>;

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct RbNode<K, V> {
    children: [PPtr<RbNode<K, V>>; 2],
    red: u64,
    key: K,
    value: V,
}

/// Where a tree starts; kept in the pool.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub struct RbTreeRoot<K: Persist, V: Persist> {
    top: PPtr<RbNode<K, V>>,
    len: u64,
    section: u64,
}

/// A sorted map from K to V, as a red-black tree. `BTree` is faster at everything but moves its entries.
///
/// ```
/// use memlift_persist::{Error, Options, Pool, structures::RbTree};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("ages.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
/// let tree = pool.tx(|t| {
///     let tree: RbTree<u64, u64> = RbTree::create(t)?;
///     t.set_root(tree.pointer())?;
///     tree.insert(t, 7, 70)?;
///     Ok::<_, Error>(tree)
/// })?;
/// assert_eq!(pool.read(|r| tree.get(r, &7).map(Option::<&u64>::copied))?, Some(70));
/// # Ok::<_, Error>(())
/// ```
pub struct RbTree<K: Persist, V: Persist> {
    root: PPtr<RbTreeRoot<K, V>>,
}

impl<K: Persist, V: Persist> Clone for RbTree<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Persist, V: Persist> Copy for RbTree<K, V> {}

impl<K: Persist, V: Persist> fmt::Debug for RbTree<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RbTree({:#x})", self.root.offset())
    }
}

/// The way down: nodes, and to which side it went on.
struct Path<K, V> {
    steps: [(Node<K, V>, usize); DEPTH_MAX],
    depth: usize,
}

impl<K: Persist, V: Persist> Path<K, V> {
    fn new() -> Self {
        Path { steps: [(PPtr::NULL, 0); DEPTH_MAX], depth: 0 }
    }

    #[inline]
    fn push(&mut self, node: Node<K, V>, side: usize) -> Result<()> {
        let step =
            self.steps.get_mut(self.depth).ok_or_else(|| damaged("a red-black tree is deeper than any"))?;
        *step = (node, side);
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) -> Option<(Node<K, V>, usize)> {
        self.depth = self.depth.checked_sub(1)?;
        Some(self.steps[self.depth])
    }

    fn last(&self) -> Option<(Node<K, V>, usize)> {
        Some(self.steps[self.depth.checked_sub(1)?])
    }
}

fn child<K: Persist, V: Persist, W: View>(view: &W, node: Node<K, V>, side: usize) -> Result<Node<K, V>> {
    Ok(view.get(node)?.children[side])
}

fn is_red<K: Persist, V: Persist, W: View>(view: &W, node: Node<K, V>) -> Result<bool> {
    Ok(!node.is_null() && view.get(node)?.red != 0)
}

fn set_child<K: Persist, V: Persist>(
    t: &mut Tx<'_>,
    node: Node<K, V>,
    side: usize,
    to: Node<K, V>,
) -> Result<()> {
    *t.part_mut(node, offset_of!(RbNode<K, V>, children) + side * 8)? = to;
    Ok(())
}

fn set_red<K: Persist, V: Persist>(t: &mut Tx<'_>, node: Node<K, V>, red: bool) -> Result<()> {
    if is_red(t, node)? != red {
        *t.part_mut(node, offset_of!(RbNode<K, V>, red))? = u64::from(red);
    }
    Ok(())
}

/// Rotates: the child on the other side takes the node's place, and the node becomes its child on `side`. The caller changes the
/// link to the node.
fn rotate<K: Persist, V: Persist>(t: &mut Tx<'_>, node: Node<K, V>, side: usize) -> Result<Node<K, V>> {
    let riser = child(t, node, 1 - side)?;
    let between = child(t, riser, side)?;
    set_child(t, node, 1 - side, between)?;
    set_child(t, riser, side, node)?;
    Ok(riser)
}

impl<K: Persist + Ord, V: Persist> RbTree<K, V> {
    /// A new, empty tree in the transaction's home section.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`].
    pub fn create(t: &mut Tx<'_>) -> Result<Self> {
        RbTree::create_in(t, t.home())
    }

    /// A new, empty tree in a section that the transaction holds.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`], [`crate::Error::Section`].
    pub fn create_in(t: &mut Tx<'_>, section: u16) -> Result<Self> {
        let root = RbTreeRoot { top: PPtr::NULL, len: 0, section: u64::from(section) };
        Ok(RbTree { root: t.alloc_in(section, root)? })
    }

    /// The tree that starts at `root`.
    pub fn open(root: PPtr<RbTreeRoot<K, V>>) -> Self {
        RbTree { root }
    }

    /// Where it starts; keep this.
    pub fn pointer(&self) -> PPtr<RbTreeRoot<K, V>> {
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

    #[inline]
    fn find<W: View>(&self, view: &W, key: &K) -> Result<Node<K, V>> {
        let mut at = view.get(self.root)?.top;
        for _ in 0..=DEPTH_MAX {
            if at.is_null() {
                return Ok(at);
            }
            let node = view.get(at)?;
            at = match key.cmp(&node.key) {
                Ordering::Equal => return Ok(at),
                Ordering::Less => node.children[0],
                Ordering::Greater => node.children[1],
            };
        }
        Err(damaged("a red-black tree is deeper than any"))
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    #[inline]
    pub fn get<'v, W: View>(&self, view: &'v W, key: &K) -> Result<Option<&'v V>> {
        let at = self.find(view, key)?;
        if at.is_null() { Ok(None) } else { Ok(Some(&view.get(at)?.value)) }
    }

    /// The value of a key, to be changed.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn get_mut<'t>(&self, t: &'t mut Tx<'_>, key: &K) -> Result<Option<&'t mut V>> {
        let at = self.find(t, key)?;
        if at.is_null() { Ok(None) } else { t.part_mut(at, offset_of!(RbNode<K, V>, value)).map(Some) }
    }

    /// The way to a key's node and the node; null where it would be.
    #[inline]
    fn path<W: View>(&self, view: &W, key: &K) -> Result<(Path<K, V>, Node<K, V>)> {
        let (mut path, mut at) = (Path::new(), view.get(self.root)?.top);
        while !at.is_null() {
            let node = view.get(at)?;
            let side = match key.cmp(&node.key) {
                Ordering::Equal => break,
                Ordering::Less => 0,
                Ordering::Greater => 1,
            };
            path.push(at, side)?;
            at = node.children[side];
        }
        Ok((path, at))
    }

    /// Makes the link at the end of `path` lead to `node`.
    fn lead(&self, t: &mut Tx<'_>, path: &Path<K, V>, node: Node<K, V>) -> Result<()> {
        match path.last() {
            Some((above, side)) => set_child(t, above, side, node),
            None => {
                *t.part_mut(self.root, offset_of!(RbTreeRoot<K, V>, top))? = node;
                Ok(())
            }
        }
    }

    fn count(&self, t: &mut Tx<'_>, more: i64) -> Result<()> {
        let len: &mut u64 = t.part_mut(self.root, offset_of!(RbTreeRoot<K, V>, len))?;
        *len = len
            .checked_add_signed(more)
            .ok_or_else(|| damaged("a red-black tree has fewer than no entries"))?;
        Ok(())
    }

    /// Puts an entry in; gives back the value that the key had.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`]; as [`Tx::get_mut`].
    pub fn insert(&self, t: &mut Tx<'_>, key: K, value: V) -> Result<Option<V>> {
        let (mut path, at) = self.path(t, &key)?;
        if !at.is_null() {
            let place = t.part_mut(at, offset_of!(RbNode<K, V>, value))?;
            return Ok(Some(replace(place, value)));
        }
        let (section, red) = (t.get(self.root)?.section as u16, u64::from(path.depth > 0));
        let mut node = t.alloc_in(section, RbNode { children: [PPtr::NULL; 2], red, key, value })?;
        self.lead(t, &path, node)?;
        self.count(t, 1)?;
        // `node` is red; what is wrong, if anything, is that its parent is red too.
        while let Some((mut parent, side)) = path.pop() {
            if !is_red(t, parent)? {
                return Ok(None);
            }
            let Some((grand, parent_side)) = path.pop() else {
                set_red(t, parent, false)?;
                return Ok(None);
            };
            let uncle = child(t, grand, 1 - parent_side)?;
            if is_red(t, uncle)? {
                set_red(t, parent, false)?;
                set_red(t, uncle, false)?;
                if path.depth == 0 {
                    return Ok(None); // the top stays black
                }
                set_red(t, grand, true)?;
                node = grand;
                continue;
            }
            if side != parent_side {
                parent = rotate(t, parent, parent_side)?;
                debug_assert!(parent == node);
                set_child(t, grand, parent_side, parent)?;
            }
            set_red(t, parent, false)?;
            set_red(t, grand, true)?;
            let riser = rotate(t, grand, 1 - parent_side)?;
            self.lead(t, &path, riser)?;
            return Ok(None);
        }
        Ok(None)
    }

    /// Takes an entry out and gives its value back.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn remove(&self, t: &mut Tx<'_>, key: &K) -> Result<Option<V>> {
        let (mut path, mut at) = self.path(t, key)?;
        if at.is_null() {
            return Ok(None);
        }
        let found = *t.get(at)?;
        if !found.children[0].is_null() && !found.children[1].is_null() {
            let target = at;
            path.push(at, 1)?;
            at = found.children[1];
            loop {
                let left = child(t, at, 0)?;
                if left.is_null() {
                    break;
                }
                path.push(at, 0)?;
                at = left;
            }
            let successor = *t.get(at)?;
            *t.part_mut(target, offset_of!(RbNode<K, V>, key))? = successor.key;
            *t.part_mut(target, offset_of!(RbNode<K, V>, value))? = successor.value;
        }
        let node = *t.get(at)?;
        let below = if node.children[0].is_null() { node.children[1] } else { node.children[0] };
        self.lead(t, &path, below)?;
        t.free(at)?;
        self.count(t, -1)?;
        if node.red == 0 {
            if is_red(t, below)? {
                set_red(t, below, false)?;
            } else {
                self.blacken(t, path)?;
            }
        }
        Ok(Some(found.value))
    }

    /// The side at the end of the path has one black node too few.
    fn blacken(&self, t: &mut Tx<'_>, mut path: Path<K, V>) -> Result<()> {
        while let Some((parent, side)) = path.pop() {
            let mut sibling = child(t, parent, 1 - side)?;
            if is_red(t, sibling)? {
                set_red(t, sibling, false)?;
                set_red(t, parent, true)?;
                rotate(t, parent, side)?;
                self.lead(t, &path, sibling)?;
                path.push(sibling, side)?;
                sibling = child(t, parent, 1 - side)?;
            }
            if sibling.is_null() {
                return Err(damaged("a red-black tree is not balanced"));
            }
            let [near, far] = [side, 1 - side].map(|side| child(t, sibling, side));
            let (near, mut far) = (near?, far?);
            if !is_red(t, near)? && !is_red(t, far)? {
                set_red(t, sibling, true)?;
                if is_red(t, parent)? {
                    return set_red(t, parent, false);
                }
                continue;
            }
            if !is_red(t, far)? {
                far = sibling;
                sibling = rotate(t, sibling, 1 - side)?;
                set_child(t, parent, 1 - side, sibling)?;
            }
            let red = is_red(t, parent)?;
            set_red(t, sibling, red)?;
            set_red(t, parent, false)?;
            set_red(t, far, false)?;
            let riser = rotate(t, parent, side)?;
            return self.lead(t, &path, riser);
        }
        Ok(())
    }

    /// All entries, keys ascending. Items are errors when the file is damaged.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn iter<'v, W: View>(
        &self,
        view: &'v W,
    ) -> Result<impl Iterator<Item = Result<(&'v K, &'v V)>> + use<'v, W, K, V>> {
        self.walk(view, Bound::Unbounded, 1)
    }

    /// All entries, keys descending.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn iter_back<'v, W: View>(
        &self,
        view: &'v W,
    ) -> Result<impl Iterator<Item = Result<(&'v K, &'v V)>> + use<'v, W, K, V>> {
        self.walk(view, Bound::Unbounded, 0)
    }

    /// Entries with keys from `start` on, ascending.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn from<'v, W: View>(
        &self,
        view: &'v W,
        start: Bound<&K>,
    ) -> Result<impl Iterator<Item = Result<(&'v K, &'v V)>> + use<'v, W, K, V>> {
        self.walk(view, start, 1)
    }

    /// Entries with keys from `start` down, descending.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn from_back<'v, W: View>(
        &self,
        view: &'v W,
        start: Bound<&K>,
    ) -> Result<impl Iterator<Item = Result<(&'v K, &'v V)>> + use<'v, W, K, V>> {
        self.walk(view, start, 0)
    }

    /// Entries towards `side` (1: ascending). Nodes that are still to come, the next one last, are kept with what is behind them.
    fn walk<'v, W: View>(
        &self,
        view: &'v W,
        start: Bound<&K>,
        side: usize,
    ) -> Result<impl Iterator<Item = Result<(&'v K, &'v V)>> + use<'v, W, K, V>> {
        let root = view.get(self.root)?;
        let (mut waiting, mut left) = (Vec::new(), at_most(view, root.len));
        let (mut at, mut depth) = (root.top, 0);
        while !at.is_null() {
            let node = view.get(at)?;
            let comes = match start {
                Bound::Unbounded => true,
                Bound::Included(start) => node.key == *start || (node.key > *start) == (side == 1),
                Bound::Excluded(start) => node.key != *start && (node.key > *start) == (side == 1),
            };
            if comes {
                waiting.push(node);
            }
            depth += 1;
            if depth > DEPTH_MAX {
                return Err(damaged("a red-black tree is deeper than any"));
            }
            at = node.children[if comes { 1 - side } else { side }];
        }
        let mut step = move || -> Result<Option<(&'v K, &'v V)>> {
            let Some(node) = waiting.pop() else { return Ok(None) };
            left = left.checked_sub(1).ok_or_else(|| damaged("a red-black tree goes in a circle"))?;
            let mut at = node.children[side];
            while !at.is_null() {
                let node = view.get(at)?;
                waiting.push(node);
                if waiting.len() > DEPTH_MAX {
                    return Err(damaged("a red-black tree is deeper than any"));
                }
                at = node.children[1 - side];
            }
            Ok(Some((&node.key, &node.value)))
        };
        let mut done = false;
        Ok(std::iter::from_fn(move || {
            let item = if done { None } else { step().transpose() };
            done = !matches!(item, Some(Ok(_)));
            item
        }))
    }

    /// Checks what makes it a red-black tree: no red node has a red child, all ways down have as many black nodes, keys ascend,
    /// and the entries are as many as counted.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Corrupt`] says what is not so.
    pub fn check<W: View>(&self, view: &W) -> Result<()> {
        let root = view.get(self.root)?;
        let mut count = 0;
        self.check_below(view, root.top, false, 0, &mut count, at_most(view, root.len))?;
        let mut last: Option<&K> = None;
        for entry in self.iter(view)? {
            let (key, _) = entry?;
            if last.is_some_and(|last| last >= key) {
                return Err(damaged("keys of a red-black tree do not ascend"));
            }
            last = Some(key);
        }
        if count != root.len {
            return Err(damaged("a red-black tree has not as many entries as it says"));
        }
        Ok(())
    }

    fn check_below<W: View>(
        &self,
        view: &W,
        at: Node<K, V>,
        above_red: bool,
        depth: usize,
        count: &mut u64,
        most: u64,
    ) -> Result<u32> {
        if at.is_null() {
            return Ok(0);
        }
        *count += 1;
        let node = view.get(at)?;
        if node.red != 0 && above_red || depth > DEPTH_MAX || *count > most {
            return Err(damaged("a red-black tree has a red node below a red one, or a circle"));
        }
        let [left, right] =
            node.children.map(|child| self.check_below(view, child, node.red != 0, depth + 1, count, most));
        let (left, right) = (left?, right?);
        if left != right {
            return Err(damaged("a red-black tree is not balanced"));
        }
        Ok(left + u32::from(node.red == 0))
    }

    /// Takes everything out, in one transaction.
    ///
    /// # Errors
    ///
    /// [`crate::Error::TooLarge`] at the commit; as [`Tx::free`].
    pub fn clear(&self, t: &mut Tx<'_>) -> Result<()> {
        let root = *t.get(self.root)?;
        let mut waiting = vec![root.top];
        while let Some(at) = waiting.pop() {
            if !at.is_null() {
                waiting.extend(t.get(at)?.children);
                t.free(at)?; // a circle ends here: nothing is freed twice
            }
        }
        t.set(self.root, RbTreeRoot { top: PPtr::NULL, len: 0, ..root })
    }

    /// Takes everything out and gives back the root; the pointer is stale then.
    ///
    /// # Errors
    ///
    /// As [`RbTree::clear`].
    pub fn destroy(self, t: &mut Tx<'_>) -> Result<()> {
        self.clear(t)?;
        t.free(self.root)
    }
}
