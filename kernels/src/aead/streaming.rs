// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole messages from cold memory to cold memory: read once with a prefetch, stored past the caches.
//!
//! - **Flow** additional data ──▶ `Prepared::pass` with [`Store::Streaming`] ──▶ tag.
//! - **Not here** the decision that a message is cold: if the target is read again soon, [`Key::seal`] is better, which leaves it in the
//!   caches.

use super::prepared::{Direction, Prepared, Store};
use super::scatter::first_counter;
use super::{Key, NONCE_BYTES, Refused, TAG_BYTES, WrongTag, allowed, tags_equal};
use aws_lc_sys as lc;

impl Key {
    /// Returns true if [`seal_streaming`](Key::seal_streaming) has routines of its own on this CPU; otherwise it does the same as
    /// [`try_seal`](Key::try_seal).
    pub fn streams(&self) -> bool {
        self.prepared().streams()
    }

    /// Does the same as [`try_seal`](Key::try_seal), for source and target that are not cached, and a target that will not be
    /// read soon: it prefetches the source and uses non-temporal stores. The first call with a key prepares the key, which
    /// allocates.
    ///
    /// # Safety
    /// The conditions of [`seal`](Key::seal).
    pub unsafe fn seal_streaming(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<[u8; TAG_BYTES], Refused> {
        if !self.streams() {
            // SAFETY: `try_seal` has the same conditions, which the caller guarantees: the memory of both sides, and a fresh
            // nonce.
            return unsafe { self.try_seal(nonce, aad, source, target, bytes) };
        }
        allowed(source.addr(), target.addr(), bytes, 0)?;
        // SAFETY: both sides have `bytes` bytes, as the caller guarantees, and are equal or disjoint, as `allowed` checked.
        Ok(unsafe {
            let way = (Direction::Seal, Store::Streaming);
            self.prepared().message(way, nonce, aad, source, target, bytes)
        })
    }

    /// Does the same as [`open`](Key::open), for source and target that are not cached, and a target that will not be read soon.
    ///
    /// # Safety
    /// The conditions of [`open`](Key::open).
    pub unsafe fn open_streaming(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        tag: &[u8; TAG_BYTES],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<(), WrongTag> {
        if !self.streams() || allowed(source.addr(), target.addr(), bytes, 0).is_err() {
            // SAFETY: `open` has the same condition, `bytes` bytes on both sides, which the caller guarantees.
            return unsafe { self.open(nonce, aad, tag, source, target, bytes) };
        }
        // SAFETY: both sides have `bytes` bytes, as the caller guarantees, and are equal or disjoint, as `allowed` checked.
        unsafe { self.prepared().open(Store::Streaming, nonce, aad, tag, source, target, bytes) }
    }
}

impl Prepared {
    /// Ciphers a whole message, through the caches or past them, and returns its tag.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes, equal or disjoint, and not longer than
    /// [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX).
    pub(super) unsafe fn message(
        &self,
        way: (Direction, Store),
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> [u8; TAG_BYTES] {
        let counter = first_counter(nonce);
        let pad = self.pad(counter);
        let hash = self.hash(0, aad);
        // SAFETY: the caller guarantees `bytes` bytes on both sides, equal or disjoint.
        let hash = unsafe { self.pass(way, counter + 1, hash, source, target, bytes) };
        let tag = self.tag(pad, hash, aad.len() as u64, bytes as u64);
        if way.1 == Store::Streaming {
            self.fence();
        }
        tag
    }

    /// Opens a whole message; if its tag is wrong, zeroes the target.
    ///
    /// # Safety
    /// The conditions of [`message`](Prepared::message).
    #[expect(clippy::too_many_arguments, reason = "what a message is")]
    pub(super) unsafe fn open(
        &self,
        store: Store,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        tag: &[u8; TAG_BYTES],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<(), WrongTag> {
        // SAFETY: the caller guarantees `bytes` bytes on both sides, equal or disjoint.
        let made = unsafe { self.message((Direction::Open, store), nonce, aad, source, target, bytes) };
        if tags_equal(&made, tag) {
            return Ok(());
        }
        // SAFETY: the caller guarantees that the target is writable for `bytes`.
        unsafe { lc::OPENSSL_cleanse(target.cast(), bytes) };
        Err(WrongTag)
    }
}
