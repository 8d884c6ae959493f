// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `events/*`: events per second of each machine, on the loads that figures are made with, and of a replay by `memlift whatif`.
//!
//! - **Method** a sample is one run of a machine from its inputs to its end, by one core; every answer, page or heap that it gives is checked
//!   within the sample, and a wrong one fails the row. The goal is 200 ns for an event
//! - **Event** an entry of the machine's calendar: what happens at a time of its own. Machines differ in how much lies under one entry, where
//!   nothing can come between: DSA's handlers and copies access the cache block by block, DMU's visits make some requests to
//!   memory, and SmartDIMM's lines come with 73 accesses of the cache and commands on the bus. `steps` counts these one by one,
//!   and the row's line gives their rate too; the verdict is by events. Of a trace a recorded call is an event; its steps are calls and the
//!   computing between them. A sample reads the trace from memory and replays it with a modelled CPU, as `memlift whatif` without a device

use std::time::Instant;

use memlift_model::{dmu, dsa, nearpm, pulse, smartdimm, whatif};

use super::Stop;
use crate::definition::Definition;
use crate::{BenchError, Row, machine};

const GOAL_S: f64 = 200e-9;
const SAMPLES: usize = 21;
const SAMPLES_QUICK: usize = 1;
/// Copies of the trace that is answered.
const COPIES: u64 = 1_000_000;

/// Size of a run of a machine.
struct Ran {
    /// Entries of the calendar that were processed.
    events: u64,
    /// The same, but the steps under one entry are counted one by one.
    steps: u64,
}

/// Makes the run of a machine: what is not part of a sample is done here.
fn sampled(name: &str, quick: bool) -> Box<dyn Fn() -> Result<Ran, String>> {
    if name != "whatif" {
        let name = name.to_owned();
        return Box::new(move || run(&name, quick));
    }
    let trace = whatif::experiment::trace(if quick { COPIES / 50 } else { COPIES });
    let first = whatif::experiment::answer(&trace);
    Box::new(move || {
        let answer = whatif::experiment::answer(&trace).map_err(|fault| fault.to_string())?;
        if !first.as_ref().is_ok_and(|first| *first == answer) {
            return Err("a replay of the same trace gave another answer".to_owned());
        }
        let (events, steps, _) = answer;
        Ok(Ran { events, steps })
    })
}

/// Runs a machine to its end.
fn run(name: &str, quick: bool) -> Result<Ran, String> {
    let alone = |events: u64| Ran { events, steps: events };
    let part = if quick { 20_usize } else { 1 };
    match name {
        "pulse" => Ok(alone(pulse::experiment::saturated(20_000 / part))),
        "nearpm" => {
            let shape = nearpm::Shape { devices: 2, units: 4, sync: nearpm::Sync::Delayed };
            let program = nearpm::experiment::Program::average(0);
            let report = nearpm::experiment::run(&nearpm::Timing::shipped(), program, Some(shape))?;
            Ok(alone(report.times.len() as u64))
        }
        "dsa" => {
            let load = dsa::server::Load {
                mode: dsa::server::Mode::Async,
                inject: true,
                threads: 3,
                bytes: 1 << 20,
                requests: 60 / part,
                works: true,
            };
            let outcome = dsa::server::serve(&dsa::Timing::shipped(), load)?;
            Ok(Ran { events: outcome.events, steps: outcome.events + outcome.accesses })
        }
        "dmu" | "dmu/without" => {
            let with = name == "dmu";
            let timing = dmu::Timing::shipped();
            let job = dmu::timing::Job { visits: timing.graph.visits / part as u64, ..timing.graph };
            let file = if with { 600 << 20 } else { 800 << 20 };
            let outcome = dmu::experiment::collocate(&timing, job, file, with)?;
            let others = outcome.events - outcome.visits;
            Ok(Ran { events: outcome.events, steps: others + outcome.requests })
        }
        "smartdimm" => {
            let timing = smartdimm::Timing::shipped();
            let calls = if quick { 20 } else { 400 };
            let outcome = smartdimm::host::run(&timing, smartdimm::host::Run::tls(4, calls))?;
            Ok(Ran { events: outcome.events, steps: outcome.accesses + outcome.commands })
        }
        _ => Err(format!("{name} is no machine")),
    }
}

/// Measures one row.
pub fn row(definition: &Definition, name: &str, quick: bool) -> Result<Row, Stop> {
    let failed =
        |problem: String| Stop::Failed(BenchError::Machine { name: definition.name.clone(), problem });
    let mut row = Row::new(definition);
    let (mut pairs, mut cpu, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let run = sampled(name, quick);
    for _ in 0..if quick { SAMPLES_QUICK } else { SAMPLES } {
        let (begun, cpu_begun) = (Instant::now(), machine::cpu_seconds());
        let ran = run().map_err(failed)?;
        let seconds = begun.elapsed().as_secs_f64();
        pairs.push((seconds / ran.events.max(1) as f64, GOAL_S));
        cpu.push((machine::cpu_seconds() - cpu_begun) / ran.events.max(1) as f64);
        rates.push(ran.steps as f64 / seconds / 1e6);
        row.count.insert("events".to_owned(), ran.events);
        row.count.insert("steps".to_owned(), ran.steps);
    }
    row.cpu_s.ours = Some(crate::median(cpu));
    row = row.measured(definition, &pairs, quick);
    row.qualifies = format!(
        "{}: {:.2} M events/s, of {:.1} M steps/s in them; one core; answers are checked in the time; {}",
        row.name,
        1e3 / row.ours.unwrap_or(f64::INFINITY),
        crate::median(rates),
        definition.note
    );
    Ok(row)
}
