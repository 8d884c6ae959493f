// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong, and what to do about it.

/// Why something of this crate was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no program: the encoding is broken. `docs/formats/walk.md` has it.
    #[error("instruction {at} cannot be read: {reason}")]
    Malformed {
        /// Counted from 0, in units of eight bytes, as `llvm-objdump` does.
        at: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// The program was read, but could do what no program may.
    #[error("instruction {at} ({text}): {reason}")]
    Rejected {
        /// Counted from 0, in units of eight bytes, as `llvm-objdump` does.
        at: u32,
        /// The instruction.
        text: String,
        /// What it could do, and often what to change.
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
        /// What was expected.
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

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
