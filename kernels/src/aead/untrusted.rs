// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plaintext that cannot be read before its tag is verified: a target lent to an opening [`Scatter`].
//!
//! - **Flow** `open(key, nonce, aad, target)` ──▶ `update(at, sealed)`* ──▶ `finish(tag)` ──▶ the target again, or zeros.
//! - **Owner** the unique borrow of the target keeps its bytes from being read. `finish` gives the target back only if the tag is right.
//!   After a wrong tag, or if the message is dropped before, the target is overwritten with zeros.

use super::{Key, NONCE_BYTES, Refused, Scatter, TAG_BYTES, WrongTag, tags_equal};
use aws_lc_sys as lc;

/// A message that is being opened and whose plaintext cannot be read yet.
#[must_use = "the plaintext comes out of `finish` only; a drop makes it zeros"]
#[derive(Debug)]
pub struct Untrusted<'key, 'target> {
    scatter: Scatter<'key>,
    target: Lent<'target>,
}

/// The target until it is verified; overwritten with zeros on drop.
struct Lent<'target>(&'target mut [u8]);

impl<'key, 'target> Untrusted<'key, 'target> {
    /// Begins to open a message that is as long as `target`.
    pub fn open(
        key: &'key Key,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        target: &'target mut [u8],
    ) -> Untrusted<'key, 'target> {
        Untrusted { scatter: Scatter::open(key, nonce, aad), target: Lent(target) }
    }

    /// Decrypts the range of the message that begins at its byte `at`, a multiple of 16. Ranges come in any order, each byte
    /// once; bytes beyond the target's end are refused.
    pub fn update(&mut self, at: u64, sealed: &[u8]) -> Result<(), Refused> {
        let target = usize::try_from(at)
            .ok()
            .and_then(|at| self.target.0.get_mut(at..)?.get_mut(..sealed.len()))
            .ok_or(Refused::TooLong)?;
        // SAFETY: both are slices of the same length, and the unique borrow overlaps no other.
        unsafe { self.scatter.update(at, sealed.as_ptr(), target.as_mut_ptr(), sealed.len()) }
    }

    /// Returns the plaintext if all of it was given and the tag is right; otherwise the target is all zeros.
    pub fn finish(self, tag: &[u8; TAG_BYTES]) -> Result<&'target mut [u8], WrongTag> {
        let Untrusted { scatter, target } = self;
        match scatter.finish(target.0.len() as u64) {
            Ok(made) if tags_equal(&made, tag) => Ok(target.release()),
            _ => Err(WrongTag),
        }
    }
}

impl<'target> Lent<'target> {
    fn release(mut self) -> &'target mut [u8] {
        // `take` leaves an empty slice behind, so the drop overwrites nothing.
        core::mem::take(&mut self.0)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // SAFETY: the slice is borrowed uniquely; the compiler cannot remove this call.
        unsafe { lc::OPENSSL_cleanse(self.0.as_mut_ptr().cast(), self.0.len()) };
    }
}

impl core::fmt::Debug for Lent<'_> {
    /// Shows only the length.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
