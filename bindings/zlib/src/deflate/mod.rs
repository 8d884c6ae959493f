// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libz's deflate functions.
//!
//! Flow    init ──▶ [`state::Deflate`], route open ──first deflate──▶ route fast ([`fast`]) or ported ([`ported`]: zlib-rs).
//!         Dictionaries, gzip headers and primed bits make it ported at once. A fast stream that is asked for something
//!         that only zlib-rs does ends its bits at a whole byte and goes on ported ([`ported::handover`]).
//!         What may panic inside zlib-rs is called through [`port`].
//! Order   arguments are checked as zlib checks them, before anything changes.
//! Owner   see `memory`: all that a stream keeps is its program's.

mod fast;
mod port;
mod ported;
mod settings;
mod state;

use crate::export::fenced;
use crate::memory::Memory;
use crate::strm::{self, begin, fail, version_fits};
use core::ffi::{c_char, c_int, c_uint, c_ulong};
use core::ptr;
use libz_rs_sys::{
    Bytef, Z_BLOCK, Z_BUF_ERROR, Z_DATA_ERROR, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_MEM_ERROR, Z_OK,
    Z_STREAM_ERROR, Z_SYNC_FLUSH, Z_VERSION_ERROR, gz_headerp, uInt, z_stream, z_streamp,
};
use memlift_kernels::deflate::adler32;
use settings::{Settings, Wrap};
use state::{Deflate, Route, Status};

pub use settings::compress_bound;

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateInit_(
    strm: z_streamp,
    level: c_int,
    version: *const c_char,
    stream_size: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { deflateInit2_(strm, level, Z_DEFLATED, 15, 8, Z_DEFAULT_STRATEGY, version, stream_size) }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateInit2_(
    strm: z_streamp,
    level: c_int,
    method: c_int,
    window_bits: c_int,
    mem_level: c_int,
    strategy: c_int,
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
        let Some(settings) = Settings::new(level, method, window_bits, mem_level, strategy) else {
            return Z_STREAM_ERROR;
        };
        begin(strm);
        let memory = Memory::of(strm);
        match memory.keep(Deflate::new(strm, memory, settings)) {
            Ok(state) => {
                (*strm).state = state.as_ptr().cast();
                (*strm).adler = settings.wrap.first_sum();
                Z_OK
            }
            Err(_) => fail(strm, Z_MEM_ERROR),
        }
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflate(strm: z_streamp, flush: c_int) -> c_int {
    // SAFETY: as the caller promises: null, or valid with valid buffers.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if !(0..=Z_BLOCK).contains(&flush) {
            return Z_STREAM_ERROR;
        }
        if state.route == Route::Open && (!state.settings.is_fast() || !fast::takes(flush)) {
            let code = ported::open(state, strm);
            if code != Z_OK {
                return code;
            }
        }
        if state.route == Route::Fast && !fast::takes(flush) {
            if fast::refuses(state, strm, flush) {
                return fail(strm, Z_BUF_ERROR);
            }
            let code = ported::handover(state, strm);
            if code != Z_OK {
                return code;
            }
        }
        match state.route {
            Route::Ported => ported::deflate(state, strm, flush),
            Route::Open | Route::Fast => fast::deflate(state, strm, flush),
        }
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateEnd(strm: z_streamp) -> c_int {
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::even_broken(strm) else { return Z_STREAM_ERROR };
        let inner = ported::end(state, strm);
        let busy = match state.route {
            Route::Ported if !state.framed => inner == Z_DATA_ERROR,
            _ => state.status == Status::Busy,
        };
        let memory = state.memory;
        state.free();
        memory.drop_kept(ptr::NonNull::from(state));
        (*strm).state = ptr::null_mut();
        if busy { Z_DATA_ERROR } else { Z_OK }
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateReset(strm: z_streamp) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { reset(strm, false) }
}

/// As in zlib.h. A fast stream keeps nothing that a reset would drop.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateResetKeep(strm: z_streamp) -> c_int {
    versioned!(deflateResetKeep, "1.2.5.2");
    // SAFETY: as the caller promises.
    unsafe { reset(strm, true) }
}

unsafe fn reset(strm: z_streamp, keep: bool) -> c_int {
    // SAFETY: as the caller of the exported functions promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::even_broken(strm) else { return Z_STREAM_ERROR };
        let stays = state.route == Route::Ported && !state.framed && (keep || !state.settings.is_fast());
        if stays && !state.broken && ported::drop_pending(state, strm) {
            (state.status, state.late) = (Status::Init, (0, 0));
            return strm::with_inner(strm, &mut state.inner, |strm| match keep {
                true => libz_rs_sys::deflateResetKeep(strm),
                false => libz_rs_sys::deflateReset(strm),
            });
        }
        ported::end(state, strm);
        state.restart();
        begin(strm);
        (*strm).adler = state.settings.wrap.first_sum();
        Z_OK
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateParams(strm: z_streamp, level: c_int, strategy: c_int) -> c_int {
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let Some(settings) = state.settings.with(level, strategy) else { return Z_STREAM_ERROR };
        match state.route {
            Route::Open => {}
            Route::Ported => {
                let code = ported::params(state, strm, &settings);
                if code != Z_OK {
                    return code;
                }
            }
            Route::Fast if settings == state.settings || state.status == Status::Finish => {}
            Route::Fast if settings.is_fast() && settings.is_lazy() == state.settings.is_lazy() => {}
            Route::Fast => {
                // What was given so far is packed the old way, as zlib does.
                if fast::deflate(state, strm, Z_SYNC_FLUSH) == Z_STREAM_ERROR {
                    return Z_STREAM_ERROR;
                }
                if (*strm).avail_in != 0 || !state.window.is_empty() {
                    return Z_BUF_ERROR;
                }
                let before = core::mem::replace(&mut state.settings, settings);
                if !settings.is_fast() {
                    let code = ported::handover(state, strm);
                    if code != Z_OK {
                        state.settings = before;
                        return code;
                    }
                }
            }
        }
        state.settings = settings;
        Z_OK
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateSetDictionary(
    strm: z_streamp,
    dictionary: *const Bytef,
    bytes: uInt,
) -> c_int {
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let wrap = state.settings.wrap;
        if dictionary.is_null() || wrap == Wrap::Gzip {
            return Z_STREAM_ERROR;
        }
        let code = match state.route {
            Route::Open => ported::open(state, strm),
            Route::Fast if wrap == Wrap::Zlib || !state.window.is_empty() => Z_STREAM_ERROR,
            Route::Fast => ported::handover(state, strm),
            Route::Ported if state.framed && wrap == Wrap::Zlib => Z_STREAM_ERROR,
            Route::Ported => Z_OK,
        };
        if code != Z_OK {
            return code;
        }
        // zlib takes the last window of it, and the checksum of all of it.
        let whole = core::slice::from_raw_parts(dictionary, bytes as usize);
        let last = &whole[whole.len().saturating_sub(state.settings.window_bytes())..];
        let first_sum = (*strm).adler;
        let code = port::on(state, strm, |strm| port::set_dictionary(strm, last));
        if code == Z_OK && wrap == Wrap::Zlib {
            (*strm).adler = adler32(first_sum as u32, whole).into();
        }
        code
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateGetDictionary(
    strm: z_streamp,
    dictionary: *mut Bytef,
    bytes: *mut uInt,
) -> c_int {
    versioned!(deflateGetDictionary, "1.2.9");
    // SAFETY: as the caller promises: each pointer is null or valid, the dictionary for 32 KiB.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if state.route == Route::Ported {
            return strm::with_inner(strm, &mut state.inner, |strm| {
                libz_rs_sys::deflateGetDictionary(strm, dictionary, bytes)
            });
        }
        let whole = state.window.whole();
        let last = &whole[whole.len().saturating_sub(state.settings.window_bytes())..];
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
pub unsafe extern "C" fn deflateSetHeader(strm: z_streamp, head: gz_headerp) -> c_int {
    versioned!(deflateSetHeader, "1.2.2");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if state.settings.wrap != Wrap::Gzip {
            return Z_STREAM_ERROR;
        }
        if state.route == Route::Open && !head.is_null() {
            let code = ported::open(state, strm);
            if code != Z_OK {
                return code;
            }
        }
        match state.route {
            Route::Ported if !state.framed => {
                strm::with_inner(strm, &mut state.inner, |strm| libz_rs_sys::deflateSetHeader(strm, head))
            }
            _ => Z_OK, // the front is written already, or is the one without a header
        }
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflatePrime(strm: z_streamp, bits: c_int, value: c_int) -> c_int {
    versioned!(deflatePrime, "1.2.0.8");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if !(0..=16).contains(&bits) {
            return Z_BUF_ERROR;
        }
        let code = match state.route {
            Route::Open => ported::open(state, strm),
            Route::Fast if state.status != Status::Finish => ported::handover(state, strm),
            Route::Fast | Route::Ported => Z_OK,
        };
        if code != Z_OK {
            return code;
        }
        ported::prime(state, strm, bits, value)
    })
}

/// As in zlib.h. A fast stream has no bits in hand between two calls.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflatePending(strm: z_streamp, pending: *mut c_uint, bits: *mut c_int) -> c_int {
    versioned!(deflatePending, "1.2.5.1");
    // SAFETY: as the caller promises: each pointer is null or valid.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let (inner_pending, inner_bits) = match state.route {
            Route::Ported => ported::pending(state, strm),
            Route::Open | Route::Fast => (0, 0),
        };
        if !pending.is_null() {
            *pending = inner_pending + state.pending.bytes().len() as c_uint;
        }
        if !bits.is_null() {
            *bits = inner_bits + state.late.0 as c_int;
        }
        Z_OK
    })
}

/// As in zlib.h. The fast path has nothing to tune.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateTune(
    strm: z_streamp,
    good_length: c_int,
    max_lazy: c_int,
    nice_length: c_int,
    max_chain: c_int,
) -> c_int {
    versioned!(deflateTune, "1.2.2.3");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if state.route != Route::Ported {
            return Z_OK;
        }
        strm::with_inner(strm, &mut state.inner, |strm| {
            libz_rs_sys::deflateTune(strm, good_length, max_lazy, nice_length, max_chain)
        })
    })
}

/// As in zlib.h: what one `deflate` with `Z_FINISH` never exceeds, whichever way it goes.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateBound(strm: z_streamp, bytes: c_ulong) -> c_ulong {
    versioned!(deflateBound, "1.2.0");
    // SAFETY: as the caller promises.
    fenced(c_ulong::MAX, || unsafe {
        let Some(state) = Deflate::of(strm) else { return settings::any_bound(bytes) };
        match state.route {
            Route::Ported => {
                let inner =
                    strm::with_inner(strm, &mut state.inner, |strm| libz_rs_sys::deflateBound(strm, bytes));
                let ours = (state.pending.bytes().len() + 18) as c_ulong;
                inner.saturating_add(if state.framed { ours } else { 0 })
            }
            Route::Open if !state.settings.is_fast() => settings::any_bound(bytes),
            Route::Open | Route::Fast => {
                let kept = (state.pending.bytes().len() + state.window.bytes().len()) as c_ulong;
                state.settings.bound(bytes.saturating_add(kept))
            }
        }
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateCopy(target: z_streamp, source: z_streamp) -> c_int {
    // SAFETY: as the caller promises: two streams, the first one not initialized.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(source) else { return Z_STREAM_ERROR };
        if target.is_null() || ptr::eq(target, source) {
            return Z_STREAM_ERROR;
        }
        ptr::copy_nonoverlapping(source, target, 1);
        (*target).state = ptr::null_mut();
        let Some(mut copy) = state.copy(target) else { return Z_MEM_ERROR };
        if !state.inner.is_null() {
            let (mut from, mut to): (z_stream, z_stream) = (ptr::read(source), ptr::read(source));
            from.state = state.inner;
            let code = libz_rs_sys::deflateCopy(&mut to, &mut from);
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
                ported::end(&mut copy, target);
                copy.free();
                Z_MEM_ERROR
            }
        }
    })
}
