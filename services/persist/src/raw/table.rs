// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A map from bytes to bytes that remembers the order of insertion, and whose transactions stay small however large it is.
//!
//! - **Layout** head: count, version, first, last, seed, buckets, 2 reserved, 48 segments, u64 each. A segment is an array of
//!   u64: segment 0 has buckets 0–7, segment k has buckets 2^(k+2) to 2^(k+3) − 1. An entry: chain, previous, next, hash (u64
//!   each), key bytes, value bytes (u32 each), key, value
//! - **Order** linear hashing (Litwin 1980): when there are more entries than buckets, one bucket is split, so that no insertion
//!   moves more than one chain. The hash is seeded per table: nobody can choose keys that fall into one bucket
//! - **Rule** links are claims: each is followed as an object of its type, and walks are bounded, so that a spoilt file gives an
//!   error and no endless loop. `version` goes up with each insertion and removal

mod walk;

use std::hash::{BuildHasher, Hasher};

use super::object::read_raw;
use crate::closing::Moving;
use crate::error::{Error, Result};
use crate::persist::{hash_bytes, hash_name, hash_u64};
use crate::tx::Tx;
use crate::view::View;

const HEAD: u64 = hash_name("memlift.Table 1", 448);
const SEGMENT: u64 = hash_name("memlift.Table.Segment 1", 0);
const ENTRY: u64 = hash_name("memlift.Table.Entry 1", 0);

const COUNT: u64 = 0;
const VERSION: u64 = 8;
const FIRST: u64 = 16;
const LAST: u64 = 24;
const SEED: u64 = 32;
const BUCKETS: u64 = 40;
const SEGMENTS: u64 = 64;
const HEAD_BYTES: usize = 448;

const CHAIN: u64 = 0;
const PREVIOUS: u64 = 8;
const NEXT: u64 = 16;
const HASH: u64 = 24;
const LENGTHS: u64 = 32;
const KEY: u64 = 40;

const FIRST_BUCKETS: u64 = 8;
/// A segment is one object, and an object has an upper bound.
const BUCKETS_MAX: u64 = 1 << 23;
/// Upper bound of a chain: with seeded hashes, none gets nearly as long.
const CHAIN_MAX: u32 = 1 << 16;

/// A table, named by its place. The place is a claim, as every pointer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    offset: u64,
}

/// Outcome of [`Table::put`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The key is new.
    Inserted,
    /// It had a value before.
    Replaced,
}

/// Parts of a table, each an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Count, seed, links to the first and last entry, places of the segments.
    Head,
    /// Links to the first entries of chains.
    Segment,
    /// A key and its value.
    Entry,
}

/// Place of a link to an entry: a bucket, or the entry before in its chain.
#[derive(Clone, Copy)]
enum Link {
    Bucket(u64),
    Chain(u64),
}

struct Entry<'a> {
    bytes: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
}

fn damaged() -> Error {
    Error::corrupt("a table's links make no sense")
}

fn word(bytes: &[u8], at: u64) -> Result<u64> {
    let at = at as usize;
    let word = bytes.get(at..at + 8).ok_or_else(damaged)?;
    Ok(u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

impl<'a> Entry<'a> {
    fn of<V: View>(view: &'a V, offset: u64) -> Result<Entry<'a>> {
        let bytes = read_raw(view, offset, ENTRY)?;
        let lengths = word(bytes, LENGTHS)?;
        let (key, value) = ((lengths & 0xffff_ffff) as usize, (lengths >> 32) as usize);
        let all = bytes.get(KEY as usize..).ok_or_else(damaged)?;
        let key_bytes = all.get(..key).ok_or_else(damaged)?;
        let value = all.get(key..key + value).ok_or_else(damaged)?;
        Ok(Entry { bytes, key: key_bytes, value })
    }

    fn at(&self, field: u64) -> Result<u64> {
        word(self.bytes, field)
    }
}

/// Segment of a bucket, and its place there.
fn segment(bucket: u64) -> (u64, u64) {
    if bucket < FIRST_BUCKETS {
        return (0, bucket);
    }
    let level = u64::from(bucket.ilog2());
    (level - 2, bucket - (1 << level))
}

/// The bucket of a hash when there are `buckets`.
fn bucket_of(hash: u64, buckets: u64) -> u64 {
    let whole = buckets.next_power_of_two();
    let at = hash & (whole - 1);
    if at < buckets { at } else { at & (whole / 2 - 1) }
}

fn mix(seed: u64, key: &[u8]) -> u64 {
    // FNV-1a, then the finalizer of MurmurHash3: the low bits choose the bucket.
    let mut hash = hash_bytes(hash_u64(seed, key.len() as u64), key) ^ seed.rotate_left(32);
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

impl Table {
    /// Returns true if an object of this type is a table's, and only reached by it.
    pub(crate) fn has(layout: u64) -> bool {
        matches!(layout, HEAD | SEGMENT | ENTRY)
    }

    /// Name of a table's part, by its type; None: it is none.
    pub(crate) fn part(layout: u64) -> Option<Part> {
        match layout {
            HEAD => Some(Part::Head),
            SEGMENT => Some(Part::Segment),
            ENTRY => Some(Part::Entry),
            _ => None,
        }
    }

    /// Key and value of the entry that lies at `offset`, if one does.
    pub(crate) fn pair_at<V: View>(view: &V, offset: u64) -> Result<(&[u8], &[u8])> {
        let entry = Entry::of(view, offset)?;
        Ok((entry.key, entry.value))
    }

    /// The key of the entry that lies at `offset`, if one does.
    pub(crate) fn key_of_entry<V: View>(view: &V, offset: u64) -> Result<&[u8]> {
        Ok(Entry::of(view, offset)?.key)
    }

    /// Places of all entries, in the order of insertion, until `each` says false.
    pub(crate) fn each_place<V: View>(self, view: &V, mut each: impl FnMut(u64) -> bool) -> Result<()> {
        let (mut at, count) = (self.head(view, FIRST)?, self.len(view)?);
        for _ in 0..count {
            if at == 0 || !each(at) {
                return Ok(());
            }
            at = Entry::of(view, at)?.at(NEXT)?;
        }
        Ok(())
    }

    /// Returns true if an object of this type is a table's head.
    pub(crate) fn is_head(layout: u64) -> bool {
        layout == HEAD
    }

    /// The table that lies there, if one does.
    pub const fn at(offset: u64) -> Table {
        Table { offset }
    }

    /// Where it lies.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// An empty one.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn create(tx: &mut Tx<'_>) -> Result<Table> {
        let first = tx.alloc_raw(SEGMENT, &[&[0; FIRST_BUCKETS as usize * 8]])?;
        let mut head = [0; HEAD_BYTES];
        let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
        head[SEED as usize..][..8].copy_from_slice(&seed.to_le_bytes());
        head[BUCKETS as usize..][..8].copy_from_slice(&FIRST_BUCKETS.to_le_bytes());
        head[SEGMENTS as usize..][..8].copy_from_slice(&first.to_le_bytes());
        Ok(Table { offset: tx.alloc_raw(HEAD, &[&head])? })
    }

    fn head<V: View>(self, view: &V, field: u64) -> Result<u64> {
        word(read_raw(view, self.offset, HEAD)?, field)
    }

    fn set_head(self, tx: &mut Tx<'_>, field: u64, value: u64) -> Result<()> {
        tx.write_raw(self.offset, HEAD, field, &value.to_le_bytes())
    }

    /// How many keys it has.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when it is no table, or not any more.
    pub fn len<V: View>(self, view: &V) -> Result<u64> {
        self.head(view, COUNT)
    }

    /// Returns true if it has no entries.
    ///
    /// # Errors
    ///
    /// As [`Table::len`].
    pub fn is_empty<V: View>(self, view: &V) -> Result<bool> {
        Ok(self.len(view)? == 0)
    }

    /// Goes up with each insertion and removal.
    ///
    /// # Errors
    ///
    /// As [`Table::len`].
    pub fn version<V: View>(self, view: &V) -> Result<u64> {
        self.head(view, VERSION)
    }

    fn follow<V: View>(self, view: &V, link: Link) -> Result<u64> {
        match link {
            Link::Chain(entry) => Entry::of(view, entry)?.at(CHAIN),
            Link::Bucket(bucket) => {
                let (number, place) = segment(bucket);
                let segment = self.head(view, SEGMENTS + number * 8)?;
                word(read_raw(view, segment, SEGMENT)?, place * 8)
            }
        }
    }

    fn point(self, tx: &mut Tx<'_>, link: Link, entry: u64) -> Result<()> {
        match link {
            Link::Chain(before) => tx.write_raw(before, ENTRY, CHAIN, &entry.to_le_bytes()),
            Link::Bucket(bucket) => {
                let (number, place) = segment(bucket);
                let segment = self.head(tx, SEGMENTS + number * 8)?;
                tx.write_raw(segment, SEGMENT, place * 8, &entry.to_le_bytes())
            }
        }
    }

    fn buckets<V: View>(self, view: &V) -> Result<u64> {
        let buckets = self.head(view, BUCKETS)?;
        if (FIRST_BUCKETS..=BUCKETS_MAX).contains(&buckets) { Ok(buckets) } else { Err(damaged()) }
    }

    /// The entry of a key and what points to it.
    fn find<V: View>(self, view: &V, key: &[u8]) -> Result<(u64, Option<(Link, u64)>)> {
        let hash = mix(self.head(view, SEED)?, key);
        let mut link = Link::Bucket(bucket_of(hash, self.buckets(view)?));
        for _ in 0..CHAIN_MAX {
            let at = self.follow(view, link)?;
            if at == 0 {
                return Ok((hash, None));
            }
            let entry = Entry::of(view, at)?;
            if entry.at(HASH)? == hash && entry.key == key {
                return Ok((hash, Some((link, at))));
            }
            link = Link::Chain(at);
        }
        Err(damaged())
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when it is no table; [`Error::Corrupt`].
    pub fn get<'v, V: View>(self, view: &'v V, key: &[u8]) -> Result<Option<&'v [u8]>> {
        match self.find(view, key)?.1 {
            Some((_, at)) => Ok(Some(Entry::of(view, at)?.value)),
            None => Ok(None),
        }
    }

    /// Gives a key a value.
    ///
    /// # Errors
    ///
    /// As [`Table::get`]; [`Error::Full`]; [`Error::Argument`] when the two are larger than an object can be.
    pub fn put(self, tx: &mut Tx<'_>, key: &[u8], value: &[u8]) -> Result<Put> {
        let (Ok(key_bytes), Ok(value_bytes)) = (u32::try_from(key.len()), u32::try_from(value.len())) else {
            return Err(Error::Argument {
                what: "a key or value of 4 GiB does not fit into a pool".to_owned(),
            });
        };
        let lengths = u64::from(value_bytes) << 32 | u64::from(key_bytes);
        let (hash, found) = self.find(tx, key)?;
        let Some((link, at)) = found else {
            self.insert(tx, hash, lengths, key, value)?;
            return Ok(Put::Inserted);
        };
        let entry = Entry::of(tx, at)?;
        let (room, needed) = (entry.bytes.len(), KEY as usize + key.len() + value.len());
        if needed <= room && room <= 2 * needed + 64 {
            tx.write_raw(at, ENTRY, LENGTHS, &lengths.to_le_bytes())?;
            tx.write_raw(at, ENTRY, KEY + u64::from(key_bytes), value)?;
            return Ok(Put::Replaced);
        }
        let (chain, previous, next) = (entry.at(CHAIN)?, entry.at(PREVIOUS)?, entry.at(NEXT)?);
        let moved = Self::entry(tx, [chain, previous, next, hash, lengths], key, value)?;
        self.point(tx, link, moved)?;
        self.tie(tx, previous, moved, moved, next)?;
        tx.free_raw_unmarked(at, ENTRY)?;
        Ok(Put::Replaced)
    }

    fn entry(tx: &mut Tx<'_>, words: [u64; 5], key: &[u8], value: &[u8]) -> Result<u64> {
        let mut head = [0; KEY as usize];
        for (target, word) in head.chunks_exact_mut(8).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        tx.alloc_raw(ENTRY, &[&head, key, value])
    }

    /// In the order of insertion: `second` comes after `previous`, `first` before `next`; 0 is the end.
    fn tie(self, tx: &mut Tx<'_>, previous: u64, second: u64, first: u64, next: u64) -> Result<()> {
        match previous {
            0 => self.set_head(tx, FIRST, second)?,
            at => tx.write_raw(at, ENTRY, NEXT, &second.to_le_bytes())?,
        }
        match next {
            0 => self.set_head(tx, LAST, first),
            at => tx.write_raw(at, ENTRY, PREVIOUS, &first.to_le_bytes()),
        }
    }

    fn counted(self, tx: &mut Tx<'_>, count: u64) -> Result<()> {
        let version = self.version(tx)?.wrapping_add(1);
        let words = [count.to_le_bytes(), version.to_le_bytes()].concat();
        tx.write_raw(self.offset, HEAD, COUNT, &words)
    }

    fn insert(self, tx: &mut Tx<'_>, hash: u64, lengths: u64, key: &[u8], value: &[u8]) -> Result<()> {
        let buckets = self.buckets(tx)?;
        let link = Link::Bucket(bucket_of(hash, buckets));
        let (chain, last) = (self.follow(tx, link)?, self.head(tx, LAST)?);
        let made = Self::entry(tx, [chain, last, 0, hash, lengths], key, value)?;
        self.point(tx, link, made)?;
        self.tie(tx, last, made, made, 0)?;
        let count = self.len(tx)?.wrapping_add(1);
        self.counted(tx, count)?;
        if count > buckets && buckets < BUCKETS_MAX { self.split(tx, buckets) } else { Ok(()) }
    }

    /// One bucket more: part of one chain moves there.
    fn split(self, tx: &mut Tx<'_>, buckets: u64) -> Result<()> {
        let (number, place) = segment(buckets);
        if place == 0 {
            let zeros = vec![0; (buckets * 8) as usize];
            let made = tx.alloc_raw(SEGMENT, &[&zeros])?;
            self.set_head(tx, SEGMENTS + number * 8, made)?;
        }
        self.set_head(tx, BUCKETS, buckets + 1)?;
        let (mut stay, mut go) = (Link::Bucket(buckets - (1 << buckets.ilog2())), Link::Bucket(buckets));
        let mut at = self.follow(tx, stay)?;
        for _ in 0..CHAIN_MAX {
            if at == 0 {
                self.point_if(tx, stay, 0)?;
                return self.point_if(tx, go, 0);
            }
            let entry = Entry::of(tx, at)?;
            let (hash, next) = (entry.at(HASH)?, entry.at(CHAIN)?);
            let end = if bucket_of(hash, buckets + 1) == buckets { &mut go } else { &mut stay };
            let link = *end;
            *end = Link::Chain(at);
            self.point_if(tx, link, at)?;
            at = next;
        }
        Err(damaged())
    }

    /// Stores a link unless it is so already.
    fn point_if(self, tx: &mut Tx<'_>, link: Link, entry: u64) -> Result<()> {
        if self.follow(tx, link)? == entry { Ok(()) } else { self.point(tx, link, entry) }
    }

    /// Moves entries and segments out of closed slabs, for `most` buckets from `bucket` on; returns the bucket to go on with.
    pub(crate) fn relocate(
        self,
        tx: &mut Tx<'_>,
        moving: &mut Moving,
        bucket: u64,
        most: u64,
    ) -> Result<Option<u64>> {
        let buckets = self.buckets(tx)?;
        for bucket in bucket..buckets.min(bucket + most) {
            let (number, place) = segment(bucket);
            let segment = self.head(tx, SEGMENTS + number * 8)?;
            if place == 0 && moving.takes_any(tx, segment) {
                let bytes = read_raw(tx, segment, SEGMENT)?.to_vec();
                let new = tx.alloc_raw(SEGMENT, &[&bytes])?;
                self.set_head(tx, SEGMENTS + number * 8, new)?;
                tx.free_raw_unmarked(segment, SEGMENT)?;
            }
            let mut link = Link::Bucket(bucket);
            for _ in 0..CHAIN_MAX {
                let mut at = self.follow(tx, link)?;
                if at == 0 {
                    break;
                }
                if moving.takes_any(tx, at) {
                    let entry = Entry::of(tx, at)?;
                    let (previous, next) = (entry.at(PREVIOUS)?, entry.at(NEXT)?);
                    let bytes = entry.bytes.to_vec();
                    let new = tx.alloc_raw(ENTRY, &[&bytes])?;
                    self.point(tx, link, new)?;
                    self.tie(tx, previous, new, new, next)?;
                    tx.free_raw_unmarked(at, ENTRY)?;
                    at = new;
                }
                link = Link::Chain(at);
            }
            if moving.is_full() {
                return Ok(Some(bucket));
            }
        }
        let next = bucket + most;
        Ok((next < buckets).then_some(next))
    }

    /// Takes a key out. False: it is not there.
    ///
    /// # Errors
    ///
    /// As [`Table::get`].
    pub fn remove(self, tx: &mut Tx<'_>, key: &[u8]) -> Result<bool> {
        let Some((link, at)) = self.find(tx, key)?.1 else { return Ok(false) };
        let entry = Entry::of(tx, at)?;
        let (chain, previous, next) = (entry.at(CHAIN)?, entry.at(PREVIOUS)?, entry.at(NEXT)?);
        self.point(tx, link, chain)?;
        self.tie(tx, previous, next, previous, next)?;
        tx.free_raw_unmarked(at, ENTRY)?;
        let count = self.len(tx)?.wrapping_sub(1);
        self.counted(tx, count)?;
        Ok(true)
    }

    /// Takes everything out.
    ///
    /// # Errors
    ///
    /// As [`Table::get`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        let (count, mut at) = (self.len(tx)?, self.head(tx, FIRST)?);
        for _ in 0..count {
            if at == 0 {
                return Err(damaged());
            }
            let next = Entry::of(tx, at)?.at(NEXT)?;
            tx.free_raw_unmarked(at, ENTRY)?;
            at = next;
        }
        let buckets = self.buckets(tx)?;
        for number in 1..=segment(buckets - 1).0 {
            let one = self.head(tx, SEGMENTS + number * 8)?;
            tx.free_raw_unmarked(one, SEGMENT)?;
            self.set_head(tx, SEGMENTS + number * 8, 0)?;
        }
        let first = self.head(tx, SEGMENTS)?;
        tx.write_raw(first, SEGMENT, 0, &[0; FIRST_BUCKETS as usize * 8])?;
        self.set_head(tx, BUCKETS, FIRST_BUCKETS)?;
        self.tie(tx, 0, 0, 0, 0)?;
        self.counted(tx, 0)
    }

    /// Gives it back with everything in it.
    ///
    /// # Errors
    ///
    /// As [`Table::get`].
    pub fn free(self, tx: &mut Tx<'_>) -> Result<()> {
        self.clear(tx)?;
        let first = self.head(tx, SEGMENTS)?;
        tx.free_raw_unmarked(first, SEGMENT)?;
        tx.free_raw(self.offset, HEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_one_place_each() {
        let mut sizes = [0u64; 8];
        for bucket in 0..1024 {
            let (number, place) = segment(bucket);
            assert_eq!(place, sizes[number as usize], "bucket {bucket}");
            sizes[number as usize] += 1;
        }
        assert_eq!(sizes, [8, 8, 16, 32, 64, 128, 256, 512]);
    }

    #[test]
    fn a_split_moves_hashes_to_the_new_bucket_only() {
        for buckets in FIRST_BUCKETS..200 {
            for hash in (0..5000).map(|n| mix(7, &u64::to_le_bytes(n))) {
                let (before, after) = (bucket_of(hash, buckets), bucket_of(hash, buckets + 1));
                assert!(before < buckets);
                assert!(after == before || (after == buckets && before == buckets - (1 << buckets.ilog2())));
            }
        }
    }
}
