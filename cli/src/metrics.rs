// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift metrics`: all services of all processes as a page that Prometheus reads.
//!
//! - **Flow** [`Sample`] ─▶ [`Metric`]s ─▶ [`Series`] ─▶ standard output, or HTTP on `--listen`. A listener takes a sample each [`EVERY`]
//!   even without a request, so that it sees work that ends between two scrapes
//! - **Names** `memlift_…`, base units (seconds, bytes), counters end in `_total`. Labels: `job` (the name of the job of `memlift run`, or
//!   the program), `service`, `name` (server, pool, node); no process ids, because their number is unbounded
//! - **Not here** access control: it listens on the loopback address unless another is given

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memlift::ground::observe::{OperationStats, RowStats, Snapshot, WaitingStats};

use crate::failure::Failure;
use crate::sample::{DropinCounters, Sample, program, sessions};
use crate::series::{Amount, Metric, Series, Source};
use crate::{http, print};

/// Time between two samples of a listener.
const EVERY: Duration = Duration::from_secs(1);

/// Prints the page once.
pub fn once(as_json: bool) -> Result<(), Failure> {
    let sample = Sample::take();
    if as_json {
        return print::json(&sample.json());
    }
    let mut series = Series::default();
    series.take(metrics(&sample));
    print::line(series.page().trim_end())
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
    // A program that starts this command reads the port from this line.
    print::line(&format!("listening on http://{bound}/metrics"))?;
    let series = Arc::new(Mutex::new(Series::default()));
    let background = Arc::clone(&series);
    std::thread::spawn(move || {
        loop {
            drop(take_sample(&background));
            std::thread::sleep(EVERY);
        }
    });
    Err(Failure::from(http::serve(&listener, || take_sample(&series).page())))
}

fn take_sample(series: &Mutex<Series>) -> MutexGuard<'_, Series> {
    let mut series = series.lock().unwrap_or_else(PoisonError::into_inner);
    series.take(metrics(&Sample::take()));
    series
}

/// Returns all metrics of a sample.
fn metrics(sample: &Sample) -> Vec<Metric> {
    let jobs: HashMap<u32, &str> =
        sample.jobs.iter().flat_map(|job| job.pids.iter().map(|pid| (*pid, job.row.name.as_str()))).collect();
    let mut all = Vec::new();
    for one in &sample.processes {
        let job = jobs.get(&one.process.pid).copied().unwrap_or_else(|| program(&one.process.command));
        process(one, job, &mut all);
    }
    for dropin in &sample.dropins {
        let job = jobs.get(&dropin.pid).copied().unwrap_or_else(|| program(&dropin.command));
        self::dropin(dropin, job, &mut all);
    }
    for job in &sample.jobs {
        let source = Source { pid: 0, start_unix_ns: 0, part: format!("job {} {:?}", job.index, job.row.id) };
        row(&job.row, &source, &job.row.name, &mut all);
    }
    all
}

/// Collects metrics of one source, which share labels.
struct MetricsOf<'a> {
    source: Source,
    labels: Vec<(&'static str, String)>,
    all: &'a mut Vec<Metric>,
}

impl MetricsOf<'_> {
    fn put(&mut self, name: &str, help: &str, amount: Amount) {
        let (source, labels) = (self.source.clone(), self.labels.clone());
        self.all.push(Metric { source, name: name.to_owned(), help: help.to_owned(), labels, amount });
    }
}

fn process(one: &Snapshot, job: &str, all: &mut Vec<Metric>) {
    let source = |part: &str| Source {
        pid: one.process.pid,
        start_unix_ns: one.process.start_unix_ns,
        part: part.to_owned(),
    };
    let job_label = ("job", job.to_owned());
    let isa = ("isa", one.process.isa.clone());
    let mut of = MetricsOf { source: source("process"), labels: vec![job_label.clone(), isa], all };
    of.put(
        "memlift_processes",
        "Processes that use memlift and that this user may observe.",
        Amount::Gauge(1),
    );
    let mut of = MetricsOf { source: source("process"), labels: vec![job_label.clone()], all };
    for (name, help, value) in [
        ("memlift_decisions_total", "Placement decisions.", one.process.decisions),
        (
            "memlift_decisions_dropped_total",
            "Decisions that could not be kept.",
            one.process.decisions_dropped,
        ),
        (
            "memlift_rows_refused_total",
            "Sessions, pools and nodes that are not shown: the page is full.",
            one.process.rows_refused,
        ),
    ] {
        of.put(name, help, Amount::Counter(value));
    }
    for (name, help, value) in WAITING {
        of.put(name, help, Amount::Counter(value(&one.waiting)));
    }
    for counted in &one.operations {
        let labels = vec![
            job_label.clone(),
            ("service", service(&counted.opcode).to_owned()),
            ("executor", counted.executor.clone()),
            ("opcode", counted.opcode.clone()),
        ];
        let part = format!("{} {}", counted.executor, counted.opcode);
        operations(counted, &mut MetricsOf { source: source(&part), labels, all });
    }
    for shown in &one.rows {
        row(shown, &source(&format!("row {:?}", shown.id)), job, all);
    }
    for session in sessions(one) {
        let labels = vec![
            job_label.clone(),
            ("service", "ipc".to_owned()),
            ("name", session.name),
            ("role", session.role),
        ];
        let mut of = MetricsOf { source: source("session"), labels, all };
        of.put("memlift_ipc_outstanding", "Calls under way.", Amount::Gauge(session.outstanding));
    }
}

/// Returns the service to which an operation belongs.
fn service(opcode: &str) -> &'static str {
    match opcode {
        "seal" | "open" | "pack" | "unpack" => "transform",
        _ => "copy",
    }
}

fn operations(counted: &OperationStats, of: &mut MetricsOf<'_>) {
    of.put("memlift_operations_total", "Operations, by who ran them.", Amount::Counter(counted.operations));
    of.put("memlift_operation_bytes_total", "Bytes worked on.", Amount::Counter(counted.bytes));
    of.put(
        "memlift_operation_failures_total",
        "Operations that ended in an error.",
        Amount::Counter(counted.failures),
    );
    of.put(
        "memlift_operation_latency_seconds",
        "How long operations took; those below the placement's gate are not timed.",
        Amount::Latency { histogram: counted.histogram.clone(), total_ns: counted.total_ns },
    );
}

/// Adds the metrics of a row: a session, a pool, a node, a job.
fn row(shown: &RowStats, source: &Source, job: &str, all: &mut Vec<Metric>) {
    let labels = vec![
        ("job", job.to_owned()),
        ("service", shown.service.clone()),
        ("name", shown.name.clone()),
        ("role", shown.role.clone()),
    ];
    let mut of = MetricsOf { source: source.clone(), labels, all };
    let name = |field: &str| format!("memlift_{}_{field}", shown.service);
    for value in &shown.values {
        let amount = match value.name.ends_with("_total") {
            true => Amount::Counter(value.value),
            false => Amount::Gauge(value.value),
        };
        of.put(&name(&value.name), &value.help, amount);
    }
    if let Some(latency) = &shown.latency {
        let (histogram, total_ns) = (latency.histogram.clone(), latency.total_ns);
        of.put(&name(&latency.name), &latency.help, Amount::Latency { histogram, total_ns });
    }
}

fn dropin(counters: &DropinCounters, job: &str, all: &mut Vec<Metric>) {
    let page = &counters.page;
    let source = |part: String| Source { pid: counters.pid, start_unix_ns: page.start_unix_ns, part };
    let name = page.name.strip_prefix("memlift:").unwrap_or(&page.name).to_owned();
    let labels = vec![("job", job.to_owned()), ("service", "transform".to_owned()), ("name", name)];
    let mut of = MetricsOf { source: source(page.name.clone()), labels: labels.clone(), all };
    let serving = u64::from(page.state == "serving");
    of.put(
        "memlift_dropin_serving",
        "Drop-ins that do the work; 0: they stepped aside.",
        Amount::Gauge(serving),
    );
    for row in &page.rows {
        let mut labels = labels.clone();
        labels.push(("operation", row.name.clone()));
        let mut of = MetricsOf { source: source(format!("{} {}", page.name, row.name)), labels, all };
        of.put("memlift_dropin_messages_total", "Messages of a drop-in.", Amount::Counter(row.count));
        of.put(
            "memlift_dropin_read_bytes_total",
            "Bytes that drop-ins read.",
            Amount::Counter(row.source_bytes),
        );
        of.put(
            "memlift_dropin_written_bytes_total",
            "Bytes that drop-ins wrote.",
            Amount::Counter(row.target_bytes),
        );
        of.put(
            "memlift_dropin_failures_total",
            "Messages that drop-ins refused.",
            Amount::Counter(row.failures),
        );
    }
}

/// A number of [`WaitingStats`]: name, help, function that returns the value.
type Waiting = (&'static str, &'static str, fn(&WaitingStats) -> u64);

const WAITING: [Waiting; 8] = [
    ("memlift_waits_total", "Waits that found their work not yet done.", |one| one.waits),
    ("memlift_wait_spin_hits_total", "Waits that ended while spinning.", |one| one.spin_hits),
    ("memlift_wait_hardware_total", "Hardware waits inside spins.", |one| one.hardware_waits),
    ("memlift_wait_sleeps_total", "Sleeps for a predicted time.", |one| one.sleeps),
    ("memlift_wait_parks_total", "Waits that slept in the kernel until woken.", |one| one.parks),
    ("memlift_wakes_total", "Wake-ups sent to others.", |one| one.wakes),
    ("memlift_wait_spin_seconds_total", "Time spent spinning.", |one| one.spin_ns),
    ("memlift_wait_park_seconds_total", "Time spent parked.", |one| one.park_ns),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::{sample, snapshot};
    use std::collections::HashSet;
    use std::time::Instant;

    fn page(processes: Vec<Snapshot>) -> String {
        let mut series = Series::default();
        series.take(metrics(&sample(Instant::now(), processes)));
        series.page()
    }

    #[test]
    fn every_sample_belongs_to_a_family_and_stands_once() {
        let mut first = snapshot(1, 10);
        let mut twin = first.rows[0].clone();
        twin.id = (1, 1);
        first.rows.push(twin);
        let text = page(vec![first, snapshot(2, 20)]);
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
            assert!(!series.contains("pid="), "{series} has a process id");
        }
        for wanted in [
            "memlift_processes{job=\"\\\"server\\\".py\",isa=\"avx2\"} 2\n",
            "memlift_ipc_calls_total{job=\"\\\"server\\\".py\",service=\"ipc\",name=\"features\",role=\"server\"} 40\n",
            "memlift_ipc_outstanding{job=\"\\\"server\\\".py\",service=\"ipc\",name=\"features\",role=\"server\"} 3\n",
            "memlift_ipc_sync_seconds_count{job=\"\\\"server\\\".py\",service=\"ipc\",name=\"features\",role=\"server\"} 40\n",
            "memlift_operation_latency_seconds_count{job=\"\\\"server\\\".py\",service=\"copy\",executor=\"inline_nt\",opcode=\"memmove\"} 30\n",
        ] {
            assert!(text.contains(wanted), "no {wanted} in {text}");
        }
    }

    #[test]
    fn other_machines_are_refused_by_default() {
        let refused = listen("0.0.0.0:0".parse().expect("an address"), false);
        assert!(matches!(refused, Err(Failure::Usage(text)) if text.contains("--allow-remote")));
    }
}
