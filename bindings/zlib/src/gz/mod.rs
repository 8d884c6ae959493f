// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libz's `gz*` functions: a file that is packed or unpacked as it is written or read.
//!
//! - **Flow** open and place ([`open`], here) ──▶ [`read`]: file ──▶ input buffer ──inflate──▶ output buffer ──▶ program; [`write`]: program ──▶
//!   input buffer ──deflate──▶ output buffer ──▶ file. Both call what this library exports, so files take the fast path.
//! - **Order** as in zlib: what comes out before an error, which error is told and when, and what a reset of the error allows.
//! - **Owner** a [`Gz`] and its buffers come from malloc; the first three fields are the program's to look at (`gzgetc` is a macro).

mod open;
mod place;
mod read;
mod write;

pub use place::gzerror;
pub use write::gzwrite;

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use libz_rs_sys::{Z_BUF_ERROR, Z_MEM_ERROR, Z_OK, gzFile, z_stream};

/// Bytes of the input buffer until `gzbuffer` says otherwise.
const BUFFER_BYTES: c_uint = 8192;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

/// Contents of a file at the place where it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// To be found out.
    Look,
    /// Bytes as they are.
    Copy,
    Gzip,
}

/// An open file.
#[repr(C)]
struct Gz {
    /// Bytes that were unpacked and not read.
    have: c_uint,
    next: *mut u8,
    /// The place in the unpacked bytes.
    at: i64,
    mode: Mode,
    fd: c_int,
    /// The file's name, for texts of errors.
    path: *mut c_char,
    /// Bytes of the input buffer; 0 before there is one.
    size: c_uint,
    want: c_uint,
    input: *mut u8,
    output: *mut u8,
    /// True if bytes are passed on as they are.
    direct: bool,
    how: How,
    start: i64,
    eof: bool,
    /// True if a read wanted more than there is.
    past: bool,
    level: c_int,
    strategy: c_int,
    /// True if a message was ended, so that the next byte begins another.
    reset: bool,
    /// Bytes to be skipped by the next call, where `seek` says so.
    skip: i64,
    seek: bool,
    error: c_int,
    text: *mut c_char,
    strm: z_stream,
}

impl Gz {
    /// The file of a handle.
    ///
    /// # Safety
    /// `file` is null or came from one of our functions that open, and is not closed.
    unsafe fn of<'a>(file: gzFile) -> Option<&'a mut Gz> {
        // SAFETY: the caller vouches for it.
        unsafe { file.cast::<Gz>().as_mut() }
    }

    /// Returns true if nothing is wrong that ends all reading.
    fn may_go_on(&self) -> bool {
        self.error == Z_OK || self.error == Z_BUF_ERROR
    }

    /// Notes an error and its text, behind the file's name.
    fn fail(&mut self, code: c_int, text: &CStr) {
        self.clear_error();
        if code != Z_BUF_ERROR {
            self.have = 0;
        }
        self.error = code;
        if code == Z_MEM_ERROR {
            return; // its text is a constant
        }
        // SAFETY: the name and the text are C strings; the memory is as long as both, what stands between them and the end.
        unsafe {
            let (name, text) = (CStr::from_ptr(self.path).to_bytes(), text.to_bytes_with_nul());
            let whole = libc::malloc(name.len() + 2 + text.len()).cast::<u8>();
            if whole.is_null() {
                self.error = Z_MEM_ERROR;
                return;
            }
            ptr::copy_nonoverlapping(name.as_ptr(), whole, name.len());
            ptr::copy_nonoverlapping(b": ".as_ptr(), whole.add(name.len()), 2);
            ptr::copy_nonoverlapping(text.as_ptr(), whole.add(name.len() + 2), text.len());
            self.text = whole.cast();
        }
    }

    /// Notes that a call of the system failed.
    fn fail_system(&mut self) {
        // SAFETY: strerror gives a C string that stays until its next call.
        unsafe {
            let text = CStr::from_ptr(libc::strerror(*libc::__errno_location()));
            self.fail(libz_rs_sys::Z_ERRNO, text);
        }
    }

    fn clear_error(&mut self) {
        // SAFETY: it came from malloc, or is null.
        unsafe { libc::free(self.text.cast::<c_void>()) };
        (self.text, self.error) = (ptr::null_mut(), Z_OK);
    }

    /// Closes the file and frees everything but the streams. Returns true if the system closed it.
    ///
    /// # Safety
    /// Nobody uses the file any more.
    unsafe fn close(&mut self) -> bool {
        // SAFETY: all of it came from malloc or is null; the caller vouches for the rest.
        unsafe {
            self.clear_error();
            for memory in [self.input.cast(), self.output.cast(), self.path.cast::<c_void>()] {
                libc::free(memory);
            }
            let closed = libc::close(self.fd) == 0;
            libc::free(ptr::from_mut(self).cast());
            closed
        }
    }

    /// Gets both buffers. `false`: there is no memory.
    fn get_buffers(&mut self, input: usize, output: usize) -> bool {
        // SAFETY: malloc and free take anything that came from malloc.
        unsafe {
            self.input = libc::malloc(input).cast();
            self.output = if output == 0 { ptr::null_mut() } else { libc::malloc(output).cast() };
            if self.input.is_null() || (output != 0 && self.output.is_null()) {
                self.drop_buffers();
                return false;
            }
        }
        true
    }

    fn drop_buffers(&mut self) {
        // SAFETY: both came from malloc or are null.
        unsafe {
            libc::free(self.input.cast());
            libc::free(self.output.cast());
        }
        (self.input, self.output) = (ptr::null_mut(), ptr::null_mut());
        self.fail(Z_MEM_ERROR, c"out of memory");
    }
}
