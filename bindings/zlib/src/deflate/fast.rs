// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams that the kernels pack.
//!
//! Flow    everything in the first call, with `Z_FINISH` ──[`at_once`]: `Packer`──▶ output, what does not fit pending
//!         pieces ──wait in the window until it is full or a flush comes──[`session`]: a `PackStream` is lent, learns the
//!         history, packs what waits and what comes, ends at a whole byte──▶ output, what does not fit pending
//! Layout  window: one window of history and [`session_bytes`] that wait. With the program's own `zalloc` window and pending
//!         together stay below what zlib itself asks for at these settings.
//! Order   at most [`session_bytes`] are begun that the output has no room for: so pending has a bound.

use super::settings::Wrap;
use super::state::{Deflate, Route, Status};
use crate::counts::{self, Row};
use crate::memory::Buffer;
use crate::pool;
use crate::strm::{self, fail};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use libz_rs_sys::{
    Z_BINARY, Z_BUF_ERROR, Z_FINISH, Z_FULL_FLUSH, Z_MEM_ERROR, Z_NO_FLUSH, Z_OK, Z_STREAM_END,
    Z_STREAM_ERROR, Z_SYNC_FLUSH, Z_TEXT, z_stream,
};
use memlift_kernels::deflate::{self, Flush, PackStream};

/// The largest message that is packed into scratch memory when the output may be too small.
const SCRATCH_BYTES: usize = 128 << 10;
/// Bytes that decide about `data_type`.
const LOOK_BYTES: usize = 1024;

/// Whether the fast path knows this flush.
pub fn takes(flush: c_int) -> bool {
    matches!(flush, Z_NO_FLUSH | Z_SYNC_FLUSH | Z_FULL_FLUSH | Z_FINISH)
}

/// The most that waits, in bytes.
pub fn session_bytes(window_bits: u32, foreign: bool) -> usize {
    let share = 11 << (window_bits - 2); // history and this are 3.75 windows; zlib has 4
    if foreign { share } else { share.max(11 << 13) }
}

/// Room for the frame, the flush and the blocks of packed bytes that did not get shorter.
fn with_overhead(bytes: usize) -> usize {
    bytes + bytes / 2048 + 160
}

/// zlib's order of flushes.
fn rank(flush: c_int) -> c_int {
    flush * 2 - if flush > 4 { 9 } else { 0 }
}

/// `deflate` of a stream that is fast, or becomes it now.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are as the program gave them.
pub unsafe fn deflate(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> c_int {
    // SAFETY: the caller vouches for it; null is looked for before the buffers are used.
    unsafe {
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
        state.route = Route::Fast;
        let old_flush = core::mem::replace(&mut state.last_flush, flush);
        if !state.pending.is_empty() {
            if !state.drain(strm) || ((*strm).avail_out == 0 && !finished) {
                state.last_flush = -1;
                return Z_OK;
            }
        } else if (*strm).avail_in == 0 && rank(flush) <= rank(old_flush) && flush != Z_FINISH {
            return fail(strm, Z_BUF_ERROR);
        }
        if finished {
            return if (*strm).avail_in != 0 { fail(strm, Z_BUF_ERROR) } else { Z_STREAM_END };
        }
        if state.status == Status::Init {
            look(strm);
            if flush == Z_FINISH && fits_at_once(state, strm) {
                if !at_once(state, strm) {
                    return fail(strm, Z_MEM_ERROR);
                }
                return end_of_call(state, strm, flush);
            }
            let (front, bytes) = state.settings.front();
            let written = strm::write(strm, &front[..bytes]);
            if written != bytes {
                if !state.pending.reserve(&state.memory, bytes) {
                    return fail(strm, Z_MEM_ERROR);
                }
                state.pending.push(&front[written..bytes]);
            }
            state.status = Status::Busy;
            if !state.pending.is_empty() {
                state.last_flush = -1;
                return Z_OK;
            }
        }
        let again = old_flush == -1 && state.clean && (*strm).avail_in == 0 && flush != Z_FINISH;
        if ((*strm).avail_in != 0 || flush != Z_NO_FLUSH) && !again && !take(state, strm, flush) {
            return fail(strm, Z_MEM_ERROR);
        }
        end_of_call(state, strm, flush)
    }
}

/// What `deflate` returns when the work is done.
unsafe fn end_of_call(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> c_int {
    // SAFETY: the stream is valid.
    let full = unsafe { (*strm).avail_out == 0 };
    if flush == Z_FINISH && state.status == Status::Finish && state.pending.is_empty() {
        return Z_STREAM_END;
    }
    if full {
        state.last_flush = -1;
    }
    Z_OK
}

/// Whether the message is here as a whole, and the packer can have it.
unsafe fn fits_at_once(state: &Deflate, strm: *mut z_stream) -> bool {
    // SAFETY: the stream is valid.
    let (source, room) = unsafe { ((*strm).avail_in as usize, (*strm).avail_out as usize) };
    let settings = &state.settings;
    let near = settings.window_bits == 15 || source <= settings.window_bytes();
    near && (source <= SCRATCH_BYTES || room >= deflate::bound(settings.wrap.format(), source))
}

/// Packs a message that is here as a whole. `false`: no memory.
unsafe fn at_once(state: &mut Deflate, strm: *mut z_stream) -> bool {
    let settings = state.settings;
    let (format, effort) = (settings.wrap.format(), settings.effort());
    let mut lent = pool::WHOLE.take();
    let whole = &mut *lent;
    // SAFETY: the buffers are as the program gave them, and nobody else uses them during the call. What the packer
    // says it wrote is initialized.
    unsafe {
        let (source, output) = (strm::input(strm), strm::output(strm));
        let bound = deflate::bound(format, source.len());
        let direct = output.len() >= bound;
        let target: &mut [MaybeUninit<u8>] = if direct {
            output
        } else {
            whole.scratch.clear();
            whole.scratch.reserve(bound);
            whole.scratch.spare_capacity_mut()
        };
        let Ok(bytes) = whole.packer.pack_uninit(format, effort, source, target) else {
            return false; // never: the target has its bound
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
            strm::gave(strm, bytes);
        } else {
            whole.scratch.set_len(bytes);
            let rest = bytes.saturating_sub((*strm).avail_out as usize);
            if rest != 0 && !state.pending.reserve(&state.memory, rest.next_multiple_of(4096)) {
                return false;
            }
            let written = strm::write(strm, &whole.scratch);
            state.pending.push(&whole.scratch[written..]);
        }
        state.total = source.len() as u64;
        strm::took(strm, source.len());
        (*strm).adler = state.sum.into();
        state.status = Status::Finish;
        counts::add(Row::PackWhole, state.total, bytes as u64, false);
    }
    true
}

/// Reads what the program offers, all of it unless the output is short. `false`: no memory.
unsafe fn take(state: &mut Deflate, strm: *mut z_stream, flush: c_int) -> bool {
    let session_bytes = session_bytes(state.settings.window_bits, state.memory.is_foreign());
    // SAFETY: the buffers are as the program gave them.
    unsafe {
        let source = strm::input(strm);
        if flush != Z_NO_FLUSH || state.window.bytes().len() + source.len() > session_bytes {
            return session(state, strm, flush, session_bytes);
        }
        if !state.window.reserve(&state.memory, state.settings.window_bytes() + session_bytes) {
            return false;
        }
        state.window.push(source);
        state.saw(source);
        strm::took(strm, source.len());
        (*strm).adler = state.sum.into();
        state.clean = false;
        true
    }
}

/// Packs what waits, up to a whole byte, into pending. `false`: no memory.
///
/// # Safety
/// `strm` is the stream of `state`.
pub unsafe fn settle(state: &mut Deflate, strm: *mut z_stream) -> bool {
    // SAFETY: the caller vouches for it; input and output are not looked at while they are hidden.
    unsafe {
        let hidden = ((*strm).avail_in, (*strm).avail_out);
        ((*strm).avail_in, (*strm).avail_out) = (0, 0);
        let bytes = session_bytes(state.settings.window_bits, state.memory.is_foreign());
        let done = session(state, strm, Z_SYNC_FLUSH, bytes);
        ((*strm).avail_in, (*strm).avail_out) = hidden;
        done
    }
}

/// Packs what waits and what the program offers. `false`: no memory; nothing happened then.
unsafe fn session(state: &mut Deflate, strm: *mut z_stream, flush: c_int, session_bytes: usize) -> bool {
    let settings = state.settings;
    let history = if flush == Z_FINISH || flush == Z_FULL_FLUSH { 0 } else { settings.window_bytes() };
    // SAFETY: the buffers are as the program gave them, and nobody else uses them during the call.
    unsafe {
        let source = strm::input(strm);
        let waiting = state.window.bytes().len();
        let room = (*strm).avail_out as usize;
        if history != 0 && !state.window.reserve(&state.memory, settings.window_bytes() + session_bytes) {
            return false;
        }
        let most = 2 * with_overhead(waiting + source.len()) - waiting - source.len();
        if room < most && !state.pending.reserve(&state.memory, most.min(with_overhead(session_bytes))) {
            return false;
        }

        let mut lent = pool::STREAM.take();
        let stream = &mut *lent;
        stream.reset(deflate::Format::Raw, settings.effort());
        stream.set_window_bits(settings.window_bits);
        let past = &state.window.whole()[..state.window.at];
        if !past.is_empty() {
            stream.set_history(past);
        }
        // `held`: read by the packer, not written yet; the output has room for it.
        let (mut read, mut held) = (0, 0);
        loop {
            let first = if read == 0 { waiting } else { 0 };
            let piece = (source.len() - read).min(session_bytes - first);
            let begun = held + first + piece;
            let all = read + piece == source.len();
            let stop = ((*strm).avail_out as usize) < with_overhead(begun);
            let flush = match (all, stop) {
                (true, _) => match flush {
                    Z_FINISH => Flush::Finish,
                    Z_FULL_FLUSH => Flush::Full,
                    _ => Flush::Sync,
                },
                (false, true) => Flush::Sync,
                (false, false) => Flush::None,
            };
            if first != 0 {
                let none = if piece == 0 { flush } else { Flush::None };
                push(stream, state.window.bytes(), none, strm, &mut state.pending);
            }
            if piece != 0 || first == 0 {
                push(stream, &source[read..read + piece], flush, strm, &mut state.pending);
            }
            read += piece;
            held = begun.min(deflate_held());
            if all || stop {
                break;
            }
        }
        drop(lent);

        state.saw(&source[..read]);
        keep_history(&mut state.window, &source[..read], history);
        state.clean = flush != Z_NO_FLUSH && read == source.len();
        if flush == Z_FINISH && read == source.len() {
            let (back, bytes) = settings.back(state.sum, state.total);
            let written = if state.pending.is_empty() { strm::write(strm, &back[..bytes]) } else { 0 };
            state.pending.push(&back[written..bytes]);
            state.status = Status::Finish;
            let waits = state.pending.bytes().len() as u64;
            counts::add(Row::PackStream, state.total, (*strm).total_out + waits, false);
        }
        strm::took(strm, read);
        (*strm).adler = state.sum.into();
    }
    true
}

/// The most that a `PackStream` has read and not written.
const fn deflate_held() -> usize {
    64 << 10
}

/// Pushes all of `source`, into the output and then into pending.
unsafe fn push(
    stream: &mut PackStream,
    source: &[u8],
    flush: Flush,
    strm: *mut z_stream,
    pending: &mut Buffer,
) {
    let mut read = 0;
    loop {
        // SAFETY: the output is as the program gave it; what the stream says it wrote is initialized.
        let pushed = unsafe {
            if pending.is_empty() && (*strm).avail_out != 0 {
                let pushed = stream.push_uninit(&source[read..], strm::output(strm), flush);
                strm::gave(strm, pushed.written);
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

/// Makes the last `bytes` bytes of the window and of what came after it the history.
fn keep_history(window: &mut Buffer, came: &[u8], bytes: usize) {
    if bytes == 0 {
        return window.clear();
    }
    let came = &came[came.len().saturating_sub(bytes)..];
    window.keep_last(bytes - came.len());
    window.push(came);
    window.at = window.end;
}

/// Sets `data_type` by the first bytes, with zlib's idea of text.
unsafe fn look(strm: *mut z_stream) {
    // SAFETY: the input is as the program gave it.
    unsafe {
        let source = strm::input(strm);
        let source = &source[..source.len().min(LOOK_BYTES)];
        if !source.is_empty() {
            let odd = |byte: u8| matches!(byte, 0..=6 | 14..=25 | 28..=31);
            let plain = |byte: u8| matches!(byte, 9 | 10 | 13 | 32..);
            let mut seen = (false, false);
            for &byte in source {
                seen = (seen.0 | odd(byte), seen.1 | plain(byte));
            }
            (*strm).data_type = if !seen.0 && seen.1 { Z_TEXT } else { Z_BINARY };
        }
    }
}
