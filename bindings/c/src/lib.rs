// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C interface: `memlift.h`, `memlift_persist.h`, `memlift_traverse.h`, `memlift_zmem.h` and `memlift_ipc.h` in `include/`, which
//! describe each function.
//!
//! - **Flow** C calls an exported function; [`fault::run`] runs its body so that no panic leaves, calls the service, and returns a code;
//!   its text is kept per thread.
//! - **Layout** [`context`]: steps of a transform and its outcome · [`call`]: compcpy, transform, crc32c · [`stream`]: messages in pieces
//!   · [`persist`]: pools and types · [`transact`]: transactions, read locks, objects · [`nearpm`]: the paper's primitives by their names
//!   · [`walk`]: clients of memory nodes, programs, walks · [`collections`]: maps on memory nodes · [`zmem`]: memory under an exact
//!   budget · [`ipc`]: calls to another process, [`mod@array`] with arrays · [`serve`]: servers · [`fault`]: codes.
//! - **Owner** the caller that made an object frees it. Keys and additional data are copied into objects; buffers stay the caller's.
//! - **Not here** decisions: each function is one call of the service.
//!
//! The headers are written by hand; `tests/header.rs` compares their functions and numbers with this crate, and compiles them as C and
//! as C++.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "exports a C interface")]
pub mod array;
#[expect(unsafe_code, reason = "exports a C interface")]
pub mod call;
mod claim;
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
mod replica;
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
