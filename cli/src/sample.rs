// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sample of memlift's work in all processes that this user may inspect, and the change between two samples.
//!
//! - **Flow** /proc ─▶ stats page and pages of drop-ins of each process; the user's registry ─▶ jobs ─▶ [`Sample`] ─▶ `top`, `metrics`,
//!   `ipc ls`
//! - **Order** processes are sorted by pid; a process that ends between finding and reading it is left out

use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use memlift::ground::observe::{self, ObserveError, OperationStats, RowStats, RowValue, Snapshot};
use memlift::zmem::block::{Counter, Registry};
use serde::Serialize;
use serde_json::{Value, json};

use crate::dropin::page::{self, Page};

/// All statistics at one moment.
#[derive(Debug)]
pub struct Sample {
    /// Time at which the pages were read.
    pub time: Instant,
    /// The snapshot of each stats page.
    pub processes: Vec<Snapshot>,
    /// Drop-ins that publish counters.
    pub dropins: Vec<DropinCounters>,
    /// Jobs under a budget.
    pub jobs: Vec<Job>,
}

/// A drop-in in a process.
#[derive(Debug)]
pub struct DropinCounters {
    pub pid: u32,
    pub command: String,
    pub page: Page,
}

/// A job of `memlift run`, with its numbers in the form of a row.
#[derive(Clone, Debug)]
pub struct Job {
    pub index: usize,
    pub pids: Vec<u32>,
    pub row: RowStats,
}

/// One ipc session, as in `ipc ls` and in the JSON of `top` and `metrics`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SessionStats {
    pub name: String,
    pub role: String,
    pub peer_pid: u32,
    pub opened_unix_ns: u64,
    pub calls: u64,
    pub replies: u64,
    pub errors: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub outstanding: u64,
    pub pool_bytes: u64,
}

impl SessionStats {
    fn of(row: &RowStats) -> SessionStats {
        let (calls, replies, errors) =
            (row.get("calls_total"), row.get("replies_total"), row.get("errors_total"));
        SessionStats {
            name: row.name.clone(),
            role: row.role.clone(),
            peer_pid: row.peer_pid,
            opened_unix_ns: row.opened_unix_ns,
            calls,
            replies,
            errors,
            bytes_in: row.get("bytes_in_total"),
            bytes_out: row.get("bytes_out_total"),
            // The three counters are not read at the same moment.
            outstanding: calls.saturating_sub(replies.saturating_add(errors)),
            pool_bytes: row.get("pool_bytes"),
        }
    }
}

/// The ipc sessions of a process.
pub fn sessions(of: &Snapshot) -> impl Iterator<Item = SessionStats> {
    of.rows.iter().filter(|row| row.service == "ipc").map(SessionStats::of)
}

impl Sample {
    /// Reads all pages now.
    pub fn take() -> Self {
        let processes = observe::views().iter().map(observe::StatsView::snapshot).collect();
        Self { time: Instant::now(), processes, dropins: dropins(), jobs: jobs() }
    }

    /// Reads the statistics of one process: its page, its drop-ins, and its job.
    ///
    /// # Errors
    ///
    /// The process has none of these; the error is the reason that it has no page.
    pub fn of(pid: u32) -> Result<Self, ObserveError> {
        let page = observe::attach(pid);
        let in_page = |page: page::Page| DropinCounters { pid, command: command_line(pid), page };
        let dropins: Vec<DropinCounters> = page::pages(pid).into_iter().map(in_page).collect();
        let jobs: Vec<Job> = jobs().into_iter().filter(|job| job.pids.contains(&pid)).collect();
        let processes = match page {
            Ok(view) => vec![view.snapshot()],
            Err(ObserveError::NotMemlift { .. }) if !(dropins.is_empty() && jobs.is_empty()) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { time: Instant::now(), processes, dropins, jobs })
    }

    /// Returns the sample as JSON; a process has its sessions beside its rows.
    pub fn json(&self) -> Value {
        let process = |one: &Snapshot| {
            let mut value = json!(one);
            value["sessions"] = json!(sessions(one).collect::<Vec<_>>());
            value
        };
        let dropin =
            |one: &DropinCounters| json!({ "pid": one.pid, "command": one.command, "counters": one.page });
        let job = |job: &Job| json!({ "job": job.index, "pids": job.pids, "numbers": job.row });
        json!({
            "processes": self.processes.iter().map(process).collect::<Vec<_>>(),
            "dropins": self.dropins.iter().map(dropin).collect::<Vec<_>>(),
            "jobs": self.jobs.iter().map(job).collect::<Vec<_>>(),
        })
    }

    /// Returns the same process in this sample, and not another one with the same pid.
    fn same_process(&self, of: &Snapshot) -> Option<&Snapshot> {
        self.processes.iter().find(|other| {
            other.process.pid == of.process.pid && other.process.start_unix_ns == of.process.start_unix_ns
        })
    }
}

/// Returns the pages of drop-ins of all processes.
fn dropins() -> Vec<DropinCounters> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let of = |pid: u32| {
        page::pages(pid).into_iter().map(move |page| DropinCounters { pid, command: command_line(pid), page })
    };
    pids.into_iter().flat_map(of).collect()
}

fn command_line(pid: u32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    text.trim_end().chars().filter(|letter| !letter.is_control()).collect()
}

/// Returns the name by which people know a process: the script or module of an interpreter, otherwise the
/// program.
pub fn program(command: &str) -> &str {
    let base = |word: &'_ str| -> usize { word.rfind('/').map_or(0, |at| at + 1) };
    let mut words = command.split(' ').filter(|word| !word.is_empty());
    let Some(first) = words.next() else { return "unknown" };
    let first = &first[base(first)..];
    if ["python", "perl", "ruby", "node"].iter().any(|one| first.starts_with(one)) {
        let named = match words.next() {
            Some("-m") => words.next(),
            Some(word) if !word.starts_with('-') => Some(word),
            _ => None,
        };
        return named.map_or(first, |word| &word[base(word)..]);
    }
    first
}

/// Returns the jobs of this user. Does not create a registry.
fn jobs() -> Vec<Job> {
    let folder = Registry::folder();
    if !Path::new(&folder).join("zmem.registry").exists() {
        return Vec::new();
    }
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    if REGISTRY.get().is_none()
        && let Ok(registry) = Registry::open(&folder)
    {
        let _ = REGISTRY.set(registry);
    }
    let Some(registry) = REGISTRY.get() else { return Vec::new() };
    registry.sweep();
    let job = |(index, block, ledger): (
        usize,
        &memlift::zmem::block::ControlBlock,
        &memlift::zmem::block::Ledger,
    )| {
        let bytes = |bytes: i64| bytes.max(0) as u64;
        let counted = |counter| ledger.counted(counter);
        let used = block.total().saturating_sub(block.unused() - ledger.borrowed());
        let values = [
            ("budget_bytes", "Real memory that the job may have.", bytes(block.total())),
            ("used_bytes", "Real memory that it has.", bytes(used)),
            ("outside_bytes", "Of it: what cannot be compressed.", bytes(ledger.outside())),
            ("peak_bytes", "Most real memory that was seen.", ledger.peak()),
            ("compressing", "1: the job is larger than its budget.", ledger.active().into()),
            ("paused", "1: it waits for room.", ledger.paused().into()),
            ("processes", "Processes of the job.", registry.processes(index).count() as u64),
            ("faults_total", "Accesses to memory that was away.", counted(Counter::Faults)),
            ("overdrafts_total", "Times that unused memory ran out.", ledger.events()),
            ("stored_pages_total", "Pages that were compressed.", counted(Counter::PagesStored)),
            ("spilled_pages_total", "Pages written to the spill folder.", counted(Counter::PagesSpilled)),
        ];
        let value =
            |(name, help, value): (&str, &str, u64)| RowValue { name: name.into(), help: help.into(), value };
        let row = RowStats {
            service: "zmem".to_owned(),
            role: "job".to_owned(),
            name: ledger.name(),
            peer_pid: 0,
            opened_unix_ns: 0,
            id: (index as u32, u64::from(block.generation())),
            values: values.into_iter().map(value).collect(),
            latency: None,
        };
        Job { index, pids: registry.processes(index).filter_map(|slot| slot.pid()).collect(), row }
    };
    registry.jobs().map(job).collect()
}

/// Rates of one row, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Operations, or calls.
    pub operations: f64,
    /// Bytes moved per second.
    pub bytes: f64,
}

/// Change from one sample to the next.
#[derive(Debug)]
pub struct Change<'a> {
    before: &'a Sample,
    seconds: f64,
}

impl<'a> Change<'a> {
    /// Returns the change from `before` to `after`.
    pub fn between(before: &'a Sample, after: &Sample) -> Self {
        let seconds = after.time.duration_since(before.time).as_secs_f64().max(1e-3);
        Self { before, seconds }
    }

    /// Returns the rate of a whole process; `now` is its snapshot in the later sample.
    pub fn process(&self, now: &Snapshot) -> Rate {
        let before = self.before.same_process(now).map(|before| &before.process);
        self.rate(
            (now.process.operations, before.map(|before| before.operations)),
            (now.process.bytes, before.map(|before| before.bytes)),
        )
    }

    /// Returns the rate of one executor and opcode.
    pub fn operation(&self, of: &Snapshot, now: &OperationStats) -> Rate {
        let before = self.before.same_process(of).and_then(|before| {
            before.operations.iter().find(|row| row.executor == now.executor && row.opcode == now.opcode)
        });
        self.rate(
            (now.operations, before.map(|before| before.operations)),
            (now.bytes, before.map(|before| before.bytes)),
        )
    }

    /// Returns the rate of a row's counter.
    pub fn row(&self, of: &Snapshot, now: &RowStats, value: &RowValue) -> f64 {
        let before = self.before.same_process(of);
        let row = before.and_then(|before| before.rows.iter().find(|row| row.id == now.id));
        self.rate((value.value, row.map(|row| row.get(&value.name))), (0, None)).operations
    }

    /// Returns the rate of a job's counter.
    pub fn job(&self, now: &Job, value: &RowValue) -> f64 {
        let same = |job: &&Job| (job.index, &job.row.name) == (now.index, &now.row.name);
        let before = self.before.jobs.iter().find(same);
        self.rate((value.value, before.map(|before| before.row.get(&value.name))), (0, None)).operations
    }

    /// Returns a rate. A row that did not exist before has no rate yet, instead of its whole history as one.
    fn rate(&self, operations: (u64, Option<u64>), bytes: (u64, Option<u64>)) -> Rate {
        let per_second = |(now, before): (u64, Option<u64>)| {
            now.saturating_sub(before.unwrap_or(now)) as f64 / self.seconds
        };
        Rate { operations: per_second(operations), bytes: per_second(bytes) }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use memlift::ground::observe::{ProcessStats, RowLatency, WaitingStats};
    use std::time::Duration;

    /// Makes a row of a session with `calls` calls.
    fn row(calls: u64) -> RowStats {
        let values = [
            ("calls_total", calls),
            ("replies_total", calls - 1),
            ("bytes_in_total", calls * 4096),
            ("pool_bytes", 1 << 20),
        ];
        let value =
            |(name, value): (&str, u64)| RowValue { name: name.into(), help: format!("Its {name}."), value };
        RowStats {
            service: "ipc".into(),
            role: "server".into(),
            name: "features".into(),
            peer_pid: 77,
            opened_unix_ns: 6,
            id: (0, 1),
            values: values.map(value).into(),
            latency: Some(RowLatency {
                name: "sync_seconds".into(),
                help: "Time of syncs.".into(),
                histogram: vec![0, 0, calls],
                total_ns: calls * 1000,
            }),
        }
    }

    /// Makes a sample of these processes alone.
    pub fn sample(time: Instant, processes: Vec<Snapshot>) -> Sample {
        Sample { time, processes, dropins: Vec::new(), jobs: Vec::new() }
    }

    /// Makes a process with one row of operations and one session.
    pub fn snapshot(pid: u32, operations: u64) -> Snapshot {
        Snapshot {
            process: ProcessStats {
                pid,
                command: "python \"server\".py".into(),
                isa: "avx2".into(),
                start_unix_ns: 5,
                start_monotonic_ns: 4,
                operations,
                bytes: operations * 4096,
                rows: 1,
                rows_refused: 0,
                decisions: 3,
                decisions_dropped: 0,
            },
            operations: vec![OperationStats {
                executor: "inline_nt".into(),
                opcode: "memmove".into(),
                operations,
                untimed: 0,
                bytes: operations * 4096,
                failures: 1,
                total_ns: operations * 1000,
                histogram: vec![0, 0, operations],
            }],
            waiting: WaitingStats::default(),
            rows: vec![row(operations)],
            decisions: Vec::new(),
        }
    }

    #[test]
    fn a_process_is_called_by_what_it_runs() {
        for (command, name) in [
            ("/usr/sbin/nginx -g daemon off;", "nginx"),
            ("python3 /srv/train.py --epochs 3", "train.py"),
            ("python3.11 -m http.server", "http.server"),
            ("python3 -c pass", "python3"),
            ("", "unknown"),
        ] {
            assert_eq!(program(command), name);
        }
    }

    #[test]
    fn rates_are_of_the_same_process() {
        let time = Instant::now();
        let before = sample(time, vec![snapshot(1, 100), snapshot(2, 100)]);
        let mut reborn = snapshot(2, 50);
        reborn.process.start_unix_ns = 9;
        let after = sample(time + Duration::from_secs(2), vec![snapshot(1, 300), reborn]);
        let change = Change::between(&before, &after);
        let first = &after.processes[0];
        let expected = Rate { operations: 100.0, bytes: 409_600.0 };
        assert_eq!(change.process(first), expected);
        assert_eq!(change.operation(first, &first.operations[0]), expected);
        let session = &first.rows[0];
        assert_eq!(change.row(first, session, &session.values[0]), 100.0);
        assert_eq!(sessions(first).next().map(|one| (one.calls, one.outstanding)), Some((300, 1)));
        assert_eq!(change.process(&after.processes[1]), Rate::default());
    }
}
