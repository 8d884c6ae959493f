// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our library beside the system's zlib, call by call, in one process.
//!
//! - **Not here** tests of a process of their own: `counters`, `programs`, `without_memory`

mod afterwards;
#[path = "../both/mod.rs"]
mod both;
mod files;
mod ladder;
mod limits;
mod same_as_zlib;
mod sequences;
mod unpacking;
