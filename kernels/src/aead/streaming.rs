// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole messages from cold memory to cold memory: read once with a prefetch, stored past the caches.
//!
//! - **Flow** additional data ──▶ `Prepared::pass` with [`Store::Streaming`] ──▶ tag
//! - **Not here** the decision that a message is cold: a target that is read again soon is better sealed by
//!   [`Key::seal`], which leaves it in the caches.

use super::prepared::{Direction, Prepared, Store};
use super::scatter::first_counter;
use super::{Key, NONCE_BYTES, Refused, TAG_BYTES, WrongTag, allowed, tags_equal};
use aws_lc_sys as lc;

impl Key {
    /// Returns true if [`seal_streaming`](Key::seal_streaming) has instructions of its own here; otherwise it is
    /// [`try_seal`](Key::try_seal) and gains nothing.
    pub fn streams(&self) -> bool {
        self.prepared().streams()
    }

    /// [`try_seal`](Key::try_seal) for a source and a target that are in no cache, and a target that need not be:
    /// non-temporal stores, the source prefetched. The first call with a key prepares it, which allocates.
    ///
    /// # Safety
    /// As for [`seal`](Key::seal).
    pub unsafe fn seal_streaming(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<[u8; TAG_BYTES], Refused> {
        if !self.streams() {
            // SAFETY: `try_seal` asks for the same memory and a fresh nonce, for which the caller vouches.
            return unsafe { self.try_seal(nonce, aad, source, target, bytes) };
        }
        allowed(source.addr(), target.addr(), bytes, 0)?;
        // SAFETY: equal or disjoint, as checked; the rest is the caller's promise.
        Ok(unsafe {
            let way = (Direction::Seal, Store::Streaming);
            self.prepared().message(way, nonce, aad, source, target, bytes)
        })
    }

    /// [`open`](Key::open) for a source and a target that are in no cache, and a target that need not be.
    ///
    /// # Safety
    /// As for [`open`](Key::open).
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
            // SAFETY: `open` asks for `bytes` bytes on both sides, for which the caller vouches.
            return unsafe { self.open(nonce, aad, tag, source, target, bytes) };
        }
        // SAFETY: equal or disjoint, as checked; the rest is the caller's promise.
        unsafe { self.prepared().open(Store::Streaming, nonce, aad, tag, source, target, bytes) }
    }
}

impl Prepared {
    /// A whole message, past the caches or not: its tag.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes, equal or disjoint, no longer than a
    /// message may be.
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
        // SAFETY: both sides have `bytes` bytes, equal or disjoint, as the caller vouches.
        let hash = unsafe { self.pass(way, counter + 1, hash, source, target, bytes) };
        let tag = self.tag(pad, hash, aad.len() as u64, bytes as u64);
        if way.1 == Store::Streaming {
            self.fence();
        }
        tag
    }

    /// Opens a whole message; if its tag is wrong, the target is zeros.
    ///
    /// # Safety
    /// As for [`message`](Prepared::message).
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
        // SAFETY: both sides have `bytes` bytes, equal or disjoint, as the caller vouches.
        let made = unsafe { self.message((Direction::Open, store), nonce, aad, source, target, bytes) };
        if tags_equal(&made, tag) {
            return Ok(());
        }
        // SAFETY: the target is writable, as the caller promises.
        unsafe { lc::OPENSSL_cleanse(target.cast(), bytes) };
        Err(WrongTag)
    }
}
