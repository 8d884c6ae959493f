// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams that zlib-rs works on: from their first byte, or from where the fast path left them.
//!
//! Flow    [`open`]: zlib-rs does everything, the frame included. [`handover`]: what waits is packed up to a whole byte;
//!         zlib-rs goes on with a raw stream whose dictionary is the history; checksum and back of the frame are ours.
//! Order   what is pending goes out before what zlib-rs writes.

use super::fast;
use super::settings::Settings;
use super::state::{Deflate, Route, Status};
use crate::counts::{self, Row};
use crate::strm::{self, fail, with_inner};
use core::ffi::c_int;
use core::ptr;
use libz_rs_sys as port;
use libz_rs_sys::{
    Z_BUF_ERROR, Z_DEFLATED, Z_FINISH, Z_MEM_ERROR, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, z_stream,
};

/// Makes a state of zlib-rs.
unsafe fn init(state: &mut Deflate, strm: *mut z_stream, bits: c_int) -> c_int {
    let settings = state.settings;
    // zlib-rs needs more than zlib does. With buffers a step smaller it stays within what nginx sets aside for zlib-ng.
    let memory = if state.memory.is_foreign() { (settings.mem_level - 1).max(1) } else { settings.mem_level };
    let (version, bytes) = (port::zlibVersion(), size_of::<z_stream>() as c_int);
    // SAFETY: the stream is valid, and zlib-rs finds no state in it.
    unsafe {
        with_inner(strm, &mut state.inner, |strm| {
            let (level, strategy) = (settings.ported_level(), settings.strategy);
            port::deflateInit2_(strm, level, Z_DEFLATED, bits, memory, strategy, version, bytes)
        })
    }
}

/// Gives a stream that has not begun to zlib-rs.
///
/// # Safety
/// `strm` is the stream of `state`.
pub unsafe fn open(state: &mut Deflate, strm: *mut z_stream) -> c_int {
    let bits = state.settings.signed_bits();
    // SAFETY: the caller vouches for it.
    let code = unsafe { init(state, strm, bits) };
    if code == Z_OK {
        (state.route, state.framed) = (Route::Ported, false);
    }
    code
}

/// Gives a fast stream to zlib-rs.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are valid.
pub unsafe fn handover(state: &mut Deflate, strm: *mut z_stream) -> c_int {
    // SAFETY: the caller vouches for it. zlib-rs resets fields that go on: they are put back.
    unsafe {
        if !state.window.is_empty() && !fast::settle(state, strm) {
            return fail(strm, Z_MEM_ERROR);
        }
        let before = ptr::read(strm);
        let code = init(state, strm, -(state.settings.window_bits as c_int));
        let history = state.window.whole();
        if code == Z_OK && !history.is_empty() {
            with_inner(strm, &mut state.inner, |strm| {
                port::deflateSetDictionary(strm, history.as_ptr(), history.len() as u32)
            });
        }
        (*strm).total_in = before.total_in;
        (*strm).total_out = before.total_out;
        (*strm).data_type = before.data_type;
        (*strm).adler = before.adler;
        (*strm).msg = before.msg;
        if code == Z_OK {
            (state.route, state.framed) = (Route::Ported, true);
            state.window.free(&state.memory);
        }
        code
    }
}

/// Lets zlib-rs work on a stream whose frame is ours.
unsafe fn tracked(
    state: &mut Deflate,
    strm: *mut z_stream,
    call: impl FnOnce(*mut z_stream) -> c_int,
) -> c_int {
    // SAFETY: the program's input stays valid for the length of the call of the exported function.
    unsafe {
        let (input, adler) = (strm::input(strm), (*strm).adler);
        let code = with_inner(strm, &mut state.inner, call);
        let read = input.len() - (*strm).avail_in as usize;
        (*strm).adler = adler;
        if read != 0 {
            state.saw(&input[..read]);
            (*strm).adler = state.sum.into();
        }
        code
    }
}

/// `deflate` of a stream that is zlib-rs's.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are as the program gave them.
pub unsafe fn deflate(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> c_int {
    // SAFETY: the caller vouches for it; null is looked for before the buffers are used.
    unsafe {
        if !state.framed {
            let code = with_inner(strm, &mut state.inner, |strm| port::deflate(strm, flush));
            if code == Z_STREAM_END && state.status != Status::Finish {
                state.status = Status::Finish;
                counts::add(Row::PackPorted, (*strm).total_in, (*strm).total_out, false);
            }
            return code;
        }
        let finished = state.status == Status::Finish;
        if (*strm).next_out.is_null()
            || ((*strm).avail_in != 0 && (*strm).next_in.is_null())
            || (finished && flush != Z_FINISH)
        {
            return fail(strm, Z_STREAM_ERROR);
        }
        if (*strm).avail_out == 0 {
            return fail(strm, Z_BUF_ERROR);
        }
        let moved = !state.pending.is_empty();
        if !state.drain(strm) || (moved && (*strm).avail_out == 0 && !finished) {
            return Z_OK;
        }
        if finished {
            return if (*strm).avail_in != 0 { fail(strm, Z_BUF_ERROR) } else { Z_STREAM_END };
        }
        let code = tracked(state, strm, |strm| port::deflate(strm, flush));
        if code == Z_BUF_ERROR && moved {
            (*strm).msg = ptr::null_mut();
            return Z_OK;
        }
        if code != Z_STREAM_END {
            return code;
        }
        let (back, bytes) = state.settings.back(state.sum, state.total);
        if !state.pending.reserve(&state.memory, bytes) {
            return fail(strm, Z_MEM_ERROR);
        }
        state.pending.push(&back[..bytes]);
        state.status = Status::Finish;
        let waits = state.pending.bytes().len() as u64;
        counts::add(Row::PackPorted, state.total, (*strm).total_out + waits, false);
        if state.drain(strm) { Z_STREAM_END } else { Z_OK }
    }
}

/// `deflateParams` of a stream that is zlib-rs's.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are as the program gave them.
pub unsafe fn params(state: &mut Deflate, strm: *mut z_stream, settings: &Settings) -> c_int {
    let (level, strategy) = (settings.ported_level(), settings.strategy);
    // SAFETY: the caller vouches for it.
    unsafe {
        if !state.framed {
            return with_inner(strm, &mut state.inner, |strm| port::deflateParams(strm, level, strategy));
        }
        if state.status == Status::Finish {
            return Z_OK;
        }
        if !(*strm).next_out.is_null() && !state.drain(strm) {
            return Z_BUF_ERROR;
        }
        tracked(state, strm, |strm| port::deflateParams(strm, level, strategy))
    }
}

/// Ends zlib-rs's state, if there is one. Returns what zlib-rs says.
///
/// # Safety
/// `strm` is the stream of `state`.
pub unsafe fn end(state: &mut Deflate, strm: *mut z_stream) -> c_int {
    if state.inner.is_null() {
        return Z_OK;
    }
    // SAFETY: the caller vouches for it.
    let code = unsafe { with_inner(strm, &mut state.inner, |strm| port::deflateEnd(strm)) };
    state.inner = ptr::null_mut();
    code
}
