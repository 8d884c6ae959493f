// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of sessions, queues and arenas in `memlift top` and `memlift metrics`.
//!
//! - **Layout** counters as in [`SCHEMA`], [`QUEUE`] and [`ARENA`]; calls under way are those that have neither a reply nor an error
//! - **Not here** where the numbers lie: `memlift_ground::observe`

use memlift_ground::observe::{Field, Row, Schema};
use std::sync::atomic::{AtomicU64, Ordering};

const CALLS: usize = 0;
const REPLIES: usize = 1;
const ERRORS: usize = 2;
const BYTES_IN: usize = 3;
const BYTES_OUT: usize = 4;
const PEERS_DIED: usize = 5;
const POOL_BYTES: usize = 0;

/// Fields of a session's row.
static SCHEMA: Schema = Schema {
    service: "ipc",
    counters: &[
        Field::new("calls_total", "Calls made or received."),
        Field::new("replies_total", "Calls answered."),
        Field::new("errors_total", "Calls that ended in an error."),
        Field::new("bytes_in_total", "Payload that came in."),
        Field::new("bytes_out_total", "Payload that went out."),
        Field::new("peers_died_total", "Servers that died while a client had a session."),
    ],
    gauges: &[Field::new("pool_bytes", "Memory of the sessions' pools.")],
    latency: None,
};

/// A session, seen from one of its ends.
#[derive(Debug)]
pub(crate) struct SessionRow {
    row: Row,
    /// Counters of the bytes of requests and of replies: which of them comes in depends on the end.
    requests: usize,
    replies: usize,
}

impl SessionRow {
    /// The end that answers calls.
    pub fn server(name: &str, peer_pid: u32) -> SessionRow {
        SessionRow {
            row: Row::open(&SCHEMA, "server", name, peer_pid),
            requests: BYTES_IN,
            replies: BYTES_OUT,
        }
    }

    /// The end that makes calls.
    pub fn client(name: &str, peer_pid: u32) -> SessionRow {
        SessionRow {
            row: Row::open(&SCHEMA, "client", name, peer_pid),
            requests: BYTES_OUT,
            replies: BYTES_IN,
        }
    }

    /// A call was made or came in, with `bytes` of request.
    #[inline]
    pub fn call(&self, bytes: u64) {
        self.row.count([(CALLS, 1), (self.requests, bytes)]);
    }

    /// A call was answered, with `bytes` of reply.
    #[inline]
    pub fn reply(&self, bytes: u64) {
        self.row.count([(REPLIES, 1), (self.replies, bytes)]);
    }

    /// A call ended in an error.
    pub fn error(&self) {
        self.row.count([(ERRORS, 1)]);
    }

    /// The server died.
    pub fn peer_died(&self) {
        self.row.count([(PEERS_DIED, 1)]);
    }

    /// The session's pools now have `bytes` in all.
    pub fn set_pool_bytes(&self, bytes: u64) {
        self.row.set(POOL_BYTES, bytes);
    }
}

const PUT: usize = 0;
const PUT_BYTES: usize = 1;
const GOT: usize = 2;
const GOT_BYTES: usize = 3;

/// Fields of a queue's row.
static QUEUE: Schema = Schema {
    service: "ipc",
    counters: &[
        Field::new("items_put_total", "Items that this process put into queues."),
        Field::new("items_put_bytes_total", "Bytes of the items that were put."),
        Field::new("items_got_total", "Items that this process took out of queues."),
        Field::new("items_got_bytes_total", "Bytes of the items that were taken."),
    ],
    gauges: &[],
    latency: None,
};

/// A queue, seen from one of its processes. It has no name.
#[derive(Debug)]
pub(crate) struct QueueRow(Row);

impl QueueRow {
    /// A process begins to use a queue.
    pub fn open() -> QueueRow {
        QueueRow(Row::open(&QUEUE, "queue", "", 0))
    }

    /// An item of `bytes` was put.
    #[inline]
    pub fn put(&self, bytes: u64) {
        self.0.count([(PUT, 1), (PUT_BYTES, bytes)]);
    }

    /// An item of `bytes` was taken.
    #[inline]
    pub fn got(&self, bytes: u64) {
        self.0.count([(GOT, 1), (GOT_BYTES, bytes)]);
    }
}

/// Fields of an arena's row.
static ARENA: Schema = Schema {
    service: "ipc",
    counters: &[
        Field::new("values_put_total", "Values that this process put into an arena."),
        Field::new("values_put_bytes_total", "Bytes of the values that were put."),
        Field::new("values_got_total", "Values that this process took from an arena."),
        Field::new("values_got_bytes_total", "Bytes of the values that were taken."),
    ],
    gauges: &[Field::new("memory_bytes", "Memory of the arena, in the process that writes it.")],
    latency: None,
};

/// An arena, seen from its writer or from a reader.
#[derive(Debug)]
pub(crate) struct ArenaRow {
    row: Row,
    puts: AtomicU64,
}

impl ArenaRow {
    /// A process begins to use an arena.
    pub fn open(address: &str) -> ArenaRow {
        ArenaRow { row: Row::open(&ARENA, "arena", address, 0), puts: AtomicU64::new(0) }
    }

    /// A value of `bytes` was put.
    pub fn put(&self, bytes: u64) {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.row.count([(PUT, 1), (PUT_BYTES, bytes)]);
    }

    /// Values put so far.
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// A value of `bytes` was taken.
    #[inline]
    pub fn got(&self, bytes: u64) {
        self.row.count([(GOT, 1), (GOT_BYTES, bytes)]);
    }

    /// The arena has `bytes` of memory.
    pub fn set_memory_bytes(&self, bytes: u64) {
        self.row.set(0, bytes);
    }
}
