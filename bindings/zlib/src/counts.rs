// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the messages of this process for `memlift dropin status`: one message, one row of the counters page.
//!
//! - **Flow** loader ──[`AT_LOAD`]──▶ rows get their names, and the page is shared if `MEMLIFT_STATS` is 1
//!   the end of a message ──▶ [`add`] ──▶ `memlift_kernels::counters`
//! - **Order** at load, and again in the child of each fork: later, nginx has dropped the environment that it was started
//!   with, and OpenSSH has put a filter over its system calls that ends a process at an unexpected one
//! - **Not here** system calls of [`add`]

use memlift_kernels::counters::{self, Amount, State};

/// The rows of our page, in order.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Row {
    /// Messages that came at once and were packed by the fast path.
    PackWhole,
    /// Messages that came in pieces and were packed by the fast path.
    PackStream,
    /// Messages that were flushed, or asked for in a way that the fast path does not know.
    PackChained,
    /// Messages that were unpacked.
    Unpack,
}

const NAMES: [&str; 4] = ["pack whole", "pack stream", "pack chained", "unpack"];

/// The loader calls this once libc is ready, before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        crate::export::fenced((), || {
            counters::declare("memlift:zlib", &NAMES);
            counters::set_state(
                State::Serving,
                "levels 1 to 6 with the default strategy are packed by memlift",
            );
            counters::share_if_asked();
        });
    }
    at_load
};

/// Adds one message.
pub fn add(row: Row, source_bytes: u64, target_bytes: u64, failed: bool) {
    counters::add(row as usize, &Amount { count: 1, source_bytes, target_bytes, failures: failed.into() });
}
