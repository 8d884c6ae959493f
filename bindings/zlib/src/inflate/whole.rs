// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unpacks a whole zlib stream in one call, for `uncompress`.
//!
//! - **Owner** the decoder is on the stack, and the target is the history: nothing is allocated.

use super::decoder::{Decoder, Io};
use core::ffi::c_int;
use libz_rs_sys::{Z_BUF_ERROR, Z_DATA_ERROR, Z_FINISH, Z_NEED_DICT, Z_OK, Z_STREAM_END, z_stream};

/// Unpacks the stream at the start of the source. Returns zlib's code, and the bytes read and written.
///
/// # Safety
/// `source` can be read for `source_bytes`, `target` written for `target_bytes`, and they do not overlap.
pub unsafe fn unpack(
    source: *const u8,
    source_bytes: usize,
    target: *mut u8,
    target_bytes: usize,
) -> (c_int, usize, usize) {
    let mut core = Decoder::new(15);
    let mut strm = z_stream::default();
    let mut one = 0u8;
    // For a target of no bytes zlib unpacks into a buffer of one byte and throws it away.
    let (output, room) = if target_bytes == 0 { (&raw mut one, 1) } else { (target, target_bytes) };
    let mut io = Io {
        input: source,
        have: source_bytes,
        output,
        room,
        begin: output,
        summed: output,
        most_distance: usize::MAX,
        message: None,
    };
    // SAFETY: the caller guarantees the buffers; of the stream only the checksum field is used.
    let code = unsafe { core.run(&mut io, &mut strm, Z_FINISH, &mut 0) };
    let (read, written) = (source_bytes - io.have, room - io.room);
    let code = match code {
        Z_STREAM_END => Z_OK,
        Z_NEED_DICT => Z_DATA_ERROR,
        // Room is left, so input was missing; for a target of no bytes zlib gives the same code.
        Z_OK if io.room != 0 || target_bytes == 0 => Z_DATA_ERROR,
        Z_OK => Z_BUF_ERROR,
        other => other,
    };
    (code, read, if target_bytes == 0 { 0 } else { written })
}
