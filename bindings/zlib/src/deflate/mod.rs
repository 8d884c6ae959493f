// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The deflate functions of libz.
//!
//! - **Flow** init creates a [`state::Deflate`] with all of its memory and the route open. The first deflate decides: fast ([`fast`]), or
//!   chained ([`chained`]) for flushes, dictionaries, headers, primed bits and other levels and strategies. A fast stream that is later
//!   asked for one of these becomes chained.
//! - **Order** arguments are checked in the same way as in zlib, before anything changes.
//! - **Owner** see `memory`: everything that a stream keeps is allocated by its program's functions. After init no memory is needed that
//!   might not be there.

mod chained;
mod fast;
mod settings;
mod state;

use crate::export::fenced;
use crate::memory::Memory;
use crate::strm::{begin, fail, version_fits};
use core::ffi::{c_char, c_int, c_uint, c_ulong};
use core::ptr;
use libz_rs_sys::{
    Bytef, Z_BLOCK, Z_BUF_ERROR, Z_DATA_ERROR, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_FINISH, Z_MEM_ERROR,
    Z_NO_FLUSH, Z_OK, Z_STREAM_ERROR, Z_VERSION_ERROR, gz_headerp, uInt, z_streamp,
};
use memlift_kernels::deflate::{Chains, Level, adler32};
use settings::{Settings, Wrap};
use state::{Deflate, Route, Status};

pub use settings::compress_bound;

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateInit_(
    strm: z_streamp,
    level: c_int,
    version: *const c_char,
    stream_size: c_int,
) -> c_int {
    // SAFETY: `strm` is null or a valid stream, and `version` is null or readable, as zlib.h demands.
    unsafe { deflateInit2_(strm, level, Z_DEFLATED, 15, 8, Z_DEFAULT_STRATEGY, version, stream_size) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
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
    // SAFETY: the caller guarantees that `strm` and `version` are null or valid.
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
        let mut has_state = false;
        let made = memory.make(|| {
            has_state = true;
            Deflate::new(strm, memory, settings)
        });
        let Some(state) = made else {
            // If there is no memory for the state itself, zlib sets no text.
            return if has_state { fail(strm, Z_MEM_ERROR) } else { Z_MEM_ERROR };
        };
        (*strm).state = state.as_ptr().cast();
        (*strm).adler = settings.wrap.first_sum();
        Z_OK
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflate(strm: z_streamp, flush: c_int) -> c_int {
    // SAFETY: the caller guarantees that `strm` is null, or valid with valid buffers.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if !(0..=Z_BLOCK).contains(&flush) {
            return Z_STREAM_ERROR;
        }
        let ended = state.status == Status::Finish;
        if (*strm).next_out.is_null()
            || ((*strm).avail_in != 0 && (*strm).next_in.is_null())
            || (ended && flush != Z_FINISH)
        {
            return fail(strm, Z_STREAM_ERROR);
        }
        pack(state, strm, flush)
    })
}

/// Messages of at most this many bytes are chained: matches of three and four bytes, which the fast path does not search, are a
/// large part of such messages.
const SMALL_BYTES: u64 = 1024;

/// Does a call of `deflate` whose arguments were checked.
unsafe fn pack(state: &mut Deflate, strm: z_streamp, flush: c_int) -> c_int {
    // SAFETY: the caller guarantees the stream and its buffers.
    unsafe {
        let small = flush == Z_FINISH && state.total + u64::from((*strm).avail_in) <= SMALL_BYTES;
        let plain = flush == Z_NO_FLUSH || flush == Z_FINISH && !small;
        let fast = match state.route {
            Route::Open => plain && state.settings.is_fast() && state.head.is_null(),
            Route::Fast => plain && state.settings.is_fast() || state.status == Status::Finish,
            Route::Chained => false,
        };
        if fast && let Some(code) = fast::deflate(state, strm, flush) {
            return code;
        }
        if state.route != Route::Chained {
            if (*strm).avail_out == 0 {
                return fail(strm, Z_BUF_ERROR);
            }
            let expected = small.then_some((*strm).avail_in as usize);
            if let Err(code) = chained::enter(state, strm, expected) {
                return code;
            }
        }
        chained::deflate(state, strm, flush)
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateEnd(strm: z_streamp) -> c_int {
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let busy = state.status == Status::Busy;
        let memory = state.memory;
        state.free();
        memory.drop_kept(ptr::NonNull::from(state));
        (*strm).state = ptr::null_mut();
        if busy { Z_DATA_ERROR } else { Z_OK }
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateReset(strm: z_streamp) -> c_int {
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        state.restart();
        begin(strm);
        (*strm).adler = state.settings.wrap.first_sum();
        Z_OK
    })
}

/// See zlib.h. Keeps nothing that `deflateReset` would drop.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateResetKeep(strm: z_streamp) -> c_int {
    versioned!(deflateResetKeep, "1.2.5.2");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    unsafe { deflateReset(strm) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateParams(strm: z_streamp, level: c_int, strategy: c_int) -> c_int {
    // SAFETY: `strm` is null, or a valid stream whose buffers are as long as it says, and no other thread uses it, as zlib.h
    // demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let Some(settings) = state.settings.with(level, strategy) else { return Z_STREAM_ERROR };
        let (before, after) = (state.settings, Level::of(settings.level as usize));
        let same = before.strategy == settings.strategy && state.level().is_like(&after);
        // Input given before the change is packed with the old settings, as in zlib.
        if !same && state.last_flush != -2 {
            if (*strm).next_out.is_null()
                || ((*strm).avail_in != 0 && (*strm).next_in.is_null())
                || state.status == Status::Finish
            {
                return fail(strm, Z_STREAM_ERROR);
            }
            if pack(state, strm, Z_BLOCK) == Z_STREAM_ERROR {
                return Z_STREAM_ERROR;
            }
            let waiting = state.chains.as_ref().map_or(state.window.bytes().len(), Chains::waiting);
            if (*strm).avail_in != 0 || waiting != 0 {
                return Z_BUF_ERROR;
            }
        }
        if before.level != settings.level {
            state.tuned = None;
        }
        if let Some(chains) = &mut state.chains {
            chains.set_level(state.tuned.unwrap_or(after), settings.chain_strategy());
        }
        state.settings = settings;
        Z_OK
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateSetDictionary(
    strm: z_streamp,
    dictionary: *const Bytef,
    bytes: uInt,
) -> c_int {
    // SAFETY: `strm` is null, or a valid stream that no other thread uses; `dictionary` is null or readable for `bytes` bytes, as
    // zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let wrap = state.settings.wrap;
        if dictionary.is_null() {
            return Z_STREAM_ERROR;
        }
        if state.is_over() {
            // zlib takes it as history that no block will refer to.
            (*strm).total_in += c_ulong::from(bytes).min(state.settings.window_bytes() as c_ulong);
            return Z_OK;
        }
        if wrap == Wrap::Gzip {
            return Z_STREAM_ERROR;
        }
        // zlib also takes it when bytes wait that have tokens, and loses them if their block is stored.
        let waiting = state.chains.as_ref().map_or(state.window.bytes().len(), Chains::waiting);
        if (wrap == Wrap::Zlib && state.status != Status::Init)
            || waiting != 0
            || state.status == Status::Finish
        {
            return Z_STREAM_ERROR;
        }
        if state.route != Route::Chained
            && let Err(code) = chained::enter(state, strm, None)
        {
            return if code == Z_OK { Z_STREAM_ERROR } else { code };
        }
        let whole = core::slice::from_raw_parts(dictionary, bytes as usize);
        let last = &whole[whole.len().saturating_sub(state.settings.window_bytes())..];
        if wrap == Wrap::Zlib {
            let sum = adler32((*strm).adler as u32, whole);
            state.dictionary_sum = Some(sum);
            (*strm).adler = sum.into();
        }
        if let Some(chains) = &mut state.chains {
            chains.learn(last);
        }
        (*strm).total_in += last.len() as c_ulong; // zlib does the same
        Z_OK
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateGetDictionary(
    strm: z_streamp,
    dictionary: *mut Bytef,
    bytes: *mut uInt,
) -> c_int {
    versioned!(deflateGetDictionary, "1.2.9");
    // SAFETY: the caller guarantees that each pointer is null or valid, the dictionary for 32 KiB.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let whole = state.chains.as_ref().map_or(state.window.whole(), Chains::history);
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

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateSetHeader(strm: z_streamp, head: gz_headerp) -> c_int {
    versioned!(deflateSetHeader, "1.2.2");
    // SAFETY: `strm` is null, or a valid stream that no other thread uses, as zlib.h demands; `head` is only stored.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if state.settings.wrap != Wrap::Gzip || state.is_over() {
            return Z_STREAM_ERROR;
        }
        state.head = head;
        Z_OK
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflatePrime(strm: z_streamp, bits: c_int, value: c_int) -> c_int {
    versioned!(deflatePrime, "1.2.0.8");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        if !(0..=16).contains(&bits) {
            return Z_BUF_ERROR;
        }
        let value = value as u32 & ((1 << bits) - 1);
        if state.route == Route::Fast && state.status == Status::Finish {
            return prime_late(state, bits as u32, value);
        }
        if state.route != Route::Chained
            && let Err(code) = chained::enter(state, strm, None)
        {
            return if code == Z_OK { Z_BUF_ERROR } else { code };
        }
        let done = state.chains.as_mut().is_some_and(|chains| chains.put_bits(value, bits as u32));
        if done { Z_OK } else { Z_BUF_ERROR }
    })
}

/// Stores bits behind the end of a fast stream. Whole bytes of them go out before the bytes that follow; a rest is never
/// written, as in zlib.
fn prime_late(state: &mut Deflate, bits: u32, value: u32) -> c_int {
    let (count, held) = state.late;
    let (mut all, mut count) = (held | value << count, count + bits);
    if state.pending.room() < 4 {
        return Z_BUF_ERROR;
    }
    while count >= 8 {
        state.pending.push(&[all as u8]);
        (all, count) = (all >> 8, count - 8);
    }
    state.late = (count, all);
    Z_OK
}

/// See zlib.h. A fast stream has no unstored bits between two calls.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflatePending(strm: z_streamp, pending: *mut c_uint, bits: *mut c_int) -> c_int {
    versioned!(deflatePending, "1.2.5.1");
    // SAFETY: the caller guarantees that each pointer is null or valid.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let fast = (state.pending.bytes().len(), state.late.0);
        let (waits, held) = state.chains.as_ref().map_or(fast, Chains::pending);
        if !pending.is_null() {
            *pending = waits as c_uint;
        }
        if !bits.is_null() {
            *bits = held as c_int;
        }
        Z_OK
    })
}

/// See zlib.h. The fast path has no such limits.
///
/// # Safety
/// The conditions of zlib.h.
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
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(strm) else { return Z_STREAM_ERROR };
        let limit = |value: c_int| value.clamp(0, 65535) as u32;
        let tuned =
            state.level().tuned(limit(good_length), limit(max_lazy), limit(nice_length), limit(max_chain));
        state.tuned = Some(tuned);
        if let Some(chains) = &mut state.chains {
            chains.set_level(tuned, state.settings.chain_strategy());
        }
        Z_OK
    })
}

/// See zlib.h: the size that one `deflate` with `Z_FINISH` never exceeds, on the fast and on the chained path.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn deflateBound(strm: z_streamp, bytes: c_ulong) -> c_ulong {
    versioned!(deflateBound, "1.2.0");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    fenced(c_ulong::MAX, || unsafe {
        let Some(state) = Deflate::of(strm) else { return settings::any_bound(bytes) };
        let kept = (state.pending.bytes().len() + state.window.bytes().len()) as c_ulong;
        let bound = state.settings.bound(bytes.saturating_add(kept));
        if state.settings.has_sessions() && state.route != Route::Chained && state.head.is_null() {
            return bound;
        }
        let (pending, waiting) =
            state.chains.as_ref().map_or((0, 0), |chains| (chains.pending().0, chains.waiting()));
        let kept = (pending + waiting) as c_ulong;
        let any = settings::any_bound(bytes.saturating_add(kept)).saturating_add(chained::front_bytes(state));
        any.max(bound)
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateCopy(target: z_streamp, source: z_streamp) -> c_int {
    // SAFETY: the caller guarantees two streams, the first of which is not initialized.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Deflate::of(source) else { return Z_STREAM_ERROR };
        if target.is_null() || ptr::eq(target, source) {
            return Z_STREAM_ERROR;
        }
        ptr::copy_nonoverlapping(source, target, 1);
        (*target).state = ptr::null_mut();
        let memory = state.memory;
        let Some(copy) = memory.make(|| state.copy(target)) else { return Z_MEM_ERROR };
        (*target).state = copy.as_ptr().cast();
        Z_OK
    })
}
