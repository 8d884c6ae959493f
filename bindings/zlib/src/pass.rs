// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What zlib-rs does as it is: combining checksums and the `gz*` files; and who we say we are.

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use libz_rs_sys::{Bytef, gzFile, uInt, z_off_t, z_off64_t};
use memlift_kernels::deflate;

pass! {
    in "1.2.2" fn adler32_combine(adler1: c_ulong, adler2: c_ulong, len2: z_off_t) -> c_ulong;
    in "1.2.3.3" fn adler32_combine64(adler1: c_ulong, adler2: c_ulong, len2: z_off64_t) -> c_ulong;
    in "1.2.2" fn crc32_combine(crc1: c_ulong, crc2: c_ulong, len2: z_off_t) -> c_ulong;
    in "1.2.3.3" fn crc32_combine64(crc1: c_ulong, crc2: c_ulong, len2: z_off64_t) -> c_ulong;
    in "1.2.12" fn crc32_combine_gen(len2: z_off_t) -> c_ulong;
    in "1.2.12" fn crc32_combine_gen64(len2: z_off64_t) -> c_ulong;
    in "1.2.12" fn crc32_combine_op(crc1: c_ulong, crc2: c_ulong, op: c_ulong) -> c_ulong;
    fn get_crc_table() -> *const [u32; 256];
    fn zError(code: c_int) -> *const c_char;
    in "1.2.0.2" fn zlibCompileFlags() -> c_ulong;

    fn gzopen(path: *const c_char, mode: *const c_char) -> gzFile;
    in "1.2.3.3" fn gzopen64(path: *const c_char, mode: *const c_char) -> gzFile;
    fn gzdopen(fd: c_int, mode: *const c_char) -> gzFile;
    in "1.2.3.5" fn gzbuffer(file: gzFile, size: c_uint) -> c_int;
    fn gzsetparams(file: gzFile, level: c_int, strategy: c_int) -> c_int;
    fn gzread(file: gzFile, buf: *mut c_void, len: c_uint) -> c_int;
    in "1.2.9" fn gzfread(buf: *mut c_void, size: usize, nitems: usize, file: gzFile) -> usize;
    fn gzwrite(file: gzFile, buf: *const c_void, len: c_uint) -> c_int;
    in "1.2.9" fn gzfwrite(buf: *const c_void, size: usize, nitems: usize, file: gzFile) -> usize;
    fn gzputs(file: gzFile, text: *const c_char) -> c_int;
    fn gzgets(file: gzFile, buf: *mut c_char, len: c_int) -> *mut c_char;
    fn gzputc(file: gzFile, c: c_int) -> c_int;
    fn gzgetc(file: gzFile) -> c_int;
    in "1.2.5.2" fn gzgetc_(file: gzFile) -> c_int;
    in "1.2.0.2" fn gzungetc(c: c_int, file: gzFile) -> c_int;
    fn gzflush(file: gzFile, flush: c_int) -> c_int;
    fn gzseek(file: gzFile, offset: z_off_t, whence: c_int) -> z_off_t;
    in "1.2.3.3" fn gzseek64(file: gzFile, offset: z_off64_t, whence: c_int) -> z_off64_t;
    fn gzrewind(file: gzFile) -> c_int;
    fn gztell(file: gzFile) -> z_off_t;
    in "1.2.3.3" fn gztell64(file: gzFile) -> z_off64_t;
    in "1.2.3.5" fn gzoffset(file: gzFile) -> z_off_t;
    in "1.2.3.5" fn gzoffset64(file: gzFile) -> z_off64_t;
    fn gzeof(file: gzFile) -> c_int;
    in "1.2.2.3" fn gzdirect(file: gzFile) -> c_int;
    fn gzclose(file: gzFile) -> c_int;
    in "1.2.3.5" fn gzclose_r(file: gzFile) -> c_int;
    in "1.2.3.5" fn gzclose_w(file: gzFile) -> c_int;
    fn gzerror(file: gzFile, code: *mut c_int) -> *const c_char;
    in "1.2.0.2" fn gzclearerr(file: gzFile);
}

/// `1.2.13`, because that is whose symbols these are; nothing behind it, because programs parse it as numbers.
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zlibVersion() -> *const c_char {
    c"1.2.13".as_ptr()
}

/// As in zlib.h.
///
/// # Safety
/// `buf` is null or readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adler32(sum: c_ulong, buf: *const Bytef, len: uInt) -> c_ulong {
    // SAFETY: as the caller promises.
    unsafe { adler32_z(sum, buf, len as usize) }
}

/// As in zlib.h.
///
/// # Safety
/// `buf` is null or readable for `len` bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn adler32_z(sum: c_ulong, buf: *const Bytef, len: usize) -> c_ulong {
    versioned!(adler32_z, "1.2.9");
    if buf.is_null() {
        return 1;
    }
    // SAFETY: readable for so many bytes.
    let bytes = unsafe { core::slice::from_raw_parts(buf, len) };
    c_ulong::from(deflate::adler32(sum as u32, bytes))
}

/// As in zlib.h.
///
/// # Safety
/// `buf` is null or readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crc32(sum: c_ulong, buf: *const Bytef, len: uInt) -> c_ulong {
    // SAFETY: as the caller promises.
    unsafe { crc32_z(sum, buf, len as usize) }
}

/// As in zlib.h.
///
/// # Safety
/// `buf` is null or readable for `len` bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn crc32_z(sum: c_ulong, buf: *const Bytef, len: usize) -> c_ulong {
    versioned!(crc32_z, "1.2.9");
    if buf.is_null() {
        return 0;
    }
    // SAFETY: readable for so many bytes.
    let bytes = unsafe { core::slice::from_raw_parts(buf, len) };
    c_ulong::from(deflate::crc32(sum as u32, bytes))
}
