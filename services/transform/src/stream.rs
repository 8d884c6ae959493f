// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that arrive in pieces: seals or opens any byte range as it comes.
//!
//! - **Flow** `SealStream::push` for each piece ──▶ `finish` returns the tag. `OpenStream::push` for each piece returns `Untrusted` bytes
//!   ──▶ `finish(tag)` returns the verified bytes.
//! - **Order** pieces come in order, of any length; additional data is given before the first one.
//! - **Owner** an `OpenStream` owns the opened bytes and gives them away only if the tag is right; otherwise it overwrites them with
//!   zeros, also when it is dropped.
//! - **Not here** pieces out of order: `aead::Scatter`.

use crate::{Error, Key};
use memlift_kernels::aead::{Stream, tags_equal};

/// A message that is sealed piece by piece.
#[derive(Debug)]
pub struct SealStream {
    stream: Stream,
}

impl SealStream {
    /// Begins a message. A (key, nonce) pair must seal one message only.
    pub fn new(key: &Key, nonce: &[u8; 12], aad: &[u8]) -> SealStream {
        let mut stream = Stream::seal(key.expanded(), nonce);
        stream.aad(aad);
        SealStream { stream }
    }

    /// Seals the next piece and writes it to the start of `target`.
    ///
    /// # Errors
    ///
    /// [`Error::TargetTooSmall`], [`Error::TooLong`].
    pub fn push(&mut self, source: &[u8], target: &mut [u8]) -> Result<(), Error> {
        room(source, target)?;
        // SAFETY: both are slices, `room` checked that the target is at least as long as the source, and a unique borrow
        // overlaps no other.
        unsafe { Ok(self.stream.try_update(source.as_ptr(), target.as_mut_ptr(), source.len())?) }
    }

    /// Returns the tag of the message.
    pub fn finish(self) -> [u8; 16] {
        self.stream.finish()
    }
}

fn room(source: &[u8], target: &[u8]) -> Result<(), Error> {
    if target.len() < source.len() {
        return Err(Error::TargetTooSmall { needed: source.len(), has: target.len() });
    }
    Ok(())
}

/// Opened bytes that are not verified yet: they may be forged.
#[derive(Debug)]
#[must_use = "these bytes are not verified before `finish`"]
pub struct Untrusted<'a>(&'a mut [u8]);

impl Untrusted<'_> {
    /// Returns the bytes before they are verified. Do nothing with them that cannot be undone.
    pub fn expose(&self) -> &[u8] {
        self.0
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// A message that is opened piece by piece.
#[derive(Debug)]
pub struct OpenStream {
    stream: Option<Stream>,
    opened: Vec<u8>,
}

impl OpenStream {
    /// Begins a message.
    pub fn new(key: &Key, nonce: &[u8; 12], aad: &[u8]) -> OpenStream {
        let mut stream = Stream::open(key.expanded(), nonce);
        stream.aad(aad);
        OpenStream { stream: Some(stream), opened: Vec::new() }
    }

    /// Opens the next piece and returns its bytes, which are not verified before [`finish`](OpenStream::finish).
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`].
    pub fn push(&mut self, source: &[u8]) -> Result<Untrusted<'_>, Error> {
        let begin = self.opened.len();
        if self.opened.capacity() - begin < source.len() {
            // Growing the vector in place would leave plaintext behind in the old memory.
            let mut larger = Vec::with_capacity((begin + source.len()).max(begin * 2));
            larger.extend_from_slice(&self.opened);
            wipe(&mut self.opened);
            self.opened = larger;
        }
        self.opened.resize(begin + source.len(), 0);
        let target = &mut self.opened[begin..];
        let stream = self.stream.as_mut().expect("there until finish");
        // SAFETY: both are slices of `source.len()` bytes, and a unique borrow overlaps no other.
        unsafe { stream.try_update(source.as_ptr(), target.as_mut_ptr(), source.len())? };
        Ok(Untrusted(target))
    }

    /// Returns the opened bytes if the tag is right.
    ///
    /// # Errors
    ///
    /// [`Error::WrongTag`] if it is not; the opened bytes are zeroed and freed.
    pub fn finish(mut self, tag: &[u8; 16]) -> Result<Vec<u8>, Error> {
        let made = self.stream.take().expect("there until finish").finish();
        if tags_equal(&made, tag) { Ok(std::mem::take(&mut self.opened)) } else { Err(Error::WrongTag) }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        wipe(&mut self.opened);
    }
}

fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    // Keeps the compiler from removing the stores as unused.
    std::hint::black_box(bytes);
}
