// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zmem: more memory than the budget, and never more than the budget.
//!
//! A job has a control block with an exact total of real memory, compressed pages included (the paper's DMU, in user
//! space). Each process of the job keeps its pages in an arena, compresses the coldest when its block's turn on the ring
//! comes, spills when they do not fit compressed, and is stopped when even that is not enough.
//!
//! ```text
//! program ──▶ arena (pager) ──fault──▶ store / spill ──▶ page back in its place
//!                 │  charge                ▲
//!                 ▼                        │ coldest pages, at the block's turn
//!             block (registry, shared) ──▶ evictor
//! watcher: what the memory cgroup says ──▶ block
//! ```
//!
//! `docs/design/zmem.md` has the states, the order and the sum.
//!
//! - **Owner** everything here lives in mappings of its own ([`mapping`]), never in the program's heap: it also runs inside
//!   signal handlers of foreign programs.
#![deny(unsafe_code)]

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
pub mod watch;

pub use error::{Error, Result};
