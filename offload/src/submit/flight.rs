// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flight: everything that must stay in place while an executor works, in one heap block shared with the executor.
//!
//! - **Layout** the operation (it owns the buffers) · the record whose status is waited for · the waiter's park word
//! - **Order** all addresses are taken by `prepare`, while this thread is the only owner. From submission until the
//!   status is non-zero the cells belong to the executor; after that they belong to the ticket
//! - **Count** the executor that completes a flight records the latency from submission to completion, per executor and
//!   opcode
//! - **Owner** `Arc<Flight>`: one in the ticket, one with the executor until it has notified. The last one frees the
//!   flight.

use super::Operation;
use crate::run::{Notify, generation, record};
use memlift_ground::complete::{FutexParker, ParkWord};
use memlift_ground::observe::{self, Executor};
use memlift_spec::{Completion, Descriptor, Opcode, Status};
use std::cell::UnsafeCell;
use std::sync::Arc;

pub(super) struct Flight {
    operation: UnsafeCell<Option<Operation>>,
    head: UnsafeCell<Completion>,
    park: ParkWord,
    generation: u32,
    executor: Executor,
    opcode: Opcode,
    bytes: u64,
    start_ns: u64,
}

// SAFETY: the status passes the cells from the executor (Release) to the ticket (Acquire), so two threads never use a
// cell at the same time. Everything in the cells is Send.
unsafe impl Send for Flight {}
// SAFETY: the status gives each cell to one thread at a time, so two threads with a `&Flight` never use the same cell.
unsafe impl Sync for Flight {}

impl Flight {
    /// Makes a flight and its descriptor.
    pub fn new(operation: Operation, executor: Executor) -> (Arc<Flight>, Descriptor) {
        let (opcode, bytes) = (operation.opcode(), operation.bytes() as u64);
        let mut flight = Arc::new(Flight {
            executor,
            opcode,
            bytes,
            start_ns: observe::now_ns(),
            operation: UnsafeCell::new(Some(operation)),
            head: UnsafeCell::new(Completion::PENDING),
            park: ParkWord::new(),
            generation: generation(),
        });
        let this = Arc::get_mut(&mut flight).expect("not shared yet");
        let mut descriptor = this.operation.get_mut().as_mut().expect("not taken yet").describe();
        descriptor.completion_address = this.head.get().expose_provenance() as u64;
        (flight, descriptor)
    }

    /// Returns the final status, or pending.
    pub fn status(&self) -> Status {
        // SAFETY: the record lives as long as `self`, and executors store its status atomically.
        unsafe { record::load(self.head.get()) }
    }

    pub fn settled(&self) -> bool {
        !self.status().is_pending()
    }

    /// Returns true if the device stopped answering. It may still write to the flight's buffers, which must never be
    /// freed.
    pub fn is_lost(&self) -> bool {
        self.status() == Status::DEVICE_LOST
    }

    /// Returns true if this process made the flight; otherwise it will never settle here.
    pub fn is_own(&self) -> bool {
        self.generation == generation()
    }

    /// Returns the parker with which the ticket sleeps.
    pub fn parker(&self) -> FutexParker<'_> {
        FutexParker::new(&self.park, false)
    }

    /// Returns the cache line that changes when the flight settles.
    pub fn line(&self) -> *const u8 {
        self.head.get().cast()
    }

    /// Returns the operation.
    ///
    /// # Safety
    ///
    /// Only the single ticket of this flight calls this, once.
    pub unsafe fn take(&self) -> Operation {
        assert!(self.settled());
        // SAFETY: the flight is settled, so the executor has finished with the cells, and the caller promises that
        // only the ticket accesses them.
        unsafe { (*self.operation.get()).take() }.expect("a ticket takes it once")
    }

    /// Returns the operation of a flight that no executor has accepted.
    pub fn recall(flight: Arc<Flight>) -> Operation {
        let flight = Arc::into_inner(flight).expect("nobody else has a flight that was not submitted");
        flight.operation.into_inner().expect("not taken yet")
    }
}

impl Notify for Flight {
    fn completed(&self) {
        let took_ns = observe::now_ns().saturating_sub(self.start_ns);
        let ok = self.status().is_success();
        observe::record(self.executor, self.opcode, self.bytes, took_ns, ok);
        self.parker().wake();
    }
}
