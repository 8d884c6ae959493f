// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chained streams, whose match tables live as long as the stream: those that are flushed, and those with settings that the fast path lacks.
//!
//! - **Flow** [`enter`] makes the stream's memory that of [`Chains`], with the bytes that the fast path has as history and as input. Then
//!   [`deflate`] writes the start of the frame, the blocks, the mark of the flush, and the end of the frame.
//! - **Order** the same as zlib's `deflate`: pending bytes are written first; a call that ends for lack of room sets `last_flush` to −1
//!   for the next one.
//! - **Owner** nothing is allocated: the memory is there since init.

use super::fast::{repeats, settle};
use super::settings::Wrap;
use super::state::{Deflate, Route, Status};
use crate::counts::{self, Row};
use crate::strm::{self, fail};
use core::ffi::{c_int, c_ulong};
use libz_rs_sys::{
    Z_BLOCK, Z_BUF_ERROR, Z_FINISH, Z_FULL_FLUSH, Z_MEM_ERROR, Z_NO_FLUSH, Z_OK, Z_PARTIAL_FLUSH,
    Z_STREAM_END, z_stream,
};
use memlift_kernels::deflate::{Chains, Io, Level, Until, crc32};

/// Makes a stream chained that is open or fast and has not ended. `expected` is the number of all bytes to come, if they are
/// known and few. An error code ends the call: there is no room for the pending bytes, or no memory.
///
/// # Safety
/// `strm` is the stream of `state`, and its output is valid.
pub unsafe fn enter(state: &mut Deflate, strm: *mut z_stream, expected: Option<usize>) -> Result<(), c_int> {
    let window = state.settings.window_bytes();
    // SAFETY: the caller guarantees the stream. Only it uses the memory, whose first part begins with the history and waiting
    // bytes.
    unsafe {
        loop {
            if !state.pending.is_empty() && ((*strm).next_out.is_null() || !state.drain(strm)) {
                state.last_flush = -1;
                return Err(Z_OK);
            }
            if state.window.bytes().len() <= window {
                break;
            }
            if !settle(state, strm) {
                return Err(fail(strm, Z_MEM_ERROR));
            }
        }
        let (history, waiting) = state.window.move_down(window);
        let mut chains = Chains::new(
            state.first,
            state.second,
            state.settings.window_bits,
            state.settings.mem_level as u32,
            history,
            waiting,
            expected,
        );
        let level = match expected {
            // A message this short takes the same time with every lazy level, and with every greedy one: a deeper search makes some of
            // them a byte larger.
            Some(_) if state.tuned.is_none() => match state.settings.level {
                0 => Level::of(0),
                1..=3 => Level::of(3),
                _ => Level::of(9),
            },
            _ => state.level(),
        };
        chains.set_level(level, state.settings.chain_strategy());
        state.window.clear();
        state.chains = Some(chains);
        state.route = Route::Chained;
        Ok(())
    }
}

/// Does a call of `deflate` for a chained stream.
///
/// # Safety
/// `strm` is the stream of `state`; its buffers are as the program gave them, and their pointers were checked.
pub unsafe fn deflate(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> c_int {
    // SAFETY: the caller guarantees the stream and its buffers.
    unsafe {
        let finished = state.status == Status::Finish;
        if (*strm).avail_out == 0 {
            return fail(strm, Z_BUF_ERROR);
        }
        let old_flush = core::mem::replace(&mut state.last_flush, flush);
        if state.has_pending() {
            drain(state, strm);
            if (*strm).avail_out == 0 {
                state.last_flush = -1;
                return Z_OK;
            }
        } else if (*strm).avail_in == 0 && repeats(old_flush, flush) {
            return fail(strm, Z_BUF_ERROR);
        }
        if finished && (*strm).avail_in != 0 {
            return fail(strm, Z_BUF_ERROR);
        }
        if state.status == Status::Init && !front(state, strm) {
            state.last_flush = -1;
            return Z_OK;
        }
        let waits = state.chains.as_ref().is_some_and(|chains| chains.ahead() != 0);
        if (*strm).avail_in != 0 || waits || (flush != Z_NO_FLUSH && !finished) {
            let until = match flush {
                Z_NO_FLUSH => Until::More,
                Z_FINISH => Until::Finished,
                _ => Until::Flushed,
            };
            let done = run(state, strm, until);
            let full = (*strm).avail_out == 0;
            if !done || full {
                state.last_flush = if full { -1 } else { flush };
                return Z_OK;
            }
            let Some(chains) = &mut state.chains else { return Z_OK };
            match flush {
                Z_FINISH | Z_BLOCK => {}
                Z_PARTIAL_FLUSH => chains.put_align(),
                _ => {
                    chains.put_sync();
                    if flush == Z_FULL_FLUSH {
                        chains.forget();
                    }
                }
            }
            drain(state, strm);
            if (*strm).avail_out == 0 {
                state.last_flush = -1;
                return Z_OK;
            }
        }
        if flush != Z_FINISH {
            return Z_OK;
        }
        if !state.ended {
            state.ended = true;
            let (back, bytes) = state.settings.back(state.sum, state.total);
            if let Some(chains) = &mut state.chains {
                chains.put_bytes(&back[..bytes]);
            }
            drain(state, strm);
            counts::add(Row::PackChained, state.total, (*strm).total_out, false);
        }
        if state.has_pending() { Z_OK } else { Z_STREAM_END }
    }
}

/// Moves pending bytes to the program's output.
///
/// # Safety
/// The conditions of [`deflate`].
pub unsafe fn drain(state: &mut Deflate, strm: *mut z_stream) {
    if let Some(chains) = &mut state.chains {
        // SAFETY: the caller guarantees the stream and its output; the output does not overlap the stream's memory.
        unsafe {
            let mut io = Io { input: &[], output: strm::output(strm), read: 0, written: 0 };
            chains.drain(&mut io);
            strm::advance_output(strm, io.written);
        }
    }
}

/// Packs; returns true if everything that `until` asks for is done and written.
unsafe fn run(state: &mut Deflate, strm: *mut z_stream, until: Until) -> bool {
    let Some(chains) = &mut state.chains else { return false };
    // SAFETY: the buffers are as the program gave them, and nobody else uses them during the call.
    unsafe {
        let input = strm::input(strm);
        let mut io = Io { input, output: strm::output(strm), read: 0, written: 0 };
        let done = chains.run(&mut io, until);
        let (read, written) = (io.read, io.written);
        if chains.is_ended() {
            state.status = Status::Finish;
        }
        if let Some(contents) = chains.take_contents() {
            super::fast::set_data_type(strm, contents);
        }
        state.count_input(&input[..read]);
        strm::consume_input(strm, read);
        strm::advance_output(strm, written);
        if read != 0 && state.settings.wrap != Wrap::Raw {
            (*strm).adler = state.sum.into();
        }
        done
    }
}

/// Writes the start of the frame; returns false if there was no room for all of it.
unsafe fn front(state: &mut Deflate, strm: *mut z_stream) -> bool {
    // SAFETY: the caller guarantees the stream; the program keeps its header valid until the start of the frame is written.
    unsafe {
        if !state.head.is_null() && state.settings.wrap == Wrap::Gzip {
            if !gzip_front(state, strm) {
                return false;
            }
            state.status = Status::Busy;
            return true;
        }
        let (mut front, bytes) = state.settings.front();
        if let Some(chains) = &mut state.chains {
            match state.dictionary_sum {
                Some(sum) if state.settings.wrap == Wrap::Zlib => {
                    // Sets flag 2⁵, and the check number anew, so that the word is a multiple of 31.
                    let word = u16::from_be_bytes([front[0], front[1]]) & !31 | 32;
                    front[..2].copy_from_slice(&(word + 31 - word % 31).to_be_bytes());
                    chains.put_bytes(&front[..2]);
                    chains.put_bytes(&sum.to_be_bytes());
                    (*strm).adler = 1;
                }
                _ => chains.put_bytes(&front[..bytes]),
            }
        }
        state.status = Status::Busy;
        drain(state, strm);
        !state.has_pending()
    }
}

/// Returns the most bytes of the start and end of a frame.
pub fn front_bytes(state: &Deflate) -> c_ulong {
    // SAFETY: `deflateSetHeader` requires a valid header with valid fields; texts end with a zero byte.
    unsafe {
        let Some(head) = state.head.as_ref() else { return 32 };
        let text = |start: *mut u8| match start.is_null() {
            true => 0,
            false => core::ffi::CStr::from_ptr(start.cast()).count_bytes() + 1,
        };
        32 + (head.extra_len as usize + text(head.name) + text(head.comment)) as c_ulong
    }
}

/// Writes the start of a gzip frame with the program's header; returns false if there was no room for all of it.
unsafe fn gzip_front(state: &mut Deflate, strm: *mut z_stream) -> bool {
    // SAFETY: `deflateSetHeader` requires a valid header with valid fields; texts end with a zero byte.
    unsafe {
        let head = &*state.head;
        let text = |start: *mut u8| match start.is_null() {
            true => &[][..],
            false => core::ffi::CStr::from_ptr(start.cast()).to_bytes_with_nul(),
        };
        let extra = match head.extra.is_null() {
            true => &[][..],
            false => core::slice::from_raw_parts(head.extra, head.extra_len as usize & 0xffff),
        };
        let checked = head.hcrc != 0;
        let (mut fixed, _) = state.settings.front();
        fixed[3] =
            [head.text != 0, checked, !head.extra.is_null(), !head.name.is_null(), !head.comment.is_null()]
                .iter()
                .rev()
                .fold(0, |flags, &flag| flags << 1 | u8::from(flag));
        fixed[4..8].copy_from_slice(&(head.time as u32).to_le_bytes());
        fixed[9] = head.os as u8;
        let length = (extra.len() as u16).to_le_bytes();
        let length = if head.extra.is_null() { &[][..] } else { &length };
        let pieces = [&fixed[..], length, extra, text(head.name), text(head.comment)];
        let sum = pieces.iter().fold(0, |sum, piece| crc32(sum, piece));
        let sum = (sum as u16).to_le_bytes();
        let mut skip = state.front_at;
        for piece in pieces.into_iter().chain([if checked { &sum[..] } else { &[] }]) {
            let rest = &piece[skip.min(piece.len())..];
            skip -= skip.min(piece.len());
            let written = strm::write(strm, rest);
            state.front_at += written;
            if written != rest.len() {
                return false;
            }
        }
        true
    }
}
