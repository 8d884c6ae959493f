// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of maps. Each says what failed, and what to do next.

use std::io;
use std::path::PathBuf;

/// Reason that a map was refused, could not be read, or has no answer for an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// A call of the operating system failed.
    #[error("{action} {}: {source}", .path.display())]
    File {
        /// The attempted operation, such as "reading the key file".
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A line of a map file is wrong.
    #[error("{}, line {line}: {what}", .path.display())]
    Text {
        /// Path of the map file.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: usize,
        /// Description of the fault in that line.
        what: String,
    },
    /// Ranges or nodes do not fit together.
    #[error("the map is not valid: {what}")]
    Invalid {
        /// Description of the ranges or nodes that do not fit together.
        what: String,
    },
    /// The bytes are not a map.
    #[error(
        "these bytes are no range map ({what} at byte {at}): both ends must run releases with the same map format"
    )]
    Encoding {
        /// Name of the item that was expected, such as "the checksum".
        what: &'static str,
        /// Offset at which the item was expected.
        at: usize,
    },
    /// The address lies outside every range.
    #[error(
        "no memory node has address {address:#x}: the pointer is wrong, or it is older than the map (epoch {epoch})"
    )]
    Nowhere {
        /// Address that no range has.
        address: u64,
        /// Epoch of the map that was asked.
        epoch: u64,
    },
    /// The data at the address was lost.
    #[error(
        "the data at {address:#x} was lost: its node came back without its memory, or was forgotten (epoch {since}); load it again"
    )]
    Lost {
        /// Address whose data was lost.
        address: u64,
        /// Epoch in which it was lost.
        since: u64,
    },
    /// The owner of the address is down.
    #[error(
        "memory node {node}, which has {address:#x}, is down (epoch {epoch}): start it again with its log, or `memlift map forget {node}`"
    )]
    Down {
        /// Address that the node owns.
        address: u64,
        /// The owner's name.
        node: String,
        /// Epoch of the map in which the node is down.
        epoch: u64,
    },
    /// A coordinator or etcd cannot be reached.
    #[error("{what} does not answer: {source}{}", known(*epoch))]
    Unreachable {
        /// Name of the coordinator or etcd that was asked.
        what: String,
        /// Newest epoch known so far; 0: none is known.
        epoch: u64,
        /// Error of the connection or of the answer.
        source: io::Error,
    },
    /// The other side refused, or the state of the map forbids it.
    #[error("{what}")]
    Refused {
        /// Reason, and the next step to take.
        what: String,
    },
    /// The lease ran out before it was renewed.
    #[error("the lease of node {node} ran out: join again")]
    LeaseLost {
        /// Name of the node whose lease ran out.
        node: String,
    },
    /// Another copy of a replicated node is its primary, or this copy is not listed any more.
    #[error(
        "another copy of node {node} has taken over: this one must not serve; start it again, and it becomes the backup"
    )]
    Replaced {
        /// Name of the node.
        node: String,
    },
    /// Another change was made to the map at the same time.
    #[error("the map moved on to epoch {epoch} meanwhile: read it and try again")]
    Conflict {
        /// The newer epoch.
        epoch: u64,
    },
    /// A map source that cannot be understood.
    #[error("{text:?} names no map: {what}")]
    Source {
        /// Text that was given as the map's source.
        text: String,
        /// The form that is expected.
        what: &'static str,
    },
}

/// Returns the end of the message: a question while no epoch is known, else the map that is used meanwhile.
fn known(epoch: u64) -> String {
    if epoch == 0 {
        ". Is it running, and is that its address?".to_owned()
    } else {
        format!(". It is tried again; until then the map of epoch {epoch} is used")
    }
}

impl MapError {
    /// Makes an error about ranges or nodes that do not fit together.
    pub(crate) fn invalid(what: impl Into<String>) -> MapError {
        MapError::Invalid { what: what.into() }
    }

    /// Why something is not done.
    pub(crate) fn refused(what: impl Into<String>) -> MapError {
        MapError::Refused { what: what.into() }
    }
}
