// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contents of a stats page as plain data, for tables, JSON and Prometheus.

use serde::Serialize;

use super::layout::BUCKETS;

/// Identity and totals of one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessStats {
    /// Its pid, as the reader sees it.
    pub pid: u32,
    /// Its command line, cut to 256 bytes.
    pub command: String,
    /// Instruction set of its kernels.
    pub isa: String,
    /// When its page was made, nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// The same on CLOCK_MONOTONIC, to which decisions refer.
    pub start_monotonic_ns: u64,
    /// Operations of all executors.
    pub operations: u64,
    /// Bytes of all executors.
    pub bytes: u64,
    /// Rows open now: sessions, pools, nodes.
    pub rows: u32,
    /// Those that found no row.
    pub rows_refused: u64,
    /// Decisions that were made.
    pub decisions: u64,
    /// Decisions that could not be written, because their cell was taken.
    pub decisions_dropped: u64,
}

/// Counters of one opcode on one executor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OperationStats {
    /// Name of the executor.
    pub executor: String,
    /// Name of the opcode.
    pub opcode: String,
    /// How many, failures and those that were not timed included.
    pub operations: u64,
    /// Those among them that were too small to be timed: the histogram is without them.
    pub untimed: u64,
    /// Bytes worked on.
    pub bytes: u64,
    /// Those that ended in an error.
    pub failures: u64,
    /// Nanoseconds of all together.
    pub total_ns: u64,
    /// How many took 2^i to 2^(i+1) − 1 nanoseconds; the last bucket is open-ended.
    pub histogram: Vec<u64>,
}

impl OperationStats {
    /// An upper bound of the latency that a share of `quantile` (0 to 1) stayed under, nanoseconds; within a
    /// factor of two. None when nothing was counted.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let total = self.histogram.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        if total == 0 {
            return None;
        }
        let rank = (quantile.clamp(0.0, 1.0) * total as f64).ceil().max(1.0) as u64;
        let mut below = 0u64;
        for (bucket, count) in self.histogram.iter().enumerate() {
            below = below.saturating_add(*count);
            if below >= rank {
                return Some(bucket_end_ns(bucket));
            }
        }
        Some(bucket_end_ns(BUCKETS - 1))
    }

    /// The mean latency, nanoseconds; 0 when nothing was counted.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.operations.saturating_sub(self.untimed)).unwrap_or(0)
    }
}

/// The longest latency of a bucket, nanoseconds.
fn bucket_end_ns(bucket: usize) -> u64 {
    (2u64 << bucket.min(62)) - 1
}

/// Counters of waiting, as [`WaitingCounters`](super::WaitingCounters) explains them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "each field is that of WaitingCounters")]
pub struct WaitingStats {
    pub waits: u64,
    pub spin_hits: u64,
    pub spins: u64,
    pub hardware_waits: u64,
    pub sleeps: u64,
    pub parks: u64,
    pub wakes: u64,
    pub spin_ns: u64,
    pub park_ns: u64,
    pub spin_budget_ns: u64,
}

/// One decision of the placement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Decision {
    /// Number of the decision in its process, from 0.
    pub number: u64,
    /// When, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Name of the opcode.
    pub opcode: String,
    /// Name of the executor that was chosen.
    pub executor: String,
    /// Where the bytes were.
    pub cache_state: String,
    /// Bytes of the operation.
    pub size: u64,
    /// Time that the cost model predicted, nanoseconds.
    pub predicted_ns: u64,
    /// Time that the operation took, nanoseconds.
    pub measured_ns: u64,
    /// Why, as a code of the placement.
    pub reason: u16,
}

/// A number of a row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowValue {
    /// Its name, without the service; one that ends in `_total` only grows.
    pub name: String,
    /// Its meaning, a sentence.
    pub help: String,
    /// The number itself, in the unit of its name.
    pub value: u64,
}

/// How long something took that a row counts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowLatency {
    /// Its name, without the service.
    pub name: String,
    /// Its meaning, a sentence.
    pub help: String,
    /// How often it took 2^i to 2^(i+1) − 1 nanoseconds; the last bucket is open-ended.
    pub histogram: Vec<u64>,
    /// Nanoseconds of all together.
    pub total_ns: u64,
}

/// A session, a pool, a node: what a service does under one name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowStats {
    /// Name of the service.
    pub service: String,
    /// Its kind: `server`, `client`, `pool`, `node`.
    pub role: String,
    /// Its name, cut to 48 bytes.
    pub name: String,
    /// The process at the other end, as that process sees itself; 0: there is none.
    pub peer_pid: u32,
    /// When it was opened, nanoseconds since 1970.
    pub opened_unix_ns: u64,
    /// Its place in the page, and how often that was used before: tells it from every other row of the process.
    pub id: (u32, u64),
    /// Its counters and gauges.
    pub values: Vec<RowValue>,
    /// How long what it does took.
    pub latency: Option<RowLatency>,
}

impl RowStats {
    /// The value of a field; 0: there is none of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.values.iter().find(|value| value.name == name).map_or(0, |value| value.value)
    }
}

/// Everything in a page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Snapshot {
    /// Identity and totals of the process.
    pub process: ProcessStats,
    /// Counters of each opcode and executor, without empty rows.
    pub operations: Vec<OperationStats>,
    /// Counters of waiting.
    pub waiting: WaitingStats,
    /// Sessions, pools, nodes that are open now.
    pub rows: Vec<RowStats>,
    /// The last decisions, oldest first.
    pub decisions: Vec<Decision>,
}
