// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operand block of PACK and UNPACK: which encoding, how hard to try, how much room the target has.
//!
//! Layout   0 opcode u8 · 1 version u8 · 2 block bytes u16 · 4 reserved u32
//!          8 format u8 · 9 effort u8 · 10 reserved u16 · 12 hints u32 · 16 target capacity u64
//!         24 reserved 40 bytes · 64 end
//! Order    the completion's `value` is the number of bytes written, `bytes_completed` that of source bytes read.
//!          What lies in the target behind the bytes written means nothing, nor does any of it after a failure;
//!          nothing behind the capacity is ever written.
//! Owner    the submitter's memory.
//!
//! Two encoders may write different bytes; every decoder gives the same. A stream that PACK wrote is never longer
//! than its source by more than the format's own bound, and fits when the target has room for that bound.

use crate::Opcode;
use crate::limits::CACHE_LINE_BYTES;

/// How packed bytes are encoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Format {
    /// Deflate without a wrapper (RFC 1951).
    Deflate = 0,
    /// Deflate in a zlib wrapper (RFC 1950).
    Zlib = 1,
    /// Deflate in one gzip member (RFC 1952).
    Gzip = 2,
    /// One LZ4 block, without frame or size.
    Lz4 = 3,
    /// One Zstandard frame (RFC 8878).
    Zstd = 4,
    /// memlift's packed pages: each 4096 bytes by what they hold, numbers as numbers (the header of `kernels/src/page/message.rs`
    /// has the layout). For memory: unpacks in about a microsecond a page.
    Pages = 5,
}

impl Format {
    /// All of them, by code.
    pub const ALL: [Format; 6] =
        [Format::Deflate, Format::Zlib, Format::Gzip, Format::Lz4, Format::Zstd, Format::Pages];

    /// The format with that code.
    pub const fn from_code(code: u8) -> Option<Format> {
        match code {
            0 => Some(Format::Deflate),
            1 => Some(Format::Zlib),
            2 => Some(Format::Gzip),
            3 => Some(Format::Lz4),
            4 => Some(Format::Zstd),
            5 => Some(Format::Pages),
            _ => None,
        }
    }

    /// Short lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Deflate => "deflate",
            Format::Zlib => "zlib",
            Format::Gzip => "gzip",
            Format::Lz4 => "lz4",
            Format::Zstd => "zstd",
            Format::Pages => "pages",
        }
    }
}

/// How hard PACK tries. UNPACK ignores it (0).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Effort {
    /// As fast as can be, with small tables; for deflate at most 1.28 × the size that zlib's level 6 gives.
    Fast = 0,
    /// For deflate at most 1.09 × the size that zlib's level 6 gives.
    #[default]
    Default = 1,
    /// For deflate about the size that zlib's level 6 gives, or smaller.
    Small = 2,
}

impl Effort {
    /// All of them, by code.
    pub const ALL: [Effort; 3] = [Effort::Fast, Effort::Default, Effort::Small];

    /// The effort with that code.
    pub const fn from_code(code: u8) -> Option<Effort> {
        match code {
            0 => Some(Effort::Fast),
            1 => Some(Effort::Default),
            2 => Some(Effort::Small),
            _ => None,
        }
    }

    /// Short lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Effort::Fast => "fast",
            Effort::Default => "default",
            Effort::Small => "small",
        }
    }
}

/// PACK, UNPACK. See the module's header for the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct PackBlock {
    /// [`Opcode::PACK`] or [`Opcode::UNPACK`].
    pub opcode: u8,
    /// 1.
    pub version: u8,
    /// 64.
    pub block_bytes: u16,
    /// 0.
    pub reserved: u32,
    /// Code of a [`Format`].
    pub format: u8,
    /// Code of an [`Effort`]; 0 for UNPACK.
    pub effort: u8,
    /// 0.
    pub reserved2: u16,
    /// [`HINT_PRIVATE`](super::HINT_PRIVATE) or 0.
    pub hints: u32,
    /// Most bytes that may be written at the descriptor's target.
    pub target_capacity: u64,
    /// 0.
    pub reserved3: [u64; 5],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<PackBlock>() == CACHE_LINE_BYTES && align_of::<PackBlock>() == CACHE_LINE_BYTES);
    assert!(offset_of!(PackBlock, opcode) == 0);
    assert!(offset_of!(PackBlock, version) == 1);
    assert!(offset_of!(PackBlock, block_bytes) == 2);
    assert!(offset_of!(PackBlock, reserved) == 4);
    assert!(offset_of!(PackBlock, format) == 8);
    assert!(offset_of!(PackBlock, effort) == 9);
    assert!(offset_of!(PackBlock, reserved2) == 10);
    assert!(offset_of!(PackBlock, hints) == 12);
    assert!(offset_of!(PackBlock, target_capacity) == 16);
    assert!(offset_of!(PackBlock, reserved3) == 24);
};

impl PackBlock {
    /// Size of the block in bytes.
    pub const BYTES: usize = core::mem::size_of::<PackBlock>();
    /// What `version` is.
    pub const VERSION: u8 = 1;

    /// A block for PACK.
    pub const fn pack(format: Format, effort: Effort, target_capacity: u64) -> PackBlock {
        PackBlock {
            opcode: Opcode::PACK.0,
            version: PackBlock::VERSION,
            block_bytes: PackBlock::BYTES as u16,
            reserved: 0,
            format: format as u8,
            effort: effort as u8,
            reserved2: 0,
            hints: 0,
            target_capacity,
            reserved3: [0; 5],
        }
    }

    /// The same with hints.
    #[must_use]
    pub const fn with_hints(mut self, hints: u32) -> PackBlock {
        self.hints = hints;
        self
    }

    /// A block for UNPACK.
    pub const fn unpack(format: Format, target_capacity: u64) -> PackBlock {
        let mut block = PackBlock::pack(format, Effort::Fast, target_capacity);
        block.opcode = Opcode::UNPACK.0;
        block
    }
}
