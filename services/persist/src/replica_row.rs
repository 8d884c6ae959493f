// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A replica's line in `memlift top` and `memlift metrics`, under the name of the pool's file.
//!
//! - **Flow** the replicator counts what it sends, and stores the time up to which the replica is complete ─▶ the line is there until the
//!   replicator is asked to end
//! - **Not here** the pool's own line: `pool_row`

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use memlift_ground::observe::{Field, Row, Schema};

const SEGMENTS: usize = 0;
const BYTES: usize = 1;
const COMPLETE: usize = 0;
const FAILING: usize = 1;

static SCHEMA: Schema = Schema {
    service: "persist",
    counters: &[
        Field::new("replica_segments_total", "Segments that were sent to a replica."),
        Field::new("replica_bytes_total", "Bytes that were sent to a replica."),
    ],
    gauges: &[
        Field::new("replica_as_of_timestamp_seconds", "The replica has every commit before this Unix time."),
        Field::new("replica_failing", "1: nothing was sent lately, or nothing will be any more."),
    ],
    latency: None,
};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct ReplicaRow(Row);

impl ReplicaRow {
    /// The row of the replica of the pool in this file.
    pub fn open(pool: &Path) -> ReplicaRow {
        let name = pool.file_name().unwrap_or_default().to_string_lossy();
        ReplicaRow(Row::open(&SCHEMA, "replica", &name, 0))
    }

    /// A segment is complete.
    pub fn sent(&self) {
        self.0.count([(SEGMENTS, 1)]);
    }

    /// An object of so many bytes was sent.
    pub fn uploaded(&self, bytes: u64) {
        self.0.count([(BYTES, bytes)]);
    }

    /// The replica has everything that was committed before `time`.
    pub fn complete(&self, time: SystemTime) {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.set(COMPLETE, since.as_secs());
        self.0.set(FAILING, 0);
    }

    /// Nothing could be sent.
    pub fn failing(&self) {
        self.0.set(FAILING, 1);
    }
}
