// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages that arrive in pieces: seal, open and pack any byte range as it comes.
//!
//! - **Flow** `SealStream::push`* ──▶ `finish` (the tag) · `OpenStream::push`* ──▶ `Untrusted` ──▶ `finish(tag)` ──▶ the bytes
//! - **Order** pieces in order, of any length; additional data before the first
//! - **Owner** an `OpenStream` owns what it has opened and gives it away only with the right tag; dropped or refused, it
//!   overwrites it with zeros. `open_into` writes to the caller's memory, which then is the caller's to zero.
//! - **Not here** pieces out of order: `aead::Scatter`

use crate::{Error, Key};
use memlift_offload::codec::aead::{Stream, tags_equal};

/// A message that is sealed piece by piece.
#[derive(Debug)]
pub struct SealStream {
    stream: Stream,
}

impl SealStream {
    /// Begins a message. A (key, nonce) pair seals one message, ever.
    pub fn new(key: &Key, nonce: &[u8; 12], aad: &[u8]) -> SealStream {
        let mut stream = Stream::seal(key.expanded(), nonce);
        stream.aad(aad);
        SealStream { stream }
    }

    /// Seals the next piece to the start of `target`.
    ///
    /// # Errors
    ///
    /// [`Error::TargetTooSmall`], [`Error::TooLong`].
    pub fn push(&mut self, source: &[u8], target: &mut [u8]) -> Result<(), Error> {
        room(source, target)?;
        // SAFETY: both are slices, the target at least as long, and a unique borrow overlaps no other.
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

/// Bytes that were opened but not verified: anybody may have made them up.
#[derive(Debug)]
#[must_use = "these bytes are not verified before `finish`"]
pub struct Untrusted<'a>(&'a mut [u8]);

impl Untrusted<'_> {
    /// The bytes before they are verified. Do nothing with them that cannot be taken back.
    pub fn expose(&self) -> &[u8] {
        self.0
    }

    /// Number of the bytes.
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

    /// Opens the next piece; gives its bytes, which are right only if the tag will be.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`].
    pub fn push(&mut self, source: &[u8]) -> Result<Untrusted<'_>, Error> {
        let begin = self.opened.len();
        if self.opened.capacity() - begin < source.len() {
            // Growing would leave plaintext behind in the old memory.
            let mut larger = Vec::with_capacity((begin + source.len()).max(begin * 2));
            larger.extend_from_slice(&self.opened);
            wipe(&mut self.opened);
            self.opened = larger;
        }
        self.opened.resize(begin + source.len(), 0);
        let target = &mut self.opened[begin..];
        let stream = self.stream.as_mut().expect("there until finish");
        // SAFETY: both are slices of one length, and a unique borrow overlaps no other.
        unsafe { stream.try_update(source.as_ptr(), target.as_mut_ptr(), source.len())? };
        Ok(Untrusted(target))
    }

    /// Opens the next piece into the caller's memory, which the caller zeroes if `finish` fails. Nothing of such a piece
    /// is in what [`finish`](OpenStream::finish) gives.
    ///
    /// # Errors
    ///
    /// [`Error::TargetTooSmall`], [`Error::TooLong`].
    pub fn open_into<'a>(&mut self, source: &[u8], target: &'a mut [u8]) -> Result<Untrusted<'a>, Error> {
        room(source, target)?;
        let target = &mut target[..source.len()];
        let stream = self.stream.as_mut().expect("there until finish");
        // SAFETY: both are slices of `source.len()` bytes, and a unique borrow overlaps no other.
        unsafe { stream.try_update(source.as_ptr(), target.as_mut_ptr(), source.len())? };
        Ok(Untrusted(target))
    }

    /// Returns the bytes, if the tag is right.
    ///
    /// # Errors
    ///
    /// [`Error::WrongTag`]: everything is zeroed and gone.
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
    // The compiler may not leave out stores that somebody might look at.
    std::hint::black_box(bytes);
}
