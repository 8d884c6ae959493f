// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One cipher context: a key, a nonce and the message in progress, with the rules of EVP.
//!
//! - **Flow** `init` (key, nonce: each now or later) ──▶ [`Context::update`] (no target: additional data)* ──▶
//!   [`Context::finish`] ──▶ tag; a TLS 1.2 record is one `update` (see [`record`](crate::record))
//! - **Order** [`Nonce`] says what the next byte may do: a nonce serves one message, and is `Spent` with its tag. A message
//!   begins at the first update after its nonce. When opening, plaintext comes out before the tag was
//!   looked at, as everywhere in EVP; `finish` says whether it was right.
//! - **Owner** the caller, who uses a context from one thread at a time. The expanded key of whole messages is shared
//!   by copies of a context; the stream is each one's own, and kept from message to message: no allocation per message.
//! - **Not here** OpenSSL's types: see [`cipher`](crate::cipher).

use crate::abi::Reason;
use crate::tally::Tally;
use memlift_kernels::aead::{Key, NONCE_BYTES, Stream, TAG_BYTES, tags_equal};
use std::sync::Arc;

/// The longest nonce that OpenSSL's own provider takes.
pub const NONCE_BYTES_MAX: usize = 128;

/// State of the nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nonce {
    /// No nonce was given: the first message that is sealed makes a random one.
    Unset,
    /// A nonce was given and is not used yet.
    Ready,
    /// The message of this nonce has begun.
    Begun,
    /// The message of this nonce is over: the next one needs another.
    Spent,
}

/// See the module.
#[derive(Clone)]
pub struct Context {
    pub key_bytes: usize,
    pub seals: bool,
    secret: Secret,
    /// Key for whole messages, expanded at the first one.
    key: Option<Arc<Key>>,
    /// Key and state for messages in pieces, in one direction; made at the first one.
    stream: Option<Stream>,
    stream_seals: bool,
    stream_stale: bool,
    pub nonce: Nonce,
    pub nonce_bytes: usize,
    pub nonce_field: [u8; NONCE_BYTES_MAX],
    /// The nonce is a fixed field and a counter, as TLS 1.2 has it.
    pub nonce_counts: bool,
    /// The tag: made by sealing, or expected by opening.
    pub tag: [u8; TAG_BYTES],
    pub tag_bytes: Option<usize>,
    pub record: crate::record::Record,
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
            record: crate::record::Record::default(),
            message_bytes: 0,
            tally: Tally::default(),
        }
    }

    /// Sets direction, and key or nonce where given.
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

    /// `key` is as long as it must be. What is expanded from it waits until it is known which way it is used.
    fn set_key(&mut self, key: &[u8]) {
        self.secret.set(key);
        self.key = None;
        self.stream_stale = true;
        self.record.sealed = 0;
        if self.nonce == Nonce::Begun {
            // The message that was under way went with the old key.
            self.nonce = Nonce::Spent;
        }
    }

    /// Returns true if there is a key.
    pub fn keyed(&self) -> bool {
        self.secret.bytes != 0
    }

    /// Another length: a nonce that is here does not fit it any more.
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

    /// The nonce as it stands.
    pub fn nonce_now(&self) -> &[u8] {
        &self.nonce_field[..self.nonce_bytes]
    }

    /// Makes a random nonce if there is none, which only who seals may do, and only of 96 bits or more.
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

    /// Begins a message with the nonce as it stands. False: there is no key.
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

    /// The stream of a message under way, begun now if need be.
    #[inline]
    fn under_way(&mut self) -> Option<&mut Stream> {
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

    /// Adds additional data to the message; false if no message is open or the stream refuses.
    #[inline]
    pub fn additional(&mut self, data: &[u8]) -> bool {
        self.under_way().is_some_and(|stream| stream.try_aad(data).is_ok())
    }

    /// Message bytes.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes.
    #[inline]
    pub unsafe fn update(&mut self, source: *const u8, target: *mut u8, bytes: usize) -> bool {
        let Some(stream) = self.under_way() else { return false };
        // SAFETY: `source` is readable and `target` writable for `bytes` bytes, as the caller promises.
        let done = unsafe { stream.try_update(source, target, bytes) }.is_ok();
        if done {
            self.message_bytes += bytes as u64;
        }
        done
    }

    /// The end of the message: makes the tag, or compares it.
    #[inline]
    pub fn finish(&mut self) -> Result<(), Option<Reason>> {
        let expected_bytes = self.tag_bytes;
        let seals = self.seals;
        let Some(stream) = self.under_way() else { return Err(None) };
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

    /// A whole message with the nonce as it stands; of one that is opened and wrong, the target is zeroed.
    ///
    /// # Safety
    /// As for [`update`](Context::update).
    pub unsafe fn whole(
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
            // SAFETY: `source` is readable and `target` writable for `bytes` bytes, as the caller promises.
            (Ok(nonce), Some(key)) if self.seals => unsafe {
                match key.try_seal(nonce, additional, source, target, bytes) {
                    Ok(made) => {
                        *tag = made;
                        true
                    }
                    Err(_) => false,
                }
            },
            // SAFETY: `source` is readable and `target` writable for `bytes` bytes, as the caller promises.
            (Ok(nonce), Some(key)) => unsafe {
                key.open(nonce, additional, tag, source, target, bytes).is_ok()
            },
            // SAFETY: `source` is readable and `target` writable for `bytes` bytes, as the caller promises.
            _ => unsafe { self.whole_in_pieces(additional, source, target, bytes, tag) },
        };
        self.tally.count(self.seals, bytes as u64, right);
        right
    }

    /// [`whole`](Context::whole) for a nonce of another length.
    ///
    /// # Safety
    /// As for [`update`](Context::update).
    #[cold]
    unsafe fn whole_in_pieces(
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
        // SAFETY: `source` is readable and `target` writable for `bytes` bytes, as the caller promises.
        let done =
            stream.try_aad(additional).is_ok() && unsafe { stream.try_update(source, target, bytes) }.is_ok();
        let made = stream.tag();
        if done && seals {
            *tag = made;
        } else if !done || !tags_equal(&made, tag) {
            // SAFETY: the target is writable, as the caller promises.
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

/// The key as it came; overwritten when it goes.
#[derive(Clone, Default)]
struct Secret {
    key: [u8; 32],
    /// 0: none yet.
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
        // SAFETY: our own bytes; the call is one that compilers leave in place.
        unsafe { libc::explicit_bzero(self.key.as_mut_ptr().cast(), self.key.len()) };
    }
}

/// Random bytes from the system; false where it has none to give.
pub fn random(bytes: &mut [u8]) -> bool {
    // SAFETY: the buffer has as many bytes as are asked for. Up to 256 bytes come at once or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    usize::try_from(got) == Ok(bytes.len())
}
