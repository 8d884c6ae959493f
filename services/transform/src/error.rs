// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of transforms, with what to do next. After an error no byte behind the target's end was written; after
//! [`Error::WrongTag`] the written part of the target is zeroed.

use crate::codec::CodecError;
use memlift_kernels::aead::{KeyLength, Refused};

/// Reasons for which a transform gives no result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The sealed bytes, the key, the nonce or the additional data are not those of the sealing.
    #[error(
        "the tag does not match: wrong key, nonce or additional data, or changed bytes; the target is zeroed"
    )]
    WrongTag,
    /// The packed stream, or the frames around it, cannot be read.
    #[error("the packed stream is corrupt, cut off or of another format: get it again")]
    Corrupt,
    /// The unpacked bytes do not match the checksum in their frame.
    #[error("block {block} does not have the checksum that its frame says: get it again")]
    Checksum {
        /// Number of the block.
        block: u64,
    },
    /// The result needs more room than the target has.
    #[error("the target has {has} bytes and the result may need {needed}: give it that many")]
    TargetTooSmall {
        /// Capacity that always suffices, bytes.
        needed: usize,
        /// Capacity of the target, bytes.
        has: usize,
    },
    /// The unpacked bytes do not fit into the target, and their number is not known.
    #[error("the target has {has} bytes, which the unpacked bytes do not fit into: give it more")]
    UnpackedTooLarge {
        /// Capacity of the target, bytes.
        has: usize,
    },
    /// The bytes cannot be compressed enough to fit into the target.
    #[error("{bytes} bytes do not pack into {has}: send them as they are, or give the target {needed} bytes")]
    Incompressible {
        /// Bytes to pack.
        bytes: usize,
        /// Bytes of the target.
        has: usize,
        /// Capacity that always suffices, bytes.
        needed: usize,
    },
    /// Source and target share bytes.
    #[error("source and target overlap: keep them apart (sealing and opening also work in place)")]
    Overlap,
    /// An address for CompCpy is not aligned to a page.
    #[error("{what} at {address:#x} is not aligned to {align} bytes: allocate it there")]
    NotAligned {
        /// Name of the buffer: `source` or `target`.
        what: &'static str,
        /// Address of the buffer.
        address: usize,
        /// Alignment that it needs, bytes.
        align: usize,
    },
    /// The message is longer than the operation allows.
    #[error(
        "{bytes} bytes are too many for one message (at most {most}): send several, or a chain in frames"
    )]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
        /// Most bytes that one message may have.
        most: u64,
    },
    /// All scratch memory is in use.
    #[error(
        "all {slabs} scratch slabs are in use: try again, wait for one, or raise transform.scratch_bytes"
    )]
    Busy {
        /// Slabs of the pool, all in use.
        slabs: usize,
    },
    /// A key is too short or too long.
    #[error(transparent)]
    Key(#[from] KeyLength),
    /// The steps cannot be combined to a chain.
    #[error("{0}")]
    Chain(&'static str),
    /// The call is not allowed after the calls before it.
    #[error("{0}")]
    Order(&'static str),
    /// The format is not built in, or cannot be packed in pieces.
    #[error("{format} is not built in, or does not go in pieces: take deflate, zlib or gzip")]
    Unsupported {
        /// The format's name.
        format: &'static str,
    },
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Overlap => Error::Overlap,
            Refused::TooLong => {
                Error::TooLong { bytes: usize::MAX, most: memlift_kernels::aead::MESSAGE_BYTES_MAX }
            }
            _ => Error::Order("out of order: first all additional data, then the message, then the end"),
        }
    }
}

impl Error {
    /// Translates the error of a codec that unpacked into a target of `has` bytes.
    pub(crate) fn unpacking(error: CodecError, has: usize) -> Error {
        match error {
            CodecError::TargetTooSmall => Error::UnpackedTooLarge { has },
            CodecError::Unsupported { format } => Error::Unsupported { format: format.name() },
            _ => Error::Corrupt,
        }
    }

    /// Translates the error of a codec that packed `bytes` bytes into a target of `has` bytes.
    pub(crate) fn packing(error: CodecError, bytes: usize, has: usize, needed: usize) -> Error {
        match error {
            CodecError::Unsupported { format } => Error::Unsupported { format: format.name() },
            _ if has >= bytes => Error::Incompressible { bytes, has, needed },
            _ => Error::TargetTooSmall { needed, has },
        }
    }
}
