// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM messages in order, each in pieces of any length, one message after the other.
//!
//! - **Flow** `seal`/`open`/`new` (allocates once) ──▶ `aad`* ──▶ `update`* ──▶ `tag` ──▶ `restart(nonce)` ──▶ …
//! - **Choice** our own routines where they are faster ([`own`](super::own)), else a cipher context of aws-lc.
//! - **Owner** a stream has its own key schedule, so it may outlive the [`Key`] and move to another thread; the schedule is zeroed when
//!   the stream is dropped.
//! - **Order** `stage` only moves forward until `restart`, and a call that would move it back is refused. So a second message under the
//!   same nonce cannot happen by accident.
//! - **Layout** opening decrypts first; the caller compares the tag afterwards. aws-lc gives out the tag only of a context that encrypts,
//!   and the hash is over ciphertext in both directions, so `tag` switches the direction (a call without key and nonce, which leaves the
//!   state alone) before it asks for the tag.

use super::own::Own;
use super::prepared::{Direction, Prepared, Routines};
use super::{Key, KeyLength, Refused, TAG_BYTES, allowed};
use crate::Isa;
use aws_lc_sys as lc;
use core::ffi::c_int;
use core::ptr;

/// Most bytes of one call of aws-lc, which counts them in a C int.
const CALL_BYTES_MAX: usize = 1 << 30;

/// A message that is sealed or opened piece by piece.
///
/// An opening stream writes plaintext that is not verified before the tag is: use none of it until then.
pub struct Stream {
    routines: Engine,
    seals: bool,
    key_bytes: usize,
    nonce_bytes: usize,
    message_bytes: u64,
    stage: Stage,
}

/// The routines that cipher and hash: ours, or aws-lc's.
enum Engine {
    Own(Box<Own>),
    Library(Context),
}

/// A cipher context of aws-lc.
struct Context(*mut lc::EVP_CIPHER_CTX);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Aad,
    Message,
    Tagged,
}

// SAFETY: the pointer is the only one to the context, and aws-lc binds a context to no thread.
unsafe impl Send for Context {}
// SAFETY: every method that accesses the context takes the stream by unique reference.
unsafe impl Sync for Context {}

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

    /// Creates a stream without a [`Key`]: expands `key` (16 or 32 bytes) for one direction. The stream must be
    /// [restarted](Stream::restart) before its first message. Allocates.
    pub fn new(key: &[u8], seals: bool) -> Result<Stream, KeyLength> {
        if key.len() != 16 && key.len() != 32 {
            return Err(KeyLength { bytes: key.len() });
        }
        Ok(Stream::keyed(key, seals))
    }

    /// Does the same as [`new`](Stream::new), with the best routines up to the level `isa` instead of the process's level.
    pub fn up_to(key: &[u8], seals: bool, isa: Isa) -> Result<Stream, KeyLength> {
        if key.len() != 16 && key.len() != 32 {
            return Err(KeyLength { bytes: key.len() });
        }
        Ok(Stream::of(key, seals, Routines::up_to(isa)))
    }

    /// Creates a stream with the routines of the process; `key` has 16 or 32 bytes.
    fn keyed(key: &[u8], seals: bool) -> Stream {
        Stream::of(key, seals, Routines::active())
    }

    /// Creates a stream with the given routines; `key` has 16 or 32 bytes.
    fn of(key: &[u8], seals: bool, routines: Routines) -> Stream {
        let key_bytes = key.len();
        let routines = if routines.are_faster_than_library() {
            let direction = if seals { Direction::Seal } else { Direction::Open };
            Engine::Own(Box::new(Own::new(Prepared::of(key, routines), direction)))
        } else {
            Engine::Library(Context::new(key, seals))
        };
        Stream { routines, seals, key_bytes, nonce_bytes: 12, message_bytes: 0, stage: Stage::Tagged }
    }

    /// Replaces the key by another of the same length; an unfinished message is given up. The stream must then be
    /// [restarted](Stream::restart). Does not allocate.
    pub fn rekey(&mut self, key: &[u8]) -> Result<(), KeyLength> {
        if key.len() != self.key_bytes {
            return Err(KeyLength { bytes: key.len() });
        }
        self.stage = Stage::Tagged;
        match &mut self.routines {
            Engine::Own(own) => own.rekey(key),
            Engine::Library(context) => context.rekey(key, self.seals),
        }
        Ok(())
    }

    /// Begins the next message with the same key and direction; the last message need not be finished. Does not allocate,
    /// unless the nonce is longer than 16 bytes and longer than those before it.
    ///
    /// # Panics
    /// If the nonce is empty or longer than 2³⁰ bytes.
    pub fn restart(&mut self, nonce: &[u8]) {
        assert!(
            !nonce.is_empty() && nonce.len() <= CALL_BYTES_MAX,
            "a nonce of {} bytes: give 1 to 2^30, best 12",
            nonce.len()
        );
        match &mut self.routines {
            Engine::Own(own) => own.restart(nonce),
            Engine::Library(context) => context.restart(nonce, self.nonce_bytes, self.seals),
        }
        self.nonce_bytes = nonce.len();
        self.message_bytes = 0;
        self.stage = Stage::Aad;
    }

    /// Adds additional data, in any number of pieces; all of it must come before the message.
    ///
    /// # Panics
    /// After the first message byte. [`try_aad`](Stream::try_aad) returns an error instead.
    #[inline]
    pub fn aad(&mut self, aad: &[u8]) {
        if let Err(refused) = self.try_aad(aad) {
            panic!("additional data: {refused}");
        }
    }

    /// Does the same as [`aad`](Stream::aad), with an error instead of a panic.
    pub fn try_aad(&mut self, aad: &[u8]) -> Result<(), Refused> {
        if self.stage != Stage::Aad {
            return Err(Refused::Order);
        }
        match &mut self.routines {
            Engine::Own(own) => own.aad(aad),
            Engine::Library(context) => {
                for piece in aad.chunks(CALL_BYTES_MAX) {
                    // SAFETY: a null target means additional data; the piece is readable.
                    unsafe { context.pass(piece.as_ptr(), ptr::null_mut(), piece.len()) };
                }
            }
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
        // SAFETY: the caller guarantees `bytes` bytes on both sides, which is the condition of `try_update`.
        if let Err(refused) = unsafe { self.try_update(source, target, bytes) } {
            panic!("update of {bytes} bytes: {refused}");
        }
    }

    /// Does the same as [`update`](Stream::update), with an error instead of a panic. A refused piece changes nothing.
    ///
    /// # Safety
    /// The conditions of [`update`](Stream::update).
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
        if bytes == 0 {
            return Ok(()); // additional data may still follow
        }
        self.message_bytes += bytes as u64;
        self.stage = Stage::Message;
        match &mut self.routines {
            // SAFETY: the caller guarantees `bytes` bytes on both sides; they are equal or disjoint, as `allowed` checked.
            Engine::Own(own) => unsafe { own.update(source, target, bytes) },
            Engine::Library(context) => {
                for done_bytes in (0..bytes).step_by(CALL_BYTES_MAX) {
                    let piece_bytes = (bytes - done_bytes).min(CALL_BYTES_MAX);
                    // SAFETY: the piece is inside the `bytes` bytes that the caller guarantees on both sides.
                    unsafe { context.pass(source.add(done_bytes), target.add(done_bytes), piece_bytes) };
                }
            }
        }
        Ok(())
    }

    /// Returns the tag of the message. The stream must then be [restarted](Stream::restart); until then, further calls return the
    /// same tag. After opening, the caller compares it with the tag that came with the message, by
    /// [`tags_equal`](super::tags_equal).
    pub fn tag(&mut self) -> [u8; TAG_BYTES] {
        let first = self.stage < Stage::Tagged;
        self.stage = Stage::Tagged;
        match &mut self.routines {
            Engine::Own(own) => own.tag(),
            Engine::Library(context) => context.tag(first),
        }
    }

    /// Returns the tag of the message and drops the stream. See [`tag`](Stream::tag).
    pub fn finish(mut self) -> [u8; TAG_BYTES] {
        self.tag()
    }
}

impl Context {
    /// Creates a context with this key of 16 or 32 bytes.
    fn new(key: &[u8], seals: bool) -> Context {
        let context = Context::empty();
        // SAFETY: the context is empty, the key has the length of the cipher, and a null nonce means that it is set later.
        let done = unsafe {
            let cipher = if key.len() == 16 { lc::EVP_aes_128_gcm() } else { lc::EVP_aes_256_gcm() };
            let direction = c_int::from(seals);
            lc::EVP_CipherInit_ex(context.0, cipher, ptr::null_mut(), key.as_ptr(), ptr::null(), direction)
        };
        assert!(done == 1, "no memory for a key schedule");
        context
    }

    fn empty() -> Context {
        // SAFETY: the call has no conditions; it returns an empty context, or null if there is no memory.
        let context = unsafe { lc::EVP_CIPHER_CTX_new() };
        assert!(!context.is_null(), "no memory for a cipher context");
        Context(context)
    }

    /// Replaces the key by another of the same length.
    fn rekey(&mut self, key: &[u8], seals: bool) {
        // SAFETY: the context has a cipher, the key is as long as before, and null arguments leave the rest unchanged.
        let done = unsafe {
            let direction = c_int::from(seals);
            lc::EVP_CipherInit_ex(self.0, ptr::null(), ptr::null_mut(), key.as_ptr(), ptr::null(), direction)
        };
        assert!(done == 1, "aws-lc refused a key of {} bytes", key.len());
    }

    /// Begins a message with this nonce of 1 to `CALL_BYTES_MAX` bytes; the previous nonce had `before_bytes`.
    fn restart(&mut self, nonce: &[u8], before_bytes: usize, seals: bool) {
        if nonce.len() != before_bytes {
            // SAFETY: the context is initialised.
            let done = unsafe {
                let command = lc::EVP_CTRL_AEAD_SET_IVLEN as c_int;
                lc::EVP_CIPHER_CTX_ctrl(self.0, command, nonce.len() as c_int, ptr::null_mut())
            };
            assert!(done == 1, "no memory for a nonce of {} bytes", nonce.len());
        }
        let done = self.set_direction(nonce.as_ptr(), seals);
        assert!(done, "aws-lc refused a nonce of {} bytes", nonce.len());
    }

    /// Sets the direction, and the nonce if it is not null; the context already knows the nonce's length.
    fn set_direction(&mut self, nonce: *const u8, encrypts: bool) -> bool {
        // SAFETY: the context has cipher and key; `nonce` is null or as long as the context was told.
        let done = unsafe {
            let direction = c_int::from(encrypts);
            lc::EVP_CipherInit_ex(self.0, ptr::null(), ptr::null_mut(), ptr::null(), nonce, direction)
        };
        done == 1
    }

    /// Gives a piece to aws-lc: message bytes, or additional data if `target` is null.
    ///
    /// # Safety
    /// `source` must be readable for `bytes` bytes, `target` null or writable for as many; `bytes` is from 1 to
    /// `CALL_BYTES_MAX`.
    unsafe fn pass(&mut self, source: *const u8, target: *mut u8, bytes: usize) {
        let mut written_bytes = 0;
        // SAFETY: the caller guarantees source and target for `bytes`; the context has key and nonce.
        let done =
            unsafe { lc::EVP_CipherUpdate(self.0, target, &mut written_bytes, source, bytes as c_int) };
        assert!(done == 1 && written_bytes as usize == bytes, "aws-lc refused a piece of {bytes} bytes");
    }

    /// Returns the tag; `first` says that it is requested for the first time, and then the message is finished.
    fn tag(&mut self, first: bool) -> [u8; TAG_BYTES] {
        let mut tag = [0; TAG_BYTES];
        if first {
            assert!(self.set_direction(ptr::null(), true), "aws-lc refused to turn a context round");
            let mut written_bytes = 0;
            // SAFETY: the context has key and nonce; the cipher writes no bytes here, so any target is valid.
            let done = unsafe { lc::EVP_EncryptFinal_ex(self.0, tag.as_mut_ptr(), &mut written_bytes) };
            assert!(done == 1 && written_bytes == 0, "aws-lc refused to finish a message");
        }
        // SAFETY: the context holds the tag and writes its 16 bytes to `tag`.
        let done = unsafe {
            let command = lc::EVP_CTRL_AEAD_GET_TAG as c_int;
            lc::EVP_CIPHER_CTX_ctrl(self.0, command, TAG_BYTES as c_int, tag.as_mut_ptr().cast())
        };
        assert!(done == 1, "aws-lc refused to give the tag");
        tag
    }
}

impl Clone for Context {
    fn clone(&self) -> Context {
        let other = Context::empty();
        // SAFETY: both contexts are valid, and the new one is empty.
        let done = unsafe { lc::EVP_CIPHER_CTX_copy(other.0, self.0) };
        assert!(done == 1, "no memory for a copy of a cipher context");
        other
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing else points to the context; aws-lc overwrites its secrets before it frees the memory.
        unsafe { lc::EVP_CIPHER_CTX_free(self.0) };
    }
}

/// Returns a second stream at the same position of the same message. Allocates. If both streams continue to seal, they use one
/// nonce twice: the caller must prevent that.
impl Clone for Stream {
    fn clone(&self) -> Stream {
        let routines = match &self.routines {
            Engine::Own(own) => Engine::Own(own.clone()),
            Engine::Library(context) => Engine::Library(context.clone()),
        };
        Stream { routines, ..*self }
    }
}

impl core::fmt::Debug for Stream {
    /// Shows direction and progress, and no secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stream")
            .field("seals", &self.seals)
            .field("message_bytes", &self.message_bytes)
            .finish_non_exhaustive()
    }
}
