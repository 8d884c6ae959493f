// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift metrics`: the stats pages of all processes as a page that Prometheus reads.
//!
//! - **Flow** [`Sample`] ─▶ families ─▶ [`Exposition`] ─▶ standard output, or HTTP on `--listen`
//! - **Rule** every sample of a family has a distinct set of labels: sessions with the same name, role and peer are added up
//! - **Names** `memlift_…`, base units (seconds, bytes), counters end in `_total`
//! - **Not here** access control: it listens on the loopback address unless told otherwise

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};

use memlift::ground::observe::{OperationStats, SessionStats, Snapshot, WaitingStats};
use serde_json::json;

use crate::exposition::{Exposition, Kind};
use crate::failure::Failure;
use crate::sample::Sample;
use crate::{http, print};

/// Prints the page once.
pub fn once(as_json: bool) -> Result<(), Failure> {
    let sample = Sample::take();
    if as_json {
        return print::json(&json!({ "processes": sample.processes }));
    }
    print::line(page(&sample.processes).trim_end())
}

/// Serves the page until the process is interrupted.
pub fn listen(address: SocketAddr, allow_remote: bool) -> Result<(), Failure> {
    if !address.ip().is_loopback() && !allow_remote {
        return Err(Failure::Usage(format!(
            "{address} can be reached by other machines, and there is no authentication; listen on 127.0.0.1:{}, or \
             add --allow-remote",
            address.port()
        )));
    }
    let listener = TcpListener::bind(address).map_err(|error| {
        Failure::Failed(format!(
            "cannot listen on {address}: {error}; name another port, or end what listens there"
        ))
    })?;
    let bound = listener.local_addr()?;
    // A program that starts this one reads the port from here.
    print::line(&format!("listening on http://{bound}/metrics"))?;
    Err(Failure::from(http::serve(&listener, || page(&Sample::take().processes))))
}

fn page(processes: &[Snapshot]) -> String {
    let mut page = Exposition::default();
    page.family(
        "memlift_processes",
        Kind::Gauge,
        "Processes that use memlift and that this user may observe.",
    );
    page.sample("memlift_processes", &[], processes.len() as f64);
    page.family(
        "memlift_process_info",
        Kind::Gauge,
        "One per process: its command and the instruction set it runs.",
    );
    for one in processes {
        let pid = one.process.pid.to_string();
        let labels = [
            ("pid", pid.as_str()),
            ("command", one.process.command.as_str()),
            ("isa", one.process.isa.as_str()),
        ];
        page.sample("memlift_process_info", &labels, 1.0);
    }
    for (name, help, value) in PROCESS_COUNTERS {
        page.family(name, Kind::Counter, help);
        for one in processes {
            page.sample(name, &[("pid", &one.process.pid.to_string())], value(one) as f64);
        }
    }
    operations(&mut page, processes);
    waiting(&mut page, processes);
    sessions(&mut page, processes);
    page.finish()
}

/// A family with one number per process.
type ProcessCounter = (&'static str, &'static str, fn(&Snapshot) -> u64);

const PROCESS_COUNTERS: [ProcessCounter; 3] = [
    ("memlift_decisions_total", "Placement decisions.", |one| one.process.decisions),
    ("memlift_decisions_dropped_total", "Decisions that could not be kept.", |one| {
        one.process.decisions_dropped
    }),
    ("memlift_sessions_refused_total", "Sessions that found no row in the stats page.", |one| {
        one.process.sessions_refused
    }),
];

/// A number of [`OperationStats`]: name, help, value.
type OperationCounter = (&'static str, &'static str, fn(&OperationStats) -> u64);

fn operations(page: &mut Exposition, processes: &[Snapshot]) {
    const LATENCY: &str = "memlift_operation_latency_seconds";
    let mut rows = Vec::new();
    for one in processes {
        for row in &one.operations {
            rows.push((one.process.pid.to_string(), row));
        }
    }
    let labels = |pid: &'_ str, executor: &'_ str, opcode: &'_ str| {
        [("pid", pid.to_owned()), ("executor", executor.to_owned()), ("opcode", opcode.to_owned())]
    };
    let families: [OperationCounter; 3] = [
        ("memlift_operations_total", "Operations, by who ran them.", |row| row.operations),
        ("memlift_operation_bytes_total", "Bytes worked on.", |row| row.bytes),
        ("memlift_operation_failures_total", "Operations that ended in an error.", |row| row.failures),
    ];
    for (name, help, value) in families {
        page.family(name, Kind::Counter, help);
        for (pid, row) in &rows {
            let labels = labels(pid, &row.executor, &row.opcode);
            page.sample(
                name,
                &labels.each_ref().map(|(label, text)| (*label, text.as_str())),
                value(row) as f64,
            );
        }
    }
    page.family(
        LATENCY,
        Kind::Histogram,
        "How long operations took; each bucket is twice as wide as the one before.",
    );
    for (pid, row) in &rows {
        // The last bucket is open-ended, so it only counts towards +Inf.
        let finite = row.histogram.len().saturating_sub(1);
        let buckets: Vec<(f64, u64)> = row.histogram[..finite]
            .iter()
            .enumerate()
            .map(|(index, count)| (((2_u64 << index.min(62)) - 1) as f64 / 1e9, *count))
            .collect();
        let beyond = row.histogram.last().copied().unwrap_or(0);
        let labels = labels(pid, &row.executor, &row.opcode);
        let labels = labels.each_ref().map(|(label, text)| (*label, text.as_str()));
        page.histogram(LATENCY, &labels, &buckets, beyond, row.total_ns as f64 / 1e9);
    }
}

/// A number of [`WaitingStats`]: name, help, kind, value.
type Waiting = (&'static str, &'static str, Kind, fn(&WaitingStats) -> f64);

const WAITING: [Waiting; 9] = [
    ("memlift_waits_total", "Waits that found their work not yet done.", Kind::Counter, |one| {
        one.waits as f64
    }),
    ("memlift_wait_spin_hits_total", "Waits that ended while spinning.", Kind::Counter, |one| {
        one.spin_hits as f64
    }),
    ("memlift_wait_hardware_total", "Hardware waits inside spins.", Kind::Counter, |one| {
        one.hardware_waits as f64
    }),
    ("memlift_wait_sleeps_total", "Sleeps for a predicted time.", Kind::Counter, |one| one.sleeps as f64),
    ("memlift_wait_parks_total", "Waits that slept in the kernel until woken.", Kind::Counter, |one| {
        one.parks as f64
    }),
    ("memlift_wakes_total", "Wake-ups sent to others.", Kind::Counter, |one| one.wakes as f64),
    ("memlift_wait_spin_seconds_total", "Time spent spinning.", Kind::Counter, |one| {
        one.spin_ns as f64 / 1e9
    }),
    ("memlift_wait_park_seconds_total", "Time spent parked.", Kind::Counter, |one| one.park_ns as f64 / 1e9),
    ("memlift_wait_spin_budget_seconds", "The spin budget in force.", Kind::Gauge, |one| {
        one.spin_budget_ns as f64 / 1e9
    }),
];

fn waiting(page: &mut Exposition, processes: &[Snapshot]) {
    for (name, help, kind, value) in WAITING {
        page.family(name, kind, help);
        for one in processes {
            page.sample(name, &[("pid", &one.process.pid.to_string())], value(&one.waiting));
        }
    }
}

/// A number of [`SessionStats`]: name, help, kind, value.
type Session = (&'static str, &'static str, Kind, fn(&SessionStats) -> u64);

const SESSION: [Session; 7] = [
    ("memlift_ipc_calls_total", "Calls made or received.", Kind::Counter, |one| one.calls),
    ("memlift_ipc_replies_total", "Calls answered.", Kind::Counter, |one| one.replies),
    ("memlift_ipc_errors_total", "Calls that ended in an error.", Kind::Counter, |one| one.errors),
    ("memlift_ipc_bytes_in_total", "Payload that came in.", Kind::Counter, |one| one.bytes_in),
    ("memlift_ipc_bytes_out_total", "Payload that went out.", Kind::Counter, |one| one.bytes_out),
    ("memlift_ipc_outstanding", "Calls under way.", Kind::Gauge, |one| one.outstanding),
    ("memlift_ipc_pool_bytes", "Memory of the sessions' pools.", Kind::Gauge, |one| one.pool_bytes),
];

fn sessions(page: &mut Exposition, processes: &[Snapshot]) {
    for (name, help, kind, value) in SESSION {
        page.family(name, kind, help);
        let mut sums: BTreeMap<(u32, &str, &str, u32), u64> = BTreeMap::new();
        for one in processes {
            for row in &one.sessions {
                let sum = sums.entry((one.process.pid, &row.name, &row.role, row.peer_pid)).or_default();
                *sum = sum.saturating_add(value(row));
            }
        }
        for ((pid, server, role, peer), sum) in sums {
            let (pid, peer) = (pid.to_string(), peer.to_string());
            let labels =
                [("pid", pid.as_str()), ("server", server), ("role", role), ("peer_pid", peer.as_str())];
            page.sample(name, &labels, sum as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::snapshot;
    use std::collections::HashSet;

    #[test]
    fn every_sample_belongs_to_a_family_and_stands_once() {
        let mut first = snapshot(1, 10);
        first.sessions.push(first.sessions[0].clone());
        let text = page(&[first, snapshot(2, 20)]);
        let mut seen = HashSet::new();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap_or_default().to_owned();
            }
            if line.starts_with('#') {
                continue;
            }
            let (series, number) = line.rsplit_once(' ').expect("a sample has a number");
            assert!(number.parse::<f64>().is_ok(), "{line}");
            assert!(line.starts_with(&family), "{line} stands under {family}");
            assert!(seen.insert(series.to_owned()), "twice: {series}");
        }
        assert!(text.contains(
            "memlift_process_info{pid=\"1\",command=\"python \\\"server\\\".py\",isa=\"avx2\"} 1\n"
        ));
        assert!(text.contains(
            "memlift_ipc_calls_total{pid=\"1\",server=\"features\",role=\"server\",peer_pid=\"77\"} 20\n"
        ));
        assert!(text.contains(
            "memlift_operation_latency_seconds_count{pid=\"2\",executor=\"inline_nt\",opcode=\"memmove\"} 20\n"
        ));
    }

    #[test]
    fn other_machines_are_refused_by_default() {
        let refused = listen("0.0.0.0:0".parse().expect("an address"), false);
        assert!(matches!(refused, Err(Failure::Usage(text)) if text.contains("--allow-remote")));
    }
}
