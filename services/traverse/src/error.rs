// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of this crate. Each says what failed, and what to do next.

/// Reason that something of this crate was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes cannot be decoded as a program. `docs/formats/walk.md` defines the encoding.
    #[error("instruction {at} cannot be read: {reason}")]
    Malformed {
        /// Number of the instruction, counted from 0 in units of eight bytes, as `llvm-objdump` does.
        at: u32,
        /// Description of the fault in the instruction.
        reason: String,
    },
    /// The program was decoded, but could do something that is forbidden.
    #[error("instruction {at} ({text}): {reason}")]
    Rejected {
        /// Number of the instruction, counted from 0 in units of eight bytes, as `llvm-objdump` does.
        at: u32,
        /// The instruction, as assembly text.
        text: String,
        /// The forbidden thing that the instruction could do, and often a way to change it.
        reason: String,
    },
    /// A header or a size around the instructions is wrong.
    #[error("no program: {0}")]
    Program(String),
    /// A line of assembly or of a filetest cannot be read.
    #[error("line {line}: {reason}")]
    Text {
        /// Number of the line, counted from 1.
        line: usize,
        /// Description of the fault in the line.
        reason: String,
    },
    /// The object file contains no program that can be used.
    #[error("object file: {0}")]
    Object(String),
    /// The map of the cluster cannot be read, or does not contain the answer.
    #[error(transparent)]
    Map(#[from] crate::map::MapError),
    /// A node of the cluster cannot start, or cannot continue.
    #[error(transparent)]
    Cluster(#[from] crate::node::ClusterError),
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
