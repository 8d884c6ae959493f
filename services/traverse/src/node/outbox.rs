// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that leave a shard at the end of its turn: sealed, with their destinations.
//!
//! - **Flow** [`Shard::answer_to`], [`Shard::post`] ─▶ [`Outbox::put`]: number, MAC, bytes ─▶ [`Shard::leave`]: sent by the
//!   transport, or through the shard that has the socket. In a replicated node the packets wait for the backup before (`gate`)
//! - **Layout** packets lie one after the other in one buffer, whose capacity is reused in the next turn
//! - **Not here** the choice of a request's answer (`walks`, `control`)

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::shard::Shard;
use super::stats::Counter;
use super::{Core, NodeError, locked};
use crate::transport::Peer;
use crate::wire::{
    FLAG_CONFIRMED, FLAG_FORWARDED, FLAG_RELAY, FLAG_WRITES, Header, Kind, PACKET_HEADER_BYTES,
    PACKET_MAC_BYTES, Packet, Reply, Status,
};

/// Most bytes of packets that wait for the backup.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Packets that will leave at the end of the turn.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    packets: Vec<(Peer, usize)>,
    /// True if the packets must wait until the backup has said that it has not taken over.
    pub(super) is_confirmed: bool,
}

impl Core {
    /// Marks a packet as sent by this node; an answer also carries the number of the memory it concerns, and
    /// the clock.
    pub(super) fn signed(&self, header: &Header, nonce: u64) -> Header {
        let header = Header { sender: self.identity, nonce, ..*header };
        let cluster = self.cluster.load(Ordering::Relaxed);
        if matches!(header.kind, Kind::Answer | Kind::Chunk) {
            return Header { cluster, session: u64::from(self.clock.now()), ..header };
        }
        // Messages between nodes carry the number of their cluster.
        Header { cluster, ..header }
    }
}

impl Outbox {
    /// Seals a packet. Returns false if it is longer than `most` bytes.
    pub(super) fn put(&mut self, core: &Core, most: usize, to: Peer, header: &Header, body: &[u8]) -> bool {
        let authenticated = !core.keys.is_empty();
        let mac = if authenticated { PACKET_MAC_BYTES } else { 0 };
        if PACKET_HEADER_BYTES + body.len() + mac > most {
            // An answer is no longer than its request. This happens only for a client whose frames are larger
            // than ours.
            return false;
        }
        let nonce = if authenticated { core.nonce.fetch_add(1, Ordering::Relaxed) } else { 0 };
        core.keys.seal(&core.signed(header, nonce), body, &mut self.bytes);
        self.packets.push((to, self.bytes.len()));
        true
    }

    /// Drops the packets that have not left yet.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
        self.is_confirmed = false;
    }

    /// Adds a packet that another shard has sealed.
    pub(super) fn relay(&mut self, to: Peer, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.packets.push((to, self.bytes.len()));
    }
}

/// Returns the destination of the answer to a request, and the answer's flags.
pub(super) fn destination(request: &Header, peer: Peer) -> (Peer, u16) {
    match request.reply.socket() {
        Some(socket) if request.has(FLAG_FORWARDED) => {
            (Peer::Socket(socket), request.flags & (FLAG_RELAY | FLAG_WRITES))
        }
        _ => (peer, 0),
    }
}

/// Packets that wait until the backup has the changes that they tell of.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Packets of one turn each, with the position behind all that they tell of and the message that the backup must answer first.
    turns: VecDeque<(u64, u64, Outbox)>,
    bytes: usize,
}

impl Held {
    /// Returns the position and the message for which the first packets wait.
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.turns.front().map(|(position, message, _)| (*position, *message))
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

impl Shard {
    /// Sends the packets of this turn, and of earlier ones; those of a replicated node wait for its backup.
    pub(super) fn leave(&mut self) -> Result<(), NodeError> {
        let Some(gate) = self.core.gate.get().cloned() else { return self.send_out() };
        if !self.outbox.packets.is_empty() {
            // Under the lock, so that a change that a walk has seen, and whose record was not made yet, is waited for.
            let position = {
                let _writer = locked(&self.core.writer);
                gate.position()
            };
            let message = if std::mem::take(&mut self.outbox.is_confirmed) { gate.ask() } else { 0 };
            gate.push();
            let turn = std::mem::take(&mut self.outbox);
            if self.held.bytes + turn.bytes.len() > HELD_BYTES_MAX {
                // Clients repeat their requests.
                self.tally.add(Counter::Lost, turn.packets.len() as u64);
            } else {
                self.held.bytes += turn.bytes.len();
                self.held.turns.push_back((position, message, turn));
            }
        }
        if self.held.is_empty() {
            return Ok(());
        }
        // After the last load of all of them: another copy may be the primary by now.
        if gate.is_fenced() {
            let held = std::mem::take(&mut self.held);
            if !gate.is_replaced() {
                self.say_no_lease(&held);
            }
            return self.send_out();
        }
        while let Some((position, message, _)) = self.held.turns.front()
            && gate.is_passed(*position, *message)
            && let Some((_, _, turn)) = self.held.turns.pop_front()
        {
            self.held.bytes -= turn.bytes.len();
            self.outbox = turn;
            self.send_out()?;
        }
        Ok(())
    }

    /// Tells clients why their requests are not answered. Nothing is said about the requests.
    fn say_no_lease(&mut self, held: &Held) {
        for (_, _, turn) in &held.turns {
            let mut start = 0;
            for (peer, end) in &turn.packets {
                let packet = Packet::parse(&turn.bytes[start..*end]);
                start = *end;
                let Ok(Packet { header, .. }) = packet else { continue };
                if header.kind != Kind::Answer || header.has(FLAG_RELAY) {
                    continue;
                }
                let Header { client, incarnation, attempt, sequence, tenant, clock, .. } = header;
                let hint = Header {
                    client,
                    incarnation,
                    attempt,
                    sequence,
                    tenant,
                    clock,
                    ..Header::new(Kind::Answer)
                };
                self.post(*peer, Header { status: Status::NoLease, ..hint }, &[]);
            }
        }
    }

    fn send_out(&mut self) -> Result<(), NodeError> {
        if self.outbox.packets.is_empty() {
            return Ok(());
        }
        let Some(transport) = &mut self.transport else { return Ok(()) };
        let (mut start, mut sent, mut lost) = (0, 0, 0);
        for (peer, end) in &self.outbox.packets {
            let packet = &self.outbox.bytes[start..*end];
            let gone = match peer {
                // A separate branch from the sockets' one, so that no socket address is copied here.
                Peer::Ring(ring) => transport.send(Peer::Ring(*ring), packet)?,
                Peer::Socket(_) => match self.core.gateway.get() {
                    Some(&(gateway, _)) if self.local.is_none() => {
                        let inboxes = locked(&self.core.inboxes);
                        inboxes.get(gateway).is_some_and(|inbox| inbox.send((*peer, packet.to_vec())).is_ok())
                    }
                    _ => transport.send(*peer, packet)?,
                },
            };
            lost += u64::from(!gone);
            start = *end;
            sent += 1;
        }
        self.outbox.clear();
        self.tally.add(Counter::Sent, sent);
        self.tally.add(Counter::Lost, lost);
        Ok(transport.flush()?)
    }

    /// Returns the reply address for a packet that is forwarded, and [`FLAG_RELAY`] if this node relays the
    /// answer.
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
                    // Clients that still wait for an answer repeat their request.
                    relays.clear();
                }
                relays.insert((header.tenant, header.client), (self.number, peer));
                Some((Reply::to(home), FLAG_RELAY))
            }
        }
    }

    /// Answers a request: the answer goes to its sender, or to the socket that a forwarded request names.
    pub(super) fn answer_to(&mut self, request: &Header, peer: Peer, answer: Header, body: &[u8]) {
        let (to, flags) = destination(request, peer);
        // An answer that another node passes on would carry the wrong node's stamp.
        let reply = match flags & FLAG_RELAY {
            // After a change of this turn, its packets wait for the commit of all changes so far.
            0 => self.core.history.stamp(self.changed).reply(),
            _ => Reply::default(),
        };
        let flags = answer.flags | flags | self.mark;
        let answer = Header { flags, epoch: self.router.epoch(), reply, ..answer };
        self.outbox.is_confirmed |= request.has(FLAG_CONFIRMED);
        self.post(to, answer, body);
    }

    /// Queues a packet for the end of the turn.
    pub(super) fn post(&mut self, to: Peer, header: Header, body: &[u8]) {
        self.outbox.is_confirmed |= header.has(FLAG_CONFIRMED);
        if !self.outbox.put(&self.core, self.packet_bytes, to, &header, body) {
            self.tally.add(Counter::Lost, 1);
        }
    }
}
