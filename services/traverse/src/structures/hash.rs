// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hash map on memory nodes: keys are numbers or bytes, values bytes.
//!
//! - **Layout** 2ⁿ heads of eight bytes side by side; a key's chain is that of the top n bits of its mixed word (`chain`)
//! - **Order** each operation takes effect at one compare-and-swap; a get sees a whole value, never parts of two
//! - **Owner** the handle ([`HashMap::handle`]) says where the map is; any number of clients open it
//! - **Not here** growth: the number of heads is chosen when the map is made

use super::chain::{Chain, Key, Seen};
use super::heap::{Heap, Walk};
use super::many;
use crate::client::{ClientError, Result};

/// Heads of one scan's walk.
const SCAN_HEADS: u64 = 512;
/// Zeros that are written at a time.
const ZERO_BYTES: u64 = 1 << 20;
/// Bytes of heads whose chains are dropped at a time.
const DROP_BYTES: u64 = 4096;
/// Most heads, as a power of two.
const LOG2_MAX: u32 = 40;

/// Where a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Address of the first head.
    pub heads: u64,
    /// How many there are, as a power of two.
    pub log2: u32,
}

/// See the module.
#[derive(Debug)]
pub struct HashMap {
    handle: Handle,
    /// True if values were longer than eight bytes so far: then they are fetched in the same walk.
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

/// Memory for 2^`log2` heads, which are not written yet: where, and how much.
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
    /// [`ClientError::Full`], or why there was no answer.
    pub fn create(heap: &mut impl Heap, log2: u32) -> Result<HashMap> {
        let (heads, bytes) = heads(heap, log2)?;
        let zeros = |at| (heads + at, vec![0; ZERO_BYTES.min(bytes - at) as usize]);
        for at in (0..bytes).step_by(ZERO_BYTES as usize) {
            heap.write_many(&[zeros(at)])?;
        }
        Ok(HashMap::open(Handle { heads, log2 }))
    }

    /// The map that a handle names.
    #[must_use]
    pub fn open(handle: Handle) -> HashMap {
        HashMap { handle, long: false }
    }

    /// Where it is.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The chain of a key.
    #[must_use]
    pub fn chain(&self, key: Key<'_>) -> Chain {
        Chain(self.handle.heads + 8 * chain_of(key.word(), self.handle.log2))
    }

    fn note(&mut self, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        self.long |= value.as_ref().is_some_and(|value| value.len() > 8);
        value
    }

    /// The value of a key.
    ///
    /// # Errors
    /// Why there was no answer.
    pub fn get<'k>(&mut self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<Option<Vec<u8>>> {
        let key = key.into();
        let value = self.chain(key).get(heap, key, self.fetches(key))?;
        Ok(self.note(value))
    }

    fn fetches(&self, key: Key<'_>) -> bool {
        self.long || matches!(key, Key::Bytes(_))
    }

    /// The values of many numbers, as many walks at a time as the heap makes.
    ///
    /// # Errors
    /// The first one.
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

    /// Gives a key a value; true: it had none.
    ///
    /// # Errors
    /// [`ClientError::Full`], [`ClientError::Contended`], or why there was no answer.
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

    /// Gives many keys values, as many requests at a time as the heap makes; returns how many of them had none. Each key changes at
    /// one compare-and-swap, in any order; of a key that comes twice the last value counts.
    ///
    /// # Errors
    /// The first one: keys that had changed by then stay changed. Else as [`HashMap::insert`] has.
    pub fn insert_many(&mut self, heap: &mut impl Heap, pairs: &[(Key<'_>, &[u8])]) -> Result<u64> {
        self.long |= pairs.iter().any(|(_, value)| value.len() > 8);
        let pairs: Vec<_> = pairs.iter().map(|&(key, value)| (self.chain(key), key, value)).collect();
        many::insert_many(heap, &pairs)
    }

    /// Removes a key; false: it was not there.
    ///
    /// # Errors
    /// [`ClientError::Contended`], or why there was no answer.
    pub fn remove<'k>(&mut self, heap: &mut impl Heap, key: impl Into<Key<'k>>) -> Result<bool> {
        let key = key.into();
        self.chain(key).remove(heap, key)
    }

    /// Adds to a number's value of eight bytes, and says what it was; `None`: there is none. An add and a replacement of the
    /// same value at the same time take effect in that order.
    ///
    /// # Errors
    /// Why there was no answer.
    pub fn add(&mut self, heap: &mut impl Heap, key: u64, addend: u64) -> Result<Option<u64>> {
        self.chain(Key::Number(key)).add(heap, key, addend)
    }

    /// All nodes; each that is there all the time is seen once.
    ///
    /// # Errors
    /// Why there was no answer.
    pub fn scan(&self, heap: &mut impl Heap) -> Result<Vec<Seen>> {
        let mut seen = Vec::new();
        let heads = 1_u64 << self.handle.log2;
        for first in (0..heads).step_by(SCAN_HEADS as usize) {
            let last = (first + SCAN_HEADS).min(heads) - 1;
            seen.extend(Chain(self.handle.heads + 8 * first).scan(heap, self.handle.heads + 8 * last)?);
        }
        Ok(seen)
    }

    /// Gives all of the map's memory back. Nobody may use the map any more; walks that have begun end as they would have.
    ///
    /// # Errors
    /// Why there was no answer: then it can be dropped again.
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
