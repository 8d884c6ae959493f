// SPDX-License-Identifier: Apache-2.0 OR MIT
//! aws-lc as a rival: AES-128-GCM in place through its own interface, with nothing of ours between.
//!
//! - **Owner** a context belongs to one [`AwsLc`] and is freed with it

use aws_lc_sys as lc;
use core::ptr;

use super::openssl::TAG_BYTES;
use crate::BenchError;

/// An expanded key.
#[derive(Debug)]
pub struct AwsLc(*mut lc::EVP_AEAD_CTX);

impl AwsLc {
    /// Expands an AES-128 key.
    pub fn new(key: &[u8; 16]) -> Result<AwsLc, BenchError> {
        // SAFETY: the key is as long as stated and as AES-128 wants it.
        let context =
            unsafe { lc::EVP_AEAD_CTX_new(lc::EVP_aead_aes_128_gcm(), key.as_ptr(), key.len(), TAG_BYTES) };
        if context.is_null() {
            return Err(BenchError::Engine { reason: "aws-lc refused a key".to_owned() });
        }
        Ok(AwsLc(context))
    }

    /// Seals `bytes` at `place` in place; gives the tag.
    ///
    /// # Safety
    /// The bytes are mapped, writable and used by no other thread.
    pub unsafe fn seal(
        &self,
        nonce: &[u8; 12],
        place: *mut u8,
        bytes: usize,
    ) -> Result<[u8; TAG_BYTES], BenchError> {
        let (mut tag, mut tag_bytes) = ([0; TAG_BYTES], 0);
        // SAFETY: the context is alive, `place` is mapped and writable for `bytes` as the caller vouches, all else is local.
        let done = unsafe {
            lc::EVP_AEAD_CTX_seal_scatter(
                self.0,
                place,
                tag.as_mut_ptr(),
                &mut tag_bytes,
                tag.len(),
                nonce.as_ptr(),
                nonce.len(),
                place,
                bytes,
                ptr::null(),
                0,
                ptr::null(),
                0,
            )
        };
        if done == 1 {
            Ok(tag)
        } else {
            Err(BenchError::Engine { reason: "aws-lc refused to seal".to_owned() })
        }
    }
}

impl Drop for AwsLc {
    fn drop(&mut self) {
        // SAFETY: made by EVP_AEAD_CTX_new, freed once.
        unsafe { lc::EVP_AEAD_CTX_free(self.0) };
    }
}
