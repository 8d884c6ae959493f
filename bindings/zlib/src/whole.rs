// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions of libz for whole buffers.
//!
//! - **Flow** `compress2`: levels 1–6 are packed by the kernels' packer directly into the target, other levels by a stream.
//!   `uncompress2`: the decoder of streams, without a window.
//! - **Order** packed bytes never exceed `compressBound`, which is zlib's formula, because programs have the formula compiled in.

use crate::counts::{self, Row};
use crate::deflate::{compress_bound, deflate, deflateEnd, deflateInit_};
use crate::export::fenced;
use crate::inflate;
use crate::pool;
use core::ffi::{c_int, c_ulong};
use core::mem::MaybeUninit;
use libz_rs_sys as port;
use libz_rs_sys::{
    Bytef, Z_BUF_ERROR, Z_DEFAULT_COMPRESSION, Z_FINISH, Z_NO_FLUSH, Z_OK, Z_STREAM_END, Z_STREAM_ERROR,
    uLong, uLongf,
};
use memlift_kernels::deflate::{Effort, Format};

/// See zlib.h.
///
/// # Safety
/// There are no conditions.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn compressBound(bytes: uLong) -> uLong {
    versioned!(compressBound, "1.2.0");
    compress_bound(bytes)
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn compress(
    target: *mut Bytef,
    target_bytes: *mut uLongf,
    source: *const Bytef,
    bytes: uLong,
) -> c_int {
    // SAFETY: `source` is readable for `bytes` bytes, `target_bytes` is readable and writable, and `target` is writable for that
    // many bytes and apart from it, as zlib.h demands.
    unsafe { compress2(target, target_bytes, source, bytes, Z_DEFAULT_COMPRESSION) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn compress2(
    target: *mut Bytef,
    target_bytes: *mut uLongf,
    source: *const Bytef,
    bytes: uLong,
    level: c_int,
) -> c_int {
    // SAFETY: the caller guarantees buffers that are valid for the given lengths and do not overlap.
    fenced(Z_STREAM_ERROR, || unsafe {
        let level = if level == Z_DEFAULT_COMPRESSION { 6 } else { level };
        let packer = if (1..=6).contains(&level) { pool::WHOLE.take() } else { None };
        let Some(mut packer) = packer.filter(|_| !target.is_null() && (!source.is_null() || bytes == 0))
        else {
            return by_stream(target, target_bytes, source, bytes, level);
        };
        let source = slice(source, bytes);
        let room = core::slice::from_raw_parts_mut(target.cast::<MaybeUninit<u8>>(), *target_bytes as usize);
        let packed = packer.packer.pack_uninit(Format::Zlib, Effort::Default, source, room);
        counts::add(Row::PackWhole, bytes, packed.map_or(0, |bytes| bytes as u64), packed.is_err());
        match packed {
            Ok(bytes) => {
                if level == 6 {
                    *target.add(1) = 0x9c; // the byte that zlib writes for level 6
                }
                *target_bytes = bytes as uLongf;
                Z_OK
            }
            Err(_) => Z_BUF_ERROR,
        }
    })
}

/// Does [`compress2`] for levels that the packer does not have.
unsafe fn by_stream(
    target: *mut Bytef,
    target_bytes: *mut uLongf,
    source: *const Bytef,
    bytes: uLong,
    level: c_int,
) -> c_int {
    let mut strm = port::z_stream::default();
    (strm.zalloc, strm.zfree) = (None, None);
    // SAFETY: the caller guarantees the buffers; the stream is ended before it is dropped.
    unsafe {
        let (mut room, mut rest) = (core::mem::take(&mut *target_bytes), bytes);
        let code = deflateInit_(&mut strm, level, port::zlibVersion(), size_of::<port::z_stream>() as c_int);
        if code != Z_OK {
            return code;
        }
        (strm.next_out, strm.avail_out) = (target, 0);
        (strm.next_in, strm.avail_in) = (source, 0);
        let code = loop {
            let most = |bytes: uLong| bytes.min(u32::MAX.into()) as u32;
            if strm.avail_out == 0 {
                strm.avail_out = most(room);
                room -= uLong::from(strm.avail_out);
            }
            if strm.avail_in == 0 {
                strm.avail_in = most(rest);
                rest -= uLong::from(strm.avail_in);
            }
            let code = deflate(&mut strm, if rest != 0 { Z_NO_FLUSH } else { Z_FINISH });
            if code != Z_OK {
                break code;
            }
        };
        *target_bytes = strm.total_out;
        deflateEnd(&mut strm);
        if code == Z_STREAM_END { Z_OK } else { code }
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uncompress(
    target: *mut Bytef,
    target_bytes: *mut uLongf,
    source: *const Bytef,
    bytes: uLong,
) -> c_int {
    let mut bytes = bytes;
    // SAFETY: `source` is readable for `bytes` bytes, `target_bytes` is readable and writable, and `target` is writable for that
    // many bytes and apart from it, as zlib.h demands.
    unsafe { uncompress2(target, target_bytes, source, &mut bytes) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn uncompress2(
    target: *mut Bytef,
    target_bytes: *mut uLongf,
    source: *const Bytef,
    bytes: *mut uLong,
) -> c_int {
    versioned!(uncompress2, "1.2.9");
    // SAFETY: the caller guarantees buffers that are valid for the given lengths and do not overlap.
    fenced(Z_STREAM_ERROR, || unsafe {
        let (code, read, written) = inflate::unpack(source, *bytes as usize, target, *target_bytes as usize);
        (*bytes, *target_bytes) = (read as uLong, written as uLongf);
        counts::add(Row::Unpack, read as u64, written as u64, code != Z_OK);
        code
    })
}

/// Returns the bytes at a pointer that may be null if there are none.
unsafe fn slice<'a>(start: *const Bytef, bytes: c_ulong) -> &'a [u8] {
    // SAFETY: the caller guarantees `bytes` readable bytes, if there are any.
    if bytes == 0 { &[] } else { unsafe { core::slice::from_raw_parts(start, bytes as usize) } }
}
