// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tickets: the submitter's end of a flight, and the outcome that comes back when the flight has settled.
//!
//! - **Owner** dropping a ticket waits, because the executor may still write. `detach` gives the flight to the executor
//!   alone. `mem::forget` leaks it. After a fork the child's copy does not wait: the flight settles in the parent, and
//!   the child's copy of the buffers is leaked. The buffers of a lost device are leaked, too.

use super::flight::Flight;
use super::queue::Core;
use super::{Operation, OperationError, Target};
use std::sync::Arc;

/// An operation in flight.
#[must_use = "dropping a ticket waits for the operation: keep it, `wait` or `detach`"]
pub struct Ticket {
    flight: Arc<Flight>,
    core: Arc<Core>,
    predicted_ns: Option<u64>,
    released: bool,
}

impl Ticket {
    pub(super) fn new(flight: Arc<Flight>, core: Arc<Core>) -> Ticket {
        Ticket { flight, core, predicted_ns: None, released: false }
    }

    /// Sets the cost model's prediction of the wait, nanoseconds.
    pub(crate) fn with_prediction(mut self, predicted_ns: u64) -> Ticket {
        self.predicted_ns = Some(predicted_ns);
        self
    }

    /// Returns true if it has completed. Runs nothing, except that a device is polled.
    pub fn is_done(&self) -> bool {
        self.core.poll_device();
        self.flight.settled()
    }

    /// Leaves it to the executor, which frees the buffers when it has completed. Results are lost.
    pub fn detach(mut self) {
        self.released = true;
    }

    /// Waits, and returns the target.
    ///
    /// # Errors
    ///
    /// [`OperationError::Failed`] with the buffers, [`OperationError::Lost`] or [`OperationError::Forked`].
    pub fn wait(mut self) -> Result<Outcome, OperationError> {
        if !self.settle() {
            return Err(OperationError::Forked);
        }
        self.released = true;
        if self.flight.is_lost() {
            return Err(OperationError::Lost);
        }
        // SAFETY: this is the flight's only ticket, and it is consumed.
        let operation = unsafe { self.flight.take() };
        match self.flight.status() {
            status if status.is_success() => Ok(Outcome { operation }),
            status => Err(OperationError::Failed { status, operation: Box::new(operation) }),
        }
    }

    /// Waits until the flight has settled; returns false if it never will in this process.
    fn settle(&self) -> bool {
        if self.flight.settled() {
            return true;
        }
        if !self.flight.is_own() {
            return false;
        }
        self.core.wait(&self.flight, self.predicted_ns);
        true
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.released && !self.settle() {
            // This is a forked child, and the executor that would settle the flight only exists in the parent.
            std::mem::forget(Arc::clone(&self.flight));
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("status", &self.flight.status()).finish()
    }
}

/// A completed operation.
#[derive(Debug)]
pub struct Outcome {
    operation: Operation,
}

impl Outcome {
    /// Returns the buffer that was written.
    pub fn into_target(self) -> Option<Target> {
        self.operation.into_target()
    }
}
