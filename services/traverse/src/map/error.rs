// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong with a map, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a map was refused, could not be had, or has no answer for an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// A call of the operating system failed.
    #[error("{action} {}: {source}", .path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of a map file.
    #[error("{}, line {line}: {what}", .path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// Ranges or nodes that do not fit together.
    #[error("the map is not valid: {what}")]
    Invalid {
        /// What does not fit.
        what: String,
    },
    /// Bytes that are no map.
    #[error(
        "these bytes are no range map ({what} at byte {at}): both ends must run releases with the same map format"
    )]
    Encoding {
        /// What was expected.
        what: &'static str,
        /// Where it was not.
        at: usize,
    },
    /// An address outside every range.
    #[error(
        "no memory node has address {address:#x}: the pointer is wrong, or it is older than the map (epoch {epoch})"
    )]
    Nowhere {
        /// The address.
        address: u64,
        /// Of the map that was asked.
        epoch: u64,
    },
    /// An address whose data was lost.
    #[error(
        "the data at {address:#x} was lost: its node came back without its memory, or was forgotten (epoch {since}); load it again"
    )]
    Lost {
        /// The address.
        address: u64,
        /// When that was.
        since: u64,
    },
    /// The owner does not answer.
    #[error(
        "memory node {node}, which has {address:#x}, is down (epoch {epoch}): start it again with its log, or `memlift map forget {node}`"
    )]
    Down {
        /// The address.
        address: u64,
        /// The owner's name.
        node: String,
        /// Of the map that says so.
        epoch: u64,
    },
    /// A coordinator or etcd cannot be reached.
    #[error("{what} does not answer: {source}{}", known(*epoch))]
    Unreachable {
        /// Whom.
        what: String,
        /// What is known so far; 0 for nothing.
        epoch: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The other side, or the state of the map, says no.
    #[error("{what}")]
    Refused {
        /// Why, and what to do.
        what: String,
    },
    /// The lease ran out before it was renewed.
    #[error("the lease of node {node} ran out: join again")]
    LeaseLost {
        /// Whose.
        node: String,
    },
    /// Somebody changed the map at the same moment.
    #[error("the map moved on to epoch {epoch} meanwhile: read it and try again")]
    Conflict {
        /// The newer epoch.
        epoch: u64,
    },
    /// A map source that cannot be understood.
    #[error("{text:?} names no map: {what}")]
    Source {
        /// What was given.
        text: String,
        /// What is expected.
        what: &'static str,
    },
}

/// What goes on while nobody answers.
fn known(epoch: u64) -> String {
    if epoch == 0 {
        ". Is it running, and is that its address?".to_owned()
    } else {
        format!(". It is tried again; until then the map of epoch {epoch} is used")
    }
}

impl MapError {
    /// What is wrong with ranges or nodes.
    pub(crate) fn invalid(what: impl Into<String>) -> MapError {
        MapError::Invalid { what: what.into() }
    }

    /// Why something is not done.
    pub(crate) fn refused(what: impl Into<String>) -> MapError {
        MapError::Refused { what: what.into() }
    }
}
