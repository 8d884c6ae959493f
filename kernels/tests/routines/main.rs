// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each routine at every instruction set.
//!
//! - **Not here** tests of the whole process: `aead_allocation` (an allocator), `constant_time` (valgrind)

mod aead;
mod aead_vectors;
mod check;
mod choice;
mod copy;
mod deflate;
mod deflate_size;
mod deflate_stream;
mod guard_pages;
mod log;
#[path = "../memory/mod.rs"]
mod memory;
