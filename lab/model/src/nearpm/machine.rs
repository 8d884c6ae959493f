// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Host threads, PCIe and devices, until the programs end or the power fails.
//!
//! - **Flow** a thread gets a core and its transaction's pages ─▶ steps ─▶ packets, in one order for each device ─▶ effects ─▶ events
//! - **Order** transactions are numbered when they get their pages; who waits for pages or a core gets them in the order of asking
//! - **Owner** the machine has all threads, devices and the calendar. Caches are lost with the power, what is on the wire too
//! - **Not here** what a transaction's steps are (`transaction`)

use super::device::{Access, Device, Effect, Packet, Request};
use super::layout::{AddressTable, Layout, Range};
use super::timing::{Shape, Sync, Timing};
use super::transaction::{Mechanism, POOL, Place, Step, Transaction, VIRTUAL, steps};
use crate::event::{Calendar, Random, Time};
use std::collections::VecDeque;

/// Bytes of a packet around what it carries: a command's words, a TLP's header.
const PACKET: u64 = 24;
/// Bytes of a command: seven words (the artifact's).
const COMMAND: u64 = 28;

/// A transaction that got its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Number of the transaction in the order of all.
    pub sequence: u64,
    /// Thread that runs it.
    pub thread: usize,
    /// Number of the transaction among its thread's.
    pub turn: u64,
    /// Time at which it was durable; `None`: not known to be.
    pub acknowledged: Option<Time>,
    /// Devices that have still to accept its end.
    waiting: u32,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Time at which the last thread ended.
    pub end: Time,
    /// Time that all threads spent in code for crash consistency.
    pub region: Time,
    /// Time in which both a unit and a thread were at work.
    pub overlap: Time,
    /// Transactions, in their order.
    pub begun: Vec<Begun>,
    /// Time of each event, in order.
    pub times: Vec<Time>,
    /// The heap as programs see it.
    pub heap: Vec<u8>,
}

/// State that a device leaves.
#[derive(Clone, Debug)]
pub struct Survivor {
    /// Contents of the device's memory.
    pub memory: Vec<u8>,
    /// Accepted commands, in their order.
    pub requests: Vec<Request>,
    /// Accepted writes of the host, in their order.
    pub writes: Vec<Access>,
}

/// State after a power failure.
#[derive(Clone, Debug)]
pub struct Wreck {
    /// Where things lie.
    pub layout: Layout,
    /// How programs survive.
    pub mechanism: Mechanism,
    /// How devices came to one state.
    pub sync: Sync,
    /// State that each device leaves.
    pub devices: Vec<Survivor>,
    /// Knowledge of the world outside.
    pub begun: Vec<Begun>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Thread(usize),
    Arrive(usize),
    Move(usize, u64),
    Signal(usize, usize, (u16, u64)),
    Reply(usize, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asking,
    Running,
    Fence,
    Read,
    Poll,
    Ended,
}

#[derive(Debug)]
struct Thread {
    transactions: VecDeque<Transaction>,
    steps: VecDeque<Step>,
    pages: Vec<u64>,
    turn: u64,
    begun: usize,
    /// Writes that a fence waits for.
    writes: usize,
    /// For each device: commands that are not done, and when the last one was.
    commands: Vec<(u32, Time)>,
    stage: Stage,
    region: Option<(Time, u32)>,
}

/// See the module.
#[derive(Debug)]
pub struct Machine {
    layout: Layout,
    timing: Timing,
    shape: Shape,
    mechanism: Mechanism,
    evictions: Option<Random>,
    calendar: Calendar<Event>,
    devices: Vec<Device>,
    /// Packets on their way to each device.
    wires: Vec<VecDeque<Packet>>,
    /// Additional time of a packet to each device.
    distances: Vec<Time>,
    wire: Time,
    threads: Vec<Thread>,
    asking: VecDeque<usize>,
    cores: usize,
    pages: Vec<bool>,
    second: Vec<bool>,
    begun: Vec<Begun>,
    region: Time,
    overlap: Time,
    last: Time,
    refused: bool,
    effects: Vec<Effect>,
}

impl Machine {
    /// A machine whose threads will make these transactions, one after the other each.
    ///
    /// # Errors
    /// What makes it impossible.
    pub fn new(
        timing: &Timing,
        shape: Shape,
        mechanism: Mechanism,
        heap: u64,
        half: u64,
        threads: Vec<Vec<Transaction>>,
    ) -> Result<Machine, String> {
        if !(1..=4).contains(&shape.devices) || !(1..=64).contains(&shape.units) {
            return Err(format!("{} devices of {} units: 1 to 4 of 1 to 64", shape.devices, shape.units));
        }
        let copies = mechanism == Mechanism::Shadow;
        let (devices, interleave, lanes) = (shape.devices, timing.interleave, threads.len());
        let layout = Layout { devices, interleave, heap, copies, lanes, half };
        layout.check()?;
        let good = |(at, bytes): &(u64, Vec<u8>)| {
            let length = bytes.len() as u64;
            let whole = at.is_multiple_of(8) && length.is_multiple_of(8);
            length > 0 && whole && at % 4096 + length <= 4096 && at.saturating_add(length) <= heap
        };
        if !threads.iter().flatten().flat_map(|transaction| &transaction.writes).all(good) {
            return Err("a write is not in 8 bytes, crosses a page or leaves the heap".into());
        }
        let mut table = AddressTable::default();
        (0..lanes).for_each(|thread| table.map(POOL, thread as u16, VIRTUAL, layout.all()));
        let device = |index| Device::new(index, layout, timing, shape.units, shape.sync, table.clone());
        let thread = |transactions: Vec<Transaction>| Thread {
            transactions: transactions.into(),
            steps: VecDeque::new(),
            pages: Vec::new(),
            turn: 0,
            begun: 0,
            writes: 0,
            commands: vec![(0, Time::ZERO); devices],
            stage: Stage::Asking,
            region: None,
        };
        let pages = (heap / super::layout::PAGE) as usize;
        let mut machine = Machine {
            layout,
            timing: timing.clone(),
            shape,
            mechanism,
            evictions: None,
            calendar: Calendar::new(),
            devices: (0..devices).map(device).collect(),
            wires: vec![VecDeque::new(); devices],
            distances: vec![Time::ZERO; devices],
            wire: Time::ZERO,
            threads: threads.into_iter().map(thread).collect(),
            asking: (0..lanes).collect(),
            cores: timing.cores,
            pages: vec![false; pages],
            second: vec![false; pages],
            begun: Vec::new(),
            region: Time::ZERO,
            overlap: Time::ZERO,
            last: Time::ZERO,
            refused: false,
            effects: Vec::new(),
        };
        machine.grant();
        Ok(machine)
    }

    /// Caches give up stored lines when they like, by seed.
    #[must_use]
    pub fn with_evictions(mut self, seed: u64) -> Machine {
        self.evictions = Some(Random::new(seed));
        self
    }

    /// Each device is so much further away.
    #[must_use]
    pub fn with_distances(mut self, distances: Vec<Time>) -> Machine {
        self.distances.iter_mut().zip(distances).for_each(|(old, new)| *old = new);
        self
    }

    /// Runs until all threads have ended.
    ///
    /// # Errors
    /// If a device refused a command: the program is wrong.
    pub fn run(mut self) -> Result<Report, String> {
        let mut times = Vec::new();
        while let Some(event) = self.calendar.pop() {
            times.push(self.calendar.now());
            self.happen(event);
        }
        if self.refused || self.threads.iter().any(|thread| thread.stage != Stage::Ended) {
            return Err("a device refused a command, or a thread waits for ever".into());
        }
        let mut heap = vec![0; self.layout.heap as usize];
        view(&self.layout, &|device| &self.devices[device].memory, &self.second, &mut heap);
        let end = self.calendar.now();
        Ok(Report { end, region: self.region, overlap: self.overlap, begun: self.begun, times, heap })
    }

    /// Runs until the power fails at `time`; events of the same picosecond have not happened.
    #[must_use]
    pub fn fail_at(mut self, time: Time) -> Wreck {
        while self.calendar.next().is_some_and(|next| next < time) {
            if let Some(event) = self.calendar.pop() {
                self.happen(event);
            }
        }
        let survivor = |device: Device| {
            let (memory, requests, writes) = device.persistent();
            Survivor { memory, requests, writes }
        };
        let devices = self.devices.into_iter().map(survivor).collect();
        let (layout, mechanism, sync) = (self.layout, self.mechanism, self.shape.sync);
        Wreck { layout, mechanism, sync, devices, begun: self.begun }
    }

    fn happen(&mut self, event: Event) {
        let now = self.calendar.now();
        let computing = self.threads.iter().any(|thread| thread.stage == Stage::Running);
        if computing && self.devices.iter().any(Device::busy) {
            self.overlap = self.overlap + (now - self.last);
        }
        self.last = now;
        match event {
            Event::Thread(thread) => self.go_on(thread),
            Event::Arrive(device) => {
                if let Some(packet) = self.wires[device].pop_front() {
                    self.devices[device].inbox.push_back(packet);
                }
                self.devices[device].advance(now, &mut self.effects);
                self.settle(device);
            }
            Event::Move(device, serial) => {
                self.devices[device].moved(serial, now, &mut self.effects);
                self.settle(device);
            }
            Event::Signal(device, from, key) => {
                self.devices[device].remote_complete(from, key, now, &mut self.effects);
                self.settle(device);
            }
            Event::Reply(thread, write) => {
                let thread_state = &mut self.threads[thread];
                if write {
                    thread_state.writes -= 1;
                }
                let waits = match thread_state.stage {
                    Stage::Fence => thread_state.writes == 0,
                    Stage::Read => !write,
                    _ => false,
                };
                if waits {
                    self.go_on(thread);
                }
            }
        }
    }

    /// Applies the effects of a device.
    fn settle(&mut self, device: usize) {
        let now = self.calendar.now();
        let (wire, media) = (self.timing.wire, self.timing.media);
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Accepted(thread, sequence) => {
                    let ends = self.shape.sync == Sync::Delayed;
                    let begun = self.begun.iter_mut().rev().find(|begun| begun.sequence == sequence);
                    if let (Some(begun), true) = (begun, ends) {
                        debug_assert_eq!(begun.thread, thread as usize);
                        begun.waiting = begun.waiting.saturating_sub(1);
                        if begun.waiting == 0 {
                            begun.acknowledged = begun.acknowledged.or(Some(now));
                        }
                    }
                }
                Effect::Refused(_) => self.refused = true,
                Effect::Served(thread, write) => {
                    self.calendar.after(media + wire, Event::Reply(thread as usize, write));
                }
                Effect::Move(serial, at) => self.calendar.at(at, Event::Move(device, serial)),
                Effect::Signal(thread, sequence) => {
                    for other in (0..self.devices.len()).filter(|&other| other != device) {
                        self.calendar.after(wire, Event::Signal(other, device, (thread, sequence)));
                    }
                }
                Effect::Done(thread) => {
                    let (commands, last) = &mut self.threads[thread as usize].commands[device];
                    (*commands, *last) = (*commands - 1, now);
                }
            }
        }
    }

    /// Gives cores and pages to threads that ask for them, in the order of asking.
    fn grant(&mut self) {
        let mut index = 0;
        let mut wanted: Vec<u64> = Vec::new();
        while self.cores > 0
            && let Some(&thread) = self.asking.get(index)
        {
            let Some(transaction) = self.threads[thread].transactions.front() else {
                self.threads[thread].stage = Stage::Ended;
                self.asking.remove(index);
                continue;
            };
            let pages = transaction.pages();
            if pages.iter().any(|page| self.pages[*page as usize] || wanted.contains(page)) {
                wanted.extend(pages);
                index += 1;
                continue;
            }
            self.asking.remove(index);
            self.cores -= 1;
            pages.iter().for_each(|page| self.pages[*page as usize] = true);
            self.begin(thread, pages);
        }
        if self.cores == 0 {
            return;
        }
        // A thread without work need not wait for a core.
        let threads = &mut self.threads;
        self.asking.retain(|&thread| !threads[thread].transactions.is_empty());
    }

    fn begin(&mut self, thread: usize, pages: Vec<u64>) {
        let sequence = self.begun.len() as u64 + 1;
        let state = &mut self.threads[thread];
        let Some(transaction) = state.transactions.pop_front() else { return };
        let turn = state.turn;
        let place = Place {
            layout: &self.layout,
            timing: &self.timing,
            sync: self.shape.sync,
            thread,
            turn,
            sequence,
            second: &self.second,
        };
        state.steps = steps(&transaction, self.mechanism, place, self.evictions.as_mut());
        (state.turn, state.pages, state.stage, state.begun) =
            (turn + 1, pages, Stage::Running, self.begun.len());
        self.begun.push(Begun {
            sequence,
            thread,
            turn,
            acknowledged: None,
            waiting: self.devices.len() as u32,
        });
        self.calendar.after(Time::ZERO, Event::Thread(thread));
    }

    fn send(&mut self, device: usize, bytes: u64, packet: Packet) {
        let now = self.calendar.now();
        self.wire = self.wire.max(now) + self.timing.pcie.time_of(PACKET + bytes);
        self.wires[device].push_back(packet);
        self.calendar.at(self.wire + self.timing.wire + self.distances[device], Event::Arrive(device));
    }

    /// The thread's next steps, until one takes time.
    fn go_on(&mut self, thread: usize) {
        let now = self.calendar.now();
        if self.threads[thread].stage == Stage::Poll && !self.polled(thread) {
            return self.poll(thread);
        }
        self.threads[thread].stage = Stage::Running;
        while let Some(step) = self.threads[thread].steps.pop_front() {
            let state = &mut self.threads[thread];
            match step {
                Step::Work(time) => return self.calendar.after(time, Event::Thread(thread)),
                Step::Enter => {
                    let (since, depth) = state.region.unwrap_or((now, 0));
                    state.region = Some((since, depth + 1));
                }
                Step::Leave => {
                    if let Some((since, depth)) = state.region {
                        state.region = (depth > 1).then_some((since, depth - 1));
                        if depth == 1 {
                            self.region = self.region + (now - since);
                        }
                    }
                }
                Step::Command(command) => {
                    for device in
                        (0..self.devices.len()).filter(|device| command.participants >> device & 1 == 1)
                    {
                        self.threads[thread].commands[device].0 += 1;
                        self.send(device, COMMAND, Packet::Command(command.clone()));
                    }
                    return self.calendar.after(self.timing.command, Event::Thread(thread));
                }
                Step::Flush(device, range, bytes, told) => {
                    state.writes += usize::from(told);
                    self.send(device, range.bytes, Packet::Write(thread as u16, range, bytes, told));
                }
                Step::Fence if state.writes == 0 => {}
                Step::Fence => {
                    state.stage = Stage::Fence;
                    return;
                }
                Step::Read(device, range) => {
                    state.stage = Stage::Read;
                    self.send(device, 0, Packet::Read(thread as u16, range));
                    return;
                }
                Step::Poll => {
                    state.stage = Stage::Poll;
                    return self.poll(thread);
                }
                Step::Acknowledge => {
                    let begun = &mut self.begun[state.begun];
                    begun.acknowledged = begun.acknowledged.or(Some(now));
                }
                Step::Switch(page) => self.second[page as usize] ^= true,
                Step::End => {
                    state.stage = Stage::Asking;
                    for page in std::mem::take(&mut state.pages) {
                        self.pages[page as usize] = false;
                    }
                    if state.transactions.is_empty() {
                        state.stage = Stage::Ended;
                    } else {
                        self.asking.push_back(thread);
                    }
                    self.cores += 1;
                    return self.grant();
                }
            }
        }
    }

    /// A read of each device's state, one after the other.
    fn poll(&mut self, thread: usize) {
        let time = (self.timing.wire * 2) * self.devices.len() as u64;
        self.calendar.after(time, Event::Thread(thread));
    }

    /// Returns true if every device was done when the reads that have just come back were there.
    fn polled(&self, thread: usize) -> bool {
        let now = self.calendar.now();
        self.threads[thread].commands.iter().rev().enumerate().all(|(later, (commands, last))| {
            let seen = self.timing.wire * (2 * later as u64 + 1);
            *commands == 0 && *last + seen <= now
        })
    }
}

/// The heap as programs see it: the valid copy of each page, out of the devices' memories.
pub fn view<'a>(layout: &Layout, memory: &dyn Fn(usize) -> &'a [u8], second: &[bool], heap: &mut [u8]) {
    let page_bytes = super::layout::PAGE;
    for (page, target) in heap.chunks_mut(page_bytes as usize).enumerate() {
        let copy = u64::from(layout.copies && second[page]) * layout.heap;
        for piece in layout.split(Range::new(page as u64 * page_bytes + copy, page_bytes)) {
            let source = &memory(piece.device)[piece.local.at as usize..piece.local.end() as usize];
            target[piece.offset as usize..][..source.len()].copy_from_slice(source);
        }
    }
}
