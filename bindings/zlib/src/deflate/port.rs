// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zlib-rs's deflate behind a fence: a panic inside it is a code, not the end of the host.
//!
//! Flow    [`on`] puts zlib-rs's state into the stream ──▶ a call of this file, `zlib_rs::deflate` under `catch_unwind` ──▶
//!         [`PANICKED`] becomes `Z_STREAM_ERROR`, and the stream is broken: until it is reset, all calls but `deflateEnd` are refused
//! Order   libz-rs-sys's functions of the same names are `extern "C"`, where a panic aborts the process: whatever packs, or puts bits
//!         into the pending buffer, is called here. Those that only look at fields or copy the state stay libz-rs-sys's.
//! Not here two panics of zlib-rs 0.6.8 that are kept away from it instead, so that what comes out is zlib's: a reset leaves
//!         the pending buffer's read position where it was, so the buffer is smaller afterwards (`drop_pending` in `ported`); bits put
//!         behind the last block fail an assertion (`prime` in `ported`).

use super::state::Deflate;
use crate::export::fenced;
use crate::strm::{fail, with_inner};
use core::ffi::c_int;
use libz_rs_sys::{Z_STREAM_ERROR, z_stream};
use zlib_rs::deflate::{self, DeflateStream};
use zlib_rs::{DeflateFlush, Strategy};

/// What no call of zlib's returns.
pub const PANICKED: c_int = c_int::MIN;

/// Calls zlib-rs on the stream's inner state. After a panic the stream is broken.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are valid.
pub unsafe fn on(
    state: &mut Deflate,
    strm: *mut z_stream,
    call: impl FnOnce(*mut z_stream) -> c_int,
) -> c_int {
    // SAFETY: the caller vouches for it; the calls of this file do not unwind.
    unsafe {
        let code = with_inner(strm, &mut state.inner, call);
        if code != PANICKED {
            return code;
        }
        state.broken = true;
        fail(strm, Z_STREAM_ERROR)
    }
}

/// `deflate`.
///
/// # Safety
/// `strm` is null, or a stream with a state of zlib-rs and valid buffers.
pub unsafe fn deflate(strm: *mut z_stream, flush: c_int) -> c_int {
    let Ok(flush) = DeflateFlush::try_from(flush) else { return Z_STREAM_ERROR };
    // SAFETY: the caller vouches for it.
    unsafe { behind(strm, |stream| deflate::deflate(stream, flush) as c_int) }
}

/// `deflateParams`.
///
/// # Safety
/// As [`deflate`].
pub unsafe fn params(strm: *mut z_stream, level: c_int, strategy: c_int) -> c_int {
    let Ok(strategy) = Strategy::try_from(strategy) else { return Z_STREAM_ERROR };
    // SAFETY: the caller vouches for it.
    unsafe { behind(strm, |stream| deflate::params(stream, level, strategy) as c_int) }
}

/// `deflatePrime`.
///
/// # Safety
/// As [`deflate`].
pub unsafe fn prime(strm: *mut z_stream, bits: c_int, value: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { behind(strm, |stream| deflate::prime(stream, bits, value) as c_int) }
}

/// `deflateSetDictionary`.
///
/// # Safety
/// As [`deflate`].
pub unsafe fn set_dictionary(strm: *mut z_stream, dictionary: &[u8]) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { behind(strm, |stream| deflate::set_dictionary(stream, dictionary) as c_int) }
}

unsafe fn behind(strm: *mut z_stream, call: impl FnOnce(&mut DeflateStream<'_>) -> c_int) -> c_int {
    // SAFETY: the caller vouches for it: null, or a stream that zlib-rs initialized.
    let Some(stream) = (unsafe { DeflateStream::from_stream_mut(strm) }) else { return Z_STREAM_ERROR };
    fenced(PANICKED, || call(stream))
}

#[cfg(test)]
mod tests {
    use super::super::{deflateCopy, deflateEnd, deflateInit2_, deflateParams, deflateReset};
    use super::*;
    use core::ptr;
    use libz_rs_sys::{Z_FINISH, Z_OK, Z_PARTIAL_FLUSH, Z_STREAM_END, Z_SYNC_FLUSH};

    /// Calls with as much input, and room.
    fn exported(strm: &mut z_stream, input: &[u8], room: usize, flush: c_int) -> c_int {
        let mut target = vec![0; room];
        (strm.next_in, strm.avail_in) = (input.as_ptr(), input.len() as u32);
        (strm.next_out, strm.avail_out) = (target.as_mut_ptr(), room as u32);
        // SAFETY: the stream is initialized, its buffers are set.
        unsafe { super::super::deflate(strm, flush) }
    }

    #[test]
    fn a_panic_breaks_the_stream_and_nothing_else() {
        let mut strm = z_stream::default();
        (strm.zalloc, strm.zfree) = (None, None);
        let bytes = size_of::<z_stream>() as c_int;
        let message = b"<p class=\"left\">a page of memory, the page of a copy</p>\n".repeat(300);
        // SAFETY: the stream is initialized first; its buffers are set by whoever needs them.
        unsafe {
            assert_eq!(deflateInit2_(&mut strm, 5, 8, -9, 2, 2, c"1.2.13".as_ptr(), bytes), Z_OK);
            assert_eq!(exported(&mut strm, &message[..16808], 1324, Z_SYNC_FLUSH), Z_OK);
            // zlib-rs's own reset, with output pending: its buffer is nearly used up from the start.
            let state = Deflate::of(&mut strm).expect("ours");
            assert_eq!(with_inner(&mut strm, &mut state.inner, |strm| libz_rs_sys::deflateReset(strm)), Z_OK);
            assert_eq!(deflateParams(&mut strm, 0, 4), Z_OK);
            // When this is no error any more, zlib-rs is mended and `drop_pending` not needed.
            assert_eq!(exported(&mut strm, &message[..4030], 327, Z_PARTIAL_FLUSH), Z_STREAM_ERROR);
            assert!(!strm.msg.is_null());
            assert_eq!(exported(&mut strm, b"", 9999, Z_FINISH), Z_STREAM_ERROR);
            let mut copy = z_stream::default();
            assert_eq!(deflateCopy(&mut copy, &mut strm), Z_STREAM_ERROR);
            assert_eq!(deflateReset(&mut strm), Z_OK);
            assert_eq!(exported(&mut strm, &message, message.len() + 100, Z_FINISH), Z_STREAM_END);
            assert_eq!(deflateEnd(&mut strm), Z_OK);
        }
        assert!(ptr::eq(strm.state, ptr::null()));
    }
}
