// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of handles: it says where each object lies now, so that objects can be moved.
//!
//! - **Layout** an entry in use: bit 0 held, bits 1–12 length, bit 13 set, bits 14–63 offset / 16. A free entry: bit 13
//!   clear, bits 32–63 the next free entry. Entry 0 is never used
//! - **Order** [`Table::hold`] sets the held bit by compare-exchange. Only the holder may read the object or move it, and
//!   [`Table::release_at`] stores the new entry with Release. Holders have signals blocked, as holders of a lock have
//! - **Owner** the free list and the count belong to the holder of the store's lock

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;
use crate::mapping::{Mapping, PAGE_BYTES};

const HELD: u64 = 1;
const USED: u64 = 1 << 13;

/// The place of an object and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Offset of the object's slot from the start of the data, bytes; a multiple of 16.
    pub(super) offset: usize,
    /// Bytes of the object without the slot's header; at most 4092.
    pub(super) bytes: usize,
}

/// Returns the place in an entry that is in use.
fn place_of(value: u64) -> Place {
    Place { offset: (value >> 14) as usize * 16, bytes: (value >> 1 & 0xfff) as usize }
}

/// The entries of all handles.
#[derive(Debug)]
pub(super) struct Table {
    entries: Mapping,
}

/// First entry of the free list, and the highest entry that was ever used.
#[derive(Debug, Default)]
pub(super) struct Unused {
    first: u32,
    reached: u32,
}

impl Table {
    /// Makes a table of up to `handles` entries.
    pub(super) fn new(handles: usize) -> Result<Table> {
        let table =
            Table { entries: Mapping::reserve("the handles of packed pages", handles.min(1 << 31) * 8)? };
        super::small_pages_only(&table.entries);
        Ok(table)
    }

    /// Returns the bytes of the pages that entries up to `unused.reached` have touched.
    pub(super) fn bytes(unused: &Unused) -> usize {
        if unused.reached == 0 { 0 } else { (unused.reached as usize * 8 + 8).next_multiple_of(PAGE_BYTES) }
    }

    /// Returns the number of the table's pages that are in memory according to the kernel.
    pub(super) fn resident_pages(&self, unused: &Unused) -> usize {
        super::resident_pages(&self.entries, Self::bytes(unused))
    }

    /// Returns the address of the entries and their bytes.
    pub(super) fn range(&self) -> [usize; 2] {
        [self.entries.pointer().as_ptr() as usize, self.entries.bytes()]
    }

    fn entry(&self, handle: u32) -> Option<&AtomicU64> {
        if handle == 0 || handle as usize >= self.entries.bytes() / 8 {
            return None;
        }
        // SAFETY: the entry lies in the mapping, is aligned to eight bytes, and is only ever used as an atomic.
        Some(unsafe { &*self.entries.pointer().as_ptr().cast::<AtomicU64>().add(handle as usize) })
    }

    /// Returns the bytes of pages that taking the next handle will touch for the first time.
    pub(super) fn next_costs(unused: &Unused) -> usize {
        if unused.first != 0 {
            return 0;
        }
        Self::bytes(&Unused { first: 0, reached: unused.reached + 1 }) - Self::bytes(unused)
    }

    /// Takes a free entry, which the caller then holds.
    pub(super) fn take(&self, unused: &mut Unused) -> Option<u32> {
        if unused.first == 0 {
            let entry = self.entry(unused.reached.checked_add(1)?)?;
            unused.reached += 1;
            entry.store(HELD | USED, Ordering::Relaxed);
            return Some(unused.reached);
        }
        let handle = unused.first;
        let entry = self.entry(handle)?;
        unused.first = (entry.load(Ordering::Relaxed) >> 32) as u32;
        entry.store(HELD | USED, Ordering::Relaxed);
        Some(handle)
    }

    /// Gives back an entry that the caller holds.
    pub(super) fn give(&self, unused: &mut Unused, handle: u32) {
        if let Some(entry) = self.entry(handle) {
            entry.store(u64::from(unused.first) << 32, Ordering::Release);
            unused.first = handle;
        }
    }

    /// Waits until no thread holds the object, then holds it. Returns `None` if there is no such object.
    pub(super) fn hold(&self, handle: u32) -> Option<Place> {
        let entry = self.entry(handle)?;
        for round in 0u32.. {
            match Self::try_hold_entry(entry) {
                Ok(place) => return place,
                Err(()) if round < 100 => std::hint::spin_loop(),
                // SAFETY: the call takes no argument and touches no memory.
                Err(()) => unsafe {
                    libc::syscall(libc::SYS_sched_yield);
                },
            }
        }
        None
    }

    /// Holds the object, unless another thread does. Returns `None` if it does or if there is no such object.
    pub(super) fn try_hold(&self, handle: u32) -> Option<Place> {
        Self::try_hold_entry(self.entry(handle)?).ok().flatten()
    }

    fn try_hold_entry(entry: &AtomicU64) -> Result<Option<Place>, ()> {
        let value = entry.load(Ordering::Relaxed);
        if value & USED == 0 {
            return Ok(None);
        }
        if value & HELD != 0
            || entry.compare_exchange_weak(value, value | HELD, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return Err(());
        }
        Ok(Some(place_of(value)))
    }

    /// Stores the object's place and releases the entry.
    pub(super) fn release_at(&self, handle: u32, place: Place) {
        if let Some(entry) = self.entry(handle) {
            let value = (place.offset as u64 / 16) << 14 | USED | (place.bytes as u64) << 1;
            entry.store(value, Ordering::Release);
        }
    }
}

/// Returns the offset of an object's bytes in the data and their number, from the word of its handle; `None` if the handle is
/// free.
pub(crate) fn object_of(word: u64) -> Option<(usize, usize)> {
    let place = place_of(word);
    (word & USED != 0).then_some((place.offset + super::HEADER_BYTES, place.bytes))
}
