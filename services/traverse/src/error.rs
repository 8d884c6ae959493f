// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of this crate. Each says what failed, and what to do next.

/// Why something of this crate was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no program: the encoding is broken. `docs/formats/walk.md` has it.
    #[error("instruction {at} cannot be read: {reason}")]
    Malformed {
        /// Counted from 0, in units of eight bytes, as `llvm-objdump` does.
        at: u32,
        /// Description of the fault in the instruction.
        reason: String,
    },
    /// The program was read, but could do what no program may.
    #[error("instruction {at} ({text}): {reason}")]
    Rejected {
        /// Counted from 0, in units of eight bytes, as `llvm-objdump` does.
        at: u32,
        /// The instruction, as assembly text.
        text: String,
        /// The forbidden thing that it could do, and often what to change.
        reason: String,
    },
    /// A header or a size around the instructions is wrong.
    #[error("no program: {0}")]
    Program(String),
    /// A line of assembly or of a filetest cannot be read.
    #[error("line {line}: {reason}")]
    Text {
        /// Counted from 1.
        line: usize,
        /// Description of the fault in the line.
        reason: String,
    },
    /// An object file holds no program that can be taken from it.
    #[error("object file: {0}")]
    Object(String),
    /// The map of the cluster cannot be had, or has no answer.
    #[error(transparent)]
    Map(#[from] crate::map::MapError),
    /// A node of the cluster cannot start, or go on.
    #[error(transparent)]
    Cluster(#[from] crate::node::ClusterError),
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
