// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Submit: how work with its buffers gets into a queue, and how its end gets back.
//!
//! - **Flow** `Operation` (owns buffers) ──`Queue::submit`──▶ `Flight` on the heap (buffers, descriptor, record)
//!   ──▶ executor …… `Ticket::wait` ──▶ `Outcome` (buffers back, results) or `OperationError`
//! - **Order** a full queue gives the operation back (`Rejected`, Busy); nothing completes inside submit
//! - **Owner** the flight is shared by ticket and executor. Dropping a ticket waits; `detach` leaves the flight to
//!   the executor; forgetting one leaks it. In no case does memory go while somebody may write it.
//! - **Not here** what operations do (`run`), where they should go (`place`)

mod buffer;
mod error;
mod flight;
mod operand;
mod operation;
mod queue;
mod ticket;

pub use buffer::{Lease, Source, Target};
pub use error::{OperationError, Reason, Rejected, RejectedBatch};
pub use operation::{Operation, Pattern};
pub use queue::Queue;
pub use ticket::{BatchOutcome, BatchTicket, DeltaFound, Outcome, Ticket};

pub use memlift_place::Cache;
