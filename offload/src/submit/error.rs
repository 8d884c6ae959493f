// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors before anything ran (`Rejected`, the operation comes back) and after (`OperationError`).

use super::Operation;
use memlift_spec::{Opcode, Status};

/// Why an operation was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The queue is full.
    #[error("the queue is full: collect a completion and submit again, or run the operation synchronously")]
    Busy,
    /// The executor does not know the operation.
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

/// An operation that was not taken. Nothing of it has run.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
#[must_use = "the operation and its buffers are in here, and nothing of it has run"]
pub struct Rejected {
    /// The operation, as it was given.
    pub operation: Box<Operation>,
    /// Why it was not taken.
    pub reason: Reason,
}

/// A batch that was not taken. Nothing of it has run.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
#[must_use = "the operations and their buffers are in here, and nothing of them has run"]
pub struct RejectedBatch {
    /// The operations, as they were given.
    pub operations: Vec<Operation>,
    /// Why it was not taken.
    pub reason: Reason,
}

/// How an operation that was taken failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The executor refused it or could not finish it.
    #[error("{}: {status}", operation.opcode().name())]
    Failed {
        /// The executor's status.
        status: Status,
        /// The operation with its buffers; the target's content is not defined.
        operation: Box<Operation>,
    },
    /// The device that had it stopped answering.
    #[error(
        "the device stopped answering and may still write: the buffers stay with it for ever; submit again with others"
    )]
    Lost,
    /// This process is a forked child of the one that submitted.
    #[error("the operation was submitted before a fork and completes in the parent: submit it again here")]
    Forked,
}
