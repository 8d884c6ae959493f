// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks: verified, interpreted and compiled alike.
//!
//! - **Not here** the memory of compiled code (`jit_memory`), which looks at all mappings of its process

mod filetests;
mod generated;
#[path = "../jit_programs/mod.rs"]
mod jit_programs;
mod jit_random;
mod jit_round;
mod jit_table;
