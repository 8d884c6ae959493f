// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs that a reader beside another process's writer has read from a snapshot.

use crate::bits::Bits;

/// Slabs of a snapshot that its image has.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub there: Bits,
    /// Those that are what they should be.
    pub good: Bits,
}

impl Fetched {
    /// For a heap of up to `heap_bytes`.
    pub fn new(heap_bytes: u64) -> Fetched {
        Fetched { there: Bits::new(heap_bytes), good: Bits::new(heap_bytes) }
    }
}
