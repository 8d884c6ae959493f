// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shard: one thread that receives packets, runs walks, and answers.
//!
//! - **Flow** [`Shard::turn`]: news of the map ─▶ packets, as many as there is room for ─▶ rounds over the lanes; a walk that
//!   stops continues, ends, or leaves for another node ─▶ log ─▶ all answers of the turn leave together
//! - **Order** a hop inside the lane's region takes no lock, allocates nothing and looks nothing up. The slow path checks the
//!   whole window once against the tenant's ranges and makes the range found the lane's region
//! - **Owner** the shard's thread; state shared with other shards is in `Core`
//! - **Not here** requests other than walks, and the ends of walks that change memory (`control`)

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::clock::Clock;
use super::lane::{Lane, Waiting};
use super::outbox::{Held, Outbox};
use super::registry::Runner;
use super::route::Router;
use super::stats::{Counter, Tally};
use super::{Core, MoverPeer, NodeError, locked};
use crate::memory::Ranges;
use crate::program::Program;
use crate::slot::{RUN, Region};
use crate::structures::shipped;
use crate::transport::{Peer, Transport};
use memlift_spec::formats::packet::{KIND_ANSWER, PACKET_HEADER_BYTES, PACKET_MAC_BYTES, at};

use crate::wire::{
    FLAG_FORWARDED, FLAG_RELAY, FLAG_SINCE, FLAG_STALE, FLAG_WRITES, Hash, Header, Kind, PACKET_BYTES_MAX,
    Packet, PacketError, Status, TENANT_NODES,
};

/// Rounds of one turn.
const ROUNDS: usize = 8;
/// Steps that a lone walk runs before the shard checks its verdict; also the number of such checks between two polls of the
/// transport.
const ALONE_STEPS: usize = 256;
/// Turns for which a packet may wait in the socket for a free slot before other packets are served.
const PASSES: u32 = 8;
/// Least number of packets that a turn may receive, even if the lane of the last program has fewer free slots.
const AT_LEAST: usize = 8;
/// Requests that may wait per slot of a lane.
const WAITING_PER_SLOT: usize = 4;
/// Most packets of one turn.
const BATCH: usize = 64;
/// Bytes of a chunk if the transport's packets are shorter than `PACKET_BYTES_MAX`; then its bytes if they are not.
const CHUNK_BYTES: (usize, usize) = (1024, 4096);
/// Most programs in use on one shard.
const LANES_MAX: usize = 1024;
/// Longest sleep of a shard; after it the shard checks whether it must stop.
const SLEEP: Duration = Duration::from_millis(50);
/// Longest sleep of a shard while packets wait for the backup, whose answer ends it.
const SLEEP_HELD: Duration = Duration::from_micros(200);
/// Longest sleep of a shard while other shards may have packets for it.
const SLEEP_BESIDE: Duration = Duration::from_millis(1);

/// See the module's header.
#[derive(Debug)]
pub struct Shard {
    pub(super) core: Arc<Core>,
    pub(super) number: usize,
    inbox: Receiver<(Peer, Vec<u8>)>,
    pub(super) transport: Option<Box<dyn Transport>>,
    pub(super) router: Box<dyn Router>,
    pub(super) ranges: Arc<Ranges>,
    generation: u64,
    pub(super) lanes: Vec<Lane>,
    by_program: HashMap<(u32, Hash), usize>,
    last: (u32, Hash, usize),
    deferred_turns: u32,
    pub(super) outbox: Outbox,
    pub(super) held: Held,
    /// True if this turn has changed something, so that the log must be written before answers leave.
    pub(super) changed: bool,
    /// The clock by which requests are judged.
    pub(super) clock: Arc<Clock>,
    /// Flag of each answer: [`FLAG_STALE`] if the shard reads a backup's copy, else 0.
    pub(super) mark: u16,
    pub(super) local: Option<std::net::SocketAddr>,
    pub(super) packet_bytes: usize,
    pub(super) chunk_bytes: usize,
    pub(super) tally: Arc<Tally>,
}

impl Shard {
    pub(super) fn new(
        core: Arc<Core>,
        number: usize,
        inbox: Receiver<(Peer, Vec<u8>)>,
        transport: Box<dyn Transport>,
        router: Box<dyn Router>,
    ) -> Shard {
        Shard {
            number,
            inbox,
            local: transport.local(),
            packet_bytes: transport.packet_bytes(),
            chunk_bytes: if transport.packet_bytes() < PACKET_BYTES_MAX {
                CHUNK_BYTES.0
            } else {
                CHUNK_BYTES.1
            },
            transport: Some(transport),
            router,
            ranges: core.memory.ranges(),
            generation: 0,
            lanes: Vec::new(),
            by_program: HashMap::new(),
            last: (0, [0; 16], usize::MAX),
            deferred_turns: 0,
            outbox: Outbox::default(),
            held: Held::default(),
            changed: false,
            clock: core.clock.clone(),
            mark: 0,
            tally: core.stats.tally(),
            core,
        }
    }

    /// Makes a shard that answers reads from a backup's copy, of which `clock` says the age.
    pub(super) fn of_copy(
        core: Arc<Core>,
        transport: Box<dyn Transport>,
        router: Box<dyn Router>,
        clock: Arc<Clock>,
    ) -> Shard {
        // Nobody passes packets to it.
        let (_, inbox) = std::sync::mpsc::channel();
        Shard { clock, mark: FLAG_STALE, ..Shard::new(core, usize::MAX, inbox, transport, router) }
    }

    fn is_of_copy(&self) -> bool {
        self.mark & FLAG_STALE != 0
    }

    /// Serves until `stop` is true.
    ///
    /// # Errors
    ///
    /// The transport or the log failed. Changes that were answered before are kept.
    pub fn serve(&mut self, stop: &AtomicBool) -> Result<(), NodeError> {
        while !stop.load(Ordering::Relaxed) {
            if !self.turn()? {
                let beside = locked(&self.core.inboxes).len() > 1 && self.router.has_peers();
                let pause = if beside { SLEEP_BESIDE } else { SLEEP };
                match (self.held.first(), self.core.gate.get().cloned()) {
                    // The backup's answer is nearer than the next packet, and lets a client go on.
                    (Some((position, message)), Some(gate)) => {
                        self.router.sleeps(true);
                        gate.sleep(position, message, SLEEP_HELD);
                        self.router.sleeps(false);
                        self.forget_regions();
                    }
                    _ => self.wait(pause)?,
                }
            }
        }
        Ok(())
    }

    /// Sleeps until a packet arrives or `at_most` is over.
    ///
    /// # Errors
    ///
    /// The transport failed.
    pub fn wait(&mut self, at_most: Duration) -> Result<(), NodeError> {
        self.router.sleeps(true);
        let waited = self.transport.as_mut().map_or(Ok(()), |transport| transport.wait(at_most));
        self.router.sleeps(false);
        self.forget_regions();
        Ok(waited?)
    }

    /// Receives packets, runs some rounds of walks, and answers; returns true if there was anything to do.
    ///
    /// # Errors
    ///
    /// The transport or the log failed.
    pub fn turn(&mut self) -> Result<bool, NodeError> {
        if !self.is_of_copy() {
            self.clock.tick();
        }
        self.core.show();
        let mut news = self.router.refresh();
        let generation = self.core.memory.generation();
        if generation != self.generation {
            self.generation = generation;
            self.ranges = self.core.memory.ranges();
            news = true;
        }
        if news {
            self.retranslate_walks();
        }
        let mut busy = self.receive()?;
        let running: usize = self.lanes.iter().map(|lane| lane.running).sum();
        if running > 0 {
            busy = true;
            if running == 1 {
                self.walk(ALONE_STEPS, |lane| lane.run_alone(ALONE_STEPS));
            } else {
                self.walk(ROUNDS, Lane::round);
            }
        }
        if self.changed || self.core.log_full.load(Ordering::Relaxed) {
            let is_written = locked(&self.core.writer).commit()?;
            self.core.log_full.store(!is_written, Ordering::Relaxed);
            if self.changed && !is_written {
                // Answers to changes that are not in the log must not leave. The turn's other answers are dropped with them;
                // their clients repeat their requests.
                self.outbox.clear();
            }
            self.changed = false;
        }
        self.leave()?;
        Ok(busy)
    }

    /// Returns the address at which other nodes reach this shard.
    pub(super) fn home(&self) -> Option<std::net::SocketAddr> {
        // The map's address comes first: the socket's own one may be valid on this machine only (mapped ports, containers).
        self.router.home().or(self.local).or_else(|| self.core.gateway.get().map(|&(_, local)| local))
    }

    fn forget_regions(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.region = Region::NONE);
    }

    /// Translates the address of each running walk again, because places found before the map's news may be invalid.
    fn retranslate_walks(&mut self) {
        self.forget_regions();
        for index in 0..self.lanes.len() {
            if self.lanes[index].running == 0 {
                continue;
            }
            for slot in 0..self.lanes[index].slots.len() {
                if self.lanes[index].slots[slot].state == RUN {
                    let cur = self.lanes[index].slots[slot].cur;
                    self.go(index, slot, cur);
                }
            }
            self.admit(index);
        }
    }

    /// Moves waiting requests into free slots.
    pub(super) fn admit(&mut self, index: usize) {
        while self.lanes[index].free_slots() > 0
            && let Some(next) = self.lanes[index].waiting.pop_front()
        {
            self.enter(index, &next.header, next.peer, &next.body);
        }
    }

    fn receive(&mut self) -> Result<bool, NodeError> {
        let waiting: usize = self.lanes.iter().map(|lane| lane.waiting.len()).sum();
        let mut room = (self.core.workspaces() * WAITING_PER_SLOT).saturating_sub(waiting).min(BATCH);
        if let Some(lane) = self.lanes.get(self.last.2) {
            // The next request is most likely for the same program: without a free slot for it, it is left in the socket for
            // now.
            self.deferred_turns = if lane.free_slots() > 0 || self.deferred_turns == PASSES {
                0
            } else {
                self.deferred_turns + 1
            };
            room = if self.deferred_turns > 0 { 0 } else { room.min(lane.free_slots().max(AT_LEAST)) };
        }
        let Some(mut transport) = self.transport.take() else { return Ok(false) };
        let got = if room > 0 {
            transport.receive(room, &mut |peer, bytes| self.packet(peer, bytes))
        } else {
            Ok(0)
        };
        self.transport = Some(transport);
        let got = got?;
        if got > 0 {
            self.tally.add(Counter::Received, got as u64);
        }
        let mut relayed = false;
        while let Ok((peer, packet)) = self.inbox.try_recv() {
            self.outbox.relay(peer, &packet);
            relayed = true;
        }
        Ok(got > 0 || relayed)
    }

    fn packet(&mut self, peer: Peer, bytes: &[u8]) {
        let packet = match self.core.keys.open(bytes) {
            Ok(packet) => packet,
            Err(PacketError::Forged(_)) => return self.report_wrong_mac(peer, bytes),
            Err(PacketError::Version(_)) => return self.report_version(peer, bytes),
            Err(_) => return self.tally.add(Counter::Malformed, 1),
        };
        let header = &packet.header;
        if !self.core.keys.is_empty()
            && !locked(&self.core.senders).first(header.tenant, header.sender, header.nonce)
        {
            return self.tally.add(Counter::Replayed, 1);
        }
        let nodes_only = header.has(FLAG_FORWARDED | FLAG_RELAY) || !header.kind.is_request();
        if nodes_only && !self.is_from_node(peer, header) {
            return self.tally.add(Counter::Foreign, 1);
        }
        if self.is_of_copy() && !is_stale_read(header) {
            return;
        }
        let Some(header) = self.admitted(peer, header) else { return };
        let packet = Packet { header, ..packet };
        let header = &packet.header;
        match (header.kind, peer) {
            (Kind::Walk, _) => self.start(peer, header, packet.body),
            (Kind::Migrate, Peer::Socket(from)) if header.tenant == TENANT_NODES => {
                let from = MoverPeer { number: header.value, socket: from };
                let told = self.core.mover.get().map(|mover| mover.try_send((from, packet.body.to_vec())));
                // A dropped message is repeated by its sender.
                self.tally.add(Counter::Lost, u64::from(!matches!(told, Some(Ok(())))));
            }
            _ => self.control(peer, &packet),
        }
    }

    /// Returns true for a packet of another node. Proof is the nodes' key; without such a key, a source address that the map
    /// has; without any keys, the cluster's number, because packets behind mapped ports or addresses come from other
    /// sources.
    fn is_from_node(&self, peer: Peer, header: &Header) -> bool {
        let Peer::Socket(socket) = peer else { return false };
        let own = self.core.cluster.load(Ordering::Relaxed);
        self.core.keys.proves_node(header)
            || (self.core.keys.is_empty() && own != 0 && header.cluster == own)
            || self.router.is_node(socket)
    }

    /// Counts a packet with a wrong MAC and, if it is a request, tells its sender, whose key may be wrong. The answer is no
    /// longer than the request and goes back to its source only, so it cannot amplify an attack.
    fn report_wrong_mac(&mut self, peer: Peer, bytes: &[u8]) {
        self.tally.add(Counter::Forged, 1);
        let Ok(Packet { header, .. }) = Packet::parse(bytes) else { return };
        if header.kind.is_request()
            && !header.has(FLAG_FORWARDED | FLAG_RELAY)
            && bytes.len() >= PACKET_HEADER_BYTES + PACKET_MAC_BYTES
        {
            let answer = Header { scratch_bytes: 0, pieces: 0, ..header.answer(Status::WrongKey) };
            self.post(peer, answer, &[]);
        }
    }

    /// Counts a packet of another version and, if it may be a request, tells its sender this node's version. Magic, version and
    /// kind have the same places in all versions, and answers are never answered, so two nodes do not go on telling each other.
    fn report_version(&mut self, peer: Peer, bytes: &[u8]) {
        self.tally.add(Counter::Malformed, 1);
        // Not longer than what came, so that it cannot amplify an attack.
        let mac = if self.core.keys.is_empty() { 0 } else { PACKET_MAC_BYTES };
        if bytes.len() >= PACKET_HEADER_BYTES + mac && bytes[at::KIND] != KIND_ANSWER {
            let answer = Header { sequence: 1, ..Header::new(Kind::Answer).answer(Status::BadRequest) };
            self.post(peer, answer, &[]);
        }
    }

    /// Checks a packet's clock. Returns the header with the clock by which its request is judged; `None`: it was refused.
    fn admitted(&mut self, peer: Peer, header: &Header) -> Option<Header> {
        if self.is_of_copy() {
            return self.admitted_to_copy(peer, header);
        }
        let clock = &self.clock;
        // An answer carries the clock of the node that gave it, which is not less than the clock of the changes it reports.
        let answers = matches!(header.kind, Kind::Answer | Kind::Chunk);
        let seen = if answers { u32::try_from(header.session).unwrap_or(u32::MAX) } else { header.clock };
        let possible = clock.merge(seen);
        let now = clock.now();
        if answers {
            return Some(*header);
        }
        if !possible {
            self.refuse(header, peer, Status::BadRequest, "its clock is more than a day ahead of the node's");
            return None;
        }
        let between_nodes = header.has(FLAG_FORWARDED) || !header.kind.is_request();
        let own = self.core.cluster.load(Ordering::Relaxed);
        if !between_nodes
            && !matches!(header.kind, Kind::Map | Kind::Register | Kind::End)
            && header.cluster != 0
            && header.cluster != own
        {
            self.refuse(header, peer, Status::Foreign, "");
            return None;
        }
        if !between_nodes
            && !matches!(header.kind, Kind::Register | Kind::End)
            && !self.core.history.covers(header.reply.stamp())
        {
            self.refuse(header, peer, Status::Foreign, "");
            return None;
        }
        // Session numbers contain the clock. Once a session from the future is forgotten, all others would count as older
        // and be refused.
        if header.session >> 32 > u64::from(now) {
            self.refuse(header, peer, Status::Expired, "");
            return None;
        }
        let since = if header.has(FLAG_SINCE) || between_nodes { header.clock } else { now };
        Some(Header { clock: since, ..*header })
    }

    /// Checks a read of a backup's copy. The copy's clock is that of its newest record: a packet does not raise it.
    fn admitted_to_copy(&mut self, peer: Peer, header: &Header) -> Option<Header> {
        if header.cluster != 0 && header.cluster != self.core.cluster.load(Ordering::Relaxed) {
            self.refuse(header, peer, Status::Foreign, "");
            return None;
        }
        let since = if header.has(FLAG_SINCE) { header.clock } else { self.clock.now() };
        Some(Header { clock: since, ..*header })
    }

    /// Starts a walk that has arrived, or queues it for a slot.
    fn start(&mut self, peer: Peer, header: &Header, body: &[u8]) {
        // Before any check of the request: an earlier attempt may have had a result, and `ended` needs the request to be
        // begun.
        if header.has(FLAG_WRITES) && !header.has(FLAG_FORWARDED) && !self.begin(peer, &visited(header)) {
            return;
        }
        let key = (header.tenant, header.program);
        let index = if (self.last.0, self.last.1) == key && self.last.2 != usize::MAX {
            self.last.2
        } else {
            let Some(index) = self.lane(key) else {
                return self.ended(
                    visited(header),
                    peer,
                    Status::NeedProgram,
                    header.address,
                    None,
                    Vec::new(),
                );
            };
            self.last = (key.0, key.1, index);
            index
        };
        let program = self.lanes[index].runner.program();
        let reason = if usize::from(header.scratch_bytes) != program.scratch_bytes() {
            Some("the packet's scratchpad is not as long as the program's")
        } else if program.uses_apply() && !header.has(FLAG_WRITES) {
            Some("the program changes memory: set the flag for it")
        } else {
            None
        };
        if let Some(reason) = reason {
            let reason = reason.as_bytes().to_vec();
            return self.ended(visited(header), peer, Status::BadRequest, header.address, None, reason);
        }
        if header.iterations == 0 {
            return self.ended(
                visited(header),
                peer,
                Status::Iterations,
                header.address,
                None,
                body.to_vec(),
            );
        }
        let lane = &mut self.lanes[index];
        if lane.free_slots() > 0 {
            self.enter(index, header, peer, body);
        } else if lane.waiting.len() < self.core.workspaces() * WAITING_PER_SLOT + BATCH {
            lane.waiting.push_back(Waiting { header: *header, peer, body: body.to_vec() });
        } else {
            self.tally.add(Counter::Busy, 1);
            self.ended(visited(header), peer, Status::Busy, header.address, None, body.to_vec());
        }
    }

    /// Returns the number of the lane of a program, which the registry holds; makes a lane if there is none.
    fn lane(&mut self, key: (u32, Hash)) -> Option<usize> {
        if let Some(&index) = self.by_program.get(&key) {
            return Some(index);
        }
        let runner = self.runner(key)?;
        if self.lanes.len() >= LANES_MAX {
            // All unused lanes are dropped, so the others get new numbers.
            self.lanes.retain(|lane| lane.running > 0 || !lane.waiting.is_empty());
            let number = |(index, lane): (usize, &Lane)| ((lane.tenant, lane.runner.hash()), index);
            self.by_program = self.lanes.iter().enumerate().map(number).collect();
            self.last.2 = usize::MAX;
        }
        self.lanes.push(Lane::new(key.0, runner, self.core.workspaces()));
        self.by_program.insert(key, self.lanes.len() - 1);
        Some(self.lanes.len() - 1)
    }

    fn runner(&self, key: (u32, Hash)) -> Option<Arc<Runner>> {
        let registry = &self.core.registry;
        let found = registry.read().unwrap_or_else(PoisonError::into_inner).get(key.0, &key.1);
        if found.is_some() || !self.is_of_copy() {
            return found;
        }
        // Nobody registers programs at a copy, but those of the collections are known.
        let program = shipped::library(&key.1)?.program();
        registry.write().unwrap_or_else(PoisonError::into_inner).insert(key.0, Program::clone(&program)).ok()
    }

    /// Puts a walk into a free slot, and starts it.
    fn enter(&mut self, index: usize, header: &Header, peer: Peer, body: &[u8]) {
        let step_budget = header.iterations.min(self.core.iterations_per_visit);
        let Some(slot) = self.lanes[index].take(header, peer, body, step_budget) else { return };
        self.lanes[index].slots[slot].hops_left = step_budget;
        self.go(index, slot, header.address);
    }
}

/// Returns a request's header for its end: `pieces` counts the chunks that earlier visits have sent.
fn visited(header: &Header) -> Header {
    Header { pieces: header.piece, ..*header }
}

/// Returns true for a request that a backup may answer from its copy.
pub(super) fn is_stale_read(header: &Header) -> bool {
    header.has(FLAG_STALE) && !header.has(FLAG_WRITES) && matches!(header.kind, Kind::Walk | Kind::Read)
}
