// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store: compressed pages of one process in memory of its own, whose size is counted exactly, page by page.
//!
//! - **Flow** bytes ──[`Store::put`]──▶ size class ──▶ a slot in the fullest span with room ──▶ [`Handle`]
//!   ──[`Store::get`]──▶ bytes. [`Store::compact`] moves objects out of the emptiest spans; their handles stay valid
//! - **Layout** a slot holds the object's handle (4 bytes) and its bytes; a span has 64 KiB; the records of spans and the
//!   handles lie in mappings of their own
//! - **Order** the lock covers the records, lists and counts. Only the thread that holds an object's entry writes, reads or
//!   moves the object
//! - **Owner** put, get, free and compact may run in signal handlers, and are called with signals blocked, as is all code
//!   that takes locks
//! - **Not here** the meaning of the bytes (`kernels::pages`); the choice of pages

mod class;
mod compact;
mod span;
mod table;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;
use crate::lock::Lock;
use crate::mapping::{Mapping, PAGE_BYTES};
use class::{CLASSES, SPAN_BYTES};
use span::{FULL, LISTS, NONE, Span};
pub(crate) use table::object_of;
use table::{Place, Table, Unused};

/// Largest size of an object, bytes.
pub const MAX_OBJECT_BYTES: usize = class::MAX_SLOT_BYTES - HEADER_BYTES;

const HEADER_BYTES: usize = 4;

/// An object in the store. The handle stays valid when the object moves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Handle(pub NonZeroU32);

/// Number of objects in the store, and the bytes that they and the store take.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StoreNumbers {
    /// Number of objects.
    pub objects: usize,
    /// Bytes of the objects, without the slots' headers.
    pub object_bytes: usize,
    /// Bytes of the slots that the objects lie in.
    pub slot_bytes: usize,
    /// Bytes of the data pages that were touched and not given back.
    pub data_bytes: usize,
    /// Bytes of the touched pages of handles and records.
    pub table_bytes: usize,
}

/// The state that the lock guards.
struct State {
    classes: [Class; CLASSES],
    unused: Unused,
    /// First of the free spans, which belong to no class and are linked by `next`.
    free_spans: u32,
    /// Number of spans that were ever used.
    reached: u32,
    objects: usize,
    object_bytes: usize,
    slot_bytes: usize,
    data_bytes: usize,
    /// The class that compaction handles next.
    cursor: u8,
}

#[derive(Clone, Copy)]
struct Class {
    lists: [u32; LISTS],
    spans: u32,
    live: u32,
}

/// The compressed pages of one process.
pub struct Store {
    data: Mapping,
    records: Mapping,
    table: Table,
    state: Lock<State>,
    bytes: AtomicUsize,
    /// Bytes of pages that stopped being shared since [`Store::take_unshared`] was last called.
    unshared: AtomicUsize,
}

/// Forbids huge pages in a mapping whose memory is counted in small pages.
fn small_pages_only(mapping: &Mapping) {
    // SAFETY: this is advice for a mapping that the caller borrows. A kernel without huge pages refuses it, which is fine.
    unsafe {
        libc::syscall(libc::SYS_madvise, mapping.pointer().as_ptr(), mapping.bytes(), libc::MADV_NOHUGEPAGE)
    };
}

/// Returns the number of pages among a mapping's first `bytes` that are in memory.
fn resident_pages(mapping: &Mapping, bytes: usize) -> usize {
    let (mut there, mut pages) = ([0u8; 256], 0);
    for offset in (0..bytes.min(mapping.bytes())).step_by(there.len() * PAGE_BYTES) {
        let bytes = (bytes - offset).min(there.len() * PAGE_BYTES);
        // SAFETY: the range lies in the mapping, and the vector has a byte for each of its pages.
        let failed = unsafe {
            libc::syscall(
                libc::SYS_mincore,
                mapping.pointer().as_ptr().add(offset),
                bytes,
                there.as_mut_ptr(),
            )
        };
        if failed == 0 {
            pages += there.iter().take(bytes.div_ceil(PAGE_BYTES)).filter(|page| **page & 1 != 0).count();
        }
    }
    pages
}

impl Store {
    /// Makes a store that can hold up to about `max_bytes`. Reserves address space, a third more than that, and touches none
    /// of it.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Map`].
    pub fn new(max_bytes: usize) -> Result<Store> {
        let spans = max_bytes.div_ceil(SPAN_BYTES).clamp(2 * CLASSES, u32::MAX as usize / 2);
        let data = Mapping::reserve("packed pages", spans * SPAN_BYTES)?;
        let records = Mapping::reserve("the records of packed pages", spans * size_of::<Span>())?;
        small_pages_only(&data);
        small_pages_only(&records);
        Ok(Store {
            table: Table::new(spans * SPAN_BYTES / 32)?,
            data,
            records,
            state: Lock::new(State {
                classes: [Class { lists: [NONE; LISTS], spans: 0, live: 0 }; CLASSES],
                unused: Unused::default(),
                free_spans: NONE,
                reached: 0,
                objects: 0,
                object_bytes: 0,
                slot_bytes: 0,
                data_bytes: 0,
                cursor: 0,
            }),
            bytes: AtomicUsize::new(0),
            unshared: AtomicUsize::new(0),
        })
    }

    /// Stores a copy of `object`. Returns `None` if the object is empty or longer than [`MAX_OBJECT_BYTES`], or if the store
    /// is full.
    pub fn put(&self, object: &[u8]) -> Option<Handle> {
        self.put_charged(object, |_| true)
    }

    /// Does the same as [`Store::put`], but first asks `charge` if the given number of additional bytes may be touched (0
    /// bytes are not asked for). `charge` runs under the store's lock, so it must do no more than count.
    pub fn put_charged(&self, object: &[u8], charge: impl FnOnce(usize) -> bool) -> Option<Handle> {
        if object.is_empty() {
            return None;
        }
        let class = class::of(object.len() + HEADER_BYTES)?;
        let state = &mut *self.state.lock();
        let found = self.span_with_room(state, class);
        let (slot, pages, records) = match found {
            Some(index) => {
                let span = self.span(index)?;
                let slot = span.free_slot()?;
                (slot, span.pages_of(slot) & !span.own_pages(), 0)
            }
            None if state.free_spans != NONE => (0, span::pages_of(class, 0), 0),
            None => {
                self.span(state.reached)?;
                let more = Self::record_bytes(state.reached + 1) - Self::record_bytes(state.reached);
                (0, span::pages_of(class, 0), more)
            }
        };
        let copied = found.and_then(|index| self.span(index)).map_or(0, |span| pages & span.shared);
        let data = (pages & !copied).count_ones() as usize * PAGE_BYTES;
        let copied = copied.count_ones() as usize * PAGE_BYTES;
        let cost = data + copied + records + Table::next_costs(&state.unused);
        if cost != 0 && !charge(cost) {
            return None;
        }
        let handle = self.table.take(&mut state.unused)?;
        let index = found.or_else(|| self.new_span(state, class))?;
        let span = self.span(index)?;
        span.touched |= pages;
        span.shared &= !pages;
        state.data_bytes += data;
        self.unshared.fetch_add(copied, Ordering::Relaxed);
        self.take_slot(state, index, slot);
        state.objects += 1;
        state.object_bytes += object.len();
        state.slot_bytes += class::slot_bytes(class);
        self.publish(state);
        let place = Place {
            offset: index as usize * SPAN_BYTES + slot * class::slot_bytes(class),
            bytes: object.len(),
        };
        // SAFETY: the slot was free, so its bytes belong to this call until the entry is released. It has room for the
        // header and the object, and the object lies elsewhere.
        unsafe {
            let target = self.data.pointer().as_ptr().add(place.offset);
            if pages != 0 {
                // The object may end on an earlier page than its slot. Touch the last page too, since it was counted.
                target.add(class::slot_bytes(class) - 1).write(0);
            }
            target.cast::<u32>().write(handle);
            target.add(HEADER_BYTES).copy_from_nonoverlapping(object.as_ptr(), object.len());
        }
        self.table.release_at(handle, place);
        NonZeroU32::new(handle).map(Handle)
    }

    /// Passes the object to `f`, which must not use the store; `f` gets an empty slice if there is no such object. Waits
    /// while the object is being moved.
    pub fn get<R>(&self, handle: Handle, f: impl FnOnce(&[u8]) -> R) -> R {
        let Some(place) = self.table.hold(handle.0.get()) else { return f(&[]) };
        let held = Held { table: &self.table, handle: handle.0.get(), place };
        // SAFETY: the entry is held, so nobody moves or frees the object; its place lies in the data, because only `put` and
        // `compact` write places.
        let object = unsafe {
            let start = self.data.pointer().as_ptr().add(place.offset + HEADER_BYTES);
            std::slice::from_raw_parts(start, place.bytes)
        };
        let result = f(object);
        drop(held);
        result
    }

    /// Removes the object. Returns the bytes of memory that this gave back. The handle may be given to another object later.
    pub fn free(&self, handle: Handle) -> usize {
        let handle = handle.0.get();
        let Some(place) = self.table.hold(handle) else { return 0 };
        let state = &mut *self.state.lock();
        let index = (place.offset / SPAN_BYTES) as u32;
        let Some(span) = self.span(index) else { return 0 };
        let slot_bytes = class::slot_bytes(span.class);
        let slot = place.offset % SPAN_BYTES / slot_bytes;
        state.objects -= 1;
        state.object_bytes -= place.bytes;
        state.slot_bytes -= slot_bytes;
        self.table.give(&mut state.unused, handle);
        let released = self.give_slot(state, index, slot);
        self.publish(state);
        released
    }

    /// Returns the address of the data and its bytes, and the same of the handles' words, for who reads this process from
    /// outside.
    pub(crate) fn ranges(&self) -> [usize; 4] {
        let [handles, handle_bytes] = self.table.range();
        [self.data.pointer().as_ptr() as usize, self.data.bytes(), handles, handle_bytes]
    }

    /// Returns the memory that the store has touched and not given back, its tables included, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the store's memory according to the kernel. While no thread uses the store, this equals
    /// [`Store::bytes`]. For tests and reports only, because it queries every page.
    pub fn resident_bytes(&self) -> usize {
        let reached = self.state.lock().reached as usize;
        let handles = self.table.resident_pages(&self.state.lock().unused);
        (resident_pages(&self.data, reached * SPAN_BYTES)
            + resident_pages(&self.records, Self::record_bytes(reached as u32))
            + handles)
            * PAGE_BYTES
    }

    /// Returns the store's current sizes.
    pub fn numbers(&self) -> StoreNumbers {
        let state = self.state.lock();
        StoreNumbers {
            objects: state.objects,
            object_bytes: state.object_bytes,
            slot_bytes: state.slot_bytes,
            data_bytes: state.data_bytes,
            table_bytes: Table::bytes(&state.unused) + Self::record_bytes(state.reached),
        }
    }

    /// Takes the lock before a fork and leaves it taken. The caller ensures that no thread is inside [`Store::get`].
    pub fn lock_all(&self) {
        std::mem::forget(self.state.lock());
    }

    /// Marks every touched page as shared by a fork, or marks every page as not shared.
    pub fn set_shared(&self, shared: bool) {
        let state = self.state.lock();
        for index in 0..state.reached {
            if let Some(span) = self.span(index) {
                span.shared = if shared { span.touched } else { 0 };
            }
        }
    }

    /// Returns the bytes of shared pages that this store has copied (after it asked to charge the copy) or given up since the
    /// last call. They are no part of [`Store::bytes`], but were not freed, because another process still has those pages.
    pub fn take_unshared(&self) -> usize {
        match self.unshared.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.unshared.swap(0, Ordering::Relaxed),
        }
    }

    /// Releases the lock in the parent after a fork.
    ///
    /// # Safety
    ///
    /// This thread called [`Store::lock_all`].
    pub unsafe fn unlock_all(&self) {
        // SAFETY: the caller promises that this thread took the lock in `lock_all` and forgot its guard.
        unsafe { self.state.unlock() };
    }

    fn record_bytes(reached: u32) -> usize {
        (reached as usize * size_of::<Span>()).next_multiple_of(PAGE_BYTES)
    }

    fn publish(&self, state: &State) {
        let tables = Table::bytes(&state.unused) + Self::record_bytes(state.reached);
        self.bytes.store(state.data_bytes + tables, Ordering::Relaxed);
    }

    /// Returns a span's record. Only the holder of the lock calls this, and uses one record at a time.
    #[expect(clippy::mut_from_ref, reason = "records lie in a mapping that the lock guards")]
    fn span(&self, index: u32) -> Option<&mut Span> {
        if index as usize >= self.data.bytes() / SPAN_BYTES {
            return None;
        }
        // SAFETY: the record lies in the mapping, all zero is a valid record, and only the holder of the lock reaches it.
        Some(unsafe { &mut *self.records.pointer().as_ptr().cast::<Span>().add(index as usize) })
    }

    /// Returns the fullest span of the class that has a free slot.
    fn span_with_room(&self, state: &State, class: u8) -> Option<u32> {
        let lists = state.classes.get(usize::from(class))?.lists;
        lists.into_iter().take(usize::from(FULL)).rev().find(|index| *index != NONE)
    }

    /// Takes a free span for the class and returns its index.
    fn new_span(&self, state: &mut State, class: u8) -> Option<u32> {
        let index = if state.free_spans == NONE { state.reached } else { state.free_spans };
        let span = self.span(index)?;
        if state.free_spans == NONE {
            state.reached += 1;
        } else {
            state.free_spans = span.next;
        }
        *span = Span { class, in_use: true, previous: NONE, next: NONE, ..Span::default() };
        state.classes[usize::from(class)].spans += 1;
        self.link(state, index);
        Some(index)
    }

    /// Adds a span to the list for its fullness.
    fn link(&self, state: &mut State, index: u32) {
        let Some(span) = self.span(index) else { return };
        let (class, list) = (usize::from(span.class), span.fullness());
        let Some(first) =
            state.classes.get_mut(class).and_then(|class| class.lists.get_mut(usize::from(list)))
        else {
            return;
        };
        let next = std::mem::replace(first, index);
        (span.list, span.previous, span.next) = (list, NONE, next);
        if let Some(next) = self.span(next) {
            next.previous = index;
        }
    }

    /// Removes a span from its list.
    fn unlink(&self, state: &mut State, index: u32) {
        let Some(span) = self.span(index) else { return };
        let (class, list, previous, next) = (span.class, span.list, span.previous, span.next);
        if let Some(next) = self.span(next) {
            next.previous = previous;
        }
        if let Some(previous) = self.span(previous) {
            previous.next = next;
        } else if let Some(first) =
            state.classes.get_mut(usize::from(class)).and_then(|class| class.lists.get_mut(usize::from(list)))
        {
            *first = next;
        }
    }

    /// Moves a span to the list for its fullness, if that has changed.
    fn relink(&self, state: &mut State, index: u32) {
        if self.span(index).is_some_and(|span| span.list != span.fullness()) {
            self.unlink(state, index);
            self.link(state, index);
        }
    }

    fn take_slot(&self, state: &mut State, index: u32, slot: usize) {
        let Some(span) = self.span(index) else { return };
        span.set(slot, true);
        state.classes[usize::from(span.class)].live += 1;
        self.relink(state, index);
    }

    /// Gives a slot back, and with the span's last slot also the span's memory. Returns the bytes that this freed.
    fn give_slot(&self, state: &mut State, index: u32, slot: usize) -> usize {
        let Some(span) = self.span(index) else { return 0 };
        span.set(slot, false);
        state.classes[usize::from(span.class)].live -= 1;
        if span.live > 0 {
            self.relink(state, index);
            return 0;
        }
        let touched = span.touched;
        let released = self.release_pages(state, index, touched);
        self.drop_span(state, index);
        released
    }

    /// Gives an empty span back, so that any class may take it.
    fn drop_span(&self, state: &mut State, index: u32) {
        self.unlink(state, index);
        let Some(span) = self.span(index) else { return };
        state.classes[usize::from(span.class)].spans -= 1;
        *span = Span { next: state.free_spans, ..Span::default() };
        state.free_spans = index;
    }

    /// Gives those pages of a span back to the kernel that were touched; no slot on them is taken. Returns the bytes that
    /// this freed.
    fn release_pages(&self, state: &mut State, index: u32, pages: u16) -> usize {
        let Some(span) = self.span(index) else { return 0 };
        let pages = pages & span.touched;
        let mut left = u32::from(pages);
        while left != 0 {
            let first = left.trailing_zeros();
            let run = (left >> first).trailing_ones();
            self.data.release(
                index as usize * SPAN_BYTES + first as usize * PAGE_BYTES,
                run as usize * PAGE_BYTES,
            );
            left &= !(((1 << run) - 1) << first);
        }
        let shared = (pages & span.shared).count_ones() as usize * PAGE_BYTES;
        span.touched &= !pages;
        span.shared &= !pages;
        let bytes = pages.count_ones() as usize * PAGE_BYTES;
        state.data_bytes -= bytes;
        self.unshared.fetch_add(shared, Ordering::Relaxed);
        bytes - shared
    }
}

/// The right to read an object; dropping it releases the object's entry.
struct Held<'a> {
    table: &'a Table,
    handle: u32,
    place: Place,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.table.release_at(self.handle, self.place);
    }
}
