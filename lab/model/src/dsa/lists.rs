// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Batches of descriptors for callers that have no memory of their own: the lists that an engine fetches.
//!
//! - **Layout** 64 bytes for completion records, then places for lists, taken in turn
//! - **Rule** a list is read before its place comes again: a batch that is not fetched is in the queue or in an engine, and there are more
//!   places than both hold

use memlift_spec::{Descriptor, Flags, Opcode};

use super::device::Device;
use super::timing::Timing;
use crate::event::Calendar;
use crate::memory::{Image, Memory};

/// Bytes of a descriptor.
const BYTES: usize = 64;

/// Memory for the lists of batches that are under way.
#[derive(Debug, Default)]
pub struct Lists {
    bytes: Vec<u8>,
    /// Most members of a batch.
    most: usize,
    places: usize,
    next: usize,
}

impl Lists {
    /// For a device of this timing, and batches of at most so many members.
    #[must_use]
    pub fn new(timing: &Timing, most: usize) -> Lists {
        let places = if most > 1 { timing.queue_entries + timing.engines + 1 } else { 0 };
        Lists { bytes: vec![0; BYTES * (1 + places * most)], most, places, next: 0 }
    }

    /// The lists as an engine reads them.
    pub fn memory(&mut self) -> Image<'_> {
        Image { base: 0, bytes: &mut self.bytes }
    }

    /// Puts a batch of these members into the device's queue: its number; none: the queue is full.
    ///
    /// # Panics
    /// If there are more members than [`Lists::new`] was told.
    pub fn submit<E>(
        &mut self,
        device: &mut Device,
        members: &[Descriptor],
        calendar: &mut Calendar<E>,
        event: impl Fn(usize) -> E,
    ) -> Option<usize> {
        assert!(members.len() <= self.most, "{} members, {} at most", members.len(), self.most);
        let at = (BYTES * (1 + self.next * self.most)) as u64;
        let mut image = self.memory();
        for (index, member) in members.iter().enumerate() {
            image.put_descriptor(at + (BYTES * index) as u64, member);
        }
        let mut batch = Descriptor::new(Opcode::BATCH, Flags::NONE);
        (batch.source, batch.size) = (at, members.len() as u32);
        let job = device.submit(&batch, calendar, event)?;
        self.next = (self.next + 1) % self.places;
        Some(job)
    }
}
