// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine: submits, places, runs and completes memory operations.
//!
//! ```
//! use memlift_engine::{Engine, submit::Operation};
//!
//! let engine = Engine::global();
//! let source = vec![7u8; 1 << 20];
//! let mut target = vec![0u8; 1 << 20];
//! engine.copy(&mut target, &source);                    // here and now
//!
//! let ticket = engine.submit(Operation::copy(source))?; // on another core, meanwhile
//! let copied = ticket.wait()?.into_target().unwrap();
//! assert_eq!(copied.as_slice(), Some(&target[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - **Flow** synchronous: `Engine::copy` ─▶ `place` ─▶ kernel …… asynchronous: `Operation` ─▶ `submit` ─▶ `run` ─▶
//!   `complete` ─▶ `Outcome`
//! - **Owner** buffers belong to their operation until it is settled; regions (`region`) own mapped memory
//! - **Not here** the services, which turn requests into operations; the bytes of a descriptor are `spec`'s
#![deny(unsafe_code)]

pub mod facility;
pub mod config;
#[expect(unsafe_code, reason = "maps memory that other processes write")]
pub mod region;
pub mod own_file;
pub mod socket_file;
pub mod observe;
pub mod complete;
#[cfg(all(feature = "transform", not(loom)))]
pub mod codec;
#[cfg(feature = "persist")]
pub mod persist;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "executes raw addresses that submitters vouch for")]
pub mod run;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "lends buffers to executors until they are done")]
pub mod submit;
#[cfg(not(loom))]
pub mod place;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
#[expect(unsafe_code, reason = "calls kernels on borrowed slices and on addresses that callers vouch for")]
mod direct;
#[cfg(not(loom))]
mod error;

#[cfg(not(loom))]
pub use direct::Lost;
#[cfg(not(loom))]
pub use engine::{Calibrated, Engine};
#[cfg(not(loom))]
pub use error::EngineError;
pub use memlift_idxd as idxd;
#[cfg(any(feature = "transform", feature = "zmem"))]
pub use memlift_kernels::page;
#[cfg(not(loom))]
pub use submit::Cache;
