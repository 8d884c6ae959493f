// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A list on memory nodes: numbers, each with bytes, in the order of insertion.
//!
//! - **Layout** a head of eight bytes, and a chain (`chain`)
//! - **Owner** the head's address is the handle; any number of clients open it

use super::chain::{Aggregate, Chain, Key, ScannedNode};
use super::heap::Heap;
use crate::client::Result;

/// Bytes of a head.
const HEAD_BYTES: usize = 16;

/// See the module's header.
#[derive(Debug)]
pub struct List {
    chain: Chain,
}

impl List {
    /// Makes an empty list.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Full`], or the reason that there was no answer.
    pub fn create(heap: &mut impl Heap) -> Result<List> {
        Ok(List { chain: Chain(heap.place(&[0; HEAD_BYTES])?) })
    }

    /// Opens the list whose head is at this address.
    #[must_use]
    pub fn open(head: u64) -> List {
        List { chain: Chain(head) }
    }

    /// Returns the address of the list's head.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.chain.0
    }

    /// Appends a number.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Full`], or the reason that there was no answer.
    pub fn push_back(&mut self, heap: &mut impl Heap, number: u64, bytes: &[u8]) -> Result<()> {
        self.chain.append(heap, number, bytes)
    }

    /// Prepends a number.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Full`], or the reason that there was no answer.
    pub fn push_front(&mut self, heap: &mut impl Heap, number: u64, bytes: &[u8]) -> Result<()> {
        self.chain.prepend(heap, number, bytes)
    }

    /// Returns the bytes of the first node with this number.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn find(&mut self, heap: &mut impl Heap, number: u64) -> Result<Option<Vec<u8>>> {
        self.chain.get(heap, Key::Number(number), false)
    }

    /// Removes the first node with this number; returns false if there is none.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn remove(&mut self, heap: &mut impl Heap, number: u64) -> Result<bool> {
        self.chain.remove(heap, Key::Number(number))
    }

    /// Returns all nodes in order.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn scan(&self, heap: &mut impl Heap) -> Result<Vec<ScannedNode>> {
        self.chain.scan(heap, self.chain.0)
    }

    /// Returns sum, count, least and greatest of the numbers, which are taken for signed ones.
    ///
    /// # Errors
    /// [`crate::client::ClientError::SumTooLarge`], or the reason that there was no answer.
    pub fn sum(&self, heap: &mut impl Heap) -> Result<Aggregate> {
        self.chain.sum(heap)
    }

    /// Returns what [`List::sum`] does, with a sum that wraps.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn sum_wrapping(&self, heap: &mut impl Heap) -> Result<Aggregate> {
        self.chain.sum_wrapping(heap)
    }

    /// Frees all of the list's memory. Nobody may use the list any more; walks that have begun still end normally.
    ///
    /// # Errors
    /// The reason that there was no answer; then the list can be dropped again.
    pub fn drop(self, heap: &mut impl Heap) -> Result<()> {
        let head = heap.read(self.chain.0, 8)?;
        Chain::drop_all(heap, &head)?;
        heap.retire(&[(self.chain.0, HEAD_BYTES as u64)])?;
        heap.settle()
    }
}
