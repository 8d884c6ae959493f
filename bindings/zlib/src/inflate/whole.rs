// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stream whose packed bytes are all here: the unpacker does it at once.
//!
//! Flow    frame and codes looked at ──▶ unpacked into the program's output ──▶ done
//!         output too small ──▶ unpacked into memory of the stream, at most [`SERVED_BYTES`], and served from there
//!         asked for something else than bytes ([`take_over`]) ──▶ zlib-rs's state is made what it would be by then
//! Order   input is read with the last byte delivered, all of it: until then it is there for zlib-rs to begin anew, and a program may
//!         loop until either is used up.
//! Not here frames with a preset dictionary, a checksum of the header, or anything that is wrong: zlib-rs.

use super::state::{Inflate, Route};
use super::strict;
use super::{open, port};
use crate::counts::{self, Row};
use crate::pool;
use crate::strm::{self, with_inner};
use core::ffi::c_int;
use core::ptr;
use libz_rs_sys::{Z_BUF_ERROR, Z_FINISH, Z_NO_FLUSH, Z_OK, Z_STREAM_END, Z_STREAM_ERROR, z_stream};
use memlift_kernels::deflate::{self, Format, UnpackError, Unpacked};

/// The most that is unpacked ahead of the program.
const SERVED_BYTES: usize = 1 << 20;
/// `data_type` of a stream whose last block ended, with no bits left.
const ENDED: c_int = 64;

/// `inflate` of a stream that has not begun. `None`: nothing happened, zlib-rs has to do it.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are as the program gave them.
pub unsafe fn try_all(state: &mut Inflate, strm: *mut z_stream) -> Option<c_int> {
    // SAFETY: the caller vouches for it; nobody else uses the buffers during the call.
    unsafe {
        let (source, room) = (strm::input(strm), (*strm).avail_out as usize);
        let (format, window_bits) = format(state, source)?;
        if !strict::is_plain(format, source) {
            return None;
        }
        let likely = match format {
            Format::Gzip => length_at_end(source)?,
            Format::Zlib | Format::Raw => source.len().saturating_mul(2),
        };
        // In pieces, zlib refuses distances beyond the window that the program asked for; in one piece it does not.
        let may_serve = !state.memory.is_foreign() && source.len() <= SERVED_BYTES / 2 && window_bits == 15;
        if likely <= room || !may_serve {
            match pool::UNPACK.take().unpack_raw(format, source, (*strm).next_out, room) {
                Ok(unpacked) => {
                    done(state, strm, format, &unpacked, source);
                    settle_window(state, window_bits);
                    return Some(Z_STREAM_END);
                }
                Err(UnpackError::TargetTooSmall) if may_serve => {}
                Err(_) => return None,
            }
        }
        let guess = match format {
            Format::Gzip => likely,
            Format::Zlib | Format::Raw => (source.len() * 8).max(room * 4).max(1 << 16),
        };
        state.served.clear();
        if guess > SERVED_BYTES || !state.served.reserve(&state.memory, guess) {
            return None;
        }
        let target = state.served.free_room();
        let (start, bytes) = (target.as_mut_ptr().cast(), target.len());
        let unpacked = pool::UNPACK.take().unpack_raw(format, source, start, bytes).ok()?;
        state.served.grow(unpacked.written);
        (state.route, state.format, state.owed) = (Route::Served, format, unpacked.read);
        settle_window(state, window_bits);
        (*strm).adler = match format {
            Format::Raw => (*strm).adler,
            Format::Zlib => 1,
            Format::Gzip => 0,
        };
        counts::add(Row::UnpackWhole, unpacked.read as u64, unpacked.written as u64, false);
        let code = serve(state, strm, Z_FINISH);
        if code == Z_STREAM_END {
            state.served.clear(); // zlib keeps no window of a message that ends in its first call
        }
        Some(code)
    }
}

/// `inflate` of a stream that was unpacked ahead.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are as the program gave them.
pub unsafe fn serve(state: &mut Inflate, strm: *mut z_stream, flush: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        let rest = state.served.bytes();
        let written = strm::write(strm, rest);
        (*strm).adler = match state.format {
            Format::Raw => (*strm).adler,
            Format::Zlib => deflate::adler32((*strm).adler as u32, &rest[..written]).into(),
            Format::Gzip => deflate::crc32((*strm).adler as u32, &rest[..written]).into(),
        };
        state.served.at += written;
        let read = if state.served.is_empty() { state.owed.min((*strm).avail_in as usize) } else { 0 };
        strm::took(strm, read);
        state.owed -= read;
        state.begun |= read != 0;
        if state.served.is_empty() && state.owed == 0 {
            state.route = Route::Done;
            (*strm).data_type = ENDED;
            return Z_STREAM_END;
        }
        if flush == Z_FINISH || read + written == 0 { Z_BUF_ERROR } else { Z_OK }
    }
}

/// Notes that everything went straight to the program.
unsafe fn done(state: &mut Inflate, strm: *mut z_stream, format: Format, unpacked: &Unpacked, source: &[u8]) {
    // SAFETY: the stream is valid; the unpacker stayed within its buffers.
    unsafe {
        strm::took(strm, unpacked.read);
        strm::gave(strm, unpacked.written);
        // The unpacker compared the checksum with the one in the frame.
        match (format, &source[..unpacked.read]) {
            (Format::Zlib, &[.., a, b, c, d]) => (*strm).adler = u32::from_be_bytes([a, b, c, d]).into(),
            (Format::Gzip, &[.., a, b, c, d, _, _, _, _]) => {
                (*strm).adler = u32::from_le_bytes([a, b, c, d]).into();
            }
            _ => {}
        }
        (*strm).data_type = ENDED;
    }
    (state.route, state.format) = (Route::Done, format);
    counts::add(Row::UnpackWhole, unpacked.read as u64, unpacked.written as u64, false);
}

/// The first frame fixes the window of those that follow, until `inflateReset2`, if the program left it open.
fn settle_window(state: &mut Inflate, window_bits: i32) {
    if state.learns_window() {
        state.bits |= window_bits;
    }
}

/// Makes zlib-rs's state what it would be had it done all of the stream so far, and the stream its own.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are as the program gave them.
pub unsafe fn take_over(state: &mut Inflate, strm: *mut z_stream) -> c_int {
    let (route, bits) = (state.route, state.bits);
    // SAFETY: the caller vouches for it. The program's buffers are put aside, and the fields that go on put back.
    unsafe {
        let before = ptr::read(strm);
        if !state.inner.is_null() {
            with_inner(strm, &mut state.inner, |strm| libz_rs_sys::inflateReset2(strm, bits));
            ptr::write(strm, z_stream { state: (*strm).state, ..before });
        }
        let code = open(state, strm);
        if code != Z_OK {
            return code;
        }
        state.counted = true;
        let mut sink = [0u8; 4096];
        if route == Route::Done {
            let end = empty_message(state.format);
            ((*strm).next_in, (*strm).avail_in) = (end.as_ptr(), end.len() as u32);
            ((*strm).next_out, (*strm).avail_out) = (sink.as_mut_ptr(), 1);
            port::inflate(state, strm, Z_FINISH);
            state.stopped = true;
            ptr::write(strm, z_stream { state: (*strm).state, ..before });
            return Z_OK;
        }
        if state.begun {
            return Z_STREAM_ERROR; // the input was taken away while it was needed
        }
        let mut left = state.served.at;
        loop {
            let room = left.min(sink.len());
            ((*strm).next_out, (*strm).avail_out) = (sink.as_mut_ptr(), room as u32);
            port::inflate(state, strm, Z_NO_FLUSH);
            let written = room - (*strm).avail_out as usize;
            left -= written;
            if left == 0 || written == 0 {
                break;
            }
        }
        ((*strm).next_out, (*strm).avail_out) = (before.next_out, before.avail_out);
        ((*strm).total_out, (*strm).adler) = (before.total_out, before.adler);
        if left == 0 && !state.broken { Z_OK } else { Z_STREAM_ERROR }
    }
}

/// The shortest stream of this format, for any window.
fn empty_message(format: Format) -> &'static [u8] {
    match format {
        Format::Raw => &[3, 0],
        Format::Zlib => &[0x08, 0x1d, 3, 0, 0, 0, 0, 1],
        Format::Gzip => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// Which frame it is, and the window that zlib takes, in bits. `None`: one that only zlib-rs knows what to do with.
fn format(state: &Inflate, source: &[u8]) -> Option<(Format, i32)> {
    if state.is_raw() {
        return (!source.is_empty()).then_some((Format::Raw, -state.bits));
    }
    let (zlib, gzip) = state.welcomes();
    let asked = state.bits & 15;
    match *source {
        [0x1f, 0x8b, 8, flags, ..] if gzip => {
            (flags & 0xe2 == 0).then_some((Format::Gzip, if asked == 0 { 15 } else { asked }))
        }
        [method, level, ..] if zlib => {
            let named = i32::from(method >> 4) + 8;
            let bits = if asked == 0 { named } else { asked };
            let fine = u16::from_be_bytes([method, level]) % 31 == 0
                && method & 15 == 8
                && named <= bits.min(15)
                && level & 0x20 == 0;
            fine.then_some((Format::Zlib, bits))
        }
        _ => None,
    }
}

/// What a gzip frame at the end of `source` says about its length.
fn length_at_end(source: &[u8]) -> Option<usize> {
    Some(u32::from_le_bytes(*source.last_chunk()?) as usize)
}
