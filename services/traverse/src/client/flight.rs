// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request in flight: the packets sent, the pieces received, and the time to send again.
//!
//! - **Order** an answer counts whichever attempt of the request it answers, but pieces of a result are joined per attempt.
//!   A walk that continues from the place where it stopped is a new request with a new number; it keeps the bytes emitted so
//!   far
//! - **Owner** the client

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::request::Request;
use super::session::Session;
use crate::wire::{Header, Kind, Stamp};

/// Handle of a request, used to take its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// Returns the number of the ticket, for interfaces that pass numbers.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the ticket with this number. There is no answer for a ticket that the client never gave out.
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
    /// `None`: the request is the client's own, or was abandoned.
    pub ticket: Option<Ticket>,
    pub request: Request,
    /// Session under which it was sent.
    pub session: Session,
    /// Nodes' clock when the addresses in the request were read; 0: they come from no earlier request.
    pub since: u32,
    pub attempt: u32,
    /// Stamp that the last attempt named.
    pub stamp: Stamp,
    pub started: Instant,
    pub sent: Instant,
    pub timeout: Duration,
    pub node: usize,
    /// Address that the walk has reached; `body` is its scratchpad there.
    pub address: u64,
    pub body: Vec<u8>,
    pub continued: bool,
    pub iterations: u32,
    pub result: Vec<u8>,
    pub visits: u32,
    pub restarts: u32,
    /// True while the walk waits for an upload of its program.
    pub waits_for_upload: bool,
    /// Hops left, and the name of the last node to which the request was forwarded, as far as the client was
    /// told.
    pub forwarded_to: Option<(u8, String)>,
    /// True if the walk, as last sent, comes back to the client instead of being forwarded from node to node.
    pub bounces: bool,
    /// True once the request was forwarded and no answer came from there.
    pub crossing_lost: bool,
    /// True if a backup may answer.
    pub stale_ok: bool,
    /// True if the last attempt went to a backup.
    pub asks_backup: bool,
    parts: BTreeMap<u32, Part>,
}

/// An answer with all its pieces.
pub(super) struct Whole {
    pub header: Header,
    pub body: Vec<u8>,
    pub emitted: Vec<u8>,
    /// True if there was only one attempt, so that the time measures the round trip.
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
            stamp: Stamp::default(),
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
            waits_for_upload: false,
            forwarded_to: None,
            bounces: false,
            crossing_lost: false,
            stale_ok: false,
            asks_backup: false,
            parts: BTreeMap::new(),
            request,
        }
    }

    /// Adds a packet; returns the whole answer if this was its last piece.
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

    /// Makes this a new request: packets for the earlier one no longer count.
    pub fn anew(&mut self) {
        self.attempt = 0;
        self.forwarded_to = None;
        self.parts.clear();
    }

    /// Starts the walk again at its first node.
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
