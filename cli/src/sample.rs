// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One look at the stats pages of all processes that this user may see, and what changed between two looks.
//!
//! - **Flow** /proc ─▶ one page per process ─▶ [`Sample`] ─▶ `top`, `metrics`, `ipc ls`
//! - **Order** processes by pid; a process that ends between finding and reading it is left out

use std::time::Instant;

use memlift::ground::observe::{self, OperationStats, SessionStats, Snapshot};

/// All processes at one moment.
#[derive(Debug)]
pub struct Sample {
    /// Time at which the pages were read.
    pub time: Instant,
    /// The snapshot of each page.
    pub processes: Vec<Snapshot>,
}

impl Sample {
    /// Reads the pages of all processes now.
    pub fn take() -> Self {
        let processes = observe::list()
            .into_iter()
            .filter_map(|process| observe::attach(process.pid).ok())
            .map(|page| page.snapshot())
            .collect();
        Self { time: Instant::now(), processes }
    }

    /// The same process in this sample; not another one that got its pid.
    fn same_process(&self, of: &Snapshot) -> Option<&Snapshot> {
        self.processes.iter().find(|other| {
            other.process.pid == of.process.pid && other.process.start_unix_ns == of.process.start_unix_ns
        })
    }
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

    /// Returns the rate of one ipc session: calls, and bytes of both directions.
    pub fn session(&self, of: &Snapshot, now: &SessionStats) -> Rate {
        let before = self.before.same_process(of).and_then(|before| {
            before.sessions.iter().find(|row| {
                (row.opened_unix_ns, &row.name, row.peer_pid) == (now.opened_unix_ns, &now.name, now.peer_pid)
            })
        });
        let bytes = |row: &SessionStats| row.bytes_in.saturating_add(row.bytes_out);
        self.rate((now.calls, before.map(|before| before.calls)), (bytes(now), before.map(bytes)))
    }

    /// A row that was not there before has no rate yet, rather than its whole history as one.
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
    use memlift::ground::observe::{ProcessStats, WaitingStats};
    use std::time::Duration;

    /// A process with one row of operations and one session.
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
                sessions: 1,
                sessions_refused: 0,
                decisions: 3,
                decisions_dropped: 0,
            },
            operations: vec![OperationStats {
                executor: "inline_nt".into(),
                opcode: "memmove".into(),
                operations,
                bytes: operations * 4096,
                failures: 1,
                total_ns: operations * 1000,
                histogram: vec![0, 0, operations],
            }],
            waiting: WaitingStats::default(),
            sessions: vec![SessionStats {
                name: "features".into(),
                role: "server".into(),
                peer_pid: 77,
                opened_unix_ns: 6,
                calls: operations,
                replies: operations,
                errors: 0,
                bytes_in: operations * 4096,
                bytes_out: 0,
                outstanding: 0,
                pool_bytes: 1 << 20,
            }],
            decisions: Vec::new(),
        }
    }

    #[test]
    fn rates_are_of_the_same_process() {
        let time = Instant::now();
        let before = Sample { time, processes: vec![snapshot(1, 100), snapshot(2, 100)] };
        let mut reborn = snapshot(2, 50);
        reborn.process.start_unix_ns = 9;
        let after = Sample { time: time + Duration::from_secs(2), processes: vec![snapshot(1, 300), reborn] };
        let change = Change::between(&before, &after);
        let first = &after.processes[0];
        let expected = Rate { operations: 100.0, bytes: 409_600.0 };
        assert_eq!(change.process(first), expected);
        assert_eq!(change.operation(first, &first.operations[0]), expected);
        assert_eq!(change.session(first, &first.sessions[0]), expected);
        assert_eq!(change.process(&after.processes[1]), Rate::default());
    }
}
