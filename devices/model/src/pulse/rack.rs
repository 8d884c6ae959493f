// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state machine: walks on their way between clients, switch, pipelines and memory.
//!
//! Flow     Arrive ─▶ Parsed ─▶ (a free context) ─▶ Fetch ─▶ Loaded ─▶ Stepped ─▶ Fetch … ─▶ Burst (a reply's object) ─▶ Answered;
//!          a fetch that misses goes from Missed to the switch, which knows whose the address is
//! Order    a memory pipeline takes a fetch every `memory_occupancy` and answers after `memory_latency`; the node's memory gives
//!          its bytes to one fetch or burst at a time; a logic pipeline runs one step at a time
//! Owner    a context holds one walk from its assignment until its last step; without a free one, walks wait in order
//! Not here what a step does (`program`), how long things take (`timing`)

use super::memory::{Miss, NodeMemory};
use super::program::{Program, Verdict};
use super::timing::{Shape, Style, Timing};
use crate::event::{Calendar, Time};
use memlift_spec::operand::walk::ApplyKind;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a packet besides program, scratchpad and result: Ethernet, IP, UDP, request id, cur_ptr.
const PACKET_BYTES: u64 = 66;
/// Times a walk may start again.
const RESTARTS: u32 = 16;

/// One request.
#[derive(Clone, Debug)]
pub struct Job {
    /// What to run.
    pub program: Arc<Program>,
    /// Where to start.
    pub start: u64,
    /// The first bytes of the scratchpad; the rest is 0.
    pub scratch: Vec<u8>,
    /// An object to send along: where in the scratchpad its address is, and how many bytes it has.
    pub object: Option<(usize, usize)>,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program said so.
    Done,
    /// The program found nothing.
    Missing,
    /// A change was made; what was there before.
    Applied(u64),
    /// A compare-and-swap found something else.
    Differs(u64),
    /// No node has this address.
    Nowhere(u64),
    /// This address may not be used so.
    Forbidden(u64),
    /// More iterations than allowed.
    Budget,
    /// Started again too often.
    Contended,
    /// The program broke a rule.
    Fault(Verdict),
}

/// What a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it ended.
    pub outcome: Outcome,
    /// The scratchpad.
    pub scratch: Vec<u8>,
    /// What was emitted.
    pub result: Vec<u8>,
    /// The object asked for, if the walk was done.
    pub object: Vec<u8>,
    /// When the client began.
    pub issued: Time,
    /// When the client had it.
    pub done: Time,
    /// Steps.
    pub iterations: u64,
    /// Times it went from one node to another.
    pub crossings: u64,
}

/// Time spent in each part, over all walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// In network stacks, and passes through one.
    pub network: (Time, u64),
    /// Between pipelines, and passes.
    pub scheduler: (Time, u64),
    /// In memory pipelines, waiting for one aside, and fetches.
    pub memory: (Time, u64),
    /// In logic pipelines, waiting for one aside, and steps.
    pub logic: (Time, u64),
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the jobs.
    pub answers: Vec<Answer>,
    /// Events that happened.
    pub events: u64,
    /// Where the time went.
    pub spent: Spent,
}

impl Report {
    /// Requests per second in the middle of the run, where all clients are busy: from a tenth to nine tenths of the answers.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        let mut done: Vec<Time> = self.answers.iter().map(|answer| answer.done).collect();
        done.sort_unstable();
        let (first, last) = (done.len() / 10, done.len() * 9 / 10);
        match (done.get(first), done.get(last)) {
            (Some(&from), Some(&to)) if to > from => {
                (last - first) as f64 * 1e12 / (to - from).as_ps() as f64
            }
            _ => 0.0,
        }
    }

    /// Mean time from a client's wish to its answer, in microseconds.
    #[must_use]
    pub fn latency_us(&self) -> f64 {
        let sum: u64 = self.answers.iter().map(|answer| (answer.done - answer.issued).as_ps()).sum();
        sum as f64 / 1e6 / self.answers.len().max(1) as f64
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
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
struct Flight {
    job: usize,
    node: usize,
    context: usize,
    cur: u64,
    scratch: Vec<u8>,
    result: Vec<u8>,
    object: Vec<u8>,
    apply: Option<(ApplyKind, u64, u64)>,
    verdict: Verdict,
    walk: [u64; 6],
    issued: Time,
    iterations: u64,
    crossings: u64,
    restarts: u32,
    outcome: Option<Outcome>,
}

/// A memory node with its accelerator.
#[derive(Clone, Debug)]
struct Node {
    memory: NodeMemory,
    contexts: VecDeque<usize>,
    waiting: VecDeque<u32>,
    logic: Vec<Time>,
    pipelines: Vec<Time>,
    bus: Time,
    incoming: Time,
    outgoing: Time,
}

/// Accelerators, switch and clients. See the module.
#[derive(Debug)]
pub struct Rack {
    timing: Timing,
    shape: Shape,
    nodes: Vec<Node>,
    /// The switch's table: base, length, node.
    ranges: Vec<(u64, u64, usize)>,
}

/// A run: the rack and what moves in it.
struct Run<'a> {
    rack: &'a mut Rack,
    jobs: &'a [Job],
    calendar: Calendar<(u32, Event)>,
    flights: Vec<Flight>,
    answers: Vec<Option<Answer>>,
    next_job: usize,
    spent: Spent,
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

    /// The scheduler's part of an iteration.
    fn dispatch(&mut self) -> Time {
        let timing = &self.rack.timing;
        let delay = match self.rack.shape.style {
            Style::Coupled => Time::ZERO,
            Style::Disaggregated => timing.scheduler + timing.arbitration * self.rack.shape.logic as u64,
        };
        self.spent.scheduler = (self.spent.scheduler.0 + delay, self.spent.scheduler.1 + 1);
        delay
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

    fn assign(&mut self, place: u32, context: usize) {
        self.flights[place as usize].context = context;
        let delay = self.dispatch();
        self.calendar.after(delay, (place, Event::Fetch));
    }

    /// A memory pipeline takes the fetch: the one that can first, or the core's own.
    fn fetch(&mut self, place: u32, at: usize) {
        let now = self.calendar.now();
        let (timing, node) = (&self.rack.timing, &mut self.rack.nodes[at]);
        let flight = &self.flights[place as usize];
        let pipeline = match self.rack.shape.style {
            Style::Coupled => flight.context % node.pipelines.len(),
            Style::Disaggregated => {
                (0..node.pipelines.len()).min_by_key(|&index| node.pipelines[index]).unwrap_or(0)
            }
        };
        let start = node.pipelines[pipeline].max(now);
        let window = self.jobs[flight.job].program.window();
        let present = match flight.apply {
            Some(_) => node.memory.word(flight.cur).map(|_| ()),
            None => {
                node.memory.read(flight.cur, flight.cur.wrapping_add_signed(window.0), window.1).map(|_| ())
            }
        };
        match present {
            Ok(()) => {
                let start = start.max(node.bus);
                node.bus = start + timing.memory_rate.time_of(timing.load_bytes);
                node.pipelines[pipeline] = start + timing.memory_occupancy;
                let latency = timing.memory_latency;
                self.spent.memory = (self.spent.memory.0 + latency, self.spent.memory.1 + 1);
                self.calendar.at(start + latency, (place, Event::Loaded));
            }
            Err(miss) => {
                // Translation and protection say no; nothing is fetched.
                node.pipelines[pipeline] = start + timing.memory_occupancy;
                let known = start + timing.memory_occupancy;
                if miss == Miss::Forbidden {
                    let flight = &mut self.flights[place as usize];
                    flight.outcome = Some(Outcome::Forbidden(flight.cur));
                }
                self.calendar.at(known, (place, Event::Missed));
            }
        }
    }

    /// The bytes are in the workspace: its logic pipeline runs the step, or the memory makes the change.
    fn loaded(&mut self, place: u32, at: usize) {
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

    fn stepped(&mut self, place: u32, at: usize) {
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
    fn release(&mut self, place: u32, at: usize) {
        let context = self.flights[place as usize].context;
        match self.rack.nodes[at].waiting.pop_front() {
            Some(waiting) => self.assign(waiting, context),
            None => self.rack.nodes[at].contexts.push_back(context),
        }
    }

    /// The walk is over: its object is gathered, then all of it sent.
    fn leave(&mut self, place: u32, at: usize) {
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

    /// When the last byte of the walk's packet has left the node.
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
