// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a function becomes a symbol of libz: its version, and a fence for panics.

/// Puts the function that it stands in into a version node of `libz.map`. Used once per function that is never
/// inlined, because the assembler wants the definition in the same object.
macro_rules! versioned {
    ($name:ident, $version:literal) => {
        #[cfg(symbol_versions)]
        // SAFETY: an assembler directive; no instruction.
        unsafe {
            core::arch::asm!(
                concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@@ZLIB_", $version),
                options(nomem, nostack, preserves_flags)
            )
        };
    };
}

/// Functions that zlib-rs does as they are. `in "1.2.9"`: the version node.
macro_rules! pass {
    ($($(in $version:literal)? fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {$(
        /// As in zlib.h.
        ///
        /// # Safety
        /// As in zlib.h.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
            $(versioned!($name, $version);)?
            // SAFETY: the caller's promise is the same as that of the function that is called.
            #[allow(unused_unsafe, reason = "some need no promise")]
            unsafe { libz_rs_sys::$name($($argument),*) }
        }
    )*};
}

/// Runs an exported function's body: a panic becomes the given result instead of unwinding into C.
pub(crate) fn fenced<R>(panicked: R, body: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(panicked)
}
