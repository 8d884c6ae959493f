// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads whole collections into memory that is allocated from nodes as needed: from an iterator, CSV or Arrow, sorted or not.
//!
//! - **Flow** pairs ──`bulk`──▶ nodes ──▶ slabs of the heap, with many writes in flight; the handle is written last
//! - **Order** of equal keys the last one counts. Sorted pairs are streamed; unsorted ones are all held in memory
//! - **Owner** on an error the slabs are freed, so a load is all or nothing
//! - **Not here** the source of pairs (`bulk::csv`, `arrow`), placement over chosen ranges (`placement`)

use std::cell::RefCell;
use std::collections::HashMap;

use super::bulk::{self, Places};
use super::chain::Key;
use super::heap::Heap;
use super::placement::PLACE_BYTES;
use super::sink::{Sink, ToHeap, Writes};
use super::{hash, ordered};
use crate::client::{ClientError, Result};

/// Bytes of the first slab and of the largest; each slab is twice the one before.
const SLAB_BYTES: (u64, u64) = (64 << 10, 4 << 20);

/// A key that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OwnedKey {
    /// A number of 64 bits.
    Number(u64),
    /// At most [`super::chain::KEY_BYTES_MAX`] bytes.
    Bytes(Vec<u8>),
}

impl<'k> From<&'k OwnedKey> for Key<'k> {
    fn from(key: &'k OwnedKey) -> Key<'k> {
        match key {
            OwnedKey::Number(number) => Key::Number(*number),
            OwnedKey::Bytes(bytes) => Key::Bytes(bytes),
        }
    }
}

/// Allocated slabs, and the rest of the one in use.
struct Slabs<'c, 'h, H> {
    heap: &'c RefCell<&'h mut H>,
    taken: Vec<(u64, u64)>,
    rest: (u64, u64),
    /// Parts of slabs that contain no node: first address and bytes of each.
    unused: Vec<(u64, u64)>,
}

impl<H: Heap> Slabs<'_, '_, H> {
    fn leave(&mut self, to: u64) {
        if to > self.rest.0 {
            self.unused.push((self.rest.0, to - self.rest.0));
        }
    }
}

impl<H: Heap> Places for Slabs<'_, '_, H> {
    fn place(&mut self, bytes: u64) -> Result<u64> {
        let bytes = bytes.next_multiple_of(PLACE_BYTES).max(PLACE_BYTES);
        // Aligned like a node's allocations, so that each piece can be freed separately.
        let align = if bytes.is_multiple_of(64) { 64 } else { 16 };
        loop {
            let address = self.rest.0.next_multiple_of(align);
            if self.rest.0 != 0 && address + bytes <= self.rest.1 {
                self.leave(address);
                self.rest.0 = address + bytes;
                return Ok(address);
            }
            let grown = self.taken.last().map_or(SLAB_BYTES.0, |(_, last)| (last * 2).min(SLAB_BYTES.1));
            let least = (bytes + align).next_multiple_of(64);
            let mut wanted = grown.max(least);
            let slab = loop {
                // If a node has not as much memory left, half as much is tried, down to the bytes needed now.
                match self.heap.borrow_mut().allocate(wanted) {
                    Err(ClientError::Full { .. }) if wanted > least => {
                        wanted = (wanted / 2).next_multiple_of(64).max(least);
                    }
                    slab => break slab?,
                }
            };
            self.leave(self.rest.1);
            self.taken.push((slab, wanted));
            self.rest = (slab, slab + wanted);
        }
    }
}

/// A sink that writes through the same heap.
struct Through<'c, 'h, H>(&'c RefCell<&'h mut H>);

impl<H: Heap> Writes for Through<'_, '_, H> {
    fn write_many(&mut self, writes: &[(u64, Vec<u8>)]) -> Result<()> {
        self.0.borrow_mut().write_many(writes)
    }
}

fn load<H: Heap, T>(
    heap: &mut H,
    build: impl FnOnce(&mut dyn Places, &mut dyn Sink) -> Result<T>,
) -> Result<T> {
    let heap = RefCell::new(heap);
    let mut slabs = Slabs { heap: &heap, taken: Vec::new(), rest: (0, 0), unused: Vec::new() };
    let mut sink = ToHeap::new(Through(&heap));
    let built = build(&mut slabs, &mut sink).and_then(|built| sink.finish().map(|()| built));
    slabs.leave(slabs.rest.1);
    let Slabs { taken, unused, .. } = slabs;
    for (address, bytes) in if built.is_ok() { unused } else { taken } {
        // Memory that cannot be freed now stays allocated at its node; the caller sees the first error only.
        let _ = heap.borrow_mut().free(address, bytes);
    }
    built
}

/// Loads an ordered map from pairs in ascending order of their keys.
///
/// # Errors
/// [`ClientError::Input`] at a key that is not greater than the one before; [`ClientError::Full`]; the reason that there was
/// no answer.
pub fn ordered<V: AsRef<[u8]>>(
    heap: &mut impl Heap,
    pairs: impl IntoIterator<Item = Result<(u64, V)>>,
    value_bytes: usize,
    progress: impl FnMut(u64),
) -> Result<ordered::Handle> {
    load(heap, |mut slabs, mut sink| bulk::ordered(pairs, value_bytes, &mut slabs, &mut sink, progress))
}

/// Loads an ordered map from pairs in any order; of equal keys the last one counts.
///
/// # Errors
/// [`ClientError::Full`]; the reason that there was no answer.
pub fn ordered_unsorted<V: AsRef<[u8]>>(
    heap: &mut impl Heap,
    pairs: impl IntoIterator<Item = Result<(u64, V)>>,
    value_bytes: usize,
    progress: impl FnMut(u64),
) -> Result<ordered::Handle> {
    load(heap, |mut slabs, mut sink| {
        bulk::ordered_unsorted(pairs, value_bytes, &mut slabs, &mut sink, progress)
    })
}

/// Loads a hash map from pairs in any order, with 2^`log2` chains (`None`: about one for each pair); of equal keys the last
/// one counts.
///
/// # Errors
/// [`ClientError::Full`]; [`ClientError::TooLong`] for a key or a value; the reason that there was no answer.
pub fn hash<V: AsRef<[u8]>>(
    heap: &mut impl Heap,
    pairs: impl IntoIterator<Item = Result<(OwnedKey, V)>>,
    log2: Option<u32>,
    progress: impl FnMut(u64),
) -> Result<hash::Handle> {
    let mut places: HashMap<OwnedKey, usize> = HashMap::new();
    let mut values: Vec<V> = Vec::new();
    for pair in pairs {
        let (key, value) = pair?;
        match places.entry(key) {
            std::collections::hash_map::Entry::Occupied(place) => values[*place.get()] = value,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(values.len());
                values.push(value);
            }
        }
    }
    let log2 = log2.unwrap_or_else(|| values.len().max(1).next_power_of_two().ilog2());
    // Nodes are placed in the order of the input, so that neighbours in the input are neighbours in memory.
    let mut keys: Vec<(&OwnedKey, usize)> = places.iter().map(|(key, &place)| (key, place)).collect();
    keys.sort_unstable_by_key(|&(_, place)| place);
    let pairs = keys.into_iter().map(|(key, place)| (Key::from(key), values[place].as_ref()));
    let (heads, bytes) = hash::heads(heap, log2)?;
    let loaded =
        load(heap, |mut slabs, mut sink| bulk::hash(pairs, log2, heads, &mut slabs, &mut sink, progress));
    if loaded.is_err() {
        let _ = heap.free(heads, bytes);
    }
    loaded
}
