// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `inflateBack`: zlib-rs behind a state of our own, so that a stream of one kind is refused by the other's functions.

use crate::export::fenced;
use crate::memory::{Memory, fill_in};
use crate::strm::{version_fits, with_inner};
use core::ffi::{c_char, c_int, c_uchar, c_void};
use core::ptr;
use libz_rs_sys as port;
use libz_rs_sys::{
    Z_MEM_ERROR, Z_OK, Z_STREAM_ERROR, Z_VERSION_ERROR, in_func, internal_state, out_func, z_stream,
    z_streamp,
};

const MARK: u64 = u64::from_le_bytes(*b"ml-iback");

struct Back {
    mark: u64,
    stream: *mut z_stream,
    memory: Memory,
    inner: *mut internal_state,
}

/// # Safety
/// `strm` is null or valid; its `state` is null or points to memory of at least this size.
unsafe fn back<'a>(strm: *mut z_stream) -> Option<&'a mut Back> {
    // SAFETY: the caller vouches for it; the mark says that it is a state of ours.
    unsafe {
        let state = strm.as_ref()?.state.cast::<Back>();
        let ours =
            !state.is_null() && state.is_aligned() && (*state).mark == MARK && ptr::eq((*state).stream, strm);
        ours.then(|| &mut *state)
    }
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateBackInit_(
    strm: z_streamp,
    window_bits: c_int,
    window: *mut c_uchar,
    version: *const c_char,
    stream_size: c_int,
) -> c_int {
    versioned!(inflateBackInit_, "1.2.0");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        if !version_fits(version, stream_size) {
            return Z_VERSION_ERROR;
        }
        if strm.is_null() || window.is_null() || !(8..=15).contains(&window_bits) {
            return Z_STREAM_ERROR;
        }
        fill_in(strm);
        (*strm).state = ptr::null_mut();
        let memory = Memory::of(strm);
        let mut inner = ptr::null_mut();
        let code = with_inner(strm, &mut inner, |strm| {
            port::inflateBackInit_(strm, window_bits, window, port::zlibVersion(), stream_size)
        });
        if code != Z_OK {
            return code;
        }
        match memory.keep(Back { mark: MARK, stream: strm, memory, inner }) {
            Ok(state) => {
                (*strm).state = state.as_ptr().cast();
                Z_OK
            }
            Err(mut state) => {
                with_inner(strm, &mut state.inner, |strm| port::inflateBackEnd(strm));
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
#[inline(never)]
pub unsafe extern "C" fn inflateBack(
    strm: z_streamp,
    input: Option<in_func>,
    input_value: *mut c_void,
    output: Option<out_func>,
    output_value: *mut c_void,
) -> c_int {
    versioned!(inflateBack, "1.2.0");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = back(strm) else { return Z_STREAM_ERROR };
        with_inner(strm, &mut state.inner, |strm| {
            port::inflateBack(strm, input, input_value, output, output_value)
        })
    })
}

/// As in zlib.h.
///
/// # Safety
/// As in zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateBackEnd(strm: z_streamp) -> c_int {
    versioned!(inflateBackEnd, "1.2.0");
    // SAFETY: as the caller promises.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = back(strm) else { return Z_STREAM_ERROR };
        let code = with_inner(strm, &mut state.inner, |strm| port::inflateBackEnd(strm));
        let memory = state.memory;
        state.mark = 0;
        memory.drop_kept(ptr::NonNull::from(state));
        (*strm).state = ptr::null_mut();
        code
    })
}
