// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that a client sends, and the answers to them.
//!
//! - **Order** every request has exactly one outcome, however often its packets are sent

use std::sync::Arc;

use crate::program::Program;
use crate::structures::{Scratch, Walk};
use crate::wire::{ApplyOperands, Kind, Stamp, Status};
use memlift_spec::formats::walk::ApplyKind;

/// A request that can be sent.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) kind: Kind,
    pub(super) address: u64,
    pub(super) value: u64,
    pub(super) body: Vec<u8>,
    pub(super) program: Option<Arc<Program>>,
    /// The node, for requests that are about a node and not about an address.
    pub(super) node: Option<usize>,
    pub(super) piece: (u32, u32),
    pub(super) hash: Option<crate::wire::Hash>,
    pub(super) since: u32,
    /// Stamp to be compared with the node's log, in place of the newest that is known.
    pub(super) stamp: Option<Stamp>,
    pub(super) stale_ok: bool,
}

impl Request {
    pub(super) fn new(kind: Kind, address: u64, value: u64) -> Request {
        Request {
            kind,
            address,
            value,
            body: Vec::new(),
            program: None,
            node: None,
            piece: (0, 0),
            hash: None,
            since: 0,
            stamp: None,
            stale_ok: false,
        }
    }

    /// Lets the backup of a replicated node answer, from a copy that may be older than what was acknowledged. Only reads and walks that
    /// change nothing are sent there.
    #[must_use]
    pub fn stale_ok(self) -> Request {
        Request { stale_ok: true, ..self }
    }

    /// Returns true if a backup could answer it.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.kind, Kind::Walk | Kind::Read) && !self.writes() && self.stamp.is_none()
    }

    /// Asks for a walk, which runs at the nodes.
    #[must_use]
    pub fn walk(walk: &Walk) -> Request {
        Request {
            body: walk.scratch.0.clone(),
            program: Some(Arc::clone(&walk.program)),
            ..Request::new(Kind::Walk, walk.start, 0)
        }
    }

    /// Marks the addresses as found by an earlier answer ([`Answer::since`]). Nodes refuse the request once their memory may
    /// have been reused.
    #[must_use]
    pub fn since(self, clock: u32) -> Request {
        Request { since: clock, ..self }
    }

    pub(super) fn is_walk(&self) -> bool {
        self.kind == Kind::Walk
    }

    /// Asks for bytes at an address: at most a packet's ([`super::Client::packet_bytes`]).
    #[must_use]
    pub fn read(address: u64, bytes: usize) -> Request {
        Request::new(Kind::Read, address, bytes as u64)
    }

    /// Asks to write bytes at an address: at most a packet's.
    #[must_use]
    pub fn write(address: u64, bytes: &[u8]) -> Request {
        Request { body: bytes.to_vec(), ..Request::new(Kind::Write, address, 0) }
    }

    /// Asks for memory of a node, which is named by its index among the client's nodes.
    #[must_use]
    pub fn allocate(node: usize, bytes: u64) -> Request {
        Request { node: Some(node), ..Request::new(Kind::Allocate, 0, bytes) }
    }

    /// Asks for `count` blocks of a node, 1 to 64. The first one is filled with `body`, which has at most `bytes` bytes and
    /// fits a packet. The answer's body has the addresses.
    #[must_use]
    pub fn place(node: usize, bytes: u64, count: u32, body: &[u8]) -> Request {
        Request {
            node: Some(node),
            body: body.to_vec(),
            piece: (0, count),
            ..Request::new(Kind::Place, 0, bytes)
        }
    }

    /// Retires unlinked blocks (address, bytes) of one node: they become free when no walk can be at them any more.
    #[must_use]
    pub fn retire(blocks: &[(u64, u64)]) -> Request {
        let body =
            blocks.iter().flat_map(|(address, bytes)| [address.to_le_bytes(), bytes.to_le_bytes()].concat());
        let first = blocks.first().map_or(0, |(address, _)| *address);
        Request { body: body.collect(), ..Request::new(Kind::Retire, first, 0) }
    }

    /// Declares the terms of a map ([`crate::structures::ExpiringMap`]): the node that has this address sweeps the map.
    #[must_use]
    pub fn declare(address: u64) -> Request {
        Request::new(Kind::Declare, address, 0)
    }

    /// Frees memory that was allocated with `bytes` bytes.
    #[must_use]
    pub fn free(address: u64, bytes: u64) -> Request {
        Request::new(Kind::Free, address, bytes)
    }

    /// Asks to change the eight bytes at an address.
    #[must_use]
    pub fn apply(kind: ApplyKind, address: u64, a: u64, b: u64) -> Request {
        let operands = ApplyOperands { kind: kind as u64, address, a, b };
        Request { body: operands.bytes().to_vec(), ..Request::new(Kind::Apply, address, 0) }
    }

    /// Asks a node for its range of addresses and its memory's number.
    #[must_use]
    pub fn map(node: usize) -> Request {
        Request { node: Some(node), ..Request::new(Kind::Map, 0, 0) }
    }

    /// Returns true if iterations and hops do not limit the request; only [`super::Config::deadline`] does.
    pub(super) fn is_library_walk(&self) -> bool {
        self.program.as_ref().is_some_and(|program| crate::structures::shipped::is_library(program))
    }

    pub(super) fn name(&self) -> String {
        match &self.program {
            Some(program) => program.name().to_owned(),
            None => format!("{:?}", self.kind).to_lowercase(),
        }
    }

    pub(super) fn writes(&self) -> bool {
        self.program.as_ref().is_some_and(|program| program.uses_apply())
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status with which the request ended.
    pub status: Status,
    /// For an allocation its address; for a walk the node (of the structure) at which it ended.
    pub address: u64,
    /// For a change the value before it.
    pub value: u64,
    /// For a walk its scratchpad without the zeros at its end; for a read the bytes.
    pub body: Vec<u8>,
    /// Bytes that the walk emitted, in order.
    pub result: Vec<u8>,
    /// Iterations that the walk made, over all nodes.
    pub iterations: u32,
    /// Number of visits: one, and one more for each time that the client sent the walk on.
    pub visits: u32,
    /// Nodes' clock when reading for this answer began; pass it to [`Request::since`] with addresses from this answer.
    pub since: u32,
    /// Number of the memory (the cluster) of the node that answered.
    pub cluster: u64,
}

impl Answer {
    /// Returns the walk's scratchpad, without the zeros at its end.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch(self.body.clone())
    }
}
