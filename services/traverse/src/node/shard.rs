// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shard: one thread that takes packets, walks, and answers.
//!
//! Flow     [`Shard::turn`]: news of the map ─▶ packets, as many as there is room for ─▶ rounds over the lanes; what stopped goes
//!          on, ends, or leaves for another node ─▶ log ─▶ answers leave together
//! Order    a hop takes no lock, allocates nothing and looks nothing up, as long as it stays in the lane's region; the slow path
//!          checks the whole window once against the tenant's ranges and makes them the lane's region
//! Owner    all of it; what shards share is behind `Core`
//! Not here requests that are no walks, and walks that change memory once they have ended (`control`)

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::lane::{Context, Lane, Waiting};
use super::route::{Owner, Router};
use super::stats::Counter;
use super::{Core, NodeError, locked};
use crate::memory::Ranges;
use crate::slot::{RUN, Region, STOPPED};
use crate::step::Verdict;
use crate::transport::{Peer, Transport};
use crate::wire::{
    ApplyOperands, FLAG_CONTINUED, FLAG_FORWARDED, FLAG_RELAY, FLAG_WRITES, Hash, Header, Kind,
    PACKET_BYTES_MAX, PACKET_HEADER_BYTES, PACKET_MAC_BYTES, PacketError, Reply, Status, TENANT_NODES, used,
};

/// Rounds of one turn.
const ROUNDS: usize = 8;
/// Steps of a walk that is alone between two looks at what it stopped for, and as many such looks between two at the transport.
const STRAIGHT: usize = 256;
/// Requests that wait for each slot of a lane.
const WAITING_PER_SLOT: usize = 4;
/// Packets of one turn at most.
const BATCH: usize = 64;
/// Times that a walk starts again by itself before its client is told.
const RESTARTS_MAX: u32 = 64;
/// Bytes of a chunk: where packets travel in frames, and where whole ones of ours do.
const CHUNK_BYTES: (usize, usize) = (1024, 4096);
/// Bytes emitted on one visit: more than a client's ring or socket holds would be lost.
const VISIT_BYTES: usize = 64 << 10;
/// Programs in use on one shard.
const LANES_MAX: usize = 1024;
/// How long a shard sleeps at most; after that it looks whether it shall stop.
const SLEEP: Duration = Duration::from_millis(50);
/// The same while other shards may have packets for it.
const SLEEP_BESIDE: Duration = Duration::from_millis(1);

/// Packets that leave at the end of the turn.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    packets: Vec<(Peer, usize)>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Shard {
    pub(super) core: Arc<Core>,
    pub(super) number: usize,
    inbox: Receiver<(Peer, Vec<u8>)>,
    transport: Option<Box<dyn Transport>>,
    pub(super) router: Box<dyn Router>,
    ranges: Arc<Ranges>,
    generation: u64,
    lanes: Vec<Lane>,
    by_program: HashMap<(u32, Hash), usize>,
    last: (u32, Hash, usize),
    outbox: Outbox,
    /// Something was changed on this turn: the log has to be written before answers leave.
    pub(super) changed: bool,
    pub(super) local: Option<std::net::SocketAddr>,
    pub(super) packet_bytes: usize,
    chunk_bytes: usize,
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
            outbox: Outbox::default(),
            changed: false,
            core,
        }
    }

    /// Serves until `stop`.
    ///
    /// # Errors
    ///
    /// The transport or the log failed: what this shard has answered stays true.
    pub fn serve(&mut self, stop: &AtomicBool) -> Result<(), NodeError> {
        while !stop.load(Ordering::Relaxed) {
            if !self.turn()? {
                let beside = locked(&self.core.inboxes).len() > 1 && self.router.has_peers();
                self.wait(if beside { SLEEP_BESIDE } else { SLEEP })?;
            }
        }
        Ok(())
    }

    /// Sleeps until a packet has come, or the time is over.
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

    /// Takes what has come, walks a little, answers; whether there was anything to do.
    ///
    /// # Errors
    ///
    /// The transport or the log failed.
    pub fn turn(&mut self) -> Result<bool, NodeError> {
        let mut news = self.router.refresh();
        let generation = self.core.memory.generation();
        if generation != self.generation {
            self.generation = generation;
            self.ranges = self.core.memory.ranges();
            news = true;
        }
        if news {
            self.look_again();
        }
        let mut busy = self.receive()?;
        let running: usize = self.lanes.iter().map(|lane| lane.running).sum();
        if running > 0 {
            busy = true;
            if running == 1 {
                self.walk(STRAIGHT, |lane| lane.straight(STRAIGHT));
            } else {
                self.walk(ROUNDS, Lane::round);
            }
        }
        if self.changed {
            self.changed = false;
            locked(&self.core.writer).commit()?;
        }
        self.leave()?;
        Ok(busy)
    }

    /// Where other nodes reach this one.
    pub(super) fn home(&self) -> Option<std::net::SocketAddr> {
        self.local.or_else(|| self.core.gateway.get().map(|&(_, local)| local))
    }

    fn forget_regions(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.region = Region::NONE);
    }

    /// What was found where, before the news, counts no more: also for walks that are due.
    fn look_again(&mut self) {
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

    /// Requests that wait get the slots that are free.
    fn admit(&mut self, index: usize) {
        while self.lanes[index].has_room()
            && let Some(next) = self.lanes[index].waiting.pop_front()
        {
            self.enter(index, next.header, next.peer, &next.body);
        }
    }

    fn receive(&mut self) -> Result<bool, NodeError> {
        let waiting: usize = self.lanes.iter().map(|lane| lane.waiting.len()).sum();
        let room = (self.core.workspaces() * WAITING_PER_SLOT).saturating_sub(waiting).min(BATCH);
        let Some(mut transport) = self.transport.take() else { return Ok(false) };
        let got = if room > 0 {
            transport.receive(room, &mut |peer, bytes| self.packet(peer, bytes))
        } else {
            Ok(0)
        };
        self.transport = Some(transport);
        let got = got?;
        if got > 0 {
            self.core.stats.add(Counter::Received, got as u64);
        }
        let mut relayed = false;
        while let Ok((peer, packet)) = self.inbox.try_recv() {
            self.outbox.bytes.extend_from_slice(&packet);
            self.outbox.packets.push((peer, self.outbox.bytes.len()));
            relayed = true;
        }
        Ok(got > 0 || relayed)
    }

    fn leave(&mut self) -> Result<(), NodeError> {
        if self.outbox.packets.is_empty() {
            return Ok(());
        }
        let Some(transport) = &mut self.transport else { return Ok(()) };
        let (mut start, mut sent, mut lost) = (0, 0, 0);
        for (peer, end) in self.outbox.packets.drain(..) {
            let packet = &self.outbox.bytes[start..end];
            let gone = match (peer, self.core.gateway.get()) {
                (Peer::Socket(_), Some(&(gateway, _))) if self.local.is_none() => {
                    let inboxes = locked(&self.core.inboxes);
                    inboxes.get(gateway).is_some_and(|inbox| inbox.send((peer, packet.to_vec())).is_ok())
                }
                _ => transport.send(peer, packet)?,
            };
            lost += u64::from(!gone);
            start = end;
            sent += 1;
        }
        self.outbox.bytes.clear();
        self.core.stats.add(Counter::Sent, sent);
        self.core.stats.add(Counter::Lost, lost);
        Ok(transport.flush()?)
    }

    fn packet(&mut self, peer: Peer, bytes: &[u8]) {
        let packet = match self.core.keys.open(bytes) {
            Ok(packet) => packet,
            Err(PacketError::Forged(_)) => return self.core.stats.add(Counter::Forged, 1),
            Err(_) => return self.core.stats.add(Counter::Malformed, 1),
        };
        let header = &packet.header;
        if !self.core.keys.is_empty()
            && !locked(&self.core.senders).first(header.tenant, header.sender, header.nonce)
        {
            return self.core.stats.add(Counter::Replayed, 1);
        }
        let nodes_only = header.has(FLAG_FORWARDED | FLAG_RELAY) || !header.kind.is_request();
        if nodes_only && !matches!(peer, Peer::Socket(socket) if self.router.is_node(socket)) {
            return self.core.stats.add(Counter::Foreign, 1);
        }
        match (header.kind, peer) {
            (Kind::Walk, _) => self.start(peer, *header, packet.body),
            (Kind::Migrate, Peer::Socket(from)) if header.tenant == TENANT_NODES => {
                let told = self.core.mover.get().map(|mover| mover.try_send((from, packet.body.to_vec())));
                // Whoever said it says it again.
                self.core.stats.add(Counter::Lost, u64::from(!matches!(told, Some(Ok(())))));
            }
            _ => self.control(peer, &packet),
        }
    }

    /// A walk has come.
    fn start(&mut self, peer: Peer, mut header: Header, body: &[u8]) {
        // Chunks that earlier visits have sent.
        header.pieces = header.piece;
        // Before anything is found wrong with it: an earlier attempt may have come to something, and `ended` answers what was begun.
        if header.has(FLAG_WRITES) && !header.has(FLAG_FORWARDED) && !self.begin(peer, &header) {
            return;
        }
        let key = (header.tenant, header.program);
        let index = if (self.last.0, self.last.1) == key && self.last.2 != usize::MAX {
            self.last.2
        } else {
            let Some(index) = self.lane(key) else {
                return self.ended(header, peer, Status::NeedProgram, header.address, None, Vec::new());
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
            return self.ended(header, peer, Status::BadRequest, header.address, None, reason);
        }
        if header.iterations == 0 {
            return self.ended(header, peer, Status::Iterations, header.address, None, body.to_vec());
        }
        let lane = &mut self.lanes[index];
        if lane.has_room() {
            self.enter(index, header, peer, body);
        } else if lane.waiting.len() < self.core.workspaces() * WAITING_PER_SLOT + BATCH {
            lane.waiting.push_back(Waiting { header, peer, body: body.to_vec() });
        } else {
            self.core.stats.add(Counter::Busy, 1);
            self.ended(header, peer, Status::Busy, header.address, None, body.to_vec());
        }
    }

    /// The lane of a program that the registry holds.
    fn lane(&mut self, key: (u32, Hash)) -> Option<usize> {
        if let Some(&index) = self.by_program.get(&key) {
            return Some(index);
        }
        let runner = self.core.registry.read().unwrap_or_else(PoisonError::into_inner).get(key.0, &key.1)?;
        if self.lanes.len() >= LANES_MAX {
            // All are dropped that are not in use, so the numbers of the others change.
            self.lanes.retain(|lane| lane.running > 0 || !lane.waiting.is_empty());
            let number = |(index, lane): (usize, &Lane)| ((lane.tenant, lane.runner.hash()), index);
            self.by_program = self.lanes.iter().enumerate().map(number).collect();
            self.last.2 = usize::MAX;
        }
        self.lanes.push(Lane::new(key.0, runner, self.core.workspaces()));
        self.by_program.insert(key, self.lanes.len() - 1);
        Some(self.lanes.len() - 1)
    }

    /// A walk gets its slot.
    fn enter(&mut self, index: usize, header: Header, peer: Peer, body: &[u8]) {
        let given = header.iterations.min(self.core.iterations_per_visit);
        let Some(slot) = self.lanes[index].take(&header, peer, body, given) else { return };
        self.lanes[index].slots[slot].hops_left = given;
        self.go(index, slot, header.address);
    }

    /// A walk goes on at an address, here or elsewhere.
    fn go(&mut self, index: usize, slot: usize, cur: u64) {
        let lane = &mut self.lanes[index];
        if lane.slots[slot].hops_left == 0 {
            lane.slots[slot].cur = cur;
            let left = lane.contexts[slot].header.iterations - lane.contexts[slot].given;
            let status = if left == 0 { Status::Iterations } else { Status::Continue };
            return self.end(index, slot, status, None);
        }
        let offset = cur.wrapping_sub(lane.region.base);
        let host = if offset < lane.region.bytes {
            lane.region.host.wrapping_add(offset as usize)
        } else {
            match self.find(index, slot, cur) {
                Some(host) => host,
                None => return,
            }
        };
        let lane = &mut self.lanes[index];
        let hops = lane.slots[slot].hops_left;
        lane.slots[slot].start(cur, host, hops);
        lane.prefetch(slot);
    }

    /// Where a window is mapped. `None`: not here; the walk has ended or left.
    fn find(&mut self, index: usize, slot: usize, cur: u64) -> Option<*const u8> {
        let Lane { tenant, first, window, contexts, slots, .. } = &mut self.lanes[index];
        slots[slot].cur = cur;
        let (tenant, first, window) = (*tenant, *first, *window);
        let owner = self.router.owner(contexts[slot].header.epoch, cur, false);
        let (base, bytes) = match owner {
            Owner::Local { base, bytes } => (base, bytes),
            Owner::Peer(to) => {
                self.forward(index, slot, to);
                return None;
            }
            Owner::Later => {
                self.end(index, slot, Status::Busy, None);
                return None;
            }
            Owner::Unknown => {
                self.end(index, slot, Status::WrongNode, None);
                return None;
            }
            Owner::Denied => {
                self.end(index, slot, Status::Forbidden, None);
                return None;
            }
        };
        // The whole window and `cur` itself, as `Region::new` counts them.
        let from = cur.wrapping_add_signed(i64::from(first.min(0)));
        let after = i64::from(first) + i64::from(window);
        let whole = (cur.wrapping_add_signed(after.max(1))).wrapping_sub(from);
        let Some(range) = self.ranges.find(tenant, from, whole) else {
            let status = if self.core.memory.holds(cur) { Status::Forbidden } else { Status::WrongNode };
            self.end(index, slot, status, None);
            return None;
        };
        if self.router.keeps() {
            let start = range.base.max(base);
            let end = (range.base + range.bytes).min(base.saturating_add(bytes));
            let host = self.core.memory.host(start);
            self.lanes[index].region = Region::new(start, end.saturating_sub(start), host, first, window);
        }
        Some(self.core.memory.host(cur))
    }

    /// Rounds, and what follows from them.
    fn walk(&mut self, rounds: usize, round: impl Fn(&mut Lane) -> usize) {
        for _ in 0..rounds {
            let mut running = false;
            for index in 0..self.lanes.len() {
                if self.lanes[index].running == 0 {
                    continue;
                }
                if round(&mut self.lanes[index]) > 0 {
                    let mut from = 0;
                    while let Some(slot) = self.lanes[index].stopped(from) {
                        from = slot + 1;
                        self.stopped(index, slot);
                    }
                    self.admit(index);
                }
                running |= self.lanes[index].running > 0;
            }
            if !running {
                break;
            }
        }
    }

    /// A walk's step asked for something that a round does not do.
    fn stopped(&mut self, index: usize, at: usize) {
        let lane = &mut self.lanes[index];
        let slot = &mut lane.slots[at];
        debug_assert!(slot.state == STOPPED && slot.state != RUN);
        match Verdict::from_return(slot.verdict) {
            Verdict::Next => {
                let cur = slot.cur;
                self.go(index, at, cur);
            }
            Verdict::Emit => {
                let (offset, bytes) = (slot.walk.emit_offset as usize, slot.walk.emit_bytes as usize);
                let next = slot.walk.next;
                slot.hops_left = slot.hops_left.saturating_sub(1);
                let mut emitted = std::mem::take(&mut lane.contexts[at].emitted);
                let end = offset.checked_add(bytes);
                let piece = end.and_then(|end| lane.pad(at).get(offset..end));
                let good = piece.is_some();
                emitted.extend_from_slice(piece.unwrap_or_default());
                lane.contexts[at].emitted = emitted;
                if !good {
                    return self.end(index, at, Status::Fault(Verdict::BadEmit), None);
                }
                lane.contexts[at].visit_bytes += bytes;
                self.chunks(index, at, false);
                let lane = &mut self.lanes[index];
                if lane.contexts[at].visit_bytes >= VISIT_BYTES {
                    // The client takes what was sent so far before it asks for more.
                    let context = &mut lane.contexts[at];
                    context.given -= lane.slots[at].hops_left;
                    lane.slots[at].hops_left = 0;
                }
                self.go(index, at, next);
            }
            Verdict::Done => self.end(index, at, Status::Done, None),
            Verdict::Missing => self.end(index, at, Status::Missing, None),
            Verdict::Apply => {
                let walk = &slot.walk;
                let operands =
                    ApplyOperands { kind: walk.apply, address: walk.address, a: walk.a, b: walk.b };
                self.end(index, at, Status::Done, Some(operands));
            }
            Verdict::Retry => {
                let context = &mut lane.contexts[at];
                let whole =
                    !context.header.has(FLAG_CONTINUED) && context.chunk == 0 && context.emitted.is_empty();
                if !whole || context.restarts >= RESTARTS_MAX || lane.slots[at].hops_left == 0 {
                    return self.end(index, at, Status::Retry, None);
                }
                context.restarts += 1;
                // A restart costs an iteration, so that even a program that always asks for one ends.
                lane.slots[at].hops_left -= 1;
                self.core.stats.add(Counter::Restarts, 1);
                let first = context.header.address;
                lane.refill(at);
                self.go(index, at, first);
            }
            fault => self.end(index, at, Status::Fault(fault), None),
        }
    }

    /// Sends what was emitted: whole chunks, at the end the rest too.
    fn chunks(&mut self, index: usize, at: usize, all: bool) {
        let most = self.chunk_bytes;
        let Context { header, peer, emitted, chunk, .. } = &mut self.lanes[index].contexts[at];
        let whole = if all { emitted.len() } else { emitted.len() - emitted.len() % most };
        if whole == 0 {
            return;
        }
        let (header, peer, first) = (*header, *peer, *chunk);
        let mut bytes = std::mem::take(emitted);
        let pieces = whole.div_ceil(most) as u32;
        *chunk += pieces;
        self.core.stats.add(Counter::Chunks, u64::from(pieces));
        for (piece, body) in (first..).zip(bytes[..whole].chunks(most)) {
            let answer = Header { kind: Kind::Chunk, piece, ..header.answer(Status::Done) };
            self.answer_to(&header, peer, answer, body);
        }
        // Its room serves the next pieces.
        bytes.drain(..whole);
        self.lanes[index].contexts[at].emitted = bytes;
    }

    /// A walk has ended here; its slot is free.
    fn end(&mut self, index: usize, at: usize, status: Status, operands: Option<ApplyOperands>) {
        self.chunks(index, at, true);
        let lane = &mut self.lanes[index];
        let (slot, context) = (&lane.slots[at], &lane.contexts[at]);
        let hops = context.given - slot.hops_left.min(context.given);
        let cur = slot.cur;
        let mut header = context.header;
        header.iterations = header.iterations.saturating_sub(hops);
        header.pieces = context.chunk;
        let peer = context.peer;
        let body = used(lane.pad(at)).to_vec();
        lane.give(at);
        let stats = &self.core.stats;
        stats.add(Counter::Walks, 1);
        stats.add(Counter::Hops, u64::from(hops) + 1);
        if matches!(status, Status::Fault(_) | Status::Forbidden) {
            stats.add(Counter::Faults, 1);
        }
        self.ended(header, peer, status, cur, operands, body);
    }

    /// A walk leaves for another node.
    fn forward(&mut self, index: usize, at: usize, to: std::net::SocketAddr) {
        let context = &self.lanes[index].contexts[at];
        let (header, peer) = (context.header, context.peer);
        if header.hops == 0 {
            return self.end(index, at, Status::Hops, None);
        }
        let Some(reply) = self.reply_for(&header, peer) else {
            return self.end(index, at, Status::WrongNode, None);
        };
        self.tell_sent_on(&header, peer, self.lanes[index].slots[at].cur);
        self.chunks(index, at, true);
        let lane = &mut self.lanes[index];
        let (slot, context) = (&lane.slots[at], &lane.contexts[at]);
        let used_up = context.given - slot.hops_left.min(context.given);
        let on = Header {
            flags: header.flags | FLAG_FORWARDED | FLAG_CONTINUED | reply.1,
            hops: header.hops - 1,
            iterations: header.iterations.saturating_sub(used_up),
            epoch: self.router.epoch().max(header.epoch),
            address: slot.cur,
            piece: context.chunk,
            reply: reply.0,
            ..header
        };
        let body = used(lane.pad(at)).to_vec();
        lane.give(at);
        self.core.stats.add(Counter::Forwarded, 1);
        self.core.stats.add(Counter::Hops, u64::from(used_up));
        self.post(Peer::Socket(to), on, &body);
    }

    /// Where the answer to a packet that is sent on goes, and whether this node relays it.
    pub(super) fn reply_for(&mut self, header: &Header, peer: Peer) -> Option<(Reply, u16)> {
        if header.has(FLAG_FORWARDED) {
            return Some((header.reply, 0));
        }
        match peer {
            Peer::Socket(socket) if !header.has(FLAG_WRITES) && header.kind == Kind::Walk => {
                Some((Reply::to(socket), 0))
            }
            _ => {
                let home = self.home()?;
                let mut relays = locked(&self.core.relays);
                if relays.len() > 1 << 16 {
                    // Clients that wait for an answer ask again.
                    relays.clear();
                }
                relays.insert((header.tenant, header.client), (self.number, peer));
                Some((Reply::to(home), FLAG_RELAY))
            }
        }
    }

    /// Answers a request, wherever its answers go.
    pub(super) fn answer_to(&mut self, request: &Header, peer: Peer, answer: Header, body: &[u8]) {
        let (to, flags) = match request.reply.socket() {
            Some(socket) if request.has(FLAG_FORWARDED) => {
                (Peer::Socket(socket), request.flags & (FLAG_RELAY | FLAG_WRITES))
            }
            _ => (peer, 0),
        };
        let answer = Header { flags: answer.flags | flags, epoch: self.router.epoch(), ..answer };
        self.post(to, answer, body);
    }

    /// A packet leaves at the end of the turn.
    pub(super) fn post(&mut self, to: Peer, header: Header, body: &[u8]) {
        let authenticated = !self.core.keys.is_empty();
        let mac = if authenticated { PACKET_MAC_BYTES } else { 0 };
        if PACKET_HEADER_BYTES + body.len() + mac > self.packet_bytes {
            // What comes back must fit as what was asked did; only a client with a larger frame than ours can get here.
            return self.core.stats.add(Counter::Lost, 1);
        }
        let nonce = if authenticated { self.core.nonce.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let header = Header { sender: self.core.identity, nonce, ..header };
        self.core.keys.seal(&header, body, &mut self.outbox.bytes);
        self.outbox.packets.push((to, self.outbox.bytes.len()));
    }
}
