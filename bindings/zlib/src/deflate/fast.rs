// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fast streams, which are packed by the kernels. Flushes other than the last are not for this path: see [`chained`](super::chained).
//!
//! - **Flow** if everything is given in the first call, with `Z_FINISH`, [`at_once`] packs it by a `Packer`; output that does not fit
//!   becomes pending. Pieces wait in the window until there are more than [`session_bytes`] or a flush comes. Then a [`session`] borrows
//!   a `PackStream`, gives it the history, packs up to a whole byte, and makes pending what does not fit.
//! - **Layout** window: one window of history, and up to [`session_bytes`] of waiting bytes. Both lie in the stream's memory, which is as
//!   much as zlib's.
//! - **Order** a session has [`session_bytes`] bytes, unless a flush ends it: so the output depends on the bytes and the flushes, not on
//!   the pieces in which they came nor on the room for output. At most one session's output is pending.

use super::settings::{Wrap, session_bytes, with_overhead};
use super::state::{Deflate, Route, Status};
use crate::counts::{self, Row};
use crate::memory::Buffer;
use crate::pool;
use crate::strm::{self, fail};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use libz_rs_sys::{Z_BINARY, Z_BUF_ERROR, Z_FINISH, Z_NO_FLUSH, Z_OK, Z_STREAM_END, Z_TEXT, z_stream};
use memlift_kernels::deflate::{self, Contents, Effort, Flush, Format, PackStream};

/// Largest message that is packed by `at_once`: one block, the same that a session makes of it.
const AT_ONCE_BYTES: usize = 32 << 10;

/// Returns the rank of a flush in zlib's order.
fn rank(flush: c_int) -> c_int {
    flush * 2 - if flush > 4 { 9 } else { 0 }
}

/// Returns true if a flush without new input is not stronger than the last one; zlib refuses it.
pub fn repeats(old_flush: c_int, flush: c_int) -> bool {
    rank(flush) <= rank(old_flush) && flush != Z_FINISH
}

/// Does a call of `deflate` for a stream that is fast, or becomes fast now. `flush` is none or the last one. Returns `None` and
/// does nothing if there is no memory for this path, or the settings allow no message in pieces.
///
/// # Safety
/// `strm` is the stream of `state`; its buffers are as the program gave them, and their pointers were checked.
pub unsafe fn deflate(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> Option<c_int> {
    // SAFETY: the caller guarantees the stream and its buffers.
    unsafe {
        let finished = state.status == Status::Finish;
        if (*strm).avail_out == 0 {
            return Some(fail(strm, Z_BUF_ERROR));
        }
        let (old_route, old_flush) = (state.route, state.last_flush);
        (state.route, state.last_flush) = (Route::Fast, flush);
        if !state.pending.is_empty() {
            if !state.drain(strm) || ((*strm).avail_out == 0 && !finished) {
                state.last_flush = -1;
                return Some(Z_OK);
            }
        } else if (*strm).avail_in == 0 && repeats(old_flush, flush) {
            return Some(fail(strm, Z_BUF_ERROR));
        }
        if finished {
            return Some(if (*strm).avail_in != 0 { fail(strm, Z_BUF_ERROR) } else { Z_STREAM_END });
        }
        if state.status == Status::Init {
            if flush == Z_FINISH && fits_at_once(state, strm) && at_once(state, strm) {
                return Some(end_of_call(state, strm, flush));
            }
            if !state.settings.has_sessions() {
                (state.route, state.last_flush) = (old_route, old_flush);
                return None;
            }
            let (front, bytes) = state.settings.front();
            let written = strm::write(strm, &front[..bytes]);
            state.pending.push(&front[written..bytes]);
            state.status = Status::Busy;
            if !state.pending.is_empty() {
                state.last_flush = -1;
                return Some(Z_OK);
            }
        }
        if ((*strm).avail_in != 0 || flush != Z_NO_FLUSH) && !take(state, strm, flush) {
            state.last_flush = old_flush;
            return None;
        }
        Some(end_of_call(state, strm, flush))
    }
}

/// Returns the result of `deflate` after the work is done.
unsafe fn end_of_call(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> c_int {
    // SAFETY: the caller guarantees a valid stream.
    let full = unsafe { (*strm).avail_out == 0 };
    if flush == Z_FINISH && state.status == Status::Finish && state.pending.is_empty() {
        return Z_STREAM_END;
    }
    if full {
        state.last_flush = -1;
    }
    Z_OK
}

/// Returns true if the whole message is given in this call, and a `Packer` can pack it.
unsafe fn fits_at_once(state: &Deflate, strm: *mut z_stream) -> bool {
    // SAFETY: the caller guarantees a valid stream.
    let (source, room) = unsafe { ((*strm).avail_in as usize, (*strm).avail_out as usize) };
    let bound = deflate::bound(state.settings.wrap.format(), source);
    source <= AT_ONCE_BYTES.min(state.settings.window_bytes())
        && (bound <= room || bound <= state.pending.room())
}

/// Packs a message that is given as a whole; returns false and does nothing if there is no memory.
unsafe fn at_once(state: &mut Deflate, strm: *mut z_stream) -> bool {
    let settings = state.settings;
    let format = settings.wrap.format();
    let Some(mut lent) = pool::WHOLE.take() else { return false };
    let whole = &mut *lent;
    // SAFETY: the buffers are as the program gave them, and nobody else uses them during the call. The packer has
    // initialized the bytes that it counts as written.
    unsafe {
        let (source, output) = (strm::input(strm), strm::output(strm));
        let bound = deflate::bound(format, source.len());
        let direct = output.len() >= bound;
        let target: &mut [MaybeUninit<u8>] = if direct {
            output
        } else {
            whole.scratch.clear();
            if whole.scratch.try_reserve(bound).is_err() {
                return false;
            }
            whole.scratch.spare_capacity_mut()
        };
        let Ok(bytes) = whole.packer.pack_uninit(format, Effort::Default, source, target) else {
            return false; // cannot happen: the target has room for the bound
        };
        let packed = core::slice::from_raw_parts_mut(target.as_mut_ptr().cast::<u8>(), bytes);
        let (front, front_bytes) = settings.front();
        packed[..front_bytes].copy_from_slice(&front[..front_bytes]);
        state.sum = match (settings.wrap, packed) {
            (Wrap::Zlib, &mut [.., a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
            (Wrap::Gzip, &mut [.., a, b, c, d, _, _, _, _]) => u32::from_le_bytes([a, b, c, d]),
            _ => state.sum,
        };
        if direct {
            strm::advance_output(strm, bytes);
        } else {
            whole.scratch.set_len(bytes);
            let written = strm::write(strm, &whole.scratch);
            state.pending.push(&whole.scratch[written..]);
        }
        state.total = source.len() as u64;
        set_data_type(strm, Contents::of(source));
        strm::consume_input(strm, source.len());
        if settings.wrap != Wrap::Raw {
            (*strm).adler = state.sum.into();
        }
        state.status = Status::Finish;
        counts::add(Row::PackWhole, state.total, bytes as u64, false);
    }
    true
}

/// Reads the input that the program offers, all of it unless the output is full; returns false if there is no memory.
unsafe fn take(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> bool {
    let most = session_bytes(state.settings.window_bits);
    // SAFETY: the caller guarantees that the buffers are as the program gave them.
    unsafe {
        loop {
            let (waiting, source) = (state.window.bytes().len(), strm::input(strm));
            let rest = waiting + source.len();
            if rest > most {
                if !session(state, strm, Flush::Sync, most - waiting) {
                    return false;
                }
            } else if flush == Z_NO_FLUSH {
                return wait(state, strm, source, most);
            } else {
                return session(state, strm, Flush::Finish, source.len());
            }
            if !state.pending.is_empty() || (*strm).avail_out == 0 {
                return true;
            }
        }
    }
}

/// Adds `source` to the waiting bytes; returns false if there is no memory.
unsafe fn wait(state: &mut Deflate, strm: *mut z_stream, source: &[u8], most: usize) -> bool {
    if source.is_empty() {
        return true;
    }
    debug_assert!(state.window.bytes().len() + source.len() <= most);
    // A stream with more than a window of waiting bytes cannot become chained, so a packer must be available from here on.
    if state.window.bytes().len() + source.len() > state.settings.window_bytes()
        && pool::STREAM.take().is_none()
    {
        return false;
    }
    state.window.push(source);
    // SAFETY: `source` is all of the stream's input.
    unsafe { read(state, strm, source) };
    true
}

/// Records that `source`, the first bytes of the input, was read.
unsafe fn read(state: &mut Deflate, strm: *mut z_stream, source: &[u8]) {
    state.count_input(source);
    // SAFETY: the caller guarantees a valid stream.
    unsafe {
        strm::consume_input(strm, source.len());
        if state.settings.wrap != Wrap::Raw {
            (*strm).adler = state.sum.into();
        }
    }
}

/// Packs the waiting bytes, up to a whole byte, into pending; returns false if there is no memory.
///
/// # Safety
/// `strm` is the stream of `state`.
pub unsafe fn settle(state: &mut Deflate, strm: *mut z_stream) -> bool {
    // SAFETY: the caller guarantees the stream; input and output are not accessed while their lengths are set to 0.
    unsafe {
        let hidden = ((*strm).avail_in, (*strm).avail_out);
        ((*strm).avail_in, (*strm).avail_out) = (0, 0);
        let done = session(state, strm, Flush::Sync, 0);
        ((*strm).avail_in, (*strm).avail_out) = hidden;
        done
    }
}

/// Packs the waiting bytes and `bytes` bytes of the input; returns false and does nothing if there is no memory.
unsafe fn session(state: &mut Deflate, strm: *mut z_stream, flush: Flush, bytes: usize) -> bool {
    let settings = state.settings;
    let history = if flush == Flush::Sync { settings.window_bytes() } else { 0 };
    // SAFETY: the buffers are as the program gave them, and nobody else uses them during the call.
    unsafe {
        let source = &strm::input(strm)[..bytes];
        let most = with_overhead(state.window.bytes().len() + bytes);
        let short = ((*strm).avail_out as usize) < most;
        if short && state.pending.room() < most {
            return false;
        }
        {
            let Some(mut stream) = pool::STREAM.take() else { return false };
            stream.reset(Format::Raw, Effort::Default);
            stream.set_window_bits(settings.window_bits);
            let past = &state.window.whole()[..state.window.at];
            if !past.is_empty() {
                stream.set_history(past);
            }
            let waiting = state.window.bytes();
            if (*strm).data_type == strm::UNKNOWN {
                let contents = match (Contents::of(waiting), Contents::of(source)) {
                    (first, _) if source.is_empty() => first,
                    (_, second) if waiting.is_empty() => second,
                    (Contents::Text, Contents::Text) => Contents::Text,
                    _ => Contents::Binary,
                };
                set_data_type(strm, contents);
            }
            let first = if source.is_empty() { flush } else { Flush::None };
            if !waiting.is_empty() || source.is_empty() {
                push(&mut stream, waiting, first, strm, &mut state.pending);
            }
            if !source.is_empty() {
                push(&mut stream, source, flush, strm, &mut state.pending);
            }
        }
        save_history(&mut state.window, source, history);
        read(state, strm, source);
        if flush == Flush::Finish {
            let (back, bytes) = settings.back(state.sum, state.total);
            let written = if state.pending.is_empty() { strm::write(strm, &back[..bytes]) } else { 0 };
            state.pending.push(&back[written..bytes]);
            state.status = Status::Finish;
            let waits = state.pending.bytes().len() as u64;
            counts::add(Row::PackStream, state.total, (*strm).total_out + waits, false);
        }
    }
    true
}

/// Pushes all of `source`; the packed bytes go to the output, and then to pending.
unsafe fn push(
    stream: &mut PackStream,
    source: &[u8],
    flush: Flush,
    strm: *mut z_stream,
    pending: &mut Buffer,
) {
    let mut read = 0;
    loop {
        // SAFETY: the output is as the program gave it; the stream has initialized the bytes that it counts as written.
        let pushed = unsafe {
            if pending.is_empty() && (*strm).avail_out != 0 {
                let pushed = stream.push_uninit(&source[read..], strm::output(strm), flush);
                strm::advance_output(strm, pushed.written);
                pushed
            } else {
                let pushed = stream.push_uninit(&source[read..], pending.free_room(), flush);
                pending.grow(pushed.written);
                pushed
            }
        };
        read += pushed.read;
        if read == source.len() && !pushed.more {
            return;
        }
        assert!(pushed.read + pushed.written != 0 || pending.is_empty(), "pending has its bound");
    }
}

/// Makes the last `bytes` bytes of the window, followed by those of `came`, the history.
fn save_history(window: &mut Buffer, came: &[u8], bytes: usize) {
    if bytes == 0 {
        return window.clear();
    }
    let came = &came[came.len().saturating_sub(bytes)..];
    window.retain_last(bytes - came.len());
    window.push(came);
    window.at = window.end;
}

/// Sets `data_type`, unless an earlier block has set it.
///
/// # Safety
/// `strm` is valid.
pub unsafe fn set_data_type(strm: *mut z_stream, contents: Contents) {
    // SAFETY: the caller guarantees a valid stream.
    unsafe {
        if (*strm).data_type == strm::UNKNOWN {
            (*strm).data_type = if contents == Contents::Text { Z_TEXT } else { Z_BINARY };
        }
    }
}
