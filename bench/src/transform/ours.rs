// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memlift's fused copies as a contender.
//!
//! Order    the chain reads a block of the source for its CRC and seals it while it is still in the second-level cache

use memlift_kernels::aead::{Key, Stream};

use super::fused::BLOCK_BYTES;
use super::openssl::TAG_BYTES;
use crate::BenchError;
use crate::area::Part;

/// One key.
pub(super) struct Sealer {
    key: Key,
}

impl Sealer {
    /// Expands it.
    pub fn new(key: &[u8; 16]) -> Result<Sealer, BenchError> {
        let key = Key::new(key).map_err(|error| BenchError::Engine { reason: error.to_string() })?;
        Ok(Sealer { key })
    }

    /// One message.
    pub fn copy_seal(
        &mut self,
        nonce: &[u8; 12],
        source: Part<'_>,
        target: Part<'_>,
    ) -> Result<[u8; TAG_BYTES], BenchError> {
        assert_eq!(source.bytes(), target.bytes(), "a seal has one size");
        // SAFETY: both parts are mapped for as many bytes, and lie in different areas; the bench seals the same plaintext
        // under a nonce every time.
        Ok(unsafe { self.key.seal(nonce, &[], source.start(), target.start(), source.bytes()) })
    }

    /// One message in blocks, with the CRC-32C of the plaintext.
    pub fn copy_crc_seal(
        &mut self,
        nonce: &[u8; 12],
        source: Part<'_>,
        target: Part<'_>,
    ) -> Result<([u8; TAG_BYTES], u32), BenchError> {
        assert_eq!(source.bytes(), target.bytes(), "a seal has one size");
        let mut stream = Stream::seal(&self.key, nonce);
        let (mut crc, mut at) = (0, 0);
        while at < source.bytes() {
            let bytes = BLOCK_BYTES.min(source.bytes() - at);
            // SAFETY: as in `copy_seal`; the block lies inside both.
            unsafe {
                crc = (memlift_kernels::active().crc32c)(source.start().add(at), bytes, crc);
                stream.update(source.start().add(at), target.start().add(at), bytes);
            }
            at += bytes;
        }
        Ok((stream.finish(), crc))
    }
}
