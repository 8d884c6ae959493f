// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a request has no answer, and what to do next.

use std::time::Duration;

use crate::map::MapError;
use crate::step::Verdict;
use crate::transport::TransportError;
use crate::wire::Status;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The node did not answer before the deadline.
    #[error(
        "{node} has not answered for {waited:?} ({attempts} attempts): see whether it runs and is reached from here; nothing is \
         known about what it did, but asking again does it once"
    )]
    Silent {
        /// Name of the node that was waited for: the last one that the request is known to have reached.
        node: String,
        /// Time since the first attempt was sent.
        waited: Duration,
        /// Packets sent for this request.
        attempts: u32,
    },
    /// The map says that nobody has the address.
    #[error(
        "no node has address {address:#x} (map epoch {epoch}): the pointer is wrong, or its range was given up"
    )]
    Nowhere {
        /// Address that no node has.
        address: u64,
        /// Of the map that was asked.
        epoch: u64,
    },
    /// The owner of the address is known, but not how to reach it over this transport.
    #[error(
        "node {node} has address {address:#x}, and this client cannot reach it: connect with its address"
    )]
    Unreachable {
        /// Name of the node that owns the address.
        node: String,
        /// Address that the request is about.
        address: u64,
    },
    /// Not this tenant's.
    #[error(
        "address {address:#x} is not tenant {tenant}'s, or not to be written: ask with the tenant that made it"
    )]
    Forbidden {
        /// Address that the request is about.
        address: u64,
        /// Tenant of the client that asked.
        tenant: u32,
    },
    /// No memory is left.
    #[error(
        "no memory is left for {bytes} bytes: free what is not needed, or add a node with `memlift node --memory`"
    )]
    Full {
        /// How many were asked for.
        bytes: u64,
    },
    /// No memory is left now, and some will be.
    #[error(
        "no memory is left for {bytes} bytes, but what was removed is free in {wait:?}: ask again then, or free something else"
    )]
    Resting {
        /// How many were asked for.
        bytes: u64,
        /// Until enough of what rests is free.
        wait: Duration,
    },
    /// The node cannot log changes.
    #[error(
        "the disk of the node's log is full: it takes no changes until there is room, and goes on reading; nothing was changed"
    )]
    ReadOnly,
    /// The walk made as many iterations as it may.
    #[error(
        "a walk of {program} made {iterations} iterations and was ended: a cycle, or raise `Config::iterations`"
    )]
    Budget {
        /// Of which program.
        program: String,
        /// Iterations allowed in one walk: `Config::iterations`.
        iterations: u32,
    },
    /// The walk crossed from node to node as often as it may.
    #[error("a walk of {program} went from node to node {hops} times and was ended: raise `Config::hops`")]
    Hops {
        /// Of which program.
        program: String,
        /// Hops allowed on one visit: `Config::hops`.
        hops: u8,
    },
    /// The program failed.
    #[error(
        "{program} failed at {address:#x} with {verdict:?}: its data is not what it was written for, or it is wrong"
    )]
    Fault {
        /// Name of the program.
        program: String,
        /// Global address of the node at which it failed.
        address: u64,
        /// The fault that its step returned.
        verdict: Verdict,
    },
    /// Others were in the way each time.
    #[error(
        "{what} was tried {times} times and others changed the same place each time: try again, with fewer writers"
    )]
    Contended {
        /// The operation that was given up, such as "an insert".
        what: &'static str,
        /// Attempts that were made.
        times: u32,
    },
    /// The node is busy each time.
    #[error("the node's queues stayed full for {0:?}: send less at a time (`Config::window`)")]
    Busy(Duration),
    /// The node wants no such program.
    #[error("the node refused the program {program}: {reason}")]
    Refused {
        /// Name of the program.
        program: String,
        /// The node's reason, as text.
        reason: String,
    },
    /// The node says that the request makes no sense, or that it holds as many things as it may.
    #[error("the node answered {status:?}: {reason}")]
    Rejected {
        /// Status of the answer.
        status: Status,
        /// The node's reason, as text; may be empty.
        reason: String,
    },
    /// The bytes read do not have the layout of this structure.
    #[error(
        "at {address:#x} lies no {what}: the memory was written by something else, or the handle is another structure's"
    )]
    Corrupt {
        /// Address of the bytes that were read; 0 if it is not known.
        address: u64,
        /// Name of the item that was expected there, such as "node of a chain".
        what: &'static str,
    },
    /// A value does not fit.
    #[error("{what} of {bytes} bytes: at most {most} fit")]
    TooLong {
        /// Name of the item that is too long, such as "a value".
        what: &'static str,
        /// Its length, in bytes.
        bytes: usize,
        /// The longest that fits, in bytes.
        most: usize,
    },
    /// Input for a bulk load cannot be read.
    #[error("line {line}: {reason}")]
    Input {
        /// Counted from 1.
        line: u64,
        /// Description of the fault in that line.
        reason: String,
    },
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The map cannot be had.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Whoever was asked while waiting said no ([`super::Client::on_wait`]).
    #[error(
        "the wait was interrupted: what was asked may have happened or not; asking again does it once more"
    )]
    Interrupted,
    /// The node's memory is not the one that the addresses are of.
    #[error(
        "node {node} has memory {has:#x}, and the address is of memory {had:#x}: the node was started again without its log, or the \
         map of its cluster was made anew. What was there is gone with the old one; connect again and make it anew"
    )]
    OtherMemory {
        /// Name of the node that answered.
        node: String,
        /// The memory that the client, or the handle, knows.
        had: u64,
        /// The memory that is there.
        has: u64,
    },
    /// The node does not know any more what was done.
    #[error(
        "node {node} has forgotten this client's session, so nobody knows whether this change was made before; it is not made now. \
         The client has begun a new session: read what is there and decide"
    )]
    SessionOver {
        /// Name of the node that has forgotten the session.
        node: String,
    },
    /// Two clients have one number.
    #[error(
        "another process is client {client:#x} at this node: leave `Config::client` to chance, or raise `Config::incarnation`"
    )]
    Taken {
        /// The client number that both processes use.
        client: u64,
    },
    /// Addresses that were got so long ago that their memory may have been used again.
    #[error(
        "what was read before is too old to go on by, each time: start again, and see why it takes so long"
    )]
    Outdated,
    /// The client was connected before a fork.
    #[error("this client belongs to the process that this one was forked from: connect after the fork")]
    Forked,
    /// Nobody can wait for this.
    #[error("ticket {0} is not under way: its answer was taken before, or it was abandoned")]
    NotUnderWay(u64),
    /// Where a node is cannot be read.
    #[error("{0:?} is no place of a node: write ADDRESS:PORT (127.0.0.1:7700), or shm: and a name")]
    Place(String),
    /// Input could not be read at all.
    #[error("reading input: {0}")]
    Io(#[from] std::io::Error),
}

/// Result of functions of the client and of the collections.
pub type Result<T> = std::result::Result<T, ClientError>;
