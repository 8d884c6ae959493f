// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A skip list: a sorted map without rotations or splits.
//!
//! - **Layout** [`SkipListRoot`]: 12 links; a node: its links, key, value. Nodes come in three sizes, of 2, 4 and 12 links, so
//!   that the many low ones are small. A link is a pointer whose low four bits name the size of what it points to
//! - **Draw** each further level one time in four; the draws are numbered and seeded by the root, so a replay gives the same list
//! - **Source** W. Pugh, Skip lists: a probabilistic alternative to balanced trees, CACM 1990

use std::cmp::Ordering;
use std::fmt;
use std::mem::{offset_of, replace};
use std::ops::Bound;

use super::{at_most, damaged, spread};
use crate::Persist;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::tx::Tx;
use crate::view::View;

const LEVELS: usize = 12;

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct SkipNode<K, V, const HEIGHT: usize> {
    links: [u64; HEIGHT],
    key: K,
    value: V,
}

type Small<K, V> = SkipNode<K, V, 2>;
type Middle<K, V> = SkipNode<K, V, 4>;
type Large<K, V> = SkipNode<K, V, LEVELS>;

/// Where a list starts; kept in the pool.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub struct SkipListRoot<K: Persist, V: Persist> {
    len: u64,
    drawn: u64,
    seed: u64,
    section: u64,
    links: [u64; LEVELS],
    nodes: PPtr<SkipNode<K, V, LEVELS>>,
}

/// A sorted map from K to V, as a skip list.
///
/// ```
/// use memlift_persist::{Error, Options, Pool, structures::SkipList};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("ages.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
/// let list = pool.tx(|t| {
///     let list: SkipList<u64, u64> = SkipList::create(t)?;
///     t.set_root(list.pointer())?;
///     list.insert(t, 7, 70)?;
///     Ok::<_, Error>(list)
/// })?;
/// assert_eq!(pool.read(|r| list.get(r, &7).map(Option::<&u64>::copied))?, Some(70));
/// # Ok::<_, Error>(())
/// ```
pub struct SkipList<K: Persist, V: Persist> {
    root: PPtr<SkipListRoot<K, V>>,
}

impl<K: Persist, V: Persist> Clone for SkipList<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Persist, V: Persist> Copy for SkipList<K, V> {}

impl<K: Persist, V: Persist> fmt::Debug for SkipList<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SkipList({:#x})", self.root.offset())
    }
}

/// Calls `$with` with the pointer of the size that a link names.
macro_rules! sized {
    ($link:expr, $pointer:ident => $with:expr) => {{
        let offset = $link & !15;
        match $link & 15 {
            0 => {
                let $pointer = PPtr::<Small<K, V>>::from_offset(offset);
                $with
            }
            1 => {
                let $pointer = PPtr::<Middle<K, V>>::from_offset(offset);
                $with
            }
            2 => {
                let $pointer = PPtr::<Large<K, V>>::from_offset(offset);
                $with
            }
            _ => Err(damaged("a link of a skip list names no size of nodes")),
        }
    }};
}

/// A node, whatever its size.
struct Seen<'v, K, V> {
    links: &'v [u64],
    key: &'v K,
    value: &'v V,
}

#[inline]
fn see<'v, K: Persist, V: Persist, W: View>(view: &'v W, link: u64) -> Result<Seen<'v, K, V>> {
    sized!(link, pointer => {
        let node = view.get(pointer)?;
        Ok(Seen { links: &node.links, key: &node.key, value: &node.value })
    })
}

/// Links before a place, by level: the node that has them, 0 for the root.
struct Before {
    links: [u64; LEVELS],
}

impl<K: Persist + Ord, V: Persist> SkipList<K, V> {
    /// A new, empty list in the transaction's home section.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`].
    pub fn create(t: &mut Tx<'_>) -> Result<Self> {
        SkipList::create_in(t, t.home(), 0)
    }

    /// A new, empty list in a section that the transaction holds, with a seed for its draws.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`], [`crate::Error::Section`].
    pub fn create_in(t: &mut Tx<'_>, section: u16, seed: u64) -> Result<Self> {
        let section_word = u64::from(section);
        let root = SkipListRoot {
            len: 0,
            drawn: 0,
            seed,
            section: section_word,
            links: [0; LEVELS],
            nodes: PPtr::NULL,
        };
        Ok(SkipList { root: t.alloc_in(section, root)? })
    }

    /// The list that starts at `root`.
    pub fn open(root: PPtr<SkipListRoot<K, V>>) -> Self {
        SkipList { root }
    }

    /// Where it starts; keep this.
    pub fn pointer(&self) -> PPtr<SkipListRoot<K, V>> {
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

    /// The node of a key, 0 if there is none, and where a new one goes in. `visit` is told of each level's last link before it.
    #[inline(always)]
    fn descend<'v, W: View>(
        &self,
        view: &'v W,
        key: &K,
        mut visit: impl FnMut(usize, u64),
    ) -> Result<(u64, Option<Seen<'v, K, V>>)> {
        let root = view.get(self.root)?;
        let (mut links, mut at, mut compared) = (&root.links[..], 0, 0);
        let mut steps = at_most(view, root.len) + LEVELS as u64;
        let mut found = (0, None);
        for level in (0..LEVELS).rev() {
            loop {
                let next = *links.get(level).ok_or_else(|| damaged("a node of a skip list is too low"))?;
                if next == 0 || next == compared {
                    break;
                }
                let seen = see::<K, V, W>(view, next)?;
                match seen.key.cmp(key) {
                    Ordering::Less => (links, at) = (seen.links, next),
                    order => {
                        if order == Ordering::Equal {
                            found = (next, Some(seen));
                        }
                        compared = next;
                        break;
                    }
                }
                steps = steps.checked_sub(1).ok_or_else(|| damaged("a skip list goes in a circle"))?;
            }
            visit(level, at);
        }
        Ok(found)
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    #[inline]
    pub fn get<'v, W: View>(&self, view: &'v W, key: &K) -> Result<Option<&'v V>> {
        Ok(self.descend(view, key, |_, _| {})?.1.map(|seen| seen.value))
    }

    /// The value of a key, to be changed.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn get_mut<'t>(&self, t: &'t mut Tx<'_>, key: &K) -> Result<Option<&'t mut V>> {
        match self.descend(t, key, |_, _| {})?.0 {
            0 => Ok(None),
            link => self.value_mut(t, link).map(Some),
        }
    }

    fn value_mut<'t>(&self, t: &'t mut Tx<'_>, link: u64) -> Result<&'t mut V> {
        let offset = link & !15;
        match link & 15 {
            0 => t.part_mut(PPtr::<Small<K, V>>::from_offset(offset), offset_of!(Small<K, V>, value)),
            1 => t.part_mut(PPtr::<Middle<K, V>>::from_offset(offset), offset_of!(Middle<K, V>, value)),
            _ => t.part_mut(PPtr::<Large<K, V>>::from_offset(offset), offset_of!(Large<K, V>, value)),
        }
    }

    /// Sets a node's link, or the root's.
    #[inline]
    fn set(&self, t: &mut Tx<'_>, node: u64, level: usize, to: u64) -> Result<()> {
        if node == 0 {
            *t.part_mut(self.root, offset_of!(SkipListRoot<K, V>, links) + level * 8)? = to;
            return Ok(());
        }
        sized!(node, pointer => {
            *t.part_mut(pointer, level * 8)? = to; // links come first
            Ok(())
        })
    }

    fn link<W: View>(&self, view: &W, node: u64, level: usize) -> Result<u64> {
        let links =
            if node == 0 { &view.get(self.root)?.links[..] } else { see::<K, V, W>(view, node)?.links };
        links.get(level).copied().ok_or_else(|| damaged("a node of a skip list is too low"))
    }

    /// Puts an entry in; gives back the value that the key had.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`]; as [`Tx::get_mut`].
    pub fn insert(&self, t: &mut Tx<'_>, key: K, value: V) -> Result<Option<V>> {
        let mut before = Before { links: [0; LEVELS] };
        let (found, _) = self.descend(t, &key, |level, at| before.links[level] = at)?;
        if found != 0 {
            return Ok(Some(replace(self.value_mut(t, found)?, value)));
        }
        let root = t.get(self.root)?;
        let (section, len, drawn) = (root.section as u16, root.len, root.drawn);
        let draw = spread(root.seed.wrapping_add(drawn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let height = (1 + draw.trailing_zeros() as usize / 2).min(LEVELS);
        let mut links = [0; LEVELS];
        for (level, link) in links.iter_mut().enumerate().take(height) {
            *link = self.link(t, before.links[level], level)?;
        }
        let new = if height <= 2 {
            let node: Small<K, V> = SkipNode { links: [links[0], links[1]], key, value };
            t.alloc_in(section, node)?.offset()
        } else if height <= 4 {
            let node: Middle<K, V> = SkipNode { links: [links[0], links[1], links[2], links[3]], key, value };
            t.alloc_in(section, node)?.offset() | 1
        } else {
            let node: Large<K, V> = SkipNode { links, key, value };
            t.alloc_in(section, node)?.offset() | 2
        };
        for (level, at) in before.links.iter().enumerate().take(height) {
            self.set(t, *at, level, new)?;
        }
        let more = len.checked_add(1).ok_or_else(|| damaged("a skip list has too many entries"))?;
        *t.part_mut(self.root, offset_of!(SkipListRoot<K, V>, len))? = [more, drawn.wrapping_add(1)];
        Ok(None)
    }

    /// Takes an entry out and gives its value back.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn remove(&self, t: &mut Tx<'_>, key: &K) -> Result<Option<V>> {
        let mut before = Before { links: [0; LEVELS] };
        let (found, seen) = self.descend(t, key, |level, at| before.links[level] = at)?;
        let Some(seen) = seen else { return Ok(None) };
        let (value, height) = (*seen.value, seen.links.len());
        let mut links = [0; LEVELS];
        links[..height].copy_from_slice(seen.links);
        for (level, (at, link)) in before.links.into_iter().zip(links).enumerate().take(height) {
            if self.link(t, at, level)? == found {
                self.set(t, at, level, link)?;
            }
        }
        sized!(found, pointer => t.free(pointer))?;
        let len: &mut u64 = t.part_mut(self.root, offset_of!(SkipListRoot<K, V>, len))?;
        *len = len.checked_sub(1).ok_or_else(|| damaged("a skip list has fewer than no entries"))?;
        Ok(Some(value))
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
        self.from(view, Bound::Unbounded)
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
        let root = view.get(self.root)?;
        let mut at = match start {
            Bound::Unbounded => root.links[0],
            Bound::Included(key) | Bound::Excluded(key) => {
                let mut before = 0;
                let (found, seen) = self.descend(view, key, |_, at| before = at)?;
                match seen {
                    Some(seen) if matches!(start, Bound::Excluded(_)) => seen.links[0],
                    Some(_) => found,
                    None => self.link(view, before, 0)?,
                }
            }
        };
        let mut left = at_most(view, root.len);
        let mut step = move || -> Result<Option<(&'v K, &'v V)>> {
            if at == 0 {
                return Ok(None);
            }
            left = left.checked_sub(1).ok_or_else(|| damaged("a skip list goes in a circle"))?;
            let seen = see::<K, V, W>(view, at)?;
            at = seen.links[0];
            Ok(Some((seen.key, seen.value)))
        };
        let mut done = false;
        Ok(std::iter::from_fn(move || {
            let item = if done { None } else { step().transpose() };
            done = !matches!(item, Some(Ok(_)));
            item
        }))
    }

    /// The entry with the greatest key that is less than `key`.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn before<'v, W: View>(&self, view: &'v W, key: &K) -> Result<Option<(&'v K, &'v V)>> {
        let mut before = 0;
        self.descend(view, key, |_, at| before = at)?;
        if before == 0 {
            return Ok(None);
        }
        let seen = see::<K, V, W>(view, before)?;
        Ok(Some((seen.key, seen.value)))
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn last<'v, W: View>(&self, view: &'v W) -> Result<Option<(&'v K, &'v V)>> {
        let root = view.get(self.root)?;
        let (mut links, mut last, mut steps) = (&root.links[..], None, at_most(view, root.len));
        for level in (0..LEVELS).rev() {
            while let Some(next) = links.get(level).copied().filter(|next| *next != 0) {
                steps = steps.checked_sub(1).ok_or_else(|| damaged("a skip list goes in a circle"))?;
                let seen = see::<K, V, W>(view, next)?;
                (links, last) = (seen.links, Some((seen.key, seen.value)));
            }
        }
        Ok(last)
    }

    /// Takes everything out, in one transaction.
    ///
    /// # Errors
    ///
    /// [`crate::Error::TooLarge`] at the commit; as [`Tx::free`].
    pub fn clear(&self, t: &mut Tx<'_>) -> Result<()> {
        let root = *t.get(self.root)?;
        let mut at = root.links[0];
        while at != 0 {
            let next = see::<K, V, Tx<'_>>(t, at)?.links[0];
            sized!(at, pointer => t.free(pointer))?; // a circle ends here: nothing is freed twice
            at = next;
        }
        t.set(self.root, SkipListRoot { len: 0, links: [0; LEVELS], ..root })
    }

    /// Takes everything out and gives back the root; the pointer is stale then.
    ///
    /// # Errors
    ///
    /// As [`SkipList::clear`].
    pub fn destroy(self, t: &mut Tx<'_>) -> Result<()> {
        self.clear(t)?;
        t.free(self.root)
    }
}

const _: () =
    assert!(offset_of!(SkipListRoot<u64, u64>, drawn) == offset_of!(SkipListRoot<u64, u64>, len) + 8);
