// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of the functions whose place this library takes: naked, so that the caller's address is still on the stack.
//!
//! - **Layout** an entry puts the return address into the first argument register that its function does not use, and jumps: the function
//!   behind it has the caller as its last argument
//! - **Not here** functions with arguments on the stack, where nothing can be added

/// Makes one entry per line: its name, the function behind it, the register of that function's last argument.
macro_rules! entries {
    ($($name:ident => $from:ident, $register:literal;)*) => {$(
        /// # Safety
        /// As the function of this name in its library.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(concat!("mov ", $register, ", qword ptr [rsp]"), "jmp {}", sym $from)
        }
    )*};
}

pub(crate) use entries;
