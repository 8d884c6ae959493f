// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors between two processes, each with what to do about it.

use memlift_ground::region::RegionError;
use memlift_ground::socket_file::Occupant;
use std::time::Duration;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens at the address.
    #[error("no server at {address}: start it first, or check the name with `memlift ipc ls` ({source})")]
    ServerUnavailable {
        /// The address tried.
        address: String,
        /// Error that the kernel gave.
        source: std::io::Error,
    },
    /// The server turned the client away.
    #[error("the server at {address} refused this client: {reason}")]
    Refused {
        /// The address tried.
        address: String,
        /// Reason that the server gave.
        reason: String,
    },
    /// The address is taken; its occupant was left as it is.
    #[error("{address} is {by}: stop or remove it, or choose another address")]
    AddressInUse {
        /// The address that was asked for.
        address: String,
        /// Occupant of the address.
        by: Occupant,
    },
    /// The callback [`OnWait`](memlift_ground::on_wait::OnWait) ended the opening of a session.
    #[error("the opening of the session was interrupted")]
    Interrupted,
    /// The text is not an address.
    #[error("{address:?} is not a server address: {reason}")]
    BadAddress {
        /// Text that was given as the address.
        address: String,
        /// Reason why it is not one.
        reason: String,
    },
    /// The peer is gone.
    #[error("the {peer} died or closed the connection{}: connect again when it is back", .doing.map(|d| format!(" while {d}")).unwrap_or_default())]
    PeerDied {
        /// `server` or `client`.
        peer: &'static str,
        /// Step that was interrupted; `None`: not known.
        doing: Option<&'static str>,
    },
    /// The peer wrote something that cannot be; the session is closed.
    #[error("the peer broke the protocol ({what}); the session is closed: connect again")]
    PeerFault {
        /// Description of what the peer wrote.
        what: String,
    },
    /// The server is of an earlier version, which cannot do this. Nothing was sent.
    #[error(
        "the server speaks version {speaks} of the protocol, and one that {what} speaks version {needs}: update the server"
    )]
    PeerTooOld {
        /// Description of what a newer server does.
        what: String,
        /// Version of the session.
        speaks: u32,
        /// First version that can do it.
        needs: u32,
    },
    /// No answer came within the time limit.
    #[error(
        "no answer within {limit:?}: the server may still be working on it; raise the timeout or look with `memlift top`"
    )]
    DeadlineExceeded {
        /// The limit that passed.
        limit: Duration,
    },
    /// The server failed the call.
    #[error("{0}")]
    Remote(RemoteFailure),
    /// The payload is larger than the limit.
    #[error(
        "a message of {bytes} bytes is over the limit of {limit}: send it in parts, or raise ipc.message_bytes_max on both sides"
    )]
    MessageTooLarge {
        /// Size of the payload, bytes.
        bytes: u64,
        /// Largest payload that is allowed, bytes.
        limit: u64,
    },
    /// The pool is full of loans and unanswered calls.
    #[error(
        "the request pool is full ({used} of at most {limit} bytes in use by loans and unanswered calls, {wanted} more wanted): drop loans, collect results, or raise the pool's limit"
    )]
    PoolFull {
        /// Bytes that were wanted in addition.
        wanted: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes the pool may have.
        limit: u64,
    },
    /// There is too little memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// The call found no room in time: this client has as many unanswered calls as it may, or its pool is still growing.
    #[error("{outstanding} calls are unanswered, which is the limit: collect results first")]
    Busy {
        /// Number of unanswered calls.
        outstanding: usize,
    },
    /// The data cannot be sent.
    #[error("cannot send {0}: convert it to an array of bool, integer, float or complex, or to bytes")]
    UnsupportedType(String),
    /// The payload that arrived differs from the one that was sent.
    #[error(
        "the {what} of {operation:?} did not arrive as it was sent: CRC-32C {arrived:#010x} of {bytes} bytes, {sent:#010x} when they left. Memory or a program on the way is at fault: call again, and look at the machine if it goes on"
    )]
    Corrupted {
        /// `reply` (a request is the server's to check: [`RemoteFailure::Corrupted`]).
        what: &'static str,
        /// Name of the operation.
        operation: String,
        /// Length in bytes.
        bytes: u64,
        /// CRC-32C of what was sent.
        sent: u32,
        /// CRC-32C of what arrived.
        arrived: u32,
    },
    /// This process has no such device.
    #[error("device {device:?} is not available: {why}")]
    DeviceUnavailable {
        /// Name of the device.
        device: &'static str,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// The payload's type or length is not the one asked for.
    #[error("{wanted} was wanted, and {got} of {bytes} bytes came: both sides must agree on the type")]
    WrongType {
        /// Name of the type.
        wanted: &'static str,
        /// Shape of the payload that came.
        got: String,
        /// Length of that payload, bytes.
        bytes: u64,
    },
    /// An operation of that name, or with the same hash, is registered.
    #[error("operation {name:?} clashes with {other:?}: choose another name")]
    OperationExists {
        /// Name of the new operation.
        name: String,
        /// Name of the registered operation.
        other: String,
    },
    /// The process forked; the client stays with its parent.
    #[error(
        "this client was opened before a fork and belongs to process {pid}: open a new one in this process"
    )]
    Forked {
        /// Process that opened the client.
        pid: u32,
    },
    /// The value that a handle names is gone.
    #[error("the value is gone: {what}. Put it again, or keep it longer")]
    Expired {
        /// Reason, in words.
        what: String,
    },
    /// An arena is used by a process that did not make it.
    #[error(
        "this arena belongs to the process that made it: a forked child takes its values by their handles, and makes an arena of its own to put others"
    )]
    NotWriter,
    /// The client, server, queue or job is closed.
    #[error("this {what} is closed: open a new one")]
    Closed {
        /// Description of what is closed: `client`, `server`, `queue`, `job` or `arena`, in words of a sentence.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{doing} failed: {source}")]
    System {
        /// Step or system call that failed.
        doing: &'static str,
        /// Error that the kernel gave.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn peer_fault(what: impl Into<String>) -> Error {
        Error::PeerFault { what: what.into() }
    }

    pub(crate) fn system(doing: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
        move |errno| Error::System { doing, source: errno.into() }
    }
}

/// How a call failed at the server.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteFailure {
    /// The handler failed; the text is what it said, with its traceback where it has one.
    #[error("the handler of {operation:?} failed: {message}")]
    Handler {
        /// Name of the operation.
        operation: String,
        /// Text that the handler gave.
        message: String,
    },
    /// The server has no such operation.
    #[error("the server has no operation {operation:?}; it has: {known}")]
    UnknownOperation {
        /// Name of the operation.
        operation: String,
        /// Names of the operations that the server has.
        known: String,
    },
    /// The deadline had passed before a handler was free.
    #[error(
        "the server had no handler free for {operation:?} before the deadline: give it more handlers, or raise the timeout"
    )]
    Deadline {
        /// Name of the operation.
        operation: String,
    },
    /// The server had no memory for the reply, or for a copy of the request of its own.
    #[error("there is no memory for the reply of {operation:?}: {message}")]
    OutOfMemory {
        /// Name of the operation.
        operation: String,
        /// Description of the memory that was missing.
        message: String,
    },
    /// The request's CRC was wrong when it arrived; the handler has not seen it.
    #[error(
        "the request for {operation:?} did not arrive as it was sent: {message}. Memory or a program on the way is at fault: call again, and look at the machine if it goes on"
    )]
    Corrupted {
        /// Name of the operation.
        operation: String,
        /// Both CRC-32C values, in words.
        message: String,
    },
    /// The server ends and begins no more calls.
    #[error(
        "the server ends and has not begun {operation:?}: open another session when its successor is there, and call again"
    )]
    Draining {
        /// Name of the operation.
        operation: String,
    },
    /// The server did not understand the request.
    #[error("the server could not take the request for {operation:?}: {message}")]
    BadRequest {
        /// Name of the operation.
        operation: String,
        /// Reason that the server gave.
        message: String,
    },
}
