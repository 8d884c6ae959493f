// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zmem gives a job more memory than its budget by compressing pages, and never lets the job exceed the budget.
//!
//! A job has a control block with an exact total of real memory, compressed pages included (the DMU of the paper, in user
//! space). Each process of the job has its pages in an arena. It compresses the coldest pages when its block has the turn on
//! the ring, and spills pages that do not fit compressed. If that is not enough either, the job is paused or ended.
//!
//! ```text
//! program ──▶ arena (pager) ──fault──▶ store / spill ──▶ page back in its place
//!                 │  charge                ▲
//!                 ▼                        │ coldest pages, at the block's turn
//!             block (registry, shared) ──▶ evictor
//! watcher: what the memory cgroup says ──▶ block
//! ```
//!
//! `docs/design/zmem.md` describes the states, the order of the steps and the sum of the charges.
//!
//! - **Owner** everything here lives in mappings of its own ([`mapping`]), never in the program's heap, because the code also
//!   runs inside signal handlers of foreign programs.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "makes system calls")]
pub mod descriptor;
#[expect(unsafe_code, reason = "maps memory and hands out parts of it")]
pub mod mapping;
#[expect(unsafe_code, reason = "waits on words in shared memory")]
pub mod lock;
#[expect(unsafe_code, reason = "writes objects into slots of its own mappings")]
pub mod store;
#[expect(unsafe_code, reason = "reads and writes pages by system calls, without allocating")]
pub mod spill;
#[expect(unsafe_code, reason = "keeps a header before the memory that it hands out")]
pub mod blocks;
pub mod block;
pub mod error;
mod line;
#[expect(unsafe_code, reason = "hands out memory of the arena")]
pub mod arena;
#[expect(unsafe_code, reason = "hands out memory of the arena")]
pub mod allocator;
#[expect(unsafe_code, reason = "handles the faults of the arena")]
pub mod pager;
#[expect(unsafe_code, reason = "calls the kernel with addresses")]
pub mod uffd;
#[expect(unsafe_code, reason = "waits for signals and sends them on")]
pub mod supervise;
#[expect(unsafe_code, reason = "calls the kernel with addresses")]
pub mod stop;
pub mod watch;

pub use error::{Error, Result};
