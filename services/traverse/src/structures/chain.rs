// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chains that many clients change at the same time: the client's half of `programs/collections/chain.h`.
//!
//! - **Layout** as that file defines it; offsets below
//! - **Flow** find, insert, replace, remove: a walk each, whose last step is a compare-and-swap; then [`Chain::tidy`] unlinks
//!   removed nodes and retires them
//! - **Not here** the choice of a key's chain (`hash`, `list`)

use super::addend::Addend;
use super::heap::{Heap, Outcome, Scratch, Walk, Walked};
use super::shipped::{self, Shipped};
use crate::client::{ClientError, Result};

/// Bytes of a node in front of its key or value.
pub const HEADER_BYTES: usize = 24;
/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 128;
/// Most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 1 << 30;
/// Attempts at a change before it fails with [`ClientError::Contended`].
pub(super) const TRIES: u32 = 1000;

const KEY: usize = 0;
const AT: usize = 8;
const FRESH: usize = 24;
const VALUE: usize = 32;
const NEXT: usize = 40;
const VALUE_BYTES: usize = 48;
const WANTED_BYTES: usize = 52;
const RUN: usize = 72;
const REMOVED: usize = 80;
const SUM: usize = 152;
const LEFT: usize = 144;
const LAST: usize = 184;
const WORDS: usize = 192;
/// Most removed nodes that one walk unlinks.
const RUN_MAX: u64 = 8;

/// Key of a value: a number, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// A number of 64 bits.
    Number(u64),
    /// At most [`KEY_BYTES_MAX`] bytes.
    Bytes(&'a [u8]),
}

impl From<u64> for Key<'_> {
    fn from(key: u64) -> Self {
        Key::Number(key)
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(key: &'a [u8]) -> Self {
        Key::Bytes(key)
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(key: &'a str) -> Self {
        Key::Bytes(key.as_bytes())
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    fn from(key: &'a [u8; N]) -> Self {
        Key::Bytes(key)
    }
}

/// Returns the first eight bytes of the key's BLAKE3 hash, so that a client that chooses its keys cannot fill one bucket.
#[must_use]
pub fn hash_bytes(key: &[u8]) -> u64 {
    u64::from_le_bytes(blake3::hash(key).as_bytes()[..8].try_into().expect("eight bytes"))
}

impl Key<'_> {
    /// Returns the word that a node stores for this key: the number, or the hash of the bytes.
    #[must_use]
    pub fn key_word(&self) -> u64 {
        match *self {
            Key::Number(number) => number,
            Key::Bytes(bytes) => hash_bytes(bytes),
        }
    }

    fn check(&self) -> Result<()> {
        match *self {
            Key::Bytes(bytes) if bytes.len() > KEY_BYTES_MAX => {
                Err(ClientError::TooLong { what: "a key", bytes: bytes.len(), most: KEY_BYTES_MAX })
            }
            // An empty key is refused: a node with 0 key bytes has a number as its key.
            Key::Bytes([]) => {
                Err(ClientError::TooLong { what: "an empty key", bytes: 0, most: KEY_BYTES_MAX })
            }
            _ => Ok(()),
        }
    }

    fn scratch(&self) -> Scratch {
        let mut scratch = Scratch::new().with(KEY, self.key_word());
        if let Key::Bytes(bytes) = *self {
            scratch.put(WANTED_BYTES, &(bytes.len() as u32).to_le_bytes());
            scratch.put(WORDS, bytes);
        }
        scratch
    }

    /// Returns the bytes that the key takes in a node.
    #[must_use]
    pub fn padded_bytes(&self) -> usize {
        match *self {
            Key::Number(_) => 0,
            Key::Bytes(bytes) => bytes.len().next_multiple_of(8),
        }
    }

    fn of<'s>(&self, number: &'s Shipped, bytes: &'s Shipped) -> &'s Shipped {
        match self {
            Key::Number(_) => number,
            Key::Bytes(_) => bytes,
        }
    }
}

/// Builds the bytes of a node.
///
/// # Errors
/// [`ClientError::TooLong`]
pub fn node_bytes(next: u64, key: Key<'_>, value: &[u8]) -> Result<Vec<u8>> {
    key.check()?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(ClientError::TooLong { what: "a value", bytes: value.len(), most: VALUE_BYTES_MAX });
    }
    let key_bytes = match key {
        Key::Number(_) => &[][..],
        Key::Bytes(bytes) => bytes,
    };
    let mut node = Vec::with_capacity(HEADER_BYTES + key.padded_bytes() + value.len().next_multiple_of(8));
    node.extend_from_slice(&next.to_le_bytes());
    node.extend_from_slice(&key.key_word().to_le_bytes());
    node.extend_from_slice(&(value.len() as u32).to_le_bytes());
    node.extend_from_slice(&(key_bytes.len() as u32).to_le_bytes());
    node.extend_from_slice(key_bytes);
    node.resize(HEADER_BYTES + key.padded_bytes(), 0);
    node.extend_from_slice(value);
    node.resize(node.len().next_multiple_of(8).max(32), 0);
    Ok(node)
}

/// Returns the size of the node with this header.
fn bytes_of(header: &Scratch) -> u64 {
    let (value, key) = (u64::from(header.half(16)), u64::from(header.half(20)));
    size_of_node(key.next_multiple_of(8), value)
}

pub(super) fn size_of_node(key_room: u64, value_bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + key_room + value_bytes.next_multiple_of(8)).max(32)
}

/// The node of a key, as a walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundNode {
    /// Address of the node.
    pub address: u64,
    /// The node's next word.
    pub next: u64,
    /// Address of its value.
    pub value: u64,
    /// Bytes of its value.
    pub value_bytes: u64,
    /// The memory's clock when the walk began.
    pub since: u32,
}

impl FoundNode {
    /// Reads the node in the scratchpad of a walk that has found the key.
    pub fn of(walked: &Walked, key: Key<'_>) -> FoundNode {
        let address = walked.scratch.word(AT);
        FoundNode {
            address,
            next: walked.scratch.word(NEXT),
            value: address.wrapping_add((HEADER_BYTES + key.padded_bytes()) as u64),
            value_bytes: u64::from(walked.scratch.half(VALUE_BYTES)),
            since: walked.since,
        }
    }

    /// Reads the node's value.
    ///
    /// # Errors
    /// [`ClientError::Outdated`]; [`ClientError::Corrupt`]; the errors of a read.
    pub fn read(&self, heap: &mut impl Heap) -> Result<Vec<u8>> {
        if self.value_bytes > VALUE_BYTES_MAX as u64 {
            return Err(ClientError::Corrupt { address: self.address, what: "node of a chain" });
        }
        heap.read_since(self.value, self.value_bytes as usize, self.since)
    }

    /// Returns the bytes of the node.
    pub fn bytes(&self) -> u64 {
        size_of_node(self.value.wrapping_sub(self.address) - HEADER_BYTES as u64, self.value_bytes)
    }
}

/// End of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// The key was new.
    New,
    /// The key had this node, which was replaced.
    Replaced(FoundNode),
    /// The key has this node, and keeps it.
    Kept(FoundNode),
}

/// Returns the addresses of the nodes that a walk's apply has unlinked.
pub(super) fn unlinked(walked: &Walked) -> Vec<u64> {
    let count = walked.scratch.word(RUN).min(RUN_MAX) as usize;
    (0..count).map(|index| walked.scratch.word(REMOVED + index * 8)).collect()
}

/// Retires nodes that were unlinked just now.
pub(super) fn retire_nodes(heap: &mut impl Heap, nodes: &[u64]) -> Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let headers: Vec<(u64, usize)> = nodes.iter().map(|&node| (node, HEADER_BYTES)).collect();
    let headers = heap.read_many(&headers)?;
    let blocks: Vec<(u64, u64)> =
        nodes.iter().zip(headers).map(|(&node, header)| (node, bytes_of(&Scratch(header)))).collect();
    heap.retire(&blocks)
}

/// Returns the bytes that a node of this length takes of the nodes' memory.
pub(super) fn taken(node_bytes: u64) -> u64 {
    node_bytes.next_multiple_of(16)
}

/// A node, as a walk over a whole chain reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedNode {
    /// Address of the node.
    pub address: u64,
    /// Key of the node if it is a number, otherwise the hash of the key.
    pub key_word: u64,
    /// Bytes of the node's value.
    pub value_bytes: u32,
    /// Bytes of the node's key; 0: the key is a number.
    pub key_bytes: u32,
    /// The first eight bytes behind the node's header.
    pub first: u64,
    /// The memory's clock when the node was found.
    pub since: u32,
}

/// A chain, named by the address of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain(pub u64);

impl Chain {
    fn request(self, shipped: &Shipped, scratch: Scratch) -> Walk {
        Walk { program: shipped.program(), start: self.0, scratch: scratch.with(AT, self.0) }
    }

    /// Returns the walk that unlinks a run of removed nodes.
    pub(super) fn tidy_walk(self) -> Walk {
        self.request(&shipped::CHAIN_UNLINK, Scratch::new())
    }

    /// Returns the walk that finds a key; [`Chain::found`] reads its answer.
    ///
    /// # Errors
    /// [`ClientError::TooLong`]
    pub fn find_walk(self, key: Key<'_>, with_value: bool) -> Result<Walk> {
        key.check()?;
        let (find, get) = (
            key.of(&shipped::HASH_FIND, &shipped::HASH_FIND_BYTES),
            key.of(&shipped::HASH_GET, &shipped::HASH_GET_BYTES),
        );
        Ok(self.request(if with_value { get } else { find }, key.scratch()))
    }

    /// Returns the value in the answer of [`Chain::find_walk`]; `None` if there is no such key.
    ///
    /// # Errors
    /// [`ClientError::Outdated`]: walk again; otherwise the errors of a read.
    pub fn found(
        heap: &mut impl Heap,
        key: Key<'_>,
        with_value: bool,
        walked: Walked,
    ) -> Result<Option<Vec<u8>>> {
        if walked.outcome != Outcome::Done {
            return Ok(None);
        }
        let bytes = walked.scratch.half(VALUE_BYTES) as usize;
        if with_value {
            if walked.result.len() != bytes {
                return Err(ClientError::Corrupt { address: walked.scratch.word(AT), what: "whole value" });
            }
            return Ok(Some(walked.result));
        }
        if bytes <= 8 && matches!(key, Key::Number(_)) {
            return Ok(Some(walked.scratch.bytes(VALUE, bytes)));
        }
        if bytes > VALUE_BYTES_MAX {
            return Err(ClientError::Corrupt { address: walked.scratch.word(AT), what: "node of a chain" });
        }
        let at = walked.scratch.word(AT).wrapping_add((HEADER_BYTES + key.padded_bytes()) as u64);
        heap.read_since(at, bytes, walked.since).map(Some)
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn get(self, heap: &mut impl Heap, key: Key<'_>, with_value: bool) -> Result<Option<Vec<u8>>> {
        for _ in 0..TRIES {
            let walked = heap.walk(&self.find_walk(key, with_value)?)?;
            match Chain::found(heap, key, with_value, walked) {
                Err(ClientError::Outdated) => {}
                found => return found,
            }
        }
        Err(ClientError::Outdated)
    }

    /// Sets the value of a key; returns true if the key had none.
    ///
    /// # Errors
    /// [`ClientError::Contended`], [`ClientError::Full`], or the reason that there was no answer.
    pub fn insert(self, heap: &mut impl Heap, key: Key<'_>, value: &[u8]) -> Result<bool> {
        Ok(self.insert_if(heap, key, value, |_, _| Ok(true))? == Inserted::New)
    }

    /// Does what [`Chain::insert`] does; if the key has a node, `replaces` decides if that is replaced.
    ///
    /// # Errors
    /// The errors of [`Chain::insert`] and of `replaces`.
    pub(super) fn insert_if<H: Heap>(
        self,
        heap: &mut H,
        key: Key<'_>,
        value: &[u8],
        replaces: impl FnMut(&mut H, &FoundNode) -> Result<bool>,
    ) -> Result<Inserted> {
        let node = node_bytes(0, key, value)?;
        let fresh = heap.place(&node)?;
        let done = self.insert_node(heap, key, fresh, replaces);
        if let Ok(Inserted::Kept(_)) | Err(ClientError::Contended { .. } | ClientError::ReadOnly) = done {
            // The new node was not linked, so its memory is freed. If instead some node did not answer, the new node may be
            // linked: then its memory stays allocated.
            heap.free(fresh, node.len() as u64)?;
        }
        done
    }

    /// Returns the walk that links a node whose next word is 0, unless its key exists already (then [`FoundNode::of`] reads
    /// the node).
    pub(super) fn insert_walk(self, key: Key<'_>, fresh: u64) -> Walk {
        let insert = key.of(&shipped::HASH_INSERT, &shipped::HASH_INSERT_BYTES);
        self.request(insert, key.scratch().with(FRESH, fresh))
    }

    fn insert_node<H: Heap>(
        self,
        heap: &mut H,
        key: Key<'_>,
        fresh: u64,
        mut replaces: impl FnMut(&mut H, &FoundNode) -> Result<bool>,
    ) -> Result<Inserted> {
        let request = self.insert_walk(key, fresh);
        for _ in 0..TRIES {
            let walked = match heap.walk(&request) {
                Err(ClientError::Contended { .. }) => {
                    self.tidy(heap)?;
                    continue;
                }
                walked => walked?,
            };
            match walked.outcome {
                Outcome::Applied(_) => {
                    self.retire(heap, &walked)?;
                    return Ok(Inserted::New);
                }
                Outcome::Differs(_) | Outcome::Missing => {}
                Outcome::Done => {
                    let old = FoundNode::of(&walked, key);
                    match replaces(heap, &old) {
                        Ok(true) => {}
                        Ok(false) => return Ok(Inserted::Kept(old)),
                        Err(ClientError::Outdated) => continue,
                        Err(error) => return Err(error),
                    }
                    // The key exists: the new node replaces the old one. The old node's next word is changed to point to the
                    // new node.
                    heap.write(fresh, &old.next.to_le_bytes())?;
                    match heap.compare_swap_since(old.address, old.next, fresh | 1, old.since) {
                        Ok(Ok(())) => {
                            self.tidy(heap)?;
                            return Ok(Inserted::Replaced(old));
                        }
                        Ok(Err(_)) | Err(ClientError::Outdated) => {}
                        Err(error) => return Err(error),
                    }
                    heap.write(fresh, &0_u64.to_le_bytes())?;
                }
            }
        }
        Err(ClientError::Contended { what: "an insert", times: TRIES })
    }

    /// Removes a key; returns false if there was no such key.
    ///
    /// # Errors
    /// [`ClientError::Contended`], or the reason that there was no answer.
    pub fn remove(self, heap: &mut impl Heap, key: Key<'_>) -> Result<bool> {
        Ok(self.take_with(heap, key, |_, _| Ok(()))?.is_some())
    }

    /// Removes a key and returns its value, exactly once however many clients take it at the same time; `None`: there is no
    /// such key.
    ///
    /// # Errors
    /// The errors of [`Chain::remove`]. [`ClientError::Outdated`]: the key was removed, and its value was no longer there to
    /// be read.
    pub fn take(self, heap: &mut impl Heap, key: Key<'_>) -> Result<Option<Vec<u8>>> {
        self.take_with(heap, key, |heap, node| node.read(heap))
    }

    /// Removes a key; `read` gets its node before the node is unlinked.
    ///
    /// # Errors
    /// The errors of [`Chain::remove`] and of `read`; after an error of `read` the key is removed.
    pub(super) fn take_with<H: Heap, T>(
        self,
        heap: &mut H,
        key: Key<'_>,
        read: impl FnOnce(&mut H, &FoundNode) -> Result<T>,
    ) -> Result<Option<T>> {
        key.check()?;
        let remove = key.of(&shipped::HASH_REMOVE, &shipped::HASH_REMOVE_BYTES);
        let request = self.request(remove, key.scratch());
        for _ in 0..TRIES {
            let walked = heap.walk(&request)?;
            match walked.outcome {
                Outcome::Missing | Outcome::Done => return Ok(None),
                Outcome::Differs(_) => {}
                Outcome::Applied(_) => {
                    let value = read(heap, &FoundNode::of(&walked, key));
                    self.tidy(heap)?;
                    return value.map(Some);
                }
            }
        }
        Err(ClientError::Contended { what: "a removal", times: TRIES })
    }

    /// Adds to the first eight bytes of a number's value; returns their value before.
    ///
    /// # Errors
    /// [`ClientError::Overflow`]: the sum does not fit, and the value is unchanged; [`ClientError::Contended`], or the reason that there was
    /// no answer.
    pub fn add(self, heap: &mut impl Heap, key: u64, addend: Addend) -> Result<Option<u64>> {
        Ok(self.add_found(heap, key, addend)?.map(|(old, _)| old))
    }

    /// Does what [`Chain::add`] does, and also returns the node.
    ///
    /// # Errors
    /// The errors of [`Chain::add`].
    pub(super) fn add_found(
        self,
        heap: &mut impl Heap,
        key: u64,
        addend: Addend,
    ) -> Result<Option<(u64, FoundNode)>> {
        let key = Key::Number(key);
        let (bits, how) = addend.words();
        let scratch = key.scratch().with(FRESH, bits).with(LEFT, how);
        for _ in 0..TRIES {
            let walked = heap.walk(&self.request(&shipped::HASH_ADD, scratch.clone()))?;
            match walked.outcome {
                Outcome::Applied(old) => return Ok(Some((old, FoundNode::of(&walked, key)))),
                Outcome::Done => return Err(addend.overflow(walked.scratch.word(VALUE))),
                // Near the ends of the numbers, another client was faster.
                Outcome::Differs(_) => {}
                Outcome::Missing => return Ok(None),
            }
        }
        Err(ClientError::Contended { what: "an addition", times: TRIES })
    }

    /// Appends a node to the chain, whatever its key.
    ///
    /// # Errors
    /// [`ClientError::Contended`], [`ClientError::Full`], or the reason that there was no answer.
    pub fn append(self, heap: &mut impl Heap, key: u64, value: &[u8]) -> Result<()> {
        let node = node_bytes(0, Key::Number(key), value)?;
        let fresh = heap.place(&node)?;
        let request = self.request(&shipped::LIST_APPEND, Scratch::new().with(FRESH, fresh));
        for _ in 0..TRIES {
            match heap.walk(&request) {
                Ok(walked) => {
                    if let Outcome::Applied(_) = walked.outcome {
                        return self.retire(heap, &walked);
                    }
                }
                Err(ClientError::Contended { .. }) => self.tidy(heap)?,
                Err(error) => return Err(error),
            }
        }
        heap.free(fresh, node.len() as u64)?;
        Err(ClientError::Contended { what: "an append", times: TRIES })
    }

    /// Prepends a node to the chain, whatever its key.
    ///
    /// # Errors
    /// [`ClientError::Contended`], [`ClientError::Full`], or the reason that there was no answer.
    pub fn prepend(self, heap: &mut impl Heap, key: u64, value: &[u8]) -> Result<()> {
        let read = heap.read(self.0, 8)?;
        let mut head = Scratch(read).word(0);
        let node = node_bytes(head, Key::Number(key), value)?;
        let fresh = heap.place(&node)?;
        for _ in 0..TRIES {
            match heap.compare_swap(self.0, head, fresh)? {
                Ok(()) => return Ok(()),
                Err(now) => head = now,
            }
            heap.write(fresh, &head.to_le_bytes())?;
        }
        heap.free(fresh, node.len() as u64)?;
        Err(ClientError::Contended { what: "a prepend", times: TRIES })
    }

    /// Unlinks removed nodes, and retires them.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn tidy(self, heap: &mut impl Heap) -> Result<()> {
        for _ in 0..TRIES {
            let walked = heap.walk(&self.tidy_walk())?;
            match walked.outcome {
                Outcome::Applied(_) => self.retire(heap, &walked)?,
                Outcome::Differs(_) => {}
                Outcome::Done | Outcome::Missing => return Ok(()),
            }
        }
        // The attempts failed because other clients keep tidying this chain, so it needs no more here.
        Ok(())
    }

    /// Does what [`Chain::tidy`] does for several chains, with all requests in flight together.
    ///
    /// # Errors
    /// The first error; the other chains are tidied all the same.
    pub(super) fn tidy_many(heap: &mut impl Heap, chains: &[Chain]) -> Result<()> {
        let walks: Vec<Walk> = chains.iter().map(|chain| chain.tidy_walk()).collect();
        let (mut removed, mut failed) = (Vec::new(), Ok(()));
        for (walked, chain) in heap.walk_many(&walks).into_iter().zip(chains) {
            match walked {
                Ok(walked) if matches!(walked.outcome, Outcome::Applied(_)) => {
                    removed.extend(unlinked(&walked));
                    // There may be more of them than one walk unlinks.
                    failed = failed.and(chain.tidy(heap));
                }
                Ok(walked) if matches!(walked.outcome, Outcome::Differs(_)) => {
                    failed = failed.and(chain.tidy(heap));
                }
                Ok(_) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.and(retire_nodes(heap, &removed))
    }

    /// Retires the nodes that a walk's apply has unlinked.
    fn retire(self, heap: &mut impl Heap, walked: &Walked) -> Result<()> {
        retire_nodes(heap, &unlinked(walked))
    }

    /// Retires all nodes, removed ones too, of the chains whose heads are in these bytes. Nobody may use the chains any
    /// more.
    pub(super) fn drop_all(heap: &mut impl Heap, heads: &[u8]) -> Result<()> {
        let clear = |next: u64| next & !1;
        let mut level: Vec<u64> = heads
            .chunks_exact(8)
            .map(|head| clear(Scratch(head.to_vec()).word(0)))
            .filter(|next| *next != 0)
            .collect();
        let mut blocks = Vec::new();
        while !level.is_empty() {
            let places: Vec<(u64, usize)> = level.iter().map(|&at| (at, HEADER_BYTES)).collect();
            let headers = heap.read_many(&places)?;
            level.clear();
            for (&(at, _), header) in places.iter().zip(headers) {
                let header = Scratch(header);
                blocks.push((at, bytes_of(&header)));
                level.extend(Some(clear(header.word(0))).filter(|next| *next != 0));
            }
        }
        heap.retire(&blocks)
    }

    /// Returns all nodes of the chains with adjacent heads, from this one to the head at `last`.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn scan(self, heap: &mut impl Heap, last: u64) -> Result<Vec<ScannedNode>> {
        let walked = heap.walk(&self.request(&shipped::CHAIN_SCAN, Scratch::new().with(LAST, last)))?;
        let since = walked.since;
        let seen = |piece: &[u8]| {
            let piece = Scratch(piece.to_vec());
            ScannedNode {
                since,
                address: piece.word(0),
                key_word: piece.word(8),
                value_bytes: piece.half(16),
                key_bytes: piece.half(20),
                first: piece.word(24),
            }
        };
        Ok(walked.result.chunks_exact(32).map(seen).collect())
    }

    /// Returns sum, count, least and greatest of the keys. A sum that may have wrapped at the node is added again here.
    ///
    /// # Errors
    /// [`ClientError::SumTooLarge`], or the reason that there was no answer.
    pub fn sum(self, heap: &mut impl Heap) -> Result<Aggregate> {
        let found = self.sum_wrapping(heap)?;
        if !found.may_have_wrapped() {
            return Ok(found);
        }
        let mut exact = ExactSum::default();
        self.scan(heap, self.0)?.iter().for_each(|node| exact.add(node.key_word.cast_signed()));
        exact.aggregate()
    }

    /// Returns what [`Chain::sum`] does, with a sum that wraps.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn sum_wrapping(self, heap: &mut impl Heap) -> Result<Aggregate> {
        let walked = heap.walk(&self.request(&shipped::LIST_SUM, Scratch::new()))?;
        Ok(Aggregate::from_scratch(&walked.scratch, SUM))
    }
}

/// Adds values up without wrapping.
#[derive(Debug, Default)]
pub(super) struct ExactSum {
    found: Aggregate,
    sum: i128,
}

impl ExactSum {
    pub(super) fn add(&mut self, value: i64) {
        let Aggregate { count, min, max, .. } = self.found;
        let (min, max) = if count == 0 { (value, value) } else { (min.min(value), max.max(value)) };
        self.found = Aggregate { count: count + 1, sum: 0, min, max };
        self.sum += i128::from(value);
    }

    /// Returns the aggregate of the values.
    ///
    /// # Errors
    /// [`ClientError::SumTooLarge`]
    pub(super) fn aggregate(self) -> Result<Aggregate> {
        let (count, sum) = (self.found.count, self.sum);
        let sum = i64::try_from(sum).map_err(|_| ClientError::SumTooLarge { count, sum })?;
        Ok(Aggregate { sum, ..self.found })
    }
}

/// Count, sum, least and greatest of many values. Values are signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Number of values.
    pub count: u64,
    /// Sum of the values; wraps where the function that returns it is named so.
    pub sum: i64,
    /// The least value; 0 if there is none.
    pub min: i64,
    /// The greatest value; 0 if there is none.
    pub max: i64,
}

impl Aggregate {
    pub(super) fn from_scratch(scratch: &Scratch, at: usize) -> Aggregate {
        let word = |index: usize| scratch.word(at + index * 8);
        Aggregate { sum: word(0) as i64, count: word(1), min: word(2) as i64, max: word(3) as i64 }
    }

    /// Returns true if the sum of so many values of this size may not fit into 64 bits.
    #[must_use]
    pub fn may_have_wrapped(&self) -> bool {
        let largest = self.min.unsigned_abs().max(self.max.unsigned_abs());
        u128::from(self.count) * u128::from(largest) >= 1 << 63
    }

    /// Returns the mean; `None` if there are no values.
    #[must_use]
    pub fn average(&self) -> Option<f64> {
        (self.count != 0).then(|| self.sum as f64 / self.count as f64)
    }
}
