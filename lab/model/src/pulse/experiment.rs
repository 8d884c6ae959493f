// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Repeats the paper's measurements on the rack: throughput under load and latency of a request alone.
//!
//! - **Order** a point is decided by its inputs and [`SEED`] alone; every answer's bytes are checked, and a wrong one is an error
//! - **Not here** the paper's numbers (`reproduce`)

use super::rack::Rack;
use super::request::{Outcome, Report};
use super::timing::{Shape, Timing};
use super::workload::{self, Scans};

/// Seed of all experiments.
pub const SEED: u64 = 0x5eed;
/// The web service's table: chains, nodes in each (§6, table 3), bytes of an object (§6).
pub const TABLE: (usize, usize, usize) = (64, 48, 8192);
/// Requests under way at a time where throughput is measured: more than the rate times the latency of any row.
const CLIENTS: usize = 128;
/// Requests of a throughput point.
const REQUESTS: usize = 1000;
/// Requests of a latency point, one after the other.
const ALONE: usize = 8;

/// Throughput and latency of one machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Million requests per second.
    pub mops: f64,
    /// Microseconds, one request at a time.
    pub latency_us: f64,
}

fn web_run(timing: &Timing, shape: Shape, requests: usize, clients: usize) -> Result<Report, String> {
    let (memory, jobs) = workload::web_service(SEED, TABLE, requests, timing.tcam_entries)
        .map_err(|error| error.to_string())?;
    let mut rack = Rack::new(timing.clone(), shape, vec![memory])?;
    let report = rack.run(&jobs, clients);
    for (job, answer) in jobs.iter().zip(&report.answers) {
        let key = job.scratch.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        if answer.outcome != Outcome::Done || answer.object != workload::object(key, TABLE.2) {
            return Err(format!("the walk for key {key} gave {:?} and the wrong object", answer.outcome));
        }
    }
    Ok(report)
}

/// The latency of the web service, one request at a time.
///
/// # Errors
/// If the machine is impossible or gives a wrong answer.
pub fn web_latency(timing: &Timing, shape: Shape) -> Result<Report, String> {
    web_run(timing, shape, ALONE, 1)
}

/// One row of table 4.
///
/// # Errors
/// As [`web_latency`].
pub fn web_service(timing: &Timing, shape: Shape) -> Result<Point, String> {
    let loaded = web_run(timing, shape, REQUESTS, CLIENTS)?;
    let alone = web_run(timing, shape, ALONE, 1)?;
    Ok(Point { mops: loaded.per_second() / 1e6, latency_us: alone.latency_us() })
}

fn scan_run(
    timing: &Timing,
    shape: Shape,
    wanted: Scans,
    requests: usize,
    clients: usize,
) -> Result<Report, String> {
    let (memories, jobs) =
        workload::scans(SEED, wanted, requests, timing.tcam_entries).map_err(|error| error.to_string())?;
    let (jobs, sums): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
    let report = Rack::new(timing.clone(), shape, memories)?.run(&jobs, clients);
    for (answer, sum) in report.answers.iter().zip(sums) {
        if answer.outcome != Outcome::Done || answer.scratch[..8] != sum.to_le_bytes() {
            return Err(format!("a scan gave {:?} and the wrong sum", answer.outcome));
        }
    }
    Ok(report)
}

/// The latency of scans over several nodes, one request at a time.
///
/// # Errors
/// As [`web_latency`].
pub fn scan_latency(timing: &Timing, shape: Shape, wanted: Scans) -> Result<Report, String> {
    scan_run(timing, shape, wanted, 64, 1)
}

/// Scans over several nodes, routed by the switch or over the client.
///
/// # Errors
/// As [`web_latency`].
pub fn scans(timing: &Timing, shape: Shape, wanted: Scans) -> Result<Point, String> {
    let loaded = scan_run(timing, shape, wanted, REQUESTS, 4 * CLIENTS)?;
    let alone = scan_latency(timing, shape, wanted)?;
    Ok(Point { mops: loaded.per_second() / 1e6, latency_us: alone.latency_us() })
}

/// Runs the machine that the paper builds under load, for its rate of events: how many there were.
///
/// # Panics
/// If the shipped parameters give no machine.
#[must_use]
pub fn saturated(requests: usize) -> u64 {
    web_run(&Timing::shipped(), Shape::built(), requests, CLIENTS)
        .unwrap_or_else(|error| panic!("{error}"))
        .events
}
