// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of a run, however its budget was enforced.

use memlift::zmem::block::ABSENCES;

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Exit code of the program, or 75.
    pub exit_code: u8,
    /// Signal that came during the run and would end the program.
    pub ending_signal: Option<i32>,
    /// Backend that enforced the job's budget.
    pub backend: &'static str,
    /// Memory that the job may use, bytes: as it was at the end.
    pub budget: u64,
    /// Memory that the job was given at the start, bytes.
    pub budget_at_start: u64,
    /// Origin of the budget, in words.
    pub origin: String,
    /// Source of the peak: the cgroup's folder, or `resident sizes`.
    pub source: String,
    /// Highest usage as the OOM killer counts it, bytes, including all page cache.
    pub peak: u64,
    /// Highest usage without cache that the kernel drops first, bytes.
    pub peak_counted: u64,
    /// Part of `peak_counted` that lay in arenas, stores and tables, bytes.
    pub covered: u64,
    /// Highest usage outside of memlift's arenas, bytes.
    pub outside: u64,
    /// Memory that the job would have used without a budget, bytes: present, compressed and spilled pages at their full size.
    pub need: u64,
    /// Most memory that was compressed or spilled at one moment, bytes.
    pub away: u64,
    /// Bytes of the compressed copies at that moment.
    pub store: u64,
    /// Pages that came back, by the class of their absence.
    pub returns: [u64; ABSENCES],
    /// The least budget that would have done for what the job held when it did not fit, bytes; 0 if it fitted.
    pub least_budget: u64,
    /// Wall clock, seconds.
    pub wall_s: f64,
    /// CPU of the program and its children, seconds.
    pub cpu_s: f64,
    /// Number of processes that joined the job.
    pub processes: u32,
    /// Number of compressed-memory faults.
    pub events: u64,
    /// Accesses to compressed pages.
    pub compressed_accesses: u64,
    /// Counters of the report, in [`super::report`]'s order.
    pub counters: Vec<(&'static str, u64)>,
    /// Reason that memlift ended the job; `None`: it did not.
    pub refused: Option<String>,
}
