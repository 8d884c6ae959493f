// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flight: everything that must stay in place while an executor works, in one heap block shared with the executor.
//!
//! - **Layout** operations (they own the buffers) · batch list and the members' records · the record
//!   whose status is waited for · the waiter's park word
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
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};
use std::cell::UnsafeCell;
use std::sync::Arc;

pub(super) struct Flight {
    operations: UnsafeCell<Vec<Operation>>,
    list: UnsafeCell<Box<[Descriptor]>>,
    records: Box<[UnsafeCell<Completion>]>,
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
    /// Makes a flight of one operation, and its descriptor.
    pub fn single(operation: Operation, executor: Executor) -> (Arc<Flight>, Descriptor) {
        let mut flight = Flight::new(vec![operation], 0, executor);
        let this = Arc::get_mut(&mut flight).expect("not shared yet");
        let mut descriptor = this.operations.get_mut()[0].describe();
        descriptor.completion_address = this.head.get().expose_provenance() as u64;
        (flight, descriptor)
    }

    /// Makes a flight of several operations under one batch descriptor. `fences` are the indexes of fenced members.
    pub fn batch(
        operations: Vec<Operation>,
        fences: &[usize],
        executor: Executor,
    ) -> (Arc<Flight>, Descriptor) {
        let count = operations.len();
        let mut flight = Flight::new(operations, count, executor);
        let this = Arc::get_mut(&mut flight).expect("not shared yet");
        for (index, operation) in this.operations.get_mut().iter_mut().enumerate() {
            let mut member = operation.describe();
            member.completion_address = this.records[index].get().expose_provenance() as u64;
            if fences.contains(&index) {
                member.add_flags(Flags::FENCE);
            }
            this.list.get_mut()[index] = member;
        }
        let flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
        let mut descriptor = Descriptor::new(Opcode::BATCH, flags);
        descriptor.source = this.list.get_mut().as_mut_ptr().expose_provenance() as u64;
        descriptor.size = count as u32;
        descriptor.completion_address = this.head.get().expose_provenance() as u64;
        (flight, descriptor)
    }

    fn new(operations: Vec<Operation>, members: usize, executor: Executor) -> Arc<Flight> {
        let opcode = if members > 0 { Opcode::BATCH } else { operations[0].opcode() };
        let bytes = operations.iter().map(|operation| operation.bytes() as u64).sum();
        Arc::new(Flight {
            executor,
            opcode,
            bytes,
            start_ns: observe::now_ns(),
            operations: UnsafeCell::new(operations),
            list: UnsafeCell::new(
                vec![Descriptor::new(Opcode::NOOP, Flags::NONE); members].into_boxed_slice(),
            ),
            records: (0..members).map(|_| UnsafeCell::new(Completion::PENDING)).collect(),
            head: UnsafeCell::new(Completion::PENDING),
            park: ParkWord::new(),
            generation: generation(),
        })
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

    /// Returns the record whose status was waited for.
    pub fn completion(&self) -> Completion {
        assert!(self.settled());
        // SAFETY: the status was seen with Acquire, so the executor's stores are visible and over.
        unsafe { *self.head.get() }
    }

    /// Returns the members' records of a batch.
    pub fn member_completions(&self) -> Vec<Completion> {
        assert!(self.settled());
        // SAFETY: the batch's status is stored after every member's, and was seen with Acquire.
        self.records.iter().map(|record| unsafe { *record.get() }).collect()
    }

    /// Returns the operations; a second call returns none.
    ///
    /// # Safety
    ///
    /// Only the single ticket of this flight calls this.
    pub unsafe fn take(&self) -> Vec<Operation> {
        assert!(self.settled());
        // SAFETY: the flight is settled, so the executor has finished with the cells, and the caller promises that
        // only the ticket accesses them.
        unsafe { std::mem::take(&mut *self.operations.get()) }
    }

    /// Returns the operations of a flight that no executor has accepted.
    pub fn recall(flight: Arc<Flight>) -> Vec<Operation> {
        let flight = Arc::into_inner(flight).expect("nobody else has a flight that was not submitted");
        flight.operations.into_inner()
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
