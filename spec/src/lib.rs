// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The common vocabulary: the binary form of a request for memory work, and of its answer.
//!
//! Submitters write a [`Descriptor`], a [`Backend`] executes it, and a [`Completion`] reports how it ended. The layout is that of Intel DSA, so that the same 64 bytes drive hardware, a CPU core and a
//! model of hardware.
//!
//! - **Flow** submitter ──writes──▶ `Descriptor` ──▶ `Backend` ──writes──▶ `Completion` ──▶ waiter.
//! - **Layout** see [`descriptor`] and [`completion`]; every offset is asserted at compile time. [`formats`]: bytes of files and packets.
//! - **Not here** anything that executes: no kernels, no queues, no waiting. There are only bytes, constants and one trait.
//!
//! Sources: Intel Data Streaming Accelerator Architecture Specification; `linux/idxd.h` (uapi).
#![no_std]
#![forbid(unsafe_op_in_unsafe_fn)]
#![deny(unsafe_code)]

mod backend;
pub mod completion;
pub mod descriptor;
pub mod formats;
pub mod limits;

pub use backend::{Backend, Busy, Capabilities};
pub use completion::{Completion, Status};
pub use descriptor::{Descriptor, Flags, Opcode};
pub use formats::{Effort, Format};
