// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Destinations of new nodes: a heap, which gets many nodes at a time with neighbours joined; or the bytes of a range.
//!
//! - **Order** no address is written twice; all nodes are in the heap once [`ToHeap::finish`] has returned
//! - **Not here** building nodes (`bulk`, `ordered`), and choosing their addresses (`placement`, `load`)

use super::heap::Heap;
use super::placement::PLACE_BYTES;
use crate::client::{ClientError, Result};

/// Accepts nodes as they will lie in memory.
pub trait Sink {
    /// Writes bytes at an address; no address is written twice.
    ///
    /// # Errors
    /// The reason that they could not be written.
    fn put(&mut self, address: u64, bytes: &[u8]) -> Result<()>;
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn put(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        (**self).put(address, bytes)
    }
}

/// Writes at several addresses in one call, as every heap can.
pub trait Writes {
    /// See [`Heap::write_many`].
    ///
    /// # Errors
    /// The first error.
    fn write_many(&mut self, writes: &[(u64, Vec<u8>)]) -> Result<()>;
}

impl<H: Heap> Writes for &mut H {
    fn write_many(&mut self, writes: &[(u64, Vec<u8>)]) -> Result<()> {
        (**self).write_many(writes)
    }
}

/// A sink that writes nodes to a heap, many at a time. [`ToHeap::finish`] writes the last ones.
#[derive(Debug)]
pub struct ToHeap<W> {
    heap: W,
    waiting: Vec<(u64, Vec<u8>)>,
    bytes: usize,
}

/// Bytes that [`ToHeap`] collects before it writes them.
const BATCH_BYTES: usize = 256 << 10;
/// Neighbouring nodes are joined into writes of at most this many bytes.
pub(super) const JOINED_BYTES: usize = 1024;

impl<W: Writes> ToHeap<W> {
    /// Makes a sink that writes to this heap.
    pub fn new(heap: W) -> ToHeap<W> {
        ToHeap { heap, waiting: Vec::new(), bytes: 0 }
    }

    /// Writes the nodes that were collected.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn finish(&mut self) -> Result<()> {
        self.bytes = 0;
        self.heap.write_many(&std::mem::take(&mut self.waiting))
    }
}

impl<W: Writes> Sink for ToHeap<W> {
    fn put(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len();
        match self.waiting.last_mut() {
            Some((start, joined)) => {
                // The bytes behind a node, up to a multiple of 16, are reserved for it and may be written with it.
                let whole = (*start + joined.len() as u64).next_multiple_of(PLACE_BYTES) - *start;
                if *start + whole == address && whole as usize + bytes.len() <= JOINED_BYTES {
                    joined.resize(whole as usize, 0);
                    joined.extend_from_slice(bytes);
                } else {
                    self.waiting.push((address, bytes.to_vec()));
                }
            }
            None => self.waiting.push((address, bytes.to_vec())),
        }
        if self.bytes >= BATCH_BYTES { self.finish() } else { Ok(()) }
    }
}

/// A sink that writes nodes to bytes, which will later lie at the addresses from `base` on.
#[derive(Debug)]
pub struct ToBytes<'b> {
    /// The first address.
    pub base: u64,
    /// Memory that the nodes are written to; its first byte is address `base`.
    pub bytes: &'b mut [u8],
}

impl Sink for ToBytes<'_> {
    fn put(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let start = address.checked_sub(self.base).and_then(|start| usize::try_from(start).ok());
        let place = start.and_then(|start| self.bytes.get_mut(start..start.checked_add(bytes.len())?));
        place.ok_or(ClientError::Nowhere { address, epoch: 0 })?.copy_from_slice(bytes);
        Ok(())
    }
}
