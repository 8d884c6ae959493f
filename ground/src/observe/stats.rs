// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contents of a stats page as plain data, for tables, JSON and Prometheus.

use serde::Serialize;

use super::layout::BUCKETS;

/// Identity and totals of one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessStats {
    /// Pid of the process in the reader's namespace.
    pub pid: u32,
    /// Command line of the process, truncated to 256 bytes.
    pub command: String,
    /// Instruction set of the process's kernels.
    pub isa: String,
    /// Time at which the page was made, nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// The same time on CLOCK_MONOTONIC, the clock of decisions.
    pub start_monotonic_ns: u64,
    /// Number of operations, summed over all executors.
    pub operations: u64,
    /// Number of bytes, summed over all executors.
    pub bytes: u64,
    /// Number of rows open now: sessions, pools, nodes.
    pub rows: u32,
    /// Number of rows that were refused because the table was full.
    pub rows_refused: u64,
    /// Number of decisions.
    pub decisions: u64,
    /// Number of decisions that could not be written because their cell was in use.
    pub decisions_dropped: u64,
}

/// Counters of one opcode on one executor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OperationStats {
    /// Name of the executor.
    pub executor: String,
    /// Name of the opcode.
    pub opcode: String,
    /// Number of operations, including failures and operations that were not timed.
    pub operations: u64,
    /// Number of operations that were too small to be timed; the histogram does not contain them.
    pub untimed: u64,
    /// Bytes of all operations.
    pub bytes: u64,
    /// Number of operations that ended in an error.
    pub failures: u64,
    /// Nanoseconds of all timed operations together.
    pub total_ns: u64,
    /// Number of operations that took 2^i to 2^(i+1) − 1 nanoseconds; the last bucket is open-ended.
    pub histogram: Vec<u64>,
}

impl OperationStats {
    /// Returns an upper bound of the given quantile (0 to 1) of the latency, in nanoseconds, within a factor of
    /// two; `None` if nothing was counted.
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
}

/// Returns the longest latency in a bucket, nanoseconds.
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
    /// Time of the decision, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Name of the opcode.
    pub opcode: String,
    /// Name of the executor that was chosen.
    pub executor: String,
    /// State of the cache that the decision assumed.
    pub cache_state: String,
    /// Bytes of the operation.
    pub size: u64,
    /// Time that the cost model predicted, nanoseconds.
    pub predicted_ns: u64,
    /// Time that the operation took, nanoseconds.
    pub measured_ns: u64,
    /// Reason of the decision, as a code of the placement.
    pub reason: u16,
}

/// A number in a row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowValue {
    /// Name of the number, without the service; a number whose name ends in `_total` only grows.
    pub name: String,
    /// Meaning of the number, in one sentence.
    pub help: String,
    /// The number, in the unit of its name.
    pub value: u64,
}

/// Latencies that a row records.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowLatency {
    /// Name of the latency, without the service.
    pub name: String,
    /// Meaning of the latency, in one sentence.
    pub help: String,
    /// Number of latencies of 2^i to 2^(i+1) − 1 nanoseconds; the last bucket is open-ended.
    pub histogram: Vec<u64>,
    /// Sum of all latencies, nanoseconds.
    pub total_ns: u64,
}

/// One row: a session, a pool or a node of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowStats {
    /// Name of the service.
    pub service: String,
    /// Role of the row: `server`, `client`, `pool`, `node`.
    pub role: String,
    /// Name of the row, truncated to 48 bytes.
    pub name: String,
    /// Pid of the process at the other end, in that process's namespace; 0: there is none.
    pub peer_pid: u32,
    /// Time at which the row was opened, nanoseconds since 1970.
    pub opened_unix_ns: u64,
    /// Index of the row in the page, and how often that index was used before: identifies the row among all of
    /// the process.
    pub id: (u32, u64),
    /// The counters and gauges of the row.
    pub values: Vec<RowValue>,
    /// The latencies that the row records, if any.
    pub latency: Option<RowLatency>,
}

impl RowStats {
    /// Returns the value of a field; 0 if there is no field with this name.
    pub fn get(&self, name: &str) -> u64 {
        self.values.iter().find(|value| value.name == name).map_or(0, |value| value.value)
    }
}

/// All contents of a page.
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
