// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LZ4 blocks.
//!
//! - **Layout** sequences of: token (literals' length high nibble, match's length - 4 low nibble) · more length bytes while they
//!   are 255 · literals · offset u16 · more length bytes. The last one ends after its literals
//!
//! Source: the LZ4 block format description of the lz4 project.

use super::Inflated;
use super::UnpackError;

const CORRUPT: UnpackError = UnpackError::Corrupt;

/// Packs `message` as one block that has literals only.
pub(super) fn pack(message: &[u8]) -> Vec<u8> {
    let mut block = vec![(message.len().min(15) as u8) << 4];
    if let Some(more) = message.len().checked_sub(15) {
        block.extend(vec![255; more / 255]);
        block.push((more % 255) as u8);
    }
    block.extend_from_slice(message);
    block
}

struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Source<'_> {
    fn next(&mut self) -> Result<usize, UnpackError> {
        let byte = *self.bytes.get(self.at).ok_or(CORRUPT)?;
        self.at += 1;
        Ok(usize::from(byte))
    }

    fn length(&mut self, nibble: usize) -> Result<usize, UnpackError> {
        let mut length = nibble;
        let mut last = if nibble == 15 { 255 } else { 0 };
        while last == 255 {
            last = self.next()?;
            length += last;
        }
        Ok(length)
    }
}

/// One block, which is all of `bytes`.
pub(super) fn unpack(bytes: &[u8], most: usize) -> Result<Inflated, UnpackError> {
    // The message is not known to be as large as it may be.
    let mut message = vec![0; most.min(1 << 16)];
    loop {
        match unpack_to(bytes, &mut message) {
            Err(UnpackError::TargetTooSmall) if message.len() < most => {
                message.resize(most.min(8 * message.len()), 0);
            }
            done => {
                message.truncate(done?);
                return Ok(Inflated { bytes: message, read: bytes.len() });
            }
        }
    }
}

/// One block, which is all of `bytes`, to `target`: how many bytes of it.
pub(crate) fn unpack_to(bytes: &[u8], target: &mut [u8]) -> Result<usize, UnpackError> {
    let mut source = Source { bytes, at: 0 };
    let mut filled = 0;
    loop {
        let token = source.next()?;
        let literals = source.length(token >> 4)?;
        let run = bytes.get(source.at..source.at + literals).ok_or(CORRUPT)?;
        let room = target.get_mut(filled..filled + literals).ok_or(UnpackError::TargetTooSmall)?;
        room.copy_from_slice(run);
        filled += literals;
        source.at += literals;
        if source.at == bytes.len() {
            return Ok(filled);
        }
        let offset = source.next()? | source.next()? << 8;
        if offset == 0 {
            return Err(CORRUPT);
        }
        let length = source.length(token & 15)? + 4;
        if target.len() - filled < length {
            return Err(UnpackError::TargetTooSmall);
        }
        let begin = filled.checked_sub(offset).ok_or(CORRUPT)?;
        // A match that runs into what it makes repeats it.
        let end = filled + length;
        while filled < end {
            let run = (end - filled).min(filled - begin);
            target.copy_within(begin..begin + run, filled);
            filled += run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_a_match() {
        let block = [0x1f, b'a', 1, 0, 0, 0x20, b'b', b'c'];
        let bytes = b"aaaaaaaaaaaaaaaaaaaabc".to_vec();
        assert_eq!(unpack(&block, 22), Ok(Inflated { bytes, read: 8 }));
        assert_eq!(unpack(&block, 21), Err(UnpackError::TargetTooSmall));
        assert_eq!(unpack(&block, 19), Err(UnpackError::TargetTooSmall));
        assert_eq!(unpack(&block[..7], 22), Err(CORRUPT));
        assert_eq!(unpack(&[0x1f, b'a', 2, 0, 0], 99), Err(CORRUPT), "behind the beginning");
        assert_eq!(unpack(&[0x1f, b'a', 0, 0, 0], 99), Err(CORRUPT), "no offset");
    }
}
