// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shard's work besides walking: programs, memory, and the ends of walks that change memory.
//!
//! - **Flow** a walk that writes begins at its first node (`once`) ─▶ if it ends at another node, that node sends the
//!   decision to the first one ([`Kind::Decided`]) ─▶ the first node remembers the decision ─▶ the owner of the address
//!   applies it, once ─▶ the first node remembers the outcome and answers
//! - **Order** a repeated request is decided once, wherever its walk ends, and applied once, whatever packets are lost
//! - **Owner** `writer` holds what is remembered of requests
//! - **Not here** walks in flight (`shard`)

use std::borrow::Cow;
use std::sync::PoisonError;

use super::locked;
use super::log::Change;
use super::once::{Begin, Outcome};
use super::registry::Piece;
use super::route::Owner;
use super::shard::Shard;
use super::stats::Counter;
use crate::transport::Peer;
use crate::wire::{
    ApplyOperands, FLAG_CONTINUED, FLAG_FORWARDED, FLAG_RELAY, FLAG_SINCE, FLAG_WRITES, Header, Kind,
    PACKET_BODY_BYTES_MAX, PACKET_HEADER_BYTES, PACKET_MAC_BYTES, Packet, Status,
};

/// From this attempt of a request on, the client is told to which node the request was forwarded.
const NOTIFY_FROM_ATTEMPT: u32 = 2;
/// Value of a `WrongNode` outcome whose address is the address of the change, and not the place where the walk was.
const APPLIES_ELSEWHERE: u64 = u64::MAX;

impl Shard {
    /// Handles a packet of any kind but a walk.
    pub(super) fn control(&mut self, peer: Peer, packet: &Packet<'_>) {
        let header = packet.header;
        match header.kind {
            Kind::Walk | Kind::Migrate => {}
            Kind::End => {
                locked(&self.core.writer).end(&header);
                locked(&self.core.relays).remove(&(header.tenant, header.client));
            }
            Kind::Register => self.register(peer, packet),
            Kind::Allocate | Kind::Free | Kind::Write | Kind::Place | Kind::Retire | Kind::Declare => {
                self.change(peer, packet);
            }
            Kind::Apply => self.apply(peer, packet),
            Kind::Read => self.read(peer, &header),
            Kind::Map => {
                let memory = &self.core.memory;
                let progress = locked(&self.core.progress);
                let moving = progress.iter().find(|one| header.address.wrapping_sub(one.base) < one.bytes);
                let (done, all, step) =
                    moving.map_or((0, 0, 0), |one| (one.settled, one.pieces, one.step as u32));
                let answer = Header {
                    value: memory.bytes(),
                    address: memory.base(),
                    // For a range that is leaving: the pieces that have arrived, all pieces, and the current step.
                    piece: done.min(u64::from(u32::MAX)) as u32,
                    pieces: all.min(u64::from(u32::MAX)) as u32,
                    iterations: step,
                    ..header.answer(Status::Done)
                };
                drop(progress);
                // Without an address the question is about this node.
                let about = if header.address == 0 { memory.base() } else { header.address };
                let entry = self.router.entry(about);
                self.answer_to(&header, peer, answer, &entry);
            }
            Kind::Decided => {
                if let Some((operands, body)) = packet.operands() {
                    self.decided(header, peer, header.status, header.address, operands, body);
                }
            }
            Kind::Answer | Kind::Chunk => self.relay(&header, packet.body),
        }
    }

    fn reply(&mut self, header: &Header, peer: Peer, outcome: &Outcome) {
        let (answer, body) = self.answer_of(header, outcome);
        self.answer_to(header, peer, answer, &body);
    }

    /// Builds the answer to a request from its outcome.
    fn answer_of<'o>(&self, header: &Header, outcome: &'o Outcome) -> (Header, Cow<'o, [u8]>) {
        let answer = Header {
            value: outcome.value,
            address: outcome.address,
            iterations: header.iterations,
            scratch_bytes: header.scratch_bytes,
            pieces: if matches!(header.kind, Kind::Walk | Kind::Decided | Kind::Apply) {
                header.pieces
            } else {
                0
            },
            ..header.answer(outcome.status)
        };
        if outcome.status != Status::WrongNode {
            return (answer, Cow::Borrowed(&outcome.body));
        }
        // The answer's body: the map's entry, then the walk's state, if both fit.
        let mut body = self.router.entry(outcome.address);
        let value = body.len() as u64;
        let most = (self.packet_bytes - PACKET_HEADER_BYTES - PACKET_MAC_BYTES).min(PACKET_BODY_BYTES_MAX);
        let goes_on = matches!(header.kind, Kind::Walk | Kind::Decided)
            && outcome.value != APPLIES_ELSEWHERE
            && body.len() + outcome.body.len() <= most;
        if goes_on {
            body.extend_from_slice(&outcome.body);
        }
        let flags = if goes_on { FLAG_CONTINUED } else { 0 };
        (Header { value, flags, ..answer }, Cow::Owned(body))
    }

    /// Tells a client that has repeated its request to which node the request was forwarded.
    pub(super) fn tell_sent_on(&mut self, header: &Header, peer: Peer, address: u64) {
        if header.attempt < NOTIFY_FROM_ATTEMPT {
            return;
        }
        let entry = self.router.entry(address);
        let answer = Header { hops: header.hops, address, ..header.answer(Status::SentOn) };
        if header.kind != Kind::Walk && header.has(FLAG_FORWARDED) {
            let answer = Header { epoch: self.router.epoch(), ..answer };
            return self.deliver_to_client(header.tenant, header.client, answer, &entry);
        }
        self.answer_to(header, peer, answer, &entry);
    }

    pub(super) fn refuse(&mut self, header: &Header, peer: Peer, status: Status, reason: &str) {
        let body = reason.as_bytes()[..reason.len().min(512)].to_vec();
        self.reply(header, peer, &Outcome { status, value: 0, address: header.address, body });
    }

    /// Ends a walk at this node: answers it, or sends the decision of a walk that writes to its first node.
    pub(super) fn ended(
        &mut self,
        header: Header,
        peer: Peer,
        status: Status,
        cur: u64,
        operands: Option<ApplyOperands>,
        body: Vec<u8>,
    ) {
        if !header.has(FLAG_WRITES) {
            let status = if operands.is_some() { Status::BadRequest } else { status };
            let outcome = Outcome { status, value: 0, address: cur, body };
            return self.reply(&header, peer, &outcome);
        }
        let operands = operands.unwrap_or_default();
        match header.reply.socket() {
            Some(first) if header.has(FLAG_FORWARDED) && Some(first) != self.home() => {
                let decided = Header { kind: Kind::Decided, status, address: cur, ..header };
                let body = [&operands.bytes()[..], &body].concat();
                self.post(Peer::Socket(first), decided, &body);
            }
            _ => self.decided(header, peer, status, cur, operands, &body),
        }
    }

    /// Returns true if a walk that writes must run now. On false it was answered, resumed or dropped here.
    pub(super) fn begin(&mut self, peer: Peer, header: &Header) -> bool {
        let mut writer = locked(&self.core.writer);
        if writer.is_full() {
            let is_known = writer.is_known(header);
            drop(writer);
            // A known request may not be in the log yet, and one that was decided elsewhere must not be refused. Neither is
            // answered: their clients ask again.
            if !is_known && !header.has(FLAG_FORWARDED) {
                self.refuse(header, peer, Status::LogFull, "");
            }
            return false;
        }
        let begin = writer.begin(header);
        drop(writer);
        match begin {
            Begin::Run => return true,
            Begin::Drop => {}
            Begin::Resume(operands, body, since) => {
                let header = Header { clock: since, flags: header.flags | FLAG_SINCE, ..*header };
                self.dispatch(header, peer, operands, &body);
            }
            Begin::Answer(outcome, since) => self.reply(&Header { clock: since, ..*header }, peer, &outcome),
            // The outcome's value tells the client the least number of a new session.
            Begin::Refuse(Status::Expired) => {
                let value = locked(&self.core.writer).session_bound(header.tenant);
                let outcome =
                    Outcome { status: Status::Expired, value, address: header.address, body: Vec::new() };
                self.reply(header, peer, &outcome);
            }
            Begin::Refuse(status) => self.refuse(
                header,
                peer,
                status,
                "too many requests or clients are open, or this one is long over",
            ),
        }
        self.tally.add(Counter::Repeated, 1);
        false
    }

    /// Ends a walk that writes, at the node where it began; the walk itself may have ended at another one.
    fn decided(
        &mut self,
        header: Header,
        peer: Peer,
        status: Status,
        cur: u64,
        operands: ApplyOperands,
        body: &[u8],
    ) {
        let mut writer = locked(&self.core.writer);
        if !writer.is_current_attempt(&header) {
            drop(writer);
            return self.tally.add(Counter::Repeated, 1);
        }
        let mut outcome = Outcome { status, value: 0, address: cur, body: body.to_vec() };
        if writer.is_full() {
            writer.forget(&header);
            drop(writer);
            outcome.status = Status::LogFull;
            return self.answer_client(&header, peer, &outcome);
        }
        if operands.kind != 0 {
            drop(writer);
            return self.dispatch(header, peer, operands, body);
        }
        // A finished walk is remembered, and so is one that its client continues as another request: a late copy of this
        // request must not begin again. Chunks are not remembered, so a walk that has sent some may begin again if it is to
        // be continued. In all other cases the client removes the cause and sends the request again.
        let ends = match status {
            Status::Done | Status::Missing | Status::Fault(_) | Status::Forbidden | Status::Outdated => true,
            Status::Continue | Status::Hops | Status::Retry => header.pieces == header.piece,
            _ => false,
        };
        if !ends {
            writer.forget(&header);
        } else {
            writer.settle(&header, Change::None, &outcome);
            self.changed = true;
        }
        drop(writer);
        self.answer_client(&header, peer, &outcome);
    }

    /// Answers a client from its request's first node, also if the walk came back from another node.
    fn answer_client(&mut self, header: &Header, peer: Peer, outcome: &Outcome) {
        if !header.has(FLAG_FORWARDED) {
            return self.reply(header, peer, outcome);
        }
        let (answer, body) = self.answer_of(header, outcome);
        let answer = Header { epoch: self.router.epoch(), ..answer };
        self.deliver_to_client(header.tenant, header.client, answer, &body);
    }

    /// Passes a packet to a client of this node, through the client's shard.
    fn deliver_to_client(&mut self, tenant: u32, client: u64, header: Header, body: &[u8]) {
        let Some((shard, peer)) = locked(&self.core.relays).get(&(tenant, client)).copied() else {
            return self.tally.add(Counter::Lost, 1);
        };
        if shard == self.number {
            return self.post(peer, header, body);
        }
        let nonce = self.core.nonce.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut packet = Vec::new();
        self.core.keys.seal(&self.core.signed(&header, nonce), body, &mut packet);
        let inboxes = locked(&self.core.inboxes);
        if inboxes.get(shard).is_none_or(|inbox| inbox.send((peer, packet)).is_err()) {
            self.tally.add(Counter::Lost, 1);
        }
    }

    /// Has the owner of the address carry out a decided change.
    fn dispatch(&mut self, header: Header, peer: Peer, operands: ApplyOperands, body: &[u8]) {
        // The address is the change's, not the walk's. The value tells the client not to continue the walk there on
        // `WrongNode`.
        let outcome = |status| {
            let value = if status == Status::WrongNode { APPLIES_ELSEWHERE } else { 0 };
            Outcome { status, value, address: operands.address, body: body.to_vec() }
        };
        let owner = self.router.owner(header.epoch, operands.address, true);
        let done = match owner {
            Owner::Local { .. } => {
                let outcome = locked(&self.core.writer).apply(&header, &operands, body);
                self.router.written(operands.address, 8);
                self.tally.add(Counter::Changes, 1);
                self.changed = true;
                outcome
            }
            Owner::Peer(to) => {
                locked(&self.core.writer).decide(&header, operands, body);
                self.changed = true;
                let apply = Header { kind: Kind::Apply, ..header };
                let Some((reply, flag)) = self.reply_for(&apply, peer) else {
                    return self.answer_client(&header, peer, &outcome(Status::WrongNode));
                };
                let given = FLAG_WRITES | FLAG_FORWARDED | FLAG_CONTINUED | FLAG_RELAY | FLAG_SINCE;
                let flags = header.flags | given | flag;
                let epoch = self.router.epoch().max(header.epoch);
                let on = Header { flags, reply, epoch, status: Status::Done, ..apply };
                let body = [&operands.bytes()[..], body].concat();
                self.tell_sent_on(&header, peer, operands.address);
                self.tally.add(Counter::Forwarded, 1);
                return self.post(Peer::Socket(to), on, &body);
            }
            Owner::Denied => {
                let outcome = outcome(Status::Forbidden);
                locked(&self.core.writer).settle(&header, Change::None, &outcome);
                self.changed = true;
                outcome
            }
            // An attempt that only ran is forgotten, so the next attempt looks up the owner again; a decision that was
            // remembered stays.
            Owner::Later | Owner::Unknown => {
                locked(&self.core.writer).forget(&header);
                outcome(if owner == Owner::Later { Status::Busy } else { Status::WrongNode })
            }
        };
        self.answer_client(&header, peer, &done);
    }

    /// Passes an answer from another node on to the client whose packet this node had forwarded.
    fn relay(&mut self, header: &Header, body: &[u8]) {
        if !header.has(FLAG_RELAY) {
            return self.tally.add(Counter::Foreign, 1);
        }
        if header.has(FLAG_WRITES) && header.kind == Kind::Answer {
            let mut writer = locked(&self.core.writer);
            let settled = matches!(
                header.status,
                Status::Applied
                    | Status::Differs
                    | Status::Forbidden
                    | Status::BadRequest
                    | Status::Stale
                    | Status::Expired
                    | Status::Taken
                    | Status::Outdated
            );
            if settled && writer.is_decided(header) {
                let (status, value, address) = (header.status, header.value, header.address);
                let outcome = Outcome { status, value, address, body: body.to_vec() };
                writer.settle(header, Change::None, &outcome);
                self.changed = true;
            }
        }
        let plain = Header { flags: header.flags & !(FLAG_RELAY | FLAG_WRITES), ..*header };
        self.deliver_to_client(header.tenant, header.client, plain, body);
    }

    fn register(&mut self, peer: Peer, packet: &Packet<'_>) {
        let header = packet.header;
        let mut registry = self.core.registry.write().unwrap_or_else(PoisonError::into_inner);
        let known = registry.get(header.tenant, &header.program).is_some();
        let piece = registry.piece(
            header.tenant,
            header.client,
            header.program,
            header.piece,
            header.pieces,
            header.value,
            packet.body,
        );
        drop(registry);
        let mut done = Outcome { status: Status::Done, value: 0, address: 0, body: Vec::new() };
        match piece {
            Piece::Missing(missing) => done.value = u64::from(missing),
            Piece::Complete(runner) => {
                let mut writer = locked(&self.core.writer);
                // Reads continue on a full disk and need their programs, so the program is kept without a record; after a
                // restart clients register it again.
                if !known && !writer.is_full() {
                    let upload = super::registry::upload_of(runner.program());
                    writer.registered(header.tenant, upload);
                    self.changed = true;
                }
            }
            Piece::Refused(status, reason) => return self.refuse(&header, peer, status, &reason),
        }
        self.reply(&header, peer, &done);
    }

    /// Carries out an allocation, a release or a write of memory.
    fn change(&mut self, peer: Peer, packet: &Packet<'_>) {
        let header = packet.header;
        let wrong = if matches!(header.kind, Kind::Allocate | Kind::Place) {
            None
        } else {
            match self.router.owner(header.epoch, header.address, true) {
                Owner::Local { .. } => None,
                Owner::Later => Some(Status::Busy),
                Owner::Denied => Some(Status::Forbidden),
                Owner::Peer(_) | Owner::Unknown => Some(Status::WrongNode),
            }
        };
        if let Some(status) = wrong {
            return self.refuse(&header, peer, status, "");
        }
        if !self.begin(peer, &header) {
            return;
        }
        let outcome = locked(&self.core.writer).run(&header, packet.body);
        if matches!(header.kind, Kind::Write | Kind::Place) && outcome.status == Status::Done {
            self.router.written(outcome.address, packet.body.len() as u64);
        }
        self.tally.add(Counter::Changes, 1);
        self.changed = true;
        self.reply(&header, peer, &outcome);
    }

    /// Applies a decided change to one word, for a client or for a request's first node.
    fn apply(&mut self, peer: Peer, packet: &Packet<'_>) {
        let header = packet.header;
        let Some((operands, body)) = packet.operands() else { return };
        match self.router.owner(header.epoch, operands.address, true) {
            Owner::Local { .. } => {}
            Owner::Later => return self.refuse(&header, peer, Status::Busy, ""),
            Owner::Denied => return self.refuse(&header, peer, Status::Forbidden, ""),
            Owner::Peer(_) | Owner::Unknown => {
                let outcome = Outcome {
                    status: Status::WrongNode,
                    value: 0,
                    address: operands.address,
                    body: Vec::new(),
                };
                return self.reply(&header, peer, &outcome);
            }
        }
        if !self.begin(peer, &header) {
            return;
        }
        let outcome = locked(&self.core.writer).apply(&header, &operands, body);
        self.router.written(operands.address, 8);
        self.tally.add(Counter::Changes, 1);
        self.changed = true;
        self.reply(&header, peer, &outcome);
    }

    /// Answers with the bytes of memory as they are now.
    fn read(&mut self, peer: Peer, header: &Header) {
        match self.router.owner(header.epoch, header.address, false) {
            Owner::Local { .. } => {}
            Owner::Later => return self.refuse(header, peer, Status::Busy, ""),
            Owner::Denied => return self.refuse(header, peer, Status::Forbidden, ""),
            Owner::Peer(_) | Owner::Unknown => return self.refuse(header, peer, Status::WrongNode, ""),
        }
        let most = (self.packet_bytes - PACKET_HEADER_BYTES - PACKET_MAC_BYTES).min(4096) as u64;
        if header.value > most {
            return self.refuse(
                header,
                peer,
                Status::BadRequest,
                &format!("at most {most} bytes are read at once"),
            );
        }
        let ranges = self.core.memory.ranges();
        if ranges.find(header.tenant, header.address, header.value).is_none() {
            return self.refuse(header, peer, Status::Forbidden, "");
        }
        let mut outcome =
            Outcome { status: Status::Done, value: header.value, address: header.address, body: Vec::new() };
        self.core.memory.load(header.address, header.value as usize, &mut outcome.body);
        // Checked after the bytes were read: a request that reuses the memory brings its clock before it writes.
        if self.clock.outdated(header.clock) {
            return self.refuse(header, peer, Status::Outdated, "");
        }
        self.reply(header, peer, &outcome);
    }
}
