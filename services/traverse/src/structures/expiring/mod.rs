// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash map whose entries expire, or that evicts the least recently used ones when it is larger than it may be.
//!
//! - **Layout** a hash map (`hash`) whose values end with a stamp (`stamp`), and a block with its terms (`terms`)
//! - **Clock** the nodes' clock, as the answer to each walk brings it, decides what has expired. It never goes back, not over restarts
//!   either (the log has it), and nodes that hear of each other have the same one. A put takes the clock that its client has
//!   heard, counted on since then
//! - **Order** as the hash map. An expired entry is never returned; who finds it may leave it, the sweep removes it. A use is noted
//!   in the stamp at most once in [`USED_UNIT_S`] seconds, and only in a map with a bound
//! - **Owner** the nodes sweep the map (`sweep`): its terms are declared to the node that has them
//! - **Not here** an order of keys; growth of the number of chains

mod room;
mod stamp;
mod sweep;
mod terms;

pub use stamp::USED_UNIT_S;
pub use sweep::{Sweep, Swept};
pub use terms::Terms;

use super::addend::Addend;
use super::chain::{self, Chain, FoundNode, HEADER_BYTES, Inserted, Key, TRIES, node_bytes};
use super::hash::{self, HashMap};
use super::heap::{Heap, Scratch, Swap, Walked};
use super::many::{self, Changed};
use super::removal;
use crate::client::{ClientError, Result};
use memlift_spec::formats::walk::TERMS_BYTES;
use room::stamps;
use stamp::{STAMP_BYTES, Stamp, split, stamped};

/// Seconds by which the clock that a client knows may be behind the time: one because the nodes' clock has whole seconds, and one because the
/// client counts whole seconds since it heard of it.
const CLOCK_ERROR_S: u32 = 2;
/// Chains that one walk of a scan covers.
const SCAN_HEADS: u64 = 512;

/// Returns the bytes that a node takes of the nodes' memory.
fn taken(node_bytes: u64) -> i64 {
    chain::taken(node_bytes) as i64
}

/// Address of a map and of its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Address and size of the hash map.
    pub map: hash::Handle,
    /// Address of the terms.
    pub terms: u64,
}

/// Time until an entry expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// As the map's terms say.
    #[default]
    OfMap,
    /// The entry does not expire.
    Never,
    /// After this many seconds, and up to two more. 0 is as 1.
    Seconds(u32),
}

/// See the module's header.
#[derive(Debug)]
pub struct ExpiringMap {
    map: HashMap,
    handle: Handle,
    terms: Terms,
}

/// An entry that a walk has found, and what is needed to note its use.
struct Entry {
    value: Vec<u8>,
    stamp: Stamp,
    /// Address of the stamp.
    at: u64,
    since: u32,
}

impl Entry {
    /// Returns the change that notes a use of the entry; `None` if it was noted before.
    fn use_of(&self) -> Option<Swap> {
        let touched = self.stamp.touched(self.since)?;
        Some(Swap { address: self.at, expected: self.stamp.word(), fresh: touched.word(), since: self.since })
    }
}

impl ExpiringMap {
    /// Makes a map of 2^`log2` chains, and declares it to the node that has its terms.
    ///
    /// # Errors
    /// [`ClientError::Full`]; [`ClientError::Rejected`]: the node sweeps as many maps of this tenant as it may; the reason that
    /// there was no answer. Then there is no map.
    pub fn create(heap: &mut impl Heap, log2: u32, terms: Terms) -> Result<ExpiringMap> {
        let map = HashMap::create(heap, log2)?.handle();
        let made = terms::create(heap, map, &terms).and_then(|at| match heap.declare(at) {
            Ok(()) => Ok(at),
            Err(error) => {
                let _ = heap.free(at, TERMS_BYTES);
                Err(error)
            }
        });
        match made {
            Ok(at) => Ok(ExpiringMap::of(Handle { map, terms: at }, terms)),
            Err(error) => {
                let _ = HashMap::open(map).drop(heap);
                Err(error)
            }
        }
    }

    /// Opens the map that a handle names.
    ///
    /// # Errors
    /// [`ClientError::Corrupt`]: there is no such map; the reason that there was no answer.
    pub fn open(heap: &mut impl Heap, handle: Handle) -> Result<ExpiringMap> {
        let found = ExpiringMap::find(heap, handle.terms)?;
        found.filter(|found| found.handle == handle).ok_or_else(|| terms::missing(handle.terms))
    }

    fn of(handle: Handle, terms: Terms) -> ExpiringMap {
        ExpiringMap { map: HashMap::open(handle.map), handle, terms }
    }

    /// Returns the handle of the map.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns the terms of the map.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the chain of a key.
    #[must_use]
    pub fn chain(&self, key: Key<'_>) -> Chain {
        self.map.chain(key)
    }

    /// Returns the value in bytes that a node has stored, and that were found at the clock `since`; `None`: it is expired.
    ///
    /// # Errors
    /// [`ClientError::Corrupt`]: the bytes are no entry of such a map.
    pub fn live(stored: Vec<u8>, since: u32) -> Result<Option<Vec<u8>>> {
        let (value, stamp) = split(stored, 0)?;
        Ok(Some(value).filter(|_| !stamp.is_expired(since)))
    }

    fn expires(&self, ttl: Ttl, clock: u32) -> u32 {
        let seconds = match ttl {
            Ttl::OfMap => self.terms.ttl_s,
            Ttl::Never => 0,
            Ttl::Seconds(seconds) => seconds.max(1),
        };
        if seconds == 0 { 0 } else { clock.saturating_add(seconds).saturating_add(CLOCK_ERROR_S) }
    }

    /// Returns the entry that a walk has found; `None`: there is none, or it is expired.
    fn found(heap: &mut impl Heap, key: Key<'_>, walked: Walked) -> Result<Option<Entry>> {
        let (since, node) = (walked.since, FoundNode::of(&walked, key));
        let Some(stored) = Chain::found(heap, key, true, walked)? else { return Ok(None) };
        let at = node.value.wrapping_add((stored.len().saturating_sub(STAMP_BYTES)) as u64);
        let (value, stamp) = split(stored, node.address)?;
        Ok(Some(Entry { value, stamp, at, since }).filter(|entry| !entry.stamp.is_expired(since)))
    }

    fn entry(&self, heap: &mut impl Heap, key: Key<'_>) -> Result<Option<Entry>> {
        for _ in 0..TRIES {
            let walked = heap.walk(&self.chain(key).find_walk(key, true)?)?;
            match ExpiringMap::found(heap, key, walked) {
                Err(ClientError::Outdated) => {}
                found => return found,
            }
        }
        Err(ClientError::Outdated)
    }

    /// Notes the uses of entries. A use that cannot be noted is no error of a read.
    fn note_uses(&self, heap: &mut impl Heap, uses: &[Swap]) {
        if self.terms.is_bounded() && !uses.is_empty() {
            let _ = heap.compare_swap_many(uses);
        }
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn get<'k>(&self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<Option<Vec<u8>>> {
        let Some(entry) = self.entry(heap, key.into())? else { return Ok(None) };
        self.note_uses(heap, entry.use_of().as_slice());
        Ok(Some(entry.value))
    }

    /// Returns the seconds that an entry has left: `None`: there is none; `Some(None)`: it does not expire. This is no use of it.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn ttl<'k>(&self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<Option<Option<u32>>> {
        let entry = self.entry(heap, key.into())?;
        let left = |entry: Entry| match entry.stamp.expires {
            0 => None,
            expires => Some(expires - entry.since.min(expires)),
        };
        Ok(entry.map(left))
    }

    /// Returns the values of many keys, with as many walks in flight as the heap allows.
    ///
    /// # Errors
    /// The first error.
    pub fn get_many(&self, heap: &mut impl Heap, keys: &[Key<'_>]) -> Result<Vec<Option<Vec<u8>>>> {
        let walks =
            keys.iter().map(|&key| self.chain(key).find_walk(key, true)).collect::<Result<Vec<_>>>()?;
        let (mut values, mut uses) = (Vec::with_capacity(keys.len()), Vec::new());
        for (walked, &key) in heap.walk_many(&walks).into_iter().zip(keys) {
            let entry = match ExpiringMap::found(heap, key, walked?) {
                Err(ClientError::Outdated) => self.entry(heap, key)?,
                found => found?,
            };
            uses.extend(entry.as_ref().and_then(Entry::use_of));
            values.push(entry.map(|entry| entry.value));
        }
        self.note_uses(heap, &uses);
        Ok(values)
    }

    /// Counts a change in the terms, and evicts entries other than `put` if the map is too large now.
    fn count(&self, heap: &mut impl Heap, entries: i64, bytes: i64, put: Option<Key<'_>>) -> Result<()> {
        if !self.terms.is_bounded() || (entries, bytes) == (0, 0) {
            return Ok(());
        }
        let size = terms::count(heap, self.handle.terms, entries, bytes)?;
        let spared = put.map(|key| key.key_word());
        room::make_room(heap, (self.handle.map, self.handle.terms), &self.terms, size, spared)
    }

    /// Refuses an entry that is larger than the whole map may be.
    fn check_size(&self, bytes: u64) -> Result<()> {
        if self.terms.bytes_max != 0 && bytes > self.terms.bytes_max {
            let (bytes, most) = (bytes as usize, self.terms.bytes_max as usize);
            return Err(ClientError::TooLong { what: "an entry", bytes, most });
        }
        Ok(())
    }

    /// Sets the value of a key; returns true if the key had none. If the map is too large now, entries are evicted before this
    /// returns.
    ///
    /// # Errors
    /// The errors of [`HashMap::insert`]; [`ClientError::TooLong`]: the entry is larger than the map may be.
    pub fn insert<'k>(
        &self,
        heap: &mut impl Heap,
        key: impl Into<Key<'k>>,
        value: &[u8],
        ttl: Ttl,
    ) -> Result<bool> {
        Ok(self.put(heap, key.into(), value, ttl, true)?.is_none())
    }

    /// Sets the value of a key that has none; otherwise returns the value that the key keeps.
    ///
    /// # Errors
    /// The errors of [`ExpiringMap::insert`].
    pub fn insert_new<'k>(
        &self,
        heap: &mut impl Heap,
        key: impl Into<Key<'k>>,
        value: &[u8],
        ttl: Ttl,
    ) -> Result<Option<Vec<u8>>> {
        self.put(heap, key.into(), value, ttl, false)
    }

    /// Sets the value of a key, if it has none or `replaces`. Returns `None` if it had none, otherwise the value that it keeps, or
    /// no bytes for one that was replaced.
    fn put(
        &self,
        heap: &mut impl Heap,
        key: Key<'_>,
        value: &[u8],
        ttl: Ttl,
        replaces: bool,
    ) -> Result<Option<Vec<u8>>> {
        let clock = heap.clock();
        let stored = stamped(value, self.expires(ttl, clock), clock);
        let bytes = node_bytes(0, key, &stored)?.len() as u64;
        self.check_size(bytes)?;
        let mut old = None;
        let done = self.chain(key).insert_if(heap, key, &stored, |heap, node| {
            // A replacement needs the stamp only, not the value.
            let (value, stamp) = match replaces {
                true => (Vec::new(), read_stamp(heap, node)?.0),
                false => split(node.read(heap)?, node.address)?,
            };
            old = Some(value).filter(|_| !stamp.is_expired(node.since));
            Ok(replaces || old.is_none())
        })?;
        match done {
            Inserted::New => {
                self.count(heap, 1, taken(bytes), Some(key))?;
                Ok(None)
            }
            Inserted::Replaced(node) => {
                self.count(heap, 0, taken(bytes) - taken(node.bytes()), Some(key))?;
                Ok(old)
            }
            Inserted::Kept(_) => Ok(old),
        }
    }

    /// Sets the values of many keys, with as many requests in flight as the heap allows; returns how many keys had no node. An
    /// expired entry that was not swept yet counts as one.
    ///
    /// # Errors
    /// The first error; keys that had changed by then stay changed. Otherwise the errors of [`ExpiringMap::insert`].
    pub fn insert_many(&self, heap: &mut impl Heap, pairs: &[(Key<'_>, &[u8])], ttl: Ttl) -> Result<u64> {
        let clock = heap.clock();
        let expires = self.expires(ttl, clock);
        let mut inserted = 0;
        // In parts, so that a map with a bound does not exceed it by all of them.
        for part in pairs.chunks(many::BATCH) {
            let stored: Vec<Vec<u8>> = part.iter().map(|(_, value)| stamped(value, expires, clock)).collect();
            for ((key, _), value) in part.iter().zip(&stored) {
                self.check_size((HEADER_BYTES + key.padded_bytes() + value.len()) as u64)?;
            }
            let pairs: Vec<many::Pair<'_>> = part
                .iter()
                .zip(&stored)
                .map(|(&(key, _), value)| (self.chain(key), key, &value[..]))
                .collect();
            let mut changed = Changed::default();
            let done = many::insert_many(heap, &pairs, &mut changed);
            inserted += changed.inserted;
            let replaced: i64 = changed.replaced.iter().map(|node| taken(node.bytes())).sum();
            done.and(self.count(
                heap,
                changed.inserted as i64,
                changed.linked_bytes as i64 - replaced,
                None,
            ))?;
        }
        Ok(inserted)
    }

    /// Removes a key and returns its value, exactly once however many clients take it at the same time.
    ///
    /// # Errors
    /// The errors of [`Chain::take`].
    pub fn take<'k>(&self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<Option<Vec<u8>>> {
        self.take_with(heap, key.into(), |heap, node| split(node.read(heap)?, node.address))
    }

    /// Removes a key; returns false if there was no such key.
    ///
    /// # Errors
    /// The errors of [`Chain::remove`].
    pub fn remove<'k>(&self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<bool> {
        let removed = self.take_with(heap, key.into(), |heap, node| Ok(((), read_stamp(heap, node)?.0)));
        Ok(removed?.is_some())
    }

    fn take_with<H: Heap, T>(
        &self,
        heap: &mut H,
        key: Key<'_>,
        read: impl FnOnce(&mut H, &FoundNode) -> Result<(T, Stamp)>,
    ) -> Result<Option<T>> {
        let mut bytes = 0;
        let gone = self.chain(key).take_with(heap, key, |heap, node| {
            bytes = taken(node.bytes());
            let (value, stamp) = read(heap, node)?;
            Ok(Some(value).filter(|_| !stamp.is_expired(node.since)))
        });
        if bytes != 0 {
            self.count(heap, -1, -bytes, None)?;
        }
        gone.map(Option::flatten)
    }

    /// Adds to a number's value, and returns the value before; `None` if there is no such key. Only for a map all of whose values
    /// have eight bytes.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn add(&self, heap: &mut impl Heap, key: u64, addend: impl Into<Addend>) -> Result<Option<u64>> {
        let addend = addend.into();
        let (old, node) = match self.chain(Key::Number(key)).add_found(heap, key, addend) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            // An expired number is none.
            Err(ClientError::Overflow { .. }) if self.get(heap, key)?.is_none() => return Ok(None),
            Err(error) => return Err(error),
        };
        // Read after the addition: that of an expired entry changes what nobody sees.
        let (stamp, at) = read_stamp(heap, &node)?;
        if stamp.is_expired(node.since) {
            return Ok(None);
        }
        let entry = Entry { value: Vec::new(), stamp, at, since: node.since };
        self.note_uses(heap, entry.use_of().as_slice());
        Ok(Some(old))
    }

    /// Counts the entries that are not expired: a walk over all chains.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn live_entries(&self, heap: &mut impl Heap) -> Result<u64> {
        let (map, mut live) = (self.handle.map, 0);
        let heads = 1_u64 << map.log2;
        for first in (0..heads).step_by(SCAN_HEADS as usize) {
            let last = (first + SCAN_HEADS).min(heads) - 1;
            let seen = Chain(map.heads + 8 * first).scan(heap, map.heads + 8 * last)?;
            live += stamps(heap, &seen)?.iter().filter(|one| !one.is_expired()).count() as u64;
        }
        Ok(live)
    }

    /// Removes all entries; an entry that is put meanwhile may stay.
    ///
    /// # Errors
    /// [`ClientError::Contended`], or the reason that there was no answer; entries that were removed by then stay removed.
    pub fn clear(&self, heap: &mut impl Heap) -> Result<()> {
        let removed = removal::clear(heap, self.handle.map)?;
        self.count(heap, -(removed.entries as i64), -(removed.bytes as i64), None)
    }

    /// Frees all memory of the map that a handle names. Nobody may use the map any more; walks that have begun still end normally.
    ///
    /// # Errors
    /// The reason that there was no answer; then the map can be dropped again.
    pub fn drop(heap: &mut impl Heap, handle: Handle) -> Result<()> {
        terms::clear(heap, handle.terms)?;
        HashMap::open(handle.map).drop(heap)?;
        heap.retire(&[(handle.terms, TERMS_BYTES)])?;
        heap.settle()
    }
}

/// Reads the stamp of a node's value; also returns its address.
fn read_stamp(heap: &mut impl Heap, node: &FoundNode) -> Result<(Stamp, u64)> {
    let at = node.value.wrapping_add(node.value_bytes.saturating_sub(STAMP_BYTES as u64));
    let word = heap.read_since(at, STAMP_BYTES, node.since)?;
    Ok((Stamp::from_word(Scratch(word).word(0)), at))
}
