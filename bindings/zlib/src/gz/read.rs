// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are read: gzip messages one after the other, or plain bytes.
//!
//! - **Flow** [`Gz::fetch`] detects the format, and unpacks or reads into the output buffer; large reads go directly to the program.
//! - **Order** bytes behind a gzip message that do not begin another one are not delivered, and are no error.

use super::{Format, Gz, Mode};
use crate::export::fenced;
use crate::inflate::{inflate, inflateEnd, inflateInit2_, inflateReset};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use libz_rs_sys::{
    Z_BUF_ERROR, Z_DATA_ERROR, Z_ERRNO, Z_MEM_ERROR, Z_NEED_DICT, Z_NO_FLUSH, Z_OK, Z_STREAM_END,
    Z_STREAM_ERROR, gzFile, z_stream, zlibVersion,
};

/// An error that is already recorded in the file.
struct Failed;

impl Gz {
    /// Reads from the file until there are `bytes` bytes or the file ends.
    unsafe fn load(&mut self, target: *mut u8, bytes: usize) -> Result<usize, Failed> {
        let mut have = 0;
        while have < bytes {
            // SAFETY: the caller guarantees that the target is writable for `bytes` bytes.
            let got = unsafe { libc::read(self.fd, target.add(have).cast(), (bytes - have).min(1 << 30)) };
            if got < 0 {
                self.fail_system();
                return Err(Failed);
            }
            if got == 0 {
                self.eof = true;
                break;
            }
            have += got as usize;
        }
        Ok(have)
    }

    /// Fills the input buffer.
    unsafe fn refill(&mut self) -> Result<(), Failed> {
        if !self.may_go_on() {
            return Err(Failed);
        }
        if !self.eof {
            let kept = self.strm.avail_in as usize;
            // SAFETY: the rest of the input lies in the input buffer, which has `size` bytes.
            unsafe {
                if kept != 0 {
                    ptr::copy(self.strm.next_in, self.input, kept);
                }
                let got = self.load(self.input.add(kept), self.size as usize - kept)?;
                self.strm.avail_in += got as c_uint;
            }
            self.strm.next_in = self.input;
        }
        Ok(())
    }

    /// Detects the format of the bytes that follow.
    unsafe fn find_format(&mut self) -> Result<(), Failed> {
        // SAFETY: the input buffer has `size` bytes and the output buffer twice as many; the stream is initialized before it is
        // used.
        unsafe {
            if self.size == 0 {
                let want = self.want as usize;
                if !self.get_buffers(want, 2 * want) {
                    return Err(Failed);
                }
                (self.strm.avail_in, self.strm.next_in) = (0, ptr::null());
                let bytes = size_of::<z_stream>() as c_int;
                if inflateInit2_(&mut self.strm, 15 + 16, zlibVersion(), bytes) != Z_OK {
                    self.drop_buffers();
                    return Err(Failed);
                }
                self.size = self.want;
            }
            if self.strm.avail_in < 2 {
                self.refill()?;
                if self.strm.avail_in == 0 {
                    return Ok(());
                }
            }
            let front = core::slice::from_raw_parts(self.strm.next_in, self.strm.avail_in as usize);
            if front.starts_with(&[31, 139]) {
                inflateReset(&mut self.strm);
                (self.format, self.direct) = (Format::Gzip, false);
            } else if !self.direct {
                // Other bytes behind a gzip message are ignored.
                (self.strm.avail_in, self.eof, self.have) = (0, true, 0);
            } else {
                ptr::copy_nonoverlapping(front.as_ptr(), self.output, front.len());
                (self.next, self.have) = (self.output, front.len() as c_uint);
                (self.strm.avail_in, self.format, self.direct) = (0, Format::Plain, true);
            }
            Ok(())
        }
    }

    /// Unpacks until the output room of the stream is full or a message ends.
    unsafe fn unpack(&mut self) -> Result<(), Failed> {
        let room = self.strm.avail_out;
        loop {
            // SAFETY: the stream is initialized, and its buffers are set.
            let code = unsafe {
                if self.strm.avail_in == 0 {
                    self.refill()?;
                }
                if self.strm.avail_in == 0 {
                    self.fail(Z_BUF_ERROR, c"unexpected end of file");
                    break;
                }
                inflate(&mut self.strm, Z_NO_FLUSH)
            };
            match code {
                Z_STREAM_ERROR | Z_NEED_DICT => {
                    self.fail(Z_STREAM_ERROR, c"internal error: inflate stream corrupt");
                    return Err(Failed);
                }
                Z_MEM_ERROR => {
                    self.fail(Z_MEM_ERROR, c"out of memory");
                    return Err(Failed);
                }
                Z_DATA_ERROR => {
                    // SAFETY: the error texts of inflate are constants.
                    let text = unsafe {
                        if self.strm.msg.is_null() {
                            c"compressed data error"
                        } else {
                            CStr::from_ptr(self.strm.msg)
                        }
                    };
                    self.fail(Z_DATA_ERROR, text);
                    return Err(Failed);
                }
                Z_STREAM_END => {
                    self.format = Format::Unknown;
                    break;
                }
                _ if self.strm.avail_out == 0 => break,
                _ => {}
            }
        }
        self.have = room - self.strm.avail_out;
        self.next = self.strm.next_out.wrapping_sub(self.have as usize);
        Ok(())
    }

    /// Fills the output buffer with at least one byte, unless the file has ended.
    unsafe fn fetch(&mut self) -> Result<(), Failed> {
        // SAFETY: the output buffer has twice `size` bytes.
        unsafe {
            loop {
                match self.format {
                    Format::Unknown => {
                        self.find_format()?;
                        if self.format == Format::Unknown {
                            return Ok(());
                        }
                    }
                    Format::Plain => {
                        let (target, bytes) = (self.output, 2 * self.size as usize);
                        self.have = self.load(target, bytes)? as c_uint;
                        self.next = target;
                        return Ok(());
                    }
                    Format::Gzip => {
                        (self.strm.next_out, self.strm.avail_out) = (self.output, 2 * self.size);
                        self.unpack()?;
                    }
                }
                if self.have != 0 || (self.eof && self.strm.avail_in == 0) {
                    return Ok(());
                }
            }
        }
    }

    /// Removes `bytes` of the bytes in the output buffer.
    fn take(&mut self, bytes: usize) {
        self.have -= bytes as c_uint;
        self.next = self.next.wrapping_add(bytes);
        self.at += bytes as i64;
    }

    /// Does a seek that was postponed to this call.
    unsafe fn skip_to(&mut self) -> Result<(), Failed> {
        if !core::mem::take(&mut self.seek) {
            return Ok(());
        }
        let mut rest = self.skip;
        while rest != 0 {
            if self.have != 0 {
                let take = rest.min(self.have.into());
                self.take(take as usize);
                rest -= take;
            } else if self.eof && self.strm.avail_in == 0 {
                break;
            } else {
                // SAFETY: the caller guarantees a valid file.
                unsafe { self.fetch()? };
            }
        }
        Ok(())
    }

    /// Reads up to `bytes` bytes; returns how many, and 0 after an error.
    unsafe fn read(&mut self, mut target: *mut u8, mut bytes: usize) -> usize {
        // SAFETY: the caller guarantees that the target is writable for `bytes`; the unread bytes lie in the output buffer.
        unsafe {
            if bytes == 0 || self.skip_to().is_err() {
                return 0;
            }
            let mut got = 0;
            while bytes != 0 {
                let mut some = bytes.min(c_uint::MAX as usize);
                if self.have != 0 {
                    some = some.min(self.have as usize);
                    ptr::copy_nonoverlapping(self.next, target, some);
                    self.next = self.next.add(some);
                    self.have -= some as c_uint;
                } else if self.eof && self.strm.avail_in == 0 {
                    self.read_past_end = true;
                    break;
                } else if self.format == Format::Unknown || some < 2 * self.size as usize {
                    if self.fetch().is_err() {
                        return 0;
                    }
                    continue;
                } else if self.format == Format::Plain {
                    let Ok(loaded) = self.load(target, some) else { return 0 };
                    some = loaded;
                } else {
                    (self.strm.next_out, self.strm.avail_out) = (target, some as c_uint);
                    if self.unpack().is_err() {
                        return 0;
                    }
                    some = core::mem::take(&mut self.have) as usize;
                }
                bytes -= some;
                target = target.add(some);
                got += some;
                self.at += some as i64;
            }
            got
        }
    }
}

/// Returns the file of a handle that is open for reading and has no lasting error.
unsafe fn readable<'a>(file: gzFile) -> Option<&'a mut Gz> {
    // SAFETY: the caller of the exported function guarantees that `file` is null, or from gzopen or gzdopen and not closed, and
    // that no other thread uses it.
    unsafe { Gz::of(file) }.filter(|gz| gz.mode == Mode::Read && gz.may_go_on())
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzread(file: gzFile, buf: *mut c_void, len: c_uint) -> c_int {
    // SAFETY: `file` is null or open, no other thread uses it, and `buf` is writable for `len` bytes, as zlib.h demands.
    fenced(-1, || unsafe {
        let Some(gz) = readable(file) else { return -1 };
        if c_int::try_from(len).is_err() {
            gz.fail(Z_STREAM_ERROR, c"request does not fit in an int");
            return -1;
        }
        let got = gz.read(buf.cast(), len as usize);
        if got == 0 && !gz.may_go_on() { -1 } else { got as c_int }
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzfread(buf: *mut c_void, size: usize, nitems: usize, file: gzFile) -> usize {
    versioned!(gzfread, "1.2.9");
    // SAFETY: `file` is null or open, no other thread uses it, and `buf` is writable for `size * nitems` bytes, as zlib.h
    // demands.
    fenced(0, || unsafe {
        let Some(gz) = readable(file) else { return 0 };
        let Some(bytes) = size.checked_mul(nitems) else {
            gz.fail(Z_STREAM_ERROR, c"request does not fit in a size_t");
            return 0;
        };
        if bytes == 0 { 0 } else { gz.read(buf.cast(), bytes) / size }
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzgetc(file: gzFile) -> c_int {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    fenced(-1, || unsafe {
        let Some(gz) = readable(file) else { return -1 };
        let mut byte = 0u8;
        if gz.read(&mut byte, 1) == 1 { byte.into() } else { -1 }
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzgetc_(file: gzFile) -> c_int {
    versioned!(gzgetc_, "1.2.5.2");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    unsafe { gzgetc(file) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzungetc(byte: c_int, file: gzFile) -> c_int {
    versioned!(gzungetc, "1.2.0.2");
    // SAFETY: the caller guarantees the handle; the byte is written to the output buffer of twice `size` bytes.
    fenced(-1, || unsafe {
        let Some(gz) = readable(file) else { return -1 };
        if gz.size == 0 {
            let _ = gz.find_format(); // allocates the buffers
        }
        if gz.size == 0 || gz.skip_to().is_err() || byte < 0 {
            return -1;
        }
        let (room, have) = (2 * gz.size as usize, gz.have as usize);
        if have == room {
            gz.fail(Z_DATA_ERROR, c"out of room to push characters");
            return -1;
        }
        if have == 0 {
            gz.next = gz.output.add(room);
        } else if gz.next == gz.output {
            gz.next = gz.output.add(room - have);
            ptr::copy(gz.output, gz.next, have);
        }
        gz.next = gz.next.sub(1);
        gz.next.write(byte as u8);
        gz.have += 1;
        gz.at -= 1;
        gz.read_past_end = false;
        byte
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzgets(file: gzFile, buf: *mut c_char, len: c_int) -> *mut c_char {
    // SAFETY: the caller guarantees the handle and `len` writable bytes.
    fenced(ptr::null_mut(), || unsafe {
        let Some(gz) = readable(file) else { return ptr::null_mut() };
        if buf.is_null() || len < 1 || gz.skip_to().is_err() {
            return ptr::null_mut();
        }
        let (mut written, most) = (0, len as usize - 1);
        while written < most {
            if gz.have == 0 && gz.fetch().is_err() {
                return ptr::null_mut();
            }
            if gz.have == 0 {
                gz.read_past_end = true;
                break;
            }
            let there = core::slice::from_raw_parts(gz.next, (gz.have as usize).min(most - written));
            let end = there.iter().position(|&byte| byte == b'\n');
            let take = end.map_or(there.len(), |end| end + 1);
            ptr::copy_nonoverlapping(there.as_ptr(), buf.add(written).cast(), take);
            gz.take(take);
            written += take;
            if end.is_some() {
                break;
            }
        }
        if written == 0 {
            return ptr::null_mut();
        }
        buf.add(written).write(0);
        buf
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzdirect(file: gzFile) -> c_int {
    versioned!(gzdirect, "1.2.2.3");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    fenced(0, || unsafe {
        let Some(gz) = Gz::of(file) else { return 0 };
        if gz.mode == Mode::Read && gz.format == Format::Unknown && gz.have == 0 {
            let _ = gz.find_format(); // the next read reports an error
        }
        gz.direct.into()
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzclose_r(file: gzFile) -> c_int {
    versioned!(gzclose_r, "1.2.3.5");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and the caller does not use it again.
    fenced(Z_STREAM_ERROR, || unsafe {
        let Some(gz) = Gz::of(file).filter(|gz| gz.mode == Mode::Read) else { return Z_STREAM_ERROR };
        if gz.size != 0 {
            inflateEnd(&mut gz.strm);
        }
        let code = if gz.error == Z_BUF_ERROR { Z_BUF_ERROR } else { Z_OK };
        if gz.close() { code } else { Z_ERRNO }
    })
}
