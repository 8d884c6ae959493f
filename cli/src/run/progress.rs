// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines on standard error while a job runs: its progress if `--progress` asks for it, and always that no thread finds room or
//! that the job is above its budget.
//!
//! - **Flow** the watcher's thread calls [`Progress::report`] at each measurement ─▶ a line every few seconds, from the counters of
//!   the job's processes and their change since the last line
//! - **Not here** the lines about a pause, which the waiting processes write themselves

use std::time::{Duration, Instant};

use memlift::zmem::block::{Counter, Registry};
use memlift::zmem::watch::Measurement;

use crate::print;

/// Time for which no thread may find room, or the job may be above its budget, before a line says so.
const SHORTAGE: Duration = Duration::from_millis(900);
/// Time between two such lines.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// Writes the lines of one job.
#[derive(Debug)]
pub struct Progress {
    /// Time between two lines about the progress; `None`: none are written.
    every: Option<Duration>,
    began: Instant,
    last: Instant,
    last_faults: u64,
    last_fault_ns: u64,
    /// Time since which the job uses more than its budget and does not use less than before.
    over_since: Option<Instant>,
    /// Value of `unused`, without the grace, at the last look.
    last_unused: i64,
    said: Option<Instant>,
}

impl Progress {
    /// Makes the writer for a job that begins now. `every_s` is the time between two lines in seconds, if any are wanted.
    pub fn new(every_s: Option<u32>) -> Progress {
        let now = Instant::now();
        let every = every_s.map(|seconds| Duration::from_secs(u64::from(seconds.max(1))));
        Progress {
            every,
            began: now,
            last: now,
            last_faults: 0,
            last_fault_ns: 0,
            over_since: None,
            last_unused: 0,
            said: None,
        }
    }

    /// Writes the lines that are due.
    pub fn report(&mut self, registry: &Registry, block: usize, seen: Measurement, away: i64) {
        if let Some(line) = self.shortage(registry, block) {
            print::note(&line);
        }
        if self.every.is_some_and(|every| self.last.elapsed() >= every) {
            let line = self.line(registry, block, seen, away);
            print::note(&line);
        }
    }

    /// Returns a line if no thread has found room for a while, or the job has used more than its budget for a while.
    fn shortage(&mut self, registry: &Registry, block: usize) -> Option<String> {
        let (control, ledger) = (registry.control(block), registry.ledger(block));
        let (total, unused) = (control.total(), control.unused());
        let own = unused - ledger.borrowed();
        // A job that uses less and less is about to fit.
        let over = own < 0 && own <= self.last_unused;
        self.last_unused = own;
        self.over_since = if over { self.over_since.or_else(|| Some(Instant::now())) } else { None };
        // A paused job writes lines itself.
        if ledger.paused() || self.said.is_some_and(|at| at.elapsed() < SAY_AGAIN) {
            return None;
        }
        let no_room = ledger.lacks_room_for().filter(|time| *time >= SHORTAGE);
        let over = self.over_since.map(|since| since.elapsed()).filter(|time| *time >= SHORTAGE);
        let what = match (no_room, over) {
            (Some(time), _) => format!(
                "no room for {:.1} s: cold pages are packed again, which takes long",
                time.as_secs_f64()
            ),
            (None, Some(time)) => format!(
                "above the budget of {} for {:.1} s: nothing more of its memory compresses",
                print::bytes(total.max(0) as u64),
                time.as_secs_f64()
            ),
            (None, None) => return None,
        };
        self.said = Some(Instant::now());
        let needed = ledger.needed_bytes(total, unused).max(total + 1) as u64;
        Some(format!(
            "{what}; for what it holds now it needs --memory {}M (memlift job set {block} --memory {}M), or --spill to a folder on \
             a disk",
            needed.div_ceil(1 << 20),
            needed.div_ceil(1 << 20)
        ))
    }

    fn line(&mut self, registry: &Registry, block: usize, seen: Measurement, away: i64) -> String {
        let (control, ledger) = (registry.control(block), registry.ledger(block));
        let (faults, fault_ns) = (ledger.counted(Counter::Faults), ledger.counted(Counter::FaultNs));
        let wall = self.last.elapsed().as_secs_f64().max(1e-3);
        let rate = (faults - self.last_faults.min(faults)) as f64 / wall;
        let lost = (fault_ns - self.last_fault_ns.min(fault_ns)) as f64 / 1e9;
        (self.last, self.last_faults, self.last_fault_ns) = (Instant::now(), faults, fault_ns);
        let bytes = |bytes: i64| print::bytes(bytes.max(0) as u64);
        let state = match (ledger.paused(), away) {
            (true, _) => "paused".to_owned(),
            (false, 0) => "all of it fits".to_owned(),
            // Threads that wait side by side lose more than a second in a second.
            (false, _) => format!("{rate:.0} faults/s, {lost:.1} s in them since the last line"),
        };
        format!(
            "{:.0} s: {} of {}, {} compressed or spilled; {state}",
            self.began.elapsed().as_secs_f64(),
            bytes(seen.usage),
            bytes(control.total()),
            bytes(away)
        )
    }
}
