// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packs and unpacks whole messages of every format.
//!
//! - **Flow** [`Format`] and [`Effort`] ──[`Codec`]──▶ the kernel of that format
//! - **Owner** a [`Codec`] belongs to one thread at a time and keeps its tables: after the first message of a format it does not
//!   allocate
//! - **Not here** shared memory: a codec reads its source more than once, so it must only get private bytes; callers copy shared
//!   bytes first
//! - **Order** a packed message never exceeds `bound`: a target with that much room never fails with `TargetTooSmall`

use memlift_kernels::deflate::{self, Packer, UnpackError, Unpacker};
use memlift_kernels::lz4::{self, Lz4, Lz4Error};
use memlift_kernels::pages::{self, MessageError};
use memlift_kernels::zstd::{self, Zstd, ZstdError};
use memlift_spec::{Effort, Format};

/// Reason that a message was not packed or unpacked. Nothing behind the target's end was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The target has not enough room.
    #[error("the target is too small for the result: give it more room")]
    TargetTooSmall,
    /// The stream cannot be unpacked.
    #[error("the packed stream is corrupt, cut off or of another format: get it again")]
    Corrupt,
    /// The format is not built in.
    #[error("this build has no {}: take another format", format.name())]
    Unsupported {
        /// The format that was requested.
        format: Format,
    },
}

/// Numbers of bytes that unpacking one message has read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unpacked {
    /// Bytes of the source that belong to the message; others may follow.
    pub read: usize,
    /// Bytes of the message.
    pub written: usize,
}

/// Packs and unpacks messages; keeps the tables of every format that it was used for.
#[derive(Default)]
pub struct Codec {
    packer: Option<Packer>,
    unpacker: Option<Unpacker>,
    lz4: Option<Lz4>,
    zstd: Option<Zstd>,
    pages: Option<Box<pages::Packer>>,
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec")
            .field("packs", &self.packer.is_some())
            .field("unpacks", &self.unpacker.is_some())
            .finish()
    }
}

fn deflate_format(format: Format) -> Option<deflate::Format> {
    match format {
        Format::Deflate => Some(deflate::Format::Raw),
        Format::Zlib => Some(deflate::Format::Zlib),
        Format::Gzip => Some(deflate::Format::Gzip),
        _ => None,
    }
}

/// Returns true if this build packs and unpacks `format`.
pub fn supported(format: Format) -> bool {
    deflate_format(format).is_some() || matches!(format, Format::Lz4 | Format::Zstd | Format::Pages)
}

/// Returns the most bytes that a message of `bytes` takes when packed in one call.
pub fn bound(format: Format, bytes: usize) -> usize {
    match (deflate_format(format), format) {
        (Some(format), _) => deflate::bound(format, bytes),
        (None, Format::Lz4) => lz4::bound(bytes),
        (None, Format::Zstd) => zstd::bound(bytes),
        (None, Format::Pages) => pages::bound(bytes),
        (None, _) => bytes,
    }
}

impl Codec {
    /// Makes a codec; allocates nothing yet.
    pub fn new() -> Codec {
        Codec::default()
    }

    /// Packs one whole message; returns the number of bytes written.
    ///
    /// # Errors
    ///
    /// [`CodecError::TargetTooSmall`], [`CodecError::Unsupported`].
    pub fn pack(
        &mut self,
        format: Format,
        effort: Effort,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<usize, CodecError> {
        match format {
            Format::Lz4 => {
                let lz4 = self.lz4.get_or_insert_with(Lz4::new);
                return lz4.pack(source, target).map_err(|_| CodecError::TargetTooSmall);
            }
            Format::Zstd => {
                let level = zstd::LEVELS[effort as usize % zstd::LEVELS.len()];
                let packed = self.zstd.get_or_insert_with(Zstd::new).pack(level, source, target);
                return packed.map_err(|_| CodecError::TargetTooSmall);
            }
            Format::Pages => {
                let effort = if effort == Effort::Small { pages::Effort::Cold } else { pages::Effort::Fast };
                let packed = self.pages.get_or_insert_default().pack_message(source, target, effort);
                return packed.ok_or(CodecError::TargetTooSmall);
            }
            _ => {}
        }
        let Some(format) = deflate_format(format) else {
            return Err(CodecError::Unsupported { format });
        };
        let effort = match effort {
            Effort::Fast => deflate::Effort::Fast,
            Effort::Small => deflate::Effort::Small,
            _ => deflate::Effort::Default,
        };
        let packer = self.packer.get_or_insert_with(Packer::new);
        packer.pack(format, effort, source, target).map_err(|_| CodecError::TargetTooSmall)
    }

    /// Unpacks the message at the start of `source`.
    ///
    /// # Errors
    ///
    /// [`CodecError`].
    pub fn unpack(
        &mut self,
        format: Format,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<Unpacked, CodecError> {
        match format {
            Format::Lz4 => {
                let unpacked = self.lz4.get_or_insert_with(Lz4::new).unpack(source, target);
                return match unpacked {
                    Ok(written) => Ok(Unpacked { read: source.len(), written }),
                    Err(Lz4Error::TargetTooSmall) => Err(CodecError::TargetTooSmall),
                    Err(_) => Err(CodecError::Corrupt),
                };
            }
            Format::Zstd => {
                let unpacked = self.zstd.get_or_insert_with(Zstd::new).unpack(source, target);
                return match unpacked {
                    Ok((read, written)) => Ok(Unpacked { read, written }),
                    Err(ZstdError::TargetTooSmall) => Err(CodecError::TargetTooSmall),
                    Err(_) => Err(CodecError::Corrupt),
                };
            }
            Format::Pages => {
                return match self.pages.get_or_insert_default().unpack_message(source, target) {
                    Ok((read, written)) => Ok(Unpacked { read, written }),
                    Err(MessageError::TargetTooSmall) => Err(CodecError::TargetTooSmall),
                    Err(_) => Err(CodecError::Corrupt),
                };
            }
            _ => {}
        }
        let Some(format) = deflate_format(format) else {
            return Err(CodecError::Unsupported { format });
        };
        let unpacker = self.unpacker.get_or_insert_with(Unpacker::new);
        match unpacker.unpack(format, source, target) {
            Ok(deflate::Unpacked { read, written }) => Ok(Unpacked { read, written }),
            Err(UnpackError::TargetTooSmall) => Err(cut_off(unpacker, format, source, target.len())),
            Err(_) => Err(CodecError::Corrupt),
        }
    }
}

/// Tells a stream that was cut off from a target that is too small. At the end of its source the unpacker continues with
/// zeros, and it may be their output that did not fit. With enough room for that output, a stream that was cut off fails as
/// corrupt.
#[cold]
fn cut_off(unpacker: &mut Unpacker, format: deflate::Format, source: &[u8], capacity: usize) -> CodecError {
    /// Most output of a bit buffer of zeros: each bit is a match of the longest kind.
    const MORE_BYTES: usize = 64 * 258 * 2;
    let mut room: Vec<u8> = Vec::new();
    if room.try_reserve_exact(capacity + MORE_BYTES).is_err() {
        return CodecError::TargetTooSmall;
    }
    room.resize(capacity + MORE_BYTES, 0);
    match unpacker.unpack(format, source, &mut room) {
        Err(UnpackError::Corrupt) => CodecError::Corrupt,
        _ => CodecError::TargetTooSmall,
    }
}
