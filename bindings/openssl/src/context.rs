// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cipher context: a key, a nonce and the current message, with the rules of EVP.
//!
//! - **Flow** `init` (key and nonce, each at once or later) ──▶ [`Context::update`] (without a target: additional data)* ──▶
//!   [`Context::finish`] ──▶ tag. A TLS 1.2 record is one `update` (see [`record`](crate::record)).
//! - **Order** [`Nonce`] says which calls are allowed: a nonce serves one message, and is `Spent` after its tag. A message begins at the
//!   first update after its nonce. When opening, plaintext is given out before the tag is compared, as everywhere in EVP; `finish` says
//!   if the tag was right.
//! - **Owner** the caller, who uses a context from one thread at a time. Copies of a context share the expanded key for whole messages;
//!   each has its own stream, which is kept from message to message, so there is no allocation per message.
//! - **Not here** OpenSSL's types: see [`cipher`](crate::cipher).

use crate::abi::Reason;
use crate::tally::Tally;
use memlift_kernels::aead::{Key, NONCE_BYTES, Stream, TAG_BYTES, tags_equal};
use std::sync::Arc;

/// Length of the longest nonce that OpenSSL's own provider accepts.
pub const NONCE_BYTES_MAX: usize = 128;

/// State of the nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nonce {
    /// No nonce was given; if a message is sealed, a random one is made.
    Unset,
    /// A nonce was given and is not used yet.
    Ready,
    /// The message under this nonce has begun.
    Begun,
    /// The message under this nonce is finished: the next message needs another nonce.
    Spent,
}

/// Bytes of additional data of a TLS record.
pub const ADDITIONAL_BYTES: usize = 13;

/// State of a context for TLS records.
#[derive(Clone, Default)]
pub struct Record {
    /// Additional data of the next record; if it is set, the next update is a record.
    pub announced: Option<[u8; ADDITIONAL_BYTES]>,
    /// Bytes by which a record is longer than its payload, besides the nonce; 0 before the first record.
    pub pad_bytes: usize,
    /// Number of records sealed with this key.
    pub sealed: u64,
}

/// A cipher context; its states are in the header of this file.
#[derive(Clone)]
pub struct Context {
    pub key_bytes: usize,
    pub seals: bool,
    secret: Secret,
    /// Key for whole messages, expanded at the first such message.
    key: Option<Arc<Key>>,
    /// Key and state for messages in pieces, in one direction; made at the first such message.
    stream: Option<Stream>,
    stream_seals: bool,
    stream_stale: bool,
    pub nonce: Nonce,
    pub nonce_bytes: usize,
    pub nonce_field: [u8; NONCE_BYTES_MAX],
    /// True if the nonce is a fixed field and a counter, as in TLS 1.2.
    pub nonce_counts: bool,
    /// The tag: made by sealing, or given to be compared when opening.
    pub tag: [u8; TAG_BYTES],
    pub tag_bytes: Option<usize>,
    pub record: Record,
    message_bytes: u64,
    pub tally: Tally,
}

impl Context {
    pub fn new(key_bytes: usize) -> Context {
        Context {
            key_bytes,
            seals: false,
            secret: Secret::default(),
            key: None,
            stream: None,
            stream_seals: false,
            stream_stale: false,
            nonce: Nonce::Unset,
            nonce_bytes: NONCE_BYTES,
            nonce_field: [0; NONCE_BYTES_MAX],
            nonce_counts: false,
            tag: [0; TAG_BYTES],
            tag_bytes: None,
            record: Record::default(),
            message_bytes: 0,
            tally: Tally::default(),
        }
    }

    /// Sets the direction, and key and nonce if they are given.
    #[inline]
    pub fn init(&mut self, seals: bool, key: Option<&[u8]>, nonce: Option<&[u8]>) -> Result<(), Reason> {
        if self.seals != seals {
            self.tally.flush(self.seals);
            self.seals = seals;
        }
        if let Some(nonce) = nonce {
            if nonce.is_empty() || nonce.len() > NONCE_BYTES_MAX {
                return Err(Reason::InvalidIvLength);
            }
            self.nonce_bytes = nonce.len();
            self.nonce_field[..nonce.len()].copy_from_slice(nonce);
            self.nonce = Nonce::Ready;
        }
        if let Some(key) = key {
            if key.len() != self.key_bytes {
                return Err(Reason::InvalidKeyLength);
            }
            self.set_key(key);
        }
        Ok(())
    }

    /// Stores a key of the right length. It is expanded when it is known how it is used.
    fn set_key(&mut self, key: &[u8]) {
        self.secret.set(key);
        self.key = None;
        self.stream_stale = true;
        self.record.sealed = 0;
        if self.nonce == Nonce::Begun {
            // The current message was under the old key, so its nonce cannot be used again.
            self.nonce = Nonce::Spent;
        }
    }

    /// Returns true if a key was set.
    pub fn keyed(&self) -> bool {
        self.secret.bytes != 0
    }

    /// Changes the length of nonces. A nonce that was set before has another length, so it counts as spent.
    pub fn set_nonce_bytes(&mut self, bytes: usize) -> Result<(), Reason> {
        if bytes == 0 || bytes > NONCE_BYTES_MAX {
            return Err(Reason::InvalidIvLength);
        }
        if bytes != self.nonce_bytes {
            if self.nonce != Nonce::Unset {
                self.nonce = Nonce::Spent;
            }
            self.nonce_bytes = bytes;
        }
        Ok(())
    }

    /// Returns the current nonce.
    pub fn nonce_now(&self) -> &[u8] {
        &self.nonce_field[..self.nonce_bytes]
    }

    /// Makes a random nonce if none is set; returns false if that is not allowed: only when sealing, and only of 96 bits or more.
    pub fn ensure_nonce(&mut self) -> bool {
        if self.nonce != Nonce::Unset {
            return true;
        }
        if !self.seals || self.nonce_bytes < NONCE_BYTES || !random(&mut self.nonce_field[..self.nonce_bytes])
        {
            return false;
        }
        self.nonce = Nonce::Ready;
        true
    }

    /// Begins a message with the current nonce; returns false if there is no key.
    #[inline]
    pub fn begin(&mut self) -> bool {
        if !self.keyed() {
            return false;
        }
        let nonce = &self.nonce_field[..self.nonce_bytes];
        match &mut self.stream {
            Some(stream) if self.stream_seals == self.seals => {
                if self.stream_stale && stream.rekey(self.secret.get()).is_err() {
                    return false;
                }
                stream.restart(nonce);
            }
            other => {
                let Ok(mut stream) = Stream::new(self.secret.get(), self.seals) else { return false };
                stream.restart(nonce);
                *other = Some(stream);
                self.stream_seals = self.seals;
            }
        }
        self.stream_stale = false;
        self.nonce = Nonce::Begun;
        self.message_bytes = 0;
        true
    }

    /// Returns the stream of the current message, which is begun now if necessary.
    #[inline]
    fn current_stream(&mut self) -> Option<&mut Stream> {
        if !self.keyed() {
            return None;
        }
        if self.nonce == Nonce::Unset {
            self.ensure_nonce();
        }
        match self.nonce {
            Nonce::Begun => {}
            Nonce::Ready => {
                self.begin();
            }
            Nonce::Unset | Nonce::Spent => return None,
        }
        self.stream.as_mut()
    }

    /// Adds additional data to the message; returns false if no message can be begun or the stream refuses.
    #[inline]
    pub fn additional(&mut self, data: &[u8]) -> bool {
        self.current_stream().is_some_and(|stream| stream.try_aad(data).is_ok())
    }

    /// Seals or opens message bytes.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes.
    #[inline]
    pub unsafe fn update(&mut self, source: *const u8, target: *mut u8, bytes: usize) -> bool {
        let Some(stream) = self.current_stream() else { return false };
        // SAFETY: the caller guarantees that `source` is readable and `target` writable for `bytes` bytes.
        let done = unsafe { stream.try_update(source, target, bytes) }.is_ok();
        if done {
            self.message_bytes += bytes as u64;
        }
        done
    }

    /// Ends the message: makes the tag, or compares it.
    #[inline]
    pub fn finish(&mut self) -> Result<(), Option<Reason>> {
        let expected_bytes = self.tag_bytes;
        let seals = self.seals;
        let Some(stream) = self.current_stream() else { return Err(None) };
        if !seals && expected_bytes.is_none() {
            return Err(Some(Reason::TagNotSet));
        }
        let tag = stream.tag();
        self.nonce = Nonce::Spent;
        let right = if seals {
            self.tag = tag;
            self.tag_bytes = Some(TAG_BYTES);
            true
        } else {
            let bytes = expected_bytes.unwrap_or(TAG_BYTES);
            tags_equal(&tag[..bytes], &self.tag[..bytes])
        };
        self.tally.count(seals, self.message_bytes, right);
        if right { Ok(()) } else { Err(None) }
    }

    /// Seals or opens a whole message with the current nonce; if it is opened and its tag is wrong, the target is zeroed.
    ///
    /// # Safety
    /// The conditions of [`update`](Context::update).
    pub unsafe fn cipher_message(
        &mut self,
        additional: &[u8],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
        tag: &mut [u8; TAG_BYTES],
    ) -> bool {
        if self.key.is_none() && self.nonce_bytes == NONCE_BYTES {
            self.key = Key::new(self.secret.get()).ok().map(Arc::new);
        }
        let nonce = self.nonce_now();
        let right = match (<&[u8; NONCE_BYTES]>::try_from(nonce), &self.key) {
            // SAFETY: the caller guarantees that `source` is readable and `target` writable for `bytes` bytes.
            (Ok(nonce), Some(key)) if self.seals => unsafe {
                match key.try_seal(nonce, additional, source, target, bytes) {
                    Ok(made) => {
                        *tag = made;
                        true
                    }
                    Err(_) => false,
                }
            },
            // SAFETY: the caller guarantees that `source` is readable and `target` writable for `bytes` bytes.
            (Ok(nonce), Some(key)) => unsafe {
                key.open(nonce, additional, tag, source, target, bytes).is_ok()
            },
            // SAFETY: the caller guarantees that `source` is readable and `target` writable for `bytes` bytes.
            _ => unsafe { self.cipher_in_pieces(additional, source, target, bytes, tag) },
        };
        self.tally.count(self.seals, bytes as u64, right);
        right
    }

    /// Does the same as [`cipher_message`](Context::cipher_message) for a nonce of another length than 12 bytes.
    ///
    /// # Safety
    /// The conditions of [`update`](Context::update).
    #[cold]
    unsafe fn cipher_in_pieces(
        &mut self,
        additional: &[u8],
        source: *const u8,
        target: *mut u8,
        bytes: usize,
        tag: &mut [u8; TAG_BYTES],
    ) -> bool {
        if !self.begin() {
            return false;
        }
        let seals = self.seals;
        let Some(stream) = &mut self.stream else { return false };
        // SAFETY: the caller guarantees that `source` is readable and `target` writable for `bytes` bytes.
        let done =
            stream.try_aad(additional).is_ok() && unsafe { stream.try_update(source, target, bytes) }.is_ok();
        let made = stream.tag();
        if done && seals {
            *tag = made;
        } else if !done || !tags_equal(&made, tag) {
            // SAFETY: the caller guarantees that the target is writable for `bytes` bytes.
            unsafe { target.write_bytes(0, bytes) };
            return false;
        }
        true
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.tally.flush(self.seals);
    }
}

/// The key as it was given; overwritten with zeros on drop.
#[derive(Clone, Default)]
struct Secret {
    key: [u8; 32],
    /// Length of the key; 0 if there is none yet.
    bytes: usize,
}

impl Secret {
    fn set(&mut self, key: &[u8]) {
        self.key[..key.len()].copy_from_slice(key);
        self.bytes = key.len();
    }

    fn get(&self) -> &[u8] {
        &self.key[..self.bytes]
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // SAFETY: the key is an array of this value; compilers do not remove this call.
        unsafe { libc::explicit_bzero(self.key.as_mut_ptr().cast(), self.key.len()) };
    }
}

/// Fills `bytes` with random bytes from the system; returns false if it has none.
pub fn random(bytes: &mut [u8]) -> bool {
    // SAFETY: the buffer has `bytes.len()` bytes. Up to 256 bytes are filled completely or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    usize::try_from(got) == Ok(bytes.len())
}
