// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reasons that a request has no answer, and what to do next.

use std::time::Duration;

use crate::map::MapError;
use crate::step::Verdict;
use crate::transport::TransportError;
use crate::wire::Status;

/// See the module's header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The node did not answer before the deadline.
    #[error(
        "{node} has not answered for {waited:?} ({attempts} attempts): {hint}; nothing is known about what it did, but asking again \
         does it once"
    )]
    Silent {
        /// Name of the node that was waited for: the last one that the request is known to have reached.
        node: String,
        /// Time since the first attempt was sent.
        waited: Duration,
        /// Packets sent for this request.
        attempts: u32,
        /// The node's own reason, or what to look at.
        hint: &'static str,
    },
    /// The node did not answer before the deadline, and an unauthenticated message from its address says that
    /// the key is wrong.
    #[error(
        "{node} refuses the packets of tenant {tenant}: its key there is another, or it has none; see the node's key file. Nothing was done"
    )]
    WrongKey {
        /// Name of the node.
        node: String,
        /// This client's tenant.
        tenant: u32,
    },
    /// The node did not answer before the deadline, and an unauthenticated message from its address has another version.
    #[error(
        "{node} speaks version {version} of the packets and this client version {own}: update the older side. Nothing was done"
    )]
    OtherVersion {
        /// Name of the node.
        node: String,
        /// The node's version.
        version: u8,
        /// This client's version.
        own: u8,
    },
    /// The map says that no node has the address.
    #[error(
        "no node has address {address:#x} (map epoch {epoch}): the pointer is wrong, or its range was given up"
    )]
    Nowhere {
        /// Address that no node has.
        address: u64,
        /// Epoch of the map in which the address was looked up.
        epoch: u64,
    },
    /// The owner of the address is known, but this client has no transport to it.
    #[error(
        "node {node} has address {address:#x}, and this client cannot reach it: connect with its address"
    )]
    Unreachable {
        /// Name of the node that owns the address.
        node: String,
        /// Address that the request is about.
        address: u64,
    },
    /// The address belongs to another tenant, or may not be written.
    #[error(
        "address {address:#x} is not allocated to tenant {tenant}, or only to be read: it may have been freed already, or made by another tenant"
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
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// No memory is left now, but retired memory will be free soon.
    #[error(
        "no memory is left for {bytes} bytes, but what was removed is free in {wait:?}: ask again then, or free something else"
    )]
    Resting {
        /// Bytes that were asked for.
        bytes: u64,
        /// Time until enough of the retired memory is free.
        wait: Duration,
    },
    /// The disk of the node's log is full.
    #[error(
        "the disk of the node's log is full: it takes no changes until there is room, and goes on reading; nothing was changed"
    )]
    ReadOnly,
    /// The walk made the most iterations that are allowed.
    #[error(
        "a walk of {program} made {iterations} iterations and was ended: a cycle, or raise `Config::iterations`"
    )]
    Budget {
        /// Name of the program.
        program: String,
        /// Iterations allowed in one walk: `Config::iterations`.
        iterations: u32,
    },
    /// The walk went from node to node the most times that are allowed.
    #[error("a walk of {program} went from node to node {hops} times and was ended: raise `Config::hops`")]
    Hops {
        /// Name of the program.
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
    /// Other clients changed the same memory at each attempt.
    #[error(
        "{what} was tried {times} times and others changed the same place each time: try again, with fewer writers"
    )]
    Contended {
        /// The operation that was given up, such as "an insert".
        what: &'static str,
        /// Attempts that were made.
        times: u32,
    },
    /// The node's queues stayed full for this long.
    #[error("the node's queues stayed full for {0:?}: send less at a time (`Config::window`)")]
    Busy(Duration),
    /// The node refused the program.
    #[error("the node refused the program {program}: {reason}")]
    Refused {
        /// Name of the program.
        program: String,
        /// The node's reason, as text.
        reason: String,
    },
    /// The node refused the request: it is invalid, or the node holds as many items as it may.
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
        /// Name of the structure that was expected there, such as "node of a chain".
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
        /// Line number, from 1; 0: the input as a whole.
        line: u64,
        /// Description of the fault in that line.
        reason: String,
    },
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The map cannot be read, or does not contain the answer.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The callback of [`super::Config::on_wait`] ended the wait.
    #[error(
        "the wait was interrupted: what was asked may have happened or not; asking again does it once more"
    )]
    Interrupted,
    /// The addresses belong to another memory than the node has now.
    #[error(
        "node {node} has memory {has:#x}, and the address is of memory {had:#x}: the node was started again without its log, or the \
         map of its cluster was made anew. What was there is gone with the old one; connect again and make it anew"
    )]
    OtherMemory {
        /// Name of the node that answered.
        node: String,
        /// Number of the memory that the client, or the handle, knows.
        had: u64,
        /// Number of the memory that the node has.
        has: u64,
    },
    /// The node was started with an older copy of its log.
    #[error(
        "node {node}'s log is older than what the node had acknowledged: it was started with a copy, or its machine lost the log's end. \
         What was made or changed since may be gone, and its addresses may belong to other data. Connect again, and see what is there; \
         handles of what the log still has can be opened"
    )]
    OlderLog {
        /// Name of the node.
        node: String,
    },
    /// A client whose reads may be old changes nothing.
    #[error(
        "this client was connected with stale_ok: its reads may be old, so it changes nothing. Make changes with a client that was connected \
         without it"
    )]
    StaleClient,
    /// A sum does not fit into the value's eight bytes.
    #[error(
        "{value} and {addend} have a sum that does not fit into the value's eight bytes: the value is unchanged"
    )]
    Overflow {
        /// Value that the number would be added to.
        value: i128,
        /// The number to be added; negative if it was to be subtracted.
        addend: i128,
    },
    /// The sum of many values does not fit into 64 bits.
    #[error("the sum of {count} values is {sum}, which does not fit into 64 bits: add parts of the range")]
    SumTooLarge {
        /// Number of values.
        count: u64,
        /// Sum of the values.
        sum: i128,
    },
    /// The node has forgotten the client's session, so it cannot tell if the change was made before.
    #[error(
        "node {node} has forgotten this client's session, so nobody knows whether this change was made before; it is not made now. \
         The client has begun a new session: read what is there and decide"
    )]
    SessionOver {
        /// Name of the node that has forgotten the session.
        node: String,
    },
    /// Another process uses the same client number.
    #[error(
        "another process is client {client:#x} at this node: leave `Config::client` to chance, or raise `Config::incarnation`"
    )]
    Taken {
        /// The client number that both processes use.
        client: u64,
    },
    /// The addresses were read so long ago that their memory may have been reused.
    #[error(
        "what was read before is too old to go on by, each time: start again, and see why it takes so long"
    )]
    Outdated,
    /// The client was connected before a fork.
    #[error("this client belongs to the process that this one was forked from: connect after the fork")]
    Forked,
    /// The ticket belongs to no request in flight: its answer was taken, or it was abandoned.
    #[error("ticket {0} is not under way: its answer was taken before, or it was abandoned")]
    NotUnderWay(u64),
    /// The text is not an address of a node, or its name was not found; holds the reason.
    #[error("no place of a node: {0}, or shm: and a name")]
    Place(String),
    /// Input could not be read at all.
    #[error("reading input: {0}")]
    Io(#[from] std::io::Error),
}

/// Result of functions of the client and of the collections.
pub type Result<T> = std::result::Result<T, ClientError>;
