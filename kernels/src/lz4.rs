// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LZ4 blocks without a frame and without their size: [`Lz4`].
//!
//! - **Flow** message ──lz4_flex (bounds-checked in both directions)──▶ one block.
//! - **Layout** a block has no end mark: all of the source belongs to it, and the caller stores its unpacked size elsewhere.
//! - **Order** the packer refuses a target of less than [`bound`] bytes if the block might not fit.
//! - **Owner** an [`Lz4`] owns a table of 16 KiB; after `new` it allocates once more, at the first message of 64 KiB or more.
//!
//! Source: the LZ4 block format description of the lz4 project.

use lz4_flex::block::{self, CompressTable, DecompressError};

/// Reason why a block was not packed or unpacked. Nothing behind the target's end was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Lz4Error {
    /// The bytes are no block, or only a part of one.
    #[error("the LZ4 block is corrupt or cut off: ask for it again")]
    Corrupt,
    /// The target is too small.
    #[error("the target has no room for the result: give it more bytes")]
    TargetTooSmall,
}

/// Returns the most bytes that a packed message of `bytes` bytes takes.
pub fn bound(bytes: usize) -> usize {
    block::get_maximum_output_size(bytes)
}

/// Packs and unpacks blocks. Use one per thread.
pub struct Lz4(CompressTable);

impl Default for Lz4 {
    fn default() -> Lz4 {
        Lz4::new()
    }
}

impl Lz4 {
    /// Allocates the table.
    pub fn new() -> Lz4 {
        Lz4(CompressTable::small())
    }

    /// Packs one message; returns the number of bytes written.
    pub fn pack(&mut self, source: &[u8], target: &mut [u8]) -> Result<usize, Lz4Error> {
        block::compress_into_with_table(source, target, &mut self.0).map_err(|_| Lz4Error::TargetTooSmall)
    }

    /// Unpacks one block, which is all of `source`; returns the number of bytes written.
    pub fn unpack(&mut self, source: &[u8], target: &mut [u8]) -> Result<usize, Lz4Error> {
        block::decompress_into(source, target).map_err(|error| match error {
            DecompressError::OutputTooSmall { .. } => Lz4Error::TargetTooSmall,
            _ => Lz4Error::Corrupt,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_and_bad_ones_do_not() {
        let mut lz4 = Lz4::new();
        for bytes in [0, 1, 13, 4096, 65_534, 65_535, 65_536, 200_000] {
            let message: Vec<u8> = (0..bytes).map(|index: usize| (index / 7 % 50) as u8).collect();
            let mut packed = vec![0; bound(bytes)];
            let written = lz4.pack(&message, &mut packed).unwrap();
            let mut again = vec![0; bytes];
            assert_eq!(lz4.unpack(&packed[..written], &mut again), Ok(bytes));
            assert_eq!(again, message);
            if bytes > 100 {
                assert_eq!(lz4.unpack(&packed[..written], &mut again[1..]), Err(Lz4Error::TargetTooSmall));
                assert!(
                    lz4.unpack(&packed[..written / 2], &mut again).is_err_and(|e| e == Lz4Error::Corrupt)
                );
            }
        }
        assert_eq!(lz4.unpack(&[], &mut [0; 9]), Err(Lz4Error::Corrupt));
    }
}
