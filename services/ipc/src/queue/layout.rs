// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layout of the memory that the members of a queue share: one sealed, sparse memfd.
//!
//! - **Layout** 0 [`Header`] · 4,096 heads of the free lists, u32 each · 8,192 tags of the members, u32 each · 24,576 debts of the
//!   members, u64 each · 57,344 slots, 128 bytes each · the order of what waits, u32 each · from the next multiple of 4,096 the blocks.
//!   Untouched pages take no memory
//! - **Owner** every word is written under the queue's lock, except the lock itself, the words to sleep on and a member's own tag;
//!   a block, and the bytes and the label in a slot, belong to the member that the slot names
//! - **Not here** trust: an index, an offset or a length that is read here is checked before it is used (`table`)

use crate::error::Error;
use memlift_ground::region::{AtomicLayout, Region, RegionOffset};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// "memliftq", read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"memliftq");
/// Version of this layout.
pub const VERSION: u32 = 2;
/// Slots, a power of two: the most items that wait or are looked at.
pub const SLOTS: u32 = 1 << 20;
/// The most processes that use one queue at once.
pub const MEMBERS: u32 = 4096;
/// Where the heads of the free lists lie.
pub const HEADS_AT: u64 = 4096;
/// Where the members' tags lie.
pub const TAGS_AT: u64 = 8192;
/// Where the members' debts lie (`ledger`).
pub const DEBTS_AT: u64 = TAGS_AT + MEMBERS as u64 * 4;
/// Where the slots lie.
pub const SLOTS_AT: u64 = DEBTS_AT + MEMBERS as u64 * 8;
/// Bytes of a slot.
pub const SLOT_BYTES: u64 = 128;
/// Bytes that fit into the slot itself.
pub const INLINE_BYTES: u64 = 64;
/// Offset of those bytes in the slot.
pub const INLINE_AT: u64 = 64;
/// Where the order lies.
pub const ORDER_AT: u64 = SLOTS_AT + SLOTS as u64 * SLOT_BYTES;
/// Where the blocks lie.
pub const POOL_AT: u64 = (ORDER_AT + SLOTS as u64 * 4).next_multiple_of(4096);

/// State of a slot: in a free list, and nobody's.
pub const FREE: u32 = 0;
/// State of a slot: its owner writes it.
pub const WRITING: u32 = 1;
/// State of a slot: its item waits to be taken.
pub const READY: u32 = 2;
/// State of a slot: its owner reads it.
pub const READING: u32 = 3;
/// Index that stands for no slot.
pub const NONE: u32 = u32::MAX;

/// The words of the queue as a whole.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// How debts are counted: a [`Ledger`](super::Ledger).
    pub ledger: AtomicU32,
    /// Items that may wait at once; 0: no limit but the slots.
    pub items_max: AtomicU64,
    /// Bytes of address space for blocks.
    pub pool_bytes: AtomicU64,
    /// Bytes of memory that blocks may take.
    pub budget_bytes: AtomicU64,
    line1: [AtomicU64; 3],
    /// See `lock`.
    pub lock: AtomicU32,
    /// The next member's tag.
    pub next_tag: AtomicU32,
    line2: [AtomicU64; 7],
    /// Slots that were ever used.
    pub used: AtomicU32,
    /// Items taken so far, modulo 2^32.
    pub taken: AtomicU32,
    /// Items put so far, modulo 2^32.
    pub put: AtomicU32,
    /// Slots that are being written.
    pub writing: AtomicU32,
    /// Slots that are being read.
    pub reading: AtomicU32,
    /// 1: some member watches the bell, so it is rung and silenced from now on.
    pub watched: AtomicU32,
    /// End of the blocks given out so far.
    pub bump: AtomicU64,
    /// Bytes of the blocks that have memory.
    pub touched_bytes: AtomicU64,
    /// Bytes of the blocks that are being read.
    pub viewed_bytes: AtomicU64,
    /// Number of the next item.
    pub next_number: AtomicU64,
    /// The highest number that a member ever had, plus one.
    pub members: AtomicU32,
    /// Reserved, always zero.
    pub reserved: AtomicU32,
    /// Counts items; getters sleep on it.
    pub items: AtomicU32,
    /// Getters that sleep.
    pub items_sleepers: AtomicU32,
    line4: [AtomicU64; 7],
    /// Counts room made; putters sleep on it.
    pub room: AtomicU32,
    /// Putters that sleep.
    pub room_sleepers: AtomicU32,
    line5: [AtomicU64; 7],
    /// Counts the times at which no task was left; joiners sleep on it.
    pub done: AtomicU32,
    /// Joiners that sleep.
    pub done_sleepers: AtomicU32,
}

/// One item's place.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// [`FREE`], [`WRITING`], [`READY`] or [`READING`]: the truth, from which everything else can be made again.
    pub state: AtomicU32,
    /// The member that owns it while it is written or read.
    pub owner: AtomicU32,
    /// Size class of its block; `table::BARE`: it has none.
    pub class: AtomicU32,
    /// The next one in its free list.
    pub next: AtomicU32,
    /// Number of the item: items are taken in ascending order.
    pub number: AtomicU64,
    /// Where its block lies, from [`POOL_AT`].
    pub offset: AtomicU64,
    /// Bytes of the item.
    pub bytes: AtomicU64,
    /// 1: its block has memory.
    pub touched: AtomicU64,
    /// Numbers that the putter wrote beside the item.
    pub label: [AtomicU64; 2],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Header>() <= HEADS_AT as usize);
    assert!(offset_of!(Header, lock) == 64);
    assert!(offset_of!(Header, used) == 128);
    assert!(offset_of!(Header, items) == 192);
    assert!(offset_of!(Header, room) == 256);
    assert!(offset_of!(Header, done) == 320);
    assert!(SLOTS_AT == 57344);
    assert!(size_of::<Slot>() == INLINE_AT as usize);
    assert!(INLINE_AT + INLINE_BYTES == SLOT_BYTES);
    assert!(SLOTS.is_power_of_two());
};

// SAFETY: atomics only, so any bytes are valid and others may write them.
unsafe impl AtomicLayout for Header {}
// SAFETY: all fields are atomics, so any bytes are valid and other processes may write them.
unsafe impl AtomicLayout for Slot {}

/// Record that a queue keeps of items that were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Ledger {
    /// Items that were taken are forgotten.
    #[default]
    None = 0,
    /// How many each member has taken and not reported as done: [`Queue::join`](super::Queue::join) waits for all.
    Tasks = 1,
    /// The label of the last one that each member has taken and not settled: [`Queue::lost`](super::Queue::lost) tells it of the dead.
    Calls = 2,
}

impl Ledger {
    pub(super) fn from_word(word: u32) -> Result<Ledger, Error> {
        match word {
            0 => Ok(Ledger::None),
            1 => Ok(Ledger::Tasks),
            2 => Ok(Ledger::Calls),
            other => Err(Error::peer_fault(format!("a queue with a ledger of kind {other}"))),
        }
    }
}

/// The debt of the member with that number.
pub fn debt(region: &Region, number: u32) -> Result<&AtomicU64, Error> {
    if number >= MEMBERS {
        return Err(Error::peer_fault(format!("member {number} of a queue")));
    }
    Ok(region.layout(RegionOffset(DEBTS_AT + u64::from(number) * 8))?)
}
