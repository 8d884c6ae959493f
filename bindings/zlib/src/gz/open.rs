// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens files, sets their buffer size, and closes them.

use super::{BUFFER_BYTES, Format, Gz, Mode};
use crate::export::fenced;
use core::ffi::{c_char, c_int, c_uint};
use core::ptr;
use libz_rs_sys::{
    Z_DEFAULT_COMPRESSION, Z_DEFAULT_STRATEGY, Z_FILTERED, Z_FIXED, Z_HUFFMAN_ONLY, Z_OK, Z_RLE,
    Z_STREAM_ERROR, gzFile, z_stream,
};

/// Settings from the letters of a mode.
struct Asked {
    mode: Mode,
    flags: c_int,
    level: c_int,
    strategy: c_int,
    direct: bool,
}

/// Parses the mode of `gzopen`; returns `None` if it asks for neither reading nor writing, or for both.
fn asked(letters: &[u8]) -> Option<Asked> {
    let mut kind = None;
    let (mut level, mut strategy, mut direct) = (Z_DEFAULT_COMPRESSION, Z_DEFAULT_STRATEGY, false);
    let mut extra = 0;
    for &letter in letters {
        match letter {
            b'0'..=b'9' => level = c_int::from(letter - b'0'),
            b'r' | b'w' | b'a' => kind = Some(letter),
            b'+' => return None,
            b'e' => extra |= libc::O_CLOEXEC,
            b'x' => extra |= libc::O_EXCL,
            b'f' => strategy = Z_FILTERED,
            b'h' => strategy = Z_HUFFMAN_ONLY,
            b'R' => strategy = Z_RLE,
            b'F' => strategy = Z_FIXED,
            b'T' => direct = true,
            _ => {}
        }
    }
    let create = libc::O_WRONLY | libc::O_CREAT;
    let (mode, flags) = match kind? {
        b'r' if direct => return None,
        b'r' => (Mode::Read, libc::O_RDONLY | extra & libc::O_CLOEXEC),
        b'w' => (Mode::Write, create | libc::O_TRUNC | extra),
        _ => (Mode::Write, create | libc::O_APPEND | extra),
    };
    Some(Asked { mode, flags, level, strategy, direct })
}

/// Opens a file, or takes over an open descriptor; returns null if that fails or the mode is invalid.
unsafe fn open(path: *const c_char, fd: c_int, mode: *const c_char) -> gzFile {
    if path.is_null() || mode.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: both are C strings; the memory is as large as a `Gz`, and is written before it is used.
    unsafe {
        let Some(asked) = asked(core::ffi::CStr::from_ptr(mode).to_bytes()) else { return ptr::null_mut() };
        let (place, name) = (libc::malloc(size_of::<Gz>()).cast::<Gz>(), libc::strdup(path));
        let fd = match place.is_null() || name.is_null() {
            true => -1,
            false if fd >= 0 => fd,
            false => libc::open(path, asked.flags | libc::O_LARGEFILE, 0o666),
        };
        if fd < 0 {
            libc::free(place.cast());
            libc::free(name.cast());
            return ptr::null_mut();
        }
        let strm = z_stream { zalloc: None, zfree: None, ..z_stream::default() };
        let mut start = 0;
        if asked.flags & libc::O_APPEND != 0 {
            libc::lseek64(fd, 0, libc::SEEK_END);
        } else if asked.mode == Mode::Read {
            start = libc::lseek64(fd, 0, libc::SEEK_CUR).max(0);
        }
        place.write(Gz {
            have: 0,
            next: ptr::null_mut(),
            at: 0,
            mode: asked.mode,
            fd,
            path: name,
            size: 0,
            want: BUFFER_BYTES,
            input: ptr::null_mut(),
            output: ptr::null_mut(),
            // A file that is read counts as not packed until its first bytes are known; so an empty file does.
            direct: asked.direct || asked.mode == Mode::Read,
            format: Format::Unknown,
            start,
            eof: false,
            read_past_end: false,
            level: asked.level,
            strategy: asked.strategy,
            reset: false,
            skip: 0,
            seek: false,
            error: Z_OK,
            text: ptr::null_mut(),
            strm,
        });
        place.cast()
    }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzopen(path: *const c_char, mode: *const c_char) -> gzFile {
    // SAFETY: `path` and `mode` are null or end with a zero byte, as zlib.h demands.
    fenced(ptr::null_mut(), || unsafe { open(path, -1, mode) })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzopen64(path: *const c_char, mode: *const c_char) -> gzFile {
    versioned!(gzopen64, "1.2.3.3");
    // SAFETY: `path` and `mode` are null or end with a zero byte, as zlib.h demands.
    unsafe { gzopen(path, mode) }
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzdopen(fd: c_int, mode: *const c_char) -> gzFile {
    if fd == -1 {
        return ptr::null_mut();
    }
    let mut name = [0u8; 32];
    // SAFETY: the caller guarantees that `mode` is null or a C string; the name with its zero byte fits.
    fenced(ptr::null_mut(), || unsafe {
        libc::snprintf(name.as_mut_ptr().cast(), name.len(), c"<fd:%d>".as_ptr(), fd);
        open(name.as_ptr().cast(), fd, mode)
    })
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn gzbuffer(file: gzFile, size: c_uint) -> c_int {
    versioned!(gzbuffer, "1.2.3.5");
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and no other thread uses it, as zlib.h demands.
    let Some(gz) = (unsafe { Gz::of(file) }) else { return -1 };
    if gz.size != 0 || size > c_uint::MAX >> 1 {
        return -1;
    }
    gz.want = size.max(2); // two bytes are needed to recognise a gzip file
    0
}

/// See zlib.h.
///
/// # Safety
/// The conditions of zlib.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gzclose(file: gzFile) -> c_int {
    // SAFETY: `file` is null, or from gzopen or gzdopen and not closed, and the caller does not use it again.
    unsafe {
        match Gz::of(file).map(|gz| gz.mode) {
            None => Z_STREAM_ERROR,
            Some(Mode::Read) => super::read::gzclose_r(file),
            Some(Mode::Write) => super::write::gzclose_w(file),
        }
    }
}
