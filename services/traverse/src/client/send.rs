// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends requests as packets: the node, the header, and retransmission when no answer comes.
//!
//! - **Order** a request keeps its number over all attempts; a walk that continues, or starts again, gets a new number
//! - **Not here** the handling of answers (`answer`)

use std::time::{Duration, Instant};

use super::flight::Flight;
use super::route::Reach;
use super::upload::hash_of;
use super::{
    BACKOFF_MIN, Client, ClientError, Reads, Request, Result, Routing, TIMEOUT_MAX, TIMEOUT_MIN, Ticket,
};
use crate::transport::Peer;
use crate::wire::{
    FLAG_CONFIRMED, FLAG_CONTINUED, FLAG_SINCE, FLAG_STALE, FLAG_WRITES, Header, Kind, Stamp, used,
};
use memlift_spec::formats::packet::PACKET_VERSION;

/// Attempts to send a piece of an upload. A node that does not answer then is gone, or asks for the program later.
const UPLOAD_ATTEMPTS: u32 = 4;

/// Longest timeout of a client that knows a backup.
const TIMEOUT_BACKUP_MAX: Duration = Duration::from_millis(250);

/// Attempts to ask a node for the owner of an address, beyond the first one.
const INQUIRY_ATTEMPTS: u32 = 3;

/// If this many attempts in a row were forwarded to another node without an answer from there, the network is assumed to
/// lose those answers.
const CROSSINGS_LOST: u32 = 2;

/// Time for which walks then come back to the client at each border, before nodes may forward them again.
const CROSSING_PAUSE: Duration = Duration::from_secs(60);

/// Time for which a backup that did not answer is not asked first.
const BACKUP_PAUSE: Duration = Duration::from_secs(1);

/// Returns the backup that an attempt of a read goes to; `None`: it goes to the node itself. If neither answers, they are asked in turn.
fn backup_for(flight: &Flight, reach: &Reach, fresh: u32) -> Option<Peer> {
    // A copy may not have yet what was found at the node itself.
    let is_possible = flight.stale_ok && (flight.since == 0 || flight.since > fresh);
    let is_silent = reach.backup_silent.is_some_and(|at| flight.sent.duration_since(at) < BACKUP_PAUSE);
    let is_its_turn = if flight.attempt == 0 { !is_silent } else { flight.attempt.is_multiple_of(2) };
    reach.backup.filter(|_| is_possible && is_its_turn)
}

impl Client {
    pub(super) fn route(&mut self, address: u64) -> Result<usize> {
        let epoch = self.routes.epoch;
        match self.routes.owner(address) {
            Some(node) => Ok(node),
            // No known node has the address, but any node with a map knows the owner.
            None if epoch == 0 && self.unheard().is_some() => Ok(self.unheard().unwrap_or(0)),
            None if self.reaches.len() > 1 || epoch > 0 => {
                let there = |reach: &Reach| reach.silent.is_none() && !reach.is_backup;
                Ok(self.reaches.iter().position(there).unwrap_or(0))
            }
            None => Err(ClientError::Nowhere { address, epoch }),
        }
    }

    pub(super) fn launch(&mut self, ticket: Option<Ticket>, request: Request, node: usize) -> Result<()> {
        let mut flight = Flight::new(ticket, request, node, self.config.iterations, Instant::now());
        flight.stale_ok = (self.config.stale_ok || flight.request.stale_ok) && flight.request.is_read();
        self.send_flight(flight)
    }

    /// Sends a flight under a new sequence number.
    pub(super) fn send_flight(&mut self, mut flight: Flight) -> Result<()> {
        flight.session = self.session;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        // A walk that writes begins at its first node only once, so that node must already have the program.
        let first = flight.request.writes()
            && flight
                .request
                .program
                .as_ref()
                .is_some_and(|program| !self.uploaded.contains(&hash_of(program)));
        self.flights.insert(sequence, flight);
        if first { self.upload(sequence) } else { self.transmit(sequence) }
    }

    pub(super) fn timeout(&self) -> Duration {
        let timeout = self.round_trip_estimate.map_or(TIMEOUT_MIN * 5, |(smooth, vary)| smooth + vary * 4);
        timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX)
    }

    pub(super) fn transmit(&mut self, sequence: u64) -> Result<()> {
        let settled = self.flights.first_key_value().map_or(sequence, |(&first, _)| first);
        let timeout = self.timeout();
        // A backup that has taken over is found by the next attempt.
        let has_backup = self.reaches.iter().any(|reach| reach.is_backup);
        let most = if has_backup { TIMEOUT_BACKUP_MAX } else { TIMEOUT_MAX };
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        flight.sent = Instant::now();
        flight.timeout = (timeout * (1 << flight.attempt.min(6))).min(most);
        let reach = &mut self.reaches[flight.node];
        reach.changed |= flight.changes();
        let backup = backup_for(flight, reach, self.fresh);
        flight.asks_backup = backup.is_some();
        let request = &flight.request;
        let mut flags = 0;
        if flight.since != 0 {
            flags |= FLAG_SINCE;
        }
        if request.writes() {
            flags |= FLAG_WRITES;
        }
        if flight.continued {
            flags |= FLAG_CONTINUED;
        }
        // A change that finds nothing to change is a read, too.
        if backup.is_some() {
            flags |= FLAG_STALE;
        } else if self.config.reads == Reads::Confirmed
            && matches!(request.kind, Kind::Walk | Kind::Read | Kind::Apply)
        {
            flags |= FLAG_CONFIRMED;
        }
        let lost = self.crossing_lost.is_some_and(|at| flight.sent.duration_since(at) < CROSSING_PAUSE);
        flight.bounces =
            self.config.routing == Routing::Bounce || ((lost || flight.crossing_lost) && !request.writes());
        let hops = if flight.bounces { 0 } else { self.config.hops };
        let program = request.program.as_ref();
        // A copy may lack changes that this client knows of.
        let known = if backup.is_some() { Stamp::default() } else { reach.stamp };
        flight.stamp = request.stamp.unwrap_or(known);
        let header = Header {
            flags,
            hops,
            scratch_bytes: program.map_or(0, |program| program.scratch_bytes() as u16),
            client: flight.session.client,
            incarnation: self.config.incarnation,
            attempt: flight.attempt,
            sequence,
            settled,
            tenant: self.config.tenant,
            iterations: flight.iterations,
            epoch: self.routes.epoch,
            address: flight.address,
            value: request.value,
            program: program.map_or(request.hash.unwrap_or_default(), hash_of),
            piece: request.piece.0,
            pieces: request.piece.1,
            sender: self.sender,
            nonce: self.nonce,
            clock: if flight.since == 0 { self.heard.now() } else { flight.since },
            // A `Kind::Map` request is valid for any memory: 0 is not checked.
            cluster: if request.kind == Kind::Map { 0 } else { reach.cluster },
            session: if flight.changes() { flight.session.number } else { 0 },
            reply: flight.stamp.reply(),
            ..Header::new(request.kind)
        };
        self.nonce += 1;
        let body = if program.is_some() { used(&flight.body) } else { &flight.body[..] };
        let (link, peer) = (reach.link, backup.unwrap_or(reach.peer));
        self.packet.clear();
        self.config.keys.seal(&header, body, &mut self.packet);
        let transport = &mut self.links[link];
        let most = transport.packet_bytes();
        if self.packet.len() > most {
            self.flights.remove(&sequence);
            return Err(ClientError::TooLong { what: "a packet", bytes: self.packet.len(), most });
        }
        // False means that the packet is lost; it is sent again like any lost packet.
        let _ = transport.send(peer, &self.packet)?;
        self.unsent.insert(link);
        self.counts.sent += 1;
        Ok(())
    }

    /// Asks another node for the owner of an address, because the silent node may be down, or may not own it any more.
    fn inquire(&mut self, address: u64, silent: usize) -> Result<()> {
        if self.reaches.len() < 2 {
            return Ok(());
        }
        // Two entries may be the same process: a backup that has taken over has the node's entry, too.
        let place = |reach: &Reach| (reach.link, reach.peer);
        let (count, gone) = (self.reaches.len(), place(&self.reaches[silent]));
        let mut others = (1..=count).map(|step| (self.next_inquiry + step) % count);
        if let Some(node) = others.find(|node| place(&self.reaches[*node]) != gone)
            && self.ask_owner(address, node)?
        {
            // Only then is it another one's turn: a question lasts for several attempts, and their number must not decide who is asked.
            self.next_inquiry = node;
        }
        Ok(())
    }

    /// Asks a node for the owner of an address, unless such a request is in flight; returns true if it was asked.
    pub(super) fn ask_owner(&mut self, address: u64, node: usize) -> Result<bool> {
        let inquiry = |flight: &Flight| flight.request.kind == Kind::Map && flight.ticket.is_none();
        if self.flights.values().any(inquiry) {
            return Ok(false);
        }
        let request = Request { node: Some(node), ..Request::new(Kind::Map, address, 0) };
        self.launch(None, request, node)?;
        Ok(true)
    }

    /// Sends again every request that was not answered in time, and ends those that are past their deadline.
    pub(super) fn retransmit_due(&mut self, now: Instant) -> Result<()> {
        let late: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, flight)| {
                !flight.waits_for_upload && now.duration_since(flight.sent) >= flight.timeout
                    || now.duration_since(flight.started) >= self.config.deadline
            })
            .map(|(&sequence, _)| sequence)
            .collect();
        for sequence in late {
            let Some(flight) = self.flights.get_mut(&sequence) else { continue };
            let waited = now.duration_since(flight.started);
            if waited >= self.config.deadline {
                let attempts = flight.attempt + 1;
                if self.reaches[flight.node].key_refused {
                    let (node, tenant) = (self.reaches[flight.node].name.clone(), self.config.tenant);
                    self.finish(sequence, Err(ClientError::WrongKey { node, tenant }));
                    continue;
                }
                if let Some(version) = self.reaches[flight.node].other_version {
                    let node = self.reaches[flight.node].name.clone();
                    let own = PACKET_VERSION;
                    self.finish(sequence, Err(ClientError::OtherVersion { node, version, own }));
                    continue;
                }
                // The error names the last node that is known to have the request: the first node may have forwarded it.
                let node = match flight.forwarded_to.take() {
                    Some((_, node)) => node,
                    None => self.reaches[flight.node].name.clone(),
                };
                let hint = if self.reaches.iter().any(|reach| reach.name == node && reach.has_no_lease) {
                    "it has a backup and cannot reach etcd, so it may not answer until etcd is there again"
                } else {
                    "see whether it runs and is reached from here"
                };
                self.finish(sequence, Err(ClientError::Silent { node, waited, attempts, hint }));
                continue;
            }
            if flight.request.kind == Kind::Map
                && flight.ticket.is_none()
                && flight.attempt >= INQUIRY_ATTEMPTS
            {
                // The node that was asked may be gone as well: the next question goes to another one.
                self.flights.remove(&sequence);
                continue;
            }
            flight.attempt += 1;
            self.counts.again += 1;
            if flight.asks_backup {
                self.reaches[flight.node].backup_silent = Some(now);
            }
            // The first node answers, and no answer comes from the node to which it forwarded the walk: a network address
            // translation may only let through answers of nodes to which the client has sent. Walks that write are answered
            // by the first node.
            if flight.attempt > CROSSINGS_LOST && flight.forwarded_to.is_some() && !flight.request.writes() {
                flight.crossing_lost = true;
            }
            let (address, silent, attempt) = (flight.address, flight.node, flight.attempt);
            let uploads = flight.request.kind == Kind::Register;
            let inquires = !matches!(flight.request.kind, Kind::Map | Kind::Register);
            // A backup knows when the node is elsewhere, so it is asked more often.
            let often = if self.reaches.iter().any(|reach| reach.is_backup) { 1 } else { 3 };
            if attempt.is_multiple_of(often) && inquires {
                // An allocation is about no address: the node is looked for by one that it had.
                let about =
                    if address == 0 && often == 1 { self.routes.first_of(silent) } else { Some(address) };
                if let Some(about) = about.filter(|about| *about != 0) {
                    self.inquire(about, silent)?;
                }
            }
            if uploads && attempt >= UPLOAD_ATTEMPTS {
                self.give_up(sequence)?;
            } else {
                self.transmit(sequence)?;
            }
        }
        Ok(())
    }

    /// Schedules the request to be sent again after a pause, as another attempt.
    pub(super) fn schedule_retry(&mut self, sequence: u64) {
        if let Some(flight) = self.flights.get_mut(&sequence) {
            flight.sent = Instant::now();
            flight.timeout = (BACKOFF_MIN * (1 << flight.attempt.min(8))).min(TIMEOUT_MAX);
        }
    }
}
