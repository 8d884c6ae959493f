// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store: packed pages of one process, in memory of its own, counted to the page.
//!
//! - **Flow** bytes ──[`Store::put`]──▶ size class ──▶ a slot in the fullest span with room ──▶ [`Handle`] ──[`Store::get`]──▶
//!   bytes. [`Store::compact`] moves objects out of the emptiest spans; handles stay
//! - **Layout** a slot is the object's handle (4 bytes) and its bytes; spans are 64 KiB; records of spans and handles lie beside
//! - **Order** the lock covers records, lists and counts; an object is written, read and moved by the holder of its entry
//! - **Owner** put, get, free and compact may run in signal handlers: with signals blocked, as all that takes locks
//! - **Not here** the meaning of the bytes (`kernels::page`); the choice of pages

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
use table::{Place, Table, Unused};

/// The most bytes that an object may have.
pub const MAX_OBJECT_BYTES: usize = class::MAX_SLOT_BYTES - HEADER_BYTES;

const HEADER_BYTES: usize = 4;

/// An object in the store. It stays valid when the object moves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Handle(pub NonZeroU32);

/// Objects of the store, and the bytes that they and the store take.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StoreNumbers {
    /// Number of objects.
    pub objects: usize,
    /// Bytes of the objects, without the slots' headers.
    pub object_bytes: usize,
    /// Bytes of the slots that they lie in.
    pub slot_bytes: usize,
    /// Bytes of data pages that were touched.
    pub data_bytes: usize,
    /// Bytes of the pages of handles and records that were touched.
    pub table_bytes: usize,
}

/// State under the lock.
struct State {
    classes: [Class; CLASSES],
    unused: Unused,
    /// First of the spans without a class, linked by `next`.
    free_spans: u32,
    /// How many spans were ever used.
    reached: u32,
    objects: usize,
    object_bytes: usize,
    slot_bytes: usize,
    data_bytes: usize,
    /// The class that compaction looks at next.
    cursor: u8,
}

#[derive(Clone, Copy)]
struct Class {
    lists: [u32; LISTS],
    spans: u32,
    live: u32,
}

/// Packed pages of one process.
pub struct Store {
    data: Mapping,
    records: Mapping,
    table: Table,
    state: Lock<State>,
    bytes: AtomicUsize,
    /// Bytes of pages that are no longer shared, and that the caller has not asked for yet.
    unshared: AtomicUsize,
}

/// Keeps huge pages out of a mapping that is counted by small ones.
fn small_pages_only(mapping: &Mapping) {
    // SAFETY: advice on the caller's own mapping; a kernel without huge pages refuses it, which is as good.
    unsafe {
        libc::syscall(libc::SYS_madvise, mapping.pointer().as_ptr(), mapping.bytes(), libc::MADV_NOHUGEPAGE)
    };
}

/// How many of a mapping's first `bytes` are in memory, in pages.
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
    /// A store that can hold up to about `max_bytes`. Reserves address space, a third more than that; touches nothing.
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

    /// Keeps a copy of `object`. None if it is empty or longer than [`MAX_OBJECT_BYTES`], or the store is full.
    pub fn put(&self, object: &[u8]) -> Option<Handle> {
        self.put_charged(object, |_| true)
    }

    /// As [`Store::put`], but asks `charge` first whether so many more bytes of memory may be touched (0 is not asked).
    /// `charge` runs under the store's lock: it does no more than count.
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
        // SAFETY: the slot was free, so its bytes belong to this call until the entry is settled; it has room for the
        // header and the object, which lies elsewhere.
        unsafe {
            let target = self.data.pointer().as_ptr().add(place.offset);
            if pages != 0 {
                // The object may end before the page that its slot ends in: what is counted is touched.
                target.add(class::slot_bytes(class) - 1).write(0);
            }
            target.cast::<u32>().write(handle);
            target.add(HEADER_BYTES).copy_from_nonoverlapping(object.as_ptr(), object.len());
        }
        self.table.settle(handle, place);
        NonZeroU32::new(handle).map(Handle)
    }

    /// Passes the object to `f`, which must not use the store; an empty slice if there is none. Waits while the object moves.
    pub fn get<R>(&self, handle: Handle, f: impl FnOnce(&[u8]) -> R) -> R {
        let Some(place) = self.table.hold(handle.0.get()) else { return f(&[]) };
        let held = Held { table: &self.table, handle: handle.0.get(), place };
        // SAFETY: the entry is held, so nobody moves or frees the object; the place lies in the data as `put` and
        // `compact` wrote it.
        let object = unsafe {
            let start = self.data.pointer().as_ptr().add(place.offset + HEADER_BYTES);
            std::slice::from_raw_parts(start, place.bytes)
        };
        let result = f(object);
        drop(held);
        result
    }

    /// Forgets the object. Returns the bytes of memory that this gave back. The handle may be given out again.
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

    /// Memory that the store has touched and not given back, its tables included.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Memory that the kernel says the store has: what [`Store::bytes`] must equal while nobody uses it. For tests and
    /// reports; it asks about every page.
    pub fn resident_bytes(&self) -> usize {
        let reached = self.state.lock().reached as usize;
        let handles = self.table.resident_pages(&self.state.lock().unused);
        (resident_pages(&self.data, reached * SPAN_BYTES)
            + resident_pages(&self.records, Self::record_bytes(reached as u32))
            + handles)
            * PAGE_BYTES
    }

    /// Returns the store's sizes, as of now.
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

    /// Before fork: waits for the lock and keeps it. The caller sees to it that nobody is inside [`Store::get`].
    pub fn lock_all(&self) {
        std::mem::forget(self.state.lock());
    }

    /// Marks every touched page as one that a fork shares from now on, or none.
    pub fn set_shared(&self, shared: bool) {
        let state = self.state.lock();
        for index in 0..state.reached {
            if let Some(span) = self.span(index) {
                span.shared = if shared { span.touched } else { 0 };
            }
        }
    }

    /// Bytes of pages that others have too and that this store copied, after it asked for that, or gave up, since this was
    /// last called: they are no part of [`Store::bytes`], and were not freed.
    pub fn take_unshared(&self) -> usize {
        match self.unshared.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.unshared.swap(0, Ordering::Relaxed),
        }
    }

    /// After fork, in the parent.
    ///
    /// # Safety
    ///
    /// This thread called [`Store::lock_all`].
    pub unsafe fn unlock_all(&self) {
        // SAFETY: the caller's.
        unsafe { self.state.unlock() };
    }

    /// After fork, in the child.
    ///
    /// # Safety
    ///
    /// The forking thread called [`Store::lock_all`], and no other thread exists.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's.
        unsafe { self.state.reset() };
    }

    fn record_bytes(reached: u32) -> usize {
        (reached as usize * size_of::<Span>()).next_multiple_of(PAGE_BYTES)
    }

    fn publish(&self, state: &State) {
        let tables = Table::bytes(&state.unused) + Self::record_bytes(state.reached);
        self.bytes.store(state.data_bytes + tables, Ordering::Relaxed);
    }

    /// A span's record. Only the holder of the lock calls this, and keeps one record at a time.
    #[expect(clippy::mut_from_ref, reason = "records lie in a mapping that the lock guards")]
    fn span(&self, index: u32) -> Option<&mut Span> {
        if index as usize >= self.data.bytes() / SPAN_BYTES {
            return None;
        }
        // SAFETY: the record lies in the mapping, all zero is a record, and the lock's holder is alone with it.
        Some(unsafe { &mut *self.records.pointer().as_ptr().cast::<Span>().add(index as usize) })
    }

    /// The fullest span of the class with a free slot.
    fn span_with_room(&self, state: &State, class: u8) -> Option<u32> {
        let lists = state.classes.get(usize::from(class))?.lists;
        lists.into_iter().take(usize::from(FULL)).rev().find(|index| *index != NONE)
    }

    /// Takes a free span for the class.
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

    /// Puts a span into the list of its fullness.
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

    /// Takes a span out of its list.
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

    /// Moves a span to the list of its fullness.
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

    /// Gives a slot back, and the span's memory with its last one; says how many bytes.
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

    /// Gives an empty span to whichever class wants it.
    fn drop_span(&self, state: &mut State, index: u32) {
        self.unlink(state, index);
        let Some(span) = self.span(index) else { return };
        state.classes[usize::from(span.class)].spans -= 1;
        *span = Span { next: state.free_spans, ..Span::default() };
        state.free_spans = index;
    }

    /// Gives touched pages of a span, in which no slot is taken, back to the kernel; says how many bytes were freed by that.
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

/// The right to read an object, until dropped.
struct Held<'a> {
    table: &'a Table,
    handle: u32,
    place: Place,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.table.settle(self.handle, self.place);
    }
}
