// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that other versions and other tools wrote, and the types that programs store.

mod derive;
mod foreign_tools;
mod golden_pools;
mod migrate;
mod raw;
#[path = "../golden/sample.rs"]
mod sample;
