// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memcpy, memmove, memset, memcmp and their kin, in libc's place.
//!
//! - **Flow** entry ([`crate::entry`]) ─▶ small, or within a library's call ─▶ counted ─▶ libc's. Else [`timed`](crate::sink::timed)
//! - **Order** until [`resolve`] has found libc's functions, plain string instructions do their work: other libraries' constructors may
//!   call before ours runs. They are never inlined loops, which a compiler may turn into a call of memcpy
//! - **Not here** calls inside libc, calls that a compiler replaced by instructions, and copies in other languages' runtimes: those never
//!   come by

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicUsize};

use memlift_spec::trace::Kind;

use crate::entry::entries;
use crate::sink::{Touched, look, timed, within_call};
use crate::thread::current;

type CopyFn = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type FillFn = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;
type CompareFn = unsafe extern "C" fn(*const c_void, *const c_void, usize) -> c_int;

/// Smaller calls are counted; before the trace is there, all are.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);

static COPY: AtomicPtr<c_void> = AtomicPtr::new(plain_copy as *mut c_void);
static MOVE: AtomicPtr<c_void> = AtomicPtr::new(plain_move as *mut c_void);
static FILL: AtomicPtr<c_void> = AtomicPtr::new(plain_fill as *mut c_void);
static COMPARE: AtomicPtr<c_void> = AtomicPtr::new(plain_compare as *mut c_void);

unsafe extern "C" fn plain_copy(target: *mut c_void, source: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise to memcpy.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") target => _, inout("rsi") source => _,
            options(nostack, preserves_flags));
    }
    target
}

unsafe extern "C" fn plain_move(target: *mut c_void, source: *const c_void, bytes: usize) -> *mut c_void {
    if (target as usize).wrapping_sub(source as usize) >= bytes {
        // SAFETY: the target does not begin inside the source: copying upwards is right.
        return unsafe { plain_copy(target, source, bytes) };
    }
    // SAFETY: the caller's promise to memmove; downwards from the last byte, and the direction is set back.
    unsafe {
        core::arch::asm!("std", "rep movsb", "cld", inout("rcx") bytes => _,
            inout("rdi") target.cast::<u8>().wrapping_add(bytes).wrapping_sub(1) => _,
            inout("rsi") source.cast::<u8>().wrapping_add(bytes).wrapping_sub(1) => _, options(nostack));
    }
    target
}

unsafe extern "C" fn plain_fill(target: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise to memset.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") target => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    target
}

unsafe extern "C" fn plain_compare(one: *const c_void, other: *const c_void, bytes: usize) -> c_int {
    for index in 0..bytes {
        // SAFETY: the caller's promise to memcmp. Volatile, so that this stays a loop.
        let (one, other) = unsafe {
            (one.cast::<u8>().add(index).read_volatile(), other.cast::<u8>().add(index).read_volatile())
        };
        if one != other {
            return c_int::from(one) - c_int::from(other);
        }
    }
    0
}

/// Finds libc's functions; false: one is missing.
pub fn resolve() -> bool {
    let places: [(&CStr, &AtomicPtr<c_void>); 4] =
        [(c"memcpy", &COPY), (c"memmove", &MOVE), (c"memset", &FILL), (c"memcmp", &COMPARE)];
    places.into_iter().all(|(name, place)| {
        // SAFETY: a name with its zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if !found.is_null() {
            place.store(found, Relaxed);
        }
        !found.is_null()
    })
}

/// From now on calls from `bytes` on are recorded.
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
    // SAFETY: the place holds a function of this type from its beginning; the arguments are the caller's.
    unsafe { core::mem::transmute::<*mut c_void, CopyFn>(place.load(Relaxed))(target, source, bytes) }
}

/// Counts the call; true: it is to be recorded.
#[inline(always)]
fn big(place: usize, bytes: usize) -> bool {
    if bytes >= THRESHOLD.load(Relaxed) && !within_library() {
        return true;
    }
    let thread = current();
    if thread.count(place, bytes) {
        look(thread);
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
    // SAFETY: the caller's arguments.
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
    // SAFETY: the caller's arguments.
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
    // SAFETY: the caller's arguments.
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
    // SAFETY: the caller's arguments.
    unsafe { memcpy_from(target, source, bytes, caller).cast::<u8>().add(bytes).cast() }
}

unsafe extern "C" fn memset_from(
    target: *mut c_void,
    byte: c_int,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the place holds a function of this type from its beginning; the arguments are the caller's.
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
    // SAFETY: the place holds a function of this type from its beginning; the arguments are the caller's.
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

/// libc's check that the target has room, which ends the program.
fn check(bytes: usize, room: usize) {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    if bytes > room {
        // SAFETY: ends the program, as libc's own function would.
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
            // SAFETY: the caller's arguments.
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
