// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hostile bytes for everything that reads what others wrote: each target is a function of bytes that panics when
//! something is wrong.
//!
//! - **Flow** bytes ──[`Input`]: the first ones choose, the rest are hostile──▶ target ──▶ compared with zlib-rs or the model.
//!   The bytes come from [`seeds`](Target::seeds) changed at random (`tests/cases.rs`, part of `cargo test`), or from
//!   libFuzzer (`fuzz_targets/`): `RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir lab/fuzz --features libfuzzer inflate`
//! - **Order** the same bytes do the same thing, so a failure's bytes are its reproducer
//! - **Not here** signals, sanitizers: cargo-fuzz brings them
#![deny(unsafe_code)]

pub mod chains;
pub mod deflate;
pub mod inflate;
mod input;
pub mod ipc;
pub mod ipc_client;
mod ipc_peer;
pub mod ipc_server;
#[expect(unsafe_code, reason = "calls a libz by its C interface")]
pub mod libz;
pub mod mutate;
#[expect(unsafe_code, reason = "calls routines that take addresses")]
pub mod open;
pub mod page;
pub mod parameters;
pub mod pool;
#[expect(unsafe_code, reason = "calls zlib-rs by its C interface")]
mod reference;
pub mod trace;
pub mod unpack;
pub mod walk_bytecode;
pub mod walk_map;
pub mod walk_packet;

pub use input::{Guarded, Input};

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, as the command takes it.
    pub name: &'static str,
    /// Panics when something is wrong.
    pub run: fn(&[u8]),
    /// Good bytes to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 16] = [
    Target { name: "inflate", run: inflate::run, seeds: inflate::seeds },
    Target { name: "deflate", run: deflate::run, seeds: deflate::seeds },
    Target { name: "open", run: open::run, seeds: open::seeds },
    Target { name: "chains", run: chains::run, seeds: chains::seeds },
    Target { name: "unpack", run: unpack::run, seeds: unpack::seeds },
    Target { name: "libz", run: libz::run, seeds: libz::seeds },
    Target { name: "ipc", run: ipc::run, seeds: ipc::seeds },
    Target { name: "ipc_client", run: ipc_client::run, seeds: ipc_client::seeds },
    Target { name: "ipc_server", run: ipc_server::run, seeds: ipc_server::seeds },
    Target { name: "page", run: page::run, seeds: page::seeds },
    Target { name: "parameters", run: parameters::run, seeds: parameters::seeds },
    Target { name: "pool", run: pool::run, seeds: pool::seeds },
    Target { name: "trace", run: trace::run, seeds: trace::seeds },
    Target { name: "walk_bytecode", run: walk_bytecode::run, seeds: walk_bytecode::seeds },
    Target { name: "walk_map", run: walk_map::run, seeds: walk_map::seeds },
    Target { name: "walk_packet", run: walk_packet::run, seeds: walk_packet::seeds },
];
