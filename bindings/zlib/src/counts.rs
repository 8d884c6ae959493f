// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the messages of this process for `memlift dropin status`: each message adds to one row of the counters page.
//!
//! - **Flow** at load [`AT_LOAD`] names the rows, and shares the page if `MEMLIFT_STATS` is 1. At the end of a message [`add`] counts
//!   into `memlift_kernels::counters`.
//! - **Order** the page is set up at load, and again in the child of each fork. Later is too late: nginx drops the environment that it
//!   was started with, and OpenSSH puts a filter over its system calls that ends the process at an unexpected one.
//! - **Not here** system calls: [`add`] makes none.

use memlift_kernels::counters::{self, Amount, State};

/// Rows of the page, in order.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Row {
    /// Messages that were given in one call and packed by the fast path.
    PackWhole,
    /// Messages that were given in pieces and packed by the fast path.
    PackStream,
    /// Messages that were flushed, or had settings that the fast path does not support.
    PackChained,
    /// Messages that were unpacked.
    Unpack,
}

const NAMES: [&str; 4] = ["pack whole", "pack stream", "pack chained", "unpack"];

/// Runs when libc is ready and before the program begins: the loader calls it.
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
