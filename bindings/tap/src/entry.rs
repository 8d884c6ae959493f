// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entry points of the functions that this library replaces. They are naked functions, so the caller's address is still on the stack.
//!
//! - **Layout** an entry point puts the return address into the first argument register that its function does not use, and jumps: so the
//!   Rust function behind it gets the caller as its last argument.
//! - **Not here** functions with arguments on the stack, where no argument can be added.

/// Defines one entry point per line: its name, the function behind it, the register of that function's last argument.
macro_rules! entries {
    ($($name:ident => $from:ident, $register:literal;)*) => {$(
        /// # Safety
        /// The conditions of the function of this name in its library.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(concat!("mov ", $register, ", qword ptr [rsp]"), "jmp {}", sym $from)
        }
    )*};
}

pub(crate) use entries;
