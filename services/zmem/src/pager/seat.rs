// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seats: the workspace of a thread that works on pages, a packer and room for a cluster. A seat has one thread at a time.
//!
//! - **Flow** fault, eviction or pin ──▶ [`Seats::take`] ──▶ claim pages, work, publish ──▶ the seat is free again
//! - **Order** a thread that holds a busy page or chunk holds a seat (or the space lock): a fork that holds all seats and the
//!   space lock knows that nothing is half done
//! - **Owner** in a mapping of the pager's; a seat's pages are touched from the first cluster on, and charged then

use std::sync::atomic::{AtomicUsize, Ordering};

use memlift_kernels::page::Packer;

use super::kernel;
use crate::Result;
use crate::lock::{Guard, Lock};
use crate::mapping::{Mapping, PAGE_BYTES};

/// Most pages that one fault brings in.
pub(super) const CLUSTER: usize = 64;

/// Number of seats.
pub(super) const SEATS: usize = 8;

/// Plain bytes of a page.
pub(super) type Page = [u8; PAGE_BYTES];

/// One thread's workplace.
pub(super) struct Seat {
    /// The packer, one packed page and a cluster.
    room: Mapping,
    /// Pages of the cluster that were ever used, and so are charged.
    pub reached: usize,
    /// Zstandard has packed here (first), has unpacked here (second).
    pub dense: [bool; 2],
    /// Bytes of the packer that are charged.
    pub packer_charged: usize,
    /// Index of the seat.
    pub index: usize,
}

/// How a seat's mapping is laid out.
#[repr(C)]
struct Room {
    packed: Page,
    pages: [Page; CLUSTER],
    packer: Packer,
}

impl Seat {
    fn new(index: usize) -> Result<Seat> {
        let room = Mapping::reserve("room for the pages of a fault", size_of::<Room>())?;
        // SAFETY: the mapping is as large as a Room, aligned to a page and nobody else's; the packer is written before
        // anything refers to it, and plain bytes need no writing.
        unsafe { (&raw mut (*room.pointer().as_ptr().cast::<Room>()).packer).write(Packer::new()) };
        Ok(Seat { room, reached: 0, dense: [false; 2], packer_charged: 0, index })
    }

    /// Bytes of the packer that are in memory.
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

    /// The packer, room for a packed page, room for a cluster.
    pub fn parts(&mut self) -> (&mut Packer, &mut Page, &mut [Page; CLUSTER]) {
        // SAFETY: the mapping holds a Room, made in `new`, which this value owns alone.
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
            if let Some(seat) = self.seats[(first + turn) % SEATS].try_lock() {
                return seat;
            }
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        self.seats[index % SEATS].lock()
    }

    /// Waits for all of them and keeps them; [`Seats::open`] ends that.
    pub fn close(&self) {
        for seat in &self.seats {
            std::mem::forget(seat.lock());
        }
    }

    /// Ends [`Seats::close`].
    ///
    /// # Safety
    ///
    /// This thread, or in a fork's child the thread that forked, closed them.
    pub unsafe fn open(&self) {
        for seat in &self.seats {
            // SAFETY: the caller's.
            unsafe { seat.unlock() };
        }
    }
}
