// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server's threads in Rocket's modes (§IV-B, figure 8): each takes requests, copies them in and handles them.
//!
//! - **Flow** CPU        message ─▶ copy ─▶ handle
//!   sync       message ─▶ submit ─▶ wait ─▶ handle
//!   async      message ─▶ submit the next ─▶ wait for this one ─▶ handle
//!   pipelined  messages ─▶ submit a batch ─▶ query for the one before ─▶ wait ─▶ handle its requests
//! - **Order** a thread waits with UMWAIT, again after each cap; handling reads the request once and the thread's working set once
//! - **Owner** a memory for all: each thread has one source, and a target for each request under way

use super::cache::{BLOCK, Cache};
use super::device::Device;
use super::timing::Timing;
use crate::event::{Calendar, Time};
use crate::memory::{Image, Memory};
use memlift_spec::{Descriptor, Flags, Opcode, Status};
use std::collections::VecDeque;

/// How copies are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the CPU.
    Cpu,
    /// By the device; the thread waits.
    Sync,
    /// By the device, while the thread handles the request before.
    Async,
    /// By the device, in batches.
    Pipelined,
}

/// The load of a server.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How copies are made.
    pub mode: Mode,
    /// True if the device writes into the cache.
    pub inject: bool,
    /// Threads that handle requests.
    pub threads: usize,
    /// Bytes of a request, in lines.
    pub bytes: u64,
    /// Requests of a thread.
    pub requests: usize,
    /// True if handling uses the working set.
    pub works: bool,
}

/// Time and traffic of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Until the last thread ended.
    pub end: Time,
    /// Blocks of requests that were read, and of those the ones that the cache had.
    pub reads: (u64, u64),
    /// Spent in handling, by all threads.
    pub handled: Time,
    /// Times UMWAIT returned.
    pub wakes: u64,
    /// Events that happened.
    pub events: u64,
    /// Accesses of the cache, by handlers and by the device, a block each.
    pub accesses: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Message,
    Copy(usize),
    Submit(usize),
    Batch(usize),
    /// For the oldest submission.
    Wait,
    Handle(usize),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Thread(usize),
    Engine(usize),
}

#[derive(Debug)]
struct Thread {
    steps: VecDeque<Step>,
    jobs: VecDeque<usize>,
    waits: Option<(usize, Time)>,
    done: Vec<usize>,
    /// A submission on its way to the queue.
    entering: Option<Step>,
}

const BASE: u64 = 1 << 32;

struct Server<'a> {
    timing: &'a Timing,
    load: Load,
    slots: usize,
    memory: Vec<u8>,
    cache: Cache,
    calendar: Calendar<Event>,
    device: Device,
    threads: Vec<Thread>,
    owners: Vec<usize>,
    outcome: Outcome,
}

/// Runs a server until its threads have handled all.
///
/// # Errors
/// If a request did not arrive as it was sent.
pub fn serve(timing: &Timing, load: Load) -> Result<Outcome, String> {
    let slots = match load.mode {
        Mode::Cpu | Mode::Sync => 1,
        Mode::Async => 2,
        Mode::Pipelined => 2 * timing.batch,
    };
    let mut server = Server {
        timing,
        load,
        slots,
        memory: Vec::new(),
        cache: Cache::new(timing.cache_bytes, timing.cache_ways, timing.injected_ways),
        calendar: Calendar::new(),
        device: Device::new(timing),
        threads: Vec::new(),
        owners: Vec::new(),
        outcome: Outcome {
            end: Time::ZERO,
            reads: (0, 0),
            handled: Time::ZERO,
            wakes: 0,
            events: 0,
            accesses: 0,
        },
    };
    server.memory = vec![0; server.thread(load.threads) as usize];
    for thread in 0..load.threads {
        let source = server.thread(thread) as usize;
        let pattern = (0..load.bytes).map(|at| (at / 64 + 7 * at + thread as u64) as u8 | 1);
        server.memory[source..source + load.bytes as usize]
            .iter_mut()
            .zip(pattern)
            .for_each(|(to, from)| *to = from);
        let (jobs, done) = (VecDeque::new(), Vec::new());
        server.threads.push(Thread { steps: server.steps(), jobs, waits: None, done, entering: None });
        server.calendar.after(Time::ZERO, Event::Thread(thread));
    }
    while let Some(event) = server.calendar.pop() {
        match event {
            Event::Thread(thread) => server.go_on(thread)?,
            Event::Engine(engine) => {
                let memory = &mut Image { base: BASE, bytes: &mut server.memory };
                if let Some(job) = server.device.happen(engine, memory, &mut server.calendar, Event::Engine) {
                    server.settled(job);
                }
            }
        }
    }
    server.outcome.end = server.calendar.now();
    server.outcome.events = server.calendar.happened();
    Ok(server.outcome)
}

impl Server<'_> {
    /// Bytes of a request's place.
    fn stride(&self) -> u64 {
        self.load.bytes.next_multiple_of(BLOCK)
    }

    /// Where a thread's memory begins: source · targets · records and descriptors.
    fn thread(&self, thread: usize) -> u64 {
        thread as u64 * (self.stride() * (1 + self.slots as u64) + BLOCK.max(128 * self.slots as u64 + 256))
    }

    fn target(&self, thread: usize, slot: usize) -> u64 {
        self.thread(thread) + self.stride() * (1 + slot as u64)
    }

    fn records(&self, thread: usize) -> u64 {
        self.target(thread, self.slots)
    }

    fn steps(&self) -> VecDeque<Step> {
        let requests = self.load.requests;
        let mut steps = VecDeque::new();
        match self.load.mode {
            Mode::Cpu => {
                (0..requests).for_each(|_| steps.extend([Step::Message, Step::Copy(0), Step::Handle(0)]))
            }
            Mode::Sync => {
                (0..requests).for_each(|_| {
                    steps.extend([Step::Message, Step::Submit(0), Step::Wait, Step::Handle(0)])
                });
            }
            Mode::Async => {
                steps.extend([Step::Message, Step::Submit(0)]);
                for request in 1..requests {
                    steps.extend([
                        Step::Message,
                        Step::Submit(request % 2),
                        Step::Wait,
                        Step::Handle((request - 1) % 2),
                    ]);
                }
                steps.extend([Step::Wait, Step::Handle((requests - 1) % 2)]);
            }
            Mode::Pipelined => {
                let batch = self.timing.batch;
                let handle = |steps: &mut VecDeque<Step>, half: usize| {
                    steps.extend([Step::Message, Step::Wait]);
                    (0..batch).for_each(|slot| steps.push_back(Step::Handle(half * batch + slot)));
                };
                let batches = requests.div_ceil(batch);
                for index in 0..batches {
                    (0..batch).for_each(|_| steps.push_back(Step::Message));
                    steps.push_back(Step::Batch(index % 2));
                    if index > 0 {
                        handle(&mut steps, (index - 1) % 2);
                    }
                }
                handle(&mut steps, (batches - 1) % 2);
            }
        }
        steps
    }

    fn descriptor(&self, thread: usize, slot: usize) -> Descriptor {
        let mut flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
        if self.load.inject {
            flags = flags.with(Flags::CACHE_CONTROL);
        }
        let mut descriptor = Descriptor::new(Opcode::MEMMOVE, flags);
        descriptor.source = BASE + self.thread(thread);
        descriptor.target = BASE + self.target(thread, slot);
        descriptor.size = self.load.bytes as u32;
        descriptor.completion_address = BASE + self.records(thread) + 32 * slot as u64;
        descriptor
    }

    fn blocks(&self, at: u64) -> std::ops::Range<u64> {
        at / BLOCK..(at + self.load.bytes).div_ceil(BLOCK)
    }

    fn settled(&mut self, job: usize) {
        let now = self.calendar.now();
        let thread = self.owners[job];
        self.threads[thread].done.push(job);
        if let Some((wanted, since)) = self.threads[thread].waits
            && wanted == job
        {
            self.threads[thread].waits = None;
            let caps = (now - since).as_ps() / self.timing.wait_cap.as_ps();
            self.outcome.wakes += caps + 1;
            self.calendar.after(self.timing.wake, Event::Thread(thread));
        }
    }

    /// ENQCMD: it tells at its end whether the queue had room.
    fn enqueue(&mut self, thread: usize, step: Step) {
        self.threads[thread].entering = Some(step);
        self.calendar.after(self.timing.submit, Event::Thread(thread));
    }

    fn submit(&mut self, thread: usize, step: Step) {
        let (descriptor, slots) = match step {
            Step::Submit(slot) => (self.descriptor(thread, slot), slot..slot + 1),
            Step::Batch(half) => {
                let slots = half * self.timing.batch..(half + 1) * self.timing.batch;
                let list = (self.records(thread) + 32 * self.slots as u64 + 32).next_multiple_of(64);
                let members: Vec<Descriptor> =
                    slots.clone().map(|slot| self.descriptor(thread, slot)).collect();
                let list = list + 64 * slots.start as u64;
                let mut image = Image { base: BASE, bytes: &mut self.memory };
                for (index, member) in members.iter().enumerate() {
                    image.put_descriptor(BASE + list + 64 * index as u64, member);
                }
                let flags = Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION);
                let mut batch = Descriptor::new(Opcode::BATCH, flags);
                (batch.source, batch.size) = (BASE + list, self.timing.batch as u32);
                batch.completion_address = BASE + self.records(thread) + 32 * self.slots as u64;
                (batch, slots)
            }
            _ => return,
        };
        match self.device.submit(&descriptor, &mut self.calendar, Event::Engine) {
            Some(job) => {
                debug_assert_eq!(job, self.owners.len());
                self.owners.push(thread);
                self.threads[thread].jobs.push_back(job);
                // The copy's effect on the cache; its moment within the copy does not matter to later readers.
                for slot in slots {
                    let at = self.target(thread, slot);
                    let blocks = self.blocks(at);
                    self.outcome.accesses += blocks.end - blocks.start;
                    self.cache.write(blocks, self.load.inject);
                }
            }
            None => return self.enqueue(thread, step),
        }
        self.calendar.after(Time::ZERO, Event::Thread(thread));
    }

    fn go_on(&mut self, thread: usize) -> Result<(), String> {
        if let Some(step) = self.threads[thread].entering.take() {
            self.submit(thread, step);
            return Ok(());
        }
        let Some(step) = self.threads[thread].steps.pop_front() else { return Ok(()) };
        let taken = match step {
            Step::Message => self.timing.message,
            Step::Copy(slot) => {
                let (source, target) = (self.thread(thread), self.target(thread, slot));
                let mut image = Image { base: BASE, bytes: &mut self.memory };
                image.copy(BASE + source, BASE + target, self.load.bytes);
                let blocks = self.blocks(target);
                self.cache.reuse(blocks);
                self.timing.memory.time_of(self.load.bytes)
            }
            Step::Submit(_) | Step::Batch(_) => {
                self.enqueue(thread, step);
                return Ok(());
            }
            Step::Wait => {
                let now = self.calendar.now();
                let state = &mut self.threads[thread];
                let Some(job) = state.jobs.pop_front() else { return Err("nothing to wait for".into()) };
                if !state.done.contains(&job) {
                    state.waits = Some((job, now));
                    return Ok(());
                }
                Time::ZERO
            }
            Step::Handle(slot) => self.handle(thread, slot)?,
        };
        self.calendar.after(taken, Event::Thread(thread));
        Ok(())
    }

    /// Reads the request and what the handler works on; the request has to be the one that was sent.
    fn handle(&mut self, thread: usize, slot: usize) -> Result<Time, String> {
        let (source, target) = (self.thread(thread) as usize, self.target(thread, slot) as usize);
        let bytes = self.load.bytes as usize;
        let record = self.records(thread) as usize + 32 * slot;
        let told = self.load.mode == Mode::Cpu || self.memory[record] == Status::SUCCESS.0;
        if !told || self.memory[source..source + bytes] != self.memory[target..target + bytes] {
            return Err("a request did not arrive as it was sent".into());
        }
        // The next one must not be taken for this one.
        self.memory[target] = 0;
        self.memory[record] = 0;
        let mut taken = Time::ZERO;
        let mut left = self.load.bytes;
        let Timing { cache, memory, .. } = *self.timing;
        let takes = |there, bytes| if there { cache } else { memory }.time_of(bytes);
        let (whole_there, whole_missed) = (takes(true, BLOCK), takes(false, BLOCK));
        let (mut read, mut found) = (0, 0);
        let blocks = self.blocks(target as u64);
        self.cache.read(blocks, |there| {
            let block = left.min(BLOCK);
            left -= block;
            (read, found) = (read + 1, found + u64::from(there));
            taken = taken
                + match (block == BLOCK, there) {
                    (true, true) => whole_there,
                    (true, false) => whole_missed,
                    (false, there) => takes(there, block),
                };
        });
        self.outcome.reads = (self.outcome.reads.0 + read, self.outcome.reads.1 + found);
        self.outcome.accesses += self.load.bytes.div_ceil(BLOCK);
        if self.load.works {
            let first = (1 << 40) / BLOCK + thread as u64 * (1 << 20);
            let blocks = self.timing.working_set / BLOCK;
            self.outcome.accesses += blocks;
            let there = self.cache.reuse(first..first + blocks);
            taken = taken + whole_there * there + whole_missed * (blocks - there);
        }
        self.outcome.handled = self.outcome.handled + taken;
        Ok(taken)
    }
}
