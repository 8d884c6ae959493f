// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that an arena shares with its readers: a directory that they only read, and a table of leases for each of them.
//!
//! - **Layout** directory: [`Header`], then from byte 4,096 on one [`Entry`] for each block · table: one word for each block ([`Lease`])
//! - **Order** a reader stores its lease, then looks whether the block still has the generation that it wants. The arena takes the
//!   generation away, then looks for leases. Both are sequentially consistent, so at least one of them sees the other
//! - **Owner** the arena writes the directory, and its readers cannot. A reader writes its own table only: it can keep memory from
//!   being used again, but not end another reader's lease

use memlift_ground::region::AtomicLayout;
use std::sync::atomic::AtomicU64;

/// "memlifta", read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"memlifta");
/// Version of the directory, the tables and the packets.
pub const VERSION: u32 = 1;
/// Where the entries lie.
pub const ENTRIES_AT: u64 = 4096;
/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 32;
/// Most blocks of an arena.
pub const BLOCKS_MAX: u32 = 1 << 20;
/// Highest generation of a block, which is not used again after it.
pub const GENERATION_MAX: u64 = (1 << 40) - 1;

/// Words of the arena as a whole.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU64,
    /// Number of the arena, drawn at random.
    pub id: [AtomicU64; 2],
    /// 1: the arena was closed, and gives nothing any more.
    pub closed: AtomicU64,
    /// 1: somebody waits for room, and wants to be told when a lease ends.
    pub waiting: AtomicU64,
}

/// A block in the directory.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    /// Number of the value that lies in this block now, counted from the first that lay there; 0: none.
    pub generation: AtomicU64,
    /// Where it lies, bytes from the start of the data.
    pub offset: AtomicU64,
    /// Its length, bytes.
    pub bytes: AtomicU64,
    reserved: AtomicU64,
}

/// Words of the header and of an entry, by which readers load them: their mapping has no room for references to atomics.
pub const CLOSED_AT: u64 = 32;
/// See [`Header::waiting`].
pub const WAITING_AT: u64 = 40;
/// See [`Entry::offset`].
pub const OFFSET_AT: u64 = 8;
/// See [`Entry::bytes`].
pub const BYTES_AT: u64 = 16;

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Header, closed) == CLOSED_AT as usize);
    assert!(offset_of!(Header, waiting) == WAITING_AT as usize);
    assert!(offset_of!(Entry, generation) == 0);
    assert!(offset_of!(Entry, offset) == OFFSET_AT as usize);
    assert!(offset_of!(Entry, bytes) == BYTES_AT as usize);
    assert!(size_of::<Header>() <= ENTRIES_AT as usize);
    assert!(size_of::<Entry>() == ENTRY_BYTES as usize);
};

// SAFETY: atomics only, so any bytes are valid and another process may write them.
unsafe impl AtomicLayout for Header {}
// SAFETY: all fields are atomics, so any bytes are valid and another process may write them.
unsafe impl AtomicLayout for Entry {}

/// A reader's account of a block, in one word of its table: bit 0 live, 23 bits of takes, 40 bits of generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// The value it is about.
    pub generation: u64,
    /// How often the reader asked for it; stays at its greatest value.
    pub takes: u32,
    /// True if the reader has a view of it now.
    pub live: bool,
}

impl Lease {
    /// Most takes that are counted.
    pub const TAKES_MAX: u32 = (1 << 23) - 1;

    /// Reads a word. Any word is a lease.
    pub fn from_word(word: u64) -> Lease {
        Lease { generation: word >> 24, takes: (word >> 1) as u32 & Lease::TAKES_MAX, live: word & 1 != 0 }
    }

    /// The word of this lease.
    pub fn to_word(self) -> u64 {
        debug_assert!(self.generation <= GENERATION_MAX && self.takes <= Lease::TAKES_MAX);
        self.generation << 24 | u64::from(self.takes) << 1 | u64::from(self.live)
    }
}

/// Bytes of a directory for so many blocks.
pub fn directory_bytes(blocks: u32) -> u64 {
    ENTRIES_AT + u64::from(blocks) * ENTRY_BYTES
}

/// Bytes of a reader's table for so many blocks.
pub fn table_bytes(blocks: u32) -> u64 {
    u64::from(blocks) * 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_and_leases_are_the_same(word in any::<u64>()) {
            prop_assert_eq!(Lease::from_word(word).to_word(), word);
        }
    }
}
