// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Macros that export a function as a symbol of libz with its version, and a function that stops panics.

/// Puts the function in which it stands into a version node of `libz.map`. Only for functions that are never inlined, because the
/// assembler needs the definition in the same object.
macro_rules! versioned {
    ($name:ident, $version:literal) => {
        #[cfg(symbol_versions)]
        // SAFETY: the text is an assembler directive; no instruction is executed.
        unsafe {
            core::arch::asm!(
                concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@@ZLIB_", $version),
                options(nomem, nostack, preserves_flags)
            )
        };
    };
}

/// Exports functions that zlib-rs implements. `in "1.2.9"` names the version node.
macro_rules! pass {
    ($($(in $version:literal)? fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {$(
        /// See zlib.h.
        ///
        /// # Safety
        /// The conditions of zlib.h.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
            $(versioned!($name, $version);)?
            // SAFETY: the caller guarantees the conditions of zlib.h, which are those of the called function.
            #[allow(unused_unsafe, reason = "some need no promise")]
            unsafe { libz_rs_sys::$name($($argument),*) }
        }
    )*};
}

/// Runs the body of an exported function; after a panic it returns `panicked` instead of unwinding into C.
pub(crate) fn fenced<R>(panicked: R, body: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(panicked)
}
