// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device: request FIFO, dispatcher, units, bus, host queue, and the bytes of its persistent memory.
//!
//! - **Flow** packet ─▶ inbox ─▶ FIFO (a command) or host queue (an access) ─▶ dispatcher ─▶ unit: a burst at a time over the bus
//!   ─▶ done here ─▶ told to the others ─▶ done everywhere: the log is deleted
//! - **Order** packets are accepted as they came; a full FIFO or host queue stops those behind. What was accepted goes ahead when
//!   nothing that was accepted before it touches the same bytes, one of them writing: commands in their order,
//!   accesses of the host past commands that do not concern them
//! - **Owner** what was accepted is in the persistence domain: FIFO, units' registers, handler and host queue outlive the power.
//!   The inbox does not
//! - **Not here** threads and wires (`machine`); what a wreck becomes (`recover`)

use super::command::{self, Command, Primitive};
use super::layout::{AddressTable, Layout, Range, word};
use super::sync::Handler;
use super::timing::{Sync, Timing};
use crate::event::Time;
use std::collections::VecDeque;

/// A packet on the wire.
#[derive(Clone, Debug)]
pub enum Packet {
    /// A command to accept.
    Command(Command),
    /// Bytes for the device's memory; whether their thread waits for them.
    Write(u16, Range, Vec<u8>, bool),
    /// A thread wants to read.
    Read(u16, Range),
}

/// A command that was accepted.
#[derive(Clone, Debug)]
pub struct Request {
    /// Number among everything that the device accepted.
    pub serial: u64,
    /// Command that was accepted.
    pub command: Command,
    /// Bytes of the device that it reads.
    pub reads: Vec<Range>,
    /// Bytes of the device that it writes.
    pub writes: Vec<Range>,
    /// Range of the log to which its record goes.
    pub place: Range,
    /// True if its own work is done.
    pub local: bool,
}

/// A host's access that was accepted and waits.
#[derive(Clone, Debug)]
pub struct Access {
    /// Number among everything that the device accepted.
    pub serial: u64,
    thread: u16,
    /// Bytes of the device that it accesses.
    pub range: Range,
    /// Bytes to write; `None`: a read.
    pub bytes: Option<Vec<u8>>,
    told: bool,
}

/// An action that the rest of the machine has to take.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A command ends a transaction and outlives the power from now on.
    Accepted(u16, u64),
    /// A command's bytes cannot be had: no such pool, or no room.
    Refused(u16),
    /// An access of this thread is done.
    Served(u16, bool),
    /// A unit's next burst, or its end, at that time.
    Move(u64, Time),
    /// The others have to know.
    Signal(u16, u64),
    /// A command of this thread is done here.
    Done(u16),
}

/// A request in a unit.
#[derive(Clone, Debug)]
struct Unit {
    serial: u64,
    /// Writes that are left, first byte first.
    output: VecDeque<(u64, Vec<u8>)>,
    /// The burst on the bus.
    moving: Option<(u64, Vec<u8>)>,
    ended: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Device {
    index: usize,
    layout: Layout,
    timing: Timing,
    sync: Sync,
    /// Contents of the device's persistent memory.
    pub memory: Vec<u8>,
    table: AddressTable,
    /// Packets that have arrived and found no room.
    pub inbox: VecDeque<Packet>,
    fifo: VecDeque<Request>,
    active: Vec<Request>,
    host: VecDeque<Access>,
    units: Vec<Unit>,
    free: usize,
    bus: Time,
    handler: Handler,
    serial: u64,
    /// For each lane: the transaction, and where its next record goes.
    cursors: Vec<(u64, u64)>,
}

/// Returns true if some of these share a byte with some of those.
pub fn meet(a: &[Range], b: &[Range]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.meets(*y)))
}

impl Device {
    /// A device whose heap is all 0.
    #[must_use]
    pub fn new(
        index: usize,
        layout: Layout,
        timing: &Timing,
        units: usize,
        sync: Sync,
        table: AddressTable,
    ) -> Device {
        Device {
            index,
            layout,
            timing: timing.clone(),
            sync,
            memory: vec![0; layout.local_bytes()],
            table,
            inbox: VecDeque::new(),
            fifo: VecDeque::new(),
            active: Vec::new(),
            host: VecDeque::new(),
            units: Vec::new(),
            free: units,
            bus: Time::ZERO,
            handler: Handler::new(index),
            serial: 0,
            cursors: vec![(0, 0); layout.lanes],
        }
    }

    /// Returns true if a unit is at work.
    #[must_use]
    pub fn busy(&self) -> bool {
        !self.units.is_empty()
    }

    /// Returns the state that outlives the power: accepted commands and writes, in their order.
    #[must_use]
    pub fn persistent(self) -> (Vec<u8>, Vec<Request>, Vec<Access>) {
        let mut requests: Vec<Request> = self.active;
        requests.extend(self.fifo);
        requests.sort_unstable_by_key(|request| request.serial);
        (self.memory, requests, self.host.into_iter().filter(|access| access.bytes.is_some()).collect())
    }

    /// Takes in what has arrived, as far as there is room, and starts what can go ahead.
    pub fn advance(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            let accepted = self.accept(now, effects);
            let dispatched = self.dispatch(now, effects);
            let served = self.serve(effects);
            if !(accepted || dispatched || served) {
                return;
            }
        }
    }

    fn accept(&mut self, _now: Time, effects: &mut Vec<Effect>) -> bool {
        let mut some = false;
        while let Some(packet) = self.inbox.front() {
            let room = match packet {
                Packet::Command(_) => self.fifo.len() < self.timing.fifo_entries,
                _ => self.host.len() < self.timing.host_lines,
            };
            if !room {
                break;
            }
            let packet = self.inbox.pop_front();
            some = true;
            self.serial += 1;
            let serial = self.serial;
            match packet {
                Some(Packet::Command(command)) => match self.request(serial, command) {
                    Ok(request) => {
                        let command = &request.command;
                        if matches!(command.primitive, Primitive::CommitLog | Primitive::ApplyLog) {
                            effects.push(Effect::Accepted(command.thread, command.sequence));
                        }
                        self.fifo.push_back(request);
                    }
                    Err(thread) => effects.push(Effect::Refused(thread)),
                },
                Some(Packet::Write(thread, range, bytes, told)) => {
                    self.host.push_back(Access { serial, thread, range, bytes: Some(bytes), told });
                }
                Some(Packet::Read(thread, range)) => {
                    self.host.push_back(Access { serial, thread, range, bytes: None, told: true });
                }
                None => {}
            }
        }
        some
    }

    /// Decodes and translates: which bytes of this device a command is about.
    fn request(&mut self, serial: u64, command: Command) -> Result<Request, u16> {
        let thread = command.thread as usize;
        let refused = Err(command.thread);
        if thread >= self.layout.lanes {
            return refused;
        }
        let (layout, index) = (self.layout, self.index);
        let own = |range: Range| {
            layout
                .split(range)
                .into_iter()
                .filter(move |piece| piece.device == index)
                .map(|piece| piece.local)
        };
        let mut ranges = Vec::new();
        for range in &command.ranges {
            match self.table.translate(command.pool, command.thread, *range) {
                Some(range) => ranges.push(range),
                None => return refused,
            }
        }
        let pieces: Vec<Range> = ranges.iter().flat_map(|&range| own(range)).collect();
        let (half, head) = (layout.half(thread, command.turn), layout.head(thread));
        let mut place = Range::new(half.at, 0);
        let (reads, writes) = match command.primitive {
            Primitive::UndoLog | Primitive::Checkpoint => {
                let extra = if command.primitive == Primitive::UndoLog { 8 } else { 16 };
                let bytes = 32 + pieces.iter().map(|piece| extra + piece.bytes).sum::<u64>();
                let cursor = &mut self.cursors[thread];
                if cursor.0 != command.sequence {
                    *cursor = (command.sequence, half.at);
                }
                place = Range::new(cursor.1, bytes.next_multiple_of(64));
                if place.end() > half.end() {
                    return refused;
                }
                cursor.1 = place.end();
                (pieces, vec![place])
            }
            Primitive::ShadowCopy => {
                let other = |range: Range| Range::new((range.at + layout.heap) % layout.all(), range.bytes);
                (pieces, ranges.iter().flat_map(|&range| own(other(range))).collect())
            }
            Primitive::ApplyLog => (vec![half], [pieces, vec![head]].concat()),
            Primitive::CommitLog => (vec![half], vec![head]),
        };
        Ok(Request { serial, command, reads, writes, place, local: false })
    }

    /// Returns true if something that was accepted before, and is not done, touches these bytes.
    fn conflicts(&self, serial: u64, reads: &[Range], writes: &[Range]) -> bool {
        let requests = self.active.iter().chain(&self.fifo).filter(|other| other.serial < serial);
        let mut accesses = self.host.iter().filter(|other| other.serial < serial);
        requests.into_iter().any(|other| {
            meet(writes, &other.reads) || meet(writes, &other.writes) || meet(reads, &other.writes)
        }) || accesses.any(|other| {
            let range = [other.range];
            meet(writes, &range) || (other.bytes.is_some() && meet(reads, &range))
        })
    }

    fn dispatch(&mut self, now: Time, effects: &mut Vec<Effect>) -> bool {
        let mut some = false;
        while self.free > 0 {
            let Some(first) = self.fifo.front() else { break };
            if self.conflicts(first.serial, &first.reads, &first.writes) {
                break;
            }
            let Some(request) = self.fifo.pop_front() else { break };
            let output = output(&self.layout, &self.memory, &request);
            let burst = self.timing.burst as usize;
            let output = output
                .into_iter()
                .flat_map(|(at, bytes)| {
                    let pieces: Vec<_> = bytes.chunks(burst).map(<[u8]>::to_vec).collect();
                    pieces
                        .into_iter()
                        .enumerate()
                        .map(move |(index, piece)| (at + (index * burst) as u64, piece))
                })
                .collect();
            self.units.push(Unit { serial: request.serial, output, moving: None, ended: false });
            self.free -= 1;
            let start = now + self.timing.unit_cycle * self.timing.request_cycles + self.timing.media;
            effects.push(Effect::Move(request.serial, start));
            if self.synchronises(&request.command) {
                let key = (request.command.thread, request.command.sequence);
                self.handler.begin(key, request.command.participants);
            }
            self.active.push(request);
            some = true;
        }
        some
    }

    fn synchronises(&self, command: &Command) -> bool {
        self.sync == Sync::Delayed && matches!(command.primitive, Primitive::CommitLog | Primitive::ApplyLog)
    }

    /// Accesses of the host that nothing holds up.
    fn serve(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut some = false;
        let mut index = 0;
        while let Some(access) = self.host.get(index) {
            let range = [access.range];
            let (reads, writes): (&[Range], &[Range]) =
                if access.bytes.is_some() { (&[], &range) } else { (&range, &[]) };
            if self.conflicts(access.serial, reads, writes) {
                index += 1;
                continue;
            }
            if let Some(access) = self.host.remove(index) {
                if let Some(bytes) = &access.bytes {
                    self.memory[access.range.at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                if access.told {
                    effects.push(Effect::Served(access.thread, access.bytes.is_some()));
                }
                some = true;
            }
        }
        some
    }

    /// A unit's burst has crossed the bus, or its last byte is in memory.
    pub fn moved(&mut self, serial: u64, now: Time, effects: &mut Vec<Effect>) {
        let Some(index) = self.units.iter().position(|unit| unit.serial == serial) else { return };
        let unit = &mut self.units[index];
        if let Some((at, bytes)) = unit.moving.take() {
            self.memory[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        if let Some(burst) = unit.output.pop_front() {
            self.bus = self.bus.max(now) + self.timing.bus.time_of(burst.1.len() as u64);
            unit.moving = Some(burst);
            effects.push(Effect::Move(serial, self.bus));
        } else if !unit.ended {
            unit.ended = true;
            effects.push(Effect::Move(serial, now + self.timing.media));
        } else {
            self.units.swap_remove(index);
            self.free += 1;
            self.local_complete(serial, effects);
            self.advance(now, effects);
        }
    }

    fn local_complete(&mut self, serial: u64, effects: &mut Vec<Effect>) {
        let Some(request) = self.active.iter_mut().find(|request| request.serial == serial) else { return };
        request.local = true;
        let (thread, sequence) = (request.command.thread, request.command.sequence);
        let command = request.command.clone();
        effects.push(Effect::Done(thread));
        if self.synchronises(&command) {
            if command.participants.count_ones() > 1 {
                effects.push(Effect::Signal(thread, sequence));
            }
            if self.handler.complete((thread, sequence), self.index) {
                self.finish(serial);
            }
        } else {
            self.finish(serial);
        }
    }

    /// Another device says that it is done.
    pub fn remote_complete(&mut self, from: usize, key: (u16, u64), now: Time, effects: &mut Vec<Effect>) {
        if self.handler.complete(key, from) {
            let told = self.active.iter().find(|request| {
                request.local
                    && (request.command.thread, request.command.sequence) == key
                    && self.synchronises(&request.command)
            });
            if let Some(serial) = told.map(|request| request.serial) {
                self.finish(serial);
            }
        }
        self.advance(now, effects);
    }

    /// Nothing needs the request any more; if it ends a transaction, its log is deleted.
    fn finish(&mut self, serial: u64) {
        let Some(index) = self.active.iter().position(|request| request.serial == serial) else { return };
        let command = self.active.swap_remove(index).command;
        if deletes(&command, self.sync) {
            delete(&self.layout, &mut self.memory, &command);
        }
    }
}

/// Returns true if the end of a command is the end of its transaction's log.
#[must_use]
pub fn deletes(command: &Command, sync: Sync) -> bool {
    command.primitive == Primitive::CommitLog
        || (command.primitive == Primitive::ApplyLog && sync == Sync::Delayed)
}

/// Deletes a transaction's log.
pub fn delete(layout: &Layout, memory: &mut [u8], command: &Command) {
    let thread = command.thread as usize;
    if word(memory, layout.head(thread).at) < command.sequence {
        command::reset(layout, memory, thread, command.sequence);
    }
}

/// Returns the writes of a request, in their order; nothing that does not belong to it.
#[must_use]
pub fn output(layout: &Layout, memory: &[u8], request: &Request) -> Vec<(u64, Vec<u8>)> {
    let bytes = |range: &Range| &memory[range.at as usize..range.end() as usize];
    let half = layout.half(request.command.thread as usize, request.command.turn);
    let position = request.place.at - half.at;
    let entries: Vec<(Range, &[u8])> = request.reads.iter().map(|range| (*range, bytes(range))).collect();
    match request.command.primitive {
        Primitive::UndoLog => {
            vec![(request.place.at, command::ranges(true, position, request.command.sequence, &entries))]
        }
        Primitive::Checkpoint => {
            vec![(request.place.at, command::lines(position, request.command.sequence, &entries))]
        }
        Primitive::ShadowCopy => request
            .reads
            .iter()
            .zip(&request.writes)
            .map(|(from, to)| (to.at, bytes(from).to_vec()))
            .collect(),
        Primitive::ApplyLog => {
            let mut after = memory.to_vec();
            command::apply(layout, &mut after, half, 0);
            let head = layout.head(request.command.thread as usize);
            let changed = request.writes.iter().filter(|range| **range != head);
            changed.map(|range| (range.at, after[range.at as usize..range.end() as usize].to_vec())).collect()
        }
        Primitive::CommitLog => Vec::new(),
    }
}
