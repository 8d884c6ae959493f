// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue's books: which slot holds what, which blocks are free, in which order items go.
//!
//! - **Flow** `reserve` FREE → WRITING ─▶ `publish` → READY ─▶ `take` → READING ─▶ `release` → FREE
//! - **Layout** blocks have sizes in four steps per power of two; a free slot keeps its block and waits in the list of that class. New
//!   blocks are cut off the end. Memory over the budget is taken from free blocks before anybody is refused
//! - **Order** each step changes one slot's state, by one store; lists, order and counts follow from the states, and `recover` makes
//!   them again when somebody died in between
//! - **Owner** the caller holds the lock
//! - **Not here** waiting; copying

use super::bell::Bell;
use super::layout::*;
use super::member::Member;
use crate::error::Error;
use memlift_ground::region::{Headroom, Region, RegionOffset};
use rustix::fs::{FallocateFlags, fallocate};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Size of the smallest block, bytes.
const BLOCK_MIN: u64 = 256;
/// Number of size classes.
const CLASSES: u32 = 160;
/// The class of slots without a block.
pub const BARE: u32 = CLASSES;
/// Blocks from here on start at a page and give their memory back alone.
const PAGED_BYTES: u64 = 64 << 10;
/// Fresh memory of this size is checked against the headroom first.
const CHECKED_BYTES: u64 = 1 << 20;

/// Limits of a queue: they never change, and are read once and checked.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub items_max: u64,
    pub pool_bytes: u64,
    pub budget_bytes: u64,
    pub ledger: Ledger,
}

/// The books, for whoever holds the lock.
pub struct Table<'a> {
    pub region: &'a Region,
    pub head: &'a Header,
    pub limits: &'a Limits,
    pub bell: &'a Bell,
}

/// Numbers that a putter writes beside an item: they can be read when the item cannot.
pub type Label = [u64; 2];

/// A slot that is now the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub slot: u32,
    pub offset: u64,
    pub bytes: u64,
    /// The block has no memory yet.
    pub fresh: bool,
}

fn add(word: &AtomicU32, by: i32) {
    word.store(word.load(Relaxed).wrapping_add_signed(by), Relaxed);
}

fn add64(word: &AtomicU64, by: i64) {
    word.store(word.load(Relaxed).saturating_add_signed(by), Relaxed);
}

/// Class of the smallest block for `bytes`.
fn class_of(bytes: u64) -> u32 {
    let bytes = bytes.max(BLOCK_MIN);
    let log2 = bytes.ilog2();
    let quarter = (bytes - (1 << log2)).div_ceil(1 << (log2 - 2)) as u32;
    (log2 - BLOCK_MIN.ilog2()) * 4 + quarter
}

/// Bytes of a class's blocks.
fn capacity_of(class: u32) -> u64 {
    let base = BLOCK_MIN << (class / 4);
    base + base / 4 * u64::from(class % 4)
}

impl Table<'_> {
    pub fn slot(&self, index: u32) -> Result<&Slot, Error> {
        if index >= SLOTS {
            return Err(Error::peer_fault(format!("slot {index} in a queue")));
        }
        Ok(self.region.layout(RegionOffset(SLOTS_AT + u64::from(index) * SLOT_BYTES))?)
    }

    fn list(&self, class: u32) -> Result<&AtomicU32, Error> {
        if class > BARE {
            return Err(Error::peer_fault(format!("size class {class} in a queue")));
        }
        Ok(self.region.layout(RegionOffset(HEADS_AT + u64::from(class) * 4))?)
    }

    pub fn order(&self, at: u32) -> Result<&AtomicU32, Error> {
        Ok(self.region.layout(RegionOffset(ORDER_AT + u64::from(at % SLOTS) * 4))?)
    }

    /// Items that wait.
    pub fn length(&self) -> u32 {
        self.head.put.load(Relaxed).wrapping_sub(self.head.taken.load(Relaxed))
    }

    /// Empties the table: no slot was ever used.
    pub fn reset(&self) -> Result<(), Error> {
        self.clear()?;
        self.head.used.store(0, Relaxed);
        Ok(())
    }

    /// Empties lists, order and counts. The number of slots stays: if this process dies here, [`recover`](Table::recover) finds
    /// them.
    fn clear(&self) -> Result<(), Error> {
        for class in 0..=BARE {
            self.list(class)?.store(NONE, Relaxed);
        }
        let head = self.head;
        for word in [&head.writing, &head.reading, &head.put, &head.taken] {
            word.store(0, Relaxed);
        }
        for word in [&head.bump, &head.touched_bytes, &head.viewed_bytes] {
            word.store(0, Relaxed);
        }
        Ok(())
    }

    /// Reserves a slot with room for `bytes`; `None`: there is none now.
    pub fn reserve(&self, bytes: u64, owner: u32) -> Result<Option<Place>, Error> {
        let waiting = u64::from(self.length()) + u64::from(self.head.writing.load(Relaxed));
        if self.limits.items_max != 0 && waiting >= self.limits.items_max {
            return Ok(None);
        }
        let class = if bytes <= INLINE_BYTES { BARE } else { class_of(bytes) };
        let index = match self.pick(class)? {
            Some(index) => index,
            None if self.is_idle() => {
                // Nobody holds anything, but the address space is cut into blocks of other sizes.
                self.punch(0, self.limits.pool_bytes);
                self.reset()?;
                match self.pick(class)? {
                    Some(index) => index,
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let slot = self.slot(index)?;
        let fresh = class != BARE && slot.touched.load(Relaxed) == 0;
        let offset = slot.offset.load(Relaxed);
        if fresh {
            let capacity = capacity_of(slot.class.load(Relaxed));
            if capacity >= CHECKED_BYTES
                && let Err(error) = Headroom::read().check(capacity)
            {
                self.free(index)?;
                return Err(error.into());
            }
            slot.touched.store(1, Relaxed);
            add64(&self.head.touched_bytes, capacity as i64);
        }
        slot.owner.store(owner, Relaxed);
        slot.bytes.store(bytes, Relaxed);
        slot.label.iter().for_each(|word| word.store(0, Relaxed));
        slot.state.store(WRITING, Relaxed);
        add(&self.head.writing, 1);
        Ok(Some(Place { slot: index, offset, bytes, fresh }))
    }

    /// Writes the label of a slot that is being written.
    pub fn label(&self, index: u32, label: Label) -> Result<(), Error> {
        let slot = self.slot(index)?;
        slot.label.iter().zip(label).for_each(|(word, value)| word.store(value, Relaxed));
        Ok(())
    }

    /// Makes the slot's item ready to be taken.
    pub fn publish(&self, index: u32) -> Result<(), Error> {
        let slot = self.slot(index)?;
        let put = self.head.put.load(Relaxed);
        slot.number.store(self.head.next_number.fetch_add(1, Relaxed), Relaxed);
        self.order(put)?.store(index, Relaxed);
        if self.length() == 0 && self.is_watched() {
            self.bell.set(true);
        }
        slot.state.store(READY, Relaxed);
        add(&self.head.writing, -1);
        self.head.put.store(put.wrapping_add(1), Relaxed);
        Ok(())
    }

    /// Takes the oldest item, with its label; `None`: there is none.
    pub fn take(&self, owner: u32) -> Result<Option<(Place, Label)>, Error> {
        if self.length() == 0 {
            return Ok(None);
        }
        let taken = self.head.taken.load(Relaxed);
        let index = self.order(taken)?.load(Relaxed);
        let slot = self.slot(index)?;
        let (offset, bytes, class) =
            (slot.offset.load(Relaxed), slot.bytes.load(Relaxed), slot.class.load(Relaxed));
        let room = if class < CLASSES { capacity_of(class) } else { INLINE_BYTES };
        let ends = if class < CLASSES { offset.checked_add(room) } else { Some(0) };
        if slot.state.load(Relaxed) != READY
            || bytes > room
            || ends.is_none_or(|end| end > self.limits.pool_bytes)
        {
            return Err(Error::peer_fault(format!("slot {index} of a queue is not what its order says")));
        }
        let label = [slot.label[0].load(Relaxed), slot.label[1].load(Relaxed)];
        self.owe(owner, label[0])?;
        slot.owner.store(owner, Relaxed);
        slot.state.store(READING, Relaxed);
        self.head.taken.store(taken.wrapping_add(1), Relaxed);
        if self.length() == 0 && self.is_watched() {
            self.bell.set(false);
        }
        add(&self.head.reading, 1);
        if class < CLASSES {
            add64(&self.head.viewed_bytes, room as i64);
        }
        Ok(Some((Place { slot: index, offset, bytes, fresh: false }, label)))
    }

    fn is_watched(&self) -> bool {
        self.head.watched.load(Relaxed) != 0
    }

    /// Makes the bell say what the queue holds, for a queue that is watched.
    pub fn settle_bell(&self) {
        if self.is_watched() {
            self.bell.set(self.length() != 0);
        }
    }

    /// Gives a slot back that was written or read.
    pub fn release(&self, index: u32) -> Result<(), Error> {
        let slot = self.slot(index)?;
        let class = slot.class.load(Relaxed);
        match slot.state.load(Relaxed) {
            READING => {
                add(&self.head.reading, -1);
                if class < CLASSES {
                    add64(&self.head.viewed_bytes, -(capacity_of(class) as i64));
                }
            }
            WRITING => add(&self.head.writing, -1),
            state => {
                return Err(Error::peer_fault(format!("slot {index} of a queue, released in state {state}")));
            }
        }
        self.free(index)
    }

    fn free(&self, index: u32) -> Result<(), Error> {
        let slot = self.slot(index)?;
        let list = self.list(slot.class.load(Relaxed))?;
        slot.state.store(FREE, Relaxed);
        slot.next.store(list.load(Relaxed), Relaxed);
        list.store(index, Relaxed);
        Ok(())
    }

    fn pop(&self, class: u32) -> Result<Option<u32>, Error> {
        let list = self.list(class)?;
        let index = list.load(Relaxed);
        if index == NONE {
            return Ok(None);
        }
        let slot = self.slot(index)?;
        if slot.state.load(Relaxed) != FREE || slot.class.load(Relaxed) != class {
            return Err(Error::peer_fault(format!("slot {index} of a queue is not free")));
        }
        list.store(slot.next.load(Relaxed), Relaxed);
        Ok(Some(index))
    }

    fn is_idle(&self) -> bool {
        self.length() == 0 && self.head.writing.load(Relaxed) == 0 && self.head.reading.load(Relaxed) == 0
    }

    /// Finds a free slot of a class or of the next three larger ones, or makes a new one.
    fn pick(&self, class: u32) -> Result<Option<u32>, Error> {
        if class == BARE {
            return match self.pop(BARE)? {
                Some(index) => Ok(Some(index)),
                None => self.fresh_slot(BARE, 0),
            };
        }
        if class >= CLASSES {
            return Ok(None);
        }
        for class in class..(class + 4).min(CLASSES) {
            let first = self.list(class)?.load(Relaxed);
            if first == NONE {
                continue;
            }
            let untouched = self.slot(first)?.touched.load(Relaxed) == 0;
            if !untouched || self.afford(capacity_of(class), class)? {
                return self.pop(class);
            }
        }
        let capacity = capacity_of(class);
        if !self.afford(capacity, class)? {
            return Ok(None);
        }
        let align = if capacity >= PAGED_BYTES { 4096 } else { 64 };
        let offset = self.head.bump.load(Relaxed).next_multiple_of(align);
        match offset.checked_add(capacity) {
            Some(end) if end <= self.limits.pool_bytes => {
                let index = self.fresh_slot(class, offset)?;
                if index.is_some() {
                    self.head.bump.store(end, Relaxed);
                }
                Ok(index)
            }
            _ => Ok(None),
        }
    }

    fn fresh_slot(&self, class: u32, offset: u64) -> Result<Option<u32>, Error> {
        let used = self.head.used.load(Relaxed);
        if used >= SLOTS {
            return Ok(None);
        }
        let slot = self.slot(used)?;
        slot.class.store(class, Relaxed);
        slot.offset.store(offset, Relaxed);
        slot.touched.store(0, Relaxed);
        slot.state.store(FREE, Relaxed);
        self.head.used.store(used + 1, Relaxed);
        Ok(Some(used))
    }

    /// Returns true if `bytes` more fit into the memory budget. If need be, free blocks of other classes lose their memory first.
    fn afford(&self, bytes: u64, for_class: u32) -> Result<bool, Error> {
        let fits = || self.head.touched_bytes.load(Relaxed).saturating_add(bytes) <= self.limits.budget_bytes;
        for class in (class_of(PAGED_BYTES)..CLASSES).rev() {
            if fits() {
                return Ok(true);
            }
            if class == for_class {
                continue;
            }
            let mut index = self.list(class)?.load(Relaxed);
            let mut steps = 0;
            while index != NONE && steps < SLOTS && !fits() {
                let slot = self.slot(index)?;
                if slot.touched.load(Relaxed) != 0 {
                    self.punch(slot.offset.load(Relaxed), capacity_of(class));
                    slot.touched.store(0, Relaxed);
                    add64(&self.head.touched_bytes, -(capacity_of(class) as i64));
                }
                index = slot.next.load(Relaxed);
                steps += 1;
            }
        }
        Ok(fits())
    }

    /// Gives memory back to the system. Best effort: what stays is used again.
    fn punch(&self, offset: u64, bytes: u64) {
        if let Some(fd) = self.region.as_fd() {
            let _ = fallocate(
                fd,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                POOL_AT + offset,
                bytes,
            );
        }
    }

    /// Frees the slots of members that died; gives their number.
    pub fn reap(&self, member: &Member) -> Result<u32, Error> {
        if self.head.writing.load(Relaxed) == 0 && self.head.reading.load(Relaxed) == 0 {
            return Ok(0);
        }
        let mut asked: Vec<(u32, bool)> = Vec::new();
        let mut freed = 0;
        for index in 0..self.head.used.load(Relaxed).min(SLOTS) {
            let slot = self.slot(index)?;
            if !matches!(slot.state.load(Relaxed), WRITING | READING) {
                continue;
            }
            let owner = slot.owner.load(Relaxed);
            let alive = match asked.iter().find(|(known, _)| *known == owner) {
                Some((_, alive)) => *alive,
                None => {
                    let alive = member.is_alive(self.region, owner);
                    asked.push((owner, alive));
                    alive
                }
            };
            if !alive {
                self.release(index)?;
                freed += 1;
            }
        }
        Ok(freed)
    }

    /// Rebuilds lists, order and counts from the slots.
    pub fn recover(&self) -> Result<(), Error> {
        let used = self.head.used.load(Relaxed).min(SLOTS);
        self.clear()?;
        let (mut ready, mut bump, mut touched, mut viewed) = (Vec::new(), 0u64, 0u64, 0u64);
        let (mut writing, mut reading) = (0, 0);
        for index in 0..used {
            let slot = self.slot(index)?;
            let class = slot.class.load(Relaxed);
            let capacity = if class < CLASSES { capacity_of(class) } else { 0 };
            bump = bump.max(slot.offset.load(Relaxed).saturating_add(capacity));
            if slot.touched.load(Relaxed) != 0 {
                touched = touched.saturating_add(capacity);
            }
            match slot.state.load(Relaxed) {
                WRITING => writing += 1,
                READING => {
                    reading += 1;
                    viewed = viewed.saturating_add(capacity);
                }
                READY => ready.push((slot.number.load(Relaxed), index)),
                _ => self.free(index)?,
            }
        }
        ready.sort_unstable();
        for (at, &(_, index)) in ready.iter().enumerate() {
            self.order(at as u32)?.store(index, Relaxed);
        }
        let head = self.head;
        head.writing.store(writing, Relaxed);
        head.reading.store(reading, Relaxed);
        head.put.store(ready.len() as u32, Relaxed);
        head.bump.store(bump, Relaxed);
        head.touched_bytes.store(touched, Relaxed);
        head.viewed_bytes.store(viewed, Relaxed);
        self.settle_bell();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_what_their_class_is_for() {
        for bytes in (1..5000).chain([65_535, 65_536, 65_537, 1 << 30, (1 << 30) + 1, (1 << 36) - 1]) {
            let class = class_of(bytes);
            assert!(capacity_of(class) >= bytes, "{bytes}");
            assert!(capacity_of(class) as f64 <= (bytes.max(BLOCK_MIN) as f64) * 1.26, "{bytes}");
            assert!(class == 0 || capacity_of(class - 1) < bytes, "{bytes}");
        }
    }
}
