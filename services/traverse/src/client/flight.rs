// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request that is under way: what was sent, what has come back, when to send again.
//!
//! - **Order** a packet of the same request counts whichever attempt it answers, but pieces of a result are put together per
//!   attempt. A walk that goes on where it stopped is a new request with a new number, and keeps what was emitted so far
//! - **Owner** the client

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::request::Request;
use super::session::Session;
use crate::wire::{Header, Kind};

/// Handle of a request, by which its answer is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// Its number, for interfaces that pass numbers.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The ticket with that number. One that its client never gave has no answer.
    #[must_use]
    pub fn numbered(number: u64) -> Ticket {
        Ticket(number)
    }
}

/// Packets that have arrived in answer to one attempt.
#[derive(Debug, Default)]
struct Part {
    chunks: BTreeMap<u32, Vec<u8>>,
    answer: Option<(Header, Vec<u8>)>,
}

#[derive(Debug)]
pub(super) struct Flight {
    /// `None`: a request of the client itself, or one that was abandoned.
    pub ticket: Option<Ticket>,
    pub request: Request,
    /// Session that it was sent under.
    pub session: Session,
    /// Nodes' clock when the addresses that it uses were read; 0: they come from no earlier request.
    pub since: u32,
    pub attempt: u32,
    pub started: Instant,
    pub sent: Instant,
    pub timeout: Duration,
    pub node: usize,
    /// Node that the walk is at; `body` is its scratchpad there.
    pub address: u64,
    pub body: Vec<u8>,
    pub continued: bool,
    pub iterations: u32,
    pub result: Vec<u8>,
    pub visits: u32,
    pub restarts: u32,
    /// Waits for a program to be uploaded.
    pub parked: bool,
    /// Hops that it may still make, and the last node that it was sent on to, as far as was heard.
    pub beyond: Option<(u8, String)>,
    /// True if its walk comes back to the client at each border, as it was sent last.
    pub bounces: bool,
    /// True once it was sent on and no answer came from there.
    pub crossing_lost: bool,
    parts: BTreeMap<u32, Part>,
}

/// An answer with all its pieces.
pub(super) struct Whole {
    pub header: Header,
    pub body: Vec<u8>,
    pub emitted: Vec<u8>,
    /// True if there was one attempt only: then its time measures the round trip.
    pub timed: bool,
}

impl Flight {
    pub fn new(
        ticket: Option<Ticket>,
        request: Request,
        node: usize,
        iterations: u32,
        now: Instant,
    ) -> Flight {
        Flight {
            ticket,
            attempt: 0,
            started: now,
            sent: now,
            timeout: Duration::ZERO,
            node,
            address: request.address,
            body: request.body.clone(),
            continued: false,
            iterations,
            session: Session::default(),
            since: request.since,
            result: Vec::new(),
            visits: 1,
            restarts: 0,
            parked: false,
            beyond: None,
            bounces: false,
            crossing_lost: false,
            parts: BTreeMap::new(),
            request,
        }
    }

    /// Takes a packet; returns the whole answer if this was its last piece.
    pub fn take(&mut self, header: Header, body: &[u8], now: Instant) -> Option<Whole> {
        if header.attempt > self.attempt {
            return None;
        }
        let part = self.parts.entry(header.attempt).or_default();
        if header.kind == Kind::Chunk {
            part.chunks.insert(header.piece, body.to_vec());
            // The answer is arriving, so the timeout starts anew.
            if header.attempt == self.attempt {
                self.sent = now;
            }
        } else {
            part.answer.get_or_insert((header, body.to_vec()));
        }
        let (header, _) = part.answer.as_ref()?;
        let wanted = if self.request.kind == Kind::Walk { header.pieces as usize } else { 0 };
        if part.chunks.len() < wanted {
            return None;
        }
        let (header, body) = part.answer.take()?;
        let emitted = std::mem::take(&mut part.chunks).into_values().collect::<Vec<_>>().concat();
        Some(Whole { header, body, emitted, timed: self.attempt == 0 })
    }

    /// Turns it into a new request: packets for the earlier one no longer count.
    pub fn anew(&mut self) {
        self.attempt = 0;
        self.beyond = None;
        self.parts.clear();
    }

    /// Starts it again at its first node.
    pub fn restart(&mut self) {
        self.address = self.request.address;
        self.body = self.request.body.clone();
        self.continued = false;
        self.since = self.request.since;
        self.result.clear();
        self.restarts += 1;
        self.anew();
    }
}
