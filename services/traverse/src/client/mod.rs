// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client of memory nodes: sends requests and receives answers, whatever packets are lost, doubled or late.
//!
//! - **Flow** [`Client::submit`] ─▶ packet ─▶ … ─▶ [`Client::poll`]: answer ─▶ [`Client::take`]. [`Client::call`] does all of
//!   this; [`Client::call_many`] does it for many requests in flight, [`Shared::call`] as a future. If no answer comes in time,
//!   the packet is sent again as the next attempt. On `NeedProgram` the program is uploaded; on `Continue` the walk is sent on
//!   from the place where it stopped; on `Busy` it is sent later; on `WrongNode` it is sent to the owner
//! - **Order** each request takes effect once: nodes identify it by (client, session, sequence), and remember its outcome until
//!   `settled` says that its answer has arrived. A request that uses addresses found by an earlier request carries the nodes'
//!   clock of that one: nodes refuse it once the memory may have been reused
//! - **Owner** a client belongs to one thread, and to the process that connected: in a forked child each call ends with
//!   [`ClientError::Forked`]. [`Shared`] is a client behind a lock
//! - **Not here** the meaning of the bytes (`structures`), the choice of the fastest way (`choice`)
//!
//! The parts: `connect` finds the nodes, `route` their ranges; `send` and `answer` are the two halves of a request's life
//! (`flight`); `upload` sends programs, `wait` sleeps; `heap` provides what collections need, `local` runs walks at the client.

mod answer;
pub mod cache;
pub mod choice;
mod config;
mod connect;
mod error;
mod flight;
mod future;
mod heap;
mod local;
mod presence;
mod request;
mod ring;
mod route;
mod row;
mod send;
mod session;
#[cfg_attr(feature = "jit", expect(unsafe_code, reason = "calls compiled steps on bytes that it has"))]
mod stepper;
mod upload;
mod wait;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::task::Waker;
use std::time::{Duration, Instant};

pub use config::{Config, Reads, Routing};
pub use error::{ClientError, Result};
pub use flight::Ticket;
pub use future::{Call, Shared};
pub use local::LocalWalkStats;
pub use request::{Answer, Request};
pub use route::Link;

use memlift_ground::observe::{self, Work};
use memlift_ground::region::process_mark;
use memlift_spec::formats::trace;

use crate::map::Map;
use crate::node::WINDOW;
use crate::transport::{Peer, Transport};
use crate::wire::{Hash, PACKET_BODY_BYTES_MAX, PACKET_HEADER_BYTES, PACKET_MAC_BYTES, Stamp, other_version};
use flight::Flight;
pub use memlift_ground::on_wait::OnWait;
use route::{Reach, Routes};
use row::ClientRow;
use session::{Heard, Session};
use stepper::Steppers;
use wait::Wait;

/// Shortest timeout before a packet is sent again: longer than a node's thread is descheduled.
const TIMEOUT_MIN: Duration = Duration::from_millis(20);
const TIMEOUT_MAX: Duration = Duration::from_secs(1);
/// Shortest pause after `Busy`, and when an address has no owner at the moment.
const BACKOFF_MIN: Duration = Duration::from_micros(200);
/// Largest distance from the oldest sequence number in flight to the newest: less than nodes remember.
const SPREAD: u64 = WINDOW - 24;
/// Packets that are received at a time.
const BATCH: usize = 64;

/// Counters of a client since it connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent, including those sent again.
    pub sent: u64,
    /// Packets received, including stray ones.
    pub received: u64,
    /// Packets sent again because no answer came in time.
    pub again: u64,
    /// Walks that the client sent on from the place where they stopped.
    pub continued: u64,
    /// Uploads of programs that were begun.
    pub uploads: u64,
    /// Packets that answered no request of this client.
    pub stray: u64,
    /// Answers from copies of backups.
    pub from_backups: u64,
}

/// See the module's header.
#[derive(Debug)]
pub struct Client {
    links: Vec<Box<dyn Transport>>,
    reaches: Vec<Reach>,
    routes: Routes,
    config: Config,
    /// Mark of the process that connected ([`process_mark`]): sockets, rings and numbers belong to that process only.
    process: u64,
    session: Session,
    /// Random number that identifies this client as the sender of its packets, over all sessions.
    sender: u64,
    heard: Heard,
    nonce: u64,
    next_sequence: u64,
    next_ticket: u64,
    flights: BTreeMap<u64, Flight>,
    done: HashMap<Ticket, Result<Answer>>,
    wakers: HashMap<Ticket, Waker>,
    /// Uploads in progress, each with the number of its pieces that are not answered yet.
    uploads: HashMap<(usize, Hash), u32>,
    /// Programs that all nodes have accepted.
    uploaded: HashSet<Hash>,
    /// Sender numbers (one per start of a node) from which answers came.
    senders: HashSet<u64>,
    unsent: HashSet<usize>,
    /// Smoothed time of a round trip, and its smoothed deviation.
    round_trip_estimate: Option<(Duration, Duration)>,
    /// Time at which the client last found that answers of nodes to which a walk was forwarded do not reach it.
    crossing_lost: Option<Instant>,
    next_retransmit_at: Instant,
    /// Node that will be asked next for memory.
    next_node: usize,
    /// Node that was asked last for the owner of an address.
    next_inquiry: usize,
    /// Newest epoch of which the addresses of nodes are known.
    learned_epoch: u64,
    /// Epoch of the answer after which a node was last asked for its addresses.
    asked_epoch: u64,
    /// Bytes allocated from that node since its turn began.
    turn_bytes: u64,
    /// Greatest clock with which an answer came that is not from a backup: what was found then may be newer than a backup's copy.
    fresh: u32,
    counts: Counts,
    row: ClientRow,
    packet: Vec<u8>,
    /// Bytes of received packets, one after the other, and the end, link and sender of each packet.
    arrived: (Vec<u8>, Vec<(usize, usize, Peer)>),
    wait: Wait,
    steppers: Steppers,
}

impl Client {
    /// Uses this map for routing from now on, unless a newer one is known.
    pub fn use_map(&mut self, map: &Map) {
        route::take_map(&mut self.routes, &mut self.reaches, map);
    }

    /// Returns the number of known nodes; requests name a node by its index.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.reaches.len()
    }

    /// Returns the number of the memory (the cluster) to which an address belongs; 0 if it is not known. A handle stores it
    /// next to the address, for [`Client::check_memory`].
    pub fn memory_of(&mut self, address: u64) -> u64 {
        self.routes.owner(address).map_or(0, |node| self.reaches[node].cluster)
    }

    /// Checks that an address still belongs to this memory ([`Client::memory_of`]).
    ///
    /// # Errors
    /// [`ClientError::OtherMemory`]: the data at the address is gone, and the address may belong to other data.
    pub fn check_memory(&mut self, address: u64, memory: u64) -> Result<()> {
        let node = self.routes.owner(address).unwrap_or(0);
        let Some(reach) = self.reaches.get(node) else { return Ok(()) };
        if memory == 0 || reach.cluster == 0 || reach.cluster == memory {
            return Ok(());
        }
        Err(ClientError::OtherMemory { node: reach.name.clone(), had: memory, has: reach.cluster })
    }

    /// Returns the newest stamp of the node that has an address; the default if it is not known. A handle stores it next to the address,
    /// for [`Client::check_stamp`].
    pub fn stamp_of(&mut self, address: u64) -> Stamp {
        self.routes.owner(address).map_or(Stamp::default(), |node| self.reaches[node].stamp)
    }

    /// Checks that the node which has an address still knows what it had acknowledged ([`Client::stamp_of`]).
    ///
    /// # Errors
    /// [`ClientError::OlderLog`]: the address may belong to other data. [`ClientError::Silent`]: the node does not answer.
    pub fn check_stamp(&mut self, address: u64, stamp: Stamp) -> Result<()> {
        let node = self.route(address).unwrap_or(0);
        let known = self.reaches.get(node).map_or(Stamp::default(), |reach| reach.stamp);
        if stamp.run == 0 || (stamp.run == known.run && stamp.changes <= known.changes) {
            return Ok(());
        }
        // A read goes to the node wherever it is by then. Memory that is not readable is none of this check's business.
        match self.call(Request { stamp: Some(stamp), ..Request::read(address, 8) }) {
            Ok(_) | Err(ClientError::Forbidden { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the settings that the client was connected with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the newest epoch of the map that the client knows.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.routes.epoch
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the smoothed time of a round trip.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip_estimate.map(|(smooth, _)| smooth)
    }

    /// Returns the most bytes of one read or write.
    #[must_use]
    pub fn packet_bytes(&self) -> usize {
        let least = self.links.iter().map(|link| link.packet_bytes()).min().unwrap_or(0);
        least.saturating_sub(PACKET_HEADER_BYTES + PACKET_MAC_BYTES).min(PACKET_BODY_BYTES_MAX - 32)
    }

    /// Returns true if the answer of a ticket is outstanding, or has arrived and was not taken.
    #[must_use]
    pub fn is_under_way(&self, ticket: Ticket) -> bool {
        self.done.contains_key(&ticket) || self.flights.values().any(|flight| flight.ticket == Some(ticket))
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Returns true if another request can be sent without waiting for one to end.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let first = self.flights.first_key_value().map_or(u64::MAX, |(&first, _)| first);
        self.flights.len() < self.config.window && self.next_sequence.saturating_sub(first) < SPREAD
    }

    /// Sends a request. If [`Config::window`] requests are in flight, first waits for one to end.
    ///
    /// # Errors
    /// No node has the address; the transport failed; [`ClientError::Forked`].
    pub fn submit(&mut self, request: Request) -> Result<Ticket> {
        self.in_its_process()?;
        if request.writes() || request.kind.changes_memory() {
            if self.config.stale_ok {
                return Err(ClientError::StaleClient);
            }
            self.prepare_change()?;
        }
        while !self.has_room() {
            if self.poll()? == 0 {
                self.pause(TIMEOUT_MIN)?;
            }
        }
        let node = match request.node {
            // A backup has no memory; the node that it is of has.
            Some(node) if self.reaches.get(node).is_some_and(|reach| reach.is_backup) => self.node_in_turn(),
            Some(node) => node,
            None => self.route(request.address)?,
        };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.launch(Some(ticket), request, node)?;
        self.row.requested();
        Ok(ticket)
    }

    /// Receives packets and sends those that are due; returns the number received.
    ///
    /// # Errors
    /// The transport failed.
    pub fn poll(&mut self) -> Result<usize> {
        self.in_its_process()?;
        self.flush()?;
        let mut came = 0;
        // All packets are received before any is handled, because handling one may send over the same transport.
        let (mut bytes, mut ends) =
            (std::mem::take(&mut self.arrived.0), std::mem::take(&mut self.arrived.1));
        let mut others = Vec::new();
        for (link, transport) in self.links.iter_mut().enumerate() {
            came += transport.receive(BATCH, &mut |peer, packet| {
                if let Some(version) = other_version(packet) {
                    others.push((link, peer, version));
                    return;
                }
                bytes.extend_from_slice(packet);
                ends.push((bytes.len(), link, peer));
            })?;
        }
        let mut start = 0;
        let mut handled = Ok(());
        for &(end, link, peer) in &ends {
            handled = handled.and(self.packet(&bytes[start..end], link, peer));
            start = end;
        }
        bytes.clear();
        ends.clear();
        self.arrived = (bytes, ends);
        for (link, peer, version) in others {
            self.note_version_hint(link, peer, version);
        }
        handled?;
        self.counts.received += came as u64;
        let now = Instant::now();
        if now >= self.next_retransmit_at {
            self.next_retransmit_at = now + Duration::from_millis(1);
            self.retransmit_due(now)?;
            self.row.store(&self.counts);
        }
        self.flush()?;
        Ok(came)
    }

    /// Checks that this is the process that connected. Changes are lost if two processes send under one number, or take each
    /// other's answers from one socket.
    fn in_its_process(&self) -> Result<()> {
        if self.process == process_mark() { Ok(()) } else { Err(ClientError::Forked) }
    }

    fn flush(&mut self) -> Result<()> {
        for link in self.unsent.drain() {
            self.links[link].flush()?;
        }
        Ok(())
    }

    /// Gives up the answer to a request. A change that the request asks for is still made.
    pub fn abandon(&mut self, ticket: Ticket) {
        self.done.remove(&ticket);
        if let Some(flight) = self.flights.values_mut().find(|flight| flight.ticket == Some(ticket)) {
            flight.ticket = None;
        }
    }

    /// Takes the answer, once it has arrived.
    pub fn take(&mut self, ticket: Ticket) -> Option<Result<Answer>> {
        self.done.remove(&ticket)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn call(&mut self, request: Request) -> Result<Answer> {
        let began_ns = if request.is_walk() { observe::work_begins() } else { None };
        let ticket = self.submit(request)?;
        let answer = self.result(ticket);
        if let (Some(began_ns), Ok(answer)) = (began_ns, &answer) {
            tell(began_ns, [answer]);
        }
        answer
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// The reason that there was no answer.
    pub fn result(&mut self, ticket: Ticket) -> Result<Answer> {
        let waited = self.until_done(ticket);
        match self.take(ticket) {
            Some(answer) => answer,
            None => {
                self.abandon(ticket);
                Err(waited.err().unwrap_or(ClientError::Interrupted))
            }
        }
    }

    fn until_done(&mut self, ticket: Ticket) -> Result<()> {
        loop {
            let came = self.poll()?;
            if self.done.contains_key(&ticket) {
                return Ok(());
            }
            if came == 0 {
                if !self.is_under_way(ticket) {
                    return Err(ClientError::NotUnderWay(ticket.0));
                }
                self.pause(Duration::from_millis(1))?;
            }
        }
    }

    /// Sends all requests, [`Config::window`] at a time, and waits for all. Answers are in the order of the requests.
    pub fn call_many(&mut self, requests: impl IntoIterator<Item = Request>) -> Vec<Result<Answer>> {
        let (began_ns, mut walks) = (observe::work_begins(), true);
        let submit = |request: Request| {
            walks &= request.is_walk();
            self.submit(request)
        };
        let tickets: Vec<Result<Ticket>> = requests.into_iter().map(submit).collect();
        let answers: Vec<Result<Answer>> = tickets.into_iter().map(|ticket| self.result(ticket?)).collect();
        if let Some(began_ns) = began_ns.filter(|_| walks) {
            tell(began_ns, answers.iter().flatten());
        }
        answers
    }
}

/// Reports walks that were in flight together to `memlift record`.
#[cold]
fn tell<'a>(began_ns: u64, answers: impl IntoIterator<Item = &'a Answer>) {
    let (mut walks, mut steps, mut bytes) = (0, 0, 0);
    for answer in answers {
        walks += 1;
        steps += u64::from(answer.iterations);
        bytes += (answer.body.len() + answer.result.len()) as u64;
    }
    if walks > 0 {
        let work = Work { kind: trace::Kind::Walk, parameter: walks, read: 0, written: bytes, parts: steps };
        observe::work(began_ns, &work);
    }
}
