// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Submission: how an operation with its buffers gets into a queue, and how its outcome comes back.
//!
//! - **Flow** `Operation` (owns buffers) ──`Queue::submit`──▶ `Flight` on the heap (buffers, descriptor, record) ──▶
//!   executor …… `Ticket::wait` ──▶ `Outcome` (the target) or `OperationError`
//! - **Order** a full queue returns the operation (`Rejected`, Busy); nothing completes inside submit
//! - **Owner** ticket and executor share the flight. Dropping a ticket waits; `detach` leaves the flight to the
//!   executor; forgetting a ticket leaks it. In no case is memory freed while an executor may write it.
//! - **Not here** executing operations (`run`), choosing an executor (`place`)

mod buffer;
mod error;
mod flight;
mod operation;
mod queue;
mod ticket;

pub use buffer::{Source, Target};
pub use error::{OperationError, Reason, Rejected};
pub use operation::Operation;
pub use queue::Queue;
pub use ticket::{Outcome, Ticket};

pub use memlift_place::Cache;
