// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The work of memlift's own services, by the device that its paper has for it.
//!
//! - **Layout** nearpm: a commit is a transaction of the machine (`nearpm::machine`): so many ranges of so many bytes, by the mechanism that
//!   it had; some in a row on one device, a share each. pulse: walks that were waited for together are on the rack together
//!   (`pulse::rack`), each with the mean of their steps, at one node. dmu: a page that was packed is unpacked by the controller as
//!   it is touched (`dmu::experiment`), no fault; packing goes on beside the program
//! - **Rule** a service's work has no addresses: where in a page or on which node is not known. Large shapes are run as far as a machine
//!   goes, and counted as often
//! - **Method** a shape is run once and remembered. Commits of several threads do not meet; all pages go through one unpacker
//! - **Not here** whether it pays (`device`)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memlift_spec::formats::trace::Kind;

use super::timeline::{Call, Trace};
use crate::event::Time;
use crate::nearpm::{Machine, Mechanism, Shape, Transaction};
use crate::pulse::{self, Rack};
use crate::{dmu, nearpm};

/// Transactions in a row, and writes of one at most.
const ROW: (usize, u64) = (4, 64);
/// Walks at a time, steps of one and bytes of an answer, at most.
const WALKS: (u64, u64, u64) = (128, 4096, 64 << 10);
const PAGE: u64 = nearpm::layout::PAGE;

/// A device's durations.
#[derive(Clone, Debug)]
pub enum Hardware {
    /// Persistent memory that logs, copies and applies by itself.
    NearPm(nearpm::Timing),
    /// An accelerator of walks at each memory node.
    Pulse(pulse::Timing),
    /// Memory that its controller packs.
    Dmu(dmu::Timing),
}

/// A device; its clones remember the same runs.
#[derive(Clone, Debug)]
pub struct Service {
    hardware: Hardware,
    took: Arc<Mutex<HashMap<Run, Time>>>,
}

/// Key of a run: parameter, parts, bytes; true if the device does it, not the CPU on the device's memory.
type Run = (u32, u64, u64, bool);

impl Service {
    /// A device that has run nothing yet.
    #[must_use]
    pub fn new(hardware: Hardware) -> Service {
        Service { hardware, took: Arc::default() }
    }

    /// Returns true if this kind of work is for it.
    #[must_use]
    pub fn takes(&self, kind: Kind) -> bool {
        match self.hardware {
            Hardware::NearPm(_) => kind == Kind::Commit,
            Hardware::Pulse(_) => kind == Kind::Walk,
            Hardware::Dmu(_) => matches!(kind, Kind::PageIn | Kind::PageOut),
        }
    }

    /// Names the work that it serves.
    #[must_use]
    pub fn serves(&self) -> &'static str {
        match self.hardware {
            Hardware::NearPm(_) => "commits of memlift's persistent memory",
            Hardware::Pulse(_) => "pointer walks of memlift's traversal",
            Hardware::Dmu(_) => "packed pages of memlift's compressed memory",
        }
    }

    /// All commits of a trace on that device's memory: by the CPU, as its paper has it without the device, and by the device. None for
    /// other devices.
    #[must_use]
    pub fn commits(&self, trace: &Trace) -> Option<(Time, Time)> {
        let Hardware::NearPm(timing) = &self.hardware else { return None };
        let commits = trace.calls().filter(|call| call.kind == Kind::Commit);
        Some(commits.fold((Time::ZERO, Time::ZERO), |(cpu, near), call| {
            (cpu + self.commit(timing, call, false), near + self.commit(timing, call, true))
        }))
    }

    /// How long work takes with nothing else under way, and how much of that it has a core.
    pub(super) fn alone(&self, call: &Call) -> (Time, Time) {
        match &self.hardware {
            Hardware::NearPm(timing) => {
                let wall = self.commit(timing, call, true);
                (wall, wall)
            }
            Hardware::Pulse(timing) => {
                let wall = self.once(call, true, || walks(timing, call));
                // The client's own part of it stays what it was.
                (wall, wall.min(Time::from_ns(call.cpu_ns)))
            }
            Hardware::Dmu(timing) if call.kind == Kind::PageIn => {
                let wall = (timing.unpack + timing.line) * u64::from(call.parts);
                (wall, wall)
            }
            Hardware::Dmu(_) => (Time::ZERO, Time::ZERO),
        }
    }

    /// Returns the end of work that begins now, and its time on the core; DMU's one unpacker is free at `unpacker`.
    pub(super) fn begin(&self, call: &Call, now: Time, unpacker: &mut Time) -> (Time, Time) {
        let (wall, core) = self.alone(call);
        match self.hardware {
            Hardware::Dmu(_) if wall > Time::ZERO => {
                *unpacker = now.max(*unpacker) + wall;
                (*unpacker, *unpacker - now)
            }
            _ => (now + wall, core),
        }
    }

    fn commit(&self, timing: &nearpm::Timing, call: &Call, near: bool) -> Time {
        self.once(call, near, || commit(timing, call, near))
    }

    fn once(&self, call: &Call, near: bool, run: impl FnOnce() -> Time) -> Time {
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        *took.entry((call.parameter, u64::from(call.parts), call.bytes(), near)).or_insert_with(run)
    }
}

/// How often `most` goes into `all`, and what is run: at most `most`.
fn times(all: u64, most: u64) -> (u64, u64) {
    let all = all.max(1);
    (all.div_ceil(most), all.min(most))
}

/// A commit on NearPM's memory, one of some in a row; by the CPU alone if not `near`.
fn commit(timing: &nearpm::Timing, call: &Call, near: bool) -> Time {
    let mechanism = match call.parameter {
        1 => Mechanism::Undo,
        2 => Mechanism::Checkpoint,
        3 => Mechanism::Shadow,
        _ => Mechanism::Redo,
    };
    // A write has 8 bytes at least and does not cross a page.
    let parts = u64::from(call.parts);
    let each = (call.read / parts.max(1)).next_multiple_of(8).max(8);
    let (pieces, bytes) = (each.div_ceil(PAGE), each.min(PAGE));
    let (often, writes) = times(parts.saturating_mul(pieces), ROW.1);
    let by_pages = matches!(mechanism, Mechanism::Checkpoint | Mechanism::Shadow);
    let moved = if by_pages { PAGE } else { 64 + bytes };
    let alone = (!near).then(|| (timing.memory_latency, timing.cpu_copy(moved)));
    let transaction = |turn: usize| {
        let page = |write: u64| (turn as u64 * writes + write) * PAGE;
        let writes = (0..writes).map(|write| (page(write), vec![turn as u8 + 1; bytes as usize])).collect();
        Transaction { writes, alone, ..Transaction::default() }
    };
    let half = (writes * (2 * moved + 64)).next_multiple_of(64 << 10);
    let heap = ROW.0 as u64 * writes * PAGE;
    let report = Machine::new(
        timing,
        Shape::single(timing),
        mechanism,
        heap,
        half,
        vec![(0..ROW.0).map(transaction).collect()],
    )
    .and_then(Machine::run)
    .unwrap_or_else(|error| panic!("a transaction of {writes} writes of {bytes} bytes: {error}"));
    Time::from_ps(report.end.as_ps() / ROW.0 as u64) * often
}

/// Walks on PULSE's rack, until the last has its answer.
fn walks(timing: &pulse::Timing, call: &Call) -> Time {
    let count = u64::from(call.parameter).max(1);
    let (often, walks) = times(count, WALKS.0);
    // A walk with more steps than one request may have goes on from the client.
    let (requests, steps) = times(u64::from(call.parts) / count, WALKS.1.min(timing.iterations_max));
    let bytes = (call.written / count).min(WALKS.2);
    let table = (1, steps as usize, bytes as usize);
    let run = || -> Result<Time, String> {
        let (memory, jobs) =
            pulse::workload::web_service(pulse::experiment::SEED, table, walks as usize, timing.tcam_entries)
                .map_err(|error| error.to_string())?;
        let report =
            Rack::new(timing.clone(), pulse::Shape::built(), vec![memory])?.run(&jobs, walks as usize);
        let wrong = report.answers.iter().find(|answer| answer.outcome != pulse::Outcome::Done);
        wrong.map_or(Ok(()), |answer| Err(format!("{:?}", answer.outcome)))?;
        Ok(report.answers.iter().map(|answer| answer.done).max().unwrap_or(Time::ZERO))
    };
    let wall = run().unwrap_or_else(|error| panic!("{walks} walks of {steps} steps: {error}"));
    wall * requests * often
}
