// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Structures that live in a pool: maps, a log, a queue.
//!
//! - **Shape** a handle is a pointer to a root object: `create(t)` makes one, `pointer()` is what to keep, `open(pointer)` gives
//!   the handle back. Methods take the transaction, or any [`View`] where they only read
//! - **Rule** safe code only: everything is written through `Tx`, so an abort or a crash in the middle leaves no trace. What is
//!   read may come from a damaged file: walks are bounded, indices checked, the answer is an error
//! - **Cost** nodes are lent by parts, and only words that changed are logged: layouts are such that an insert changes few
//! - **Owner** a structure allocates in the section in which it was created; a transaction that uses it holds that section.
//!   Values that own other objects are their user's to free
mod append_log;
mod btree;
mod hashmap;
mod key;
mod queue;
mod rbtree;
mod skiplist;

pub use append_log::{AppendLog, AppendLogRoot};
pub use btree::{BTree, BTreeRoot, Range, RangeBack};
pub(crate) use btree::{EntryPlace, Next};
pub use hashmap::{HashMap, HashMapRoot, Hashed};
pub use key::Key;
pub use queue::{Queue, QueueRoot};
pub use rbtree::{RbTree, RbTreeRoot};
pub use skiplist::{SkipList, SkipListRoot};

use crate::error::Error;
use crate::view::View;

/// The file says something that this structure never wrote.
#[cold]
fn damaged(what: &'static str) -> Error {
    Error::corrupt(what)
}

/// A count that the file says, but no more than objects of 16 bytes have room for: what walks are bounded by.
#[inline]
fn at_most<W: View>(view: &W, count: u64) -> u64 {
    count.min(view.heap_bytes() / 16)
}

/// Spreads the bits of a word (the finaliser of splitmix64, Steele et al. 2014).
#[inline]
pub(crate) fn spread(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
