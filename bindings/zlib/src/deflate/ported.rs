// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams that zlib-rs works on: from their first byte, or from where the fast path left them.
//!
//! Flow    [`open`]: zlib-rs does everything, the frame included. [`handover`]: what waits is packed up to a whole byte;
//!         zlib-rs goes on with a raw stream whose dictionary is the history; checksum and back of the frame are ours.
//! Order   what is pending goes out before what zlib-rs writes. zlib-rs is never reset with output pending, and never given bits
//!         behind its last block that are no whole byte: it panics at both ([`port`] says why).

use super::fast;
use super::port::{self, on};
use super::settings::Settings;
use super::state::{Deflate, Route, Status};
use crate::counts::{self, Row};
use crate::strm::{self, fail, with_inner};
use core::ffi::c_int;
use core::ptr;
use libz_rs_sys::{
    Z_BUF_ERROR, Z_DEFLATED, Z_FINISH, Z_MEM_ERROR, Z_NO_FLUSH, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, z_stream,
};

/// zlib-rs needs more than zlib does. With buffers a step smaller it stays within what nginx sets aside for zlib-ng.
fn mem_level(state: &Deflate) -> c_int {
    let level = state.settings.mem_level;
    if state.memory.is_foreign() { (level - 1).max(1) } else { level }
}

/// Makes a state of zlib-rs.
unsafe fn init(state: &mut Deflate, strm: *mut z_stream, bits: c_int) -> c_int {
    let (settings, memory) = (state.settings, mem_level(state));
    let (version, bytes) = (libz_rs_sys::zlibVersion(), size_of::<z_stream>() as c_int);
    // SAFETY: the stream is valid, and zlib-rs finds no state in it.
    unsafe {
        with_inner(strm, &mut state.inner, |strm| {
            let (level, strategy) = (settings.ported_level(), settings.strategy);
            libz_rs_sys::deflateInit2_(strm, level, Z_DEFLATED, bits, memory, strategy, version, bytes)
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
            let code = with_inner(strm, &mut state.inner, |strm| port::set_dictionary(strm, history));
            state.broken = code == port::PANICKED;
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
        let code = on(state, strm, call);
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
            let code = on(state, strm, |strm| port::deflate(strm, flush));
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
            return on(state, strm, |strm| port::params(strm, level, strategy));
        }
        if state.status == Status::Finish {
            return Z_OK;
        }
        if !(*strm).next_out.is_null() && !state.drain(strm) {
            return Z_BUF_ERROR;
        }
        tracked(state, strm, |strm| port::params(strm, level, strategy))
    }
}

/// `deflatePrime` of a stream that is zlib-rs's, or that has ended.
///
/// # Safety
/// `strm` is the stream of `state`.
pub unsafe fn prime(state: &mut Deflate, strm: *mut z_stream, bits: c_int, value: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        if !has_ended(state, strm) {
            let (waiting, _) = pending(state, strm);
            if waiting as usize + 8 > 256 << mem_level(state) {
                return Z_BUF_ERROR;
            }
            return on(state, strm, |strm| port::prime(strm, bits, value));
        }
        // As in zlib: whole bytes go out before whatever follows, the rest never does.
        let (count, held) = state.late;
        let mut all = held | (value as u32 & ((1 << bits) - 1)) << count;
        let mut count = count + bits as u32;
        while count >= 8 {
            let byte = all as u8;
            if state.status == Status::Finish && (state.framed || state.route == Route::Fast) {
                let more = state.pending.end + 1;
                if !state.pending.reserve(&state.memory, more.next_multiple_of(512)) {
                    return fail(strm, Z_MEM_ERROR);
                }
                state.pending.push(&[byte]);
            } else {
                let code = on(state, strm, |strm| port::prime(strm, 8, byte.into()));
                if code != Z_OK {
                    return code;
                }
            }
            (all, count) = (all >> 8, count - 8);
        }
        state.late = (count, all);
        Z_OK
    }
}

/// Whether the last block is written.
unsafe fn has_ended(state: &mut Deflate, strm: *mut z_stream) -> bool {
    if state.status == Status::Finish || state.inner.is_null() {
        return state.status == Status::Finish;
    }
    // SAFETY: the stream is valid. zlib-rs looks at the flush, then for room, and then touches the stream: nothing happens.
    unsafe {
        let before = ptr::read(strm);
        ((*strm).avail_in, (*strm).avail_out) = (0, 0);
        (*strm).next_out = ptr::NonNull::dangling().as_ptr();
        let code = on(state, strm, |strm| port::deflate(strm, Z_NO_FLUSH));
        ((*strm).next_out, (*strm).avail_in, (*strm).avail_out) =
            (before.next_out, before.avail_in, before.avail_out);
        (*strm).msg = before.msg;
        code == Z_STREAM_ERROR
    }
}

/// What zlib-rs has not given out: bytes, and bits behind them.
///
/// # Safety
/// `strm` is the stream of `state`, which is zlib-rs's.
pub unsafe fn pending(state: &mut Deflate, strm: *mut z_stream) -> (u32, c_int) {
    let (mut bytes, mut bits) = (0, 0);
    // SAFETY: the caller vouches for it.
    unsafe {
        with_inner(strm, &mut state.inner, |strm| libz_rs_sys::deflatePending(strm, &mut bytes, &mut bits));
    }
    (bytes, bits)
}

/// Throws away what zlib-rs has not given out, before a reset. `false`: it panicked.
///
/// # Safety
/// `strm` is the stream of `state`, which is zlib-rs's.
pub unsafe fn drop_pending(state: &mut Deflate, strm: *mut z_stream) -> bool {
    // SAFETY: the caller vouches for it. The program's buffers are hidden from zlib-rs, and put back.
    unsafe {
        let before = ptr::read(strm);
        let mut sink = [0u8; 1024];
        loop {
            let (bytes, _) = pending(state, strm);
            if bytes == 0 || state.broken {
                break;
            }
            // No more room than what waits takes: zlib-rs comes to nothing else in this call.
            ((*strm).next_out, (*strm).avail_out) = (sink.as_mut_ptr(), bytes.min(sink.len() as u32));
            (*strm).avail_in = 0;
            on(state, strm, |strm| port::deflate(strm, Z_FINISH));
        }
        ((*strm).next_in, (*strm).avail_in) = (before.next_in, before.avail_in);
        ((*strm).next_out, (*strm).avail_out) = (before.next_out, before.avail_out);
        !state.broken
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
    let code = unsafe { with_inner(strm, &mut state.inner, |strm| libz_rs_sys::deflateEnd(strm)) };
    state.inner = ptr::null_mut();
    code
}
