// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The encodings of packed bytes, and the effort of a packer.
//!
//! Two encoders may write different bytes; every decoder gives the same result.

/// Encoding of packed bytes.
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
    /// One LZ4 block, without a frame and without its size.
    Lz4 = 3,
    /// One Zstandard frame (RFC 8878).
    Zstd = 4,
    /// memlift's packed pages: each 4096 bytes are packed by a method that suits their contents (the header of
    /// `kernels/src/pages/message.rs` has the layout). For memory: unpacks in about a microsecond per page.
    Pages = 5,
}

impl Format {
    /// All formats, by code.
    pub const ALL: [Format; 6] =
        [Format::Deflate, Format::Zlib, Format::Gzip, Format::Lz4, Format::Zstd, Format::Pages];

    /// Returns the format with this code.
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

    /// Returns the short lower-case name.
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

/// How small a packer makes its output, at the cost of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Effort {
    /// As fast as possible, with small tables; for deflate at most 1.28 times the size that zlib's level 6 gives.
    Fast = 0,
    /// For deflate at most 1.09 times the size that zlib's level 6 gives.
    #[default]
    Default = 1,
    /// For deflate about the size that zlib's level 6 gives, or smaller.
    Small = 2,
}

impl Effort {
    /// Returns the short lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Effort::Fast => "fast",
            Effort::Default => "default",
            Effort::Small => "small",
        }
    }
}
