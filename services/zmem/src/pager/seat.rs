// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seats: the work buffers of a thread that works on pages, with a packer and room for a cluster. One thread at a time has a
//! seat.
//!
//! - **Flow** fault, eviction or pin ──▶ [`Seats::take`] ──▶ claim pages, work, publish ──▶ the seat is free again
//! - **Order** a thread that holds a busy page or chunk also holds a seat (or the space lock). So while a fork holds all
//!   seats and the space lock, no work is half done
//! - **Owner** each seat is a mapping of the pager. Its pages are touched, and charged, when a cluster of that size is first
//!   used

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memlift_kernels::pages::Packer;

use super::kernel;
use crate::Result;
use crate::lock::{Guard, Lock};
use crate::mapping::{Mapping, PAGE_BYTES};

/// Upper bound of the pages that one fault brings in.
pub(super) const CLUSTER: usize = 64;

/// Number of seats.
pub(super) const SEATS: usize = 8;

/// Time after which the work for a fault ends early if a signal waits. Each attempt to answer the fault has that long, so signals
/// that arrive all the time do not keep it from ever being answered.
const UNINTERRUPTED: Duration = Duration::from_millis(5);

/// The bytes of a page.
pub(super) type Page = [u8; PAGE_BYTES];

/// The work buffers of one thread.
pub(super) struct Seat {
    /// Mapping for the packer, one packed page and a cluster, laid out as [`Room`]. It starts as zeros, which are a new
    /// packer, so that a process that never works on pages has none of it in memory.
    room: Mapping,
    /// Number of pages of the cluster that were ever used; these are charged.
    pub reached: usize,
    /// True if Zstandard has packed with this seat (first), and if it has unpacked with it (second).
    pub dense: [bool; 2],
    /// Bytes of the packer that are charged.
    pub packer_charged: usize,
    /// Index of the seat.
    pub index: usize,
    /// Start of the fault that the seat's thread answers for itself in a signal handler, from which it returns to the program
    /// if the fault is not answered. `None` for all other work.
    pub handler_since: Option<Instant>,
}

/// Layout of a seat's mapping.
#[repr(C)]
struct Room {
    packed: Page,
    pages: [Page; CLUSTER],
    packer: Packer,
}

impl Seat {
    fn new(index: usize) -> Result<Seat> {
        let room = Mapping::reserve("room for the pages of a fault", size_of::<Room>())?;
        Ok(Seat { room, reached: 0, dense: [false; 2], packer_charged: 0, index, handler_since: None })
    }

    /// Returns true if the work shall end early, because a signal of the program waits until the thread returns to it.
    pub fn is_interrupted(&self) -> bool {
        self.handler_since.is_some_and(|since| since.elapsed() > UNINTERRUPTED) && kernel::signal_waits()
    }

    /// Returns the bytes of the packer that are in memory.
    pub fn packer_bytes(&self) -> usize {
        const PAGES: usize = size_of::<Packer>().div_ceil(PAGE_BYTES);
        const { assert!(std::mem::offset_of!(Room, packer) % PAGE_BYTES == 0) };
        let mut present = [0; PAGES];
        let address = self.room.pointer().as_ptr() as usize + std::mem::offset_of!(Room, packer);
        match kernel::mincore(address, size_of::<Packer>(), &mut present) {
            Ok(()) => present.iter().filter(|page| **page & 1 != 0).count() * PAGE_BYTES,
            Err(_) => 0,
        }
    }

    /// Returns the packer, the room for a packed page, and the room for a cluster.
    pub fn parts(&mut self) -> (&mut Packer, &mut Page, &mut [Page; CLUSTER]) {
        // SAFETY: the mapping is as large as a Room and aligned to a page, its zero bytes are a valid Room, this value owns it,
        // and `&mut self` excludes other references.
        let room = unsafe { &mut *self.room.pointer().as_ptr().cast::<Room>() };
        (&mut room.packer, &mut room.packed, &mut room.pages)
    }
}

/// All seats of a pager.
pub(super) struct Seats {
    seats: [Lock<Seat>; SEATS],
    next: AtomicUsize,
}

impl Seats {
    /// Makes all seats, each of them free.
    pub fn new() -> Result<Seats> {
        let mut seats = [const { None }; SEATS];
        for (index, seat) in seats.iter_mut().enumerate() {
            *seat = Some(Seat::new(index)?);
        }
        let seats = seats.map(|seat| Lock::new(seat.expect("each was filled above")));
        Ok(Seats { seats, next: AtomicUsize::new(0) })
    }

    /// Waits for a free seat.
    pub fn take(&self) -> Guard<'_, Seat> {
        let first = self.next.load(Ordering::Relaxed);
        for turn in 0..SEATS {
            if let Some(mut seat) = self.seats[(first + turn) % SEATS].try_lock() {
                seat.handler_since = None;
                return seat;
            }
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let mut seat = self.seats[index % SEATS].lock();
        seat.handler_since = None;
        seat
    }

    /// Waits for all seats and keeps them taken until [`Seats::open`].
    pub fn close(&self) {
        for seat in &self.seats {
            std::mem::forget(seat.lock());
        }
    }

    /// Frees the seats that [`Seats::close`] took.
    ///
    /// # Safety
    ///
    /// This thread closed the seats, or in the child of a fork the thread that forked did.
    pub unsafe fn open(&self) {
        for seat in &self.seats {
            // SAFETY: the caller promises that this thread, or the one that forked, took the seat and forgot its guard.
            unsafe { seat.unlock() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_that_nobody_used_are_not_in_memory() {
        let seats = Seats::new().expect("there is address space");
        for _ in 0..SEATS {
            let mut seat = seats.take();
            assert_eq!(seat.packer_bytes(), 0);
            let (packer, packed, pages) = seat.parts();
            for (index, byte) in pages[0].iter_mut().enumerate() {
                *byte = (index * index / 7) as u8;
            }
            let bytes = packer.pack(&pages[0], packed, memlift_kernels::pages::Effort::Fast);
            assert!(!matches!(bytes, memlift_kernels::pages::Packed::Filled(_)));
            assert!(seat.packer_bytes() > 0);
            std::mem::forget(seat);
        }
    }
}
