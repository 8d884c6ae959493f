// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring: single producer, single consumer, 256 messages, in memory that the other side can change.
//!
//! - **Flow** producer: copy message in ─▶ tail + 1 (Release)      consumer: tail (Acquire) ─▶ copy message out ─▶ head + 1
//! - **Order** the entry is written before the tail is published and read before the head is
//! - **Owner** each side keeps its own counter privately and only publishes it; of the other side's counter it believes
//!   nothing that is not possible: a distance over the ring's size is a fault of the peer.

use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::layout::RING_ENTRIES;
use crate::message::{MESSAGE_BYTES, Message};
use memlift_ground::region::{Region, RegionOffset};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where a ring lies in the control segment.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub tail: u64,
    pub head: u64,
    pub entries: u64,
}

/// The client's calls.
pub const REQUESTS: Place = Place {
    tail: crate::layout::REQUEST_TAIL_AT,
    head: crate::layout::REQUEST_HEAD_AT,
    entries: crate::layout::REQUEST_RING_AT,
};
/// The server's answers.
pub const RESPONSES: Place = Place {
    tail: crate::layout::RESPONSE_TAIL_AT,
    head: crate::layout::RESPONSE_HEAD_AT,
    entries: crate::layout::RESPONSE_RING_AT,
};

#[derive(Debug)]
struct Ring {
    _control: Arc<Region>,
    tail: *const AtomicU32,
    head: *const AtomicU32,
    entries: *mut Message,
}

// SAFETY: the pointers lie in `_control`, which is Send + Sync and kept alive by the Arc; the atomics are Sync and the
// entries are only touched through raw copies by the one producer or consumer.
unsafe impl Send for Ring {}

impl Ring {
    fn new(control: Arc<Region>, place: Place) -> Result<Ring, Error> {
        let bytes = u64::from(RING_ENTRIES) * MESSAGE_BYTES as u64;
        let entries = control.window(RegionOffset(place.entries), bytes)?.as_mut_ptr()?.cast::<Message>();
        let tail = std::ptr::from_ref(control.layout::<AtomicU32>(RegionOffset(place.tail))?);
        let head = std::ptr::from_ref(control.layout::<AtomicU32>(RegionOffset(place.head))?);
        Ok(Ring { _control: control, tail, head, entries })
    }

    fn tail(&self) -> &AtomicU32 {
        // SAFETY: points into `self._control`, which lives as long as self; checked for alignment by `layout`.
        unsafe { &*self.tail }
    }

    fn head(&self) -> &AtomicU32 {
        // SAFETY: as for `tail`.
        unsafe { &*self.head }
    }

    fn entry(&self, counter: u32) -> *mut Message {
        // SAFETY: the index is below RING_ENTRIES, and the window of that many messages was checked.
        unsafe { self.entries.add((counter % RING_ENTRIES) as usize) }
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    tail: u32,
    /// The reader's counter when it was looked at last: its cache line stays with the reader until the ring seems full.
    head: u32,
}

impl Producer {
    /// Takes the writing end of a ring whose counters are both `start`.
    pub fn new(control: Arc<Region>, place: Place) -> Result<Producer, Error> {
        Ok(Producer { ring: Ring::new(control, place)?, tail: 0, head: 0 })
    }

    /// Publishes a message; gives it back if the ring is full.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if the reader's counter is impossible.
    pub fn push(&mut self, message: &Message) -> Result<bool, Error> {
        if self.tail.wrapping_sub(self.head) == RING_ENTRIES {
            let head = self.ring.head().load(Ordering::Acquire);
            let used = self.tail.wrapping_sub(head);
            if used > RING_ENTRIES {
                return Err(Error::peer_fault("impossible ring head"));
            }
            if used == RING_ENTRIES {
                return Ok(false);
            }
            self.head = head;
        }
        // SAFETY: the entry is inside the ring, aligned to 64, and by fewer used than RING_ENTRIES the consumer has given it
        // back. A peer that writes to it meanwhile only spoils its own message: nothing is read from it here.
        unsafe { std::ptr::write_volatile(self.ring.entry(self.tail), *message) };
        reach(Step::EntryWritten);
        self.tail = self.tail.wrapping_add(1);
        self.ring.tail().store(self.tail, Ordering::Release);
        reach(Step::TailPublished);
        Ok(true)
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    head: u32,
}

impl Consumer {
    /// Takes the reading end of a ring whose counters are both zero.
    pub fn new(control: Arc<Region>, place: Place) -> Result<Consumer, Error> {
        Ok(Consumer { ring: Ring::new(control, place)?, head: 0 })
    }

    /// Returns true if a message is there (or the producer's counter is wrong, which `pop` will say).
    pub fn is_ready(&self) -> bool {
        self.ring.tail().load(Ordering::Acquire) != self.head
    }

    /// The cache line that changes when a message arrives.
    pub fn line(&self) -> *const u8 {
        self.ring.tail.cast()
    }

    /// Takes the next message: one copy of it to `message`, which is what gets judged; `false`: there is none.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if the writer's counter is impossible.
    pub fn pop(&mut self, message: &mut Message) -> Result<bool, Error> {
        let there = self.ring.tail().load(Ordering::Acquire).wrapping_sub(self.head);
        if there == 0 {
            return Ok(false);
        }
        if there > RING_ENTRIES {
            return Err(Error::peer_fault("impossible ring tail"));
        }
        let entry = self.ring.entry(self.head).cast::<u64>();
        for (at, word) in
            bytemuck::cast_mut::<Message, [u64; MESSAGE_BYTES / 8]>(message).iter_mut().enumerate()
        {
            // SAFETY: the entry is inside the ring, aligned to 64, and any bytes are a valid Message (Pod). The copy is volatile
            // so that it happens exactly once: what is validated is what is used.
            *word = unsafe { std::ptr::read_volatile(entry.add(at)) };
        }
        self.head = self.head.wrapping_add(1);
        self.ring.head().store(self.head, Ordering::Release);
        reach(Step::EntryTaken);
        Ok(true)
    }
}
