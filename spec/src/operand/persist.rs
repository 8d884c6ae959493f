// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operand blocks of LOG_APPEND, LOG_APPLY, PAGE_COPY and LOG_RESET.
//!
//! - **Layout** all: 0 opcode u8 · 1 version u8 · 2 block bytes u16 · 4 reserved u32 · 8 salt u32 · 12 hints u32. Then, by block:
//!   - append, 64 bytes: the rest reserved
//!   - apply, 64 bytes: 16 position u64 · 24 heap bytes u64 · the rest reserved
//!   - page copy, 64 bytes: 16 bitmap of lines u64 · the rest reserved
//!   - reset, 128 bytes: 16..64 reserved · 64 the 64 bytes that are stored
//! - **Order** when the operation's record says success, the stored bytes are visible and, if the memory is, durable. For a member of a
//!   batch without [`HINT_STORE_FENCE`] this holds only when the batch's record says success: one fence for all members.
//! - **Owner** the submitter's memory, which is only read. A block must not overlap memory that the operation writes: the target; for
//!   LOG_APPLY the whole heap; for LOG_APPEND also the source, whose first four bytes become the checksum.
//! - **Not here** the record that is appended and applied: see `operand/log`.

use crate::Opcode;
use crate::limits::CACHE_LINE_BYTES;

/// Hint of the four opcodes, for members of batches: a store fence before the member's own record, so that its stores are
/// durable then, and before the stores of later members. LOG_RESET always fences.
pub const HINT_STORE_FENCE: u32 = 2;
/// Hint of LOG_APPLY: writes back every cache line that was stored to.
pub const HINT_WRITE_BACK: u32 = 4;
/// Hint of PAGE_COPY: the completion's value is the CRC-32C of the copied lines, lowest first, seeded with the salt.
pub const HINT_CHECKSUM: u32 = 8;

macro_rules! block {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $opcode:ident; $($(#[$field_doc:meta])* $field:ident: $type:ty = $offset:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(C, align(64))]
        pub struct $name {
            #[doc = concat!("[`Opcode::", stringify!($opcode), "`].")]
            pub opcode: u8,
            /// Version of the layout: 1.
            pub version: u8,
            #[doc = concat!(stringify!($bytes), ".")]
            pub block_bytes: u16,
            /// Reserved, must be 0.
            pub reserved: u32,
            /// The pool's salt, which seeds its checksums; 0 if there is no checksum.
            pub salt: u32,
            /// Hints of this opcode, or 0.
            pub hints: u32,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        const _: () = {
            use core::mem::{align_of, offset_of, size_of};
            assert!(size_of::<$name>() == $bytes && align_of::<$name>() == CACHE_LINE_BYTES);
            assert!(offset_of!($name, opcode) == 0);
            assert!(offset_of!($name, version) == 1);
            assert!(offset_of!($name, block_bytes) == 2);
            assert!(offset_of!($name, reserved) == 4);
            assert!(offset_of!($name, salt) == 8);
            assert!(offset_of!($name, hints) == 12);
            $(assert!(offset_of!($name, $field) == $offset);)*
        };

        impl $name {
            /// Size of the block, bytes.
            pub const BYTES: usize = core::mem::size_of::<$name>();
            /// Value of `version`.
            pub const VERSION: u8 = 1;

            /// Returns the block with these hints.
            #[must_use]
            pub const fn with_hints(mut self, hints: u32) -> $name {
                self.hints = hints;
                self
            }
        }
    };
}

block! {
    /// LOG_APPEND: the salt, and a hint to fence.
    AppendBlock, 64, LOG_APPEND;
    /// Reserved, must be 0.
    reserved2: [u64; 6] = 16,
}

block! {
    /// LOG_APPLY: the position of the expected record, and the size of the heap.
    ApplyBlock, 64, LOG_APPLY;
    /// The position that the record must have.
    position: u64 = 16,
    /// Size of the heap at the descriptor's target, bytes: nothing is stored beyond it.
    heap_bytes: u64 = 24,
    /// Reserved, must be 0.
    reserved2: [u64; 4] = 32,
}

block! {
    /// PAGE_COPY: the lines of the page.
    PageCopyBlock, 64, PAGE_COPY;
    /// Bit i selects bytes 64 i to 64 i + 63.
    lines: u64 = 16,
    /// Reserved, must be 0.
    reserved2: [u64; 5] = 24,
}

block! {
    /// LOG_RESET: the new bytes of the head of a lane.
    ResetBlock, 128, LOG_RESET;
    /// Reserved, must be 0.
    reserved2: [u64; 6] = 16,
    /// Bytes that are stored at the descriptor's target.
    head: [u8; CACHE_LINE_BYTES] = 64,
}

impl AppendBlock {
    /// Returns a block without hints.
    pub const fn new(salt: u32) -> AppendBlock {
        AppendBlock {
            opcode: Opcode::LOG_APPEND.0,
            version: AppendBlock::VERSION,
            block_bytes: AppendBlock::BYTES as u16,
            reserved: 0,
            salt,
            hints: 0,
            reserved2: [0; 6],
        }
    }
}

impl ApplyBlock {
    /// Returns a block without hints.
    pub const fn new(salt: u32, position: u64, heap_bytes: u64) -> ApplyBlock {
        ApplyBlock {
            opcode: Opcode::LOG_APPLY.0,
            version: ApplyBlock::VERSION,
            block_bytes: ApplyBlock::BYTES as u16,
            reserved: 0,
            salt,
            hints: 0,
            position,
            heap_bytes,
            reserved2: [0; 4],
        }
    }
}

impl PageCopyBlock {
    /// Returns a block without hints.
    pub const fn new(lines: u64) -> PageCopyBlock {
        PageCopyBlock {
            opcode: Opcode::PAGE_COPY.0,
            version: PageCopyBlock::VERSION,
            block_bytes: PageCopyBlock::BYTES as u16,
            reserved: 0,
            salt: 0,
            hints: 0,
            lines,
            reserved2: [0; 5],
        }
    }

    /// Returns the block with a request for a checksum of the lines, seeded with `salt`, as the completion's value.
    #[must_use]
    pub const fn with_checksum(mut self, salt: u32) -> PageCopyBlock {
        self.salt = salt;
        self.hints |= HINT_CHECKSUM;
        self
    }
}

impl ResetBlock {
    /// Returns a block without hints.
    pub const fn new(head: [u8; CACHE_LINE_BYTES]) -> ResetBlock {
        ResetBlock {
            opcode: Opcode::LOG_RESET.0,
            version: ResetBlock::VERSION,
            block_bytes: ResetBlock::BYTES as u16,
            reserved: 0,
            salt: 0,
            hints: 0,
            reserved2: [0; 6],
            head,
        }
    }
}
