// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations that a collection needs from the memory of its nodes, on memory nodes or in this process.
//!
//! - **Flow** collection ──[`Heap`]──▶ [`crate::client::Client`]: memory nodes; or [`super::image::Image`]: this process
//! - **Order** `compare_swap` and a walk that ends with an apply happen exactly once; a `write` happens before every request that
//!   is made after it returned
//! - **Not here** the contents of the memory

use std::sync::Arc;
use std::time::Duration;

use super::addend::Addend;
use crate::client::Result;
use crate::program::Program;
use memlift_spec::formats::walk::SCRATCH_BYTES_DEFAULT;

/// End of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The scratchpad is the answer.
    Done,
    /// The walk found nothing.
    Missing,
    /// Eight bytes were changed; holds their value before.
    Applied(u64),
    /// Eight bytes did not have the expected value; holds the value they had. Nothing was changed.
    Differs(u64),
}

/// Result of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// End of the walk.
    pub outcome: Outcome,
    /// The scratchpad at the end of the walk.
    pub scratch: Scratch,
    /// Bytes that the walk emitted.
    pub result: Vec<u8>,
    /// The memory's clock when the walk began; pass it to [`Heap::read_since`] and [`Heap::compare_swap_since`] with
    /// addresses that the walk found.
    pub since: u32,
}

/// A scratchpad, read and written by words. Bytes beyond its end are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scratch(pub Vec<u8>);

impl Scratch {
    /// Makes a scratchpad of zeros.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Sets the eight bytes at an offset.
    #[must_use]
    pub fn with(mut self, offset: usize, value: u64) -> Scratch {
        self.put(offset, &value.to_le_bytes());
        self
    }

    /// Sets bytes.
    ///
    /// # Panics
    /// If they would lie outside the 1 KiB that every program has.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        assert!(end <= SCRATCH_BYTES_DEFAULT, "a scratchpad has {SCRATCH_BYTES_DEFAULT} bytes");
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        self.0[offset..end].copy_from_slice(bytes);
    }

    /// Returns the eight bytes at an offset.
    #[must_use]
    pub fn word(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(self.0.iter().skip(offset)) {
            *to = *from;
        }
        u64::from_le_bytes(word)
    }

    /// Returns the four bytes at an offset.
    #[must_use]
    pub fn half(&self, offset: usize) -> u32 {
        self.word(offset) as u32
    }

    /// Returns `bytes` bytes; those beyond the scratchpad's end are zeros.
    #[must_use]
    pub fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut found: Vec<u8> = self.0.iter().skip(offset).take(bytes).copied().collect();
        found.resize(bytes, 0);
        found
    }
}

/// A walk to run.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Program that runs the steps.
    pub program: Arc<Program>,
    /// Address of the first node.
    pub start: u64,
    /// Scratchpad that the walk starts with.
    pub scratch: Scratch,
}

/// See the module's header.
pub trait Heap {
    /// Runs a walk.
    ///
    /// # Errors
    /// The reason that there is no answer.
    fn walk(&mut self, walk: &Walk) -> Result<Walked>;

    /// Runs walks, in any order, as many at a time as it can.
    fn walk_many(&mut self, walks: &[Walk]) -> Vec<Result<Walked>> {
        walks.iter().map(|walk| self.walk(walk)).collect()
    }

    /// Reads bytes. Each aligned word of eight is read in one piece; different words may have been read at different times.
    ///
    /// # Errors
    /// The reason that there is no answer.
    fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>>;

    /// Reads bytes at an address that was found at the clock `since`.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Outdated`]: the memory may have been reused since; or the reason that there is no
    /// answer.
    fn read_since(&mut self, address: u64, bytes: usize, since: u32) -> Result<Vec<u8>> {
        let _ = since;
        self.read(address, bytes)
    }

    /// Returns the memory's clock. Memory that is unlinked now must not be used by requests that found it more than
    /// [`GRACE`](super::pool::GRACE) ago. 0: there is no clock, because nobody else uses the memory.
    fn clock(&mut self) -> u32 {
        0
    }

    /// Writes bytes that no walk reads yet.
    ///
    /// # Errors
    /// The reason that there is no answer; the bytes may be written or not.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()>;

    /// Writes at several addresses.
    ///
    /// # Errors
    /// The first error.
    fn write_many(&mut self, writes: &[(u64, Vec<u8>)]) -> Result<()> {
        writes.iter().try_for_each(|(address, bytes)| self.write(*address, bytes))
    }

    /// Allocates memory, at a multiple of 64 if `bytes` is one; its contents are undefined.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Full`]
    fn allocate(&mut self, bytes: u64) -> Result<u64>;

    /// Allocates `count` blocks of `bytes` bytes each: all of them or none.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Full`]
    fn allocate_many(&mut self, count: usize, bytes: u64) -> Result<Vec<u64>> {
        (0..count).map(|_| self.allocate(bytes)).collect()
    }

    /// Runs a walk, and meanwhile allocates memory as [`Heap::allocate_many`] does.
    ///
    /// # Errors
    /// The first error; then no memory was allocated.
    fn walk_and_allocate(&mut self, walk: &Walk, count: usize, bytes: u64) -> Result<(Walked, Vec<u64>)> {
        let walked = self.walk(walk)?;
        Ok((walked, self.allocate_many(count, bytes)?))
    }

    /// Allocates memory and fills it with these bytes.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Full`]
    fn place(&mut self, bytes: &[u8]) -> Result<u64> {
        let address = self.allocate(bytes.len() as u64)?;
        self.write(address, bytes)?;
        Ok(address)
    }

    /// Allocates memory for each of these blocks and fills it with the block's bytes. Each result is the address, or the
    /// reason that the block could not be placed.
    fn place_many(&mut self, blocks: &[Vec<u8>]) -> Vec<Result<u64>> {
        blocks.iter().map(|bytes| self.place(bytes)).collect()
    }

    /// Frees memory that nobody refers to and no walk can reach: a whole allocation of `bytes` bytes, or a part of one at
    /// multiples of 16.
    ///
    /// # Errors
    /// The reason that there is no answer.
    fn free(&mut self, address: u64, bytes: u64) -> Result<()>;

    /// Retires memory that was unlinked just now: addresses and bytes. It becomes free once no walk can be at it any more
    /// ([`crate::memory::GRACE`]). Does not wait for the node's answer.
    ///
    /// # Errors
    /// The reason that the request could not be sent.
    fn retire(&mut self, blocks: &[(u64, u64)]) -> Result<()>;

    /// Asks the node that has the terms of a map at this address to sweep the map. Without a node nothing sweeps it.
    ///
    /// # Errors
    /// The reason that there is no answer: a node of a release before 0.2 does not answer.
    fn declare(&mut self, address: u64) -> Result<()> {
        let _ = address;
        Ok(())
    }

    /// Waits until all requests are answered, including those of [`Heap::retire`].
    ///
    /// # Errors
    /// The transport failed, or the wait was interrupted.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Reads at several places: address and bytes of each.
    ///
    /// # Errors
    /// The first error.
    fn read_many(&mut self, pieces: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        pieces.iter().map(|&(address, bytes)| self.read(address, bytes)).collect()
    }

    /// Replaces the eight bytes by `fresh` if they are `expected`; otherwise returns their value.
    ///
    /// # Errors
    /// The reason that there is no answer; the bytes may be changed or not.
    fn compare_swap(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
    ) -> Result<std::result::Result<(), u64>>;

    /// Does what [`Heap::compare_swap`] does, with an address and a value that were found at the clock `since`.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Outdated`]: the memory may have been reused since, and nothing was changed; or the
    /// reason that there is no answer.
    fn compare_swap_since(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
        since: u32,
    ) -> Result<std::result::Result<(), u64>> {
        let _ = since;
        self.compare_swap(address, expected, fresh)
    }

    /// Adds to the eight bytes; returns their value before.
    ///
    /// # Errors
    /// [`crate::client::ClientError::Overflow`]: the sum does not fit, and the bytes are unchanged; or the reason that there is no
    /// answer: then the addend may be added or not.
    fn fetch_add(&mut self, address: u64, addend: Addend) -> Result<u64> {
        let mut now = Scratch(self.read(address, 8)?).word(0);
        loop {
            let fresh = addend.added_to(now).ok_or_else(|| addend.overflow(now))?;
            match self.compare_swap(address, now, fresh)? {
                Ok(()) => return Ok(now),
                Err(other) => now = other,
            }
        }
    }

    /// Waits for this time.
    ///
    /// # Errors
    /// The transport failed, or the wait was interrupted.
    fn rest(&mut self, time: Duration) -> Result<()> {
        std::thread::sleep(time);
        Ok(())
    }

    /// Runs [`Heap::compare_swap_since`] for many operands, in any order.
    fn compare_swap_many(&mut self, swaps: &[Swap]) -> Vec<Result<std::result::Result<(), u64>>> {
        let swap = |one: &Swap| self.compare_swap_since(one.address, one.expected, one.fresh, one.since);
        swaps.iter().map(swap).collect()
    }
}

/// Operands of [`Heap::compare_swap_since`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Address of the eight bytes.
    pub address: u64,
    /// Value that the bytes must have.
    pub expected: u64,
    /// Value that the bytes get.
    pub fresh: u64,
    /// The memory's clock when the address and the value were found.
    pub since: u32,
}
