// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Intel DSA through the kernel's idxd driver: a [`Backend`](memlift_spec::Backend) whose results are right whatever the device does.
//!
//! - **Flow** [`discover`](DsaInventory::discover) reads sysfs and gives the queues in the order in which to try them; [`portal::open`] opens
//!   one (ENQCMD, MOVDIR64B or write(2)); [`Idxd::new`] tests it by a NOOP and a BATCH. A submitted descriptor goes to the device; `poll`
//!   reads the records, continues after faults, executes what the device refuses, and then writes the submitter's record, once.
//! - **Owner** records and batch lists that the device accesses belong to this crate (`memory`), never to the submitter.
//! - **Not here** the execution of an operation by a CPU: the caller provides it ([`Cpu`]). The decision to use a device for some work:
//!   the caller's.
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
pub use discover::{Device, DsaInventory, Mode, WorkQueue};
pub use portal::Portal;
pub use probe::Untrusted;
