// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The inflate functions of libz.
//!
//! - **Flow** arguments are checked in the same way as in zlib; [`state::Inflate`] holds a [`decoder`], which is the same for streams,
//!   whole buffers and `inflateBack` ([`back`]). [`front`] reads frames, [`fast`] is the inner loop, [`tables`] builds the codes.
//! - **Owner** the state comes from the program's `zalloc` at init, and the window when it is first needed, as in zlib. Nothing else is
//!   allocated.

mod back;
mod decoder;
mod fast;
mod front;
mod state;
mod sync;
mod tables;
mod whole;

pub use whole::unpack;

use self::decoder::Mode;
use crate::counts::{self, Row};
use crate::export::fenced;
use crate::memory::{Memory, fill_in};
use crate::strm::version_fits;
use core::ffi::{c_char, c_int, c_long, c_ulong};
use core::ptr;
use libz_rs_sys::{
    Bytef, Z_DATA_ERROR, Z_MEM_ERROR, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, Z_VERSION_ERROR, gz_headerp, uInt,
    z_streamp,
};
use memlift_kernels::deflate::adler32;
use state::{Inflate, bits_are_valid};

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateInit_(strm: z_streamp, version: *const c_char, stream_size: c_int) -> c_int {
    // SAFETY: `strm` is null or a valid stream, and `version` is null or readable, as zlib.h demands.
    unsafe { inflateInit2_(strm, 15, version, stream_size) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateInit2_(
    strm: z_streamp,
    window_bits: c_int,
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
        fill_in(strm);
        (*strm).state = ptr::null_mut();
        let memory = Memory::of(strm);
        // zlib allocates before it checks the bits, so missing memory is reported first.
        let Some(place) = memory.get(size_of::<Inflate>()) else { return Z_MEM_ERROR };
        if !bits_are_valid(window_bits) {
            memory.free(place);
            return Z_STREAM_ERROR;
        }
        let place = place.cast::<Inflate>();
        place.write(Inflate::new(strm, memory, window_bits));
        (*strm).state = place.as_ptr().cast();
        begin(strm, &*place.as_ptr());
        Z_OK
    }
}

/// Sets the fields of the stream that a reset sets.
unsafe fn begin(strm: z_streamp, state: &Inflate) {
    // SAFETY: the caller guarantees a valid stream.
    unsafe {
        (*strm).msg = ptr::null_mut();
        (*strm).total_in = 0;
        (*strm).total_out = 0;
        if state.core.wrap != 0 {
            (*strm).adler = (state.core.wrap & 1).into();
        }
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflate(strm: z_streamp, flush: c_int) -> c_int {
    // SAFETY: the caller guarantees that `strm` is null, or valid with valid buffers.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::of(strm) else { return Z_STREAM_ERROR };
        if (*strm).next_out.is_null() || ((*strm).next_in.is_null() && (*strm).avail_in != 0) {
            return Z_STREAM_ERROR;
        }
        let code = state.core.inflate(strm, &state.memory, flush);
        if !state.counted && (code == Z_STREAM_END || code == Z_DATA_ERROR) {
            state.counted = true;
            counts::add(Row::Unpack, (*strm).total_in, (*strm).total_out, code == Z_DATA_ERROR);
        }
        code
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateEnd(strm: z_streamp) -> c_int {
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = Inflate::of(strm) else { return Z_STREAM_ERROR };
        let memory = state.memory;
        state.free();
        memory.drop_kept(ptr::NonNull::from(state));
        (*strm).state = ptr::null_mut();
        Z_OK
    })
}

/// Runs `body` on the state of a stream that was initialized by this library; returns `Z_STREAM_ERROR` for another.
unsafe fn on(strm: z_streamp, body: impl FnOnce(&mut Inflate) -> c_int) -> c_int {
    fenced(Z_STREAM_ERROR, || {
        // SAFETY: the caller of the exported function guarantees that `strm` is null or valid.
        unsafe { Inflate::of(strm) }.map_or(Z_STREAM_ERROR, body)
    })
}

/// Prepares for the next stream. The window is emptied unless `keep` is true.
unsafe fn reset(strm: z_streamp, state: &mut Inflate, keep: bool) -> c_int {
    if !keep {
        state.core.forget_window();
    }
    state.core.reset_state();
    state.counted = false;
    // SAFETY: `strm` is the stream of the state.
    unsafe { begin(strm, state) };
    Z_OK
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateReset(strm: z_streamp) -> c_int {
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    unsafe { on(strm, |state| reset(strm, state, false)) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateReset2(strm: z_streamp, window_bits: c_int) -> c_int {
    versioned!(inflateReset2, "1.2.3.4");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    unsafe {
        on(strm, |state| {
            if !bits_are_valid(window_bits) {
                return Z_STREAM_ERROR;
            }
            let before = state.core.window_bits;
            state.core.set_bits(window_bits);
            if state.core.window_bits != before {
                state.core.free_window(&state.memory);
            }
            reset(strm, state, false)
        })
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateResetKeep(strm: z_streamp) -> c_int {
    versioned!(inflateResetKeep, "1.2.5.2");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    unsafe { on(strm, |state| reset(strm, state, true)) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateCopy(target: z_streamp, source: z_streamp) -> c_int {
    versioned!(inflateCopy, "1.2.0");
    // SAFETY: the caller guarantees two streams, the first of which is not initialized.
    unsafe {
        on(source, |state| {
            if target.is_null() || ptr::eq(target, source) {
                return Z_STREAM_ERROR;
            }
            let memory = state.memory;
            let Some(copy) = memory.make(|| state.copy(target)) else { return Z_MEM_ERROR };
            ptr::copy_nonoverlapping(source, target, 1);
            (*target).state = copy.as_ptr().cast();
            Z_OK
        })
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSync(strm: z_streamp) -> c_int {
    // SAFETY: `strm` is null, or a valid stream whose buffers are as long as it says, and no other thread uses it, as zlib.h
    // demands.
    unsafe { on(strm, |state| sync::sync(strm, state)) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSyncPoint(strm: z_streamp) -> c_int {
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    unsafe { on(strm, |state| (state.core.mode == Mode::Stored && state.core.bits == 0).into()) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inflateSetDictionary(
    strm: z_streamp,
    dictionary: *const Bytef,
    bytes: uInt,
) -> c_int {
    // SAFETY: the caller guarantees that the dictionary has `bytes` bytes, and `strm` is null or valid.
    unsafe {
        on(strm, |state| {
            let core = &mut state.core;
            let asked = core.mode == Mode::Dictionary;
            if (core.wrap != 0 && !asked) || (dictionary.is_null() && bytes != 0) {
                return Z_STREAM_ERROR;
            }
            let dictionary =
                if bytes == 0 { &[] } else { core::slice::from_raw_parts(dictionary, bytes as usize) };
            if asked && adler32(1, dictionary) != core.check {
                return Z_DATA_ERROR;
            }
            if !core.save_window(&state.memory, dictionary.as_ptr_range().end, dictionary.len()) {
                core.mode = Mode::NoMemory;
                return Z_MEM_ERROR;
            }
            core.has_dictionary = true;
            Z_OK
        })
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateGetDictionary(
    strm: z_streamp,
    dictionary: *mut Bytef,
    bytes: *mut uInt,
) -> c_int {
    versioned!(inflateGetDictionary, "1.2.7.1");
    // SAFETY: the caller guarantees that each pointer is null or valid, the dictionary for 32 KiB.
    unsafe {
        on(strm, |state| {
            let core = &state.core;
            if core.held != 0 && !dictionary.is_null() {
                let old = core.held - core.next;
                ptr::copy_nonoverlapping(core.window.add(core.next), dictionary, old);
                ptr::copy_nonoverlapping(core.window, dictionary.add(old), core.next);
            }
            if !bytes.is_null() {
                *bytes = core.held as uInt;
            }
            Z_OK
        })
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateGetHeader(strm: z_streamp, head: gz_headerp) -> c_int {
    versioned!(inflateGetHeader, "1.2.2");
    // SAFETY: the caller guarantees a header that stays valid until the start of the frame is read.
    unsafe {
        on(strm, |state| {
            if state.core.wrap & 2 == 0 || head.is_null() {
                return Z_STREAM_ERROR;
            }
            state.core.head = head;
            (*head).done = 0;
            Z_OK
        })
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflatePrime(strm: z_streamp, bits: c_int, value: c_int) -> c_int {
    versioned!(inflatePrime, "1.2.2.4");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    unsafe {
        on(strm, |state| {
            let core = &mut state.core;
            if bits < 0 {
                (core.hold, core.bits) = (0, 0);
                return Z_OK;
            }
            if bits > 16 || core.bits + bits as u32 > 32 {
                return Z_STREAM_ERROR;
            }
            core.hold |= u64::from(value as u32 & ((1 << bits) - 1)) << core.bits;
            core.bits += bits as u32;
            Z_OK
        })
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateUndermine(strm: z_streamp, _subvert: c_int) -> c_int {
    versioned!(inflateUndermine, "1.2.3.3");
    // SAFETY: the caller guarantees that `strm` is null or valid. The result is that of a zlib built without this function.
    unsafe { on(strm, |_| Z_DATA_ERROR) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateValidate(strm: z_streamp, check: c_int) -> c_int {
    versioned!(inflateValidate, "1.2.9");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    unsafe {
        on(strm, |state| {
            let core = &mut state.core;
            core.wrap = if check != 0 && core.wrap != 0 { core.wrap | 4 } else { core.wrap & !4 };
            Z_OK
        })
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateMark(strm: z_streamp) -> c_long {
    versioned!(inflateMark, "1.2.3.4");
    // SAFETY: the caller guarantees that `strm` is null or valid.
    unsafe { Inflate::of(strm) }.map_or(-(1 << 16), |state| state.core.mark())
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateCodesUsed(strm: z_streamp) -> c_ulong {
    versioned!(inflateCodesUsed, "1.2.9");
    // SAFETY: the caller guarantees that `strm` is null or valid.
    unsafe { Inflate::of(strm) }.map_or(c_ulong::MAX, |state| state.core.codes_used())
}
