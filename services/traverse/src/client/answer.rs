// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes back: an answer ends its request, or says what the client has to do before there can be one.
//!
//! Flow     packet ─▶ its flight puts the pieces together ─▶ `answered`: over, on from where the walk is, again, or later
//! Order    packets that are no answer to anything are counted and forgotten: they may be late, or lies
//! Not here sending (`send`), programs that a node lacks (`upload`)

use std::time::Instant;

use super::flight::Whole;
use super::{Answer, Client, ClientError, Result, Routing, route};
use crate::map::Entry;
use crate::wire::{Header, Kind, Status};

impl Client {
    pub(super) fn finish(&mut self, sequence: u64, answer: Result<Answer>) {
        let Some(flight) = self.flights.remove(&sequence) else { return };
        let Some(ticket) = flight.ticket else { return };
        self.done.insert(ticket, answer);
        if let Some(waker) = self.wakers.remove(&ticket) {
            waker.wake();
        }
    }

    pub(super) fn packet(&mut self, bytes: &[u8]) -> Result<()> {
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
    pub(super) fn answered(&mut self, sequence: u64, whole: Whole) -> Result<()> {
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

    /// A walk goes on from where it stopped, as a new request.
    pub(super) fn go_on(&mut self, sequence: u64, header: &Header, body: Vec<u8>, emitted: &[u8]) -> Result<()> {
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
}
