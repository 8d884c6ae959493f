// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dlopen` without `RTLD_DEEPBIND`: with that flag, a library would use libc's `free` on blocks of this library's `malloc`.
//!
//! - **Flow** the flag is cleared in the second argument, then the code jumps to libc's function
//! - **Order** it jumps and does not call, because libc reads its return address to find out whose search path applies
//! - **Not here** `dlmopen`: another namespace has a libc and a heap of its own

use std::ffi::{c_char, c_int, c_void};

use crate::wrappers::Next;

static NEXT: Next = Next::new(c"dlopen");

/// Returns the address of libc's function.
extern "C" fn address() -> usize {
    NEXT.address()
}

/// Behaves as libc's `dlopen` without `RTLD_DEEPBIND`.
///
/// # Safety
///
/// The promises of libc's `dlopen`.
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
