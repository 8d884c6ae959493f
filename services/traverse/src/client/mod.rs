// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client of memory nodes: requests out, answers in, whatever is lost, doubled or late on the way.
//!
//! Flow     [`Client::submit`] ─▶ packet ─▶ … ─▶ [`Client::poll`]: answer ─▶ [`Client::take`]; [`Client::call`] is all of it,
//!          [`Client::call_many`] the same with many under way, [`Shared::call`] as a future
//!          no answer in time: the same packet again, one attempt higher; `NeedProgram`: the program is uploaded; `Continue`: the
//!          walk is sent on from where it stopped; `Busy`: later; `WrongNode`: to whom it belongs
//! Order    each request takes effect once: nodes know it by (client, incarnation, sequence), and remember what it changed until
//!          `settled` says that its answer has come
//! Owner    a client is one thread's; [`Shared`] is a client behind a lock
//! Not here what the bytes mean (`structures`), which way is shortest (`choice`)

pub mod cache;
pub mod choice;
mod config;
mod error;
mod flight;
mod future;
mod heap;
mod local;
mod request;
mod route;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

pub use config::{Config, Routing};
pub use error::{ClientError, Result};
pub use flight::Ticket;
pub use future::{Call, Shared};
pub use local::Local;
pub use request::{Answer, Request};
pub use route::Link;

use crate::map::{Entry, Map};
use crate::node::{PIECE_BYTES, WINDOW, upload_of};
use crate::program::Program;
use crate::transport::shm::Shm;
use crate::transport::udp::Udp;
use crate::transport::{Peer, Transport};
use crate::wire::{
    FLAG_CONTINUED, FLAG_WRITES, Hash, Header, Kind, PACKET_BODY_BYTES_MAX, PACKET_HEADER_BYTES,
    PACKET_MAC_BYTES, Status, used,
};
use flight::{Flight, Whole};
use route::{Reach, Routes};

/// The least time after which a packet is sent again: longer than a node's thread is off its core.
const TIMEOUT_MIN: Duration = Duration::from_millis(20);
const TIMEOUT_MAX: Duration = Duration::from_secs(1);
/// After `Busy`, and when an address has no owner at the moment.
const BACKOFF_MIN: Duration = Duration::from_micros(200);
/// Requests between the oldest and the newest one: less than what nodes remember.
const SPREAD: u64 = WINDOW - 24;
/// Packets that are taken at a time.
const BATCH: usize = 64;

/// What a client has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets sent again because no answer came in time.
    pub again: u64,
    /// Walks sent on from where they stopped.
    pub continued: u64,
    /// Programs uploaded.
    pub uploads: u64,
    /// Packets that were no answer to anything.
    pub stray: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Client {
    links: Vec<Box<dyn Transport>>,
    reaches: Vec<Reach>,
    routes: Routes,
    config: Config,
    client: u64,
    nonce: u64,
    next_sequence: u64,
    next_ticket: u64,
    flights: BTreeMap<u64, Flight>,
    done: HashMap<Ticket, Result<Answer>>,
    wakers: HashMap<Ticket, Waker>,
    /// Uploads under way, and how many of their pieces are not answered yet.
    uploads: HashMap<(usize, Hash), u32>,
    /// Programs that all nodes have taken.
    uploaded: HashSet<Hash>,
    unsent: HashSet<usize>,
    /// Smoothed time of a round trip, and how much it varies.
    trip: Option<(Duration, Duration)>,
    next_look: Instant,
    /// Where memory is allocated next.
    next_node: usize,
    counts: Counts,
    packet: Vec<u8>,
    /// Packets that have come, one after the other, and where each ends.
    arrived: (Vec<u8>, Vec<usize>),
}

impl Client {
    /// A client of the nodes at the other ends of these links; asks each what it has.
    ///
    /// # Errors
    /// [`ClientError::Silent`] if one does not answer; what the transports say.
    pub fn connect(links: Vec<Link>, config: Config) -> Result<Client> {
        let mut reaches = Vec::new();
        let mut transports = Vec::new();
        for (index, link) in links.into_iter().enumerate() {
            transports.push(link.transport);
            reaches.extend(link.nodes.into_iter().map(|(name, peer)| Reach { name, link: index, peer }));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
        let mut client = Client {
            links: transports,
            reaches,
            routes: Routes::default(),
            client: config.client.unwrap_or(random),
            config,
            nonce: now.as_nanos() as u64,
            next_sequence: 1,
            next_ticket: 0,
            flights: BTreeMap::new(),
            done: HashMap::new(),
            wakers: HashMap::new(),
            uploads: HashMap::new(),
            uploaded: HashSet::new(),
            unsent: HashSet::new(),
            trip: None,
            next_look: Instant::now(),
            next_node: 0,
            counts: Counts::default(),
            packet: Vec::new(),
            arrived: (Vec::new(), Vec::new()),
        };
        for node in 0..client.reaches.len() {
            let answer = client.call(Request::map(node))?;
            client.routes.assign(answer.address, answer.address.saturating_add(answer.value), node);
        }
        Ok(client)
    }

    /// A client of nodes that listen at these sockets.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn udp(nodes: &[SocketAddr], config: Config) -> Result<Client> {
        let beyond = nodes.iter().any(|node| !node.ip().is_loopback());
        let any = match (beyond, nodes.first()) {
            (false, Some(SocketAddr::V6(_))) => "[::1]:0",
            (false, _) => "127.0.0.1:0",
            (true, Some(SocketAddr::V6(_))) => "[::]:0",
            (true, _) => "0.0.0.0:0",
        };
        let transport = Udp::bind(any.parse().expect("an address"), !config.keys.is_empty())?;
        let nodes = nodes.iter().map(|&node| (node.to_string(), Peer::Socket(node))).collect();
        Client::connect(vec![Link { transport: Box::new(transport), nodes }], config)
    }

    /// A client of nodes on this machine, by their rings' names.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn shm(nodes: &[&str], config: Config) -> Result<Client> {
        let link = |&name: &&str| -> Result<Link> {
            let transport = Shm::connect(name)?;
            Ok(Link { transport: Box::new(transport), nodes: vec![(name.to_owned(), Peer::Ring(0))] })
        };
        Client::connect(nodes.iter().map(link).collect::<Result<_>>()?, config)
    }

    /// Routes by this map from now on, unless a newer one is known.
    pub fn use_map(&mut self, map: &Map) {
        route::take_map(&mut self.routes, &mut self.reaches, map);
    }

    /// How many nodes are known; requests name them by their place.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.reaches.len()
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The map's epoch, as far as it was heard.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.routes.epoch
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The smoothed time of a round trip.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.trip.map(|(smooth, _)| smooth)
    }

    /// Most bytes of one read or write.
    #[must_use]
    pub fn packet_bytes(&self) -> usize {
        let least = self.links.iter().map(|link| link.packet_bytes()).min().unwrap_or(0);
        least.saturating_sub(PACKET_HEADER_BYTES + PACKET_MAC_BYTES).min(PACKET_BODY_BYTES_MAX - 32)
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Sends a request; with [`Config::window`] of them under way it first waits for one to end.
    ///
    /// # Errors
    /// Nobody has the address; the transport failed.
    pub fn submit(&mut self, request: Request) -> Result<Ticket> {
        let first = |client: &Client| client.flights.first_key_value().map_or(u64::MAX, |(&first, _)| first);
        while self.flights.len() >= self.config.window
            || self.next_sequence.saturating_sub(first(self)) >= SPREAD
        {
            if self.poll()? == 0 {
                self.wait(TIMEOUT_MIN)?;
            }
        }
        let node = match request.node {
            Some(node) => node,
            None => self.route(request.address)?,
        };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.launch(Some(ticket), request, node)?;
        Ok(ticket)
    }

    fn route(&mut self, address: u64) -> Result<usize> {
        let epoch = self.routes.epoch;
        match self.routes.owner(address) {
            Some(node) => Ok(node),
            // Somebody else's range: any node knows whose, if it has a map.
            None if self.reaches.len() > 1 || epoch > 0 => Ok(0),
            None => Err(ClientError::Nowhere { address, epoch }),
        }
    }

    fn launch(&mut self, ticket: Option<Ticket>, request: Request, node: usize) -> Result<()> {
        let flight = Flight::new(ticket, request, node, self.config.iterations, Instant::now());
        self.send_flight(flight)
    }

    /// Sends a flight under a new number.
    fn send_flight(&mut self, flight: Flight) -> Result<()> {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        // A walk that writes is begun once at its first node, which must hold its program by then.
        let first = flight.request.writes()
            && flight
                .request
                .program
                .as_ref()
                .is_some_and(|program| !self.uploaded.contains(&hash_of(program)));
        self.flights.insert(sequence, flight);
        if first { self.upload(sequence) } else { self.transmit(sequence) }
    }

    fn timeout(&self) -> Duration {
        let trip = self.trip.map_or(TIMEOUT_MIN * 5, |(smooth, vary)| smooth + vary * 4);
        trip.clamp(TIMEOUT_MIN, TIMEOUT_MAX)
    }

    fn transmit(&mut self, sequence: u64) -> Result<()> {
        let settled = self.flights.first_key_value().map_or(sequence, |(&first, _)| first);
        let timeout = self.timeout();
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        flight.sent = Instant::now();
        flight.timeout = (timeout * (1 << flight.attempt.min(6))).min(TIMEOUT_MAX);
        let request = &flight.request;
        let mut flags = 0;
        if request.writes() {
            flags |= FLAG_WRITES;
        }
        if flight.continued {
            flags |= FLAG_CONTINUED;
        }
        let hops = if self.config.routing == Routing::Bounce { 0 } else { self.config.hops };
        let program = request.program.as_ref();
        let header = Header {
            flags,
            hops,
            scratch_bytes: program.map_or(0, |program| program.scratch_bytes() as u16),
            client: self.client,
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
            sender: self.client,
            nonce: self.nonce,
            ..Header::new(request.kind)
        };
        self.nonce += 1;
        let body = if program.is_some() { used(&flight.body) } else { &flight.body[..] };
        let reach = &self.reaches[flight.node];
        self.packet.clear();
        self.config.keys.seal(&header, body, &mut self.packet);
        let (link, peer) = (reach.link, reach.peer);
        let transport = &mut self.links[link];
        let most = transport.packet_bytes();
        if self.packet.len() > most {
            self.flights.remove(&sequence);
            return Err(ClientError::TooLong { what: "a packet", bytes: self.packet.len(), most });
        }
        // False: lost, as any packet may be.
        let _ = transport.send(peer, &self.packet)?;
        self.unsent.insert(link);
        self.counts.sent += 1;
        Ok(())
    }

    /// Takes what has come and sends what is due; returns how many packets came.
    ///
    /// # Errors
    /// The transport failed.
    pub fn poll(&mut self) -> Result<usize> {
        self.flush()?;
        let mut came = 0;
        // Taken first and looked at then: what follows from a packet may be sent over the same transport.
        let (mut bytes, mut ends) =
            (std::mem::take(&mut self.arrived.0), std::mem::take(&mut self.arrived.1));
        for transport in self.links.iter_mut() {
            came += transport.receive(BATCH, &mut |_, packet| {
                bytes.extend_from_slice(packet);
                ends.push(bytes.len());
            })?;
        }
        let mut start = 0;
        let mut handled = Ok(());
        for &end in &ends {
            handled = handled.and(self.packet(&bytes[start..end]));
            start = end;
        }
        bytes.clear();
        ends.clear();
        self.arrived = (bytes, ends);
        handled?;
        self.counts.received += came as u64;
        let now = Instant::now();
        if now >= self.next_look {
            self.next_look = now + Duration::from_millis(1);
            self.look(now)?;
        }
        self.flush()?;
        Ok(came)
    }

    fn flush(&mut self) -> Result<()> {
        for link in self.unsent.drain() {
            self.links[link].flush()?;
        }
        Ok(())
    }

    /// Sleeps until something may have come, at most so long.
    ///
    /// # Errors
    /// The transport failed.
    pub fn wait(&mut self, at_most: Duration) -> Result<()> {
        self.flush()?;
        let many = self.links.len() > 1;
        let at_most = if many { at_most.min(Duration::from_micros(100)) } else { at_most };
        for transport in &mut self.links {
            transport.wait(at_most)?;
        }
        Ok(())
    }

    /// Sends again what was not answered in time.
    fn look(&mut self, now: Instant) -> Result<()> {
        let late: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, flight)| {
                !flight.parked && now.duration_since(flight.sent) >= flight.timeout
                    || now.duration_since(flight.started) >= self.config.deadline
            })
            .map(|(&sequence, _)| sequence)
            .collect();
        for sequence in late {
            let Some(flight) = self.flights.get_mut(&sequence) else { continue };
            let waited = now.duration_since(flight.started);
            if waited >= self.config.deadline {
                let (node, attempts) = (self.reaches[flight.node].name.clone(), flight.attempt + 1);
                self.finish(sequence, Err(ClientError::Silent { node, waited, attempts }));
                continue;
            }
            flight.attempt += 1;
            self.counts.again += 1;
            // A node that was started anew may have no program to begin with.
            if flight.request.writes() && flight.attempt.is_multiple_of(4) {
                self.upload(sequence)?;
            } else {
                self.transmit(sequence)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, sequence: u64, answer: Result<Answer>) {
        let Some(flight) = self.flights.remove(&sequence) else { return };
        let Some(ticket) = flight.ticket else { return };
        self.done.insert(ticket, answer);
        if let Some(waker) = self.wakers.remove(&ticket) {
            waker.wake();
        }
    }

    fn packet(&mut self, bytes: &[u8]) -> Result<()> {
        let Ok(packet) = self.config.keys.open(bytes) else {
            self.counts.stray += 1;
            return Ok(());
        };
        let header = packet.header;
        let mine = header.client == self.client
            && header.incarnation == self.config.incarnation
            && header.tenant == self.config.tenant
            && matches!(header.kind, Kind::Answer | Kind::Chunk);
        let flight = if mine { self.flights.get_mut(&header.sequence) } else { None };
        let Some(flight) = flight else {
            self.counts.stray += 1;
            return Ok(());
        };
        let now = Instant::now();
        let Some(whole) = flight.take(header, packet.body, now) else { return Ok(()) };
        if whole.timed && flight.visits == 1 && !flight.parked {
            let took = now.duration_since(flight.sent);
            // RFC 6298's smoothing.
            self.trip = Some(match self.trip {
                None => (took, took / 2),
                Some((smooth, vary)) => (smooth * 7 / 8 + took / 8, vary * 3 / 4 + smooth.abs_diff(took) / 4),
            });
        }
        self.answered(header.sequence, whole)
    }

    /// A request is answered: it is over, or the client can do something about it.
    fn answered(&mut self, sequence: u64, whole: Whole) -> Result<()> {
        let Whole { header, body, emitted, .. } = whole;
        // An epoch is believed where packets are authenticated, or where everybody is: a wrong one costs a refresh.
        self.routes.epoch = self.routes.epoch.max(header.epoch);
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        if flight.request.kind == Kind::Register {
            return self.registered(sequence, header.status, &body);
        }
        let is_walk = flight.request.kind == Kind::Walk;
        let program = flight.request.name();
        match header.status {
            Status::Done | Status::Missing | Status::Applied | Status::Differs => {
                let mut result = std::mem::take(&mut flight.result);
                result.extend_from_slice(&emitted);
                let answer = Answer {
                    status: header.status,
                    address: header.address,
                    value: header.value,
                    body,
                    result,
                    iterations: self.config.iterations.saturating_sub(header.iterations),
                    visits: flight.visits,
                };
                self.finish(sequence, Ok(answer));
            }
            Status::Continue => return self.go_on(sequence, &header, body, &emitted),
            Status::Hops if self.config.routing == Routing::Bounce => {
                return self.go_on(sequence, &header, body, &emitted);
            }
            Status::WrongNode => {
                let entry = Entry::decode(&body).ok();
                let heard = entry
                    .as_ref()
                    .is_some_and(|entry| route::take_entry(&mut self.routes, &mut self.reaches, entry));
                let was = flight.node;
                let owner = self.routes.owner(header.address);
                if is_walk && (heard || owner.is_some_and(|owner| owner != was)) {
                    // The walk goes on where it was, unless the entry took its scratchpad's place: then that was empty.
                    let body = if entry.is_some() { Vec::new() } else { body };
                    return self.go_on(sequence, &header, body, &emitted);
                }
                let epoch = self.routes.epoch;
                let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
                flight.restarts += 1;
                if flight.restarts > 8 {
                    let error = match entry.and_then(|entry| entry.node) {
                        Some(node) => ClientError::Unreachable { node: node.name, address: header.address },
                        None => ClientError::Nowhere { address: header.address, epoch },
                    };
                    self.finish(sequence, Err(error));
                    return Ok(());
                }
                flight.node = owner.unwrap_or(was);
                self.later(sequence);
            }
            Status::Busy => self.later(sequence),
            Status::Retry => {
                flight.restart();
                let restarts = flight.restarts;
                if restarts > self.config.restarts {
                    self.finish(sequence, Err(ClientError::Contended { what: "a walk", times: restarts }));
                } else if let Some(flight) = self.flights.remove(&sequence) {
                    return self.send_flight(flight);
                }
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
                let bytes = flight.request.value;
                self.finish(sequence, Err(ClientError::Full { bytes }));
            }
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

    /// Sends the same again in a moment, as another attempt.
    fn later(&mut self, sequence: u64) {
        if let Some(flight) = self.flights.get_mut(&sequence) {
            flight.sent = Instant::now();
            flight.timeout = (BACKOFF_MIN * (1 << flight.attempt.min(8))).min(TIMEOUT_MAX);
        }
    }

    /// A walk goes on from where it stopped, as a new request.
    fn go_on(&mut self, sequence: u64, header: &Header, body: Vec<u8>, emitted: &[u8]) -> Result<()> {
        let Some(mut flight) = self.flights.remove(&sequence) else { return Ok(()) };
        flight.result.extend_from_slice(emitted);
        flight.address = header.address;
        flight.body = body;
        flight.continued = true;
        flight.iterations = header.iterations;
        flight.visits += 1;
        flight.node = self.routes.owner(header.address).unwrap_or(flight.node);
        flight.anew();
        self.counts.continued += 1;
        self.send_flight(flight)
    }

    /// Uploads a request's program to all nodes, and lets the request wait for that.
    fn upload(&mut self, sequence: u64) -> Result<()> {
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        let Some(program) = flight.request.program.clone() else { return Ok(()) };
        flight.restarts += 1;
        if flight.restarts > self.config.restarts.min(16) {
            let reason = "it was uploaded, and is not there: a node behind is not this client's".to_owned();
            let error = ClientError::Refused { program: program.name().to_owned(), reason };
            self.finish(sequence, Err(error));
            return Ok(());
        }
        flight.parked = true;
        let hash = hash_of(&program);
        if self.uploads.keys().any(|(_, uploading)| *uploading == hash) {
            return Ok(());
        }
        self.counts.uploads += 1;
        let upload = upload_of(&program);
        let pieces = upload.len().div_ceil(PIECE_BYTES) as u32;
        for node in 0..self.reaches.len() {
            self.uploads.insert((node, hash), pieces);
            for (piece, bytes) in upload.chunks(PIECE_BYTES).enumerate() {
                let request = Request {
                    body: bytes.to_vec(),
                    node: Some(node),
                    piece: (piece as u32, pieces),
                    hash: Some(hash),
                    ..Request::new(Kind::Register, 0, upload.len() as u64)
                };
                self.launch(None, request, node)?;
            }
        }
        Ok(())
    }

    fn registered(&mut self, sequence: u64, status: Status, body: &[u8]) -> Result<()> {
        let Some(flight) = self.flights.get(&sequence) else { return Ok(()) };
        let Some(hash) = flight.request.hash else { return Ok(()) };
        let node = flight.node;
        if status == Status::Busy {
            self.later(sequence);
            return Ok(());
        }
        self.finish(sequence, Err(ClientError::Busy(Duration::ZERO)));
        let waiting = |client: &Client| -> Vec<u64> {
            let same = |flight: &Flight| {
                flight.parked
                    && flight.request.program.as_ref().is_some_and(|program| hash_of(program) == hash)
            };
            client.flights.iter().filter(|(_, flight)| same(flight)).map(|(&sequence, _)| sequence).collect()
        };
        if status != Status::Done {
            self.uploads.retain(|(_, uploading), _| *uploading != hash);
            for sequence in waiting(self) {
                let program = self.flights[&sequence].request.name();
                let reason = String::from_utf8_lossy(body).into_owned();
                self.finish(sequence, Err(ClientError::Refused { program, reason }));
            }
            return Ok(());
        }
        if let Some(left) = self.uploads.get_mut(&(node, hash)) {
            *left -= 1;
            if *left == 0 {
                self.uploads.remove(&(node, hash));
            }
        }
        if !self.uploads.keys().any(|(_, uploading)| *uploading == hash) {
            self.uploaded.insert(hash);
            for sequence in waiting(self) {
                if let Some(flight) = self.flights.get_mut(&sequence) {
                    flight.parked = false;
                    flight.attempt += 1;
                }
                self.transmit(sequence)?;
            }
        }
        Ok(())
    }

    /// Nobody will ask for this answer.
    fn abandon(&mut self, ticket: Ticket) {
        self.done.remove(&ticket);
        if let Some(flight) = self.flights.values_mut().find(|flight| flight.ticket == Some(ticket)) {
            flight.ticket = None;
        }
    }

    /// The answer, once it is there.
    pub fn take(&mut self, ticket: Ticket) -> Option<Result<Answer>> {
        self.done.remove(&ticket)
    }

    /// Asks and waits.
    ///
    /// # Errors
    /// Why there was no answer.
    pub fn call(&mut self, request: Request) -> Result<Answer> {
        let ticket = self.submit(request)?;
        loop {
            let came = self.poll()?;
            if let Some(answer) = self.take(ticket) {
                return answer;
            }
            if came == 0 {
                self.wait(Duration::from_millis(1))?;
            }
        }
    }

    /// Asks all of them, [`Config::window`] at a time, and waits for all. Answers are in the order of the requests.
    pub fn call_many(&mut self, requests: impl IntoIterator<Item = Request>) -> Vec<Result<Answer>> {
        let tickets: Vec<Result<Ticket>> = requests.into_iter().map(|request| self.submit(request)).collect();
        let mut answers = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            answers.push(ticket.and_then(|ticket| {
                loop {
                    if let Some(answer) = self.take(ticket) {
                        return answer;
                    }
                    if self.poll()? == 0 && !self.done.contains_key(&ticket) {
                        self.wait(Duration::from_millis(1))?;
                    }
                }
            }));
        }
        answers
    }
}

fn hash_of(program: &Arc<Program>) -> Hash {
    program.hash()[..size_of::<Hash>()].try_into().expect("a hash is longer")
}
