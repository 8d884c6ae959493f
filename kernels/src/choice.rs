// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the table of routines once per process, by the CPU and by `MEMLIFT_ISA`.
//!
//! - **Flow** the first `active()` reads environment and cpuid and sets `ACTIVE`; every later call is one load.
//! - **Order** `ACTIVE` points to constant tables only, so a relaxed load is enough; racing threads choose the same table. Only one of
//!   them prints the warning about a bad value.
//! - **Not here** allocation: the environment is read in place, because the caller may be an allocator.

use crate::arch;
use crate::{Isa, Kernels, repeat, shape};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::io::Write;

/// Environment variable that overrides the choice: `scalar`, `sse2`, `avx2` or `avx512`.
pub const ISA_VARIABLE: &str = "MEMLIFT_ISA";

static ACTIVE: AtomicPtr<Kernels> = AtomicPtr::new(core::ptr::null_mut());
static WARNED: AtomicBool = AtomicBool::new(false);

/// Returns the routines that this process uses: the best level that is available, or the one that `MEMLIFT_ISA` names. An
/// unknown or unavailable name is reported on standard error once, and the best available level below it is used.
#[inline]
pub fn active() -> &'static Kernels {
    let kernels = ACTIVE.load(Ordering::Relaxed);
    if kernels.is_null() {
        return choose();
    }
    // SAFETY: a pointer that is not null comes from `choose`, which stores references to statics only.
    unsafe { &*kernels }
}

/// Returns the routines of one level, or `None` if this CPU lacks it.
pub fn for_isa(isa: Isa) -> Option<&'static Kernels> {
    if !isa.available() {
        return None;
    }
    repeat::detect();
    shape::detect();
    Some(arch::table(isa))
}

#[cold]
fn choose() -> &'static Kernels {
    // SAFETY: the name is a C string. The value stays valid while nobody changes the environment, which no reader of the
    // environment can exclude.
    let value = unsafe {
        let value = libc::getenv(c"MEMLIFT_ISA".as_ptr());
        if value.is_null() { &[] } else { CStr::from_ptr(value).to_bytes() }
    };
    let best = Isa::Avx512.best_available_below();
    let isa = if value.is_empty() {
        best
    } else {
        match core::str::from_utf8(value).ok().and_then(Isa::from_name) {
            Some(isa) if isa.available() => isa,
            Some(isa) => {
                let below = isa.best_available_below();
                warn(format_args!(
                    "memlift: MEMLIFT_ISA={isa}: this CPU lacks it; using {below} (unset it to have the best)"
                ));
                below
            }
            None => {
                warn(format_args!(
                    "memlift: MEMLIFT_ISA={}: unknown; using {best} (one of scalar, sse2, avx2, avx512)",
                    value.escape_ascii()
                ));
                best
            }
        }
    };
    repeat::detect();
    shape::detect();
    let kernels = arch::table(isa);
    ACTIVE.store(core::ptr::from_ref(kernels).cast_mut(), Ordering::Relaxed);
    kernels
}

fn warn(text: core::fmt::Arguments<'_>) {
    if !WARNED.swap(true, Ordering::Relaxed) {
        // If standard error is closed, the warning is lost.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
