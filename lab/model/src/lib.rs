// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices in software: what each descriptor must do, byte by byte.
//!
//! ```
//! use memlift_model::{Image, run};
//! use memlift_spec::{Descriptor, Flags, Opcode, Status};
//!
//! let mut bytes = vec![0; 128];
//! bytes[..5].copy_from_slice(b"hello");
//! let mut copy = Descriptor::new(Opcode::MEMMOVE, Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION));
//! (copy.source, copy.target, copy.size, copy.completion_address) = (4096, 4096 + 32, 5, 4096 + 64);
//! let done = run(&mut Image { base: 4096, bytes: &mut bytes }, &copy);
//! assert_eq!(done.status(), Status::SUCCESS);
//! assert_eq!(&bytes[32..37], b"hello");
//! assert_eq!(bytes[64], Status::SUCCESS.0);
//! ```
//!
//! - **Flow** descriptor + [`Memory`] ──▶ `refuse` (in hardware's order) ──▶ `execute` ──▶ memory changed, record written into it. [`Model`] does that as a [`Backend`](memlift_spec::Backend)
//!   on this process's memory; [`Twin`] does it with faults and in another order, by seed; [`Image`] on bytes with addresses of their own
//!   [`pulse`], [`nearpm`], [`dmu`], [`smartdimm`], [`dsa`]: papers' machines, with times; [`reproduce`] puts its numbers beside the paper's;
//!   [`whatif`] replays recorded programs on them
//! - **Layout** [`event`]: the clock of timed machines; [`parameters`]: their durations, each with its source. [`naive`]: ciphers, checksums, packed streams, each from its standard, one byte or bit at a time
//! - **Owner** nothing is kept between two descriptors
//! - **Not here** kernels, their speed, their instruction sets: the model depends on the words alone, so that it can say whether
//!   everybody else is right. Keys in here are tests' keys: nothing takes constant time
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "descriptors name memory by address")]
mod backend;
pub mod dmu;
pub mod dsa;
pub mod event;
mod execute;
mod memory;
pub mod naive;
pub mod nearpm;
pub mod parameters;
pub mod pulse;
pub mod reproduce;
mod refuse;
pub mod smartdimm;
#[expect(unsafe_code, reason = "implements the trait of backends")]
mod twin;
pub mod whatif;

pub use backend::Model;
pub use execute::{perform, run};
pub use memory::{Image, Memory};
pub use twin::{Absent, Fortune, Twin};
