// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One AES-GCM message in order, in pieces of any length, and the next message after it.
//!
//! Flow    `seal`/`open`/`new` (allocates once) ──▶ `aad`* ──▶ `update`* ──▶ `tag` ──▶ `restart(nonce)` ──▶ …
//! Owner   a stream has a key schedule of its own (aws-lc's cipher context), so it outlives the [`Key`] and may move
//!         to another thread; the context is zeroed when it is dropped.
//! Order   `stage` only moves forward until `restart`; a call that would move it back is refused, and so a second
//!         message under the same nonce cannot happen by accident.
//! Layout  to open is to decrypt first and compare the tag afterwards, and the comparison is the caller's. aws-lc
//!         only gives out the tag of a context that encrypts; the hash is over ciphertext in both directions, so
//!         `tag` turns the direction round (a call without key and nonce, which leaves the state alone) and asks.

use super::{Key, KeyLength, Refused, TAG_BYTES, allowed};
use aws_lc_sys as lc;
use core::ffi::c_int;
use core::ptr;

/// aws-lc counts the bytes of a call in a C int.
const CALL_BYTES_MAX: usize = 1 << 30;

/// A message that is sealed or opened piece by piece.
///
/// What an opening stream has written is not verified before the tag is: use none of it until then.
pub struct Stream {
    context: *mut lc::EVP_CIPHER_CTX,
    seals: bool,
    key_bytes: usize,
    nonce_bytes: usize,
    message_bytes: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Aad,
    Message,
    Tagged,
}

// SAFETY: the context is memory that only this stream points to; aws-lc binds it to no thread.
unsafe impl Send for Stream {}
// SAFETY: every method that touches the context takes the stream by unique reference.
unsafe impl Sync for Stream {}

impl Stream {
    /// Begins a message to encrypt. Allocates; [`restart`](Stream::restart) does not.
    ///
    /// # Panics
    /// If the nonce is empty or longer than 2³⁰ bytes.
    pub fn seal(key: &Key, nonce: &[u8]) -> Stream {
        Stream::begin(key, nonce, true)
    }

    /// Begins a message to decrypt. Allocates; [`restart`](Stream::restart) does not.
    ///
    /// # Panics
    /// If the nonce is empty or longer than 2³⁰ bytes.
    pub fn open(key: &Key, nonce: &[u8]) -> Stream {
        Stream::begin(key, nonce, false)
    }

    fn begin(key: &Key, nonce: &[u8], seals: bool) -> Stream {
        let mut stream = Stream::keyed(key.secret(), seals);
        stream.restart(nonce);
        stream
    }

    /// A stream without a [`Key`], for who needs no other: expands `key` (16 or 32 bytes) for one direction. It waits
    /// for [`restart`](Stream::restart). Allocates.
    pub fn new(key: &[u8], seals: bool) -> Result<Stream, KeyLength> {
        if key.len() != 16 && key.len() != 32 {
            return Err(KeyLength { bytes: key.len() });
        }
        Ok(Stream::keyed(key, seals))
    }

    /// `key` has 16 or 32 bytes.
    fn keyed(key: &[u8], seals: bool) -> Stream {
        // SAFETY: makes an empty context, or null where there is no memory.
        let context = unsafe { lc::EVP_CIPHER_CTX_new() };
        assert!(!context.is_null(), "no memory for a cipher context");
        let key_bytes = key.len();
        let stream =
            Stream { context, seals, key_bytes, nonce_bytes: 12, message_bytes: 0, stage: Stage::Tagged };
        // SAFETY: the context is empty; the key is as long as the cipher wants it; a null nonce means "later".
        let done = unsafe {
            let cipher = if key_bytes == 16 { lc::EVP_aes_128_gcm() } else { lc::EVP_aes_256_gcm() };
            let direction = c_int::from(seals);
            lc::EVP_CipherInit_ex(context, cipher, ptr::null_mut(), key.as_ptr(), ptr::null(), direction)
        };
        assert!(done == 1, "no memory for a key schedule");
        stream
    }

    /// Another key of the same length, for all that follows; the message under way is given up. Then
    /// [`restart`](Stream::restart). No allocation.
    pub fn rekey(&mut self, key: &[u8]) -> Result<(), KeyLength> {
        if key.len() != self.key_bytes {
            return Err(KeyLength { bytes: key.len() });
        }
        self.stage = Stage::Tagged;
        // SAFETY: the context has a cipher, and the key is as long as before; null means "as it was".
        let done = unsafe {
            let direction = c_int::from(self.seals);
            lc::EVP_CipherInit_ex(
                self.context,
                ptr::null(),
                ptr::null_mut(),
                key.as_ptr(),
                ptr::null(),
                direction,
            )
        };
        assert!(done == 1, "aws-lc refused a key of {} bytes", key.len());
        Ok(())
    }

    /// Begins the next message with the same key and direction, whatever became of the last one. No allocation,
    /// unless a nonce is longer than 16 bytes and longer than those before it.
    ///
    /// # Panics
    /// If the nonce is empty or longer than 2³⁰ bytes.
    pub fn restart(&mut self, nonce: &[u8]) {
        assert!(
            !nonce.is_empty() && nonce.len() <= CALL_BYTES_MAX,
            "a nonce of {} bytes: give 1 to 2^30, best 12",
            nonce.len()
        );
        if nonce.len() != self.nonce_bytes {
            // SAFETY: the context is initialised.
            let done = unsafe {
                let command = lc::EVP_CTRL_AEAD_SET_IVLEN as c_int;
                lc::EVP_CIPHER_CTX_ctrl(self.context, command, nonce.len() as c_int, ptr::null_mut())
            };
            assert!(done == 1, "no memory for a nonce of {} bytes", nonce.len());
            self.nonce_bytes = nonce.len();
        }
        self.turn(nonce.as_ptr(), self.seals);
        self.message_bytes = 0;
        self.stage = Stage::Aad;
    }

    /// Sets the direction, and the nonce unless it is null.
    fn turn(&mut self, nonce: *const u8, encrypts: bool) {
        // SAFETY: the context has cipher and key; the nonce is null or `nonce_bytes` long.
        let done = unsafe {
            let direction = c_int::from(encrypts);
            lc::EVP_CipherInit_ex(self.context, ptr::null(), ptr::null_mut(), ptr::null(), nonce, direction)
        };
        assert!(done == 1, "aws-lc refused a nonce of {} bytes", self.nonce_bytes);
    }

    /// Adds additional data: in pieces, all of it before the message.
    ///
    /// # Panics
    /// After the first message byte. [`try_aad`](Stream::try_aad) returns an error instead.
    #[inline]
    pub fn aad(&mut self, aad: &[u8]) {
        if let Err(refused) = self.try_aad(aad) {
            panic!("additional data: {refused}");
        }
    }

    /// [`aad`](Stream::aad) with an error instead of a panic.
    pub fn try_aad(&mut self, aad: &[u8]) -> Result<(), Refused> {
        if self.stage != Stage::Aad {
            return Err(Refused::Order);
        }
        for piece in aad.chunks(CALL_BYTES_MAX) {
            // SAFETY: a null target means additional data; the piece is readable.
            unsafe { self.pass(piece.as_ptr(), ptr::null_mut(), piece.len()) };
        }
        Ok(())
    }

    /// Encrypts or decrypts the next `bytes` bytes of the message.
    ///
    /// # Panics
    /// If source and target overlap without being equal, the message becomes longer than
    /// [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX), or the tag was already taken.
    /// [`try_update`](Stream::try_update) returns an error instead.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes.
    #[inline]
    pub unsafe fn update(&mut self, source: *const u8, target: *mut u8, bytes: usize) {
        // SAFETY: the caller's promises are the same.
        if let Err(refused) = unsafe { self.try_update(source, target, bytes) } {
            panic!("update of {bytes} bytes: {refused}");
        }
    }

    /// [`update`](Stream::update) with an error instead of a panic. A piece that is refused changes nothing.
    ///
    /// # Safety
    /// As for [`update`](Stream::update).
    pub unsafe fn try_update(
        &mut self,
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<(), Refused> {
        if self.stage == Stage::Tagged {
            return Err(Refused::Order);
        }
        allowed(source.addr(), target.addr(), bytes, self.message_bytes)?;
        self.message_bytes += bytes as u64;
        let mut done_bytes = 0;
        while done_bytes < bytes {
            self.stage = Stage::Message;
            let piece_bytes = (bytes - done_bytes).min(CALL_BYTES_MAX);
            // SAFETY: the piece is inside what the caller promises.
            unsafe { self.pass(source.add(done_bytes), target.add(done_bytes), piece_bytes) };
            done_bytes += piece_bytes;
        }
        Ok(())
    }

    /// One call of aws-lc.
    ///
    /// # Safety
    /// `source` must be readable for `bytes` bytes, `target` null or writable for as many; `bytes` is from 1 to
    /// `CALL_BYTES_MAX`.
    unsafe fn pass(&mut self, source: *const u8, target: *mut u8, bytes: usize) {
        let mut written_bytes = 0;
        // SAFETY: as the caller promises; the context has key and nonce.
        let done =
            unsafe { lc::EVP_CipherUpdate(self.context, target, &mut written_bytes, source, bytes as c_int) };
        assert!(done == 1 && written_bytes as usize == bytes, "aws-lc refused a piece of {bytes} bytes");
    }

    /// The tag of the message. The stream then waits for [`restart`](Stream::restart); until then, the same tag is
    /// given again. Of an opening stream, the caller compares it with the tag that came with the message, by
    /// [`tags_equal`](super::tags_equal).
    pub fn tag(&mut self) -> [u8; TAG_BYTES] {
        let mut tag = [0; TAG_BYTES];
        if self.stage < Stage::Tagged {
            self.stage = Stage::Tagged;
            self.turn(ptr::null(), true);
            let mut written_bytes = 0;
            // SAFETY: the context has key and nonce; the cipher writes no bytes here, so any target will do.
            let done = unsafe { lc::EVP_EncryptFinal_ex(self.context, tag.as_mut_ptr(), &mut written_bytes) };
            assert!(done == 1 && written_bytes == 0, "aws-lc refused to finish a message");
        }
        // SAFETY: the tag is in the context, which writes 16 bytes of it.
        let done = unsafe {
            let command = lc::EVP_CTRL_AEAD_GET_TAG as c_int;
            lc::EVP_CIPHER_CTX_ctrl(self.context, command, TAG_BYTES as c_int, tag.as_mut_ptr().cast())
        };
        assert!(done == 1, "aws-lc refused to give the tag");
        tag
    }

    /// The tag of the message, and the end of the stream. See [`tag`](Stream::tag).
    pub fn finish(mut self) -> [u8; TAG_BYTES] {
        self.tag()
    }
}

/// A second stream at the same place in the same message. Allocates. Two that both go on sealing use one nonce twice:
/// that is the caller's to know.
impl Clone for Stream {
    fn clone(&self) -> Stream {
        // SAFETY: makes an empty context, or null where there is no memory.
        let context = unsafe { lc::EVP_CIPHER_CTX_new() };
        assert!(!context.is_null(), "no memory for a cipher context");
        let stream = Stream { context, ..*self };
        // SAFETY: both contexts are alive, and the new one is empty.
        let done = unsafe { lc::EVP_CIPHER_CTX_copy(stream.context, self.context) };
        assert!(done == 1, "no memory for a copy of a cipher context");
        stream
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the context is ours alone; aws-lc overwrites it before it gives the memory back.
        unsafe { lc::EVP_CIPHER_CTX_free(self.context) };
    }
}

impl core::fmt::Debug for Stream {
    /// Direction and progress; no secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stream")
            .field("seals", &self.seals)
            .field("message_bytes", &self.message_bytes)
            .finish_non_exhaustive()
    }
}
