// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses who takes a call, and computes for how long.
//!
//! - **Layout** cpu: nobody. dsa: copies, fills and comparisons, by the machine that `reproduce` has (`dsa`). smartdimm: what packs and
//!   encrypts, as CompCpys of pages or records one after the other, each as long as the machine takes that runs it
//!   (`smartdimm::command`): flushed if it was cached, registered, copied by the core, USEd. One channel serves all threads.
//!   nearpm, pulse, dmu: what memlift's own services told of their commits, walks and pages (`service`)
//! - **Rule** a device takes what it can do; whether that pays is asked by size: [`Device::best_size`]
//! - **Method** a machine runs a size once and remembers; opening is taken to last as long as sealing, whose lines go the same way
//! - **Not here** unpacking for SmartDIMM: the paper describes no DSA for it

use memlift_spec::formats::trace::Kind;
use memlift_spec::{Descriptor, Flags, Opcode};

use super::cpu::Cpu;
use super::replay::{Outcome, Timing, replay};
use super::service::{Hardware, Service};
use super::timeline::{Call, Trace};
use crate::dsa::lists::Lists;
use crate::event::{Calendar, Time};
use crate::parameters::{ParameterError, Parameters, Schema};
use crate::smartdimm::command::{self, Took};
use crate::smartdimm::{self, host::Ulp};
use crate::{dmu, dsa, nearpm, pulse};
use std::collections::HashMap;

/// Device that a trace is replayed with.
#[derive(Clone, Debug)]
pub enum Device {
    /// None: the CPU does everything.
    Cpu,
    /// Intel DSA: copies, fills and comparisons.
    Dsa(dsa::Timing),
    /// A buffer device that transforms what is copied through it.
    SmartDimm(smartdimm::Timing),
    /// Persistent memory that copies by itself, an accelerator of walks, memory that the controller packs.
    Service(Service),
}

/// The file of parameters that comes with the crate, and what one must hold; none for the CPU, whose lines are measured.
#[must_use]
pub fn parameters(device: &str) -> Option<(&'static str, &'static Schema)> {
    match device {
        "dsa" => Some((dsa::timing::PARAMETERS, &dsa::timing::SCHEMA)),
        "smartdimm" => Some((smartdimm::timing::PARAMETERS, &smartdimm::timing::SCHEMA)),
        "nearpm" => Some((nearpm::timing::PARAMETERS, &nearpm::timing::SCHEMA)),
        "pulse" => Some((pulse::timing::PARAMETERS, &pulse::timing::SCHEMA)),
        "dmu" => Some((dmu::timing::PARAMETERS, &dmu::timing::SCHEMA)),
        _ => None,
    }
}

impl Device {
    /// From parameters that passed one of the schemas.
    ///
    /// # Errors
    /// A field that contradicts another.
    pub fn new(parameters: &Parameters) -> Result<Device, ParameterError> {
        let service = |hardware| Device::Service(Service::new(hardware));
        match parameters.device() {
            "dsa" => dsa::Timing::new(parameters).map(Device::Dsa),
            "nearpm" => nearpm::Timing::new(parameters).map(Hardware::NearPm).map(service),
            "pulse" => pulse::Timing::new(parameters).map(Hardware::Pulse).map(service),
            "dmu" => dmu::Timing::new(parameters).map(Hardware::Dmu).map(service),
            _ => smartdimm::Timing::new(parameters).map(Device::SmartDimm),
        }
    }

    /// Returns true if a replay with the other one is the same: they differ in nothing that a replay asks for.
    #[must_use]
    pub fn replays_as(&self, other: &Device) -> bool {
        let of = |timing: &dsa::Timing| {
            let dsa::Timing { submit, start, device, turn, queue_entries, engines, wake, .. } = *timing;
            (submit, start, device, turn, queue_entries, engines, wake)
        };
        matches!((self, other), (Device::Dsa(one), Device::Dsa(two)) if of(one) == of(two))
    }

    /// Returns true if it can take this call.
    #[must_use]
    pub fn takes(&self, call: &Call) -> bool {
        // memlift's own operations, as the calls that they stand for.
        let opcode = (call.kind == Kind::Operation).then_some(Opcode(call.parameter as u8));
        match self {
            Device::Cpu => false,
            Device::Dsa(_) => {
                matches!(call.kind, Kind::Copy | Kind::Move | Kind::Fill | Kind::Compare)
                    || matches!(opcode, Some(Opcode::MEMMOVE | Opcode::FILL | Opcode::COMPARE))
            }
            Device::SmartDimm(_) => {
                matches!(call.kind, Kind::Deflate | Kind::Encrypt | Kind::Decrypt)
                    || matches!(opcode, Some(Opcode::SEAL | Opcode::OPEN | Opcode::PACK))
            }
            Device::Service(service) => service.takes(call.kind),
        }
    }

    /// The device, idle, for batches of at most so many calls.
    pub(super) fn engine(&self, batch: usize) -> Engine {
        let (state, lists) = match self {
            Device::Dsa(timing) => (Some(dsa::device::Device::new(timing)), Lists::new(timing, batch)),
            _ => (None, Lists::default()),
        };
        Engine { device: self.clone(), state, lists, took: HashMap::new(), channel: Time::ZERO }
    }

    /// The least size, a power of two, from which on it pays to give calls to the device, and what the run takes then. No size pays:
    /// `without`, the run without it.
    #[must_use]
    pub fn best_size(&self, trace: &Trace, cpu: &Cpu, without: &Outcome) -> (Option<u64>, Outcome) {
        let mut engine = self.engine(1);
        let takes: Vec<u32> =
            trace.calls().filter(|call| self.takes(call)).map(|call| call.bytes().max(1).ilog2()).collect();
        let (Some(least), Some(most)) = (takes.iter().min(), takes.iter().max()) else {
            return (None, *without);
        };
        // The gain of each power of two alone, then the best end of the list.
        let mut gains = vec![0.0f64; 64];
        for thread in &trace.threads {
            for (call, fresh) in thread.calls.iter().zip(&thread.fresh) {
                // A thread that waits for a walk or a disk has no core meanwhile.
                let had = if call.kind.is_work() { call.wall_ns } else { call.cpu_ns };
                gains[call.bytes().max(1).ilog2() as usize] +=
                    had as f64 - engine.alone_ns(call, *fresh, cpu);
            }
        }
        let (mut sum, mut best) = (0.0, (0.0, None));
        for shift in (*least..=*most).rev() {
            sum += gains[shift as usize];
            if sum > best.0 {
                best = (sum, Some(1u64 << shift));
            }
        }
        match best.1 {
            Some(size) => (Some(size), replay(trace, cpu, Timing::Recorded, self, size)),
            None => (None, *without),
        }
    }
}

/// The executor of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placed {
    /// The core does all of it.
    Cpu,
    /// The device's queue; the thread waits.
    Queue,
    /// The core copies, the memory transforms.
    Near,
    /// A service's work, by the device that the paper has for it.
    Work,
}

/// A device at work.
#[derive(Debug)]
pub(super) struct Engine {
    device: Device,
    state: Option<dsa::device::Device>,
    lists: Lists,
    /// Time of CompCpys of so many bytes, their text cached or not.
    took: HashMap<(Ulp, u64, bool), Took>,
    /// Time at which the memory channel, or DMU's unpacker, is free.
    channel: Time,
}

impl Engine {
    /// Places a call, so many pages of whose target were not there yet: those are made by the CPU, and DSA would fault on them.
    pub(super) fn place(&self, call: &Call, fresh: u32) -> Placed {
        if !self.device.takes(call) {
            return Placed::Cpu;
        }
        match &self.device {
            Device::Cpu => Placed::Cpu,
            Device::Dsa(_) if fresh > 0 => Placed::Cpu,
            Device::Dsa(_) => Placed::Queue,
            Device::SmartDimm(_) => Placed::Near,
            Device::Service(_) => Placed::Work,
        }
    }

    /// Returns the end of a service's work that begins now, its time on the core, and its time on the device where all share one.
    pub(super) fn work(&mut self, call: &Call, now: Time) -> (Time, Time, Time) {
        let free = self.channel.max(now);
        match &self.device {
            Device::Service(service) => {
                let (done, core) = service.begin(call, now, &mut self.channel);
                (done, core, self.channel - free)
            }
            _ => (now, Time::ZERO, Time::ZERO),
        }
    }

    /// Time of a call's CompCpys, beside nothing else.
    fn near(&mut self, call: &Call, hot: bool) -> Took {
        let Device::SmartDimm(timing) = &self.device else { return Took::default() };
        let opcode = (call.kind == Kind::Operation).then_some(Opcode(call.parameter as u8));
        let packs = call.kind == Kind::Deflate || opcode == Some(Opcode::PACK);
        let ulp = if packs { Ulp::Deflate } else { Ulp::Tls };
        let most = command::most(timing, ulp);
        let mut of = |bytes: u64| match bytes {
            0 => Took::default(),
            _ => *self.took.entry((ulp, bytes, hot)).or_insert_with(|| {
                command::took(timing, ulp, bytes, hot).expect("one call has the whole device")
            }),
        };
        let (whole, rest) = (of(if call.read < most { 0 } else { most }), of(call.read % most));
        let times = call.read / most;
        Took { core: whole.core * times + rest.core, bus: whole.bus * times + rest.bus }
    }

    /// Returns the end of a call that begins now, and its time on the channel, which other calls may have.
    pub(super) fn copy(&mut self, call: &Call, hot: bool, now: Time) -> (Time, Time) {
        let took = self.near(call, hot);
        self.channel = now.max(self.channel) + took.bus;
        (self.channel.max(now + took.core), took.bus)
    }

    /// Returns the time that DSA is busy with these calls of one submission: their bytes pass its memory path, and each has an engine.
    pub(super) fn occupied(&self, calls: &[Call]) -> Time {
        let Device::Dsa(timing) = &self.device else { return Time::ZERO };
        let one = |call: &Call| {
            let path = timing.device.time_of(call.bytes());
            path.max(Time::from_ps((timing.start + path).as_ps() / timing.engines as u64))
        };
        calls.iter().map(one).fold(Time::ZERO, |sum, time| sum + time)
    }

    /// Nanoseconds of a call when nothing else is under way.
    fn alone_ns(&mut self, call: &Call, fresh: u32, cpu: &Cpu) -> f64 {
        match (self.place(call, fresh), &self.device) {
            (Placed::Queue, Device::Dsa(timing)) => {
                let time = timing.submit + timing.start + timing.device.time_of(call.bytes()) + timing.wake;
                time.as_ps() as f64 / 1e3
            }
            (Placed::Work, Device::Service(service)) => service.alone(call).0.as_ps() as f64 / 1e3,
            (Placed::Near, _) => {
                self.near(call, false).core.as_ps() as f64 / 1e3 + f64::from(fresh) * cpu.fault.ns
            }
            _ => call.cpu_ns as f64,
        }
    }

    pub(super) fn submit(&self) -> Time {
        if let Device::Dsa(timing) = &self.device { timing.submit } else { Time::ZERO }
    }

    /// Time of a batch of so many calls like this one, from the queue on, beside nothing else.
    pub(super) fn batch_time(&self, call: &Call, calls: usize) -> Time {
        let Device::Dsa(timing) = &self.device else { return Time::ZERO };
        timing.start + timing.device.time_of(call.bytes()) * calls as u64
    }

    pub(super) fn wake(&self) -> Time {
        if let Device::Dsa(timing) = &self.device { timing.wake } else { Time::ZERO }
    }

    /// Puts calls into the device's queue, one or a batch, after the submission's time; none: it is full.
    pub(super) fn enter<E>(
        &mut self,
        calls: &[Call],
        calendar: &mut Calendar<E>,
        event: impl Fn(usize) -> E,
    ) -> Option<usize> {
        // A trace has no bytes: a descriptor that touches no memory takes the time of its size.
        let of = |call: &Call| {
            let mut descriptor = Descriptor::new(Opcode::NOOP, Flags::NONE);
            descriptor.size = u32::try_from(call.bytes()).unwrap_or(u32::MAX);
            descriptor
        };
        let device = self.state.as_mut()?;
        if let [call] = calls {
            return device.submit(&of(call), calendar, event);
        }
        let members: Vec<Descriptor> = calls.iter().map(of).collect();
        self.lists.submit(device, &members, calendar, event)
    }

    pub(super) fn happen<E>(
        &mut self,
        engine: usize,
        calendar: &mut Calendar<E>,
        event: impl Fn(usize) -> E,
    ) -> Option<usize> {
        let mut memory = self.lists.memory();
        self.state.as_mut()?.happen(engine, &mut memory, calendar, event)
    }
}
