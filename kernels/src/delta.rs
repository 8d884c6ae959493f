// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delta records: their size, and the results of creating and applying one.
//!
//! - **Layout** an entry is 10 bytes: 0 offset u16, little endian, in 8-byte words · 2 the 8 bytes that belong there.
//!   A record is a row of entries with strictly increasing offsets.
//! - **Not here** the routines: see [`arch`](crate::arch).
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification, Create and Apply Delta Record.

/// Bytes of one entry of a delta record.
pub const DELTA_ENTRY_BYTES: usize = 10;

/// Number of words that an offset can address.
pub(crate) const WORDS_MAX: usize = 1 << 16;

/// Result of creating a delta record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delta {
    /// Both buffers are equal; nothing was written.
    Equal,
    /// The buffers differ; the record has this many bytes.
    Delta(usize),
    /// The buffers differ in more words than the record has room for; this many bytes of entries fit and were written.
    Overflow(usize),
}

/// Reason why a delta record cannot be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// The size is not a multiple of an entry. Nothing was applied.
    #[error(
        "a delta record of {record_bytes} bytes is not a whole number of 10-byte entries: pass the size that \
         delta_create returned"
    )]
    Size {
        /// The size given, in bytes.
        record_bytes: usize,
    },
    /// An offset is not greater than the one before.
    #[error("entry {entry} of the delta record does not lie above the one before: the record is damaged")]
    Order {
        /// Index of the bad entry; the entries before it are applied.
        entry: usize,
    },
    /// An offset lies outside the target.
    #[error(
        "entry {entry} of the delta record lies outside the target: apply it to a buffer of the source's size"
    )]
    Range {
        /// Index of the bad entry; the entries before it are applied.
        entry: usize,
    },
}
