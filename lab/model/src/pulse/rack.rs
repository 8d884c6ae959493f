// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rack: walks on their way between clients, switch and nodes.
//!
//! - **Flow** Arrive ─▶ Parsed ─▶ the node's accelerator: Fetch ─▶ Loaded ─▶ Stepped ─▶ Fetch … ─▶ Burst (a reply's object) ─▶ Answered;
//!   a fetch that misses goes from Missed to the switch, which knows whose the address is
//! - **Order** a port carries one packet at a time; clients take the next job when they have an answer
//! - **Owner** a flight is one walk under way; its place is used again by its client's next job
//! - **Not here** the accelerator (`accelerator`); what a step does (`program`); how long things take (`timing`)

use super::memory::NodeMemory;
use super::program::Verdict;
use super::request::{Answer, Job, Outcome, Report, Spent};
use super::timing::{Shape, Style, Timing};
use crate::event::{Calendar, Time};
use memlift_spec::formats::walk::ApplyKind;
use std::collections::VecDeque;

/// Bytes of a packet besides program, scratchpad and result: Ethernet, IP, UDP, request id, cur_ptr.
const PACKET_BYTES: u64 = 66;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Arrive,
    Parsed,
    Fetch,
    Loaded,
    Missed,
    Stepped,
    Burst(u32),
    Answered,
}

/// A walk under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) job: usize,
    pub(super) node: usize,
    pub(super) context: usize,
    pub(super) cur: u64,
    pub(super) scratch: Vec<u8>,
    pub(super) result: Vec<u8>,
    pub(super) object: Vec<u8>,
    pub(super) apply: Option<(ApplyKind, u64, u64)>,
    pub(super) verdict: Verdict,
    pub(super) walk: [u64; 6],
    pub(super) issued: Time,
    pub(super) iterations: u64,
    pub(super) crossings: u64,
    pub(super) restarts: u32,
    pub(super) outcome: Option<Outcome>,
}

/// A memory node with its accelerator.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) memory: NodeMemory,
    pub(super) contexts: VecDeque<usize>,
    pub(super) waiting: VecDeque<u32>,
    pub(super) logic: Vec<Time>,
    pub(super) pipelines: Vec<Time>,
    /// Requests that wait for a memory pipeline: any, or a core's own.
    pub(super) fetches: Vec<VecDeque<u32>>,
    pub(super) bus: Time,
    pub(super) incoming: Time,
    pub(super) outgoing: Time,
}

/// Accelerators, switch and clients. See the module.
#[derive(Debug)]
pub struct Rack {
    pub(super) timing: Timing,
    pub(super) shape: Shape,
    pub(super) nodes: Vec<Node>,
    /// The switch's table: base, length, node.
    pub(super) ranges: Vec<(u64, u64, usize)>,
}

/// A run: the rack and what moves in it.
pub(super) struct Run<'a> {
    pub(super) rack: &'a mut Rack,
    pub(super) jobs: &'a [Job],
    pub(super) calendar: Calendar<(u32, Event)>,
    pub(super) flights: Vec<Flight>,
    pub(super) answers: Vec<Option<Answer>>,
    pub(super) next_job: usize,
    pub(super) spent: Spent,
}

impl Rack {
    /// A rack of one accelerator of that shape per memory.
    ///
    /// # Errors
    /// What makes it impossible.
    pub fn new(timing: Timing, shape: Shape, memories: Vec<NodeMemory>) -> Result<Rack, String> {
        if !(1..=4).contains(&memories.len()) {
            return Err(format!("{} nodes: a rack has 1 to 4", memories.len()));
        }
        if !(1..=64).contains(&shape.logic) || !(1..=64).contains(&shape.memory) {
            return Err(format!(
                "{} logic and {} memory pipelines: 1 to 64 of each",
                shape.logic, shape.memory
            ));
        }
        if shape.style == Style::Coupled && shape.logic != shape.memory {
            return Err("a coupled core has one pipeline of each kind: give equal numbers".into());
        }
        let mut ranges: Vec<(u64, u64, usize)> = memories
            .iter()
            .enumerate()
            .flat_map(|(node, memory)| memory.ranges().map(move |(base, bytes)| (base, bytes, node)))
            .collect();
        ranges.sort_unstable();
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err(format!(
                "nodes {} and {} both have {:#x}: an address is one node's",
                pair[0].2, pair[1].2, pair[1].0
            ));
        }
        let contexts = shape.workspaces() * timing.contexts_per_workspace;
        let node = |memory| Node {
            memory,
            contexts: (0..contexts).collect(),
            waiting: VecDeque::new(),
            logic: vec![Time::ZERO; shape.logic],
            pipelines: vec![Time::ZERO; shape.memory],
            fetches: vec![VecDeque::new(); shape.memory],
            bus: Time::ZERO,
            incoming: Time::ZERO,
            outgoing: Time::ZERO,
        };
        Ok(Rack { nodes: memories.into_iter().map(node).collect(), timing, shape, ranges })
    }

    /// The memory of a node, as walks left it.
    #[must_use]
    pub fn memory(&self, node: usize) -> &NodeMemory {
        &self.nodes[node].memory
    }

    fn owner(&self, address: u64) -> Option<usize> {
        let after = self.ranges.partition_point(|(base, ..)| *base <= address);
        let (base, bytes, node) = *self.ranges.get(after.checked_sub(1)?)?;
        (address - base < bytes).then_some(node)
    }

    /// Makes all walks, `clients` of them under way at a time, and starts the clock anew.
    pub fn run(&mut self, jobs: &[Job], clients: usize) -> Report {
        for node in &mut self.nodes {
            (node.bus, node.incoming, node.outgoing) = (Time::ZERO, Time::ZERO, Time::ZERO);
            node.logic.fill(Time::ZERO);
            node.pipelines.fill(Time::ZERO);
        }
        let mut run = Run {
            rack: self,
            jobs,
            calendar: Calendar::new(),
            flights: Vec::new(),
            answers: vec![None; jobs.len()],
            next_job: 0,
            spent: Spent::default(),
        };
        for _ in 0..clients.clamp(1, jobs.len().max(1)) {
            run.issue(None);
        }
        while let Some((flight, event)) = run.calendar.pop() {
            run.happen(flight, event);
        }
        let (events, spent) = (run.calendar.happened(), run.spent);
        Report { answers: run.answers.into_iter().flatten().collect(), events, spent }
    }
}

impl Run<'_> {
    /// A client takes the next job, in the place of a flight that ended or in a new one.
    fn issue(&mut self, place: Option<u32>) {
        let Some(job) = self.jobs.get(self.next_job) else { return };
        let mut scratch = job.scratch.clone();
        scratch.resize(job.program.scratch_bytes(), 0);
        let flight = Flight {
            job: self.next_job,
            node: 0,
            context: 0,
            cur: job.start,
            scratch,
            result: Vec::new(),
            object: Vec::new(),
            apply: None,
            verdict: Verdict::Next,
            walk: [0; 6],
            issued: self.calendar.now(),
            iterations: 0,
            crossings: 0,
            restarts: 0,
            outcome: None,
        };
        self.next_job += 1;
        let place = match place {
            Some(place) => {
                self.flights[place as usize] = flight;
                place
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        };
        let out = Time::from_ps(self.rack.timing.host.as_ps() / 2);
        self.route(place, out);
    }

    /// The switch has the walk after `delay`: on to the node that has its address, or back to the client.
    fn route(&mut self, place: u32, delay: Time) {
        let flight = &mut self.flights[place as usize];
        match self.rack.owner(flight.cur) {
            Some(node) => {
                flight.node = node;
                self.calendar.after(delay, (place, Event::Arrive));
            }
            None => {
                flight.outcome = Some(Outcome::Nowhere(flight.cur));
                self.calendar.after(delay + self.back(), (place, Event::Answered));
            }
        }
    }

    /// From the switch through the client's host.
    fn back(&self) -> Time {
        self.rack.timing.host - Time::from_ps(self.rack.timing.host.as_ps() / 2)
    }

    fn packet_bytes(&self, place: u32) -> u64 {
        let flight = &self.flights[place as usize];
        let program = self.jobs[flight.job].program.encoded_bytes();
        PACKET_BYTES + (program + flight.scratch.len() + flight.result.len() + flight.object.len()) as u64
    }

    fn happen(&mut self, place: u32, event: Event) {
        let now = self.calendar.now();
        let node = self.flights[place as usize].node;
        match event {
            Event::Arrive => {
                let wire = self.rack.timing.port_rate.time_of(self.packet_bytes(place));
                let stack = self.rack.timing.network_stack;
                let port = &mut self.rack.nodes[node].incoming;
                *port = (*port).max(now) + wire;
                let at = *port + stack;
                self.spent.network = (self.spent.network.0 + stack, self.spent.network.1 + 1);
                self.calendar.at(at, (place, Event::Parsed));
            }
            Event::Parsed => match self.rack.nodes[node].contexts.pop_front() {
                Some(context) => self.assign(place, context),
                None => self.rack.nodes[node].waiting.push_back(place),
            },
            Event::Fetch => self.fetch(place, node),
            Event::Loaded => self.loaded(place, node),
            Event::Missed => self.missed(place, node),
            Event::Stepped => self.stepped(place, node),
            Event::Burst(0) => self.send(place, node),
            Event::Burst(left) => {
                let time = self.rack.timing.memory_rate.time_of(self.rack.timing.load_bytes);
                let bus = &mut self.rack.nodes[node].bus;
                *bus = (*bus).max(now) + time;
                self.calendar.at(*bus, (place, Event::Burst(left - 1)));
            }
            Event::Answered => self.answered(place),
        }
    }

    /// The walk is over: its object is gathered, then all of it sent.
    pub(super) fn leave(&mut self, place: u32, at: usize) {
        self.release(place, at);
        let flight = &mut self.flights[place as usize];
        let wanted = match flight.outcome {
            Some(Outcome::Done) => self.jobs[flight.job].object,
            _ => None,
        };
        let Some((offset, bytes)) = wanted else { return self.send(place, at) };
        let address = flight
            .scratch
            .get(offset..)
            .and_then(|rest| rest.first_chunk::<8>())
            .map(|word| u64::from_le_bytes(*word));
        let read =
            |address| self.rack.nodes[at].memory.read(address, address, bytes).ok().map(<[u8]>::to_vec);
        match address.map(|address| (address, read(address))) {
            Some((_, Some(object))) => {
                flight.object = object;
                let bursts = (bytes as u64).div_ceil(self.rack.timing.load_bytes);
                self.calendar.after(Time::ZERO, (place, Event::Burst(bursts as u32)));
            }
            other => {
                flight.outcome = Some(Outcome::Forbidden(other.map_or(0, |(address, _)| address)));
                self.send(place, at);
            }
        }
    }

    /// Returns the time at which the last byte of the walk's packet has left the node.
    fn sent(&mut self, place: u32, at: usize) -> Time {
        let wire = self.rack.timing.port_rate.time_of(self.packet_bytes(place));
        let stack = self.rack.timing.network_stack;
        self.spent.network = (self.spent.network.0 + stack, self.spent.network.1 + 1);
        let ready = self.calendar.now() + stack;
        let port = &mut self.rack.nodes[at].outgoing;
        *port = (*port).max(ready) + wire;
        *port
    }

    fn send(&mut self, place: u32, at: usize) {
        let at = self.sent(place, at) + self.back();
        self.calendar.at(at, (place, Event::Answered));
    }

    /// The address is not this node's: the state leaves as a request for the switch to route.
    fn missed(&mut self, place: u32, at: usize) {
        if self.flights[place as usize].outcome.is_some() {
            return self.leave(place, at);
        }
        self.release(place, at);
        self.flights[place as usize].crossings += 1;
        let timing = &self.rack.timing;
        let over = if self.rack.shape.over_client { timing.bounce } else { Time::ZERO };
        let wires = timing.crossing - timing.network_stack * 2 + over;
        let delay = self.sent(place, at) - self.calendar.now() + wires;
        self.route(place, delay);
    }

    fn answered(&mut self, place: u32) {
        let flight = &mut self.flights[place as usize];
        self.answers[flight.job] = Some(Answer {
            outcome: flight.outcome.unwrap_or(Outcome::Budget),
            scratch: std::mem::take(&mut flight.scratch),
            result: std::mem::take(&mut flight.result),
            object: std::mem::take(&mut flight.object),
            issued: flight.issued,
            done: self.calendar.now(),
            iterations: flight.iterations,
            crossings: flight.crossings,
        });
        self.issue(Some(place));
    }
}
