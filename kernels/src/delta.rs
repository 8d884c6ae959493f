// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delta records: what creating and applying one can say.
//!
//! - **Layout** an entry is 10 bytes: 0 offset u16, little endian, in 8-byte words · 2 the 8 bytes that belong there.
//!   A record is a row of entries with strictly increasing offsets.
//! - **Not here** the routines: see [`arch`](crate::arch).
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification, Create and Apply Delta Record.

/// Bytes of one entry of a delta record.
pub const DELTA_ENTRY_BYTES: usize = 10;

/// Words that an offset can name.
pub(crate) const WORDS_MAX: usize = 1 << 16;

/// Result of creating a delta record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delta {
    /// Both buffers are equal; nothing was written.
    Equal,
    /// They differ, and the record of this many bytes says where.
    Delta(usize),
    /// They differ in more words than there is room for; this many bytes of entries fit and were written.
    Overflow(usize),
}

/// Why a delta record cannot be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// The size is not a whole number of entries. Nothing was applied.
    #[error(
        "a delta record of {record_bytes} bytes is not a whole number of 10-byte entries: pass the size that \
         delta_create returned"
    )]
    Size {
        /// The size given, in bytes.
        record_bytes: usize,
    },
    /// An offset is not above the one before.
    #[error("entry {entry} of the delta record does not lie above the one before: the record is damaged")]
    Order {
        /// Index of the bad entry; those before it are applied.
        entry: usize,
    },
    /// An offset lies outside the target.
    #[error(
        "entry {entry} of the delta record lies outside the target: apply it to a buffer of the source's size"
    )]
    Range {
        /// Index of the bad entry; those before it are applied.
        entry: usize,
    },
}
