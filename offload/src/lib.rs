// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory operations: done in the calling thread, shared between cores, or queued as descriptors on bounded queues of any
//! backend.
//!
//! ```
//! use memlift_offload::{Engine, submit::Operation};
//!
//! let engine = Engine::global();
//! let source = vec![7u8; 1 << 20];
//! let mut target = vec![0u8; 1 << 20];
//! engine.copy(&mut target, &source);                    // here and now
//!
//! let ticket = engine.submit(Operation::copy(source))?; // on another core, meanwhile
//! let copied = ticket.wait()?.into_target().unwrap();
//! assert_eq!(copied.as_slice(), target);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - **Flow** synchronous: `Engine::copy` ─▶ `memlift_place` ─▶ kernel …… asynchronous: `Operation` ─▶ `submit` ─▶ `run` ─▶
//!   `Outcome`
//! - **Owner** buffers belong to their operation until it is settled
//! - **Not here** the meaning of what is copied; the layout of descriptors (`spec`)
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "executes raw addresses that submitters vouch for")]
pub mod run;
#[expect(unsafe_code, reason = "lends buffers to executors until they are done")]
pub mod submit;
mod engine;
#[expect(unsafe_code, reason = "calls kernels on borrowed slices and on addresses that callers vouch for")]
mod direct;
mod error;

pub use direct::Lost;
pub use engine::{Calibrated, Engine};
pub use error::EngineError;
pub use memlift_place::Cache;
