// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages on stderr and the end of a process, both without a heap.

use std::ffi::CStr;

use crate::sys;

/// Exit status of a process that could not be put under its budget.
pub const REFUSED: i32 = 125;

/// Writes the pieces to stderr.
pub fn say(pieces: &[&CStr]) {
    for piece in pieces {
        // SAFETY: the bytes are borrowed for the call, and their length is passed.
        unsafe { sys!(libc::SYS_write, 2, piece.as_ptr(), piece.count_bytes()) };
    }
}

/// Writes the text to stderr.
pub fn say_text(text: &str) {
    // SAFETY: the bytes are borrowed for the call, and their length is passed.
    unsafe { sys!(libc::SYS_write, 2, text.as_ptr(), text.len()) };
}

/// Writes the pieces to stderr and ends the process, because going on would mean wrong data or an uncounted process.
pub fn die(pieces: &[&CStr]) -> ! {
    say(pieces);
    loop {
        // SAFETY: the call takes a number only, and ends the process.
        unsafe { sys!(libc::SYS_exit_group, REFUSED) };
    }
}
