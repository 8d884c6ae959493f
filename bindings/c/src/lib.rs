// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C face: `include/memlift.h`, `memlift_persist.h`, `memlift_traverse.h`, `memlift_zmem.h` and `memlift_ipc.h` beside it, which say what each function does.
//!
//! - **Flow** C ──▶ exported function ──[`fault::run`]: no panic leaves──▶ memlift::transform ──▶ a code, and its text per thread
//! - **Layout** [`context`]: steps and what came of them · [`call`]: compcpy, transform, crc32c · [`stream`]: messages in pieces
//!   · [`persist`]: pools and types · [`transact`]: transactions, read locks, objects · [`nearpm`]: the paper's
//!   primitives by their names
//!   · [`walk`]: clients of memory nodes, programs, walks · [`collections`]: maps on memory nodes
//!   · [`zmem`]: memory under an exact budget · [`ipc`]: calls to another process, [`mod@array`] with arrays · [`serve`]: its other side
//!   · [`fault`]: codes
//! - **Owner** whoever made an object frees it; keys and additional data are copied into it, buffers stay the caller's
//! - **Not here** decisions: each function is one call of the service
//!
//! The headers are written by hand; `tests/header.rs` compares their functions and numbers with this crate, and compiles
//! it as C and as C++.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "exports a C interface")]
pub mod array;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod call;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod collections;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod context;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod fault;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod ipc;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod nearpm;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod persist;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod serve;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod stream;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod transact;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod value;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod walk;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod zmem;
