// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Formats that several crates read or write.
//!
//! - **Layout** [`log`] log records; [`packet`] packets to memory nodes; [`walk`] the bytecode of walks; [`trace`] the file that records a
//!   program's use of memory; [`Format`] and [`Effort`] name encodings of packed bytes.

pub mod log;
mod pack;
pub mod packet;
pub mod trace;
pub mod walk;

pub use pack::{Effort, Format};
