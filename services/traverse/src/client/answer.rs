// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handles packets that arrive: an answer ends its request, or tells the client the next step of the request.
//!
//! - **Flow** packet ─▶ its flight joins the pieces ─▶ `answered`: the request is over, continues from the walk's state, is
//!   sent again, or waits
//! - **Order** packets that answer no request of this client are counted and dropped: they may be late or forged
//! - **Not here** sending (`send`), programs that a node lacks (`upload`)

use std::time::{Duration, Instant};

use memlift_spec::formats::packet::MAP_BACKUP;

use super::flight::{Flight, Whole};
use super::route::Reach;
use super::{Answer, Client, ClientError, Result, route};
use crate::map::{Entry, MapError, State};
use crate::transport::Peer;
use crate::wire::{FLAG_CONTINUED, FLAG_STALE, Header, Kind, Packet, Status};

/// Most senders (starts of nodes) that are remembered.
const SENDERS_MAX: usize = 4096;

/// Notes the stamp of an answer to a flight, which came from this link and peer.
fn note_stamp(reaches: &mut [Reach], flight: &Flight, header: &Header, from: (usize, Peer)) {
    let stamp = header.reply.stamp();
    if stamp.run == 0 {
        return;
    }
    let of_run = |reach: &Reach| reach.stamp.run == stamp.run;
    let asked = Some(flight.node).filter(|node| of_run(&reaches[*node]));
    if let Some(node) = asked.or_else(|| reaches.iter().position(of_run)) {
        let known = &mut reaches[node].stamp.changes;
        *known = stamp.changes.max(*known);
        return;
    }
    // Another start of the node. It has compared with its log what this client knew when it sent the request.
    let reach = &mut reaches[flight.node];
    let is_compared = flight.request.stamp.is_none()
        && flight.request.kind != Kind::Register
        && flight.attempt == header.attempt
        && flight.stamp == reach.stamp
        && header.status != Status::Foreign;
    if is_compared && (reach.link, reach.peer) == from {
        reach.stamp = stamp;
    }
}

impl Client {
    pub(super) fn finish(&mut self, sequence: u64, answer: Result<Answer>) {
        let Some(flight) = self.flights.remove(&sequence) else { return };
        let Some(ticket) = flight.ticket else { return };
        self.done.insert(ticket, answer);
        if let Some(waker) = self.wakers.remove(&ticket) {
            waker.wake();
        }
    }

    /// Handles a packet that no key authenticates, in which a node reports that our key is wrong. It ends no request; the
    /// hint is added to the error at the deadline.
    fn note_wrong_key_hint(&mut self, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let header = packet.header;
        let flight = self.flights.get(&header.sequence).filter(|flight| {
            header.status == Status::WrongKey
                && header.kind == Kind::Answer
                && header.incarnation == self.config.incarnation
                && flight.session.client == header.client
        });
        if let Some(flight) = flight {
            self.reaches[flight.node].key_refused = true;
        }
    }

    /// Notes that a node has sent a packet of another version. No key authenticates that: it ends no request, and the hint is added to
    /// the error at the deadline.
    pub(super) fn note_version_hint(&mut self, link: usize, peer: Peer, version: u8) {
        self.counts.stray += 1;
        for reach in self.reaches.iter_mut().filter(|reach| reach.link == link && reach.peer == peer) {
            reach.other_version = Some(version);
        }
    }

    pub(super) fn packet(&mut self, bytes: &[u8], link: usize, peer: Peer) -> Result<()> {
        let Ok(packet) = self.config.keys.open(bytes) else {
            self.counts.stray += 1;
            self.note_wrong_key_hint(bytes);
            return Ok(());
        };
        let header = packet.header;
        let mine = header.incarnation == self.config.incarnation
            && header.tenant == self.config.tenant
            && matches!(header.kind, Kind::Answer | Kind::Chunk);
        let flight = if mine { self.flights.get_mut(&header.sequence) } else { None };
        let Some(flight) = flight.filter(|flight| flight.session.client == header.client) else {
            self.counts.stray += 1;
            return Ok(());
        };
        if header.kind == Kind::Answer && header.status == Status::WrongKey {
            // A client without keys accepts every packet; for it too, this one is only a hint.
            self.reaches[flight.node].key_refused = true;
            return Ok(());
        }
        self.heard.hear(header.session);
        let from_backup = header.has(FLAG_STALE);
        let has_no_lease = header.kind == Kind::Answer && header.status == Status::NoLease;
        if from_backup {
            self.reaches[flight.node].backup_silent = None;
            self.counts.from_backups += u64::from(header.kind == Kind::Answer);
        } else {
            note_stamp(&mut self.reaches, flight, &header, (link, peer));
            self.reaches[flight.node].has_no_lease = has_no_lease;
            if matches!(flight.request.kind, Kind::Walk | Kind::Read | Kind::Apply) {
                self.fresh = self.fresh.max(header.clock);
            }
        }
        if has_no_lease {
            // The request is sent again like one that has no answer.
            return Ok(());
        }
        if !from_backup
            && matches!(flight.request.kind, Kind::Map | Kind::Allocate | Kind::Write | Kind::Read)
        {
            // Only the node that was asked answers these requests, so that node is alive.
            let reach = &mut self.reaches[flight.node];
            reach.heard = Some(Instant::now());
            reach.silent = None;
        }
        if header.kind == Kind::Answer && header.status == Status::SentOn {
            let node = Entry::decode(packet.body).ok().and_then(|entry| entry.node);
            let further = flight.forwarded_to.as_ref().is_none_or(|(hops, _)| header.hops <= *hops);
            if let Some(node) = node.filter(|_| further && header.attempt <= flight.attempt) {
                flight.forwarded_to = Some((header.hops, node.name));
            }
            return Ok(());
        }
        if !self.senders.contains(&header.sender) {
            // A node that was never heard before, or has been restarted: it may lack programs that others have.
            if self.senders.len() >= SENDERS_MAX {
                self.senders.clear();
            }
            self.senders.insert(header.sender);
            self.uploaded.clear();
        }
        let now = Instant::now();
        let Some(whole) = flight.take(header, packet.body, now) else { return Ok(()) };
        if whole.timed && flight.visits == 1 && !flight.waits_for_upload {
            let took = now.duration_since(flight.sent);
            // Smoothed round-trip time and its variation, as in RFC 6298.
            self.round_trip_estimate = Some(match self.round_trip_estimate {
                None => (took, took / 2),
                Some((smooth, vary)) => (smooth * 7 / 8 + took / 8, vary * 3 / 4 + smooth.abs_diff(took) / 4),
            });
        }
        self.answered(header.sequence, whole)
    }

    /// Handles a complete answer: the request ends, or the client takes its next step.
    pub(super) fn answered(&mut self, sequence: u64, whole: Whole) -> Result<()> {
        let Whole { header, body, emitted, .. } = whole;
        // With keys the epoch is authentic. Without keys it is trusted: a wrong one only costs a refresh.
        self.routes.epoch = self.routes.epoch.max(header.epoch);
        if self.learned_epoch == 0 {
            self.learned_epoch = header.epoch;
        }
        if header.epoch > self.learned_epoch
            && let Some(flight) = self.flights.get(&sequence)
            && flight.request.kind != Kind::Map
        {
            // The node may have another backup since, and only the map says where that is.
            let node = flight.node;
            if let Some(address) = self.routes.first_of(node)
                && self.ask_owner(address, node)?
            {
                self.asked_epoch = header.epoch;
            }
        }
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        if flight.request.kind == Kind::Register {
            return self.registered(sequence, header.status, &body);
        }
        if flight.request.kind == Kind::Map && flight.ticket.is_none() {
            let from = flight.node;
            self.flights.remove(&sequence);
            self.learned_epoch = self.learned_epoch.max(header.epoch).max(self.asked_epoch);
            self.learned(&body, (header.iterations != MAP_BACKUP).then_some(from));
            return Ok(());
        }
        if header.has(FLAG_STALE) {
            let goes_on = header.status == Status::WrongNode
                && header.has(FLAG_CONTINUED)
                && self.routes.owner(header.address).is_some_and(|owner| owner != flight.node);
            match header.status {
                Status::WrongNode if goes_on => return self.continue_walk(sequence, &header, body, &emitted),
                Status::Done | Status::Missing | Status::Continue | Status::Iterations => {}
                // The node itself has everything, such as a program that was not registered before.
                _ => return self.ask_node(sequence),
            }
        } else {
            // From here on the walk knows more than a copy may have.
            flight.stale_ok = false;
        }
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        let program = flight.request.name();
        match header.status {
            Status::Done | Status::Missing | Status::Applied | Status::Differs => {
                if flight.crossing_lost && flight.visits > 1 {
                    // The nodes reach this client but not each other: other walks need not try to be forwarded first.
                    self.crossing_lost = Some(Instant::now());
                }
                let mut result = std::mem::take(&mut flight.result);
                if result.is_empty() {
                    result = emitted;
                } else {
                    result.extend_from_slice(&emitted);
                }
                let answer = Answer {
                    status: header.status,
                    address: header.address,
                    value: header.value,
                    body,
                    result,
                    iterations: self.config.iterations.saturating_sub(header.iterations),
                    visits: flight.visits,
                    since: header.clock,
                    cluster: header.cluster,
                };
                self.finish(sequence, Ok(answer));
            }
            Status::Continue => return self.continue_walk(sequence, &header, body, &emitted),
            Status::Hops if flight.bounces || flight.request.is_library_walk() => {
                let was = flight.node;
                if flight.bounces && self.routes.owner(header.address) == Some(was) {
                    // The node has bounced the address: it does not own it any more.
                    self.ask_owner(header.address, was)?;
                }
                return self.continue_walk(sequence, &header, body, &emitted);
            }
            Status::Iterations if flight.request.is_library_walk() => {
                let header = Header { iterations: self.config.iterations, ..header };
                return self.continue_walk(sequence, &header, body, &emitted);
            }
            Status::WrongNode => return self.wrong_node(sequence, &header, body, &emitted),
            Status::Busy => self.schedule_retry(sequence),
            Status::Retry => {
                flight.restart();
                let restarts = flight.restarts;
                if restarts > self.config.restarts {
                    self.finish(sequence, Err(ClientError::Contended { what: "a walk", times: restarts }));
                } else if let Some(flight) = self.flights.remove(&sequence) {
                    return self.send_flight(flight);
                }
            }
            Status::Outdated if flight.request.is_walk() && flight.request.since == 0 => {
                // Another node's clock may be far ahead of that of a copy.
                flight.stale_ok = false;
                flight.restart();
                if flight.restarts > self.config.restarts {
                    self.finish(sequence, Err(ClientError::Outdated));
                } else if let Some(flight) = self.flights.remove(&sequence) {
                    return self.send_flight(flight);
                }
            }
            Status::Outdated => self.finish(sequence, Err(ClientError::Outdated)),
            Status::Expired if flight.changes() => {
                let node = self.reaches[flight.node].name.clone();
                return self.session_over(sequence, ClientError::SessionOver { node }, header.value);
            }
            Status::Taken => {
                let client = flight.session.client;
                let error = ClientError::Taken { client };
                if self.config.client.is_none() {
                    return self.session_over(sequence, error, 0);
                }
                self.finish(sequence, Err(error));
            }
            Status::Foreign => {
                let reach = &self.reaches[flight.node];
                let (node, had, has) = (reach.name.clone(), reach.cluster, header.cluster);
                let error = if had == 0 || had == has {
                    ClientError::OlderLog { node }
                } else {
                    ClientError::OtherMemory { node, had, has }
                };
                self.finish(sequence, Err(error));
            }
            Status::NeedProgram => return self.upload(sequence),
            Status::Hops => {
                self.finish(sequence, Err(ClientError::Hops { program, hops: self.config.hops }));
            }
            Status::Iterations => {
                let iterations = self.config.iterations;
                self.finish(sequence, Err(ClientError::Budget { program, iterations }));
            }
            Status::Forbidden => {
                let error = ClientError::Forbidden { address: header.address, tenant: self.config.tenant };
                self.finish(sequence, Err(error));
            }
            Status::Full => {
                let (bytes, wait) = (flight.request.value, Duration::from_millis(header.value));
                let full = ClientError::Full { bytes };
                self.finish(
                    sequence,
                    Err(if wait.is_zero() { full } else { ClientError::Resting { bytes, wait } }),
                );
            }
            Status::LogFull => self.finish(sequence, Err(ClientError::ReadOnly)),
            Status::Fault(verdict) => {
                let address = header.address;
                self.finish(sequence, Err(ClientError::Fault { program, address, verdict }));
            }
            status => {
                let reason = String::from_utf8_lossy(&body).into_owned();
                self.finish(sequence, Err(ClientError::Rejected { status, reason }));
            }
        }
        Ok(())
    }

    /// Sends a read that a backup could not answer to the node itself, from its start.
    fn ask_node(&mut self, sequence: u64) -> Result<()> {
        let Some(mut flight) = self.flights.remove(&sequence) else { return Ok(()) };
        flight.stale_ok = false;
        flight.restart();
        flight.node = self.routes.owner(flight.address).unwrap_or(flight.node);
        self.send_flight(flight)
    }

    /// Handles a node's answer about the owner of an address: unanswered requests about its range go to the owner, or end. `from` is
    /// the place that has answered, unless a backup has.
    fn learned(&mut self, body: &[u8], from: Option<usize>) {
        let Ok(entry) = Entry::decode(body) else { return };
        let up = entry.node.as_ref().is_some_and(|node| node.state == State::Up);
        let known = up && route::take_entry(&mut self.routes, &mut self.reaches, &entry);
        if let (true, Some(from), Some(node)) = (known, from, &entry.node)
            && let Some(owner) = self.routes.owner(entry.range.base)
        {
            // It may be the owner itself: then its address that is known is silent, and this one answers.
            let peer = self.reaches[from].peer;
            route::reach_at(&mut self.reaches, owner, node, peer);
        }
        let about: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.attempt > 0 && entry.range.contains(flight.address))
            .filter(|(_, flight)| {
                !matches!(flight.request.kind, Kind::Map | Kind::Register | Kind::Allocate | Kind::Place)
            })
            .map(|(&sequence, _)| sequence)
            .collect();
        for sequence in about {
            let Some(flight) = self.flights.get_mut(&sequence) else { continue };
            let address = flight.address;
            let changes = flight.request.writes() || flight.request.kind.changes_memory();
            match &entry.node {
                None => {
                    let lost = MapError::Lost { address, since: entry.range.since };
                    self.finish(sequence, Err(lost.into()));
                }
                Some(node) if !up && !changes && !node.has_backup() => {
                    let down = MapError::Down { address, node: node.name.clone(), epoch: entry.epoch };
                    self.finish(sequence, Err(down.into()));
                }
                Some(node) if !up => flight.forwarded_to = Some((0, node.name.clone())),
                // A walk that writes is always sent to the node where it began.
                Some(_) if known && !flight.request.writes() => {
                    flight.node = self.routes.owner(address).unwrap_or(flight.node);
                }
                Some(_) => {}
            }
        }
    }

    /// Handles `WrongNode`: the asked node does not have the address, and the map's entry in the answer decides the next
    /// step.
    fn wrong_node(
        &mut self,
        sequence: u64,
        header: &Header,
        mut body: Vec<u8>,
        emitted: &[u8],
    ) -> Result<()> {
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        let (was, address) = (flight.node, header.address);
        let changes = flight.request.writes() || flight.request.kind.changes_memory();
        let state = body.split_off(usize::try_from(header.value).unwrap_or(0).min(body.len()));
        let entry = Entry::decode(&body).ok();
        match entry.as_ref().map(|entry| (&entry.node, entry)) {
            Some((None, entry)) => {
                let lost = MapError::Lost { address, since: entry.range.since };
                self.finish(sequence, Err(lost.into()));
                return Ok(());
            }
            Some((Some(node), entry)) if node.state == State::Down => {
                flight.forwarded_to = Some((0, node.name.clone()));
                // The change may have been made already. The client repeats the request until its deadline; the node may be
                // back by then.
                if changes || node.has_backup() {
                    self.schedule_retry(sequence);
                } else {
                    let down = MapError::Down { address, node: node.name.clone(), epoch: entry.epoch };
                    self.finish(sequence, Err(down.into()));
                }
                return Ok(());
            }
            _ => {}
        }
        let heard =
            entry.as_ref().is_some_and(|entry| route::take_entry(&mut self.routes, &mut self.reaches, entry));
        let owner = self.routes.owner(address);
        let elsewhere = owner.filter(|owner| *owner != was);
        let is_walk = flight.request.kind == Kind::Walk;
        // A walk that writes is settled at its first node, which is asked again and forwards it to the right node.
        if is_walk && !changes && (heard || elsewhere.is_some()) {
            if header.has(FLAG_CONTINUED) {
                return self.continue_walk(sequence, header, state, emitted);
            }
            flight.restart();
            let Some(mut flight) = self.flights.remove(&sequence) else { return Ok(()) };
            flight.node = self.routes.owner(flight.address).unwrap_or(was);
            return self.send_flight(flight);
        }
        let epoch = self.routes.epoch;
        flight.restarts += 1;
        if flight.restarts > 8 && elsewhere.is_none() {
            let error = match entry.and_then(|entry| entry.node) {
                Some(node) => ClientError::Unreachable { node: node.name, address },
                None => ClientError::Nowhere { address, epoch },
            };
            self.finish(sequence, Err(error));
            return Ok(());
        }
        if !is_walk {
            flight.node = owner.unwrap_or(was);
        }
        self.schedule_retry(sequence);
        Ok(())
    }

    /// Continues a walk from the place where it stopped, as a new request.
    pub(super) fn continue_walk(
        &mut self,
        sequence: u64,
        header: &Header,
        body: Vec<u8>,
        emitted: &[u8],
    ) -> Result<()> {
        let Some(mut flight) = self.flights.remove(&sequence) else { return Ok(()) };
        flight.result.extend_from_slice(emitted);
        flight.address = header.address;
        flight.body = body;
        flight.continued = true;
        flight.since = header.clock;
        flight.iterations = header.iterations;
        flight.visits += 1;
        // If no known node has the address, it may belong to a node that has not answered yet.
        let owner = self.routes.owner(header.address).or_else(|| self.unheard());
        flight.node = owner.unwrap_or(flight.node);
        flight.anew();
        self.counts.continued += 1;
        self.send_flight(flight)
    }
}
