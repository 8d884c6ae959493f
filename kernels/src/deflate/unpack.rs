// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unpacks whole messages: [`Unpacker`].

use super::Format;
use core::ptr::NonNull;
use libdeflate_sys as sys;
use std::alloc::{Layout, handle_alloc_error};

/// Bytes read and written by unpacking one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unpacked {
    /// Bytes of the source that belong to the message; other bytes may follow.
    pub read: usize,
    /// Bytes of the message.
    pub written: usize,
}

/// Reason why a message could not be unpacked. The target's contents are then unspecified; nothing outside it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The bytes are no packed message, or only a part of one.
    #[error("the packed message is corrupt or cut off, or it has another format: ask for it again")]
    Corrupt,
    /// The message has more bytes than the target.
    #[error("the target has no room for the message: give it more bytes")]
    TargetTooSmall,
}

/// Unpacks whole messages. Use one per thread; it does not allocate after `new`.
pub struct Unpacker(NonNull<sys::libdeflate_decompressor>);

// SAFETY: the decompressor is plain memory that is bound to no thread, and it is used through `&mut` only.
unsafe impl Send for Unpacker {}

impl Default for Unpacker {
    fn default() -> Unpacker {
        Unpacker::new()
    }
}

impl Unpacker {
    /// Allocates the tables.
    pub fn new() -> Unpacker {
        // SAFETY: the call has no conditions, and null is handled.
        match NonNull::new(unsafe { sys::libdeflate_alloc_decompressor() }) {
            Some(tables) => Unpacker(tables),
            None => handle_alloc_error(Layout::new::<[u8; 12288]>()),
        }
    }

    /// Unpacks the message at the start of `source` into the start of `target`.
    pub fn unpack(
        &mut self,
        format: Format,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<Unpacked, UnpackError> {
        // SAFETY: pointer and length are those of the slice.
        unsafe { self.unpack_raw(format, source, target.as_mut_ptr(), target.len()) }
    }

    /// Does the same as [`unpack`](Unpacker::unpack), into memory that need not be initialized.
    ///
    /// # Safety
    /// `target` may be written for `bytes` bytes and does not overlap `source`.
    pub unsafe fn unpack_raw(
        &mut self,
        format: Format,
        source: &[u8],
        target: *mut u8,
        bytes: usize,
    ) -> Result<Unpacked, UnpackError> {
        let unpack = match format {
            Format::Raw => sys::libdeflate_deflate_decompress_ex,
            Format::Zlib => sys::libdeflate_zlib_decompress_ex,
            Format::Gzip => sys::libdeflate_gzip_decompress_ex,
        };
        let (mut read, mut written) = (0, 0);
        // SAFETY: the decompressor is valid, the source is a slice, and the caller guarantees the target.
        let result = unsafe {
            let (source, length) = (source.as_ptr().cast(), source.len());
            unpack(self.0.as_ptr(), source, length, target.cast(), bytes, &mut read, &mut written)
        };
        match result {
            sys::libdeflate_result_LIBDEFLATE_SUCCESS => Ok(Unpacked { read, written }),
            sys::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => Err(UnpackError::TargetTooSmall),
            _ => Err(UnpackError::Corrupt),
        }
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        // SAFETY: the decompressor came from libdeflate and is not used any more.
        unsafe { sys::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}
