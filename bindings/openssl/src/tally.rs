// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts a context's work until it is added to the process's counters.
//!
//! - **Flow** [`Tally::count`] per message; at the 1st, 3rd, 7th, … then every 64th message, and at the end, the counts are added to
//!   `memlift_kernels::counters`.
//! - **Order** so the page shows a context's first message at once, and is at most 64 messages per context behind; threads do not contend
//!   for its cache line at every message.

use memlift_kernels::counters::{self, Amount};

/// Names of the page's rows, in order.
pub const ROWS: [&str; 3] = ["seal", "open", "aside"];
pub const SEAL: usize = 0;
pub const OPEN: usize = 1;
/// Row for the queries of the core for ciphers that this provider answered with none.
pub const ASIDE: usize = 2;

const BEHIND_MAX: u64 = 64;

/// Counts that are not in the process's counters yet.
#[derive(Default)]
pub struct Tally {
    count: u64,
    bytes: u64,
    failures: u64,
    until: u64,
}

/// The copy of a context starts with counts of zero.
impl Clone for Tally {
    fn clone(&self) -> Tally {
        Tally { until: self.until, ..Tally::default() }
    }
}

impl Tally {
    /// Counts one message of `bytes` bytes; `right` is false if it failed.
    #[inline]
    pub fn count(&mut self, seals: bool, bytes: u64, right: bool) {
        self.count += 1;
        self.bytes += bytes;
        self.failures += u64::from(!right);
        if self.count > self.until {
            self.until = (self.until * 2 + 1).min(BEHIND_MAX);
            self.flush(seals);
        }
    }

    /// Adds the counts to the process's counters and sets them to 0.
    pub fn flush(&mut self, seals: bool) {
        if self.count == 0 {
            return;
        }
        let amount = Amount {
            count: self.count,
            source_bytes: self.bytes,
            target_bytes: self.bytes,
            failures: self.failures,
        };
        counters::add(if seals { SEAL } else { OPEN }, &amount);
        *self = Tally { until: self.until, ..Tally::default() };
    }
}
