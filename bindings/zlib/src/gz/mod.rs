// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `gz*` functions of libz: files that are packed while they are written, or unpacked while they are read.
//!
//! - **Flow** open and position ([`open`], here). [`read`]: file ──▶ input buffer ──inflate──▶ output buffer ──▶ program. [`write`]:
//!   program ──▶ input buffer ──deflate──▶ output buffer ──▶ file. Both call the exported functions of this library, so files take the
//!   fast path.
//! - **Order** the same as in zlib: the bytes delivered before an error, the error and the call that reports it, and the calls allowed
//!   after the error is cleared.
//! - **Owner** a [`Gz`] and its buffers come from malloc; programs access the first three fields (`gzgetc` is a macro).

mod open;
mod place;
mod read;
mod write;

pub use write::{print, print_room};

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use libz_rs_sys::{Z_BUF_ERROR, Z_MEM_ERROR, Z_OK, gzFile, z_stream};

/// Size of the input buffer unless `gzbuffer` changes it.
const BUFFER_BYTES: c_uint = 8192;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

/// Format of the file at the position where it is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Not known yet.
    Unknown,
    /// Plain bytes, not packed.
    Plain,
    Gzip,
}

/// An open file.
#[repr(C)]
struct Gz {
    /// Number of unpacked bytes that were not read.
    have: c_uint,
    next: *mut u8,
    /// Position in the unpacked bytes.
    at: i64,
    mode: Mode,
    fd: c_int,
    /// Name of the file, for error texts.
    path: *mut c_char,
    /// Size of the input buffer; 0 before it is allocated.
    size: c_uint,
    want: c_uint,
    input: *mut u8,
    output: *mut u8,
    /// True if bytes are not packed or unpacked.
    direct: bool,
    format: Format,
    start: i64,
    eof: bool,
    /// True if a read asked for more bytes than the file has.
    read_past_end: bool,
    level: c_int,
    strategy: c_int,
    /// True if a message has ended, so the next byte begins another.
    reset: bool,
    /// Number of bytes that the next call skips if `seek` is true.
    skip: i64,
    seek: bool,
    error: c_int,
    text: *mut c_char,
    strm: z_stream,
}

impl Gz {
    /// Returns the file of a handle.
    ///
    /// # Safety
    /// `file` is null, or came from one of our functions that open files and is not closed.
    unsafe fn of<'a>(file: gzFile) -> Option<&'a mut Gz> {
        // SAFETY: the caller guarantees that the handle is null or an open file.
        unsafe { file.cast::<Gz>().as_mut() }
    }

    /// Returns true if there is no error after which nothing can be read.
    fn may_go_on(&self) -> bool {
        self.error == Z_OK || self.error == Z_BUF_ERROR
    }

    /// Records an error, and its text preceded by the file's name.
    fn fail(&mut self, code: c_int, text: &CStr) {
        self.clear_error();
        if code != Z_BUF_ERROR {
            self.have = 0;
        }
        self.error = code;
        if code == Z_MEM_ERROR {
            return; // the text of this error is a constant
        }
        // SAFETY: name and text are C strings; the memory is as long as both with the separator and the zero byte.
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

    /// Records the error of a system call.
    fn fail_system(&mut self) {
        // SAFETY: strerror returns a C string that is valid until the next call.
        unsafe {
            let text = CStr::from_ptr(libc::strerror(*libc::__errno_location()));
            self.fail(libz_rs_sys::Z_ERRNO, text);
        }
    }

    fn clear_error(&mut self) {
        // SAFETY: the text came from malloc, or is null.
        unsafe { libc::free(self.text.cast::<c_void>()) };
        (self.text, self.error) = (ptr::null_mut(), Z_OK);
    }

    /// Closes the file and frees everything but the streams. Returns true if closing succeeded.
    ///
    /// # Safety
    /// Nobody uses the file any more.
    unsafe fn close(&mut self) -> bool {
        // SAFETY: all buffers came from malloc or are null, and the caller guarantees that nobody uses the file any more.
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

    /// Allocates both buffers; returns false if there is no memory.
    fn get_buffers(&mut self, input: usize, output: usize) -> bool {
        // SAFETY: `free` gets memory from malloc or null.
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
