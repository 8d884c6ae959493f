// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel DSA through the kernel's idxd driver: a [`Backend`](memlift_spec::Backend) whose answers are right whatever the device does.
//!
//! - **Flow** [`discover`](Machine::discover) (sysfs) ─▶ queues in the order to try ─▶ [`portal::open`] (ENQCMD, MOVDIR64B or write(2)) ─▶
//!   [`Idxd::new`]: NOOP, then BATCH, before anything is trusted ─▶ submit ─▶ device ─▶ `poll`: records, what faults left,
//!   what the device refuses ─▶ the submitter's record, once, last
//! - **Owner** records and batch lists that the device sees are this crate's own (`memory`), never the submitter's
//! - **Not here** how a CPU does an operation: whoever opens a queue brings it ([`Cpu`]). Which work is worth a device: the engine's
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification; `linux/idxd.h`; the kernel's `drivers/dma/idxd`.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "implements the trait of backends, which names memory by address")]
mod backend;
mod discover;
mod flight;
mod limits;
mod member;
#[expect(unsafe_code, reason = "memory that a device writes")]
mod memory;
#[expect(unsafe_code, reason = "maps a device's page and stores to it")]
pub mod portal;
#[expect(unsafe_code, reason = "offers descriptors of its own to a portal")]
mod probe;
mod rest;

pub use backend::{Cpu, Idxd, Settings, Stats};
pub use discover::{Device, Machine, Mode, WorkQueue};
pub use portal::Portal;
pub use probe::Untrusted;
