// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dlopen` without `RTLD_DEEPBIND`: a library bound to libc's `free` would pass it blocks of our `malloc`.
//!
//! - **Flow** the flag is taken out of the second argument, and libc's function is jumped to
//! - **Order** a jump, not a call: libc reads its return address to find out whose search path applies
//! - **Not here** `dlmopen`: another namespace has a libc and a heap of its own

use std::ffi::{c_char, c_int, c_void};

use crate::wrappers::Next;

static NEXT: Next = Next::new(c"dlopen");

/// Address of libc's function.
extern "C" fn address() -> usize {
    NEXT.address()
}

/// As libc's, whatever `RTLD_DEEPBIND` says.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "and esi, {kept}",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {address}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        kept = const !libc::RTLD_DEEPBIND,
        address = sym address,
    );
}
