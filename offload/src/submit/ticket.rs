// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tickets: the submitter's end of a flight, and the outcome that comes back when the flight has settled.
//!
//! - **Owner** dropping a ticket waits, because the executor may still write. `detach` gives the flight to the executor
//!   alone. `mem::forget` leaks it. After a fork the child's copy does not wait: the flight settles in the parent, and
//!   the child's copy of the buffers is leaked. The buffers of a lost device are leaked, too.

use super::flight::Flight;
use super::queue::Core;
use super::{Operation, OperationError, Target};
use memlift_spec::{Completion, Opcode, Status};
use std::sync::Arc;
use std::time::Instant;

struct TicketInner {
    flight: Arc<Flight>,
    core: Arc<Core>,
    predicted_ns: Option<u64>,
    released: bool,
}

impl TicketInner {
    fn wait(&self, deadline: Option<Instant>) -> bool {
        self.flight.settled()
            || (self.flight.is_own() && self.core.wait(&self.flight, self.predicted_ns, deadline))
    }

    /// Waits, and returns the operations once the flight has settled.
    fn finish(mut self) -> Result<(Arc<Flight>, Vec<Operation>), OperationError> {
        if !self.wait(None) {
            return Err(OperationError::Forked);
        }
        self.released = true;
        if self.flight.is_lost() {
            return Err(OperationError::Lost);
        }
        // SAFETY: this is the flight's only ticket, and it is consumed.
        let operations = unsafe { self.flight.take() };
        Ok((Arc::clone(&self.flight), operations))
    }
}

impl Drop for TicketInner {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        if !self.wait(None) {
            // This is a forked child, and the executor that would settle the flight only exists in the
            // parent.
            std::mem::forget(Arc::clone(&self.flight));
        }
    }
}

/// An operation in flight.
#[must_use = "dropping a ticket waits for the operation: keep it, `wait` or `detach`"]
pub struct Ticket(TicketInner);

/// A batch in flight.
#[must_use = "dropping a ticket waits for the batch: keep it, `wait` or `detach`"]
pub struct BatchTicket(TicketInner);

macro_rules! ticket {
    ($ticket:ident) => {
        impl $ticket {
            pub(super) fn new(flight: Arc<Flight>, core: Arc<Core>) -> $ticket {
                $ticket(TicketInner { flight, core, predicted_ns: None, released: false })
            }

            /// Sets the cost model's prediction of the wait, nanoseconds.
            pub fn with_prediction(mut self, predicted_ns: u64) -> $ticket {
                self.0.predicted_ns = Some(predicted_ns);
                self
            }

            /// Returns true if it has completed. Runs nothing, except that a device is polled.
            pub fn is_done(&self) -> bool {
                self.0.core.poll_device();
                self.0.flight.settled()
            }

            /// Waits until it has completed or `deadline` has passed; returns true if it has completed. On an
            /// inline queue the wait may exceed the deadline by the operation that is running.
            pub fn wait_deadline(&self, deadline: Instant) -> bool {
                self.0.wait(Some(deadline))
            }

            /// Leaves it to the executor, which frees the buffers when it has completed. Results are lost.
            pub fn detach(mut self) {
                self.0.released = true;
            }
        }

        impl std::fmt::Debug for $ticket {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($ticket)).field("status", &self.0.flight.status()).finish()
            }
        }
    };
}

ticket!(Ticket);
ticket!(BatchTicket);

impl Ticket {
    /// Waits, and returns the buffers and results.
    ///
    /// # Errors
    ///
    /// [`OperationError::Failed`] with the buffers, [`OperationError::Lost`] or [`OperationError::Forked`].
    pub fn wait(self) -> Result<Outcome, OperationError> {
        let (flight, mut operations) = self.0.finish()?;
        let operation = operations.pop().expect("a single flight has one operation");
        Outcome::new(operation, flight.completion())
    }
}

impl BatchTicket {
    /// Waits, and returns every member's buffers and results.
    ///
    /// # Errors
    ///
    /// [`OperationError::Lost`], [`OperationError::Forked`]. Members' failures are in the outcome.
    pub fn wait(self) -> Result<BatchOutcome, OperationError> {
        let (flight, operations) = self.0.finish()?;
        let head = flight.completion();
        let completions = flight.member_completions();
        let members =
            operations.into_iter().zip(completions).map(|(operation, end)| Outcome::new(operation, end));
        Ok(BatchOutcome {
            status: head.status(),
            ran: head.bytes_completed as usize,
            members: members.collect(),
        })
    }
}

/// Results of a batch.
#[derive(Debug)]
pub struct BatchOutcome {
    /// SUCCESS, or BATCH_FAILED if any member did not end with SUCCESS.
    pub status: Status,
    /// Members that ran; the others were abandoned at a fence.
    pub ran: usize,
    /// Outcome of each member, in order.
    pub members: Vec<Result<Outcome, OperationError>>,
}

/// Result of DELTA_CREATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeltaFound {
    /// Both sources are equal; there is no record.
    Equal,
    /// The record has this many bytes.
    Record(usize),
    /// The differences do not fit into the record.
    Overflow,
}

/// A completed operation.
#[derive(Debug)]
pub struct Outcome {
    operation: Operation,
    completion: Completion,
}

impl Outcome {
    fn new(operation: Operation, completion: Completion) -> Result<Outcome, OperationError> {
        if completion.status().is_success() {
            return Ok(Outcome { operation, completion });
        }
        Err(OperationError::Failed { status: completion.status(), operation: Box::new(operation) })
    }

    /// Returns the completion record, as the executor wrote it.
    pub fn completion(&self) -> &Completion {
        &self.completion
    }

    /// Returns the operation with its buffers.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Returns the operation with its buffers.
    pub fn into_operation(self) -> Operation {
        self.operation
    }

    /// Returns the buffer that was written; a vector is truncated to the size of the delta record.
    pub fn into_target(self) -> Option<Target> {
        let delta = self.delta();
        let mut target = self.operation.into_target();
        if let (Some(DeltaFound::Equal), Some(Target::Vec(record))) = (delta, &mut target) {
            record.clear();
        }
        if let (Some(DeltaFound::Record(bytes)), Some(Target::Vec(record))) = (delta, &mut target) {
            record.truncate(bytes);
        }
        target
    }

    /// Returns the checksum of CRC or COPY_CRC; `None` for other operations.
    pub fn crc(&self) -> Option<u32> {
        matches!(self.operation.opcode(), Opcode::CRC | Opcode::COPY_CRC).then(|| self.completion.crc())
    }

    /// Returns the result of COMPARE or COMPARE_PATTERN: `Some(None)` if equal, otherwise the offset of the
    /// first difference.
    pub fn first_difference(&self) -> Option<Option<usize>> {
        let compares = matches!(self.operation.opcode(), Opcode::COMPARE | Opcode::COMPARE_PATTERN);
        compares.then(|| (self.completion.result != 0).then_some(self.completion.bytes_completed as usize))
    }

    /// Returns the result of DELTA_CREATE; `None` for other operations.
    pub fn delta(&self) -> Option<DeltaFound> {
        (self.operation.opcode() == Opcode::DELTA_CREATE).then(|| match self.completion.result {
            0 => DeltaFound::Equal,
            1 => DeltaFound::Record(self.completion.delta_record_bytes() as usize),
            _ => DeltaFound::Overflow,
        })
    }
}
