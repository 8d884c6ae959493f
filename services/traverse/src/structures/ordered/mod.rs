// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An ordered map on memory nodes: a B+tree from numbers to numbers, or to records of up to 240 bytes.
//!
//! - **Flow** get, range, aggregate: one walk each. put, remove: a walk that returns the path ([`edit::Path`]), new nodes written
//!   beside it, and a compare-and-swap of the root's address
//! - **Order** nodes never change, so a walk sees the map as it was when the walk read the root, also when it is continued; a change
//!   takes effect at its compare-and-swap. If two writers change the map at the same time, one of them must repeat its work, and
//!   from then on they take turns ([`turns`])
//! - **Owner** the handle ([`OrderedMap::handle`]) names the map; any number of clients open it
//! - **Not here** merging nodes that have few keys left: a node is dropped with its last key; `bulk` packs a map anew

pub mod edit;
mod many;
pub mod node;
mod turns;

use std::ops::RangeInclusive;

use super::chain::{Aggregate, ExactSum};
use super::heap::{Heap, Outcome, Scratch, Walk, Walked};
use super::shipped::{self, Shipped};
use super::sink::{Sink as _, ToHeap};
use crate::client::{ClientError, Result};
use edit::{Before, Edit, Path};
use many::PartialTree;
use node::NODE_BYTES;
use turns::Turns;

/// Most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 240;
const TRIES: u32 = 1000;
/// Bytes of a cell: the root's address, and the writers' queue (`turns`).
const CELL_BYTES: usize = 16;
/// Most keys of one change of many keys. With more keys fewer nodes are made for each, but a change that is lost to another
/// writer costs more work to repeat.
const BATCH: usize = 16_384;
/// Paths that are read at a time; it bounds the bytes that they take here.
const PATHS: usize = 1024;
/// A change of many keys first reads the path of one key in `STRIDE`.
const STRIDE: usize = 16;
/// Average number of keys in a leaf, for maps that were filled in any order.
const LEAF_KEYS: u64 = 11;
/// Pairs that are read at a time to be added here.
const PAGE: u64 = 1 << 16;
/// Nodes that are dropped together.
const DROP_NODES: usize = 64;

const KEY: usize = 0;
const LAST: usize = 8;
const LIMIT: usize = 16;
const VALUE_WORDS: usize = 40;
const VALUE: usize = 48;
const SUM: usize = 96;
const OUT: usize = 392;

/// Address of a map, and the length of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Address of the cell, which holds the root's address.
    pub cell: u64,
    /// Bytes of each value: values of 8 bytes lie in the leaves; others, up to [`VALUE_BYTES_MAX`], lie in records.
    pub value_bytes: usize,
}

impl Handle {
    /// Returns the address of the writers' queue (`turns`).
    fn queue(self) -> u64 {
        self.cell + 8
    }

    fn inline(self) -> bool {
        self.value_bytes == 8
    }

    fn words(self) -> usize {
        self.value_bytes.div_ceil(8)
    }

    /// Returns the bytes of a record.
    #[must_use]
    pub fn record_bytes(self) -> usize {
        8 + self.words() * 8
    }

    /// Builds the bytes of a record.
    #[must_use]
    pub fn record(self, key: u64, value: &[u8]) -> Vec<u8> {
        let mut record = key.to_le_bytes().to_vec();
        record.extend_from_slice(value);
        record.resize(self.record_bytes(), 0);
        record
    }

    fn request(self, shipped: &Shipped, scratch: Scratch) -> Walk {
        Walk { program: shipped.program(), start: self.cell, scratch }
    }

    /// Returns the walk that finds a key; [`Handle::found`] reads its answer.
    #[must_use]
    pub fn get_walk(self, key: u64) -> Walk {
        let scratch = Scratch::new().with(KEY, key);
        if self.inline() {
            return self.request(&shipped::ORDERED_GET, scratch);
        }
        self.request(&shipped::ORDERED_GET_RECORD, scratch.with(VALUE_WORDS, self.words() as u64))
    }

    /// Returns the value in the answer of [`Handle::get_walk`].
    #[must_use]
    pub fn found(self, walked: &Walked) -> Option<Vec<u8>> {
        (walked.outcome == Outcome::Done).then(|| {
            let at = if self.inline() { VALUE } else { OUT + 8 };
            walked.scratch.bytes(at, self.value_bytes)
        })
    }

    /// Returns the walk over a range; [`Handle::pairs`] reads its answer.
    #[must_use]
    pub fn range_walk(self, keys: RangeInclusive<u64>, limit: u64) -> Walk {
        let scratch = Scratch::new().with(KEY, *keys.start()).with(LAST, *keys.end()).with(LIMIT, limit);
        if self.inline() {
            return self.request(&shipped::ORDERED_SCAN, scratch);
        }
        self.request(&shipped::ORDERED_SCAN_RECORDS, scratch.with(VALUE_WORDS, self.words() as u64))
    }

    /// Returns the keys and values in the answer of [`Handle::range_walk`].
    ///
    /// # Errors
    /// [`ClientError::Corrupt`]
    pub fn pairs(self, walked: &Walked) -> Result<Vec<(u64, Vec<u8>)>> {
        let record = self.record_bytes();
        if !walked.result.len().is_multiple_of(record) {
            return Err(ClientError::Corrupt { address: self.cell, what: "range of whole records" });
        }
        let pair = |piece: &[u8]| {
            let (key, value) = piece.split_at(8);
            (u64::from_le_bytes(key.try_into().expect("eight bytes")), value[..self.value_bytes].to_vec())
        };
        Ok(walked.result.chunks_exact(record).map(pair).collect())
    }

    /// Returns the walk that aggregates a range; [`Handle::aggregated`] reads its answer.
    #[must_use]
    pub fn aggregate_walk(self, keys: RangeInclusive<u64>) -> Walk {
        let scratch = Scratch::new().with(KEY, *keys.start()).with(LAST, *keys.end());
        self.request(&shipped::ORDERED_AGGREGATE, scratch)
    }

    /// Returns the aggregate in the answer of [`Handle::aggregate_walk`].
    #[must_use]
    pub fn aggregated(walked: &Walked) -> Aggregate {
        if walked.outcome != Outcome::Done || walked.scratch.word(SUM + 8) == 0 {
            return Aggregate::default();
        }
        Aggregate::from_scratch(&walked.scratch, SUM)
    }
}

/// See the module's header.
#[derive(Debug)]
pub struct OrderedMap {
    handle: Handle,
    /// Number of new nodes in the last change; this many are allocated while the next change walks to its path.
    count: usize,
    turns: Turns,
}

impl OrderedMap {
    /// Makes an empty map whose values have `value_bytes` bytes.
    ///
    /// # Errors
    /// [`ClientError::TooLong`], [`ClientError::Full`], or the reason that there was no answer.
    pub fn create(heap: &mut impl Heap, value_bytes: usize) -> Result<OrderedMap> {
        if value_bytes == 0 || value_bytes > VALUE_BYTES_MAX {
            return Err(ClientError::TooLong { what: "values", bytes: value_bytes, most: VALUE_BYTES_MAX });
        }
        let cell = heap.place(&[0; CELL_BYTES])?;
        Ok(OrderedMap::open(Handle { cell, value_bytes }))
    }

    /// Opens the map that a handle names.
    #[must_use]
    pub fn open(handle: Handle) -> OrderedMap {
        OrderedMap { handle, count: 1, turns: Turns::new() }
    }

    /// Returns the handle of the map.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn get(&self, heap: &mut impl Heap, key: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.handle.found(&heap.walk(&self.handle.get_walk(key))?))
    }

    /// Returns the values of many keys, with as many walks in flight as the heap allows.
    ///
    /// # Errors
    /// The first error.
    pub fn get_many(&self, heap: &mut impl Heap, keys: &[u64]) -> Result<Vec<Option<Vec<u8>>>> {
        let walks: Vec<Walk> = keys.iter().map(|&key| self.handle.get_walk(key)).collect();
        heap.walk_many(&walks).into_iter().map(|walked| Ok(self.handle.found(&walked?))).collect()
    }

    /// Returns keys and values of a range in order, at most `limit`: all from one version of the map.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn range(
        &self,
        heap: &mut impl Heap,
        keys: RangeInclusive<u64>,
        limit: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        if keys.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let walked = heap.walk(&self.handle.range_walk(keys, limit))?;
        self.handle.pairs(&walked)
    }

    /// Returns sum, count, least and greatest of the values of a range, all from one version of the map. Values are signed
    /// numbers. A sum that may have wrapped at the node is added again here, page by page.
    ///
    /// # Errors
    /// [`ClientError::SumTooLarge`]; [`ClientError::TooLong`] if values are not numbers of 8 bytes, or the reason that there was no answer.
    pub fn aggregate(&self, heap: &mut impl Heap, keys: RangeInclusive<u64>) -> Result<Aggregate> {
        let found = self.aggregate_wrapping(heap, keys.clone())?;
        self.unwrapped(heap, keys, found)
    }

    /// Returns the aggregate of a range; if its sum may have wrapped, that of the values as they are now.
    fn unwrapped(
        &self,
        heap: &mut impl Heap,
        keys: RangeInclusive<u64>,
        found: Aggregate,
    ) -> Result<Aggregate> {
        if !found.may_have_wrapped() {
            return Ok(found);
        }
        let mut exact = ExactSum::default();
        let (mut first, last) = keys.into_inner();
        loop {
            let page = self.range(heap, first..=last, PAGE)?;
            for (_, value) in &page {
                exact.add(value.as_slice().try_into().map_or(0, i64::from_le_bytes));
            }
            match page.last() {
                Some(&(at, _)) if at < last => first = at + 1,
                _ => break,
            }
        }
        exact.aggregate()
    }

    /// Returns what [`OrderedMap::aggregate`] does, with a sum that wraps.
    ///
    /// # Errors
    /// [`ClientError::TooLong`] if values are not numbers of 8 bytes, or the reason that there was no answer.
    pub fn aggregate_wrapping(&self, heap: &mut impl Heap, keys: RangeInclusive<u64>) -> Result<Aggregate> {
        if !self.handle.inline() {
            let bytes = self.handle.value_bytes;
            return Err(ClientError::TooLong { what: "numbers to add", bytes, most: 8 });
        }
        if keys.is_empty() {
            return Ok(Aggregate::default());
        }
        Ok(Handle::aggregated(&heap.walk(&self.handle.aggregate_walk(keys))?))
    }

    /// Returns the aggregates of many ranges, with as many walks in flight as the heap allows; each is from one version of
    /// the map. A sum that may have wrapped at the node is added again here.
    ///
    /// # Errors
    /// The errors of [`OrderedMap::aggregate`].
    pub fn aggregate_many(
        &self,
        heap: &mut impl Heap,
        ranges: &[RangeInclusive<u64>],
    ) -> Result<Vec<Aggregate>> {
        let found = self.aggregate_many_wrapping(heap, ranges)?;
        found
            .into_iter()
            .zip(ranges)
            .map(|(found, range)| self.unwrapped(heap, range.clone(), found))
            .collect()
    }

    /// Returns what [`OrderedMap::aggregate_many`] does, with sums that wrap.
    ///
    /// # Errors
    /// The errors of [`OrderedMap::aggregate_wrapping`].
    pub fn aggregate_many_wrapping(
        &self,
        heap: &mut impl Heap,
        ranges: &[RangeInclusive<u64>],
    ) -> Result<Vec<Aggregate>> {
        if !self.handle.inline() {
            let bytes = self.handle.value_bytes;
            return Err(ClientError::TooLong { what: "numbers to add", bytes, most: 8 });
        }
        let walks: Vec<Walk> = ranges
            .iter()
            .filter(|range| !range.is_empty())
            .map(|range| self.handle.aggregate_walk(range.clone()))
            .collect();
        let mut answers = heap.walk_many(&walks).into_iter();
        let mut aggregates = vec![Aggregate::default(); ranges.len()];
        for (aggregate, range) in aggregates.iter_mut().zip(ranges) {
            if !range.is_empty()
                && let Some(walked) = answers.next()
            {
                *aggregate = Handle::aggregated(&walked?);
            }
        }
        Ok(aggregates)
    }

    /// Returns the last `limit` pairs of a range, in the order of keys, from one version of the map. In a packed map up to
    /// three times as many pairs are read.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn last(
        &self,
        heap: &mut impl Heap,
        keys: RangeInclusive<u64>,
        limit: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        match self.last_walk(heap, keys, limit)? {
            Some(walked) => self.handle.pairs(&walked),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the result of the walk for [`OrderedMap::last`], reduced to the last `limit` pairs; `None` if nothing was
    /// asked for.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn last_walk(
        &self,
        heap: &mut impl Heap,
        keys: RangeInclusive<u64>,
        limit: u64,
    ) -> Result<Option<Walked>> {
        if keys.is_empty() || limit == 0 {
            return Ok(None);
        }
        let record = self.handle.record_bytes();
        let mut leaves = limit.div_ceil(LEAF_KEYS).saturating_add(1);
        loop {
            let first = self.before(heap, *keys.end(), leaves)?.max(*keys.start());
            let mut walked = heap.walk(&self.handle.range_walk(first..=*keys.end(), u64::MAX))?;
            if !walked.result.len().is_multiple_of(record) {
                return Err(ClientError::Corrupt {
                    address: self.handle.cell,
                    what: "range of whole records",
                });
            }
            let found = (walked.result.len() / record) as u64;
            if found >= limit || first == *keys.start() {
                walked.result.drain(..found.saturating_sub(limit) as usize * record);
                return Ok(Some(walked));
            }
            leaves = leaves.saturating_mul(2);
        }
    }

    /// Returns a key about `leaves` leaves before another one. This is a guess, because the map may change at any time.
    fn before(&self, heap: &mut impl Heap, key: u64, mut leaves: u64) -> Result<u64> {
        let mut at = key;
        loop {
            let walk = self.handle.request(&shipped::ORDERED_PATH, Scratch::new().with(KEY, at));
            let path = Path::parse(&heap.walk(&walk)?.result)?;
            match path.before(at, leaves) {
                Before::Key(found) => return Ok(found),
                Before::Left { key, leaves: left } => (at, leaves) = (key, left),
            }
        }
    }

    /// Returns the path to a key's leaf, and the memory's clock when the path was read; meanwhile nodes for the following
    /// change are allocated.
    fn path(&self, heap: &mut impl Heap, key: u64, spare: &mut Vec<u64>) -> Result<(Path, u32)> {
        let walk = self.handle.request(&shipped::ORDERED_PATH, Scratch::new().with(KEY, key));
        let missing = self.count.saturating_sub(spare.len());
        let (walked, fresh) = heap.walk_and_allocate(&walk, missing, NODE_BYTES as u64)?;
        spare.extend(fresh);
        Ok((Path::parse(&walked.result)?, walked.since))
    }

    /// Writes an edit's nodes and swaps the root; returns false if another client changed the root meanwhile.
    fn commit(
        &mut self,
        heap: &mut impl Heap,
        (path, since): (&Path, u32),
        edit: Edit,
        old: Option<u64>,
        spare: &mut Vec<u64>,
    ) -> Result<bool> {
        self.count = edit.count();
        if spare.len() < self.count {
            spare.extend(heap.allocate_many(self.count - spare.len(), NODE_BYTES as u64)?);
        }
        let (writes, root) = edit.place(spare);
        heap.write_many(&writes)?;
        // Comparing the root's address is enough: within the grace time after it was read, no other root can have the same
        // address.
        match heap.compare_swap_since(self.handle.cell, path.root(), root, since) {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(ClientError::Outdated) => return Ok(false),
            Err(error) => return Err(error),
        }
        spare.drain(..self.count);
        let nodes = path.0.iter().filter(|(address, _)| *address != root);
        let mut blocks: Vec<(u64, u64)> = nodes.map(|&(address, _)| (address, NODE_BYTES as u64)).collect();
        blocks.extend(
            old.filter(|_| !self.handle.inline()).map(|record| (record, self.handle.record_bytes() as u64)),
        );
        heap.retire(&blocks)?;
        Ok(true)
    }

    fn change(
        &mut self,
        heap: &mut impl Heap,
        key: u64,
        what: &'static str,
        edit: impl Fn(&Path) -> Option<Edit>,
    ) -> Result<Option<(Path, u32)>> {
        let mut spare = Vec::new();
        let mut done = Err(ClientError::Contended { what, times: TRIES });
        let mut turn = None;
        for _ in 0..TRIES {
            if turn.is_none() && self.turns.is_crowded() {
                match self.turns.enter(heap, self.handle.queue()) {
                    Ok(mine) => turn = Some(mine),
                    Err(error) => {
                        done = Err(error);
                        break;
                    }
                }
            }
            let (path, since) = match self.path(heap, key, &mut spare) {
                Ok(found) => found,
                Err(error) => {
                    done = Err(error);
                    break;
                }
            };
            let Some(edit) = edit(&path) else {
                done = Ok(None);
                break;
            };
            match self.commit(heap, (&path, since), edit, path.value(key), &mut spare) {
                Ok(true) => {
                    done = Ok(Some((path, since)));
                    break;
                }
                Ok(false) => self.turns.lost_to_other(),
                Err(error) => {
                    // If a node did not answer, the root may be swapped or not: then the new nodes stay allocated.
                    if !matches!(error, ClientError::Full { .. } | ClientError::ReadOnly) {
                        return Err(error);
                    }
                    done = Err(error);
                    break;
                }
            }
        }
        for address in spare {
            heap.free(address, NODE_BYTES as u64)?;
        }
        if let Some(turn) = turn {
            // Other writers skip a turn that was not ended.
            let _ = self.turns.leave(heap, self.handle.queue(), turn);
        }
        done
    }

    /// Sets the value of a key; returns true if the key had none.
    ///
    /// # Errors
    /// [`ClientError::TooLong`] if the value does not have the map's length, [`ClientError::Full`],
    /// [`ClientError::Contended`], or the reason that there was no answer.
    pub fn insert(&mut self, heap: &mut impl Heap, key: u64, value: &[u8]) -> Result<bool> {
        self.put(heap, key, value, true)
    }

    /// Sets the value of a key that has none; returns false if it has one, and keeps it.
    ///
    /// # Errors
    /// The errors of [`OrderedMap::insert`].
    pub fn insert_new(&mut self, heap: &mut impl Heap, key: u64, value: &[u8]) -> Result<bool> {
        self.put(heap, key, value, false)
    }

    fn put(&mut self, heap: &mut impl Heap, key: u64, value: &[u8], replaces: bool) -> Result<bool> {
        let (bytes, most) = (value.len(), self.handle.value_bytes);
        if bytes != most {
            return Err(ClientError::TooLong { what: "a value of another length", bytes, most });
        }
        let place = if self.handle.inline() {
            u64::from_le_bytes(value.try_into().expect("eight bytes"))
        } else {
            heap.place(&self.handle.record(key, value))?
        };
        let edit = |path: &Path| (replaces || path.value(key).is_none()).then(|| path.put(key, place));
        let changed = self.change(heap, key, "an insert", edit);
        let unlinked = matches!(
            changed,
            Ok(None) | Err(ClientError::Contended { .. } | ClientError::Full { .. } | ClientError::ReadOnly)
        );
        if unlinked && !self.handle.inline() {
            heap.free(place, self.handle.record_bytes() as u64)?;
        }
        Ok(changed?.is_some_and(|(path, _)| path.value(key).is_none()))
    }

    /// Sets the values of many keys; returns how many keys had none. Keys change in ascending order, up to 16,384 of them at
    /// one compare-and-swap, fewer while other clients change the map; if a key comes twice the last value counts.
    ///
    /// # Errors
    /// The first error; changes that were made by then stay. Otherwise the errors of [`OrderedMap::insert`].
    pub fn insert_many(&mut self, heap: &mut impl Heap, pairs: &[(u64, &[u8])]) -> Result<u64> {
        let most = self.handle.value_bytes;
        if let Some((_, value)) = pairs.iter().find(|(_, value)| value.len() != most) {
            return Err(ClientError::TooLong { what: "a value of another length", bytes: value.len(), most });
        }
        let mut pairs = pairs.to_vec();
        // Reversed before a stable sort: the last pair of equal keys comes first and is the one that is kept.
        pairs.reverse();
        pairs.sort_by_key(|pair| pair.0);
        pairs.dedup_by_key(|pair| pair.0);
        let (mut inserted, mut rest, mut size) = (0, &pairs[..], BATCH);
        let (mut tries, mut turn) = (0, None);
        while !rest.is_empty() {
            if turn.is_none() && self.turns.is_crowded() {
                turn = Some(self.turns.enter(heap, self.handle.queue())?);
            }
            let batch = &rest[..size.min(rest.len())];
            match self.insert_batch(heap, batch)? {
                Some(fresh) => {
                    inserted += fresh;
                    rest = &rest[batch.len()..];
                    (size, tries) = ((size * 2).min(BATCH), 0);
                }
                // Another writer was faster: a smaller change is more likely to succeed.
                None => {
                    self.turns.lost_to_other();
                    (size, tries) = ((batch.len() / 2).max(1), tries + 1);
                    if tries == TRIES {
                        return Err(ClientError::Contended { what: "an insert", times: TRIES });
                    }
                }
            }
        }
        if let Some(turn) = turn {
            let _ = self.turns.leave(heap, self.handle.queue(), turn);
        }
        Ok(inserted)
    }

    /// Makes one change of ascending keys; returns `None` if another client changed the map meanwhile, and nothing was
    /// changed.
    fn insert_batch(&mut self, heap: &mut impl Heap, pairs: &[(u64, &[u8])]) -> Result<Option<u64>> {
        let Some((part, since)) = self.part(heap, pairs)? else { return Ok(None) };
        let record = self.handle.record_bytes() as u64;
        let mut words = Vec::with_capacity(pairs.len());
        let mut made: Vec<(u64, u64)> = Vec::new();
        let mut failed = Ok(());
        if self.handle.inline() {
            words.extend(
                pairs
                    .iter()
                    .map(|&(key, value)| (key, u64::from_le_bytes(value.try_into().expect("eight bytes")))),
            );
        } else {
            let records: Vec<Vec<u8>> =
                pairs.iter().map(|&(key, value)| self.handle.record(key, value)).collect();
            for (placed, &(key, _)) in heap.place_many(&records).into_iter().zip(pairs) {
                match placed {
                    Ok(address) => {
                        made.push((address, record));
                        words.push((key, address));
                    }
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
        }
        let done = failed.and_then(|()| self.replace(heap, &part, since, &words, &mut made));
        // If a node did not answer, the root may be swapped or not: then the new memory stays allocated.
        if matches!(done, Ok(None) | Err(ClientError::Full { .. } | ClientError::ReadOnly)) {
            made.iter().try_for_each(|&(address, bytes)| heap.free(address, bytes))?;
        }
        done
    }

    /// Returns the part of the tree that contains these ascending keys, and the memory's clock when it was read; `None` if
    /// the tree changed meanwhile.
    fn part(&self, heap: &mut impl Heap, pairs: &[(u64, &[u8])]) -> Result<Option<(PartialTree, u32)>> {
        let (mut part, mut since) = (PartialTree::default(), u32::MAX);
        let path = |&key: &u64| self.handle.request(&shipped::ORDERED_PATH, Scratch::new().with(KEY, key));
        // Neighbouring keys share a leaf: first one key in `STRIDE`, then those whose leaf is not known yet.
        for stride in [STRIDE, 1] {
            let keys = pairs.iter().step_by(stride).map(|pair| pair.0);
            let unknown: Vec<u64> = keys.filter(|&key| !part.covers(key)).collect();
            for some in unknown.chunks(PATHS) {
                for walked in heap.walk_many(&some.iter().map(path).collect::<Vec<_>>()) {
                    let walked = walked?;
                    since = since.min(walked.since);
                    if !part.add(&walked.result)? {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some((part, since)))
    }

    /// Writes the nodes of a change and swaps the root. Returns how many keys had no value, or `None` if another client
    /// changed the root meanwhile. New memory is added to `made`.
    fn replace(
        &mut self,
        heap: &mut impl Heap,
        part: &PartialTree,
        since: u32,
        words: &[(u64, u64)],
        made: &mut Vec<(u64, u64)>,
    ) -> Result<Option<u64>> {
        let mut rebuilt = part.put(words)?;
        let addresses = heap.allocate_many(rebuilt.count(), NODE_BYTES as u64)?;
        made.extend(addresses.iter().map(|&address| (address, NODE_BYTES as u64)));
        let (nodes, root) = rebuilt.place(&addresses);
        let mut nodes: Vec<(u64, Vec<u8>)> = nodes.collect();
        nodes.sort_by_key(|node| node.0);
        let mut sink = ToHeap::new(&mut *heap);
        nodes.iter().try_for_each(|(address, bytes)| sink.put(*address, bytes))?;
        sink.finish()?;
        match heap.compare_swap_since(self.handle.cell, part.root(), root, since) {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(ClientError::Outdated) => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut blocks: Vec<(u64, u64)> =
            rebuilt.old.iter().map(|&address| (address, NODE_BYTES as u64)).collect();
        if !self.handle.inline() {
            let record = self.handle.record_bytes() as u64;
            blocks.extend(rebuilt.replaced.iter().map(|&address| (address, record)));
        }
        heap.retire(&blocks)?;
        Ok(Some(rebuilt.inserted))
    }

    /// Removes a key; returns false if there was no such key.
    ///
    /// # Errors
    /// [`ClientError::Full`], [`ClientError::Contended`], or the reason that there was no answer.
    pub fn remove(&mut self, heap: &mut impl Heap, key: u64) -> Result<bool> {
        let changed = self.change(heap, key, "a removal", |path| path.take(key))?;
        Ok(changed.and_then(|(path, _)| path.value(key)).is_some())
    }

    /// Removes a key and returns its value, exactly once however many clients take it at the same time.
    ///
    /// # Errors
    /// The errors of [`OrderedMap::remove`]. [`ClientError::Outdated`]: the key was removed, and its value was no longer there
    /// to be read.
    pub fn take(&mut self, heap: &mut impl Heap, key: u64) -> Result<Option<Vec<u8>>> {
        let changed = self.change(heap, key, "a removal", |path| path.take(key))?;
        let Some((place, since)) = changed.and_then(|(path, since)| Some((path.value(key)?, since))) else {
            return Ok(None);
        };
        if self.handle.inline() {
            return Ok(Some(place.to_le_bytes().to_vec()));
        }
        heap.read_since(place.wrapping_add(8), self.handle.value_bytes, since).map(Some)
    }

    /// Removes all keys, at one compare-and-swap.
    ///
    /// # Errors
    /// [`ClientError::Contended`], or the reason that there was no answer. If the map is empty after an error, some of its memory
    /// stays allocated.
    pub fn clear(&mut self, heap: &mut impl Heap) -> Result<()> {
        let mut root = Scratch(heap.read(self.handle.cell, 8)?).word(0);
        for _ in 0..TRIES {
            match heap.compare_swap(self.handle.cell, root, 0)? {
                // Only this client frees the nodes of the tree that it has unlinked.
                Ok(()) => return self.retire_tree(heap, root),
                Err(now) => root = now,
            }
        }
        Err(ClientError::Contended { what: "clearing a map", times: TRIES })
    }

    /// Frees all of the map's memory. Nobody may use the map any more; walks that have begun still end normally.
    ///
    /// # Errors
    /// The reason that there was no answer; then the map can be dropped again.
    pub fn drop(self, heap: &mut impl Heap) -> Result<()> {
        let root = Scratch(heap.read(self.handle.cell, 8)?).word(0);
        self.retire_tree(heap, root)?;
        heap.retire(&[(self.handle.cell, CELL_BYTES as u64)])?;
        heap.settle()
    }

    /// Retires the nodes and records of a tree that nobody changes any more.
    fn retire_tree(&self, heap: &mut impl Heap, root: u64) -> Result<()> {
        let record = self.handle.record_bytes() as u64;
        // Depth first, a batch of siblings at a time, so that little memory is needed for a map of any size.
        let mut due = vec![root];
        due.retain(|root| *root != 0);
        while !due.is_empty() {
            let batch = due.split_off(due.len().saturating_sub(DROP_NODES));
            let places: Vec<(u64, usize)> = batch.iter().map(|&at| (at, NODE_BYTES)).collect();
            let mut blocks: Vec<(u64, u64)> = batch.iter().map(|&at| (at, NODE_BYTES as u64)).collect();
            for (bytes, &at) in heap.read_many(&places)?.iter().zip(&batch) {
                let node = node::Node::parse(at, bytes)?;
                match node.level {
                    0 if self.handle.inline() => {}
                    0 => blocks.extend(node.places.iter().map(|&place| (place, record))),
                    _ => due.extend(node.places),
                }
            }
            heap.retire(&blocks)?;
        }
        Ok(())
    }
}
