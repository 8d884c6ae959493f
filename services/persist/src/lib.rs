// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects that survive a crash: a typed heap in a file, one fence per transaction.
//!
//! ```
//! use memlift_persist::{Options, PPtr, Persist, Pool, View};
//!
//! #[derive(Clone, Copy, Persist)]
//! #[repr(C)]
//! struct Node {
//!     value: u64,
//!     next: PPtr<Node>,
//! }
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("list.pool");
//! let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
//! pool.tx(|t| {
//!     let first = t.alloc(Node { value: 1, next: PPtr::NULL })?;
//!     let root = t.alloc(Node { value: 2, next: first })?;
//!     t.set_root(root)
//! })?;
//! println!("{}", pool.guarantee());
//! drop(pool);
//!
//! let pool = Pool::open(&path, &Options::default())?;
//! let sum = pool.read(|r| {
//!     let root = r.get(r.root::<Node>()?.expect("made above"))?;
//!     Ok(root.value + r.get(root.next)?.value)
//! })?;
//! assert_eq!(sum, 3);
//! # Ok::<(), memlift_persist::Error>(())
//! ```
//!
//! - **Flow** `Pool::tx` ─▶ `tx` (sections, image, `writes`) ─▶ `commit` (`record` ─▶ `lane` ─▶ `medium`: one fence) ─▶ `apply`
//!   (to its place, by a commit that finds its lane half full, or by a thread of the pool) …… after a crash: `recover` ─▶ `open`
//! - **Layout** the file: `layout`, `docs/formats/pool.md`; log records: `docs/formats/log.md`
//! - **Owner** a pool is one process's at a time, beside which others may read; objects belong to sections, sections to transactions
//! - **Not here** copying, flushing and fencing themselves: the engine and its kernels
//!
//! The paper is NearPM: logs are engine-managed memory that may persist late, and one fence, at commit, is what a transaction
//! pays. Plain files on a disk are the product; persistent memory is the same interface with a stronger guarantee.
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as memlift_persist;

mod applier;
mod apply;
mod backup;
#[expect(unsafe_code, reason = "guards a value by itself")]
mod biased;
mod bits;
mod catalog;
pub mod check;
mod checkpoint;
mod checksums;
mod closing;
mod commit;
mod compact;
mod pool_row;
mod pool_thread;
pub mod convert;
mod dirty;
pub mod dump;
mod error;
mod far;
mod far_record;
mod fetched;
mod fresh;
mod group;
mod heap;
mod holes;
#[expect(unsafe_code, reason = "maps the heap and hands out its bytes to those who hold their lock")]
mod image;
mod interleave;
pub mod kv;
#[expect(unsafe_code, reason = "shares a ring between its writer and the applier")]
mod lane;
pub mod layout;
mod lock;
#[expect(unsafe_code, reason = "answers faults of pages that a file no longer has")]
mod lost;
mod medium;
#[expect(unsafe_code, reason = "says that objects on their way are plain bytes")]
mod migrate;
mod open;
mod options;
#[expect(unsafe_code, reason = "says which types are plain bytes")]
pub mod persist;
mod pool;
mod private_pages;
#[expect(unsafe_code, reason = "says that pointers are plain bytes")]
mod ptr;
pub mod raw;
mod readers;
mod reclaim;
mod record;
mod renew;
mod recover;
pub mod repair;
#[cfg(feature = "replicate")]
mod replica_row;
#[cfg(feature = "replicate")]
pub mod replicate;
mod replicated;
mod section;
#[cfg(feature = "sim")]
pub mod sim;
mod shadow;
mod shared_lane;
mod beside;
mod span;
mod store;
pub mod structures;
mod tail;
mod trim;
mod tx;
mod undo;
mod verify;
#[expect(unsafe_code, reason = "turns checked places of the image into references")]
mod view;
#[expect(unsafe_code, reason = "loads and stores words where a slice would be copied in larger pieces")]
mod words;
mod writes;
mod zones;

pub use backup::{BackedUp, BackupOptions};
pub use catalog::TypeRecord;
pub use compact::Compacted;
pub use error::{Error, Result};
pub use medium::{Counters, Guarantee, Survives};
pub use memlift_persist_derive::Persist;
pub use migrate::{Migrated, Migration, Phase, Progress};
pub use options::{Domain, Durability, Mechanism, Options};
pub use persist::Persist;
pub use pool::{Pool, Reader};
pub use ptr::{PPtr, PSlice};
pub use recover::Recovered;
pub use tx::overwrite::Overwrite;
pub use tx::{Tx, TxOptions};
pub use view::View;

/// A type that an older one was turned into: `#[persist(from = Old)]`. See [`Pool::migrate`].
pub trait Migrates: Persist + From<Self::From> {
    /// The older type.
    type From: Persist;
}

#[cfg(doctest)]
#[doc = include_str!("../tests/derive_refused.md")]
struct Refused;
