// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damage to files, logs and structures: it is found, said and kept apart; and what the tools do about it.

mod files;
mod log;
#[path = "../golden/sample.rs"]
mod sample;
mod structures;
mod tools;
