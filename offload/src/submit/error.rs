// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors before an operation ran (`Rejected`, which returns the operation) and after (`OperationError`).

use super::Operation;
use memlift_spec::{Opcode, Status};

/// Reason that an operation was not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The queue is full.
    #[error("the queue is full: collect a completion and submit again, or run the operation synchronously")]
    Busy,
    /// The executor does not support the operation.
    #[error("{executor} does not support {}: take another executor", opcode.name())]
    Unsupported {
        /// The executor's name.
        executor: &'static str,
        /// The opcode that was submitted.
        opcode: Opcode,
    },
    /// The buffers do not fit the operation or each other.
    #[error("{0}")]
    Invalid(&'static str),
}

/// An operation that was not accepted. No part of it has run.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
#[must_use = "the operation and its buffers are in here, and nothing of it has run"]
pub struct Rejected {
    /// The operation, as it was given.
    pub operation: Box<Operation>,
    /// Reason that it was not accepted.
    pub reason: Reason,
}

/// Failure of an operation that was accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The executor refused the operation or could not finish it.
    #[error("{}: {status}", operation.opcode().name())]
    Failed {
        /// The executor's status.
        status: Status,
        /// The operation with its buffers; the target's content is not defined.
        operation: Box<Operation>,
    },
    /// The device that executes the operation has stopped answering.
    #[error(
        "the device stopped answering and may still write: the buffers stay with it for ever; submit again with others"
    )]
    Lost,
    /// The operation was submitted before a fork, and this process is the child.
    #[error("the operation was submitted before a fork and completes in the parent: submit it again here")]
    Forked,
}
