// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are written: one gzip message, or several if a flush ends one; or plain bytes.

use super::{Gz, Mode};
use crate::deflate::{deflate, deflateEnd, deflateInit2_, deflateParams, deflateReset};
use crate::export::fenced;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use libz_rs_sys::{
    Z_BLOCK, Z_DATA_ERROR, Z_DEFLATED, Z_ERRNO, Z_FINISH, Z_NO_FLUSH, Z_OK, Z_STREAM_END, Z_STREAM_ERROR,
    gzFile, z_stream, zlibVersion,
};

/// An error that is already recorded in the file.
struct Failed;

/// Smallest output buffer. A flush whose mark does not fit into the buffer would write another one in each turn, without an end.
const LEAST_OUTPUT_BYTES: c_uint = 8;

impl Gz {
    /// Allocates the buffers and initializes the stream.
    unsafe fn begin(&mut self) -> Result<(), Failed> {
        let want = self.want as usize;
        let output = self.want.max(LEAST_OUTPUT_BYTES) as usize;
        if !self.get_buffers(2 * want, if self.direct { 0 } else { output }) {
            return Err(Failed);
        }
        if !self.direct {
            let bytes = size_of::<z_stream>() as c_int;
            let (level, strategy) = (self.level, self.strategy);
            // SAFETY: the stream is not initialized yet.
            let code = unsafe {
                deflateInit2_(&mut self.strm, level, Z_DEFLATED, 15 + 16, 8, strategy, zlibVersion(), bytes)
            };
            if code != Z_OK {
                self.drop_buffers();
                return Err(Failed);
            }
            self.strm.next_in = ptr::null();
            (self.strm.next_out, self.strm.avail_out) = (self.output, output as c_uint);
            self.next = self.output;
        }
        self.size = self.want;
        Ok(())
    }

    /// Writes the bytes up to `end` to the file.
    unsafe fn put(&mut self, mut from: *const u8, end: *const u8) -> Result<(), Failed> {
        while from < end {
            let rest = end as usize - from as usize;
            // SAFETY: the caller guarantees that the bytes from `from` to `end` are readable.
            let put = unsafe { libc::write(self.fd, from.cast(), rest.min(1 << 30)) };
            if put < 0 {
                self.fail_system();
                return Err(Failed);
            }
            from = from.wrapping_add(put as usize);
        }
        Ok(())
    }

    /// Packs the stream's input, and writes the output buffer to the file if it is full or to be flushed.
    unsafe fn pack(&mut self, flush: c_int) -> Result<(), Failed> {
        // SAFETY: the stream is initialized, and its output is the output buffer; bytes before `next` were written to the file.
        unsafe {
            if self.size == 0 {
                self.begin()?;
            }
            if self.direct {
                let (from, bytes) = (self.strm.next_in, self.strm.avail_in);
                self.put(from, from.wrapping_add(bytes as usize))?;
                (self.strm.next_in, self.strm.avail_in) = (from.wrapping_add(bytes as usize), 0);
                return Ok(());
            }
            if self.reset {
                if self.strm.avail_in == 0 {
                    return Ok(()); // without input no other message begins
                }
                deflateReset(&mut self.strm);
                self.reset = false;
            }
            let mut code = Z_OK;
            loop {
                let out = flush != Z_NO_FLUSH && (flush != Z_FINISH || code == Z_STREAM_END);
                if self.strm.avail_out == 0 || out {
                    self.put(self.next, self.strm.next_out)?;
                    self.next = self.strm.next_out;
                    if self.strm.avail_out == 0 {
                        let bytes = self.size.max(LEAST_OUTPUT_BYTES);
                        (self.strm.next_out, self.strm.avail_out) = (self.output, bytes);
                        self.next = self.output;
                    }
                }
                let room = self.strm.avail_out;
                code = deflate(&mut self.strm, flush);
                if code == Z_STREAM_ERROR {
                    self.fail(Z_STREAM_ERROR, c"internal error: deflate stream corrupt");
                    return Err(Failed);
                }
                if room == self.strm.avail_out {
                    break;
                }
            }
            self.reset |= flush == Z_FINISH;
            Ok(())
        }
    }

    /// Writes the zeros of a seek that was postponed to this call.
    unsafe fn fill_gap(&mut self) -> Result<(), Failed> {
        if !core::mem::take(&mut self.seek) {
            return Ok(());
        }
        // SAFETY: the input buffer has twice `size` bytes.
        unsafe {
            if self.strm.avail_in != 0 || self.size == 0 {
                self.pack(Z_NO_FLUSH)?;
            }
            ptr::write_bytes(self.input, 0, self.size as usize);
            let mut rest = self.skip;
            while rest != 0 {
                let some = rest.min(self.size.into());
                (self.strm.next_in, self.strm.avail_in) = (self.input, some as c_uint);
                self.at += some;
                self.pack(Z_NO_FLUSH)?;
                rest -= some;
            }
            Ok(())
        }
    }

    /// Returns the address of the next byte in the input buffer, and the number of bytes that fit.
    fn input_end(&mut self) -> (*mut u8, usize) {
        if self.strm.avail_in == 0 {
            self.strm.next_in = self.input;
        }
        let used = self.strm.next_in as usize + self.strm.avail_in as usize - self.input as usize;
        (self.input.wrapping_add(used), (self.size as usize).saturating_sub(used))
    }

    /// Writes `bytes` bytes; returns all of them, or 0 after an error.
    unsafe fn write(&mut self, source: *const u8, bytes: usize) -> usize {
        // SAFETY: the caller guarantees that the source is readable for `bytes`.
        unsafe {
            match bytes {
                0 => 0,
                _ if self.write_all(source, bytes).is_ok() => bytes,
                _ => 0,
            }
        }
    }

    unsafe fn write_all(&mut self, mut source: *const u8, mut bytes: usize) -> Result<(), Failed> {
        // SAFETY: the caller guarantees that the source is readable; `input_end` returned the room of the input buffer.
        unsafe {
            if self.size == 0 {
                self.begin()?;
            }
            self.fill_gap()?;
            if bytes < self.size as usize {
                loop {
                    let (target, room) = self.input_end();
                    let some = room.min(bytes);
                    ptr::copy_nonoverlapping(source, target, some);
                    self.strm.avail_in += some as c_uint;
                    self.at += some as i64;
                    (source, bytes) = (source.add(some), bytes - some);
                    if bytes == 0 {
                        return Ok(());
                    }
                    self.pack(Z_NO_FLUSH)?;
                }
            }
            if self.strm.avail_in != 0 {
                self.pack(Z_NO_FLUSH)?;
            }
            while bytes != 0 {
                let some = bytes.min(c_uint::MAX as usize);
                (self.strm.next_in, self.strm.avail_in) = (source, some as c_uint);
                self.at += some as i64;
                self.pack(Z_NO_FLUSH)?;
                (source, bytes) = (source.add(some), bytes - some);
            }
            Ok(())
        }
    }
}

/// Returns the address and the size of the room for a text that [`print`] writes, or an error code.
///
/// # Safety
/// `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it.
pub unsafe fn print_room(file: gzFile) -> Result<(*mut u8, c_int), c_int> {
    // SAFETY: the caller guarantees the file. The input buffer has twice `size` bytes, of which at most `size` are used.
    unsafe {
        let Some(gz) = writable(file) else { return Err(Z_STREAM_ERROR) };
        if gz.size == 0 && gz.begin().is_err() || gz.fill_gap().is_err() {
            return Err(gz.error);
        }
        Ok((gz.input_end().0, gz.size as c_int))
    }
}

/// Writes the `bytes` bytes at the start of the room; returns their number, or an error code.
///
/// # Safety
/// The conditions of [`print_room`], which was called just before; the bytes were written, and are fewer than the room has.
pub unsafe fn print(file: gzFile, bytes: c_int) -> c_int {
    // SAFETY: the caller guarantees the file, and the bytes; the bytes beyond `size` lie in the second half of the input buffer.
    unsafe {
        let Some(gz) = writable(file) else { return Z_STREAM_ERROR };
        gz.strm.avail_in += bytes as c_uint;
        gz.at += i64::from(bytes);
        if gz.strm.avail_in >= gz.size {
            let rest = gz.strm.avail_in - gz.size;
            gz.strm.avail_in = gz.size;
            if gz.pack(Z_NO_FLUSH).is_err() {
                return gz.error;
            }
            ptr::copy(gz.input.add(gz.size as usize), gz.input, rest as usize);
            (gz.strm.next_in, gz.strm.avail_in) = (gz.input, rest);
        }
        bytes
    }
}

/// Returns the file of a handle that is open for writing and has no error.
unsafe fn writable<'a>(file: gzFile) -> Option<&'a mut Gz> {
    // SAFETY: the caller of the exported function guarantees that `file` is null, or from gzopen or gzdopen and not closed, and
    // that no other thread uses it.
    unsafe { Gz::of(file) }.filter(|gz| gz.mode == Mode::Write && gz.error == Z_OK)
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzwrite(file: gzFile, buf: *const c_void, len: c_uint) -> c_int {
    // SAFETY: `file` is null or open, no other thread uses it, and `buf` is readable for `len` bytes, as zlib.h demands.
    fenced(0, || unsafe {
        let Some(gz) = writable(file) else { return 0 };
        if c_int::try_from(len).is_err() {
            gz.fail(Z_DATA_ERROR, c"requested length does not fit in int");
            return 0;
        }
        gz.write(buf.cast(), len as usize) as c_int
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzfwrite(buf: *const c_void, size: usize, nitems: usize, file: gzFile) -> usize {
    versioned!(gzfwrite, "1.2.9");
    // SAFETY: `file` is null or open, no other thread uses it, and `buf` is readable for `size * nitems` bytes, as zlib.h
    // demands.
    fenced(0, || unsafe {
        let Some(gz) = writable(file) else { return 0 };
        let Some(bytes) = size.checked_mul(nitems) else {
            gz.fail(Z_STREAM_ERROR, c"request does not fit in a size_t");
            return 0;
        };
        if bytes == 0 { 0 } else { gz.write(buf.cast(), bytes) / size }
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzputc(file: gzFile, byte: c_int) -> c_int {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    fenced(-1, || unsafe {
        let Some(gz) = writable(file) else { return -1 };
        let byte = byte as u8;
        if gz.write(&byte, 1) == 1 { byte.into() } else { -1 }
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzputs(file: gzFile, text: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `text` is a C string.
    fenced(-1, || unsafe {
        let Some(gz) = writable(file) else { return -1 };
        let text = CStr::from_ptr(text).to_bytes();
        let Ok(bytes) = c_int::try_from(text.len()) else {
            gz.fail(Z_STREAM_ERROR, c"string length does not fit in int");
            return -1;
        };
        if gz.write(text.as_ptr(), text.len()) < text.len() { -1 } else { bytes }
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzflush(file: gzFile, flush: c_int) -> c_int {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(gz) = writable(file) else { return Z_STREAM_ERROR };
        if !(0..=Z_FINISH).contains(&flush) {
            return Z_STREAM_ERROR;
        }
        // An error is recorded in the file, and its code is in `gz.error`.
        let _ = gz.fill_gap().and_then(|()| gz.pack(flush));
        gz.error
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzsetparams(file: gzFile, level: c_int, strategy: c_int) -> c_int {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(gz) = writable(file).filter(|gz| !gz.direct) else { return Z_STREAM_ERROR };
        if (level, strategy) == (gz.level, gz.strategy) {
            return Z_OK;
        }
        if gz.fill_gap().is_err() {
            return gz.error;
        }
        if gz.size != 0 {
            if gz.strm.avail_in != 0 && gz.pack(Z_BLOCK).is_err() {
                return gz.error;
            }
            deflateParams(&mut gz.strm, level, strategy);
        }
        (gz.level, gz.strategy) = (level, strategy);
        Z_OK
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzclose_w(file: gzFile) -> c_int {
    versioned!(gzclose_w, "1.2.3.5");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and the caller does not use it again.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(gz) = Gz::of(file).filter(|gz| gz.mode == Mode::Write) else { return Z_STREAM_ERROR };
        let mut code = Z_OK;
        if gz.fill_gap().is_err() {
            code = gz.error;
        }
        if gz.pack(Z_FINISH).is_err() {
            code = gz.error;
        }
        if gz.size != 0 && !gz.direct {
            deflateEnd(&mut gz.strm);
        }
        if gz.close() { code } else { Z_ERRNO }
    })
}
