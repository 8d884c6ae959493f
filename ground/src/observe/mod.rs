// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics of this process, readable by others: one stats page per process, and the trace of `memlift record`.
//!
//! - **Flow** callers ──[`record`], [`count`], [`decide`], [`waiting`], [`Row`]──▶ page (a sealed memfd). `memlift
//!   top`, `metrics`, `explain` ──[`list`], [`attach`]──▶ /proc/PID/fd/N ──▶ the same page, read-only
//! - **Layout** see [`layout`] and `docs/formats/stats.md`
//! - **Order** counters are relaxed: each is right, but two may disagree for a moment. Decisions and rows are never torn.
//! - **Owner** the page is made at the first record, never at load, and disappears with the process. A forked child makes its
//!   own at its first record.
//! - **Rule** operations below the placement's gate are counted and not timed: by a load and a store into the thread's own
//!   stripe
//! - **Not here** sockets, threads or files: the module has none

use std::sync::atomic::{AtomicU64, Ordering};

use memlift_spec::Opcode;

mod layout;
#[expect(unsafe_code, reason = "keeps pages for ever and replaces them after a fork")]
mod page;
mod seqlock;
mod decisions;
mod rows;
mod stripes;
#[expect(unsafe_code, reason = "calls a function that memlift record has loaded")]
mod recorder;
mod find;
mod read;
mod stats;

pub use decisions::{CacheState, DecisionRecord};
pub use find::{ObserveError, attach, list, views};
pub use layout::{
    BUCKETS, DECISIONS, Executor, ROW_COUNTERS, ROW_GAUGES, ROW_NAME_BYTES, ROWS, WaitingCounters, bucket_of,
};
/// The page of counters of a drop-in, which links the kernels only; `memlift dropin status` reads it.
pub use memlift_kernels::counters as dropin;
pub use page::now_ns;
pub use read::StatsView;
pub use recorder::{Work, is_recorded, operation, work, work_begins};
pub use rows::{Field, Row, Schema};
pub use stats::{
    Decision, OperationStats, ProcessStats, RowLatency, RowStats, RowValue, Snapshot, WaitingStats,
};

/// Makes the stats page now if there is none yet. Returns false if this process cannot have a page; then
/// records are discarded.
pub fn page() -> bool {
    page::installed().is_some()
}

/// Counts one operation of `bytes` that took `latency_ns`.
pub fn record(executor: Executor, opcode: Opcode, bytes: u64, latency_ns: u64, ok: bool) {
    let Some(installed) = page::installed() else { return };
    let counters = &installed.page().counters[executor as usize][layout::slot_of(opcode)];
    let add = |counter: &AtomicU64, amount: u64| {
        counter.fetch_add(amount, Ordering::Relaxed);
    };
    add(&counters.operations, 1);
    add(&counters.bytes, bytes);
    add(&counters.total_ns, latency_ns);
    add(&counters.histogram[bucket_of(latency_ns)], 1);
    if !ok {
        add(&counters.failures, 1);
    }
}

/// Adds a decision to the ring of the last [`DECISIONS`].
pub fn decide(record: DecisionRecord) {
    if let Some(installed) = page::installed() {
        let page = installed.page();
        decisions::push(&page.decisions, &page.header.decisions_dropped, record);
    }
}

/// Returns the counters of waiting. Do not keep the reference across a fork.
pub fn waiting() -> &'static WaitingCounters {
    static NOWHERE: WaitingCounters = WaitingCounters::new();
    page::installed().map_or(&NOWHERE, |installed| &installed.page().waiting)
}

/// Counts one operation of `bytes` that is too small to be timed and was done by the caller through the
/// cache.
#[inline]
pub fn count(opcode: Opcode, bytes: u64) {
    stripes::add_small(layout::slot_of(opcode), bytes);
}
