// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages in pieces: packers, sealers, openers.
//!
//! - **Flow** `…_new`, then `…_push` in order or `…_at` at multiples of 16 in any order, then `…_finish` and `…_free`.
//! - **Order** the first piece decides if a message comes in order or not; the two cannot be mixed.
//! - **Owner** an opener gets its target when it is created. It zeroes the target after a wrong tag, and if it is freed before the end:
//!   until `finish` returns 0, the bytes in the target are unverified.
//! - **Failure** a refused piece changes nothing.

use crate::context::{array, format, key, slice};
use crate::fault::{self, Fault, free, make, null, run};
use memlift::transform::aead::{Refused, Scatter, Stream, tags_equal};
use memlift::transform::deflate::{self, Flush, PackStream};
use memlift::transform::{Error, Format, Key};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// Object behind a `memlift_packer` pointer.
pub struct Packer(PackStream);

/// An AES-GCM message in pieces.
enum Pieces {
    /// No piece was given yet.
    None,
    Ordered(Box<Stream>),
    Scattered(Box<Scatter<'static>>),
    Finished,
}

/// Object behind a `memlift_sealer` pointer. Fields drop in this order: the pieces borrow the key.
pub struct Sealer {
    pieces: Pieces,
    seals: bool,
    nonce: [u8; 12],
    aad: Vec<u8>,
    bytes: u64,
    key: Arc<Key>,
}

/// Object behind a `memlift_opener` pointer.
pub struct Opener {
    inner: Sealer,
    target: *mut u8,
    target_bytes: usize,
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Fault {
        match refused {
            Refused::TooLong | Refused::Overlap => Error::from(refused).into(),
            other => Fault::order(&other.to_string()),
        }
    }
}

impl Sealer {
    /// Creates a sealer, or the inner state of an opener.
    ///
    /// # Safety
    ///
    /// Key and additional data are readable for their lengths, the nonce for 12 bytes.
    unsafe fn new(
        seals: bool,
        (key, key_bytes): (*const u8, usize),
        nonce: *const u8,
        (aad, aad_bytes): (*const u8, usize),
    ) -> Result<Sealer, Fault> {
        // SAFETY: the caller guarantees that `key` and `aad` are readable for their lengths and `nonce` for 12 bytes; null is
        // refused for one byte or more.
        unsafe {
            Ok(Sealer {
                pieces: Pieces::None,
                seals,
                key: self::key(slice(key, key_bytes, "key")?)?,
                nonce: array(nonce, "nonce")?,
                aad: slice(aad, aad_bytes, "aad")?.to_vec(),
                bytes: 0,
            })
        }
    }

    /// Processes the next piece of a message in order.
    ///
    /// # Safety
    ///
    /// `source` is readable and `target` writable for `bytes`.
    unsafe fn push(&mut self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Fault> {
        if matches!(self.pieces, Pieces::None) {
            let begin = if self.seals { Stream::seal } else { Stream::open };
            let mut stream = begin(self.key.expanded(), &self.nonce);
            stream.try_aad(&self.aad)?;
            self.pieces = Pieces::Ordered(Box::new(stream));
        }
        let Pieces::Ordered(stream) = &mut self.pieces else { return Err(self.mixed()) };
        // SAFETY: the caller guarantees that `source` is readable and `target` writable for `bytes`; the stream refuses a partial
        // overlap.
        unsafe { stream.try_update(source, target, bytes)? };
        self.bytes += bytes as u64;
        Ok(())
    }

    /// Processes the piece at byte `at`.
    ///
    /// # Safety
    ///
    /// The conditions of [`push`](Sealer::push).
    unsafe fn at(&mut self, at: u64, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Fault> {
        if matches!(self.pieces, Pieces::None) {
            // SAFETY: the key lives in an `Arc` that this object keeps, at an address that does not change. `pieces` is the first
            // field, so it is dropped before the key, and nobody moves it out of this object.
            let key: &'static memlift::transform::aead::Key =
                unsafe { &*std::ptr::from_ref(self.key.expanded()) };
            let begin = if self.seals { Scatter::seal } else { Scatter::open };
            self.pieces = Pieces::Scattered(Box::new(begin(key, &self.nonce, &self.aad)));
        }
        let Pieces::Scattered(scatter) = &mut self.pieces else { return Err(self.mixed()) };
        // SAFETY: the caller guarantees that `source` is readable and `target` writable for `bytes`; the scatter refuses a
        // partial overlap.
        unsafe { scatter.update(at, source, target, bytes)? };
        self.bytes += bytes as u64;
        Ok(())
    }

    fn mixed(&self) -> Fault {
        Fault::order(match self.pieces {
            Pieces::Finished => "this message is finished: make a new one",
            _ => "pieces in order (push) and at places (at) do not mix in one message",
        })
    }

    fn tag(&mut self) -> Result<[u8; 16], Fault> {
        if matches!(self.pieces, Pieces::None) {
            // SAFETY: with 0 bytes no memory is accessed.
            unsafe { self.push(NonNull::dangling().as_ptr(), NonNull::dangling().as_ptr(), 0)? };
        }
        let tag = match &mut self.pieces {
            Pieces::Ordered(stream) => stream.tag(),
            Pieces::Scattered(scatter) => scatter.tag(self.bytes)?,
            _ => return Err(self.mixed()),
        };
        self.pieces = Pieces::Finished;
        Ok(tag)
    }
}

impl Opener {
    /// Returns the address of a piece in the target.
    fn piece_in_target(&self, at: u64, bytes: usize) -> Result<*mut u8, Fault> {
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(bytes));
        match end {
            // SAFETY: the end of the piece was checked to be within the target.
            Some(end) if end <= self.target_bytes => Ok(unsafe { self.target.add(at as usize) }),
            _ => {
                Err(Error::TargetTooSmall { needed: end.unwrap_or(usize::MAX), has: self.target_bytes }
                    .into())
            }
        }
    }

    fn wipe(&mut self) {
        // SAFETY: the caller that created the opener guaranteed a writable target until it is finished or freed.
        unsafe { std::ptr::write_bytes(self.target, 0, self.target_bytes) };
        std::hint::black_box(self.target);
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        if !matches!(self.inner.pieces, Pieces::Finished) {
            self.wipe();
        }
    }
}

/// Borrows an object of this library, and refuses null.
///
/// # Safety
///
/// `object` is null, or came from its `_new` function, and nobody else uses it during the call.
unsafe fn object<'a, T>(object: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: the caller guarantees that `object` is null, or was boxed by `make` and not freed, and that no other thread uses
    // it during the call.
    unsafe { object.as_mut() }.ok_or_else(|| null(what))
}

fn there(start: *const u8, bytes: usize, what: &str) -> Result<(), Fault> {
    if (start.is_null() && bytes > 0) || isize::try_from(bytes).is_err() {
        return Err(Fault::argument(&format!("{what} is NULL, or larger than memory")));
    }
    Ok(())
}

/// Begins a message of deflate, zlib or gzip.
#[unsafe(no_mangle)]
pub extern "C" fn memlift_packer_new(format: c_int, effort: c_int) -> *mut Packer {
    make(|| {
        let format = match self::format(format)? {
            Format::Deflate => deflate::Format::Raw,
            Format::Zlib => deflate::Format::Zlib,
            Format::Gzip => deflate::Format::Gzip,
            other => return Err(Error::Unsupported { format: other.name() }.into()),
        };
        let effort = match effort {
            0 => deflate::Effort::Fast,
            1 => deflate::Effort::Default,
            2 => deflate::Effort::Small,
            _ => return Err(Fault::argument("no such effort: MEMLIFT_FAST, _DEFAULT or _SMALL")),
        };
        Ok(Packer(PackStream::new(format, effort)))
    })
}

/// Reads from source and writes to target, as much as there is of both. Returns 1 if there is more to write.
///
/// # Safety
///
/// Source and target are readable and writable for their lengths and do not overlap; `read` and `written` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_packer_push(
    packer: *mut Packer,
    source: *const u8,
    source_bytes: usize,
    read: *mut usize,
    target: *mut u8,
    target_bytes: usize,
    written: *mut usize,
    flush: c_int,
) -> c_int {
    let mut more = false;
    let code = run(|| {
        let flush = match flush {
            0 => Flush::None,
            1 => Flush::Sync,
            2 => Flush::Full,
            3 => Flush::Finish,
            _ => return Err(Fault::argument("no such flush: MEMLIFT_FLUSH_NONE to MEMLIFT_FLUSH_FINISH")),
        };
        if read.is_null() || written.is_null() {
            return Err(Fault::argument("read or written is NULL"));
        }
        there(target, target_bytes, "target")?;
        let (from, to) = (source.addr(), target.addr());
        if from < to.saturating_add(target_bytes) && to < from.saturating_add(source_bytes) {
            return Err(Error::Overlap.into());
        }
        // SAFETY: the caller guarantees `source_bytes` readable and `target_bytes` writable bytes, which were checked not to
        // overlap, and that only this thread uses the packer. `read` and `written` are not null, so they are writable.
        unsafe {
            let packer = object(packer, "packer")?;
            let source = slice(source, source_bytes, "source")?;
            let target: &mut [MaybeUninit<u8>] = match target_bytes {
                0 => &mut [],
                _ => std::slice::from_raw_parts_mut(target.cast(), target_bytes),
            };
            let pushed = packer.0.push_uninit(source, target, flush);
            read.write(pushed.read);
            written.write(pushed.written);
            more = pushed.more;
        }
        Ok(())
    });
    if code == fault::OK && more { fault::MORE } else { code }
}

/// Frees a packer; null is allowed.
///
/// # Safety
///
/// `packer` came from `memlift_packer_new`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_packer_free(packer: *mut Packer) {
    // SAFETY: null, or boxed by `memlift_packer_new`; the caller gives it up.
    unsafe { free(packer) };
}

/// Begins a message to seal.
///
/// # Safety
///
/// `key` and `aad` are readable for their lengths, `nonce` for 12 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_sealer_new(
    key: *const u8,
    key_bytes: usize,
    nonce: *const u8,
    aad: *const u8,
    aad_bytes: usize,
) -> *mut Sealer {
    // SAFETY: `key` and `aad` are readable for their bytes and `nonce` for 12, as the caller guarantees.
    make(|| unsafe { Sealer::new(true, (key, key_bytes), nonce, (aad, aad_bytes)) })
}

/// Seals the next piece.
///
/// # Safety
///
/// `source` is readable and `target` writable for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_sealer_push(
    sealer: *mut Sealer,
    source: *const u8,
    target: *mut u8,
    bytes: usize,
) -> c_int {
    // SAFETY: `source` is readable and `target` writable for `bytes`, as the caller guarantees; this thread alone uses `sealer`, as
    // the header demands.
    run(|| unsafe {
        there(source, bytes, "source")?;
        there(target, bytes, "target")?;
        object(sealer, "sealer")?.push(source, target, bytes)
    })
}

/// Seals the piece that begins at byte `at` of the message, a multiple of 16.
///
/// # Safety
///
/// `source` is readable and `target` writable for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_sealer_at(
    sealer: *mut Sealer,
    at: u64,
    source: *const u8,
    target: *mut u8,
    bytes: usize,
) -> c_int {
    // SAFETY: `source` is readable and `target` writable for `bytes`, as the caller guarantees; this thread alone uses `sealer`, as
    // the header demands.
    run(|| unsafe {
        there(source, bytes, "source")?;
        there(target, bytes, "target")?;
        object(sealer, "sealer")?.at(at, source, target, bytes)
    })
}

/// Ends the message and writes its tag.
///
/// # Safety
///
/// `tag` is writable for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_sealer_finish(sealer: *mut Sealer, tag: *mut u8) -> c_int {
    // SAFETY: the caller guarantees 16 writable bytes at `tag`, which is not null; this thread alone uses `sealer`, as the header
    // demands.
    run(|| unsafe {
        there(tag, 16, "tag")?;
        let made = object(sealer, "sealer")?.tag()?;
        tag.cast::<[u8; 16]>().write_unaligned(made);
        Ok(())
    })
}

/// Frees a sealer; null is allowed.
///
/// # Safety
///
/// `sealer` came from `memlift_sealer_new`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_sealer_free(sealer: *mut Sealer) {
    // SAFETY: null, or boxed by `memlift_sealer_new`; the caller gives it up.
    unsafe { free(sealer) };
}

/// Begins a message to open into `target`.
///
/// # Safety
///
/// `key` and `aad` are readable for their lengths, `nonce` for 12 bytes; `target` is writable for `target_bytes` until the
/// opener is finished or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_opener_new(
    key: *const u8,
    key_bytes: usize,
    nonce: *const u8,
    aad: *const u8,
    aad_bytes: usize,
    target: *mut u8,
    target_bytes: usize,
) -> *mut Opener {
    // SAFETY: `key` and `aad` are readable for their bytes and `nonce` for 12, as the caller guarantees.
    make(|| unsafe {
        there(target, target_bytes, "target")?;
        let target = if target_bytes == 0 { NonNull::dangling().as_ptr() } else { target };
        let inner = Sealer::new(false, (key, key_bytes), nonce, (aad, aad_bytes))?;
        Ok(Opener { inner, target, target_bytes })
    })
}

/// Opens the next piece to the target, behind the previous one.
///
/// # Safety
///
/// `source` is readable for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_opener_push(opener: *mut Opener, source: *const u8, bytes: usize) -> c_int {
    // SAFETY: `source` is readable for `bytes`, as the caller guarantees, and `piece_in_target` bounds the piece by the target; this
    // thread alone uses `opener`, as the header demands.
    run(|| unsafe {
        there(source, bytes, "source")?;
        let opener = object(opener, "opener")?;
        let target = opener.piece_in_target(opener.inner.bytes, bytes)?;
        opener.inner.push(source, target, bytes)
    })
}

/// Opens the piece that begins at byte `at` of the message, a multiple of 16, to that byte of the target.
///
/// # Safety
///
/// `source` is readable for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_opener_at(
    opener: *mut Opener,
    at: u64,
    source: *const u8,
    bytes: usize,
) -> c_int {
    // SAFETY: `source` is readable for `bytes`, as the caller guarantees, and `piece_in_target` bounds the piece by the target; this
    // thread alone uses `opener`, as the header demands.
    run(|| unsafe {
        there(source, bytes, "source")?;
        let opener = object(opener, "opener")?;
        let target = opener.piece_in_target(at, bytes)?;
        opener.inner.at(at, source, target, bytes)
    })
}

/// Ends the message. Returns 0 if the tag is right, and then the target may be used; otherwise the target is zeroed.
///
/// # Safety
///
/// `tag` is readable for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_opener_finish(opener: *mut Opener, tag: *const u8) -> c_int {
    // SAFETY: `tag` is null or readable for 16 bytes, as the caller guarantees; this thread alone uses `opener`, as the header
    // demands.
    run(|| unsafe {
        let tag: [u8; 16] = array(tag, "tag")?;
        let opener = object(opener, "opener")?;
        let made = opener.inner.tag()?;
        if tags_equal(&made, &tag) {
            return Ok(());
        }
        opener.wipe();
        Err(Error::WrongTag.into())
    })
}

/// Frees an opener; null is allowed. The target of an unfinished message is zeroed.
///
/// # Safety
///
/// `opener` came from `memlift_opener_new`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_opener_free(opener: *mut Opener) {
    // SAFETY: null, or boxed by `memlift_opener_new`; the caller gives it up.
    unsafe { free(opener) };
}
