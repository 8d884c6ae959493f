// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zstandard frames: [`Zstd`].
//!
//! - **Flow** message ──libzstd (levels 1, 3, 9)──▶ one frame; the first frame of a source ──▶ message.
//! - **Owner** a [`Zstd`] owns libzstd's contexts, which are made at first use; it belongs to one thread at a time.
//! - **Not here** dictionaries, multi-threaded packing, streams.
//!
//! Source: RFC 8878.

use zstd_safe::{CCtx, DCtx};

/// Reason why a frame was not packed or unpacked. Nothing behind the target's end was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZstdError {
    /// The bytes are no frame, or only a part of one.
    #[error("the Zstandard frame is corrupt or cut off: ask for it again")]
    Corrupt,
    /// The target is too small.
    #[error("the target has no room for the result: give it more bytes")]
    TargetTooSmall,
}

/// Levels of libzstd that the efforts use, from the fastest to the smallest output.
pub const LEVELS: [i32; 3] = [1, 3, 9];

/// Returns the most bytes that a packed message of `bytes` bytes takes.
pub fn bound(bytes: usize) -> usize {
    zstd_safe::compress_bound(bytes)
}

/// Packs and unpacks frames. Use one per thread.
#[derive(Default)]
pub struct Zstd {
    packs: Option<CCtx<'static>>,
    unpacks: Option<DCtx<'static>>,
}

fn failed(code: usize) -> ZstdError {
    // libzstd's error codes are not part of its stable interface, but its error texts are documented.
    if zstd_safe::get_error_name(code) == "Destination buffer is too small" {
        ZstdError::TargetTooSmall
    } else {
        ZstdError::Corrupt
    }
}

impl Zstd {
    /// Creates the packer; memory is allocated at first use.
    pub fn new() -> Zstd {
        Zstd::default()
    }

    /// Packs one message; returns the number of bytes written.
    pub fn pack(&mut self, level: i32, source: &[u8], target: &mut [u8]) -> Result<usize, ZstdError> {
        let context = self.packs.get_or_insert_with(CCtx::create);
        context.compress(target, source, level).map_err(|_| ZstdError::TargetTooSmall)
    }

    /// Unpacks the first frame of `source`; returns the bytes read and written.
    pub fn unpack(&mut self, source: &[u8], target: &mut [u8]) -> Result<(usize, usize), ZstdError> {
        let read = zstd_safe::find_frame_compressed_size(source).map_err(|_| ZstdError::Corrupt)?;
        let frame = source.get(..read).ok_or(ZstdError::Corrupt)?;
        let context = self.unpacks.get_or_insert_with(DCtx::create);
        let written = context.decompress(target, frame).map_err(failed)?;
        Ok((read, written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_bad_ones_do_not() {
        let mut zstd = Zstd::new();
        for (bytes, level) in [(0, 1), (1, 3), (4096, 9), (200_000, 1)] {
            let message: Vec<u8> = (0..bytes).map(|index: usize| (index / 7 % 50) as u8).collect();
            let mut packed = vec![0; bound(bytes)];
            let written = zstd.pack(level, &message, &mut packed).unwrap();
            let mut again = vec![0; bytes];
            packed[written..].fill(0xaa);
            assert_eq!(zstd.unpack(&packed, &mut again), Ok((written, bytes)));
            assert_eq!(again, message);
            if bytes > 1 {
                assert_eq!(zstd.unpack(&packed[..written - 1], &mut again), Err(ZstdError::Corrupt));
                let short = &mut again[1..];
                assert_eq!(zstd.unpack(&packed, short), Err(ZstdError::TargetTooSmall));
            }
        }
        assert_eq!(zstd.unpack(b"no frame", &mut [0; 9]), Err(ZstdError::Corrupt));
    }
}
