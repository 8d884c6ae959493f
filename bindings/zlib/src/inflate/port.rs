// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zlib-rs's inflate behind a fence: a panic inside it is a code, not the end of the host.
//!
//! Order   libz-rs-sys's functions of the same names are `extern "C"`, where a panic aborts the process: what decodes or searches is
//!         called here. After a panic the stream is broken: until it is reset, all calls but `inflateEnd` are refused.
//! Not here the panic that is known of zlib-rs 0.6.8, which nothing keeps away from it: a gzip stream after `inflateSync` whose checksum
//!         is asked for again by `inflateValidate`, where zlib says `incorrect data check`.

use super::state::Inflate;
use crate::export::fenced;
use crate::strm::{fail, with_inner};
use core::ffi::c_int;
use libz_rs_sys::{Z_STREAM_ERROR, z_stream};
use zlib_rs::InflateFlush;
use zlib_rs::inflate::{self, InflateStream};

/// What no call of zlib's returns.
const PANICKED: c_int = c_int::MIN;

/// `inflate`.
///
/// # Safety
/// `strm` is the stream of `state`, which has a state of zlib-rs; its buffers are valid.
pub unsafe fn inflate(state: &mut Inflate, strm: *mut z_stream, flush: c_int) -> c_int {
    let flush = InflateFlush::try_from(flush).unwrap_or_default();
    // SAFETY: the caller vouches for it.
    unsafe { on(state, strm, |stream| inflate::inflate(stream, flush) as c_int) }
}

/// `inflateSync`.
///
/// # Safety
/// As [`inflate`].
pub unsafe fn sync(state: &mut Inflate, strm: *mut z_stream) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        if (*strm).next_in.is_null() {
            // Null comes with no bytes, and zlib-rs makes a slice of it.
            (*strm).next_in = core::ptr::NonNull::dangling().as_ptr();
        }
        on(state, strm, |stream| inflate::sync(stream) as c_int)
    }
}

unsafe fn on(
    state: &mut Inflate,
    strm: *mut z_stream,
    call: impl FnOnce(&mut InflateStream<'_>) -> c_int,
) -> c_int {
    // SAFETY: the caller vouches for it; nothing unwinds out of the fence.
    unsafe {
        let code = with_inner(strm, &mut state.inner, |strm| match InflateStream::from_stream_mut(strm) {
            Some(stream) => fenced(PANICKED, || call(stream)),
            None => Z_STREAM_ERROR,
        });
        if code != PANICKED {
            return code;
        }
        state.broken = true;
        fail(strm, Z_STREAM_ERROR)
    }
}
