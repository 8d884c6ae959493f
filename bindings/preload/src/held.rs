// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pins of a thread's system calls. They are also released if a call never returns to this library because the program
//! jumped out of a handler.
//!
//! - **Flow** [`Held::add`] ──call──▶ [`Held::let_go`]. If the frame of the call disappeared, the thread's next call finds
//!   that out ([`sweep`]) and releases the pins
//! - **Layout** a call has a [`Mark`] in its stack frame, with a number that no other call has. A frame that was jumped over
//!   is overwritten sooner or later, at the latest by the next call from the same depth. The frames of a call that a handler
//!   interrupted, and of a coroutine that waits, are not overwritten
//! - **Order** the mark is read by a futex call that compares and does not wait, because its stack may be unmapped by now
//! - **Owner** the list belongs to the thread; its records lie in this library's heap
//! - **Not here** a thread that ends before its next call: its pins stay

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use memlift_zmem::pager::{Pager, Pins};

use crate::sys;
use crate::thread::current;
use crate::trap::in_arena;

/// A word that lies in the stack frame of a call as long as that frame exists.
#[derive(Debug)]
pub struct Mark(AtomicU32);

static NUMBERS: AtomicU32 = AtomicU32::new(1);

impl Mark {
    /// Makes a mark whose number no other call will have for a long time.
    pub fn make() -> Mark {
        Mark(AtomicU32::new(NUMBERS.fetch_add(1, Relaxed) | 1 << 31))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

/// The pins of one call, linked into the thread's list.
struct Record {
    next: AtomicUsize,
    mark: usize,
    number: u32,
    pins: UnsafeCell<Vec<Pinned>>,
}

/// A range, and the pins that it has.
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
        // SAFETY: only this thread has the cell, and its signals are blocked in this library's code, so nobody else uses the
        // cell now.
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
        // SAFETY: the record was made above or by an earlier call, and is freed only when this value is dropped.
        unsafe { &**place }
    }

    /// Adds the range's pins, which last until [`Held::let_go`].
    pub fn add(&self, (address, bytes, write): (usize, usize, bool), pins: Pins<'static>) {
        // SAFETY: only this library's code on this thread uses the list of pins, one function at a time, with signals
        // blocked.
        unsafe { &mut *self.record().pins.get() }.push(Pinned { address, bytes, write, pins });
    }

    /// Releases all pins except for the first `but`.
    pub fn let_go(&self, but: usize) {
        // SAFETY: only this thread has the cell, with its signals blocked; a record lives until this value is dropped.
        if let Some(record) = unsafe { (*self.record.get()).as_ref() } {
            // SAFETY: only this library's code on this thread uses the list of pins, one function at a time, with signals
            // blocked.
            unsafe { &mut *record.pins.get() }.truncate(but);
        }
    }

    /// Takes all pins out; the caller releases them.
    pub fn take(&self) -> Vec<Pinned> {
        // SAFETY: only this thread has the cell and the list, with its signals blocked; a record lives until this value is
        // dropped.
        unsafe {
            (*self.record.get()).as_ref().map_or(Vec::new(), |record| std::mem::take(&mut *record.pins.get()))
        }
    }

    /// Returns the number of pins in the set.
    pub fn count(&self) -> usize {
        // SAFETY: only this thread has the cell and the list, with its signals blocked; a record lives until this value is
        // dropped.
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
        // SAFETY: records of the list are valid until they are removed from it, and the list belongs to this thread.
        let record = unsafe { &*(next as *const Record) };
        if next == address {
            place.store(record.next.load(Relaxed), Relaxed);
            // SAFETY: the record was made by a box, and is in no list any more.
            drop(unsafe { Box::from_raw(next as *mut Record) });
            return;
        }
        place = &record.next;
    }
}

/// Returns true if the frame of the record's call still exists.
fn is_under_way(record: &Record) -> bool {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let compare = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word if it is mapped, and fails if it is not.
    let result = unsafe { sys!(libc::SYS_futex, record.mark, compare, record.number, &raw const now) };
    match -result as i32 {
        libc::EAGAIN => false,
        // If the mark lies in the arena, it may be on the absent stack of a coroutine; any other word that cannot be read is
        // unmapped.
        libc::EFAULT => in_arena(record.mark),
        _ => true,
    }
}

/// Pins the memory of this thread's calls again in the child of a fork, after its pager is usable: the child's pager has no
/// pins, but these calls are still in progress.
pub fn forked_and_whole(pager: &'static Pager) {
    let mut next = current().held.load(Relaxed);
    while next != 0 {
        // SAFETY: records of the list are valid until they are removed from it, and the list belongs to this thread.
        let record = unsafe { &*(next as *const Record) };
        next = record.next.load(Relaxed);
        // SAFETY: only this library's code on this thread uses the list of pins, one function at a time, with signals
        // blocked.
        for pinned in unsafe { &mut *record.pins.get() } {
            // If the range cannot be pinned, the kernel reports that as the result of the call.
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
        // SAFETY: records of the list are valid until they are removed from it, and the list belongs to this thread.
        let record = unsafe { &*(next as *const Record) };
        let address = next;
        next = record.next.load(Relaxed);
        if !is_under_way(record) {
            remove(address);
        }
    }
}
