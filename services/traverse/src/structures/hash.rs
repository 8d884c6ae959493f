// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash map on memory nodes: keys are numbers or bytes, values bytes.
//!
//! - **Layout** 2ⁿ adjacent heads of eight bytes; a key's chain has the number in the top n bits of its mixed word
//!   (`chain`)
//! - **Order** each operation takes effect at one compare-and-swap; a get returns a whole value, never parts of two
//! - **Owner** the handle ([`HashMap::handle`]) names the map; any number of clients open it
//! - **Not here** growth: the number of heads is chosen when the map is made

use super::addend::Addend;
use super::chain::{Chain, Key, ScannedNode};
use super::heap::{Heap, Walk};
use super::many::{self, Changed};
use crate::client::{ClientError, Result};

/// Heads that one walk of a scan covers.
const SCAN_HEADS: u64 = 512;
/// Zeros that are written in one request.
const ZERO_BYTES: u64 = 1 << 20;
/// Bytes of heads whose chains are dropped together.
const DROP_BYTES: u64 = 4096;
/// Most heads, as a power of two.
pub(super) const LOG2_MAX: u32 = 40;

/// Address and size of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Address of the first head.
    pub heads: u64,
    /// Number of heads, as a power of two.
    pub log2: u32,
}

/// See the module's header.
#[derive(Debug)]
pub struct HashMap {
    handle: Handle,
    /// True if a value longer than eight bytes was seen: then values are fetched in the same walk.
    long: bool,
}

/// Returns the number of the chain that a word belongs to: the finalizer of MurmurHash3, then the top `log2` bits.
#[must_use]
pub fn chain_of(word: u64, log2: u32) -> u64 {
    let mut mixed = word;
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^= mixed >> 33;
    if log2 == 0 { 0 } else { mixed >> (64 - log2) }
}

/// Allocates memory for 2^`log2` heads, which are not written yet; returns its address and size.
pub(super) fn heads(heap: &mut impl Heap, log2: u32) -> Result<(u64, u64)> {
    if log2 > LOG2_MAX {
        return Err(ClientError::TooLong {
            what: "2^n heads",
            bytes: log2 as usize,
            most: LOG2_MAX as usize,
        });
    }
    let bytes = 8_u64 << log2;
    Ok((heap.allocate(bytes)?, bytes))
}

impl HashMap {
    /// Makes a map of 2^`log2` chains.
    ///
    /// # Errors
    /// [`ClientError::Full`], or the reason that there was no answer.
    pub fn create(heap: &mut impl Heap, log2: u32) -> Result<HashMap> {
        let (heads, bytes) = heads(heap, log2)?;
        let zeros = |at| (heads + at, vec![0; ZERO_BYTES.min(bytes - at) as usize]);
        for at in (0..bytes).step_by(ZERO_BYTES as usize) {
            heap.write_many(&[zeros(at)])?;
        }
        Ok(HashMap::open(Handle { heads, log2 }))
    }

    /// Opens the map that a handle names.
    #[must_use]
    pub fn open(handle: Handle) -> HashMap {
        HashMap { handle, long: false }
    }

    /// Returns the handle of the map.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns the chain of a key.
    #[must_use]
    pub fn chain(&self, key: Key<'_>) -> Chain {
        Chain(self.handle.heads + 8 * chain_of(key.key_word(), self.handle.log2))
    }

    fn note(&mut self, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        self.long |= value.as_ref().is_some_and(|value| value.len() > 8);
        value
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn get<'k>(&mut self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<Option<Vec<u8>>> {
        let key = key.into();
        let value = self.chain(key).get(heap, key, self.fetches(key))?;
        Ok(self.note(value))
    }

    fn fetches(&self, key: Key<'_>) -> bool {
        self.long || matches!(key, Key::Bytes(_))
    }

    /// Returns the values of many numbers, with as many walks in flight as the heap allows.
    ///
    /// # Errors
    /// The first error.
    pub fn get_many(&mut self, heap: &mut impl Heap, keys: &[u64]) -> Result<Vec<Option<Vec<u8>>>> {
        let with_value = self.long;
        let walk = |&key: &u64| self.chain(Key::Number(key)).find_walk(Key::Number(key), with_value);
        let walks = keys.iter().map(walk).collect::<Result<Vec<Walk>>>()?;
        let answers = heap.walk_many(&walks);
        let mut values = Vec::with_capacity(keys.len());
        for (walked, &key) in answers.into_iter().zip(keys) {
            let value = match Chain::found(heap, Key::Number(key), with_value, walked?) {
                Err(ClientError::Outdated) => {
                    self.chain(Key::Number(key)).get(heap, Key::Number(key), with_value)?
                }
                found => found?,
            };
            values.push(self.note(value));
        }
        Ok(values)
    }

    /// Sets the value of a key; returns true if the key had none.
    ///
    /// # Errors
    /// [`ClientError::Full`], [`ClientError::Contended`], or the reason that there was no answer.
    pub fn insert<'k>(
        &mut self,
        heap: &mut impl Heap,
        key: impl Into<Key<'k>>,
        value: &[u8],
    ) -> Result<bool> {
        let key = key.into();
        self.long |= value.len() > 8;
        self.chain(key).insert(heap, key, value)
    }

    /// Sets the values of many keys, with as many requests in flight as the heap allows; returns how many keys had none.
    /// Each key changes at one compare-and-swap, in any order; if a key comes twice the last value counts.
    ///
    /// # Errors
    /// The first error; keys that had changed by then stay changed. Otherwise the errors of [`HashMap::insert`].
    pub fn insert_many(&mut self, heap: &mut impl Heap, pairs: &[(Key<'_>, &[u8])]) -> Result<u64> {
        self.long |= pairs.iter().any(|(_, value)| value.len() > 8);
        let pairs: Vec<_> = pairs.iter().map(|&(key, value)| (self.chain(key), key, value)).collect();
        let mut changed = Changed::default();
        many::insert_many(heap, &pairs, &mut changed)?;
        Ok(changed.inserted)
    }

    /// Sets the value of a key that has none; otherwise returns the value that the key keeps.
    ///
    /// # Errors
    /// The errors of [`HashMap::insert`].
    pub fn insert_new<'k>(
        &mut self,
        heap: &mut impl Heap,
        key: impl Into<Key<'k>>,
        value: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let (key, mut kept) = (key.into(), None);
        self.chain(key).insert_if(heap, key, value, |heap, node| {
            kept = Some(node.read(heap)?);
            Ok(false)
        })?;
        self.long |= value.len() > 8;
        Ok(self.note(kept))
    }

    /// Removes a key and returns its value, exactly once however many clients take it at the same time.
    ///
    /// # Errors
    /// The errors of [`Chain::take`].
    pub fn take<'k>(&mut self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<Option<Vec<u8>>> {
        let key = key.into();
        let value = self.chain(key).take(heap, key)?;
        Ok(self.note(value))
    }

    /// Removes a key; returns false if there was no such key.
    ///
    /// # Errors
    /// [`ClientError::Contended`], or the reason that there was no answer.
    pub fn remove<'k>(&mut self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<bool> {
        let key = key.into();
        self.chain(key).remove(heap, key)
    }

    /// Adds to a number's value of eight bytes, and returns the value before; `None` if there is no such key. If the value
    /// is replaced at the same time, the add counts as the earlier of the two.
    ///
    /// # Errors
    /// [`ClientError::Overflow`]: the sum does not fit, and the value is unchanged; [`ClientError::Contended`], or the reason that there was
    /// no answer.
    pub fn add(&mut self, heap: &mut impl Heap, key: u64, addend: impl Into<Addend>) -> Result<Option<u64>> {
        self.chain(Key::Number(key)).add(heap, key, addend.into())
    }

    /// Returns all nodes; each node that exists during the whole scan is returned once.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn scan(&self, heap: &mut impl Heap) -> Result<Vec<ScannedNode>> {
        let mut seen = Vec::new();
        let heads = 1_u64 << self.handle.log2;
        for first in (0..heads).step_by(SCAN_HEADS as usize) {
            let last = (first + SCAN_HEADS).min(heads) - 1;
            seen.extend(Chain(self.handle.heads + 8 * first).scan(heap, self.handle.heads + 8 * last)?);
        }
        Ok(seen)
    }

    /// Frees all of the map's memory. Nobody may use the map any more; walks that have begun still end normally.
    ///
    /// # Errors
    /// The reason that there was no answer; then the map can be dropped again.
    pub fn drop(self, heap: &mut impl Heap) -> Result<()> {
        let bytes = 8_u64 << self.handle.log2;
        for at in (0..bytes).step_by(DROP_BYTES as usize) {
            let heads = heap.read(self.handle.heads + at, DROP_BYTES.min(bytes - at) as usize)?;
            Chain::drop_all(heap, &heads)?;
        }
        heap.retire(&[(self.handle.heads, bytes)])?;
        heap.settle()
    }
}
