// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins of a thread's calls. They are also released when a call never returns to us because the program jumped out of a handler.
//!
//! - **Flow** [`Held::keep`] ──call──▶ [`Held::let_go`] ·· or the frame of the call is gone: the thread's next call finds that
//!   ([`sweep`]) and lets go
//! - **Layout** a call has a [`Mark`] in its frame: a number that no other has. Frames that were jumped over are written over
//!   sooner or later, at the latest by the next call from the same depth; those of a call that a handler interrupted,
//!   or of a coroutine that waits, are not
//! - **Order** a futex call that compares and does not wait reads the mark: the stack may be unmapped by now
//! - **Owner** the list is the thread's own; its records lie in our heap
//! - **Not here** a thread that ends before its next call: its pins stay

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use memlift_zmem::pager::{Pager, Pins};

use crate::sys;
use crate::thread::current;
use crate::trap::in_arena;

/// Lies in the frame of a call while that frame exists.
#[derive(Debug)]
pub struct Mark(AtomicU32);

static NUMBERS: AtomicU32 = AtomicU32::new(1);

impl Mark {
    /// Makes a mark whose number no other call has for a long time.
    pub fn make() -> Mark {
        Mark(AtomicU32::new(NUMBERS.fetch_add(1, Relaxed) | 1 << 31))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

/// Pins of one call, linked into the thread's list.
struct Record {
    next: AtomicUsize,
    mark: usize,
    number: u32,
    pins: UnsafeCell<Vec<Pinned>>,
}

/// A range and its pins.
#[derive(Debug)]
pub struct Pinned {
    address: usize,
    bytes: usize,
    write: bool,
    pins: Pins<'static>,
}

/// The pins of one call.
#[derive(Debug)]
pub struct Held<'a> {
    mark: &'a Mark,
    record: UnsafeCell<*mut Record>,
}

impl<'a> Held<'a> {
    /// Makes an empty set of pins. The mark lies in the frame that makes the call.
    pub fn new(mark: &'a Mark) -> Held<'a> {
        sweep();
        Held { mark, record: UnsafeCell::new(std::ptr::null_mut()) }
    }

    fn record(&self) -> &Record {
        // SAFETY: this thread's alone, and its signals are blocked in our code: nobody else reads or writes the cell now.
        let place = unsafe { &mut *self.record.get() };
        if place.is_null() {
            let list = &current().held;
            *place = Box::into_raw(Box::new(Record {
                next: AtomicUsize::new(list.load(Relaxed)),
                mark: std::ptr::from_ref(self.mark) as usize,
                number: self.mark.0.load(Relaxed),
                pins: UnsafeCell::new(Vec::with_capacity(8)),
            }));
            list.store(*place as usize, Relaxed);
        }
        // SAFETY: made above or before, and freed when this value is dropped.
        unsafe { &**place }
    }

    /// Keeps the range's pins until [`Held::let_go`].
    pub fn keep(&self, (address, bytes, write): (usize, usize, bool), pins: Pins<'static>) {
        // SAFETY: this thread's own code alone reaches the list of pins, one function at a time, with signals blocked.
        unsafe { &mut *self.record().pins.get() }.push(Pinned { address, bytes, write, pins });
    }

    /// Releases all pins but the first `but`.
    pub fn let_go(&self, but: usize) {
        // SAFETY: as in `record`.
        if let Some(record) = unsafe { (*self.record.get()).as_ref() } {
            // SAFETY: as in `keep`.
            unsafe { &mut *record.pins.get() }.truncate(but);
        }
    }

    /// Takes all pins out; the caller releases them.
    pub fn take(&self) -> Vec<Pinned> {
        // SAFETY: as in `record` and `keep`.
        unsafe {
            (*self.record.get()).as_ref().map_or(Vec::new(), |record| std::mem::take(&mut *record.pins.get()))
        }
    }

    /// Number of pins in the set.
    pub fn count(&self) -> usize {
        // SAFETY: as in `record` and `keep`.
        unsafe { (*self.record.get()).as_ref().map_or(0, |record| (*record.pins.get()).len()) }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let record = *self.record.get_mut();
        if !record.is_null() {
            remove(record as usize);
        }
    }
}

/// Takes a record out of the list and releases its pins.
fn remove(address: usize) {
    let mut place = &current().held;
    loop {
        let next = place.load(Relaxed);
        if next == 0 {
            return;
        }
        // SAFETY: records of the list are whole, and this thread's own.
        let record = unsafe { &*(next as *const Record) };
        if next == address {
            place.store(record.next.load(Relaxed), Relaxed);
            // SAFETY: it was made by a box, and is in no list any more.
            drop(unsafe { Box::from_raw(next as *mut Record) });
            return;
        }
        place = &record.next;
    }
}

/// Returns true if the frame of the record's call is still there.
fn is_under_way(record: &Record) -> bool {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let compare = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word, if there is one.
    let result = unsafe { sys!(libc::SYS_futex, record.mark, compare, record.number, &raw const now) };
    match -result as i32 {
        libc::EAGAIN => false,
        // A coroutine's stack may be away; another that cannot be read is unmapped.
        libc::EFAULT => in_arena(record.mark),
        _ => true,
    }
}

/// In the child of a fork, when its pager is whole: pins are forgotten there, but this thread's calls are still under way.
pub fn forked_and_whole(pager: &'static Pager) {
    let mut next = current().held.load(Relaxed);
    while next != 0 {
        // SAFETY: as in `remove`.
        let record = unsafe { &*(next as *const Record) };
        next = record.next.load(Relaxed);
        // SAFETY: as in `keep`.
        for pinned in unsafe { &mut *record.pins.get() } {
            // Where it cannot be, the kernel says so to the call.
            let again =
                pager.pin(pinned.address, pinned.bytes, pinned.write).or_else(|_| pager.pin(0, 0, false));
            if let Ok(pins) = again {
                std::mem::forget(std::mem::replace(&mut pinned.pins, pins));
            }
        }
    }
}

/// Releases the pins of calls that will never return.
fn sweep() {
    let mut next = current().held.load(Relaxed);
    while next != 0 {
        // SAFETY: as in `remove`.
        let record = unsafe { &*(next as *const Record) };
        let address = next;
        next = record.next.load(Relaxed);
        if !is_under_way(record) {
            remove(address);
        }
    }
}
