// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The position in a file, and its errors.

use super::{Format, Gz, Mode};
use crate::export::fenced;
use core::ffi::{c_char, c_int};
use core::ptr;
use libz_rs_sys::{Z_MEM_ERROR, gzFile, z_off_t, z_off64_t};

/// Moves a file that is read back to its start.
unsafe fn rewind(gz: &mut Gz) -> c_int {
    if gz.mode != Mode::Read || !gz.may_go_on() {
        return -1;
    }
    // SAFETY: the system call takes only numbers.
    if unsafe { libc::lseek64(gz.fd, gz.start, libc::SEEK_SET) } == -1 {
        return -1;
    }
    (gz.have, gz.at, gz.eof, gz.read_past_end, gz.format, gz.seek) =
        (0, 0, false, false, Format::Unknown, false);
    gz.clear_error();
    gz.strm.avail_in = 0;
    0
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzrewind(file: gzFile) -> c_int {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    fenced(-1, || unsafe { Gz::of(file).map_or(-1, |gz| rewind(gz)) })
}

unsafe fn seek(gz: &mut Gz, mut offset: i64, whence: c_int) -> i64 {
    if !gz.may_go_on() || (whence != libc::SEEK_SET && whence != libc::SEEK_CUR) {
        return -1;
    }
    if whence == libc::SEEK_SET {
        offset -= gz.at;
    } else if gz.seek {
        offset += gz.skip;
    }
    gz.seek = false;
    // SAFETY: system calls that take only numbers; `next` stays within the output buffer.
    unsafe {
        if gz.mode == Mode::Read && gz.format == Format::Plain && gz.at + offset >= 0 {
            if libc::lseek64(gz.fd, offset - i64::from(gz.have), libc::SEEK_CUR) == -1 {
                return -1;
            }
            (gz.have, gz.eof, gz.read_past_end) = (0, false, false);
            gz.clear_error();
            gz.strm.avail_in = 0;
            gz.at += offset;
            return gz.at;
        }
        if offset < 0 {
            offset += gz.at;
            if gz.mode != Mode::Read || offset < 0 || rewind(gz) == -1 {
                return -1;
            }
        }
        if gz.mode == Mode::Read {
            let take = i64::from(gz.have).min(offset);
            gz.have -= take as u32;
            gz.next = gz.next.wrapping_add(take as usize);
            gz.at += take;
            offset -= take;
        }
    }
    if offset != 0 {
        (gz.seek, gz.skip) = (true, offset);
    }
    gz.at + offset
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzseek(file: gzFile, offset: z_off_t, whence: c_int) -> z_off_t {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    fenced(-1, || unsafe { Gz::of(file).map_or(-1, |gz| seek(gz, offset, whence)) })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzseek64(file: gzFile, offset: z_off64_t, whence: c_int) -> z_off64_t {
    versioned!(gzseek64, "1.2.3.3");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    unsafe { gzseek(file, offset, whence) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gztell(file: gzFile) -> z_off_t {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    unsafe { Gz::of(file) }.map_or(-1, |gz| gz.at + if gz.seek { gz.skip } else { 0 })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gztell64(file: gzFile) -> z_off64_t {
    versioned!(gztell64, "1.2.3.3");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    unsafe { gztell(file) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzoffset(file: gzFile) -> z_off_t {
    versioned!(gzoffset, "1.2.3.5");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    unsafe {
        let Some(gz) = Gz::of(file) else { return -1 };
        let at = libc::lseek64(gz.fd, 0, libc::SEEK_CUR);
        let ahead = if gz.mode == Mode::Read { gz.strm.avail_in } else { 0 };
        if at == -1 { -1 } else { at - i64::from(ahead) }
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzoffset64(file: gzFile) -> z_off64_t {
    versioned!(gzoffset64, "1.2.3.5");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    unsafe { gzoffset(file) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzeof(file: gzFile) -> c_int {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    unsafe { Gz::of(file) }.map_or(0, |gz| (gz.mode == Mode::Read && gz.read_past_end).into())
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzerror(file: gzFile, code: *mut c_int) -> *const c_char {
    // SAFETY: the caller guarantees that `code` is null or valid, and `file` null or open.
    unsafe {
        let Some(gz) = Gz::of(file) else { return ptr::null() };
        if !code.is_null() {
            *code = gz.error;
        }
        if gz.error == Z_MEM_ERROR {
            c"out of memory".as_ptr()
        } else if gz.text.is_null() {
            c"".as_ptr()
        } else {
            gz.text
        }
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzclearerr(file: gzFile) {
    versioned!(gzclearerr, "1.2.0.2");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    if let Some(gz) = unsafe { Gz::of(file) } {
        if gz.mode == Mode::Read {
            (gz.eof, gz.read_past_end) = (false, false);
        }
        gz.clear_error();
    }
}
