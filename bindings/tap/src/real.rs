// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the function that a caller would have called if this library were not loaded.
//!
//! - **Flow** first the libraries loaded for the whole program, after this one; then the caller's own file and its dependencies: Python
//!   modules, and wheels with a libz of their own, are loaded with local symbols.
//! - **Order** one search per call site; the result is stored in a lock-free table. If two threads search the same, they find the same.
//! - **Owner** a file that was searched stays loaded: the reference to it is never released.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const PLACES: usize = 1024;

struct Place {
    caller: AtomicUsize,
    name: AtomicUsize,
    found: AtomicUsize,
}

static TABLE: [Place; PLACES] =
    [const { Place { caller: AtomicUsize::new(0), name: AtomicUsize::new(0), found: AtomicUsize::new(0) } };
        PLACES];

/// Returns the function `name` for code at `caller`; null if there is none. `ours` is this library's function of that name.
pub fn function(name: &'static CStr, caller: usize, ours: usize) -> *const c_void {
    let name_at = name.as_ptr() as usize;
    let from = (caller ^ caller >> 12 ^ name_at >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    for step in 0..8 {
        let place = &TABLE[(from + step) % PLACES];
        match place.caller.load(Acquire) {
            0 => {
                let found = find_symbol(name, caller, ours);
                // The first thread to claim a place fills it; others search again.
                if !found.is_null() && place.name.compare_exchange(0, name_at, Relaxed, Relaxed).is_ok() {
                    place.found.store(found as usize, Relaxed);
                    place.caller.store(caller, Release);
                }
                return found;
            }
            held if held == caller && place.name.load(Relaxed) == name_at => {
                return place.found.load(Relaxed) as *const c_void;
            }
            _ => {}
        }
    }
    find_symbol(name, caller, ours)
}

#[cold]
fn find_symbol(name: &CStr, caller: usize, ours: usize) -> *const c_void {
    // SAFETY: the names end with a zero; dladdr fills the given structure, whose text lives as long as the file is loaded, and
    // the file contains the code that called. A file that is opened with NOLOAD is already loaded, so no constructor runs.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !next.is_null() {
            return next;
        }
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        if libc::dladdr(caller as *const c_void, info.as_mut_ptr()) == 0 {
            return core::ptr::null();
        }
        let file = libc::dlopen(info.assume_init().dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if file.is_null() {
            return core::ptr::null();
        }
        let found = libc::dlsym(file, name.as_ptr());
        if found as usize == ours { core::ptr::null() } else { found }
    }
}
