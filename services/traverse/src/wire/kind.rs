// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kinds of packets, and the statuses with which requests end.
//!
//! - **Layout** the values are those of `memlift_spec::formats::packet`
//! - **Order** statuses up to [`Status::Differs`] are answers; for those after that, up to [`Status::WrongNode`], the client
//!   continues the request by itself

use crate::step::Verdict;
use memlift_spec::formats::packet::{
    KIND_ALLOCATE, KIND_ANSWER, KIND_APPLY, KIND_CHUNK, KIND_DECIDED, KIND_DECLARE, KIND_END, KIND_FREE,
    KIND_MAP, KIND_MIGRATE, KIND_PLACE, KIND_READ, KIND_REGISTER, KIND_RETIRE, KIND_WALK, KIND_WRITE,
    STATUS_APPLIED, STATUS_BAD_REQUEST, STATUS_BUSY, STATUS_CONTINUE, STATUS_DIFFERS, STATUS_DONE,
    STATUS_EXPIRED, STATUS_FAULT, STATUS_FORBIDDEN, STATUS_FOREIGN, STATUS_FULL, STATUS_HOPS,
    STATUS_ITERATIONS, STATUS_LIMIT, STATUS_LOG_FULL, STATUS_MISSING, STATUS_NEED_PROGRAM, STATUS_NO_LEASE,
    STATUS_OUTDATED, STATUS_REFUSED, STATUS_RETRY, STATUS_SENT_ON, STATUS_STALE, STATUS_TAKEN,
    STATUS_WRONG_KEY, STATUS_WRONG_NODE,
};

/// Kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A request: walk.
    Walk = KIND_WALK,
    /// The end of a request.
    Answer = KIND_ANSWER,
    /// A piece of a result.
    Chunk = KIND_CHUNK,
    /// A request: register a program.
    Register = KIND_REGISTER,
    /// A request: allocate memory.
    Allocate = KIND_ALLOCATE,
    /// A request: free memory.
    Free = KIND_FREE,
    /// A request: store bytes.
    Write = KIND_WRITE,
    /// A request: load bytes.
    Read = KIND_READ,
    /// A request: change eight bytes once.
    Apply = KIND_APPLY,
    /// Node to node: the decision of a walk that writes.
    Decided = KIND_DECIDED,
    /// A request: the node's range, and the map's entry for an address.
    Map = KIND_MAP,
    /// Node to node: a message about a range that moves.
    Migrate = KIND_MIGRATE,
    /// A client has ended; not answered.
    End = KIND_END,
    /// A request: allocate blocks, the first one filled.
    Place = KIND_PLACE,
    /// A request: retire memory that was unlinked.
    Retire = KIND_RETIRE,
    /// A request: sweep the map whose terms are at an address.
    Declare = KIND_DECLARE,
}

impl Kind {
    /// Returns the kind with this number; `None` if there is none.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            KIND_WALK => Kind::Walk,
            KIND_ANSWER => Kind::Answer,
            KIND_CHUNK => Kind::Chunk,
            KIND_REGISTER => Kind::Register,
            KIND_ALLOCATE => Kind::Allocate,
            KIND_FREE => Kind::Free,
            KIND_WRITE => Kind::Write,
            KIND_READ => Kind::Read,
            KIND_APPLY => Kind::Apply,
            KIND_DECIDED => Kind::Decided,
            KIND_MAP => Kind::Map,
            KIND_MIGRATE => Kind::Migrate,
            KIND_END => Kind::End,
            KIND_PLACE => Kind::Place,
            KIND_RETIRE => Kind::Retire,
            KIND_DECLARE => Kind::Declare,
            _ => return None,
        })
    }

    /// Returns true if a client may send packets of this kind.
    #[must_use]
    pub fn is_request(self) -> bool {
        !matches!(self, Kind::Answer | Kind::Chunk | Kind::Decided | Kind::Migrate)
    }

    /// Returns true if a request of this kind must not be carried out twice.
    #[must_use]
    pub fn changes_memory(self) -> bool {
        matches!(
            self,
            Kind::Allocate
                | Kind::Free
                | Kind::Write
                | Kind::Apply
                | Kind::Place
                | Kind::Retire
                | Kind::Declare
        )
    }
}

/// End of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The body is the answer.
    Done,
    /// Nothing was found.
    Missing,
    /// An apply was carried out; `value` is the value before it.
    Applied,
    /// A compare-and-swap found `value` instead; nothing was changed.
    Differs,
    /// The visit's iterations are used up; the client sends the state again to continue.
    Continue,
    /// Writers have interfered; start again.
    Retry,
    /// Queues are full; send again later.
    Busy,
    /// The node lacks the program: register it first.
    NeedProgram,
    /// The address is not at this node, and its map names no owner that can be asked.
    WrongNode,
    /// The request was forwarded through too many nodes.
    Hops,
    /// The walk made more iterations than allowed, over all visits.
    Iterations,
    /// The address belongs to another tenant, or may not be written.
    Forbidden,
    /// No memory is left for the allocation.
    Full,
    /// The request is invalid; the body says why.
    BadRequest,
    /// The program was refused; the body says why.
    Refused,
    /// The request was settled before.
    Stale,
    /// The node holds as many items (programs, requests, clients) as it may.
    Limit,
    /// Not an end: the request was forwarded to the node that the body names, and is not answered yet.
    SentOn,
    /// The session was forgotten or has ended.
    Expired,
    /// Another process uses the client's number.
    Taken,
    /// The memory belongs to another cluster, or to a later start of the node.
    Foreign,
    /// The memory may have been reused since the addresses were read; nothing was changed.
    Outdated,
    /// An unauthenticated hint: the packet's MAC does not fit its tenant's key.
    WrongKey,
    /// The disk of the node's log is full: the node refuses changes and serves reads.
    LogFull,
    /// Not an end: the node cannot reach etcd, and so may not answer.
    NoLease,
    /// The program failed: the verdict is one of those from 0x80 on.
    Fault(Verdict),
}

impl Status {
    /// Returns the status with this number; `None` if there is none.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Status> {
        Some(match byte {
            STATUS_DONE => Status::Done,
            STATUS_MISSING => Status::Missing,
            STATUS_APPLIED => Status::Applied,
            STATUS_DIFFERS => Status::Differs,
            STATUS_CONTINUE => Status::Continue,
            STATUS_RETRY => Status::Retry,
            STATUS_BUSY => Status::Busy,
            STATUS_NEED_PROGRAM => Status::NeedProgram,
            STATUS_WRONG_NODE => Status::WrongNode,
            STATUS_HOPS => Status::Hops,
            STATUS_ITERATIONS => Status::Iterations,
            STATUS_FORBIDDEN => Status::Forbidden,
            STATUS_FULL => Status::Full,
            STATUS_BAD_REQUEST => Status::BadRequest,
            STATUS_REFUSED => Status::Refused,
            STATUS_STALE => Status::Stale,
            STATUS_LIMIT => Status::Limit,
            STATUS_SENT_ON => Status::SentOn,
            STATUS_EXPIRED => Status::Expired,
            STATUS_TAKEN => Status::Taken,
            STATUS_FOREIGN => Status::Foreign,
            STATUS_OUTDATED => Status::Outdated,
            STATUS_WRONG_KEY => Status::WrongKey,
            STATUS_LOG_FULL => Status::LogFull,
            STATUS_NO_LEASE => Status::NoLease,
            STATUS_FAULT.. => {
                let verdict = Verdict::from_return(u32::from(byte));
                if verdict as u32 != u32::from(byte) {
                    return None;
                }
                Status::Fault(verdict)
            }
            _ => return None,
        })
    }

    /// Returns the number of the status in packets.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Status::Done => STATUS_DONE,
            Status::Missing => STATUS_MISSING,
            Status::Applied => STATUS_APPLIED,
            Status::Differs => STATUS_DIFFERS,
            Status::Continue => STATUS_CONTINUE,
            Status::Retry => STATUS_RETRY,
            Status::Busy => STATUS_BUSY,
            Status::NeedProgram => STATUS_NEED_PROGRAM,
            Status::WrongNode => STATUS_WRONG_NODE,
            Status::Hops => STATUS_HOPS,
            Status::Iterations => STATUS_ITERATIONS,
            Status::Forbidden => STATUS_FORBIDDEN,
            Status::Full => STATUS_FULL,
            Status::BadRequest => STATUS_BAD_REQUEST,
            Status::Refused => STATUS_REFUSED,
            Status::Stale => STATUS_STALE,
            Status::Limit => STATUS_LIMIT,
            Status::SentOn => STATUS_SENT_ON,
            Status::Expired => STATUS_EXPIRED,
            Status::Taken => STATUS_TAKEN,
            Status::Foreign => STATUS_FOREIGN,
            Status::Outdated => STATUS_OUTDATED,
            Status::WrongKey => STATUS_WRONG_KEY,
            Status::LogFull => STATUS_LOG_FULL,
            Status::NoLease => STATUS_NO_LEASE,
            Status::Fault(verdict) => verdict as u32 as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_name_what_they_came_from() {
        let mut statuses = 0;
        for byte in 0..=u8::MAX {
            if let Some(status) = Status::from_byte(byte) {
                assert_eq!(status.byte(), byte);
                statuses += 1;
            }
            if let Some(kind) = Kind::from_byte(byte) {
                assert_eq!(kind as u8, byte);
            }
        }
        assert_eq!(statuses, 25 + 4, "every status and the four faults");
    }
}
