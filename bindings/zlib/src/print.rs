// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `gzprintf` and `gzvprintf`: `print.c` formats the text; this file exports the symbols and lends the room.
//!
//! - **Flow** exported symbol ──jump with unchanged registers──▶ `print.c` ──text──▶ room in the buffer of a [file](crate::gz).

use crate::export::fenced;
use crate::gz;
use core::ffi::{c_char, c_int};
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

/// Returns the size of the room for a formatted text, and its address in `start`; or an error code.
///
/// # Safety
/// `target` is null or a file opened by this library; `start` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn memlift_z_print_room(target: gzFile, start: *mut *mut c_char) -> c_int {
    fenced(Z_STREAM_ERROR, || {
        // SAFETY: the caller guarantees the file and `start`.
        unsafe {
            let (room, bytes) = match gz::print_room(target) {
                Ok(room) => room,
                Err(code) => return code,
            };
            start.write(room.cast());
            bytes
        }
    })
}

/// Writes the text in the room; returns its length, or an error code.
///
/// # Safety
/// The last call of [`memlift_z_print_room`] for this file succeeded, and `bytes` bytes of its room were written.
#[unsafe(no_mangle)]
unsafe extern "C" fn memlift_z_print(target: gzFile, bytes: c_int) -> c_int {
    // SAFETY: the caller guarantees the file, and the bytes.
    fenced(Z_STREAM_ERROR, || unsafe { gz::print(target, bytes) })
}
