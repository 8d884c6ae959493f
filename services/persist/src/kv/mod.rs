// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key-value store: bytes to bytes, in the order of keys, with expiry.
//!
//! - **Flow** key ─▶ hash ─▶ shard: a B+tree in a section of its own ─▶ entry: expiry and the value's array. Walks go through all
//!   shards and merge them
//! - **Layout** the pool's root is a [`KvRoot`]: one tree for each section of the pool, 64 at most
//! - **Rule** an expired entry is never seen. A write to its key, or [`Kv::expire_some`], removes it
//! - **Owner** a call locks the shards of its keys and no others; several keys of one call change together or not at all
//! - **Not here** the protocol: `server`

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Persist;
use crate::closing;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::persist::slice_tag;
use crate::pool::Pool;
use crate::ptr::{PPtr, PSlice};
use crate::structures::{BTree, BTreeRoot, EntryPlace, Next};
use crate::tx::{Tx, TxOptions};
use crate::view::View;

mod key;
mod places;
pub mod server;
mod turn;

pub use key::ByteKey;
pub use turn::Turn;

use places::Places;

/// Most shards of a store.
pub const SHARDS_MAX: usize = 64;
/// The longest key.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Entries taken out by one transaction when a store is emptied or swept.
const BATCH: usize = 256;
/// Leaves of a tree that one transaction of a compaction goes through.
const LEAVES: usize = 16;

/// The current time in milliseconds since 1970, the unit of expiry.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[derive(Clone, Copy, Debug, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct KvEntry {
    /// Milliseconds since 1970; 0: never.
    expires: u64,
    value: PSlice<u8>,
}

impl KvEntry {
    fn lives(&self, now: u64) -> bool {
        self.expires == 0 || self.expires > now
    }
}

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct KvRoot {
    shards: u64,
    trees: [PPtr<BTreeRoot<ByteKey, KvEntry>>; SHARDS_MAX],
}

/// Layout of the root of a pool that has a store.
pub(crate) const LAYOUT: u64 = <KvRoot as Persist>::LAYOUT;

/// Walks through a whole store: keys ascend, each is found by its path and lies in its shard, and there are as many as the tree
/// says.
pub(crate) fn audit<W: View>(view: &W) -> Result<()> {
    let Some(place) = view.root::<KvRoot>()? else { return Ok(()) };
    let root = view.get(place)?;
    let wrong = |what: &str| Err(Error::corrupt(what));
    let Some(trees) = usize::try_from(root.shards).ok().and_then(|shards| root.trees.get(..shards)) else {
        return wrong("the store has more shards than it can have");
    };
    for (shard, tree) in trees.iter().enumerate() {
        let tree = BTree::open(*tree);
        let (mut seen, mut last): (u64, Option<Vec<u8>>) = (0, None);
        for entry in tree.iter(view)? {
            let (key, value) = entry?;
            let mut bytes = Vec::new();
            key.read(view, &mut bytes)?;
            view.slice(value.value)?;
            let found = tree.get(view, &bytes[..])?;
            if last.as_ref().is_some_and(|last| *last >= bytes)
                || shard_of(&bytes, trees.len()) != shard
                || !found.is_some_and(|found| std::ptr::eq(found, value))
            {
                return wrong("a key of the store is not where it belongs");
            }
            (seen, last) = (seen + 1, Some(bytes));
        }
        if seen != tree.len(view)? {
            return wrong("a shard of the store has another number of entries than it says");
        }
    }
    Ok(())
}

/// Gives each key that the trees lead to, in the order of the shards. Keys of a tree ascend: where they do not, it is an error, so that a circle
/// of links ends.
pub(crate) fn each_key<W: View>(view: &W, mut each: impl FnMut(&[u8])) -> Result<()> {
    let Some(place) = view.root::<KvRoot>()? else { return Ok(()) };
    let root = view.get(place)?;
    let shards = usize::try_from(root.shards).unwrap_or(usize::MAX).min(SHARDS_MAX);
    for tree in &root.trees[..shards] {
        let mut last: Option<Vec<u8>> = None;
        for entry in BTree::open(*tree).iter(view)? {
            let mut bytes = Vec::new();
            entry?.0.read(view, &mut bytes)?;
            if last.as_ref().is_some_and(|last| *last >= bytes) {
                return Err(Error::corrupt("the keys of the store do not ascend"));
            }
            each(&bytes);
            last = Some(bytes);
        }
    }
    Ok(())
}

/// Returns true if the key is there, its value too, as a server looks it up.
pub(crate) fn has<W: View>(view: &W, key: &[u8]) -> Result<bool> {
    let Some(place) = view.root::<KvRoot>()? else { return Ok(false) };
    let root = view.get(place)?;
    let shards = usize::try_from(root.shards).unwrap_or(usize::MAX).clamp(1, SHARDS_MAX);
    let Some(entry) = BTree::open(root.trees[shard_of(key, shards)]).get(view, key)? else {
        return Ok(false);
    };
    view.slice(entry.value)?;
    Ok(true)
}

/// The shard of a key: the same in every release, for the file keeps it.
fn shard_of(key: &[u8], shards: usize) -> usize {
    (hash_of(key) % shards as u64) as usize
}

fn hash_of(key: &[u8]) -> u64 {
    let (words, rest) = key.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain(std::iter::once(&last));
    words.fold(key.len() as u64, |hash, word| {
        crate::structures::spread(hash.rotate_left(29) ^ u64::from_le_bytes(*word))
    })
}

/// A change to an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stays as it is.
    Keep,
    /// It gets this value and this expiry (milliseconds since 1970, 0: never).
    Set(Vec<u8>, u64),
    /// Its value stays, its expiry is this.
    Expire(u64),
    /// The entry is removed.
    Remove,
}

/// A store in a pool.
///
/// ```
/// use memlift_persist::{Durability, Error, Options, Pool, kv::Kv};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("store.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, sections: 4, ..Options::default() })?;
/// let store = Kv::open(&pool, Durability::Sync)?;
/// store.set(b"fruit:apple", b"red", 0)?;
/// store.set(b"fruit:plum", b"blue", 0)?;
/// assert_eq!(store.get(b"fruit:plum")?.as_deref(), Some(&b"blue"[..]));
/// let mut fruit = Vec::new();
/// store.scan_prefix(b"fruit:", |key, _| {
///     fruit.push(key.to_vec());
///     std::ops::ControlFlow::Continue(())
/// })?;
/// assert_eq!(fruit, [&b"fruit:apple"[..], b"fruit:plum"]);
/// # Ok::<_, Error>(())
/// ```
#[derive(Debug)]
pub struct Kv<'p> {
    pool: &'p Pool,
    trees: Vec<BTree<ByteKey, KvEntry>>,
    durability: Durability,
    places: Places,
    /// Where the next sweep goes on: shard and key.
    swept: std::sync::Mutex<(usize, Vec<u8>)>,
    expired: AtomicU64,
}

/// The least byte string that is greater than all with this prefix; None: there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

impl<'p> Kv<'p> {
    /// The store in a pool, made when the pool has no root yet. It has as many shards as the pool has sections.
    ///
    /// # Errors
    ///
    /// [`Error::Layout`] when the pool's root is something else; [`Error::Corrupt`]; as [`Pool::tx`].
    pub fn open(pool: &'p Pool, durability: Durability) -> Result<Kv<'p>> {
        let found = pool.read(|r| Ok::<_, Error>(r.root::<KvRoot>()?.map(|root| r.get(root).copied())))?;
        let root = match found {
            Some(root) => root?,
            None => Self::create(pool)?,
        };
        let sections = u64::from(pool.header().sections).min(SHARDS_MAX as u64);
        if root.shards == 0 || root.shards > sections {
            return Err(Error::corrupt("the store has more shards than the pool has sections"));
        }
        let trees = root.trees[..root.shards as usize].iter().map(|tree| BTree::open(*tree)).collect();
        Ok(Kv {
            pool,
            trees,
            durability,
            places: Places::new(),
            swept: Default::default(),
            expired: AtomicU64::new(0),
        })
    }

    fn create(pool: &Pool) -> Result<KvRoot> {
        let shards = pool.header().sections.min(SHARDS_MAX as u32);
        pool.tx(|t| {
            let mut root = KvRoot { shards: u64::from(shards), trees: [PPtr::NULL; SHARDS_MAX] };
            for shard in 0..shards {
                root.trees[shard as usize] = BTree::<ByteKey, KvEntry>::create_in(t, shard as u16)?.pointer();
            }
            let place = t.alloc_in(0, root)?;
            t.set_root(place)?;
            Ok(root)
        })
    }

    /// The pool that it lives in.
    pub fn pool(&self) -> &'p Pool {
        self.pool
    }

    /// Entries that sweeps have taken out since it was opened.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// The shard of a key.
    fn shard(&self, key: &[u8]) -> usize {
        shard_of(key, self.trees.len())
    }

    /// A key's entry and where it is.
    fn find<'v, W: View>(&self, view: &'v W, key: &[u8]) -> Result<Option<(EntryPlace, &'v KvEntry)>> {
        let hash = hash_of(key);
        let tree = &self.trees[(hash % self.trees.len() as u64) as usize];
        if let Some(place) = self.places.get(hash)
            && let Some(entry) = tree.at(view, place, key)
        {
            return Ok(Some((place, entry)));
        }
        let Some(place) = tree.place(view, key)? else { return Ok(None) };
        self.places.note(hash, place);
        Ok(Some((place, tree.value_at(view, place)?)))
    }

    fn check_key(key: &[u8]) -> Result<()> {
        if key.len() > KEY_BYTES_MAX {
            let what = format!("a key of {} bytes: the longest has {KEY_BYTES_MAX}", key.len());
            return Err(Error::Argument { what });
        }
        Ok(())
    }

    /// Calls `look` with a key's value; None: there is no such entry.
    ///
    /// # Errors
    ///
    /// As [`Pool::read`].
    pub fn get_with<R>(&self, key: &[u8], look: impl FnOnce(&[u8], u64) -> R) -> Result<Option<R>> {
        let shard = self.shard(key);
        self.pool.read_in(&[shard as u16], |r| match self.find(r, key)? {
            // Most have no time of their own; asking for the time takes longer than the rest.
            Some((_, entry)) if entry.expires == 0 || entry.lives(now_ms()) => {
                Ok(Some(look(r.slice(entry.value)?, entry.expires)))
            }
            _ => Ok(None),
        })
    }

    /// Calls `look` with each key's value and expiry, or with None, as they are at one moment.
    ///
    /// # Errors
    ///
    /// As [`Pool::read`]; what `look` returns.
    pub fn get_many<E: From<Error>>(
        &self,
        keys: &[&[u8]],
        mut look: impl FnMut(Option<(&[u8], u64)>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let now = now_ms();
        self.pool.read_in(&self.sections(keys.iter().copied()), |r| {
            for key in keys {
                match self.find(r, key)?.filter(|(_, entry)| entry.lives(now)) {
                    Some((_, entry)) => look(Some((r.slice(entry.value)?, entry.expires)))?,
                    None => look(None)?,
                }
            }
            Ok(())
        })
    }

    /// A key's value.
    ///
    /// # Errors
    ///
    /// As [`Pool::read`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(key, |value, _| value.to_vec())
    }

    /// Puts an entry in, or another value in its place. `expires` in milliseconds since 1970; 0: never.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::TooLarge`], [`Error::Argument`] for a key that is too long.
    pub fn set(&self, key: &[u8], value: &[u8], expires: u64) -> Result<()> {
        Self::check_key(key)?;
        let shard = self.shard(key);
        // Not by a turn, which would ask for the time.
        self.on(&[shard as u16], |t| self.put(t, shard, key, value, expires))
    }

    /// Puts several in, together.
    ///
    /// # Errors
    ///
    /// As [`Kv::set`].
    pub fn set_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| *key).collect();
        self.write(&keys, |turn| entries.iter().try_for_each(|(key, value)| turn.set(key, value, 0)))
    }

    /// Calls `change` with an entry (value and expiry) and applies the result, in one transaction.
    ///
    /// # Errors
    ///
    /// As [`Kv::set`]; what `change` returns.
    pub fn change<R>(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<(&[u8], u64)>) -> Result<(Change, R)>,
    ) -> Result<R> {
        self.on(&[self.shard(key) as u16], |t| Turn::new(self, t).change(key, &mut change))
    }

    /// Takes entries out; how many there were.
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`].
    pub fn remove(&self, keys: &[&[u8]]) -> Result<u64> {
        self.write(keys, |turn| keys.iter().try_fold(0, |gone, key| Ok(gone + u64::from(turn.remove(key)?))))
    }

    /// Changes entries of `keys` in one transaction, all of it or nothing; `work` runs again when room was made meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Kv::set`]; what `work` returns.
    pub fn write<R>(
        &self,
        keys: &[&[u8]],
        mut work: impl FnMut(&mut Turn<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        self.on(&self.sections(keys.iter().copied()), |t| work(&mut Turn::new(self, t)))
    }

    /// As [`Kv::write`], of any keys: nobody else writes meanwhile.
    fn write_all<R>(&self, mut work: impl FnMut(&mut Turn<'_, '_>) -> Result<R>) -> Result<R> {
        let sections: Vec<u16> = (0..self.trees.len() as u16).collect();
        self.on(&sections, |t| work(&mut Turn::new(self, t)))
    }

    /// How many entries there are; those that are past their time count until they are swept.
    ///
    /// # Errors
    ///
    /// As [`Pool::read`].
    pub fn len(&self) -> Result<u64> {
        self.pool.read(|r| self.len_in(r))
    }

    fn len_in<W: View>(&self, view: &W) -> Result<u64> {
        // Counts of a damaged store may be any.
        self.trees.iter().try_fold(0u64, |sum, tree| Ok(sum.saturating_add(tree.len(view)?)))
    }

    /// Returns true if the store has no entries.
    ///
    /// # Errors
    ///
    /// As [`Pool::read`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Walks through a range of keys in their order, all shards merged, until `visit` breaks. It sees one state of the store:
    /// writers wait.
    ///
    /// # Errors
    ///
    /// As [`Pool::read`].
    pub fn scan(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.pool.read(|r| self.scan_in(r, range, visit))
    }

    fn scan_in<W: View>(
        &self,
        r: &W,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let now = now_ms();
        let mut walks = self.trees.iter().map(|tree| tree.range(r, range)).collect::<Result<Vec<_>>>()?;
        // The next key of each shard, the least on top.
        let mut heads = BinaryHeap::new();
        let mut values = vec![PSlice::EMPTY; walks.len()];
        let mut refill = |shard: usize, mut key: Vec<u8>, values: &mut Vec<PSlice<u8>>| {
            for entry in walks[shard].by_ref() {
                let (stored, entry) = entry?;
                if entry.lives(now) {
                    key.clear();
                    stored.read(r, &mut key)?;
                    values[shard] = entry.value;
                    return Ok::<_, Error>(Some(Reverse((key, shard))));
                }
            }
            Ok(None)
        };
        for shard in 0..values.len() {
            heads.extend(refill(shard, Vec::new(), &mut values)?);
        }
        while let Some(Reverse((key, shard))) = heads.pop() {
            if visit(&key, r.slice(values[shard])?).is_break() {
                break;
            }
            heads.extend(refill(shard, key, &mut values)?);
        }
        Ok(())
    }

    /// The last key of all.
    fn last_key(&self) -> Result<Option<Vec<u8>>> {
        self.pool.read(|r| self.last_key_in(r))
    }

    fn last_key_in<W: View>(&self, view: &W) -> Result<Option<Vec<u8>>> {
        let mut last = None;
        for tree in &self.trees {
            let Some((stored, _)) = tree.last(view)? else { continue };
            let mut key = Vec::new();
            stored.read(view, &mut key)?;
            last = last.max(Some(key));
        }
        Ok(last)
    }

    /// Walks through the keys that begin with `prefix`.
    ///
    /// # Errors
    ///
    /// As [`Kv::scan`].
    pub fn scan_prefix(
        &self,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let end = after_prefix(prefix);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.scan((Bound::Included(prefix), end), visit)
    }

    /// Takes everything out, a batch at a time: others may write meanwhile, and what they write may stay.
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`].
    pub fn clear(&self) -> Result<()> {
        for shard in 0..self.trees.len() {
            while self.sweep(shard, Bound::Unbounded, BATCH, |_| true)?.1 > 0 {}
        }
        Ok(())
    }

    /// Looks at up to `most` entries, going on where it stopped last time, and takes out those that are past their time.
    /// How many they were.
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`].
    pub fn expire_some(&self, most: usize) -> Result<u64> {
        let Ok(mut swept) = self.swept.try_lock() else { return Ok(0) }; // somebody is at it
        let (now, mut seen, mut gone) = (now_ms(), 0, 0);
        for _ in 0..=self.trees.len() {
            if seen >= most {
                break;
            }
            let (shard, from) = (swept.0 % self.trees.len(), std::mem::take(&mut swept.1));
            let start = if from.is_empty() { Bound::Unbounded } else { Bound::Excluded(&from[..]) };
            let swept_some = self.sweep(shard, start, most - seen, |entry| !entry.lives(now));
            if swept_some.is_err() {
                *swept = (shard + 1, Vec::new()); // damage in one shard does not keep the others
            }
            let (looked, out, next) = swept_some?;
            seen += looked;
            gone += out;
            match next {
                Some(last) => *swept = (shard, last),
                None => *swept = (shard + 1, Vec::new()),
            }
        }
        self.expired.fetch_add(gone, Ordering::Relaxed);
        Ok(gone)
    }

    /// Looks at up to `most` entries of a shard and takes out those that `out` names: how many were looked at, how many are
    /// gone, and the last key if there may be more behind it.
    fn sweep(
        &self,
        shard: usize,
        start: Bound<&[u8]>,
        most: usize,
        out: impl Fn(&KvEntry) -> bool,
    ) -> Result<(usize, u64, Option<Vec<u8>>)> {
        let (mut looked, mut named, mut last) = (0, Vec::new(), None);
        self.pool.read_in(&[shard as u16], |r| {
            for entry in self.trees[shard].range(r, (start, Bound::Unbounded))?.take(most) {
                let (stored, entry) = entry?;
                let mut key = Vec::new();
                stored.read(r, &mut key)?;
                if out(entry) {
                    named.push(key.clone());
                }
                last = Some(key);
                looked += 1;
            }
            Ok::<_, Error>(())
        })?;
        let mut gone = 0;
        for keys in named.chunks(BATCH) {
            gone += self.on(&[shard as u16], |t| {
                let mut gone = 0;
                for key in keys {
                    // Read again: another thread may have written it since.
                    if self.trees[shard].get(t, key)?.is_some_and(&out) {
                        self.take(t, shard, key)?;
                        gone += 1;
                    }
                }
                Ok(gone)
            })?;
        }
        Ok((looked, gone, last.filter(|_| looked == most)))
    }

    /// Moves what lies in nearly empty slabs together, shard by shard, until `goes_on` says false: it is called between transactions, with
    /// how many entries were gone through, and of how many. Returns how many objects moved.
    pub(crate) fn move_together(&self, mut goes_on: impl FnMut(u64, u64) -> bool) -> Result<u64> {
        let [inner, leaf] = BTree::<ByteKey, KvEntry>::tags();
        let (mut moved, seen, total) = (0, Cell::new(0), self.len()?);
        let mut stopped = false;
        for (shard, tree) in self.trees.iter().enumerate() {
            let (section, mut from, mut last) = (shard as u16, Vec::new(), None);
            if stopped {
                break;
            }
            let tags = [slice_tag::<u8>(), inner, leaf];
            let proceed = || {
                stopped = !goes_on(seen.get().min(total), total);
                !stopped
            };
            moved += closing::closed(self.pool, &[section], &tags, proceed, |t, moving| {
                if last.is_none() {
                    // Nothing that comes later lies in a closed slab: who writes ahead of this does not keep it going.
                    let mut key = Vec::new();
                    tree.last(t)?.map_or(Ok(()), |(stored, _)| stored.read(t, &mut key))?;
                    last = Some(key);
                }
                for _ in 0..LEAVES {
                    let mut entries = 0;
                    let next = tree.relocate(t, &from, moving, |t, moving, entry| {
                        entries += 1;
                        if entry.value.is_empty() || !moving.takes(t, section, entry.value.offset()) {
                            return Ok(None);
                        }
                        let bytes = t.slice(entry.value)?.to_vec();
                        let value = t.alloc_slice_in(section, &bytes)?;
                        t.free_slice(entry.value)?;
                        Ok(Some(KvEntry { value, ..entry }))
                    })?;
                    match next {
                        Next::Same => return Ok(true),
                        Next::End => return Ok(false),
                        Next::Leaf(key) => {
                            from.clear();
                            key.read(t, &mut from)?;
                        }
                    }
                    seen.set(seen.get() + entries);
                    if last.as_ref().is_some_and(|last| from > *last) {
                        return Ok(false);
                    }
                }
                Ok(true)
            })?;
        }
        Ok(moved)
    }

    /// Makes durable what `Buffered` calls have done.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`].
    pub fn sync(&self) -> Result<()> {
        self.pool.sync()
    }

    fn sections<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Vec<u16> {
        let mut sections: Vec<u16> = keys.map(|key| self.shard(key) as u16).collect();
        sections.sort_unstable();
        sections.dedup();
        sections
    }

    /// A transaction of these sections. When the pool is full, once more with what other sections have no use for.
    fn on<R>(&self, sections: &[u16], mut work: impl FnMut(&mut Tx<'_>) -> Result<R>) -> Result<R> {
        let sections = if sections.is_empty() { &[0] } else { sections };
        let options = TxOptions { durability: self.durability, sections: Some(sections) };
        match self.pool.tx_with(options, &mut work) {
            Err(Error::Full { .. }) if self.pool.reclaim()? > 0 => self.pool.tx_with(options, work),
            done => done,
        }
    }

    fn put(&self, t: &mut Tx<'_>, shard: usize, key: &[u8], value: &[u8], expires: u64) -> Result<()> {
        let tree = &self.trees[shard];
        if let Some((place, &entry)) = self.find(t, key)? {
            if entry.value.len() == value.len() as u64 {
                t.slice_mut(entry.value)?.copy_from_slice(value);
                if entry.expires != expires {
                    tree.value_at_mut(t, place)?.expires = expires;
                }
                return Ok(());
            }
            let new = t.alloc_slice_in(shard as u16, value)?;
            t.free_slice(entry.value)?;
            *tree.value_at_mut(t, place)? = KvEntry { expires, value: new };
            return Ok(());
        }
        let value = t.alloc_slice_in(shard as u16, value)?;
        tree.insert(t, key, KvEntry { expires, value }).map(drop)
    }

    fn take(&self, t: &mut Tx<'_>, shard: usize, key: &[u8]) -> Result<Option<KvEntry>> {
        let gone = self.trees[shard].remove(t, key)?;
        if let Some(entry) = gone {
            t.free_slice(entry.value)?;
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(after_prefix(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
