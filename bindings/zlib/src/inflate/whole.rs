// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stream whose packed bytes are all here: the unpacker does it at once.
//!
//! Flow    frame looked at ──▶ unpacked into the program's output ──▶ done
//!         output too small ──▶ unpacked into memory of the stream, at most [`SERVED_BYTES`], and served from there
//! Order   while output is left, some input is left as well, as with zlib: a program may loop until either is used up.
//! Not here frames with a preset dictionary, a checksum of the header, or anything that is wrong: zlib-rs.

use super::state::{Inflate, Route};
use crate::counts::{self, Row};
use crate::pool;
use crate::strm;
use core::ffi::c_int;
use libz_rs_sys::{Z_BUF_ERROR, Z_FINISH, Z_OK, Z_STREAM_END, z_stream};
use memlift_kernels::deflate::{self, Format, UnpackError, Unpacked};

/// The most that is unpacked ahead of the program.
const SERVED_BYTES: usize = 1 << 20;

/// `inflate` of a stream that has not begun. `None`: nothing happened, zlib-rs has to do it.
///
/// # Safety
/// `strm` is the stream of `state`, its buffers are as the program gave them.
pub unsafe fn try_all(state: &mut Inflate, strm: *mut z_stream) -> Option<c_int> {
    // SAFETY: the caller vouches for it; nobody else uses the buffers during the call.
    unsafe {
        let (source, room) = (strm::input(strm), (*strm).avail_out as usize);
        let format = format(state, source)?;
        let likely = match format {
            Format::Gzip => length_at_end(source)?,
            Format::Zlib | Format::Raw => source.len().saturating_mul(2),
        };
        let may_serve = !state.memory.is_foreign() && source.len() <= SERVED_BYTES / 2;
        if likely <= room || !may_serve {
            match pool::UNPACK.take().unpack_raw(format, source, (*strm).next_out, room) {
                Ok(unpacked) => {
                    done(state, strm, format, &unpacked, source);
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
        (state.route, state.owed) = (Route::Served, unpacked.read);
        state.back = back(format).max(1).min(unpacked.read);
        (*strm).adler = match format {
            Format::Raw => (*strm).adler,
            Format::Zlib => 1,
            Format::Gzip => 0,
        };
        counts::add(Row::UnpackWhole, unpacked.read as u64, unpacked.written as u64, false);
        Some(serve(state, strm, Z_FINISH))
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
        (*strm).adler = match (state.back, state.is_raw()) {
            (_, true) => (*strm).adler,
            (4, _) => deflate::adler32((*strm).adler as u32, &rest[..written]).into(),
            _ => deflate::crc32((*strm).adler as u32, &rest[..written]).into(),
        };
        state.served.at += written;
        let held = if state.served.is_empty() { 0 } else { state.back };
        let read = state.owed.saturating_sub(held).min((*strm).avail_in as usize);
        strm::took(strm, read);
        state.owed -= read;
        if state.served.is_empty() && state.owed == 0 {
            state.route = Route::Done;
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
        (*strm).data_type = 64; // the last block ended, and no bits are left
    }
    state.route = Route::Done;
    counts::add(Row::UnpackWhole, unpacked.read as u64, unpacked.written as u64, false);
}

/// Bytes behind the deflate stream.
fn back(format: Format) -> usize {
    match format {
        Format::Raw => 0,
        Format::Zlib => 4,
        Format::Gzip => 8,
    }
}

/// Which frame it is. `None`: one that only zlib-rs knows what to do with.
fn format(state: &Inflate, source: &[u8]) -> Option<Format> {
    if state.is_raw() {
        return (!source.is_empty()).then_some(Format::Raw);
    }
    let (zlib, gzip) = state.welcomes();
    match *source {
        [0x1f, 0x8b, 8, flags, ..] if gzip => (flags & 0xe2 == 0).then_some(Format::Gzip),
        [method, level, ..] if zlib => {
            let bits = if state.bits & 15 == 0 { 15 } else { state.bits & 15 };
            let fine = u16::from_be_bytes([method, level]) % 31 == 0
                && method & 15 == 8
                && i32::from(method >> 4) + 8 <= bits
                && level & 0x20 == 0;
            fine.then_some(Format::Zlib)
        }
        _ => None,
    }
}

/// What a gzip frame at the end of `source` says about its length.
fn length_at_end(source: &[u8]) -> Option<usize> {
    Some(u32::from_le_bytes(*source.last_chunk()?) as usize)
}
