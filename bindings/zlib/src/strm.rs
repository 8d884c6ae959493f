// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Access to the program's `z_stream`: its buffers, its fields, its error texts.
//!
//! - **Owner** the program. The stream is accessed through a raw pointer, during a call only.

use crate::memory;
use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use core::ptr;
use libz_rs_sys::{Z_BUF_ERROR, Z_DATA_ERROR, Z_MEM_ERROR, Z_STREAM_ERROR, Z_VERSION_ERROR, z_stream};

/// `Z_UNKNOWN`, the `data_type` before any input was read.
pub const UNKNOWN: c_int = 2;

/// Returns true if the program was compiled for a version of libz that this library can replace.
///
/// # Safety
/// `version` is null or a C string.
pub unsafe fn version_fits(version: *const c_char, stream_size: c_int) -> bool {
    // SAFETY: `version` is a C string and not null, so it has at least one byte.
    !version.is_null()
        && unsafe { *version } == b'1' as c_char
        && stream_size as usize == size_of::<z_stream>()
}

/// Stores the text of an error code in the stream; returns the code.
///
/// # Safety
/// `strm` is valid.
pub unsafe fn fail(strm: *mut z_stream, code: c_int) -> c_int {
    let text = match code {
        Z_STREAM_ERROR => c"stream error",
        Z_DATA_ERROR => c"data error",
        Z_MEM_ERROR => c"insufficient memory",
        Z_BUF_ERROR => c"buffer error",
        Z_VERSION_ERROR => c"incompatible version",
        _ => c"",
    };
    // SAFETY: the caller guarantees a valid stream; nobody writes to the text.
    unsafe { (*strm).msg = text.as_ptr().cast_mut() };
    code
}

/// Sets the fields that a reset sets, and the default allocator if the program gave none.
///
/// # Safety
/// `strm` is valid.
pub unsafe fn begin(strm: *mut z_stream) {
    // SAFETY: the caller guarantees a valid stream.
    unsafe {
        (*strm).msg = ptr::null_mut();
        (*strm).total_in = 0;
        (*strm).total_out = 0;
        (*strm).data_type = UNKNOWN;
        memory::fill_in(strm);
    }
}

/// Returns the input that the program offers.
///
/// # Safety
/// `strm`, `next_in` and `avail_in` are valid; the bytes do not change while the slice lives.
pub unsafe fn input<'a>(strm: *const z_stream) -> &'a [u8] {
    // SAFETY: the caller guarantees the input; a null pointer only comes with 0 bytes.
    unsafe {
        if (*strm).avail_in == 0 {
            return &[];
        }
        core::slice::from_raw_parts((*strm).next_in, (*strm).avail_in as usize)
    }
}

/// Returns the room that the program offers for output.
///
/// # Safety
/// `strm`, `next_out` and `avail_out` are valid; nobody else uses the bytes while the slice lives.
pub unsafe fn output<'a>(strm: *mut z_stream) -> &'a mut [MaybeUninit<u8>] {
    // SAFETY: the caller guarantees the output; a null pointer only comes with 0 bytes.
    unsafe {
        if (*strm).avail_out == 0 {
            return &mut [];
        }
        core::slice::from_raw_parts_mut((*strm).next_out.cast(), (*strm).avail_out as usize)
    }
}

/// Counts bytes as read.
///
/// # Safety
/// `strm` is valid and `bytes` is at most `avail_in`.
pub unsafe fn consume_input(strm: *mut z_stream, bytes: usize) {
    // SAFETY: the caller guarantees a valid stream.
    unsafe {
        (*strm).next_in = (*strm).next_in.wrapping_add(bytes);
        (*strm).avail_in -= bytes as u32;
        (*strm).total_in += bytes as u64;
    }
}

/// Counts bytes as written.
///
/// # Safety
/// `strm` is valid and `bytes` is at most `avail_out`.
pub unsafe fn advance_output(strm: *mut z_stream, bytes: usize) {
    // SAFETY: the caller guarantees a valid stream.
    unsafe {
        (*strm).next_out = (*strm).next_out.wrapping_add(bytes);
        (*strm).avail_out -= bytes as u32;
        (*strm).total_out += bytes as u64;
    }
}

/// Writes as many of `bytes` as there is room for; returns the number.
///
/// # Safety
/// The conditions of [`output`]; `bytes` does not overlap the output.
pub unsafe fn write(strm: *mut z_stream, bytes: &[u8]) -> usize {
    // SAFETY: the caller guarantees the output; `take` is the shorter length.
    unsafe {
        let take = bytes.len().min((*strm).avail_out as usize);
        if take != 0 {
            ptr::copy_nonoverlapping(bytes.as_ptr(), (*strm).next_out, take);
            advance_output(strm, take);
        }
        take
    }
}
