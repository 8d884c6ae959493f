// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks in flight on a shard: their rounds, and how each one continues or ends.
//!
//! - **Flow** [`Shard::walk`]: rounds of each lane ─▶ a walk that stopped ([`Shard::stopped`]) continues ([`Shard::go`]), sends
//!   a piece of its result, starts again, leaves for another node, or ends ([`Shard::end`])
//! - **Order** the address of a next node is looked up once per range: its window is checked against the tenant's ranges, and
//!   the range found becomes the lane's region, in which rounds translate addresses without help
//! - **Owner** the shard's thread
//! - **Not here** requests before they have a slot (`shard`), walks that change memory once they have ended (`control`)

use super::lane::{Context, Lane};
use super::outbox::destination;
use super::route::Owner;
use super::shard::Shard;
use super::stats::Counter;
use crate::slot::{Region, STOPPED};
use crate::step::Verdict;
use crate::transport::Peer;
use memlift_spec::formats::walk::ApplyKind;

use crate::wire::{
    ApplyOperands, FLAG_CONFIRMED, FLAG_CONTINUED, FLAG_FORWARDED, FLAG_SINCE, FLAG_WRITES, Header, Kind,
    Status,
};

/// Times that a walk starts again without its client, before the client is told.
const RESTARTS_MAX: u32 = 64;
/// Most bytes emitted on one visit: more than a client's ring or socket holds would be lost.
const VISIT_BYTES: usize = 64 << 10;

impl Shard {
    /// Runs rounds over the lanes, and handles the walks that stop.
    pub(super) fn walk(&mut self, rounds: usize, round: impl Fn(&mut Lane) -> usize) {
        for _ in 0..rounds {
            let mut running = false;
            for index in 0..self.lanes.len() {
                if self.lanes[index].running == 0 {
                    continue;
                }
                let stopped = round(&mut self.lanes[index]);
                for place in 0..stopped {
                    let slot = self.lanes[index].stopped(place);
                    self.stopped(index, slot);
                }
                if stopped > 0 {
                    self.admit(index);
                }
                running |= self.lanes[index].running > 0;
            }
            if !running {
                break;
            }
        }
    }

    /// Handles a slot whose step has asked for something that a round does not do.
    fn stopped(&mut self, index: usize, at: usize) {
        let lane = &mut self.lanes[index];
        let slot = &mut lane.slots[at];
        debug_assert!(slot.state == STOPPED);
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
                    // The visit ends here, so that the client takes the chunks sent so far before it asks for
                    // more.
                    let context = &mut lane.contexts[at];
                    context.step_budget -= lane.slots[at].hops_left;
                    lane.slots[at].hops_left = 0;
                }
                self.go(index, at, next);
            }
            Verdict::Done => self.end(index, at, Status::Done, None),
            Verdict::Missing => self.end(index, at, Status::Missing, None),
            Verdict::Apply => {
                let walk = &slot.walk;
                // The sum of a program may wrap, and the program leaves the second operand as it was.
                let is_added = walk.apply == ApplyKind::FetchAdd as u64;
                let b = if is_added { 0 } else { walk.b };
                let operands = ApplyOperands { kind: walk.apply, address: walk.address, a: walk.a, b };
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
                // A restart costs an iteration, so that even a program that always restarts ends.
                lane.slots[at].hops_left -= 1;
                self.tally.add(Counter::Restarts, 1);
                let first = context.header.address;
                lane.refill(at);
                self.go(index, at, first);
            }
            fault => self.end(index, at, Status::Fault(fault), None),
        }
    }

    /// Continues a walk at an address, here or at another node.
    pub(super) fn go(&mut self, index: usize, slot: usize, cur: u64) {
        let lane = &mut self.lanes[index];
        if lane.slots[slot].hops_left == 0 {
            lane.slots[slot].cur = cur;
            let left = lane.contexts[slot].header.iterations - lane.contexts[slot].step_budget;
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

    /// Returns the host address of `cur` if its whole window is on this node. On `None` the walk has ended or
    /// was forwarded.
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
        // The range must contain the whole window and `cur` itself, as `Region::new` requires.
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

    /// Sends emitted bytes in whole chunks; with `all`, the rest too.
    fn chunks(&mut self, index: usize, at: usize, all: bool) {
        if self.lanes[index].contexts[at].emitted.is_empty() {
            return;
        }
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
        self.tally.add(Counter::Chunks, u64::from(pieces));
        for (piece, body) in (first..).zip(bytes[..whole].chunks(most)) {
            let answer = Header { kind: Kind::Chunk, piece, ..header.answer(Status::Done) };
            self.answer_to(&header, peer, answer, body);
        }
        // The buffer's capacity is reused for the next pieces.
        bytes.drain(..whole);
        self.lanes[index].contexts[at].emitted = bytes;
    }

    /// Ends a walk here, and frees its slot.
    fn end(&mut self, index: usize, at: usize, status: Status, operands: Option<ApplyOperands>) {
        self.chunks(index, at, true);
        let lane = &mut self.lanes[index];
        let (slot, context) = (&lane.slots[at], &lane.contexts[at]);
        let hops = context.step_budget - slot.hops_left.min(context.step_budget);
        let (cur, peer) = (slot.cur, context.peer);
        self.tally.add(Counter::Walks, 1);
        self.tally.add(Counter::Hops, u64::from(hops) + 1);
        if matches!(status, Status::Fault(_) | Status::Forbidden) {
            self.tally.add(Counter::Faults, 1);
        }
        let iterations = context.header.iterations.saturating_sub(hops);
        // A walk that took too long may have read reused memory. This is checked after its last step.
        let (status, operands) = match self.clock.outdated(context.header.clock) {
            true => (Status::Outdated, None),
            false => (status, operands),
        };
        if context.header.has(FLAG_WRITES) || status == Status::WrongNode {
            let header = Header { iterations, pieces: context.chunk, ..context.header };
            let body = lane.used(at).1.to_vec();
            lane.free_slot(at);
            return self.ended(header, peer, status, cur, operands, body);
        }
        // Most walks end here: the answer is copied from the slot into the packet without an intermediate
        // buffer.
        let epoch = self.router.epoch();
        let (context, body) = lane.used(at);
        let (to, flags) = destination(&context.header, peer);
        let answer = Header {
            flags: flags | self.mark,
            epoch,
            address: cur,
            iterations,
            scratch_bytes: context.header.scratch_bytes,
            pieces: context.chunk,
            ..context.header.answer(if operands.is_some() { Status::BadRequest } else { status })
        };
        self.outbox.is_confirmed |= context.header.has(FLAG_CONFIRMED);
        if !self.outbox.put(&self.core, self.packet_bytes, to, &answer, body) {
            self.tally.add(Counter::Lost, 1);
        }
        lane.free_slot(at);
    }

    /// Forwards a walk to another node.
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
        let used_up = context.step_budget - slot.hops_left.min(context.step_budget);
        let on = Header {
            flags: header.flags | FLAG_FORWARDED | FLAG_CONTINUED | FLAG_SINCE | reply.1,
            hops: header.hops - 1,
            iterations: header.iterations.saturating_sub(used_up),
            epoch: self.router.epoch().max(header.epoch),
            address: slot.cur,
            piece: context.chunk,
            reply: reply.0,
            ..header
        };
        let body = lane.used(at).1.to_vec();
        lane.free_slot(at);
        self.tally.add(Counter::Forwarded, 1);
        self.tally.add(Counter::Hops, u64::from(used_up));
        self.post(Peer::Socket(to), on, &body);
    }
}
