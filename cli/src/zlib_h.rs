// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Declarations of zlib.h for calls of a libz that was loaded at run time.

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;

pub const Z_NO_FLUSH: c_int = 0;
pub const Z_SYNC_FLUSH: c_int = 2;
pub const Z_FINISH: c_int = 4;
pub const Z_STREAM_END: c_int = 1;

pub type Alloc = unsafe extern "C" fn(*mut c_void, c_uint, c_uint) -> *mut c_void;
pub type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// Layout of zlib's z_stream.
#[repr(C)]
#[derive(Debug)]
pub struct Stream {
    pub next_in: *const u8,
    pub avail_in: c_uint,
    pub total_in: c_ulong,
    pub next_out: *mut u8,
    pub avail_out: c_uint,
    pub total_out: c_ulong,
    pub msg: *const c_char,
    pub state: *mut c_void,
    pub zalloc: Option<Alloc>,
    pub zfree: Option<Free>,
    pub opaque: *mut c_void,
    pub data_type: c_int,
    pub adler: c_ulong,
    pub reserved: c_ulong,
}

pub type DeflateInit2 =
    unsafe extern "C" fn(*mut Stream, c_int, c_int, c_int, c_int, c_int, *const c_char, c_int) -> c_int;
pub type InflateInit2 = unsafe extern "C" fn(*mut Stream, c_int, *const c_char, c_int) -> c_int;
pub type Run = unsafe extern "C" fn(*mut Stream, c_int) -> c_int;
pub type End = unsafe extern "C" fn(*mut Stream) -> c_int;

/// Makes a stream from `source` to `target` that uses zlib's own allocation.
pub fn stream(source: &[u8], target: &mut [u8]) -> Stream {
    Stream {
        next_in: source.as_ptr(),
        avail_in: source.len() as c_uint,
        total_in: 0,
        next_out: target.as_mut_ptr(),
        avail_out: target.len() as c_uint,
        total_out: 0,
        msg: ptr::null(),
        state: ptr::null_mut(),
        zalloc: None,
        zfree: None,
        opaque: ptr::null_mut(),
        data_type: 0,
        adler: 0,
        reserved: 0,
    }
}
