// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the function that a caller would have met if this library were not there.
//!
//! - **Flow** what is loaded for all, after us ─▶ else what the caller's own file and its needs bring: Python's modules, and wheels
//!   with a libz of their own, are loaded for themselves alone
//! - **Order** asked once per place that calls; kept in a table without locks, where the last of two equal answers stays
//! - **Owner** a file that was asked stays loaded: its reference is never given back

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

/// The function `name` for code at `caller`; null: there is none. `ours` is this library's of that name.
pub fn function(name: &'static CStr, caller: usize, ours: usize) -> *const c_void {
    let name_at = name.as_ptr() as usize;
    let from = (caller ^ caller >> 12 ^ name_at >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    for step in 0..8 {
        let place = &TABLE[(from + step) % PLACES];
        match place.caller.load(Acquire) {
            0 => {
                let found = look_up(name, caller, ours);
                // Whoever takes a place first fills it; others ask again.
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
    look_up(name, caller, ours)
}

#[cold]
fn look_up(name: &CStr, caller: usize, ours: usize) -> *const c_void {
    // SAFETY: names have their zeros; dladdr fills what it is given, and its text lives as long as the file is loaded, which
    // holds the code that called. A file that is opened with NOLOAD is there already: no constructor runs.
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
