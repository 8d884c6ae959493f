// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The choice of a table: once per process, by what the CPU offers and `MEMLIFT_ISA` asks for.
//!
//! - **Flow** first `active()` ──▶ environment, cpuid ──▶ `ACTIVE` ──▶ every later call is one load
//! - **Order** `ACTIVE` points to constant tables only, so a relaxed load is enough; threads that race choose the
//!   same table. The warning about a bad value is printed by one of them.
//! - **Not here** allocation: the environment is read in place, because an allocator may be what calls us.

use crate::arch;
use crate::{Isa, Kernels, repeat, shape};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::io::Write;

/// The environment variable that overrides the choice: `scalar`, `sse2`, `avx2` or `avx512`.
pub const ISA_VARIABLE: &str = "MEMLIFT_ISA";

static ACTIVE: AtomicPtr<Kernels> = AtomicPtr::new(core::ptr::null_mut());
static WARNED: AtomicBool = AtomicBool::new(false);

/// The routines this process uses: the best level that is available, or the one that `MEMLIFT_ISA` names. An
/// unknown or unavailable name is reported on standard error once, and the best level below it is taken.
#[inline]
pub fn active() -> &'static Kernels {
    let kernels = ACTIVE.load(Ordering::Relaxed);
    if kernels.is_null() {
        return choose();
    }
    // SAFETY: a pointer that is not null comes from `choose`, which stores references to statics only.
    unsafe { &*kernels }
}

/// The routines of one level; `None` if this CPU lacks it.
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
    // SAFETY: the name is a C string. What getenv gives stays valid while nobody changes the environment, which
    // is as much as any reader of the environment can ask for.
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
        // A closed standard error is no reason to fail.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
