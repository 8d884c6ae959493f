// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zlib-rs as the one to compare with.

use libz_rs_sys as z;
use memlift_kernels::deflate::Format;
use std::ffi::CStr;

/// How zlib-rs unpacked.
pub(crate) struct Inflated {
    /// `Z_STREAM_END`, `Z_BUF_ERROR` (more bytes wanted, or more room), `Z_DATA_ERROR`, …
    pub code: i32,
    /// Text of the error.
    pub text: String,
    /// Bytes of the source that it used.
    pub read: usize,
    /// Bytes that it gave.
    pub bytes: Vec<u8>,
}

/// Unpacks the message at the start of `packed`, at most `room` bytes of it.
pub(crate) fn inflate(format: Format, packed: &[u8], room: usize) -> Inflated {
    let bits = match format {
        Format::Raw => -15,
        Format::Zlib => 15,
        Format::Gzip => 31,
    };
    let mut strm = z::z_stream::default();
    (strm.zalloc, strm.zfree) = (None, None);
    let mut bytes = vec![0; room];
    // SAFETY: the stream is initialized and ended once; input and output are those of slices.
    unsafe {
        let size = size_of::<z::z_stream>() as i32;
        assert_eq!(z::inflateInit2_(&mut strm, bits, z::zlibVersion(), size), z::Z_OK);
        (strm.next_in, strm.avail_in) = (packed.as_ptr(), packed.len() as u32);
        (strm.next_out, strm.avail_out) = (bytes.as_mut_ptr(), room as u32);
        let code = z::inflate(&mut strm, z::Z_FINISH);
        let text = if strm.msg.is_null() {
            String::new()
        } else {
            CStr::from_ptr(strm.msg).to_string_lossy().into_owned()
        };
        bytes.truncate(room - strm.avail_out as usize);
        let read = packed.len() - strm.avail_in as usize;
        z::inflateEnd(&mut strm);
        Inflated { code, text, read, bytes }
    }
}
