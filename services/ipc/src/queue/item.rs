// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room that was reserved in a queue, and items that were taken from it.
//!
//! - **Flow** [`Reserved`]: written in place or by parts ─▶ published, or given back when it is dropped · [`Item`]: looked at in
//!   place, or copied out ─▶ its block goes back when it is dropped
//! - **Owner** a block is one process's alone between reserving and publishing, and again between taking and dropping

use super::Queue;
use super::table::{Label, Place};
use crate::error::Error;
use crate::fork;
use crate::payload::Outgoing;
use crate::transfer::Transfer;

/// Fresh blocks from here on get their memory in one call.
const POPULATED_BYTES: u64 = 64 << 10;

/// Room for an item. Dropped unpublished, it is given back.
#[derive(Debug)]
pub struct Reserved {
    pub(super) queue: Queue,
    pub(super) place: Place,
    pub(super) published: bool,
}

impl Reserved {
    /// Bytes of the item.
    pub fn bytes(&self) -> u64 {
        self.place.bytes
    }

    /// Copies one part of the item to its place, `at` bytes from the start.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if it does not fit.
    pub fn write(&mut self, at: u64, part: &Outgoing<'_>) -> Result<(), Error> {
        let target = self.queue.block(&self.place)?.window(at, part.bytes())?.as_mut_ptr()?;
        // SAFETY: the window has the part's length and is writable. It lies in the queue's mapping, of which nobody makes an
        // `Outgoing` except from an item's block, which is another one than this while both are held.
        unsafe { part.copy_here(target, Transfer::PLAIN) };
        Ok(())
    }

    /// Writes two numbers beside the item: [`Item::label`] has them.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if the books were spoilt.
    pub fn set_label(&mut self, label: Label) -> Result<(), Error> {
        self.queue.0.table().label(self.place.slot, label)
    }

    /// First byte of the item, to be written in place while this lives.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the books were spoilt.
    pub fn as_mut_ptr(&self) -> Result<*mut u8, Error> {
        Ok(self.queue.block(&self.place)?.as_mut_ptr()?)
    }

    /// Makes the item ready to be taken.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if the books were spoilt.
    pub fn publish(mut self) -> Result<(), Error> {
        let own = self.queue.0.own()?;
        self.queue.0.locked(own, |table| table.publish(self.place.slot))?;
        self.published = true;
        self.queue.published(own, self.place.bytes);
        Ok(())
    }

    /// Gives a fresh block its memory at once rather than page by page. Best effort.
    pub(super) fn populate(&self) {
        if !self.place.fresh || self.place.bytes < POPULATED_BYTES {
            return;
        }
        let whole = self.queue.block(&self.place).and_then(|block| Ok(block.as_mut_ptr()?));
        let Ok(start) = whole else { return };
        // SAFETY: populating changes no byte; the range is part of the queue's mapping, whose blocks of this size start at
        // a page.
        let _ = unsafe {
            rustix::mm::madvise(
                start.cast(),
                self.place.bytes as usize,
                rustix::mm::Advice::LinuxPopulateWrite,
            )
        };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.published {
            self.queue.0.release(self.place.slot);
        }
    }
}

#[derive(Debug)]
pub(super) enum Held {
    Small(Vec<u8>),
    Block(Block),
}

#[derive(Debug)]
pub(super) struct Block {
    pub queue: Queue,
    pub place: Place,
    pub generation: u32,
}

impl Drop for Block {
    fn drop(&mut self) {
        // A fork's child has a copy of the object, but the block is its parent's.
        if self.generation == fork::generation() {
            self.queue.0.release(self.place.slot);
        }
    }
}

/// An item that was taken: its bytes are this process's alone, where they lie, until it is dropped.
#[derive(Debug)]
pub struct Item {
    pub(super) held: Held,
    pub(super) label: Label,
}

impl From<Vec<u8>> for Item {
    fn from(bytes: Vec<u8>) -> Item {
        Item { held: Held::Small(bytes), label: Label::default() }
    }
}

impl Item {
    /// The numbers that its putter wrote beside it; zeros, unless it did.
    pub fn label(&self) -> Label {
        self.label
    }

    /// Length of the item, bytes.
    pub fn bytes(&self) -> u64 {
        match &self.held {
            Held::Small(bytes) => bytes.len() as u64,
            Held::Block(block) => block.place.bytes,
        }
    }

    /// Returns true if it occupies a block of the queue, which putters may need.
    pub fn is_leased(&self) -> bool {
        matches!(self.held, Held::Block(_))
    }

    /// Returns true if items that are being read take more than half of the budget: copy the item and drop it, or putters starve.
    pub fn is_crowded(&self) -> bool {
        match &self.held {
            Held::Small(_) => false,
            Held::Block(block) => {
                let stats = block.queue.stats();
                stats.viewed_bytes > stats.budget_bytes / 2
            }
        }
    }

    /// Moves the item to memory of this process alone, so that the queue has its block back.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the books were spoilt.
    pub fn detach(self) -> Result<Item, Error> {
        match &self.held {
            Held::Small(_) => Ok(self),
            Held::Block(_) => Ok(Item { held: Held::Small(self.to_vec()?), label: self.label }),
        }
    }

    /// First byte, until the item is dropped. It may be written, too.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the books were spoilt.
    pub fn as_mut_ptr(&mut self) -> Result<*mut u8, Error> {
        match &mut self.held {
            Held::Small(bytes) => Ok(bytes.as_mut_ptr()),
            Held::Block(block) => Ok(block.queue.block(&block.place)?.as_mut_ptr()?),
        }
    }

    /// Copies bytes out, from `at` on.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] beyond its end.
    pub fn read_into(&self, at: u64, target: &mut [u8]) -> Result<(), Error> {
        match &self.held {
            Held::Small(bytes) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                let part = bytes.get(start..).and_then(|rest| rest.get(..target.len()));
                target.copy_from_slice(part.ok_or_else(|| Error::peer_fault("an item that is too short"))?);
                Ok(())
            }
            Held::Block(block) => {
                let window = block.queue.block(&block.place)?.window(at, target.len() as u64)?;
                Ok(window.read_into(target)?)
            }
        }
    }

    /// Its bytes, copied.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the books were spoilt.
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.bytes() as usize];
        self.read_into(0, &mut bytes)?;
        Ok(bytes)
    }
}
