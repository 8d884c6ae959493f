// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools for languages without types at Rust's compile time, and without closures to hold a lock by.
//!
//! - **Flow** [`Handle`] (closed at most once, left alone in a forked child) ─▶ [`OpenTx`], [`OpenRead`]: a transaction, a read
//!   lock, held from call to call ─▶ objects ([`crate::Tx::alloc_raw`], [`read_raw`], …) and ordered maps ([`Table`])
//! - **Layout** an object is an array of bytes ([`crate::PSlice`] of u8): u64 type · u64 bytes of the payload · the payload. The
//!   type is [`ForeignType::layout`], a hash over name, size and fields. A pool's root is a [`ForeignRoot`]
//! - **Rule** the heap sees one type, `[u8]`: tag, bounds and section are checked as for every array, then the object's own type
//!   and length. What a file says is a claim: a wrong one is an error. An object that was freed has type 0
//! - **Not here** which names a pool has and what their values mean: the bindings, and for tools `check` and `dump`

#[expect(unsafe_code, reason = "keeps locks beyond the borrow that they were taken by")]
mod handle;
#[expect(unsafe_code, reason = "says that the root is plain bytes, and lends new objects")]
mod object;
mod table;

pub use handle::{Handle, Looking, OpenRead, OpenTx, PoolRef};
pub use object::{
    ARRAY_PAD, ARRAY_TYPE, FOREIGN_BYTES_MAX, ForeignField, ForeignRoot, ForeignType, OBJECT_HEADER_BYTES,
    read_raw, root, root_or,
};
pub(crate) use table::Part as TablePart;
pub use table::{Put, Table};
