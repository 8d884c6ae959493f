// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two rings of packets in memory shared by two processes: one for requests, one for answers.
//!
//! - **Layout**
//!   - 0 magic u64 · 8 version u32 · 12 reserved u32 · 16 bytes of one ring u64 · 128 requests' tail u64 · 192 their head u64
//!   - 256 answers' tail u64 · 320 their head u64 · 384 the node's park word u32 · 448 the client's u32
//!   - 4096 ring of requests · ring of answers. A record: its bytes u64, then them, filled up to eight; it may wrap
//! - **Order** tails and heads grow without wrapping, in words of eight bytes. The writer stores the words, then the tail
//!   (Release); the reader loads the tail (Acquire), then the words. The reader stores its head after it has copied the record
//! - **Owner** one side writes a ring's tail, the other its head. Each keeps its own value in private and never reads it back. A
//!   value that the other side stored is only used after a bounds check, and a record is copied out once before it is parsed

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memlift_ground::complete::ParkWord;
use memlift_ground::region::Region;

use crate::round::{prefetch, prefetch_write};
use crate::transport::TransportError;
use crate::wire::PACKET_BYTES_MAX;

const MAGIC: u64 = u64::from_le_bytes(*b"MLWALKS1");
const VERSION: u32 = 1;
const CONTROL_BYTES: u64 = 4096;
/// Default bytes of each ring.
pub(super) const RING_BYTES: u64 = 1 << 20;
/// The largest ring that a node accepts: the memory belongs to the client, but it takes up the node's address space.
const RING_BYTES_MAX: u64 = 64 << 20;

const REQUESTS: (usize, usize) = (128, 192);
const ANSWERS: (usize, usize) = (256, 320);
const NODE_PARK: usize = 384;
const CLIENT_PARK: usize = 448;
/// Number of words in a cache line.
const LINE_WORDS: u64 = 8;
/// Distance behind a record at which cache lines are prefetched from the other side's cache: the words that are read during
/// one fetch, at two or three lines a packet.
const AHEAD_WORDS: u64 = 12 * LINE_WORDS;
const RECORD_WORDS_MAX: u64 = 1 + (PACKET_BYTES_MAX as u64).div_ceil(8);

/// Returns the bytes of shared memory for rings of `ring_bytes`.
pub(super) fn whole_bytes(ring_bytes: u64) -> u64 {
    CONTROL_BYTES + 2 * ring_bytes
}

/// Returns true if rings may have this size.
pub(super) fn is_size(ring_bytes: u64) -> bool {
    ring_bytes.is_power_of_two() && (64 << 10..=RING_BYTES_MAX).contains(&ring_bytes)
}

/// One side of both rings.
#[derive(Debug)]
pub(super) struct Rings {
    region: Region,
    words: u64,
    /// Byte offsets for the ring that we write: its tail (ours), its head (written by the other side), and its first word.
    out: (usize, usize, usize),
    tail: u64,
    published: u64,
    /// The other side's head when it was last read.
    their_head: u64,
    /// Byte offsets for the ring that we read: its tail, its head, and its first word.
    into: (usize, usize, usize),
    head: u64,
    their_tail: u64,
    own_park: usize,
    their_park: usize,
}

impl Rings {
    /// Makes the client's side, in memory that is still empty.
    pub(super) fn client(region: Region, ring_bytes: u64) -> Rings {
        let rings = Rings::new(region, ring_bytes, true);
        rings.at(0).store(MAGIC, Ordering::Relaxed);
        rings.at(8).store(u64::from(VERSION), Ordering::Relaxed);
        rings.at(16).store(ring_bytes, Ordering::Release);
        rings
    }

    /// Makes the node's side, in a client's memory.
    pub(super) fn node(region: Region, ring_bytes: u64) -> Result<Rings, TransportError> {
        let rings = Rings::new(region, ring_bytes, false);
        let head = [rings.at(0), rings.at(8), rings.at(16)].map(|word| word.load(Ordering::Acquire));
        if head != [MAGIC, u64::from(VERSION), ring_bytes] {
            return Err(TransportError::Broken("its head"));
        }
        Ok(rings)
    }

    fn new(region: Region, ring_bytes: u64, client: bool) -> Rings {
        assert!(is_size(ring_bytes) && region.bytes() == whole_bytes(ring_bytes) && region.writable());
        let requests = (REQUESTS.0, REQUESTS.1, CONTROL_BYTES as usize);
        let answers = (ANSWERS.0, ANSWERS.1, (CONTROL_BYTES + ring_bytes) as usize);
        let (out, into) = if client { (requests, answers) } else { (answers, requests) };
        let (own_park, their_park) = if client { (CLIENT_PARK, NODE_PARK) } else { (NODE_PARK, CLIENT_PARK) };
        Rings {
            region,
            words: ring_bytes / 8,
            out,
            tail: 0,
            published: 0,
            their_head: 0,
            into,
            head: 0,
            their_tail: 0,
            own_park,
            their_park,
        }
    }

    /// Returns the word at a byte offset that is a multiple of 8.
    fn at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && (offset as u64) < self.region.bytes());
        // SAFETY: offsets are those of the layout, and ring words are reduced modulo the ring's size, so the word lies
        // inside the region, whose size was checked and cannot change. It is mapped writable while `self` lives, and
        // aligned, as the mapping is. Any process may store there at any time, which atomics allow.
        unsafe { AtomicU64::from_ptr(self.region.base().cast_mut().add(offset).cast()) }
    }

    fn park(&self, offset: usize) -> &ParkWord {
        // SAFETY: `offset` is that of a park word in the layout, a multiple of 4 inside the control page of the region,
        // which is mapped while `self` lives. The other process may store there at any time, which atomics allow.
        ParkWord::from_atomic(unsafe {
            AtomicU32::from_ptr(self.region.base().cast_mut().add(offset).cast())
        })
    }

    /// Returns the park word of this side, which is set while it sleeps.
    pub(super) fn own_park(&self) -> &ParkWord {
        self.park(self.own_park)
    }

    fn word(&self, ring: usize, index: u64) -> &AtomicU64 {
        self.at(ring + ((index & (self.words - 1)) * 8) as usize)
    }

    /// Puts a packet into the ring; returns false if there is no room.
    pub(super) fn push(&mut self, packet: &[u8]) -> Result<bool, TransportError> {
        let record = 1 + packet.len().div_ceil(8) as u64;
        debug_assert!(record <= RECORD_WORDS_MAX);
        if self.tail - self.their_head + record > self.words {
            let head = self.at(self.out.1).load(Ordering::Acquire);
            if self.tail.wrapping_sub(head) > self.words || head < self.their_head {
                return Err(TransportError::Broken("its head"));
            }
            self.their_head = head;
            if self.tail - head + record > self.words {
                return Ok(false);
            }
        }
        self.ahead(self.out.2, self.tail, record, prefetch_write);
        self.word(self.out.2, self.tail).store(packet.len() as u64, Ordering::Relaxed);
        let (whole, rest) = packet.as_chunks::<8>();
        let mut index = self.tail + 1;
        for word in whole {
            self.word(self.out.2, index).store(u64::from_le_bytes(*word), Ordering::Relaxed);
            index += 1;
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.word(self.out.2, index).store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        self.tail += record;
        Ok(true)
    }

    /// Publishes the packets that were pushed; calls `ring` if the other side sleeps.
    pub(super) fn publish(&mut self, ring: impl FnOnce()) {
        if self.published == self.tail {
            return;
        }
        self.at(self.out.0).store(self.tail, Ordering::Release);
        self.published = self.tail;
        self.park(self.their_park).wake(ring);
    }

    /// Returns true if a packet has arrived.
    pub(super) fn ready(&self) -> bool {
        self.at(self.into.0).load(Ordering::Acquire) != self.head
    }

    /// Prefetches the cache lines that lie [`AHEAD_WORDS`] words behind a record, because they are still in the other side's
    /// cache.
    fn ahead(&self, ring: usize, index: u64, record: u64, prefetch: impl Fn(*const u8)) {
        for line in (0..record).step_by(LINE_WORDS as usize) {
            prefetch(std::ptr::from_ref(self.word(ring, index.wrapping_add(AHEAD_WORDS + line))).cast());
        }
    }

    /// Appends a copy of the next packet to `packets`; returns false if there is none.
    pub(super) fn pop(&mut self, packets: &mut Vec<u8>) -> Result<bool, TransportError> {
        if self.their_tail == self.head {
            let tail = self.at(self.into.0).load(Ordering::Acquire);
            if tail == self.head {
                return Ok(false);
            }
            if tail.wrapping_sub(self.head) > self.words {
                return Err(TransportError::Broken("its tail"));
            }
            self.their_tail = tail;
        }
        let bytes = self.word(self.into.2, self.head).load(Ordering::Relaxed);
        let record = 1 + bytes.div_ceil(8);
        let there = self.their_tail.wrapping_sub(self.head);
        if bytes == 0 || bytes > PACKET_BYTES_MAX as u64 || record > there {
            return Err(TransportError::Broken("a record's length"));
        }
        if there > AHEAD_WORDS + record {
            self.ahead(self.into.2, self.head, record, prefetch);
        }
        let start = packets.len();
        packets.resize(start + (record as usize - 1) * 8, 0);
        let mut index = self.head;
        for to in packets[start..].as_chunks_mut::<8>().0 {
            index = index.wrapping_add(1);
            *to = self.word(self.into.2, index).load(Ordering::Relaxed).to_le_bytes();
        }
        packets.truncate(start + bytes as usize);
        self.head = self.head.wrapping_add(record);
        Ok(true)
    }

    /// Releases the room of popped packets to the other side.
    pub(super) fn release(&self) {
        self.at(self.into.1).store(self.head, Ordering::Release);
    }
}

impl Rings {
    /// Calls `take` with the memory's descriptor, to send it to the node.
    pub(super) fn with_fd<T>(&self, take: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> T) -> T {
        take(self.region.as_fd().expect("a memfd has a descriptor"))
    }
}
