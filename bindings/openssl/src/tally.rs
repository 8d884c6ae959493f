// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts a context's work until it is added to the process's counters.
//!
//! - **Flow** [`Tally::count`] per message ──at the 1st, 3rd, 7th, … then every 64th message, and at the end──▶
//!   `memlift_kernels::counters`
//! - **Order** so the page sees a context's first message at once, and is at most 64 messages per context behind;
//!   threads do not fight for its cache line at every message.

use memlift_kernels::counters::{self, Amount};

/// The rows of the page, in order.
pub const ROWS: [&str; 3] = ["seal", "open", "aside"];
pub const SEAL: usize = 0;
pub const OPEN: usize = 1;
/// Times that the core asked for ciphers and got none from us.
pub const ASIDE: usize = 2;

const BEHIND_MAX: u64 = 64;

/// See the module.
#[derive(Default)]
pub struct Tally {
    count: u64,
    bytes: u64,
    failures: u64,
    until: u64,
}

/// A copy of a context has done nothing yet.
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
