// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taking and giving back memory inside a transaction: no fence of its own.
//!
//! - **Flow** alloc: a freed slot whose freeing is durable ─▶ else the next clear bit of the current slab ─▶ else a slab with
//!   unseen slots ─▶ else a free slab ─▶ else one that another type has emptied (`emptied`) ─▶ else the pool grows. The bit is
//!   set in the image and logged with the rest
//! - **Rule** bits are the truth, lists in memory are hints. What this transaction freed, and what was freed but is not durable
//!   yet, is not taken again: an abort or a crash would need what was there
//! - **Order** an abort puts bits back by their before-images and gives slots and slabs back to the lists

use std::sync::atomic::Ordering;

use super::Tx;
use crate::commit::{Committed, LARGE_BYTES};
use crate::error::{Error, Result};
use crate::heap::is_empty;
use crate::holes::AHEAD;
use crate::layout::{Entry, RUN_SLABS_MAX, SLAB_BYTES, STRIDE_MAX, slice_stride, slots, stride};
use crate::lock::lock;
use crate::persist::Persist;
use crate::persist::slice_tag;
use crate::ptr::{PPtr, PSlice};
use crate::view::locate;
use crate::writes::Freed;

/// Emptied slabs are written down as free when one in so many of the heap's is; that is tried for each 64 of them.
const MANY: u64 = 8;

impl Tx<'_> {
    /// A new object in the home section.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    #[inline]
    pub fn alloc<T: Persist>(&mut self, value: T) -> Result<PPtr<T>> {
        self.alloc_in(self.home(), value)
    }

    /// A new object in a section that this transaction holds.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::Section`].
    pub fn alloc_in<T: Persist>(&mut self, section: u16, value: T) -> Result<PPtr<T>> {
        let offset = if stride::<T>() <= STRIDE_MAX {
            self.slot::<T>(T::TAG, false, stride::<T>(), section)?
        } else {
            self.run::<T>(T::TAG, false, size_of::<T>() as u64, section)?
        };
        self.fill(offset, &value);
        self.store.before_store(self.lane, &mut self.writes)?;
        Ok(PPtr::from_offset(offset))
    }

    /// A new array in the home section.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn alloc_slice<T: Persist>(&mut self, values: &[T]) -> Result<PSlice<T>> {
        self.alloc_slice_in(self.home(), values)
    }

    /// A new array in a section that this transaction holds.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::Section`].
    pub fn alloc_slice_in<T: Persist>(&mut self, section: u16, values: &[T]) -> Result<PSlice<T>> {
        let bytes = size_of_val(values) as u64;
        if bytes == 0 {
            return Ok(PSlice::EMPTY);
        }
        let stride =
            slice_stride(bytes, self.store.checksums.is_some()).next_multiple_of(align_of::<T>() as u64);
        let tag = slice_tag::<T>();
        let offset = if stride <= STRIDE_MAX {
            self.slot::<T>(tag, true, stride, section)?
        } else {
            self.run::<T>(tag, true, bytes, section)?
        };
        self.fill_slice(offset, values);
        self.store.before_store(self.lane, &mut self.writes)?;
        Ok(PSlice::from_raw(offset, values.len() as u64))
    }

    /// A new array of `bytes` bytes in the home section: `parts`, one after the other, then zeros. Apart from the object itself,
    /// it takes no memory.
    pub(crate) fn alloc_bytes(&mut self, bytes: u64, parts: &[&[u8]]) -> Result<PSlice<u8>> {
        let (section, tag, stride) =
            (self.home(), slice_tag::<u8>(), slice_stride(bytes, self.store.checksums.is_some()));
        let offset = if stride <= STRIDE_MAX {
            self.slot::<u8>(tag, true, stride, section)?
        } else {
            self.run::<u8>(tag, true, bytes, section)?
        };
        self.fill_parts(offset, bytes, parts);
        self.store.before_store(self.lane, &mut self.writes)?;
        Ok(PSlice::from_raw(offset, bytes))
    }

    /// Gives an object back. Its slot is used again when this is durable.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when there is none, or it was given back already; [`Error::Section`].
    pub fn free<T: Persist>(&mut self, pointer: PPtr<T>) -> Result<()> {
        self.give_back(pointer.offset(), size_of::<T>() as u64, align_of::<T>() as u64, T::TAG, T::NAME)
    }

    /// Gives an array back.
    ///
    /// # Errors
    ///
    /// As [`Tx::free`].
    pub fn free_slice<T: Persist>(&mut self, slice: PSlice<T>) -> Result<()> {
        if slice.is_empty() {
            return Ok(());
        }
        let bytes = slice.len().saturating_mul(size_of::<T>() as u64);
        self.give_back(slice.offset(), bytes, align_of::<T>() as u64, slice_tag::<T>(), T::NAME)
    }

    fn give_back(&mut self, offset: u64, bytes: u64, align: u64, tag: u32, name: &'static str) -> Result<()> {
        let wrong = || Error::Pointer { wanted: name, offset };
        let place = locate(self.store, offset, bytes, align, tag, |section| self.held.has(section), name)?;
        let slab = offset / SLAB_BYTES;
        let entry = self.store.image.entry(slab);
        if matches!(entry.state, Entry::RUN | Entry::SPAN) {
            return self.give_slabs(slab);
        }
        let stride = u64::from(entry.stride).max(16);
        let (count, first) = slots(stride);
        let inside = offset % SLAB_BYTES;
        if inside < first || !(inside - first).is_multiple_of(stride) || (inside - first) / stride >= count {
            return Err(wrong());
        }
        let slot = (inside - first) / stride;
        if !self.flip(slab, slot, false)? {
            return Err(wrong());
        }
        self.writes.freed.push(Freed { offset, tag, stride: stride as u32, section: place.section });
        Ok(())
    }

    /// Sets or clears a slot's bit; false when it was so already.
    pub(super) fn flip(&mut self, slab: u64, slot: u64, used: bool) -> Result<bool> {
        let at = slab * SLAB_BYTES + slot / 64 * 8;
        let bit = 1u64 << (slot % 64);
        let word = self.store.image.word(at);
        if (word & bit != 0) == used {
            return Ok(false);
        }
        self.writes.touch(&self.store.image, at, 8);
        self.store.before_store(self.lane, &mut self.writes)?;
        self.store.image.set_word(at, word ^ bit);
        Ok(true)
    }

    pub(super) fn set_entry(&mut self, slab: u64, entry: Entry) -> Result<()> {
        let before = self.store.image.entry(slab);
        if !self.writes.entries.iter().any(|(one, _)| *one == slab) {
            self.writes.entries.push((slab, before));
        }
        self.store.before_store(self.lane, &mut self.writes)?;
        self.store.image.set_entry(slab, entry);
        Ok(())
    }

    /// A free slot of this type, its bit set.
    fn slot<T: Persist>(&mut self, tag: u32, slice: bool, stride: u64, section: u16) -> Result<u64> {
        let (count, first) = slots(stride);
        let stride32 = stride as u32;
        loop {
            // Taking a slab may have waited until more is.
            let durable = self.store.shared.durable();
            let held =
                self.held.get(section).ok_or(Error::Section { wanted: T::NAME, offset: 0, section })?;
            if !held.held.is_empty() {
                held.drain(durable);
            }
            let ours = Entry { tag, section, state: Entry::SLOTS, reserved: 0, stride: stride32, run: 0 };
            let shelf = held.shelf(tag, stride32);
            let (slab, slot) = if let Some(offset) = shelf.ready.pop() {
                if self.store.image.entry(offset / SLAB_BYTES) != ours
                    || !self.store.is_verified(offset / SLAB_BYTES)
                {
                    continue; // another type has the slab now, or it is damaged
                }
                let inside = offset % SLAB_BYTES;
                (offset / SLAB_BYTES, (inside - first) / stride)
            } else if let Some((slab, from)) = shelf.current {
                if self.store.image.entry(slab) != ours || !self.store.is_verified(slab) {
                    shelf.current = None;
                    continue;
                }
                let Some(slot) =
                    clear_bit(|word| self.store.image.word(slab * SLAB_BYTES + word * 8), from, count)
                else {
                    shelf.current = None;
                    continue;
                };
                shelf.current = Some((slab, slot + 1));
                (slab, slot)
            } else if let Some(slab) = shelf.slabs.pop() {
                // Damaged bits would give out what is in use.
                shelf.current = self.store.is_verified(slab).then_some((slab, 0));
                continue;
            } else {
                let slab = self.new_slab::<T>(tag, slice, stride, section)?;
                if let Some(held) = self.held.get(section) {
                    held.shelf(tag, stride32).current = Some((slab, 0));
                }
                continue;
            };
            let offset = slab * SLAB_BYTES + first + slot * stride;
            let pending = self.writes.freed.iter().any(|freed| freed.offset == offset)
                || self.held.get(section).is_some_and(|held| held.held.contains_key(&offset));
            if pending || !self.flip(slab, slot, true)? {
                continue;
            }
            self.writes.taken.push(Freed { offset, tag, stride: stride32, section });
            return Ok(offset);
        }
    }

    pub(super) fn register<T: Persist>(&mut self, tag: u32, slice: bool) -> Result<()> {
        let mut catalog = lock(&self.store.catalog);
        let known = catalog.register::<T>(tag, slice, &self.store.medium, &mut self.writes.counters);
        self.store.intact(known)
    }

    /// A slab of its own for this type, its bitmap clear.
    fn new_slab<T: Persist>(&mut self, tag: u32, slice: bool, stride: u64, section: u16) -> Result<u64> {
        self.register::<T>(tag, slice)?;
        let slab = self.take_slab()?;
        let (_, first) = slots(stride);
        let start = slab * SLAB_BYTES;
        self.writes.touch(&self.store.image, start, first as u32);
        self.store.before_store(self.lane, &mut self.writes)?;
        for word in 0..first / 8 {
            self.store.image.set_word(start + word * 8, 0);
        }
        self.set_entry(
            slab,
            Entry { tag, section, state: Entry::SLOTS, reserved: 0, stride: stride as u32, run: 0 },
        )?;
        Ok(slab)
    }

    /// An object of its own slabs.
    fn run<T: Persist>(&mut self, tag: u32, slice: bool, bytes: u64, section: u16) -> Result<u64> {
        if !self.held.has(section) {
            return Err(Error::Section { wanted: T::NAME, offset: 0, section });
        }
        self.register::<T>(tag, slice)?;
        let slabs = bytes.div_ceil(SLAB_BYTES);
        // One that goes through the log may lie where another type's bits are: a crash before its commit leaves them.
        let first = if bytes.next_multiple_of(8) < LARGE_BYTES.into() {
            self.take_slab()?
        } else {
            self.take_slabs(slabs)?
        };
        let (stride, run) = (size_of::<T>() as u32, slabs as u32);
        if slabs > RUN_SLABS_MAX {
            let span = Entry { tag, section, state: Entry::SPAN, reserved: 0, stride, run };
            self.set_entry(first, span)?;
            return Ok(first * SLAB_BYTES);
        }
        for slab in first..first + slabs {
            let state = if slab == first { Entry::RUN } else { Entry::RUN_REST };
            self.set_entry(slab, Entry { tag, section, state, reserved: 0, stride, run })?;
        }
        Ok(first * SLAB_BYTES)
    }

    /// A slab for slots, or for an object of one slab.
    fn take_slab(&mut self) -> Result<u64> {
        let found = lock(&self.store.free_slabs).take(1);
        if let Some(slab) = found {
            return self.taken(slab, 1);
        }
        match self.take_emptied() {
            Some(slab) => self.taken(slab, 1),
            None => self.take_slabs(1),
        }
    }

    /// Notes slabs that were taken. When the disk has no room for them, they go back.
    fn taken(&mut self, first: u64, count: u64) -> Result<u64> {
        let (holes, medium) = (&self.store.holes, &self.store.medium);
        if let Err(error) = holes.reserve(medium, self.store.heap_start, first, count, AHEAD) {
            lock(&self.store.free_slabs).give_back(first, count);
            return Err(error);
        }
        self.store.set_verified(first, count);
        self.writes.slabs_taken.push((first, count));
        Ok(first)
    }

    fn take_slabs(&mut self, count: u64) -> Result<u64> {
        if count > RUN_SLABS_MAX {
            let first = self.store.take_span(count)?;
            return self.taken(first, count);
        }
        loop {
            let found = lock(&self.store.free_slabs).take(count);
            if let Some(first) = found {
                return self.taken(first, count);
            }
            if !self.store.restore_zone()? {
                self.note_emptied();
                self.store.grow(count)?;
            }
        }
    }

    /// After a commit: what was freed may be taken again as soon as the freeing is durable.
    pub(super) fn release(&mut self, committed: Committed) {
        let freed = std::mem::take(&mut self.writes.freed);
        let slots = freed.iter().map(|one| u64::from(one.stride)).sum::<u64>();
        let slabs = self.writes.slabs_freed.iter().map(|(_, count)| count * SLAB_BYTES).sum::<u64>();
        self.store.freed_bytes.fetch_add(slots + slabs, Ordering::Relaxed);
        for one in &freed {
            let Some(held) = self.held.get(one.section) else { continue };
            let slab = one.offset / SLAB_BYTES;
            if is_empty(&self.store.image, slab, one.stride) {
                let position = if let Committed::At(position) = committed { position } else { 0 };
                held.emptied.insert(slab, position);
                let count = held.emptied.len() as u64;
                if count.is_multiple_of(64) && count * MANY >= self.store.image.len() / SLAB_BYTES {
                    self.store.reclaim_due.store(true, Ordering::Relaxed);
                }
            }
            match committed {
                Committed::Durable | Committed::Marked(_) => held.ready(one.offset, one.tag, one.stride),
                Committed::At(position) => {
                    held.held.insert(one.offset, (position, one.tag, one.stride));
                }
            }
        }
        self.writes.freed = freed;
        if self.writes.slabs_freed.is_empty() {
            return;
        }
        if let Committed::At(position) = committed {
            // Runs are rare and large: wait for their freeing instead of keeping a list.
            if self.store.flush(position).is_err() {
                return; // stopped: nothing will be taken again
            }
        }
        let mut free = lock(&self.store.free_slabs);
        for (first, count) in &self.writes.slabs_freed {
            free.give_back(*first, *count);
        }
    }

    /// After an abort: slots and slabs go back to the lists.
    pub(super) fn abandon(&mut self) {
        for (first, count) in std::mem::take(&mut self.writes.slabs_taken) {
            if count > RUN_SLABS_MAX {
                lock(&self.store.free_slabs).give_back(first, count);
                continue;
            }
            let inside = |offset: u64| (first..first + count).contains(&(offset / SLAB_BYTES));
            for section in 0..self.store.sections.len() as u16 {
                if let Some(held) = self.held.get(section) {
                    (first..first + count).for_each(|slab| held.forget(slab, inside));
                }
            }
            self.writes.taken.retain(|one| !inside(one.offset));
            self.give_again(first, count);
        }
        for one in std::mem::take(&mut self.writes.taken) {
            if let Some(held) = self.held.get(one.section) {
                held.shelf(one.tag, one.stride).ready.push(one.offset);
            }
        }
        self.writes.clear();
    }
}

/// The first clear bit from `from` on, of `count`.
fn clear_bit(word: impl Fn(u64) -> u64, from: u64, count: u64) -> Option<u64> {
    let mut at = from;
    while at < count {
        let free = !word(at / 64) >> (at % 64);
        if free != 0 {
            let slot = at + u64::from(free.trailing_zeros());
            return (slot < count).then_some(slot);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}
