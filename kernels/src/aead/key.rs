// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An AES-GCM key, expanded once, and the sealing and opening of whole messages under it.
//!
//! - **Flow** `Key::new` stores aws-lc's expanded key (round keys, powers of H) in one box. `seal` and `open` pass the caller's addresses
//!   directly to aws-lc, so copying and ciphering are one read and one write.
//!   Where our own routines are faster (see [`prepared`](super::prepared)), messages go through them; their tables are prepared at the
//!   first such call.
//! - **Owner** the boxes hold the only copies of the secrets; they never move, and are overwritten with zeros on drop.
//! - **Order** `seal` and `open` only read the key, so any number of threads may use one key at a time.
//! - **Not here** allocation per message: the state of a message is on the stack. Only after a wrong tag does aws-lc record an error in a
//!   list of the thread, which `open` empties.

use super::prepared::{Direction, Prepared, Routines, Store};
use super::{KeyLength, NONCE_BYTES, Refused, TAG_BYTES, WrongTag, allowed};
use crate::Isa;
use aws_lc_sys as lc;
use core::ptr;
use std::sync::OnceLock;

/// An AES-128 or AES-256 key, ready for use.
pub struct Key {
    expanded: Box<Expanded>,
    prepared: OnceLock<Box<Prepared>>,
}

/// Secrets and aws-lc's context, on cache lines that hold nothing else.
#[repr(align(64))]
struct Expanded {
    context: lc::EVP_AEAD_CTX,
    key: [u8; 32],
    key_bytes: usize,
}

// SAFETY: aws-lc documents seal and open as callable concurrently on one context; the context of AES-GCM is plain
// data (round keys, powers of H, pointers to code), bound to no thread.
unsafe impl Send for Key {}
// SAFETY: through a shared `Key` only seal, open and reads are possible, which aws-lc allows from several threads at a time.
unsafe impl Sync for Key {}

impl Key {
    /// Expands a key of 16 bytes (AES-128) or 32 bytes (AES-256).
    pub fn new(key: &[u8]) -> Result<Key, KeyLength> {
        let wrong = KeyLength { bytes: key.len() };
        // SAFETY: both functions only return addresses of constant tables.
        let aead = unsafe {
            match key.len() {
                16 => lc::EVP_aead_aes_128_gcm(),
                32 => lc::EVP_aead_aes_256_gcm(),
                _ => return Err(wrong),
            }
        };
        // SAFETY: the context is plain data for which all zeros is the documented empty state.
        let mut expanded: Box<Expanded> = Box::new(unsafe { core::mem::zeroed() });
        expanded.key[..key.len()].copy_from_slice(key);
        expanded.key_bytes = key.len();
        // SAFETY: the context is empty, and the key has the length that this cipher requires.
        let done = unsafe {
            lc::EVP_AEAD_CTX_init(
                &mut expanded.context,
                aead,
                key.as_ptr(),
                key.len(),
                TAG_BYTES,
                ptr::null_mut(),
            )
        };
        let key = Key { expanded, prepared: OnceLock::new() };
        if done == 1 { Ok(key) } else { Err(wrong) }
    }

    /// Returns the length of the key in bytes: 16 or 32.
    pub fn key_bytes(&self) -> usize {
        self.expanded.key_bytes
    }

    /// Returns the key itself, for routines with a key schedule of their own.
    pub(super) fn secret(&self) -> &[u8] {
        &self.expanded.key[..self.expanded.key_bytes]
    }

    /// Returns the tables of our own routines, which are prepared at the first call.
    pub(super) fn prepared(&self) -> &Prepared {
        self.prepared.get_or_init(|| Prepared::new(self.secret(), crate::active().isa))
    }

    /// Returns the tables of our own routines if these are faster than aws-lc's.
    #[inline]
    fn leading(&self) -> Option<&Prepared> {
        match self.prepared.get() {
            Some(prepared) => prepared.is_faster_than_library().then_some(&**prepared),
            None => Routines::active().are_faster_than_library().then(|| self.prepared()),
        }
    }

    /// Prepares the key for [`seal_streaming`](Key::seal_streaming) and [`Scatter`](super::Scatter) now, with the best routines
    /// up to the level `isa` instead of the process's level. Returns false if the key is prepared already.
    pub fn prepare(&self, isa: Isa) -> bool {
        self.prepared.set(Prepared::new(self.secret(), isa)).is_ok()
    }

    /// Encrypts `bytes` bytes from `source` to `target` and returns the tag of message and additional data.
    ///
    /// # Panics
    /// Where [`try_seal`](Key::try_seal) refuses: source and target overlap without being equal, or the message
    /// is longer than [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX). Nothing is written then.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes. No (key, nonce) pair may seal twice.
    #[inline]
    pub unsafe fn seal(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> [u8; TAG_BYTES] {
        // SAFETY: `try_seal` has the same conditions, which the caller guarantees: the memory of both sides, and a fresh nonce.
        match unsafe { self.try_seal(nonce, aad, source, target, bytes) } {
            Ok(tag) => tag,
            Err(refused) => panic!("seal of {bytes} bytes: {refused}"),
        }
    }

    /// Does the same as [`seal`](Key::seal) for lengths and addresses that come from outside: returns an error instead of
    /// panicking.
    ///
    /// # Safety
    /// The conditions of [`seal`](Key::seal).
    pub unsafe fn try_seal(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<[u8; TAG_BYTES], Refused> {
        allowed(source.addr(), target.addr(), bytes, 0)?;
        if let Some(own) = self.leading() {
            let way = (Direction::Seal, Store::Cached);
            // SAFETY: both sides have `bytes` bytes, as the caller guarantees, and are equal or disjoint, as `allowed` checked.
            return Ok(unsafe { own.message(way, nonce, aad, source, target, bytes) });
        }
        let mut tag = [0; TAG_BYTES];
        let mut tag_bytes = 0;
        // SAFETY: the context is initialised; source and target have `bytes` bytes, as the caller guarantees, and are disjoint or
        // equal, as `allowed` checked; all other ranges are slices and locals.
        let done = unsafe {
            lc::EVP_AEAD_CTX_seal_scatter(
                &self.expanded.context,
                target,
                tag.as_mut_ptr(),
                &mut tag_bytes,
                tag.len(),
                nonce.as_ptr(),
                nonce.len(),
                source,
                bytes,
                ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            )
        };
        // The only other reason for aws-lc to refuse is additional data of 2^61 bytes, which no slice holds.
        assert!(done == 1 && tag_bytes == TAG_BYTES, "aws-lc refused to seal {bytes} bytes");
        Ok(tag)
    }

    /// Decrypts `bytes` bytes from `source` to `target` if the tag is right; otherwise the target is all zeros.
    /// While it runs, the target holds plaintext that is not yet verified: let no one read it before the return.
    ///
    /// A message that [`try_seal`](Key::try_seal) refuses (an overlap, or too long) was never sealed, so no tag is right for
    /// it. The target is then zeros, too.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes.
    pub unsafe fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        tag: &[u8; TAG_BYTES],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<(), WrongTag> {
        if allowed(source.addr(), target.addr(), bytes, 0).is_err() {
            // SAFETY: the caller guarantees that the target is writable for `bytes` bytes.
            unsafe { target.write_bytes(0, bytes) };
            return Err(WrongTag);
        }
        if let Some(own) = self.leading() {
            let way = (Direction::Open, Store::Cached);
            // SAFETY: both sides have `bytes` bytes, as the caller guarantees, and are equal or disjoint, as `allowed` checked.
            return unsafe { own.open(way.1, nonce, aad, tag, source, target, bytes) };
        }
        // SAFETY: the same as for sealing (initialised context, memory of both sides); the tag is a local copy.
        let done = unsafe {
            lc::EVP_AEAD_CTX_open_gather(
                &self.expanded.context,
                target,
                nonce.as_ptr(),
                nonce.len(),
                source,
                bytes,
                tag.as_ptr(),
                tag.len(),
                aad.as_ptr(),
                aad.len(),
            )
        };
        if done == 1 {
            return Ok(());
        }
        // aws-lc has zeroed the target. SAFETY: the call only empties the error list of this thread.
        unsafe { lc::ERR_clear_error() };
        Err(WrongTag)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the context is initialised or empty and is not used again; the box is plain data without a drop of its own.
        unsafe {
            lc::EVP_AEAD_CTX_cleanup(&mut self.expanded.context);
            lc::OPENSSL_cleanse(ptr::from_mut(&mut *self.expanded).cast(), size_of::<Expanded>());
        }
    }
}

impl core::fmt::Debug for Key {
    /// Shows only the length, because the key is secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Key").field("key_bytes", &self.key_bytes()).finish_non_exhaustive()
    }
}
