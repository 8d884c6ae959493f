// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operand blocks: what private opcodes need beyond the 24 bytes a descriptor has for them.
//!
//! Flow    descriptor bytes 40..48 ──address──▶ operand block (64-byte aligned, the submitter's memory)
//! Layout  every block starts with u8 opcode (equal to the descriptor's) · u8 version · u16 bytes of the
//!         block · u32 reserved, so that a backend can refuse what it does not know.
//! Owner   lent to the backend until completion, like the buffers.
//! Not here the blocks of SEAL, OPEN, PACK and UNPACK: see `operand/seal` and `operand/pack`; those of LOG_APPEND,
//!         LOG_APPLY, PAGE_COPY and LOG_RESET: see `operand/persist`, and `operand/log` for the record

pub mod log;
mod pack;
pub mod packet;
mod persist;
mod seal;
pub mod walk;

pub use pack::{Effort, Format, PackBlock};
pub use persist::{
    AppendBlock, ApplyBlock, HINT_CHECKSUM, HINT_STORE_FENCE, HINT_WRITE_BACK, PageCopyBlock, ResetBlock,
};
pub use seal::{NONCE_BYTES, PREPARED_KERNELS, PREPARED_NONE, SealBlock, TAG_BYTES};

use crate::Opcode;
use crate::limits::CACHE_LINE_BYTES;

/// Hint of SEAL, OPEN, PACK, UNPACK: nobody else touches source and target until completion. Without it a backend
/// that would read or write a byte twice works on a private copy, because another process may change the bytes in
/// between.
pub const HINT_PRIVATE: u32 = 1;

/// STRIDED_COPY: `rows` rows of `row_bytes`, the first at the descriptor's source, each next one
/// `source_stride` bytes further (may be negative), written packed from the descriptor's target.
/// The descriptor's size is `rows * row_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct StridedCopy {
    /// [`Opcode::STRIDED_COPY`].
    pub opcode: u8,
    /// 1.
    pub version: u8,
    /// 64.
    pub block_bytes: u16,
    /// 0.
    pub reserved: u32,
    /// Rows to gather.
    pub rows: u64,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Bytes from the start of a row to the start of the next one in the source.
    pub source_stride: i64,
    /// 0.
    pub reserved2: [u64; 4],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<StridedCopy>() == CACHE_LINE_BYTES && align_of::<StridedCopy>() == CACHE_LINE_BYTES);
    assert!(offset_of!(StridedCopy, opcode) == 0);
    assert!(offset_of!(StridedCopy, version) == 1);
    assert!(offset_of!(StridedCopy, block_bytes) == 2);
    assert!(offset_of!(StridedCopy, reserved) == 4);
    assert!(offset_of!(StridedCopy, rows) == 8);
    assert!(offset_of!(StridedCopy, row_bytes) == 16);
    assert!(offset_of!(StridedCopy, source_stride) == 24);
    assert!(offset_of!(StridedCopy, reserved2) == 32);
};

impl StridedCopy {
    /// A block with its header filled in.
    pub const fn new(rows: u64, row_bytes: u64, source_stride: i64) -> StridedCopy {
        StridedCopy {
            opcode: Opcode::STRIDED_COPY.0,
            version: 1,
            block_bytes: 64,
            reserved: 0,
            rows,
            row_bytes,
            source_stride,
            reserved2: [0; 4],
        }
    }
}
