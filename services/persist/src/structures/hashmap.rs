// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash map that grows by one bucket at a time.
//!
//! - **Flow** hash ─▶ bucket ─▶ its segment, by two tables ─▶ chain of nodes. An insert that makes entries more than buckets
//!   splits one bucket in two; a remove that leaves a quarter joins buckets again, so memory goes back
//! - **Layout** [`HashMapRoot`] ─▶ 256 directories ─▶ 512 segments each ─▶ 256 buckets each; a node: next, key, value
//! - **Why** linear hashing: no transaction moves more than one chain. A table that doubles would log all of itself at once
//! - **Source** W. Litwin, Linear hashing: a new tool for file and table addressing, VLDB 1980

use std::fmt;
use std::mem::{offset_of, replace};

use super::{at_most, damaged, spread};
use crate::Persist;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::tx::Tx;
use crate::view::View;

const BUCKETS: u64 = 256;
const SEGMENTS: u64 = 512;
const DIRECTORIES: u64 = 256;
/// Buckets that are joined at most by one remove.
const JOINS: usize = 4;

/// A key that says how it is hashed: the same in every program and release, for the file keeps the order of buckets.
pub trait Hashed: Persist + Eq {
    /// A well spread number; `seed` is the map's own.
    fn hashed(&self, seed: u64) -> u64;
}

macro_rules! hashed {
    ($($number:ident)*) => {$(
        impl Hashed for $number {
            #[inline]
            fn hashed(&self, seed: u64) -> u64 {
                spread(*self as u64 ^ seed)
            }
        }
    )*};
}

hashed!(u8 u16 u32 u64 i8 i16 i32 i64);

impl<const N: usize> Hashed for [u8; N] {
    fn hashed(&self, seed: u64) -> u64 {
        let (words, rest) = self.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain(std::iter::once(&last));
        words.fold(seed, |hash, word| spread(hash.rotate_left(29) ^ u64::from_le_bytes(*word)))
    }
}

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct HashNode<K, V> {
    next: PPtr<HashNode<K, V>>,
    key: K,
    value: V,
}

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct HashSegment<K: Persist, V: Persist> {
    buckets: [PPtr<HashNode<K, V>>; BUCKETS as usize],
}

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct HashDirectory<K: Persist, V: Persist> {
    segments: [PPtr<HashSegment<K, V>>; SEGMENTS as usize],
}

/// Where a map starts; kept in the pool.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub struct HashMapRoot<K: Persist, V: Persist> {
    len: u64,
    buckets: u64,
    seed: u64,
    section: u64,
    directories: [PPtr<HashDirectory<K, V>>; DIRECTORIES as usize],
}

/// An unsorted map from K to V.
///
/// ```
/// use memlift_persist::{Error, Options, Pool, structures::HashMap};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("ages.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
/// let map = pool.tx(|t| {
///     let map: HashMap<u64, u64> = HashMap::create(t)?;
///     t.set_root(map.pointer())?;
///     map.insert(t, 7, 70)?;
///     Ok::<_, Error>(map)
/// })?;
/// assert_eq!(pool.read(|r| map.get(r, &7).map(Option::<&u64>::copied))?, Some(70));
/// # Ok::<_, Error>(())
/// ```
pub struct HashMap<K: Persist, V: Persist> {
    root: PPtr<HashMapRoot<K, V>>,
}

impl<K: Persist, V: Persist> Clone for HashMap<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Persist, V: Persist> Copy for HashMap<K, V> {}

impl<K: Persist, V: Persist> fmt::Debug for HashMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashMap({:#x})", self.root.offset())
    }
}

/// A pointer to a node, by where it is kept.
enum Link<K: Persist, V: Persist> {
    Bucket(PPtr<HashSegment<K, V>>, usize),
    Node(PPtr<HashNode<K, V>>),
}

/// The link that leads to a node, and the node; null where the chain ends.
type Found<K, V> = (Link<K, V>, PPtr<HashNode<K, V>>);

impl<K: Hashed, V: Persist> Link<K, V> {
    #[inline]
    fn read<W: View>(&self, view: &W) -> Result<PPtr<HashNode<K, V>>> {
        Ok(match self {
            Link::Bucket(segment, at) => view.get(*segment)?.buckets[*at],
            Link::Node(node) => view.get(*node)?.next,
        })
    }

    /// Nothing is touched when it says so already.
    #[inline]
    fn write(&self, t: &mut Tx<'_>, target: PPtr<HashNode<K, V>>) -> Result<()> {
        if self.read(t)? != target {
            let place = match self {
                Link::Bucket(segment, at) => t.part_mut(*segment, at * 8)?,
                Link::Node(node) => t.part_mut(*node, offset_of!(HashNode<K, V>, next))?,
            };
            *place = target;
        }
        Ok(())
    }
}

/// The bits that number so many buckets.
#[inline]
fn mask(buckets: u64) -> u64 {
    buckets.checked_next_power_of_two().map_or(u64::MAX, |beyond| beyond - 1)
}

impl<K: Hashed, V: Persist> HashMapRoot<K, V> {
    /// The bucket of a hash: as many low bits as number the buckets, one less if that one is not split off yet.
    #[inline]
    fn bucket(&self, hash: u64) -> u64 {
        let mask = mask(self.buckets);
        let bucket = hash & mask;
        if bucket < self.buckets { bucket } else { bucket & (mask >> 1) }
    }

    #[inline]
    fn link<W: View>(&self, view: &W, bucket: u64) -> Result<Link<K, V>> {
        let segment = bucket / BUCKETS;
        let directory = self.directories.get((segment / SEGMENTS) as usize);
        let directory = view.get(*directory.ok_or_else(|| damaged("a hash map has too many buckets"))?)?;
        Ok(Link::Bucket(directory.segments[(segment % SEGMENTS) as usize], (bucket % BUCKETS) as usize))
    }
}

impl<K: Hashed, V: Persist> HashMap<K, V> {
    /// A new, empty map in the transaction's home section.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`].
    pub fn create(t: &mut Tx<'_>) -> Result<Self> {
        HashMap::create_in(t, t.home())
    }

    /// A new, empty map in a section that the transaction holds.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`], [`crate::Error::Section`].
    pub fn create_in(t: &mut Tx<'_>, section: u16) -> Result<Self> {
        use std::hash::{BuildHasher, RandomState};
        let seed = RandomState::new().hash_one(section);
        let directories = [PPtr::NULL; DIRECTORIES as usize];
        let root = HashMapRoot { len: 0, buckets: 0, seed, section: u64::from(section), directories };
        Ok(HashMap { root: t.alloc_in(section, root)? })
    }

    /// The map that starts at `root`.
    pub fn open(root: PPtr<HashMapRoot<K, V>>) -> Self {
        HashMap { root }
    }

    /// Where it starts; keep this.
    pub fn pointer(&self) -> PPtr<HashMapRoot<K, V>> {
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

    /// The link that leads to a key's node, or to nothing.
    #[inline]
    fn find<W: View>(&self, view: &W, root: &HashMapRoot<K, V>, key: &K) -> Result<Found<K, V>> {
        let mut link = root.link(view, root.bucket(key.hashed(root.seed)))?;
        for _ in 0..=at_most(view, root.len) {
            let at = link.read(view)?;
            if at.is_null() || view.get(at)?.key == *key {
                return Ok((link, at));
            }
            link = Link::Node(at);
        }
        Err(damaged("a chain of a hash map goes in a circle"))
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    #[inline]
    pub fn get<'v, W: View>(&self, view: &'v W, key: &K) -> Result<Option<&'v V>> {
        let root = view.get(self.root)?;
        if root.buckets == 0 {
            return Ok(None);
        }
        let mut at = root.link(view, root.bucket(key.hashed(root.seed)))?.read(view)?;
        for _ in 0..=at_most(view, root.len) {
            if at.is_null() {
                return Ok(None);
            }
            let node = view.get(at)?;
            if node.key == *key {
                return Ok(Some(&node.value));
            }
            at = node.next;
        }
        Err(damaged("a chain of a hash map goes in a circle"))
    }

    /// The value of a key, to be changed.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn get_mut<'t>(&self, t: &'t mut Tx<'_>, key: &K) -> Result<Option<&'t mut V>> {
        let root = t.get(self.root)?;
        if root.buckets == 0 {
            return Ok(None);
        }
        let (_, at) = self.find(t, root, key)?;
        if at.is_null() {
            return Ok(None);
        }
        t.part_mut(at, offset_of!(HashNode<K, V>, value)).map(Some)
    }

    /// Puts an entry in; gives back the value that the key had.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`]; as [`Tx::get_mut`].
    #[inline]
    pub fn insert(&self, t: &mut Tx<'_>, key: K, value: V) -> Result<Option<V>> {
        if t.get(self.root)?.buckets == 0 {
            self.segment(t, 0)?;
            *t.part_mut(self.root, offset_of!(HashMapRoot<K, V>, buckets))? = BUCKETS;
        }
        let root = t.get(self.root)?;
        let (len, buckets, section) = (root.len, root.buckets, root.section as u16);
        let (link, at) = self.find(t, root, &key)?;
        if !at.is_null() {
            let place = t.part_mut(at, offset_of!(HashNode<K, V>, value))?;
            return Ok(Some(replace(place, value)));
        }
        let node = t.alloc_in(section, HashNode { next: PPtr::NULL, key, value })?;
        link.write(t, node)?;
        let grow = len >= buckets && buckets < BUCKETS * SEGMENTS * DIRECTORIES;
        let counts: &mut [u64; 2] = t.part_mut(self.root, offset_of!(HashMapRoot<K, V>, len))?;
        let more = len.checked_add(1).ok_or_else(|| damaged("a hash map has too many entries"))?;
        *counts = [more, buckets + u64::from(grow)];
        if grow {
            self.split(t, buckets)?;
        }
        Ok(None)
    }

    /// Fills the new bucket `new` from the one that had its entries.
    fn split(&self, t: &mut Tx<'_>, new: u64) -> Result<()> {
        if new.is_multiple_of(BUCKETS) {
            self.segment(t, new / BUCKETS)?;
        }
        let root = t.get(self.root)?;
        let (seed, mask, len) = (root.seed, mask(new + 1), at_most(t, root.len));
        let old = new & (mask >> 1);
        let (mut stay, mut go) = (root.link(t, old)?, root.link(t, new)?);
        let mut at = stay.read(t)?;
        for _ in 0..=len {
            if at.is_null() {
                stay.write(t, PPtr::NULL)?;
                return go.write(t, PPtr::NULL);
            }
            let node = t.get(at)?;
            let next = node.next;
            let tail = if node.key.hashed(seed) & mask == new { &mut go } else { &mut stay };
            tail.write(t, at)?;
            *tail = Link::Node(at);
            at = next;
        }
        Err(damaged("a chain of a hash map goes in a circle"))
    }

    /// A new segment, and its directory where it is the first there.
    #[cold]
    fn segment(&self, t: &mut Tx<'_>, number: u64) -> Result<()> {
        let root = t.get(self.root)?;
        let (section, at) = (root.section as u16, (number / SEGMENTS) as usize);
        let mut directory = root.directories[at];
        if directory.is_null() {
            let empty: HashDirectory<K, V> = HashDirectory { segments: [PPtr::NULL; SEGMENTS as usize] };
            directory = t.alloc_in(section, empty)?;
            let place = offset_of!(HashMapRoot<K, V>, directories) + at * 8;
            *t.part_mut(self.root, place)? = directory;
        }
        let segment =
            t.alloc_in(section, HashSegment { buckets: [PPtr::<HashNode<K, V>>::NULL; BUCKETS as usize] })?;
        *t.part_mut(directory, (number % SEGMENTS) as usize * 8)? = segment;
        Ok(())
    }

    /// Takes an entry out and gives its value back.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    pub fn remove(&self, t: &mut Tx<'_>, key: &K) -> Result<Option<V>> {
        let root = t.get(self.root)?;
        if root.buckets == 0 {
            return Ok(None);
        }
        let (len, mut buckets) = (root.len, root.buckets);
        let (link, at) = self.find(t, root, key)?;
        if at.is_null() {
            return Ok(None);
        }
        let node = t.get(at)?;
        let (next, value) = (node.next, node.value);
        link.write(t, next)?;
        t.free(at)?;
        let len = len.checked_sub(1).ok_or_else(|| damaged("a hash map has fewer than no entries"))?;
        for _ in 0..JOINS {
            if len.saturating_mul(4) < buckets && buckets > BUCKETS {
                buckets -= 1;
                self.join(t, buckets, len)?;
            }
        }
        *t.part_mut::<_, [u64; 2]>(self.root, offset_of!(HashMapRoot<K, V>, len))? = [len, buckets];
        Ok(Some(value))
    }

    /// The last bucket's chain goes to the end of the one that it came from.
    fn join(&self, t: &mut Tx<'_>, last: u64, len: u64) -> Result<()> {
        let root = t.get(self.root)?;
        let old = last & (mask(last + 1) >> 1);
        let (mut link, gone) = (root.link(t, old)?, root.link(t, last)?);
        let chain = gone.read(t)?;
        if !chain.is_null() {
            let mut steps = 0;
            loop {
                let at = link.read(t)?;
                if at.is_null() {
                    break;
                }
                link = Link::Node(at);
                steps += 1;
                if steps > at_most(t, len) + 1 {
                    return Err(damaged("a chain of a hash map goes in a circle"));
                }
            }
            link.write(t, chain)?;
            gone.write(t, PPtr::NULL)?;
        }
        if last.is_multiple_of(BUCKETS) {
            self.free_segment(t, last / BUCKETS)?;
        }
        Ok(())
    }

    fn free_segment(&self, t: &mut Tx<'_>, number: u64) -> Result<()> {
        let (at, within) = ((number / SEGMENTS) as usize, (number % SEGMENTS) as usize);
        let directory = t.get(self.root)?.directories[at];
        let segment = t.get(directory)?.segments[within];
        t.free(segment)?;
        *t.part_mut::<_, PPtr<HashSegment<K, V>>>(directory, within * 8)? = PPtr::NULL;
        if within == 0 {
            t.free(directory)?;
            let place = offset_of!(HashMapRoot<K, V>, directories) + at * 8;
            *t.part_mut::<_, PPtr<HashDirectory<K, V>>>(self.root, place)? = PPtr::NULL;
        }
        Ok(())
    }

    /// All entries, in no order that means anything. Items are errors when the file is damaged.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn iter<'v, W: View>(
        &self,
        view: &'v W,
    ) -> Result<impl Iterator<Item = Result<(&'v K, &'v V)>> + use<'v, W, K, V>> {
        let root = view.get(self.root)?;
        let (mut bucket, mut at, mut left) = (0, PPtr::<HashNode<K, V>>::NULL, at_most(view, root.len));
        let mut step = move || {
            while at.is_null() {
                if bucket >= root.buckets {
                    return Ok(None);
                }
                at = root.link(view, bucket)?.read(view)?;
                bucket += 1;
            }
            left = left.checked_sub(1).ok_or_else(|| damaged("a chain of a hash map goes in a circle"))?;
            let node = view.get(at)?;
            at = node.next;
            Ok(Some((&node.key, &node.value)))
        };
        let mut done = false;
        Ok(std::iter::from_fn(move || {
            let item = if done { None } else { step().transpose() };
            done = !matches!(item, Some(Ok(_)));
            item
        }))
    }

    /// Takes everything out, in one transaction.
    ///
    /// # Errors
    ///
    /// [`crate::Error::TooLarge`] at the commit; as [`Tx::free`].
    pub fn clear(&self, t: &mut Tx<'_>) -> Result<()> {
        let root = *t.get(self.root)?;
        let mut left = root.len;
        for bucket in 0..root.buckets {
            let mut at = root.link(t, bucket)?.read(t)?;
            while !at.is_null() {
                left =
                    left.checked_sub(1).ok_or_else(|| damaged("a hash map has more nodes than entries"))?;
                let next = t.get(at)?.next;
                t.free(at)?;
                at = next;
            }
        }
        for segment in (0..root.buckets / BUCKETS + u64::from(!root.buckets.is_multiple_of(BUCKETS))).rev() {
            self.free_segment(t, segment)?;
        }
        *t.part_mut::<_, [u64; 2]>(self.root, offset_of!(HashMapRoot<K, V>, len))? = [0, 0];
        Ok(())
    }

    /// Takes everything out and gives back the root; the pointer is stale then.
    ///
    /// # Errors
    ///
    /// As [`HashMap::clear`].
    pub fn destroy(self, t: &mut Tx<'_>) -> Result<()> {
        self.clear(t)?;
        t.free(self.root)
    }
}

const _: () =
    assert!(offset_of!(HashMapRoot<u64, u64>, buckets) == offset_of!(HashMapRoot<u64, u64>, len) + 8);
