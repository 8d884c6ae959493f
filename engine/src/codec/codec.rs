// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pack and unpack, whatever the format.
//!
//! Order   `bound` is what a packed message never exceeds; whoever gives that much room gets no `TargetTooSmall`

use memlift_kernels::deflate::{self, Packer, UnpackError, Unpacker};
use memlift_spec::{Effort, Format};

/// Why a message was not packed or unpacked. Nothing behind the target's end was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Not enough room.
    #[error("the target is too small for the result: give it more room")]
    TargetTooSmall,
    /// The stream cannot be unpacked.
    #[error("the packed stream is corrupt, cut off or of another format: get it again")]
    Corrupt,
    /// Not built in.
    #[error("this build has no {}: take another format", format.name())]
    Unsupported {
        /// The format that was asked for.
        format: Format,
    },
}

/// What unpacking used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unpacked {
    /// Bytes of the source that belong to the stream; others may follow.
    pub read: usize,
    /// Bytes of the message.
    pub written: usize,
}

/// Packs and unpacks; keeps the tables of every format it was used for.
#[derive(Default)]
pub struct Codec {
    packer: Option<Packer>,
    unpacker: Option<Unpacker>,
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

/// Whether this build packs and unpacks `format`.
pub fn supported(format: Format) -> bool {
    deflate_format(format).is_some()
}

/// The most bytes that a message of `bytes` takes when packed at once.
pub fn bound(format: Format, bytes: usize) -> usize {
    match deflate_format(format) {
        Some(format) => deflate::bound(format, bytes),
        None => bytes,
    }
}

impl Codec {
    /// Allocates nothing yet.
    pub fn new() -> Codec {
        Codec::default()
    }

    /// Packs one whole message; gives the bytes written.
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
        let Some(format) = deflate_format(format) else {
            return Err(CodecError::Unsupported { format });
        };
        let unpacker = self.unpacker.get_or_insert_with(Unpacker::new);
        let deflate::Unpacked { read, written } =
            unpacker.unpack(format, source, target).map_err(|error| match error {
                UnpackError::TargetTooSmall => CodecError::TargetTooSmall,
                _ => CodecError::Corrupt,
            })?;
        Ok(Unpacked { read, written })
    }
}
