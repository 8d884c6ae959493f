// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One suite that every backend must pass.
//!
//! ```no_run
//! # fn backend() -> Box<dyn memlift_spec::Backend> { unimplemented!("yours") }
//! let report = memlift_conformance::run(&*backend(), &memlift_conformance::Plan::from_environment());
//! report.expect("the backend does what DSA does");
//! ```
//!
//! - **Flow** seed ──▶ `case` (descriptors over an arena, good and bad ones) ──▶ backend, and the model on a copy of
//!   the arena ──▶ every byte of both arenas and every completion record must be the same
//! - **Owner** a case owns its arena and records; a backend that writes outside of what a descriptor says is seen,
//!   because the whole arena is compared
//! - **Not here** speed, threads of the submitter, tickets: those are the engine's own tests
//!
//! The oracle is `memlift-model`: written from the specification, byte by byte, sharing no code with the kernels.
#![deny(unsafe_code)]

mod arena;
mod case;
#[expect(unsafe_code, reason = "passes raw descriptors on, and looks at them")]
mod each;
mod random;
mod resume;
#[expect(unsafe_code, reason = "submits raw descriptors")]
mod suite;

pub use each::run_each;
pub use suite::{Failure, Plan, run};
