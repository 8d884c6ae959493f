// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `gzprintf` and `gzvprintf`: `print.c` formats the text; this file exports the symbols and writes the text.
//!
//! - **Flow** exported symbol ──jump with unchanged registers──▶ `print.c` ──text──▶ [`memlift_z_write`] ──▶ [`gz`](crate::gz).

use crate::gz::{gzerror, gzwrite};
use core::ffi::{c_char, c_int, c_uint};
use libz_rs_sys::{Z_STREAM_ERROR, gzFile};

unsafe extern "C" {
    fn memlift_z_gzprintf();
    fn memlift_z_gzvprintf();
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {}"
    };
}

/// See zlib.h. Takes `(gzFile, const char *, ...)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn gzprintf() {
    core::arch::naked_asm!(jump!(), sym memlift_z_gzprintf)
}

/// See zlib.h. Takes `(gzFile, const char *, va_list)`.
#[cfg(symbol_versions)]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn gzvprintf() {
    core::arch::naked_asm!(
        ".symver gzvprintf, gzvprintf@@@ZLIB_1.2.7.1",
        jump!(),
        sym memlift_z_gzvprintf
    )
}

/// See zlib.h. Takes `(gzFile, const char *, va_list)`.
#[cfg(not(symbol_versions))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn gzvprintf() {
    core::arch::naked_asm!(jump!(), sym memlift_z_gzvprintf)
}

/// Writes a formatted text; returns the result of `gzprintf`.
///
/// # Safety
/// `target` is null or a file opened by this library; `text` is readable for `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memlift_z_write(target: gzFile, text: *const c_char, bytes: c_uint) -> c_int {
    let mut code = 0;
    // SAFETY: the caller guarantees file and text; a null file is accepted.
    unsafe {
        let written = gzwrite(target, text.cast(), bytes);
        if written != 0 || bytes == 0 {
            return written;
        }
        gzerror(target, &mut code);
    }
    if code < 0 { code } else { Z_STREAM_ERROR }
}
