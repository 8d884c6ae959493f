// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libz's inflate functions.
//!
//! Flow    init ──▶ [`state::Inflate`] ──first `inflate`, with `Z_FINISH`──▶ [`whole`]: the kernels' unpacker
//!                                     ──all else, or whatever the unpacker refuses──▶ zlib-rs, from the first byte
//!                                     ──anything but bytes asked for later──▶ zlib-rs ([`whole::take_over`])
//!         What may panic inside zlib-rs is called through [`port`].
//! Order   the unpacker's verdict counts only when it is good, and good for zlib as well ([`strict`]): errors and their texts are
//!         zlib-rs's. A reset gives the next message to the unpacker again, unless zlib-rs's state knows something that zlib
//!         keeps over a reset: a window's size taken from a frame, a frame or checksums that are not expected any more.

mod back;
mod port;
mod state;
mod strict;
mod whole;

pub use strict::is_plain;

use crate::counts::{self, Row};
use crate::export::fenced;
use crate::memory::{Memory, fill_in};
use crate::strm::{fail, version_fits, with_inner};
use core::ffi::{c_char, c_int, c_long, c_ulong};
use core::ptr;
use libz_rs_sys::{
    Bytef, Z_BLOCK, Z_DATA_ERROR, Z_FINISH, Z_MEM_ERROR, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, Z_TREES,
    Z_VERSION_ERROR, gz_headerp, uInt, z_stream, z_streamp,
};
use state::{Inflate, Route, bits_are_valid};

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateInit_(strm: z_streamp, version: *const c_char, stream_size: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { inflateInit2_(strm, 15, version, stream_size) }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateInit2_(
    strm: z_streamp,
    window_bits: c_int,
    version: *const c_char,
    stream_size: c_int,
) -> c_int {
    // SAFETY: as the caller promises: null or valid.
    unsafe {
        if !version_fits(version, stream_size) {
            return Z_VERSION_ERROR;
        }
        if strm.is_null() {
            return Z_STREAM_ERROR;
        }
        (*strm).msg = ptr::null_mut();
        fill_in(strm);
        if !bits_are_valid(window_bits) {
            (*strm).state = ptr::null_mut();
            return Z_STREAM_ERROR;
        }
        let memory = Memory::of(strm);
        match memory.keep(Inflate::new(strm, memory, window_bits)) {
            Ok(state) => {
                (*strm).state = state.as_ptr().cast();
                begin(strm, &*state.as_ptr());
                Z_OK
            }
            Err(_) => {
                (*strm).state = ptr::null_mut();
                Z_MEM_ERROR
            }
        }
    }
}

/// The fields that a reset sets.
unsafe fn begin(strm: z_streamp, state: &Inflate) {
    // SAFETY: the stream is valid.
    unsafe {
        (*strm).msg = ptr::null_mut();
        (*strm).total_in = 0;
        (*strm).total_out = 0;
        if let Some(sum) = state.first_sum() {
            (*strm).adler = sum;
        }
    }
}

/// Makes the stream zlib-rs's, from its first byte.
unsafe fn open(state: &mut Inflate, strm: z_streamp) -> c_int {
    if state.inner.is_null() {
        let (bits, version, bytes) = (state.bits, libz_rs_sys::zlibVersion(), size_of::<z_stream>() as c_int);
        // SAFETY: the stream is valid, and zlib-rs finds no state in it. The totals of a stream that goes on are kept.
        unsafe {
            let before = ((*strm).total_in, (*strm).total_out, (*strm).adler);
            let code = with_inner(strm, &mut state.inner, |strm| {
                libz_rs_sys::inflateInit2_(strm, bits, version, bytes)
            });
            ((*strm).total_in, (*strm).total_out, (*strm).adler) = before;
            if code != Z_OK {
                return fail(strm, code);
            }
        }
    }
    state.route = Route::Ported;
    Z_OK
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflate(strm: z_streamp, flush: c_int) -> c_int {
    // SAFETY: as the caller promises: null, or valid with valid buffers.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::of(strm) else { return Z_STREAM_ERROR };
        if (*strm).next_out.is_null() || ((*strm).next_in.is_null() && (*strm).avail_in != 0) {
            return Z_STREAM_ERROR;
        }
        match state.route {
            Route::Fresh => {
                if flush == Z_FINISH
                    && let Some(code) = whole::try_all(state, strm)
                {
                    return code;
                }
                let code = open(state, strm);
                if code != Z_OK {
                    return code;
                }
            }
            Route::Served if flush == Z_BLOCK || flush == Z_TREES => {
                let code = whole::take_over(state, strm);
                if code != Z_OK {
                    return fail(strm, code);
                }
            }
            Route::Served => return whole::serve(state, strm, flush),
            Route::Done => return Z_STREAM_END,
            Route::Ported if state.stopped => return Z_STREAM_END,
            Route::Ported => {}
        }
        // zlib-rs counts anew after a sync and after a takeover, and has a sum where zlib has none.
        let (total, room, sum) = ((*strm).total_out, (*strm).avail_out, (*strm).adler);
        let code = port::inflate(state, strm, flush);
        (*strm).total_out = total.wrapping_add((room - (*strm).avail_out).into());
        if state.is_raw() || state.unchecked {
            (*strm).adler = sum;
        }
        if !state.counted && (code == Z_STREAM_END || code == Z_DATA_ERROR) {
            state.counted = true;
            counts::add(Row::UnpackPorted, (*strm).total_in, (*strm).total_out, code == Z_DATA_ERROR);
        }
        code
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateEnd(strm: z_streamp) -> c_int {
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::even_broken(strm) else { return Z_STREAM_ERROR };
        end_inner(state, strm);
        let memory = state.memory;
        state.free();
        memory.drop_kept(ptr::NonNull::from(state));
        (*strm).state = ptr::null_mut();
        Z_OK
    })
}

unsafe fn end_inner(state: &mut Inflate, strm: z_streamp) {
    if !state.inner.is_null() {
        // SAFETY: the stream is valid, and the inner state is of zlib-rs.
        unsafe { with_inner(strm, &mut state.inner, |strm| libz_rs_sys::inflateEnd(strm)) };
        state.inner = ptr::null_mut();
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateReset(strm: z_streamp) -> c_int {
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::even_broken(strm) else { return Z_STREAM_ERROR };
        if state.route == Route::Ported && !state.broken && (state.altered || state.learns_window()) {
            (state.counted, state.stopped) = (false, false);
            return with_inner(strm, &mut state.inner, |strm| libz_rs_sys::inflateReset(strm));
        }
        let bits = state.bits;
        reset(state, strm, bits)
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateReset2(strm: z_streamp, window_bits: c_int) -> c_int {
    versioned!(inflateReset2, "1.2.3.4");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::even_broken(strm) else { return Z_STREAM_ERROR };
        if bits_are_valid(window_bits) { reset(state, strm, window_bits) } else { Z_STREAM_ERROR }
    })
}

unsafe fn reset(state: &mut Inflate, strm: z_streamp, bits: c_int) -> c_int {
    // SAFETY: the stream is valid, and the inner state is of zlib-rs.
    unsafe {
        if !state.inner.is_null() {
            let code = with_inner(strm, &mut state.inner, |strm| libz_rs_sys::inflateReset2(strm, bits));
            if code != Z_OK {
                return code;
            }
        }
        state.bits = bits;
        state.restart();
        begin(strm, state);
        Z_OK
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateResetKeep(strm: z_streamp) -> c_int {
    versioned!(inflateResetKeep, "1.2.5.2");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::of(strm) else { return Z_STREAM_ERROR };
        if state.route == Route::Ported {
            (state.counted, state.stopped) = (false, false);
            return with_inner(strm, &mut state.inner, |strm| libz_rs_sys::inflateResetKeep(strm));
        }
        let bits = state.bits;
        reset(state, strm, bits)
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateCopy(target: z_streamp, source: z_streamp) -> c_int {
    versioned!(inflateCopy, "1.2.0");
    // SAFETY: as the caller promises: two streams, the first one not initialized.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::of(source) else { return Z_STREAM_ERROR };
        if target.is_null() || ptr::eq(target, source) {
            return Z_STREAM_ERROR;
        }
        let Some(mut copy) = state.copy(target) else { return Z_MEM_ERROR };
        ptr::copy_nonoverlapping(source, target, 1);
        (*target).state = ptr::null_mut();
        if !state.inner.is_null() {
            let (mut from, mut to): (z_stream, z_stream) = (ptr::read(source), ptr::read(source));
            from.state = state.inner;
            // zlib-rs asks for buffers here, zlib does not.
            (from.next_out, from.avail_in) = (ptr::NonNull::dangling().as_ptr(), 0);
            let code = libz_rs_sys::inflateCopy(&mut to, &from);
            if code != Z_OK {
                copy.free();
                return code;
            }
            copy.inner = to.state;
        }
        let memory = copy.memory;
        match memory.keep(copy) {
            Ok(copy) => {
                (*target).state = copy.as_ptr().cast();
                Z_OK
            }
            Err(mut copy) => {
                end_inner(&mut copy, target);
                copy.free();
                Z_MEM_ERROR
            }
        }
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSync(strm: z_streamp) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let code = asked(strm, None, |state| port::sync(state, strm));
        if let (Z_OK | Z_DATA_ERROR, Some(state)) = (code, Inflate::of(strm)) {
            state.stopped = false;
            state.altered |= code == Z_OK;
            state.unchecked |= code == Z_OK;
        }
        code
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSyncPoint(strm: z_streamp) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { ported(strm, Some(0), |strm| libz_rs_sys::inflateSyncPoint(strm)) }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSetDictionary(
    strm: z_streamp,
    dictionary: *const Bytef,
    bytes: uInt,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let framed = Inflate::of(strm).is_some_and(|state| !state.is_raw());
        ported(strm, framed.then_some(Z_STREAM_ERROR), |strm| {
            libz_rs_sys::inflateSetDictionary(strm, dictionary, bytes)
        })
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateGetDictionary(
    strm: z_streamp,
    dictionary: *mut Bytef,
    bytes: *mut uInt,
) -> c_int {
    versioned!(inflateGetDictionary, "1.2.7.1");
    // SAFETY: as the caller promises: each pointer is null or valid, the dictionary for 32 KiB.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::of(strm) else { return Z_STREAM_ERROR };
        if state.route == Route::Ported {
            let mut held = 0;
            let code = with_inner(strm, &mut state.inner, |strm| {
                libz_rs_sys::inflateGetDictionary(strm, dictionary, &mut held)
            });
            // zlib-rs's window has 32 KiB, whatever was asked for.
            let most = held.min(state.window_bytes());
            if !dictionary.is_null() {
                ptr::copy(dictionary.add((held - most) as usize), dictionary, most as usize);
            }
            if !bytes.is_null() {
                *bytes = most;
            }
            return code;
        }
        let delivered = &state.served.whole()[..state.served.at];
        let last = &delivered[delivered.len().saturating_sub(32768)..];
        if !dictionary.is_null() {
            ptr::copy_nonoverlapping(last.as_ptr(), dictionary, last.len());
        }
        if !bytes.is_null() {
            *bytes = last.len() as uInt;
        }
        Z_OK
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateGetHeader(strm: z_streamp, head: gz_headerp) -> c_int {
    versioned!(inflateGetHeader, "1.2.2");
    // SAFETY: as the caller promises.
    unsafe {
        let Some(state) = Inflate::of(strm) else { return Z_STREAM_ERROR };
        if !state.welcomes().1 {
            return Z_STREAM_ERROR;
        }
        ported(strm, None, |strm| libz_rs_sys::inflateGetHeader(strm, head))
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflatePrime(strm: z_streamp, bits: c_int, value: c_int) -> c_int {
    versioned!(inflatePrime, "1.2.2.4");
    // SAFETY: as the caller promises.
    unsafe { ported(strm, None, |strm| libz_rs_sys::inflatePrime(strm, bits, value)) }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateUndermine(strm: z_streamp, _subvert: c_int) -> c_int {
    versioned!(inflateUndermine, "1.2.3.3");
    // SAFETY: as the caller promises. zlib is built so that it refuses.
    if unsafe { Inflate::of(strm) }.is_some() { Z_DATA_ERROR } else { Z_STREAM_ERROR }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateValidate(strm: z_streamp, check: c_int) -> c_int {
    versioned!(inflateValidate, "1.2.9");
    // SAFETY: as the caller promises.
    unsafe {
        if check != 0 && Inflate::of(strm).is_some_and(|state| !state.altered) {
            return Z_OK; // nobody said otherwise before
        }
        let code = ported(strm, None, |strm| libz_rs_sys::inflateValidate(strm, check));
        if let (Z_OK, Some(state)) = (code, Inflate::of(strm)) {
            (state.altered, state.unchecked) = (true, check == 0);
        }
        code
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateMark(strm: z_streamp) -> c_long {
    versioned!(inflateMark, "1.2.3.4");
    // SAFETY: as the caller promises. Between blocks zlib says −1 back, and no bytes to copy.
    unsafe { ported(strm, Some(-65536), |strm| libz_rs_sys::inflateMark(strm)) }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateCodesUsed(strm: z_streamp) -> c_ulong {
    versioned!(inflateCodesUsed, "1.2.9");
    // SAFETY: as the caller promises.
    unsafe { ported(strm, Some(0), |strm| libz_rs_sys::inflateCodesUsed(strm)) }
}

/// Lets zlib-rs answer, for streams of which it knew nothing so far as well. `outside`: what it would say of a stream that has not
/// begun or has ended.
unsafe fn ported<R: FromError>(strm: z_streamp, outside: Option<R>, call: impl FnOnce(z_streamp) -> R) -> R {
    // SAFETY: as the caller of the exported function promises.
    unsafe { asked(strm, outside, |state| with_inner(strm, &mut state.inner, call)) }
}

/// [`ported`] for a call that brings zlib-rs's state into place itself.
unsafe fn asked<R: FromError>(
    strm: z_streamp,
    outside: Option<R>,
    call: impl FnOnce(&mut Inflate) -> R,
) -> R {
    // SAFETY: as the caller of the exported function promises.
    fenced(R::from(Z_STREAM_ERROR), || unsafe {
        let Some(state) = Inflate::of(strm) else { return R::from(Z_STREAM_ERROR) };
        let code = match (state.route, outside) {
            (Route::Ported, _) => Z_OK,
            (Route::Fresh | Route::Done, Some(answer)) => return answer,
            (Route::Fresh, None) => open(state, strm),
            (Route::Served | Route::Done, _) => whole::take_over(state, strm),
        };
        if code != Z_OK {
            return R::from(code);
        }
        call(state)
    })
}

/// How each kind of result says that the stream is not ours.
trait FromError {
    fn from(code: c_int) -> Self;
}

impl FromError for c_int {
    fn from(code: c_int) -> c_int {
        code
    }
}

impl FromError for c_long {
    fn from(_: c_int) -> c_long {
        -(1 << 16)
    }
}

impl FromError for c_ulong {
    fn from(_: c_int) -> c_ulong {
        c_ulong::MAX
    }
}
