// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces memcpy, memmove, memset, memcmp and related functions of libc.
//!
//! - **Flow** the entry point ([`crate::entry`]) leads to the function here. A small call, or one within a library's call, is counted and
//!   passed to libc. Any other is recorded by [`timed`](crate::sink::timed).
//! - **Order** until [`resolve`] has found libc's functions, string instructions do their work, because constructors of other libraries
//!   may call before ours runs. They are not written as loops, because a compiler may turn a loop into a call of memcpy.
//! - **Not here** calls inside libc, calls that a compiler replaced by instructions, and copies by the runtimes of other languages: these
//!   do not pass here.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicUsize};

use memlift_spec::formats::trace::Kind;

use crate::entry::entries;
use crate::sink::{Touched, mark_if_due, timed, within_call};
use crate::thread::current;

type CopyFn = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type FillFn = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;
type CompareFn = unsafe extern "C" fn(*const c_void, *const c_void, usize) -> c_int;

/// Smaller calls are only counted; before the trace is mapped, all are.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);

static COPY: AtomicPtr<c_void> = AtomicPtr::new(plain_copy as *mut c_void);
static MOVE: AtomicPtr<c_void> = AtomicPtr::new(plain_move as *mut c_void);
static FILL: AtomicPtr<c_void> = AtomicPtr::new(plain_fill as *mut c_void);
static COMPARE: AtomicPtr<c_void> = AtomicPtr::new(plain_compare as *mut c_void);

unsafe extern "C" fn plain_copy(target: *mut c_void, source: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller guarantees the conditions of memcpy.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") target => _, inout("rsi") source => _,
            options(nostack, preserves_flags));
    }
    target
}

unsafe extern "C" fn plain_move(target: *mut c_void, source: *const c_void, bytes: usize) -> *mut c_void {
    if (target as usize).wrapping_sub(source as usize) >= bytes {
        // SAFETY: the target does not begin inside the source, so copying upwards is right; the caller guarantees the
        // conditions of memmove.
        return unsafe { plain_copy(target, source, bytes) };
    }
    // SAFETY: the caller guarantees the conditions of memmove. Copies downwards from the last byte, and then clears the
    // direction flag.
    unsafe {
        core::arch::asm!("std", "rep movsb", "cld", inout("rcx") bytes => _,
            inout("rdi") target.cast::<u8>().wrapping_add(bytes).wrapping_sub(1) => _,
            inout("rsi") source.cast::<u8>().wrapping_add(bytes).wrapping_sub(1) => _, options(nostack));
    }
    target
}

unsafe extern "C" fn plain_fill(target: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    // SAFETY: the caller guarantees the conditions of memset.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") target => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    target
}

unsafe extern "C" fn plain_compare(one: *const c_void, other: *const c_void, bytes: usize) -> c_int {
    for index in 0..bytes {
        // SAFETY: the caller guarantees the conditions of memcmp. The reads are volatile, so that the compiler keeps the loop.
        let (one, other) = unsafe {
            (one.cast::<u8>().add(index).read_volatile(), other.cast::<u8>().add(index).read_volatile())
        };
        if one != other {
            return c_int::from(one) - c_int::from(other);
        }
    }
    0
}

/// Finds libc's functions; returns false if one is missing.
pub fn resolve() -> bool {
    let places: [(&CStr, &AtomicPtr<c_void>); 4] =
        [(c"memcpy", &COPY), (c"memmove", &MOVE), (c"memset", &FILL), (c"memcmp", &COMPARE)];
    places.into_iter().all(|(name, place)| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if !found.is_null() {
            place.store(found, Relaxed);
        }
        !found.is_null()
    })
}

/// From now on, records calls of at least `bytes` bytes.
pub fn begin(bytes: usize) {
    THRESHOLD.store(bytes, Relaxed);
}

#[inline(always)]
unsafe fn real_copy(
    place: &AtomicPtr<c_void>,
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: `place` holds a function of this type, first the one above and then libc's; the arguments are the caller's.
    unsafe { core::mem::transmute::<*mut c_void, CopyFn>(place.load(Relaxed))(target, source, bytes) }
}

/// Counts the call, or returns true if it is to be recorded.
#[inline(always)]
fn big(place: usize, bytes: usize) -> bool {
    if bytes >= THRESHOLD.load(Relaxed) && !within_library() {
        return true;
    }
    let thread = current();
    if thread.count(place, bytes) {
        mark_if_due(thread);
    }
    false
}

#[inline(never)]
fn within_library() -> bool {
    let here = 0u8;
    within_call(current(), &raw const here as usize)
}

#[cold]
#[inline(never)]
unsafe fn recorded_copy(
    kind: Kind,
    place: &AtomicPtr<c_void>,
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    let touched =
        |_: &_| Touched { source: source as usize, target: target as usize, read: bytes, written: bytes };
    // SAFETY: the arguments are those of the caller, who guarantees libc's conditions.
    timed(kind, 0, caller, bytes, || unsafe { real_copy(place, target, source, bytes) }, touched)
}

entries! {
    memcpy => memcpy_from, "rcx";
    memmove => memmove_from, "rcx";
    mempcpy => mempcpy_from, "rcx";
    memset => memset_from, "rcx";
    memcmp => memcmp_from, "rcx";
    bcmp => memcmp_from, "rcx";
    __memcpy_chk => memcpy_chk_from, "r8";
    __memmove_chk => memmove_chk_from, "r8";
    __mempcpy_chk => mempcpy_chk_from, "r8";
    __memset_chk => memset_chk_from, "r8";
}

unsafe extern "C" fn memcpy_from(
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the arguments are those of the caller, who guarantees libc's conditions.
    unsafe {
        if big(0, bytes) {
            recorded_copy(Kind::Copy, &COPY, target, source, bytes, caller)
        } else {
            real_copy(&COPY, target, source, bytes)
        }
    }
}

unsafe extern "C" fn memmove_from(
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the arguments are those of the caller, who guarantees libc's conditions.
    unsafe {
        if big(1, bytes) {
            recorded_copy(Kind::Move, &MOVE, target, source, bytes, caller)
        } else {
            real_copy(&MOVE, target, source, bytes)
        }
    }
}

unsafe extern "C" fn mempcpy_from(
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the arguments are those of the caller, who guarantees libc's conditions.
    unsafe { memcpy_from(target, source, bytes, caller).cast::<u8>().add(bytes).cast() }
}

unsafe extern "C" fn memset_from(
    target: *mut c_void,
    byte: c_int,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: `FILL` holds a function of this type, first the one above and then libc's; the arguments are the caller's.
    let real =
        || unsafe { core::mem::transmute::<*mut c_void, FillFn>(FILL.load(Relaxed))(target, byte, bytes) };
    if !big(2, bytes) {
        return real();
    }
    timed(Kind::Fill, 0, caller, bytes, real, |_| Touched {
        source: 0,
        target: target as usize,
        read: 0,
        written: bytes,
    })
}

unsafe extern "C" fn memcmp_from(
    one: *const c_void,
    other: *const c_void,
    bytes: usize,
    caller: usize,
) -> c_int {
    // SAFETY: `COMPARE` holds a function of this type, first the one above and then libc's; the arguments are the caller's.
    let real = || unsafe {
        core::mem::transmute::<*mut c_void, CompareFn>(COMPARE.load(Relaxed))(one, other, bytes)
    };
    if !big(3, bytes) {
        return real();
    }
    timed(Kind::Compare, 0, caller, bytes, real, |_| Touched {
        source: one as usize,
        target: other as usize,
        read: bytes,
        written: 0,
    })
}

/// Checks that the target has room, as libc's `…_chk` functions do; ends the program if it has not.
fn check(bytes: usize, room: usize) {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    if bytes > room {
        // SAFETY: the function ends the program, as libc's own check would.
        unsafe { __chk_fail() }
    }
}

macro_rules! checked {
    ($($name:ident($real:ident, $second:ty);)*) => {$(
        unsafe extern "C" fn $name(
            target: *mut c_void,
            second: $second,
            bytes: usize,
            room: usize,
            caller: usize,
        ) -> *mut c_void {
            check(bytes, room);
            // SAFETY: the arguments are those of the caller, who guarantees libc's conditions.
            unsafe { $real(target, second, bytes, caller) }
        }
    )*};
}

checked! {
    memcpy_chk_from(memcpy_from, *const c_void);
    memmove_chk_from(memmove_from, *const c_void);
    mempcpy_chk_from(mempcpy_from, *const c_void);
    memset_chk_from(memset_from, c_int);
}
