// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `inflateSync`: searches for an empty stored block, from which on a damaged stream can be read again.

use super::decoder::Mode;
use super::reset;
use super::state::Inflate;
use core::ffi::c_int;
use libz_rs_sys::{Z_BUF_ERROR, Z_DATA_ERROR, Z_OK, z_stream};

/// Searches for the bytes 0, 0, 255, 255, of which `have` were found before. Returns how many are found now, and how many bytes
/// were read.
fn search(mut have: u32, bytes: &[u8]) -> (u32, usize) {
    let mut read = 0;
    while read < bytes.len() && have < 4 {
        let byte = bytes[read];
        have = match byte {
            _ if byte == if have < 2 { 0 } else { 0xff } => have + 1,
            0 => 4 - have,
            _ => 0,
        };
        read += 1;
    }
    (have, read)
}

/// Does a call of `inflateSync`.
///
/// # Safety
/// `strm` is the stream of `state`, and its input is valid.
pub unsafe fn sync(strm: *mut z_stream, state: &mut Inflate) -> c_int {
    // SAFETY: the caller guarantees the stream and its input.
    unsafe {
        let core = &mut state.core;
        if (*strm).avail_in == 0 && core.bits < 8 {
            return Z_BUF_ERROR;
        }
        if core.mode != Mode::Sync {
            core.mode = Mode::Sync;
            core.drop(core.bits & 7);
            let held = core.hold.to_le_bytes();
            let bytes = core.bits as usize / 8;
            (core.hold, core.bits) = (0, 0);
            core.have = search(0, &held[..bytes]).0;
        }
        let input = crate::strm::input(strm);
        let (have, read) = search(core.have, input);
        core.have = have;
        crate::strm::consume_input(strm, read);
        if have != 4 {
            return Z_DATA_ERROR;
        }
        // If no frame has begun, the rest is read as raw; in a frame, the checksum cannot be compared any more.
        core.wrap = if core.flags == -1 { 0 } else { core.wrap & !4 };
        let kept = (core.flags, (*strm).total_in, (*strm).total_out);
        reset(strm, state, false);
        (state.core.flags, (*strm).total_in, (*strm).total_out) = kept;
        state.core.mode = Mode::Type;
        Z_OK
    }
}
