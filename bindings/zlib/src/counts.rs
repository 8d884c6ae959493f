// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was done, for `memlift dropin status`: one message, one row of the counters page.
//!
//! Flow    the end of a message ──▶ [`Row`] ──▶ `memlift_kernels::counters`, named at the first one

use core::sync::atomic::{AtomicBool, Ordering};
use memlift_kernels::counters::{self, Amount, State};

/// The rows of our page, in order.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Row {
    /// Messages that came at once and were packed by the fast path.
    PackWhole,
    /// Messages that came in pieces and were packed by the fast path.
    PackStream,
    /// Messages that zlib-rs packed.
    PackPorted,
    /// Messages that were unpacked at once.
    UnpackWhole,
    /// Messages that zlib-rs unpacked.
    UnpackPorted,
}

const NAMES: [&str; 5] = ["pack whole", "pack stream", "pack zlib-rs", "unpack whole", "unpack zlib-rs"];

/// Adds one message.
pub fn add(row: Row, source_bytes: u64, target_bytes: u64, failed: bool) {
    static NAMED: AtomicBool = AtomicBool::new(false);
    if !NAMED.load(Ordering::Relaxed) && !NAMED.swap(true, Ordering::Relaxed) {
        counters::declare("memlift:zlib", &NAMES);
        counters::set_state(State::Serving, "levels 1 to 6 with the default strategy are packed by memlift");
        counters::share_if_asked();
    }
    counters::add(row as usize, &Amount { count: 1, source_bytes, target_bytes, failures: failed.into() });
}
