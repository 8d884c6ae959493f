// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU's memory controller in front of one buffer device: a write queue that is drained in batches, rows, the bus.
//!
//! - **Flow** reads go at once; writes wait in the queue until it is full to its high mark, then rows that are open first, until the
//!   low mark. A row is closed and opened as commands need it
//! - **Order** a read whose line waits in the queue drains it first: a device that computes from what it sees must see the read
//! - **Rule** ALERT_N is answered by trying again, after a time
//! - **Not here** refresh; ranks

use super::Line;
use super::ddr::{Command, Place, place};
use super::device::{Answer, Device, Fault};
use super::timing::Timing;
use crate::event::Time;

/// A write that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    address: u64,
    place: Place,
    /// Its place in `lines`.
    slot: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    /// The device on its channel.
    pub device: Device,
    /// In the order in which they came.
    queue: Vec<Waiting>,
    /// The lines to be written, and places among them that are free.
    lines: Vec<Line>,
    free: Vec<usize>,
    now: Time,
    /// Time for which the bus was used or held.
    busy: Time,
    writing: bool,
    /// Commands that went over the bus.
    commands: u64,
    high: usize,
    low: usize,
    burst: Time,
    row: Time,
    turn: Time,
    retry: Time,
}

impl Controller {
    /// A controller in front of a device.
    #[must_use]
    pub fn new(timing: &Timing, device: Device) -> Controller {
        Controller {
            device,
            queue: Vec::new(),
            lines: Vec::new(),
            free: Vec::new(),
            now: Time::ZERO,
            busy: Time::ZERO,
            writing: false,
            commands: 0,
            high: timing.queue_high,
            low: timing.queue_low,
            burst: timing.burst,
            row: timing.row,
            turn: timing.turn,
            retry: timing.retry,
        }
    }

    /// Returns the time at which the bus is free again.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// How long the bus was not free.
    #[must_use]
    pub fn busy(&self) -> Time {
        self.busy
    }

    fn hold(&mut self, time: Time) {
        self.now = self.now + time;
        self.busy = self.busy + time;
    }

    /// Commands that went over the bus.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.commands
    }

    fn send(&mut self, command: Command) -> Result<Answer, Fault> {
        self.commands += 1;
        self.device.slot(command, self.now)
    }

    /// Opens the row of a place.
    fn open(&mut self, place: Place) -> Result<(), Fault> {
        if self.device.open(place.bank) == Some(place.row) {
            return Ok(());
        }
        if self.device.open(place.bank).is_some() {
            self.send(Command::Precharge { bank: place.bank })?;
        }
        self.hold(self.row);
        self.send(Command::Activate { bank: place.bank, row: place.row })?;
        Ok(())
    }

    fn turn(&mut self, writing: bool) {
        if self.writing != writing {
            self.hold(self.turn);
            self.writing = writing;
        }
    }

    /// Reads a line, not before `from`: its bytes, and when they are there.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn read(&mut self, address: u64, from: Time) -> Result<(Line, Time), Fault> {
        self.now = self.now.max(from);
        if self.queue.iter().any(|waiting| waiting.address == address) {
            self.drain(0)?;
        }
        self.turn(false);
        let place = place(address);
        self.open(place)?;
        loop {
            self.hold(self.burst);
            let Place { bank, column, .. } = place;
            match self.send(Command::Read { bank, column })? {
                Answer::Data(data) => return Ok((data, self.now)),
                Answer::Alert | Answer::None => {
                    self.now = self.now + self.retry;
                }
            }
        }
    }

    /// Takes a line to be written; it waits in the queue.
    ///
    /// # Errors
    /// A fault of the device, if the queue is drained.
    pub fn write(&mut self, address: u64, data: Line, from: Time) -> Result<(), Fault> {
        self.now = self.now.max(from);
        // A younger write of the same line replaces the older one.
        if let Some(older) = self.queue.iter().position(|waiting| waiting.address == address) {
            self.free.push(self.queue.remove(older).slot);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.lines.push([0; 64]);
            self.lines.len() - 1
        });
        self.lines[slot] = data;
        self.queue.push(Waiting { address, place: place(address), slot });
        if self.queue.len() >= self.high { self.drain(self.low) } else { Ok(()) }
    }

    /// Writes until so many are left; rows that are open go first.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn drain(&mut self, left: usize) -> Result<(), Fault> {
        while self.queue.len() > left {
            let open = |waiting: &Waiting| self.device.open(waiting.place.bank) == Some(waiting.place.row);
            let first = self.queue.iter().position(open).unwrap_or(0);
            let Waiting { place, slot, .. } = self.queue.remove(first);
            self.turn(true);
            self.open(place)?;
            self.hold(self.burst);
            self.free.push(slot);
            let Place { bank, column, .. } = place;
            self.send(Command::Write { bank, column, data: self.lines[slot] })?;
        }
        Ok(())
    }
}
