// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arena's books: which blocks there are, who still needs them, and who reads.
//!
//! - **Flow** `allocate` ─▶ the value is copied ─▶ `publish` ─▶ read ─▶ the last hold goes ─▶ the generation is taken away ─▶ when no
//!   lease is left, the memory is free
//! - **Layout** a hold is the arena's own reason to keep a value: that it was put, that it is a topic's latest, that a subscriber has yet
//!   to take it. A lease is a reader's, and lies in the reader's table
//! - **Order** blocks whose end is near are looked at in turn, a few at each put and all of them when room is wanted
//! - **Owner** one lock around everything here. Nothing is sent or unmapped under it: what has to be is given back to the caller

use super::handle::BlockId;
use super::layout::{ENTRIES_AT, ENTRY_BYTES, Entry, GENERATION_MAX, Header, Lease};
use super::topic::{Following, Topic};
use crate::credentials::Peer;
use crate::error::Error;
use crate::fork::SessionSocket;
use memlift_ground::region::{Region, RegionOffset};
use offset_allocator::{Allocation, Allocator};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Blocks start at multiples of this, bytes.
pub const GRANULE_BYTES: u64 = 256;
/// Memory is counted, and given back, in chunks of this size, bytes.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// Blocks that each put looks at.
const RECLAIMED: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing lies here.
    Free,
    /// A value is being written.
    Writing,
    /// Readers may take leases.
    Readable,
    /// Nobody gets a lease any more; some reader still has one.
    Ending,
}

struct Block {
    state: State,
    generation: u64,
    offset: u64,
    bytes: u64,
    allocation: Option<Allocation>,
    /// Reasons of the arena to keep it.
    holds: u32,
    /// True if one of them is that it was put.
    put: bool,
    /// Times that it is to be taken before that hold ends.
    reads: Option<u32>,
    /// Times that readers who have ended took it.
    taken_before: u32,
    /// True if it is among those whose end is near.
    watched: bool,
}

/// A reader, as the arena sees it.
#[derive(Debug)]
pub struct Seat {
    pub number: u64,
    pub socket: Arc<SessionSocket>,
    pub peer: Peer,
    pub table: Region,
    pub following: Option<Following>,
}

impl Seat {
    fn lease(&self, block: u32) -> Lease {
        let word: Result<&AtomicU64, _> = self.table.layout(RegionOffset(u64::from(block) * 8));
        Lease::from_word(word.expect("a table has a word for each block").load(Ordering::SeqCst))
    }
}

/// Everything that the arena's process knows and its readers do not.
pub struct Books {
    allocator: Allocator,
    directory: Arc<Region>,
    blocks: Vec<Block>,
    blocks_max: u32,
    free: Vec<u32>,
    /// Blocks that are to be looked at, oldest first.
    watched: VecDeque<u32>,
    /// Values that were put, oldest first: the order in which they are evicted.
    order: VecDeque<BlockId>,
    /// Chunks that have memory.
    touched: Vec<bool>,
    touched_count: u64,
    pub used_bytes: u64,
    pub budget_bytes: u64,
    pub seats: Vec<Seat>,
    pub topics: HashMap<String, Topic>,
    /// Threads that wait for room.
    pub waiting: usize,
    pub closed: bool,
    pub evicted: u64,
}

/// Room for a value.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub id: BlockId,
    pub offset: u64,
    /// Bytes of it that have no memory yet.
    pub fresh_bytes: u64,
    /// True if the arena had no memory at all before.
    pub first: bool,
}

impl Books {
    pub fn new(directory: Arc<Region>, blocks_max: u32, data_bytes: u64, budget_bytes: u64) -> Books {
        let granules = u32::try_from(data_bytes / GRANULE_BYTES).unwrap_or(u32::MAX);
        // One more for what is free, and one that the allocator never gives out.
        let allocator = Allocator::with_max_allocs(granules, blocks_max + 2);
        Books {
            allocator,
            directory,
            blocks: Vec::new(),
            blocks_max,
            free: Vec::new(),
            watched: VecDeque::new(),
            order: VecDeque::new(),
            touched: vec![false; data_bytes.div_ceil(CHUNK_BYTES) as usize],
            touched_count: 0,
            used_bytes: 0,
            budget_bytes,
            seats: Vec::new(),
            topics: HashMap::new(),
            waiting: 0,
            closed: false,
            evicted: 0,
        }
    }

    pub fn header(&self) -> &Header {
        self.directory.layout(RegionOffset(0)).expect("the directory has its full length")
    }

    fn entry(&self, block: u32) -> &Entry {
        let at = ENTRIES_AT + u64::from(block) * ENTRY_BYTES;
        self.directory.layout(RegionOffset(at)).expect("the directory has an entry for each block")
    }

    /// The block, if that value still lies in it.
    fn block(&mut self, id: BlockId) -> Option<&mut Block> {
        let block = self.blocks.get_mut(id.block as usize)?;
        (block.generation == id.generation && block.state != State::Free).then_some(block)
    }

    /// Takes room for `bytes`, within the budget.
    pub fn allocate(&mut self, bytes: u64) -> Option<Room> {
        let granules = u32::try_from(bytes.div_ceil(GRANULE_BYTES).max(1)).ok()?;
        let padded = u64::from(granules) * GRANULE_BYTES;
        if self.used_bytes + padded > self.budget_bytes {
            return None;
        }
        if self.free.is_empty() && self.blocks.len() < self.blocks_max as usize {
            self.free.push(self.blocks.len() as u32);
            self.blocks.push(Block {
                state: State::Free,
                generation: 0,
                offset: 0,
                bytes: 0,
                allocation: None,
                holds: 0,
                put: false,
                reads: None,
                taken_before: 0,
                watched: false,
            });
        }
        let number = *self.free.last()?;
        let allocation = self.allocator.allocate(granules)?;
        self.free.pop();
        let offset = u64::from(allocation.offset) * GRANULE_BYTES;
        let watched = self.blocks[number as usize].watched;
        let generation = self.blocks[number as usize].generation + 1;
        self.blocks[number as usize] = Block {
            state: State::Writing,
            generation,
            offset,
            bytes,
            allocation: Some(allocation),
            holds: 0,
            put: false,
            reads: None,
            taken_before: 0,
            watched,
        };
        self.used_bytes += padded;
        let first = self.touched_count == 0;
        let fresh_bytes = self.touch(offset, padded);
        Some(Room { id: BlockId { block: number, generation }, offset, fresh_bytes, first })
    }

    /// Marks a range as having memory; gives the bytes of the chunks that had none.
    fn touch(&mut self, offset: u64, bytes: u64) -> u64 {
        let chunks = (offset / CHUNK_BYTES) as usize..=((offset + bytes - 1) / CHUNK_BYTES) as usize;
        let mut fresh = 0;
        for touched in &mut self.touched[chunks] {
            fresh += u64::from(!std::mem::replace(touched, true));
        }
        self.touched_count += fresh;
        fresh * CHUNK_BYTES
    }

    /// Lets readers see a value. `reads`: the times after which it is not needed any more; `None`: until it is released.
    pub fn publish(&mut self, id: BlockId, reads: Option<u32>) {
        let Some(block) = self.block(id) else { return };
        block.state = State::Readable;
        block.holds = 1;
        block.put = true;
        block.reads = reads;
        let (offset, bytes) = (block.offset, block.bytes);
        let entry = self.entry(id.block);
        entry.offset.store(offset, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.generation.store(id.generation, Ordering::SeqCst);
        self.order.push_back(id);
        if self.order.len() > 2 * self.blocks.len() + 16 {
            self.forget_order();
        }
        if reads.is_some() {
            self.watch(id.block);
        }
    }

    /// Drops from the order what is not kept for having been put.
    fn forget_order(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|&id| self.block(id).is_some_and(|block| block.put));
        self.order = order;
    }

    fn watch(&mut self, block: u32) {
        if !std::mem::replace(&mut self.blocks[block as usize].watched, true) {
            self.watched.push_back(block);
        }
    }

    /// One more reason to keep a value; false if it is gone.
    pub fn hold(&mut self, id: BlockId) -> bool {
        let block = self.block(id).filter(|block| block.state == State::Readable);
        block.map(|block| block.holds += 1).is_some()
    }

    /// One reason less. True if that made room.
    pub fn let_go(&mut self, id: BlockId) -> bool {
        let Some(block) = self.block(id) else { return false };
        block.holds = block.holds.saturating_sub(1);
        self.settle(id.block)
    }

    /// The value is not needed any more. True if that made room.
    pub fn release(&mut self, id: BlockId) -> bool {
        let released = self.block(id).is_some_and(|block| std::mem::take(&mut block.put));
        released && self.let_go(id)
    }

    /// Gives room back in which no value was published.
    pub fn abandon(&mut self, id: BlockId) {
        if self.block(id).is_some_and(|block| block.state == State::Writing) {
            self.end(id.block);
        }
    }

    /// Ends a block if nothing needs it any more. True if that made room.
    fn settle(&mut self, number: u32) -> bool {
        let block = &self.blocks[number as usize];
        let generation = block.generation;
        if block.state == State::Readable
            && block.put
            && let Some(reads) = block.reads
            && self.taken(number) >= reads
        {
            let block = &mut self.blocks[number as usize];
            block.put = false;
            block.holds -= 1;
        }
        let block = &self.blocks[number as usize];
        if block.holds == 0 && block.state == State::Readable {
            self.entry(number).generation.store(0, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.blocks[number as usize].state = State::Ending;
        }
        if self.blocks[number as usize].state != State::Ending {
            return false;
        }
        let leased = self.seats.iter().any(|seat| {
            let lease = seat.lease(number);
            lease.live && lease.generation == generation
        });
        if leased {
            self.watch(number);
            return false;
        }
        self.end(number);
        true
    }

    fn end(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        block.state = State::Free;
        let allocation = block.allocation.take();
        self.used_bytes -= block.bytes.div_ceil(GRANULE_BYTES).max(1) * GRANULE_BYTES;
        if block.generation < GENERATION_MAX {
            self.free.push(number);
        }
        if let Some(allocation) = allocation {
            self.allocator.free(allocation);
        }
    }

    /// Times that readers took the value in a block.
    fn taken(&self, number: u32) -> u32 {
        let block = &self.blocks[number as usize];
        let leases = self.seats.iter().map(|seat| seat.lease(number));
        let takes = leases.filter(|lease| lease.generation == block.generation).map(|lease| lease.takes);
        takes.fold(block.taken_before, u32::saturating_add)
    }

    /// Looks at blocks whose end is near: a few of them, or all. True if that made room.
    pub fn reclaim(&mut self, all: bool) -> bool {
        let count = if all { self.watched.len() } else { self.watched.len().min(RECLAIMED) };
        let mut made = false;
        for _ in 0..count {
            let Some(number) = self.watched.pop_front() else { break };
            self.blocks[number as usize].watched = false;
            made |= self.settle(number);
            let block = &self.blocks[number as usize];
            if block.state == State::Readable && block.put && block.reads.is_some() {
                self.watch(number);
            }
        }
        made
    }

    /// Gives up the oldest value that nobody has a lease of, if there is one.
    pub fn evict(&mut self) -> bool {
        for at in 0..self.order.len() {
            let id = self.order[at];
            let Some(block) = self.block(id).filter(|block| block.put) else { continue };
            let only_put = block.holds == 1;
            let leased = self.seats.iter().any(|seat| {
                let lease = seat.lease(id.block);
                lease.live && lease.generation == id.generation
            });
            if only_put && !leased && self.release(id) {
                self.order.drain(..=at);
                self.evicted += 1;
                return true;
            }
        }
        self.forget_order();
        false
    }

    /// Takes a reader out, with what it took into account. Drop what is returned outside the lock.
    #[must_use]
    pub fn leave(&mut self, number: u64) -> Option<Seat> {
        let at = self.seats.iter().position(|seat| seat.number == number)?;
        let seat = self.seats.swap_remove(at);
        for (number, block) in self.blocks.iter_mut().enumerate() {
            let lease = seat.lease(number as u32);
            if block.state != State::Free && lease.generation == block.generation {
                block.taken_before = block.taken_before.saturating_add(lease.takes);
            }
        }
        for id in seat.following.iter().flat_map(Following::held) {
            self.let_go(id);
        }
        self.reclaim(true);
        Some(seat)
    }

    /// Ends every hold: nothing can be read any more but what is leased.
    pub fn close(&mut self) {
        self.closed = true;
        self.header().closed.store(1, Ordering::SeqCst);
        self.topics.clear();
        self.order.clear();
        for number in 0..self.blocks.len() as u32 {
            let block = &mut self.blocks[number as usize];
            if block.state == State::Readable {
                block.holds = 0;
                block.put = false;
                self.settle(number);
            }
        }
    }

    /// Ranges, offset and bytes, that have memory and no value. They count as having none from here on.
    pub fn unused(&mut self) -> Vec<(u64, u64)> {
        let mut kept = vec![false; self.touched.len()];
        for block in self.blocks.iter().filter(|block| block.state != State::Free) {
            let last = (block.offset + block.bytes.max(1) - 1) / CHUNK_BYTES;
            kept[(block.offset / CHUNK_BYTES) as usize..=last as usize].fill(true);
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (number, touched) in self.touched.iter_mut().enumerate() {
            if kept[number] || !std::mem::take(touched) {
                continue;
            }
            self.touched_count -= 1;
            let at = number as u64 * CHUNK_BYTES;
            match ranges.last_mut() {
                Some((offset, bytes)) if *offset + *bytes == at => *bytes += CHUNK_BYTES,
                _ => ranges.push((at, CHUNK_BYTES)),
            }
        }
        ranges
    }

    /// Bytes that have memory.
    pub fn memory_bytes(&self) -> u64 {
        self.touched_count * CHUNK_BYTES
    }

    /// Values that readers may take.
    pub fn values(&self) -> usize {
        self.blocks.iter().filter(|block| block.state == State::Readable).count()
    }

    /// Bytes of values that are only kept because a reader has a view of them.
    pub fn ending_bytes(&self) -> u64 {
        self.blocks.iter().filter(|block| block.state == State::Ending).map(|block| block.bytes).sum()
    }

    /// Checks that the arena is open.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`].
    pub fn check_open(&self) -> Result<(), Error> {
        if self.closed { Err(Error::Closed { what: "arena" }) } else { Ok(()) }
    }
}
