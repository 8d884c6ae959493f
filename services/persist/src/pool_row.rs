// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool's line in `memlift top` and `memlift metrics`.
//!
//! - **Flow** each commit counts itself ─▶ who makes the shared lane durable counts the sync and its time ─▶ opening, growing, applying,
//!   and a sync after [`EVERY_NS`] store the sizes
//! - **Not here** where the numbers lie: `memlift_ground::observe`

use std::sync::atomic::{AtomicU64, Ordering};

use memlift_ground::observe::{Field, Row, Schema, now_ns};

use crate::medium::Medium;

const TRANSACTIONS: usize = 0;
const LOG_BYTES: usize = 1;
const SYNCS: usize = 2;
const ABORTS: usize = 3;
const DAMAGED: usize = 4;
const HEAP_BYTES: usize = 0;
const FREE_BYTES: usize = 1;
const WAITING_BYTES: usize = 2;
const STOPPED: usize = 3;

static SCHEMA: Schema = Schema {
    service: "persist",
    counters: &[
        Field::new("transactions_total", "Transactions that were committed."),
        Field::new("log_bytes_total", "Bytes written to the log."),
        Field::new("syncs_total", "Syncs or fences that made shared commits durable."),
        Field::new("aborts_total", "Transactions that were undone."),
        Field::new("damaged_pages_total", "Times that a page did not have its checksum."),
    ],
    gauges: &[
        Field::new("heap_bytes", "Size of the pool's heap."),
        Field::new("free_bytes", "Slabs of the heap that nobody has."),
        Field::new("log_waiting_bytes", "Log that is not yet applied to its place."),
        Field::new("stopped", "1: the disk failed, and the pool refuses every call."),
    ],
    latency: Some(Field::new("sync_seconds", "How long making shared commits durable took.")),
};

/// Sizes are stored this often at most while syncs follow each other.
const EVERY_NS: u64 = 200_000_000;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct PoolRow {
    /// None: a pool of the simulator.
    row: Option<Row>,
    stored_ns: AtomicU64,
}

impl PoolRow {
    /// The row of a pool that lies in `medium`, named after its first file.
    pub fn open(medium: &Medium, read_only: bool) -> PoolRow {
        let row = (!medium.is_simulated()).then(|| {
            let path = medium.paths().into_iter().next().unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Row::open(&SCHEMA, if read_only { "reader" } else { "pool" }, &name, 0)
        });
        PoolRow { row, stored_ns: AtomicU64::new(0) }
    }

    /// A transaction was committed; `log_bytes` of it went to its own lane.
    #[inline]
    pub fn committed(&self, log_bytes: u64) {
        if let Some(row) = &self.row {
            row.count([(TRANSACTIONS, 1), (LOG_BYTES, log_bytes)]);
        }
    }

    /// A transaction was undone.
    pub fn aborted(&self) {
        if let Some(row) = &self.row {
            row.count([(ABORTS, 1)]);
        }
    }

    /// Shared commits became durable by a sync that began at `began_ns`. True: it is time to store the sizes.
    pub fn synced(&self, log_bytes: u64, began_ns: u64) -> bool {
        let Some(row) = &self.row else { return false };
        let now_ns = now_ns();
        row.count([(SYNCS, 1), (LOG_BYTES, log_bytes)]);
        row.took(now_ns.saturating_sub(began_ns));
        now_ns.saturating_sub(self.stored_ns.load(Ordering::Relaxed)) > EVERY_NS
    }

    /// Stores the sizes; free bytes are not known while somebody has the list of free slabs.
    pub fn store_sizes(&self, heap_bytes: u64, free_bytes: Option<u64>, waiting_bytes: u64) {
        let Some(row) = &self.row else { return };
        self.stored_ns.store(now_ns(), Ordering::Relaxed);
        row.set(HEAP_BYTES, heap_bytes);
        row.set(WAITING_BYTES, waiting_bytes);
        if let Some(bytes) = free_bytes {
            row.set(FREE_BYTES, bytes);
        }
    }

    /// So many pages do not have their checksum.
    #[cold]
    pub fn damaged(&self, pages: u64) {
        if let Some(row) = &self.row {
            row.count([(DAMAGED, pages)]);
        }
    }

    /// The pool refuses every call from now on.
    #[cold]
    pub fn stopped(&self) {
        if let Some(row) = &self.row {
            row.set(STOPPED, 1);
        }
    }
}
