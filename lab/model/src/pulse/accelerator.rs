// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One node's accelerator: contexts, scheduler, memory pipelines and logic pipelines.
//!
//! - **Flow** (a free context) ─▶ Fetch ─▶ Loaded ─▶ Stepped ─▶ Fetch …, until the walk leaves
//! - **Order** a memory pipeline takes a fetch every `memory_occupancy` and answers after `memory_latency`; fetches wait for one in
//!   their order. The node's memory gives its bytes to one fetch or burst at a time, from when a pipeline has taken it; a
//!   logic pipeline runs one step at a time
//! - **Owner** a context holds one walk from its assignment until its last step; without a free one, walks wait in order
//! - **Not here** what a step does (`program`); how walks come and go (`rack`)

use super::memory::Miss;
use super::program::Verdict;
use super::rack::{Event, Run};
use super::request::Outcome;
use super::timing::Style;
use crate::event::Time;
use memlift_spec::formats::walk::ApplyKind;

/// Times a walk may start again.
const RESTARTS: u32 = 16;

impl Run<'_> {
    /// The scheduler's part of an iteration.
    pub(super) fn dispatch(&mut self) -> Time {
        let timing = &self.rack.timing;
        let delay = match self.rack.shape.style {
            Style::Coupled => Time::ZERO,
            Style::Disaggregated => timing.scheduler + timing.arbitration * self.rack.shape.logic as u64,
        };
        self.spent.scheduler = (self.spent.scheduler.0 + delay, self.spent.scheduler.1 + 1);
        delay
    }

    pub(super) fn assign(&mut self, place: u32, context: usize) {
        self.flights[place as usize].context = context;
        let delay = self.dispatch();
        self.calendar.after(delay, (place, Event::Fetch));
    }

    /// The memory pipeline that serves a context: the one that can first, or the core's own; and who waits with it.
    fn pipeline(&self, at: usize, context: usize) -> (usize, usize) {
        let pipelines = &self.rack.nodes[at].pipelines;
        match self.rack.shape.style {
            Style::Coupled => (context % pipelines.len(), context % pipelines.len()),
            Style::Disaggregated => {
                ((0..pipelines.len()).min_by_key(|&index| pipelines[index]).unwrap_or(0), 0)
            }
        }
    }

    /// A memory pipeline takes the fetch, when one is free. Only then is the memory asked: who waits for a pipeline does not keep
    /// the memory from others.
    pub(super) fn fetch(&mut self, place: u32, at: usize) {
        let now = self.calendar.now();
        let context = self.flights[place as usize].context;
        let (pipeline, queue) = self.pipeline(at, context);
        let node = &mut self.rack.nodes[at];
        let (waiting, free) = (&mut node.fetches[queue], node.pipelines[pipeline]);
        let first = waiting.front() == Some(&place);
        if !first && (free > now || !waiting.is_empty()) {
            waiting.push_back(place);
            if waiting.len() == 1 {
                self.calendar.at(free, (place, Event::Fetch));
            }
            return;
        }
        if first {
            waiting.pop_front();
        }
        let next = waiting.front().copied();
        self.take(place, at, pipeline);
        if let Some(next) = next {
            let (pipeline, _) = self.pipeline(at, self.flights[next as usize].context);
            self.calendar.at(self.rack.nodes[at].pipelines[pipeline], (next, Event::Fetch));
        }
    }

    fn take(&mut self, place: u32, at: usize, pipeline: usize) {
        let now = self.calendar.now();
        let (timing, node) = (&self.rack.timing, &mut self.rack.nodes[at]);
        let flight = &mut self.flights[place as usize];
        let window = self.jobs[flight.job].program.window();
        let present = match flight.apply {
            Some(_) => node.memory.word(flight.cur).map(|_| ()),
            None => {
                node.memory.read(flight.cur, flight.cur.wrapping_add_signed(window.0), window.1).map(|_| ())
            }
        };
        match present {
            Ok(()) => {
                let start = node.bus.max(now);
                node.bus = start + timing.memory_rate.time_of(timing.load_bytes);
                node.pipelines[pipeline] = start + timing.memory_occupancy;
                let latency = timing.memory_latency;
                self.spent.memory = (self.spent.memory.0 + latency, self.spent.memory.1 + 1);
                self.calendar.at(start + latency, (place, Event::Loaded));
            }
            Err(miss) => {
                // Translation and protection say no; nothing is fetched.
                let known = now + timing.memory_occupancy;
                node.pipelines[pipeline] = known;
                if miss == Miss::Forbidden {
                    flight.outcome = Some(Outcome::Forbidden(flight.cur));
                }
                self.calendar.at(known, (place, Event::Missed));
            }
        }
    }

    /// The bytes are in the workspace: its logic pipeline runs the step, or the memory makes the change.
    pub(super) fn loaded(&mut self, place: u32, at: usize) {
        let now = self.calendar.now();
        let node = &mut self.rack.nodes[at];
        let flight = &mut self.flights[place as usize];
        if let Some((kind, a, b)) = flight.apply {
            flight.outcome = Some(match node.memory.word(flight.cur) {
                Ok(word) => {
                    let old = u64::from_le_bytes(*word);
                    match kind {
                        ApplyKind::CompareSwap if old != a => Outcome::Differs(old),
                        ApplyKind::CompareSwap => {
                            *word = b.to_le_bytes();
                            Outcome::Applied(old)
                        }
                        ApplyKind::FetchAdd => {
                            *word = old.wrapping_add(a).to_le_bytes();
                            Outcome::Applied(old)
                        }
                    }
                }
                Err(_) => Outcome::Forbidden(flight.cur),
            });
            return self.leave(place, at);
        }
        let program = &self.jobs[flight.job].program;
        let (first, bytes) = program.window();
        let stepped = match node.memory.read(flight.cur, flight.cur.wrapping_add_signed(first), bytes) {
            Ok(window) => program.step(window, &mut flight.scratch),
            Err(_) => {
                flight.outcome = Some(Outcome::Forbidden(flight.cur));
                return self.leave(place, at);
            }
        };
        (flight.verdict, flight.walk) = (stepped.verdict, stepped.walk);
        flight.iterations += 1;
        let pipelines = node.logic.len();
        let pipeline = &mut node.logic[flight.context % pipelines];
        let taken = self.rack.timing.logic_instruction * stepped.instructions;
        *pipeline = (*pipeline).max(now) + taken;
        self.spent.logic = (self.spent.logic.0 + taken, self.spent.logic.1 + 1);
        let at = *pipeline;
        self.calendar.at(at, (place, Event::Stepped));
    }

    pub(super) fn stepped(&mut self, place: u32, at: usize) {
        let budget = self.rack.timing.iterations_max;
        let flight = &mut self.flights[place as usize];
        let [next, apply, address, a, b, emit] = flight.walk;
        let outcome = match flight.verdict {
            Verdict::Next => None,
            Verdict::Emit => {
                let (from, bytes) = ((emit as u32) as usize, (emit >> 32) as usize);
                match flight.scratch.get(from..from.saturating_add(bytes)) {
                    Some(piece) => {
                        flight.result.extend_from_slice(piece);
                        None
                    }
                    None => Some(Outcome::Fault(Verdict::Emit)),
                }
            }
            Verdict::Done => Some(Outcome::Done),
            Verdict::Missing => Some(Outcome::Missing),
            Verdict::Retry if flight.restarts == RESTARTS => Some(Outcome::Contended),
            Verdict::Retry | Verdict::Apply => None,
            verdict => Some(Outcome::Fault(verdict)),
        };
        flight.cur = next;
        match (flight.verdict, outcome) {
            (_, Some(_)) => {}
            (Verdict::Retry, None) => {
                let job = &self.jobs[flight.job];
                flight.restarts += 1;
                flight.cur = job.start;
                flight.result.clear();
                flight.scratch.clear();
                flight.scratch.extend_from_slice(&job.scratch);
                flight.scratch.resize(job.program.scratch_bytes(), 0);
            }
            (Verdict::Apply, None) => match ApplyKind::from_number(apply) {
                Some(kind) => (flight.cur, flight.apply) = (address, Some((kind, a, b))),
                None => flight.outcome = Some(Outcome::Fault(Verdict::Apply)),
            },
            _ => {}
        }
        flight.outcome = flight.outcome.or(outcome);
        if flight.outcome.is_none() && flight.iterations >= budget && flight.apply.is_none() {
            flight.outcome = Some(Outcome::Budget);
        }
        if flight.outcome.is_some() {
            return self.leave(place, at);
        }
        let delay = self.dispatch();
        self.calendar.after(delay, (place, Event::Fetch));
    }

    /// Gives the context to who waits longest.
    pub(super) fn release(&mut self, place: u32, at: usize) {
        let context = self.flights[place as usize].context;
        match self.rack.nodes[at].waiting.pop_front() {
            Some(waiting) => self.assign(waiting, context),
            None => self.rack.nodes[at].contexts.push_back(context),
        }
    }
}
