// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's line in `memlift top` and `memlift metrics`.
//!
//! - **Flow** each request is counted when it is sent; the numbers of packets are stored now and then
//!   ([`super::Client::poll`])
//! - **Not here** the memory in which the numbers lie: `memlift_ground::observe`

use memlift_ground::observe::{Field, Row, Schema};

use super::Counts;

const REQUESTS: usize = 0;

static SCHEMA: Schema = Schema {
    service: "traverse",
    counters: &[Field::new("requests_total", "Requests that clients sent: walks, reads, changes.")],
    gauges: &[
        Field::new("client_sent_total", "Packets that clients sent, those sent again included."),
        Field::new("client_received_total", "Packets that clients received."),
        Field::new("client_again_total", "Packets sent again: no answer came in time."),
        Field::new("client_continued_total", "Walks sent on from where they stopped."),
        Field::new("client_uploads_total", "Uploads of programs that were begun."),
        Field::new("client_stray_total", "Packets that were no answer to anything."),
    ],
    latency: None,
};

/// See the module's header.
#[derive(Debug)]
pub(super) struct ClientRow(Row);

impl ClientRow {
    /// Opens the row of a client, named after the first node that it was given.
    pub fn open(node: &str) -> ClientRow {
        ClientRow(Row::open(&SCHEMA, "client", node, 0))
    }

    /// Counts a request that was sent.
    #[inline]
    pub fn requested(&self) {
        self.0.count([(REQUESTS, 1)]);
    }

    /// Stores the numbers of packets.
    pub fn store(&self, counts: &Counts) {
        let Counts { sent, received, again, continued, uploads, stray, from_backups: _ } = *counts;
        for (gauge, value) in [sent, received, again, continued, uploads, stray].into_iter().enumerate() {
            self.0.set(gauge, value);
        }
    }
}
