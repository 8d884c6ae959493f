// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who takes which call, and for how long.
//!
//! Layout   cpu: nobody. dsa: copies, fills and comparisons, by the machine that `reproduce` has (`dsa`). smartdimm: what transforms,
//!          as a CompCpy: pages are registered, what is cached is flushed, the core copies, the buffer device transforms on the way
//! Rule     a device takes what it can do; whether that pays is asked by size: [`Device::best_size`]
//! Not here nearpm, pulse, dmu: they serve logs, walks and single pages, which calls of libc and libraries do not show

use memlift_spec::trace::Kind;
use memlift_spec::{Descriptor, Flags, Opcode};

use super::cpu::Cpu;
use super::replay::{Outcome, Timing, replay};
use super::timeline::{Call, Trace};
use crate::dsa;
use crate::event::{Calendar, Rate, Time};
use crate::memory::Image;
use crate::parameters::{ParameterError, Parameters, Quantity, Schema, field};

const MS: u64 = 1_000_000_000;

/// What the file of the SmartDIMM holds.
pub const SMARTDIMM: Schema = Schema {
    device: "whatif-smartdimm",
    fields: &[
        field("register_page", Quantity::Time, 0, MS),
        field("flush_line", Quantity::Time, 0, MS),
        field("copy_rate", Quantity::Rate, 1_000_000, 100_000_000_000_000),
        field("slack", Quantity::Time, 0, MS),
    ],
};

/// A device.
#[derive(Clone, Debug)]
pub enum Device {
    /// None: the CPU does everything.
    Cpu,
    /// Intel DSA.
    Dsa(dsa::Timing),
    /// A buffer device that transforms what is copied through it.
    SmartDimm {
        /// Registering a pair of pages.
        register_page: Time,
        /// Flushing a line that is in the cache.
        flush_line: Time,
        /// Copying from memory to memory by a core.
        copy: Rate,
        /// Between the last line that is read and the first that may be written back.
        slack: Time,
    },
}

/// The file of parameters that comes with the crate, and what one must hold; none for the CPU, whose lines are measured.
#[must_use]
pub fn parameters(device: &str) -> Option<(&'static str, &'static Schema)> {
    match device {
        "dsa" => Some((dsa::timing::PARAMETERS, &dsa::timing::SCHEMA)),
        "smartdimm" => Some((include_str!("../../parameters/whatif-smartdimm.toml"), &SMARTDIMM)),
        _ => None,
    }
}

impl Device {
    /// From parameters that passed one of the schemas.
    ///
    /// # Errors
    /// A field that contradicts another.
    pub fn new(parameters: &Parameters) -> Result<Device, ParameterError> {
        if parameters.device() == "dsa" {
            return dsa::Timing::new(parameters).map(Device::Dsa);
        }
        Ok(Device::SmartDimm {
            register_page: parameters.time("register_page"),
            flush_line: parameters.time("flush_line"),
            copy: parameters.rate("copy_rate"),
            slack: parameters.time("slack"),
        })
    }

    /// Whether it can take this call.
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
            Device::SmartDimm { .. } => {
                matches!(call.kind, Kind::Deflate | Kind::Inflate | Kind::Encrypt | Kind::Decrypt)
                    || matches!(opcode, Some(Opcode::SEAL | Opcode::OPEN | Opcode::PACK | Opcode::UNPACK))
            }
        }
    }

    pub(super) fn engine(&self) -> Engine {
        let state = match self {
            Device::Dsa(timing) => Some(dsa::device::Device::new(timing)),
            _ => None,
        };
        Engine { device: self.clone(), state }
    }

    /// The least size, a power of two, from which on it pays to give calls to the device, and what the run takes then. No size pays:
    /// the run without it.
    #[must_use]
    pub fn best_size(&self, trace: &Trace, cpu: &Cpu) -> (Option<u64>, Outcome) {
        let without = replay(trace, cpu, Timing::Recorded, &Device::Cpu, 0);
        let engine = self.engine();
        let takes: Vec<u32> =
            trace.calls().filter(|call| self.takes(call)).map(|call| call.bytes().max(1).ilog2()).collect();
        let (Some(least), Some(most)) = (takes.iter().min(), takes.iter().max()) else {
            return (None, without);
        };
        // What each power of two gains alone, then the best end of the list.
        let mut gains = vec![0.0f64; 64];
        for thread in &trace.threads {
            for (call, fresh) in thread.calls.iter().zip(&thread.fresh) {
                gains[call.bytes().max(1).ilog2() as usize] +=
                    call.cpu_ns as f64 - engine.alone_ns(call, *fresh, cpu);
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
            None => (None, without),
        }
    }
}

/// Who runs a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placed {
    /// The core.
    Cpu,
    /// The device's queue; the thread waits.
    Queue,
    /// The core copies, the memory transforms: nanoseconds, with the source in the cache and without.
    Near {
        /// With it.
        copy_hot_ns: u64,
        /// Without.
        copy_cold_ns: u64,
    },
}

/// A device at work.
#[derive(Debug)]
pub(super) struct Engine {
    device: Device,
    state: Option<dsa::device::Device>,
}

impl Engine {
    /// Who runs this call, so many pages of whose target were not there yet: those are made by the CPU, and DSA would fault on them.
    pub(super) fn place(&self, call: &Call, fresh: u32) -> Placed {
        if !self.device.takes(call) {
            return Placed::Cpu;
        }
        match &self.device {
            Device::Cpu => Placed::Cpu,
            Device::Dsa(_) if fresh > 0 => Placed::Cpu,
            Device::Dsa(_) => Placed::Queue,
            Device::SmartDimm { register_page, flush_line, copy, slack } => {
                let pages = call.read.max(call.written).div_ceil(4096);
                let cold = *register_page * pages + copy.time_of(call.read.max(call.written)) + *slack;
                let hot = cold + *flush_line * call.read.div_ceil(64);
                Placed::Near { copy_hot_ns: hot.as_ps() / 1000, copy_cold_ns: cold.as_ps() / 1000 }
            }
        }
    }

    /// Nanoseconds of a call when nothing else is under way.
    fn alone_ns(&self, call: &Call, fresh: u32, cpu: &Cpu) -> f64 {
        match (self.place(call, fresh), &self.device) {
            (Placed::Queue, Device::Dsa(timing)) => {
                let time = timing.submit + timing.start + timing.device.time_of(call.bytes()) + timing.wake;
                time.as_ps() as f64 / 1e3
            }
            (Placed::Near { copy_cold_ns, .. }, _) => copy_cold_ns as f64 + f64::from(fresh) * cpu.fault_ns,
            _ => call.cpu_ns as f64,
        }
    }

    pub(super) fn submit(&self) -> Time {
        if let Device::Dsa(timing) = &self.device { timing.submit } else { Time::ZERO }
    }

    pub(super) fn wake(&self) -> Time {
        if let Device::Dsa(timing) = &self.device { timing.wake } else { Time::ZERO }
    }

    /// Into the device's queue, after the submission's time; none: it is full.
    pub(super) fn enter<E>(
        &mut self,
        call: &Call,
        calendar: &mut Calendar<E>,
        event: impl Fn(usize) -> E,
    ) -> Option<usize> {
        // A trace has no bytes: a descriptor that touches no memory takes the time of its size.
        let mut descriptor = Descriptor::new(Opcode::NOOP, Flags::NONE);
        descriptor.size = u32::try_from(call.bytes()).unwrap_or(u32::MAX);
        self.state.as_mut()?.submit(&descriptor, calendar, event)
    }

    pub(super) fn happen<E>(
        &mut self,
        engine: usize,
        calendar: &mut Calendar<E>,
        event: impl Fn(usize) -> E,
    ) -> Option<usize> {
        let mut nothing = Image { base: 0, bytes: &mut [] };
        self.state.as_mut()?.happen(engine, &mut nothing, calendar, event)
    }
}
