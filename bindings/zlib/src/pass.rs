// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Functions that zlib-rs implements (combining checksums, texts, flags), plain checksums, and the version that this library reports.

use core::ffi::{c_char, c_int, c_ulong};
use libz_rs_sys::{Bytef, uInt, z_off_t, z_off64_t};
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
}

/// The modulus of Adler-32.
const ADLER_BASE: u32 = 65521;

/// Returns `1.2.13`, because this library has the symbols of that version; no suffix, because programs parse it as numbers.
///
/// # Safety
/// There are no conditions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zlibVersion() -> *const c_char {
    c"1.2.13".as_ptr()
}

/// See zlib.h.
///
/// # Safety
/// `buf` is null or readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adler32(sum: c_ulong, buf: *const Bytef, len: uInt) -> c_ulong {
    // SAFETY: the caller guarantees that `buf` is null or readable for `len` bytes.
    unsafe { adler32_z(sum, buf, len as usize) }
}

/// See zlib.h.
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
    // SAFETY: `buf` is not null, so the caller guarantees `len` readable bytes.
    let bytes = unsafe { core::slice::from_raw_parts(buf, len) };
    // Zero or one byte bring a start value that is no sum into its range as in zlib.
    let (low, high) = (sum as u32 & 0xffff, sum as u32 >> 16 & 0xffff);
    let within = |part: u32| if part >= ADLER_BASE { part - ADLER_BASE } else { part };
    match bytes {
        [] => c_ulong::from(within(high) << 16 | within(low)),
        &[byte] => {
            let low = within(low + u32::from(byte));
            c_ulong::from(within(high + low) << 16 | low)
        }
        _ => c_ulong::from(deflate::adler32(sum as u32, bytes)),
    }
}

/// See zlib.h.
///
/// # Safety
/// `buf` is null or readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crc32(sum: c_ulong, buf: *const Bytef, len: uInt) -> c_ulong {
    // SAFETY: the caller guarantees that `buf` is null or readable for `len` bytes.
    unsafe { crc32_z(sum, buf, len as usize) }
}

/// See zlib.h.
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
    // SAFETY: `buf` is not null, so the caller guarantees `len` readable bytes.
    let bytes = unsafe { core::slice::from_raw_parts(buf, len) };
    c_ulong::from(deflate::crc32(sum as u32, bytes))
}
