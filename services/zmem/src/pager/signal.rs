// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGBUS and SIGSEGV: faults of the arena are answered, others handed on.

use crate::Result;

/// What the handlers do with one signal: true when it was the arena's and the instruction may run again.
///
/// # Safety
///
/// Called from a handler of SIGBUS or SIGSEGV with what the kernel gave it, all signals blocked.
pub unsafe fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> bool {
    let _ = (signal, info, context);
    false
}

/// Installs handlers of SIGBUS and SIGSEGV (SA_SIGINFO | SA_ONSTACK | SA_NODEFER off, all signals blocked) that call
/// [`handle`], else go to what was installed before.
///
/// # Errors
///
/// When the kernel refuses.
pub fn install() -> Result<()> {
    Ok(())
}
