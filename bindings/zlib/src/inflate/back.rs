// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `inflateBack`: the decoder with the program's functions for input and output, and the program's window as its output.
//!
//! - **Flow** input function ──▶ [`Decoder::run`] into the window; when the window is full, it goes to the output function, and decoding
//!   continues at its start.
//! - **Order** bytes that the window held before the call are never used: a distance reaches back at most to the first byte that this
//!   call wrote.
//! - **Owner** the state comes from `zalloc` at init; the window belongs to the program.

use super::decoder::{Decoder, Io, Mode};
use crate::export::fenced;
use crate::memory::{Memory, fill_in};
use crate::strm::version_fits;
use core::ffi::{c_char, c_int, c_uchar, c_void};
use core::ptr;
use libz_rs_sys::{
    Z_BUF_ERROR, Z_MEM_ERROR, Z_NO_FLUSH, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, Z_VERSION_ERROR, in_func,
    out_func, z_stream, z_streamp,
};

const MARK: u64 = u64::from_le_bytes(*b"ml-iback");

struct Back {
    mark: u64,
    stream: *mut z_stream,
    memory: Memory,
    core: Decoder,
    window: *mut u8,
}

/// Returns the `inflateBack` state of a stream.
///
/// # Safety
/// `strm` is null or valid; its `state` is null or points to memory of at least this size.
unsafe fn back<'a>(strm: *mut z_stream) -> Option<&'a mut Back> {
    // SAFETY: the caller guarantees the stream; the mark shows that the state is ours.
    unsafe {
        let state = strm.as_ref()?.state.cast::<Back>();
        let ours =
            !state.is_null() && state.is_aligned() && (*state).mark == MARK && ptr::eq((*state).stream, strm);
        ours.then(|| &mut *state)
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
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
    // SAFETY: `strm` is null or a valid stream, `version` is null or readable, and `window` is only stored, as zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        if !version_fits(version, stream_size) {
            return Z_VERSION_ERROR;
        }
        if strm.is_null() || window.is_null() || !(8..=15).contains(&window_bits) {
            return Z_STREAM_ERROR;
        }
        (*strm).msg = ptr::null_mut();
        fill_in(strm);
        let memory = Memory::of(strm);
        let made = memory.make(|| {
            let core = Decoder::new(-window_bits);
            Some(Back { mark: MARK, stream: strm, memory, core, window })
        });
        let Some(state) = made else { return Z_MEM_ERROR };
        (*strm).state = state.as_ptr().cast();
        Z_OK
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
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
    // SAFETY: the caller guarantees functions that follow zlib.h, and a window of the size that was given at init.
    fenced(Z_STREAM_ERROR, || unsafe {
        let (Some(state), Some(input), Some(output)) = (back(strm), input, output) else {
            return Z_STREAM_ERROR;
        };
        (*strm).msg = ptr::null_mut();
        let core = &mut state.core;
        let size = 1usize << core.window_bits;
        core.reset_state();
        core.mode = Mode::TypeDo;
        (core.window, core.size, core.held, core.next) = (state.window, size, 0, 0);
        let have = if (*strm).next_in.is_null() { 0 } else { (*strm).avail_in as usize };
        let mut io = Io {
            input: (*strm).next_in,
            have,
            output: state.window,
            room: size,
            begin: state.window,
            summed: state.window,
            most_distance: size,
            message: None,
        };
        let mut code = loop {
            let code = core.run(&mut io, strm, Z_NO_FLUSH, &mut 0);
            if code != Z_OK {
                break code;
            }
            let full = match core.mode {
                Mode::Literal | Mode::Match => true,
                Mode::Copy => io.have != 0,
                _ => false,
            };
            if full {
                (io.output, io.summed, io.room) = (state.window, state.window, size);
                core.held = size;
                if output(output_value, state.window, size as u32) != 0 {
                    break Z_BUF_ERROR;
                }
            } else {
                io.have = input(input_value, &mut io.input) as usize;
                if io.have == 0 {
                    io.input = ptr::null();
                    break Z_BUF_ERROR;
                }
            }
        };
        if let Some(text) = io.message {
            (*strm).msg = text.as_ptr().cast_mut();
        }
        let written = size - io.room;
        if written != 0 && output(output_value, state.window, written as u32) != 0 && code == Z_STREAM_END {
            code = Z_BUF_ERROR;
        }
        ((*strm).next_in, (*strm).avail_in) = (io.input, io.have as u32);
        code
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn inflateBackEnd(strm: z_streamp) -> c_int {
    versioned!(inflateBackEnd, "1.2.0");
    // SAFETY: `strm` is null, or a valid stream whose `state` is null or came from an init, and no other thread uses it, as
    // zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(state) = back(strm) else { return Z_STREAM_ERROR };
        let memory = state.memory;
        state.mark = 0;
        memory.drop_kept(ptr::NonNull::from(state));
        (*strm).state = ptr::null_mut();
        Z_OK
    })
}
