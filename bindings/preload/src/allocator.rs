// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions of the malloc family, which allocate in the arena.
//!
//! - **Flow** `malloc` ──▶ jemalloc, whose `mmap`, `munmap` and `madvise` are this library's ──▶ the arena. Before the start,
//!   and in this library's own code, `malloc` ──▶ `heap`, which never lies in the arena
//! - **Layout** jemalloc is used because its records lie beside the objects and not in them: freeing an object whose page is
//!   compressed does not bring that page back
//! - **Order** the address of a pointer tells which heap it belongs to, and it is freed there
//! - **Owner** C++'s operators end up here too, because libstdc++ calls `malloc`
//! - **Not here** glibc's statistics of its own heap, which stays empty

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use tikv_jemalloc_sys as je;

use crate::gate::{errno, set_errno};
use crate::{heap, start, thread};

/// A pointer to a constant string.
#[repr(transparent)]
#[derive(Debug)]
pub struct Text(*const c_char);
// SAFETY: the pointer refers to a constant, which no thread changes.
unsafe impl Sync for Text {}

/// Settings of jemalloc: freed pages go back to the system after about a second, in one step (pages that are kept for reuse
/// would be compressed). jemalloc makes no thread of its own, and reuses a free range only for a block of at least 1/16 of
/// its size.
// SAFETY: the symbol is jemalloc's own weak variable of this type, which is meant to be replaced so.
#[unsafe(no_mangle)]
pub static _rjem_malloc_conf: Text = Text(
    c"background_thread:false,dirty_decay_ms:1000,muzzy_decay_ms:0,abort_conf:false,lg_extent_max_active_fit:4".as_ptr(),
);

const PAGE_BYTES: usize = 4096;

/// Frees a block that the program got before the start. Signals are blocked meanwhile, so no handler can run in between.
fn free_early(pointer: *mut c_void) {
    let _quiet = (!thread::inside()).then(thread::Quiet::begin);
    heap::free(pointer.cast());
}

fn ours() -> bool {
    !start::begun() || thread::inside()
}

/// Behaves as libc's `malloc`. The memory comes from jemalloc, or from `heap` before the start and in this library's own
/// code.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if ours() {
        return nonnull(heap::allocate(bytes, 16).cast());
    }
    // SAFETY: jemalloc may be called with any size.
    unsafe { je::malloc(bytes) }
}

/// Behaves as libc's `calloc`: the bytes are zeroed, and a product that overflows gives null.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    if ours() {
        let Some(whole) = count.checked_mul(bytes) else { return nonnull(null_mut()) };
        let payload = heap::allocate(whole, 16);
        if !payload.is_null() {
            // SAFETY: `allocate` returned a payload of at least `whole` bytes.
            unsafe { payload.write_bytes(0, whole) };
        }
        return nonnull(payload.cast());
    }
    // SAFETY: jemalloc may be called with any sizes.
    unsafe { je::calloc(count, bytes) }
}

/// Behaves as libc's `realloc`.
///
/// # Safety
///
/// The promises of libc's `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(pointer: *mut c_void, bytes: usize) -> *mut c_void {
    if pointer.is_null() {
        return malloc(bytes);
    }
    if !heap::contains(pointer as usize) {
        // SAFETY: the pointer is jemalloc's, since it does not lie in this library's heap, the only other source of blocks.
        return unsafe { je::realloc(pointer, bytes) };
    }
    if bytes == 0 {
        free_early(pointer);
        return null_mut();
    }
    let usable = heap::usable(pointer.cast());
    if bytes <= usable && bytes * 4 > usable {
        return pointer;
    }
    let target = malloc(bytes);
    if !target.is_null() {
        // SAFETY: both blocks have at least that many bytes, and they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), target.cast(), usable.min(bytes)) };
        free_early(pointer);
    }
    target
}

/// Behaves as libc's `free`.
///
/// # Safety
///
/// The promises of libc's `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    if pointer.is_null() {
        return;
    }
    if heap::contains(pointer as usize) {
        return free_early(pointer);
    }
    let number = errno();
    // SAFETY: the pointer is jemalloc's, since it does not lie in this library's heap, the only other source of blocks.
    unsafe { je::free(pointer) };
    set_errno(number);
}

/// Frees a block (an old name of `free` in libc).
///
/// # Safety
///
/// The promises of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(pointer: *mut c_void) {
    // SAFETY: the caller makes the promises of `cfree`.
    unsafe { free(pointer) };
}

/// Frees a block (C23's `free_sized`).
///
/// # Safety
///
/// The promises of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(pointer: *mut c_void, _bytes: usize) {
    // SAFETY: the caller makes the promises of `free_sized`.
    unsafe { free(pointer) };
}

/// Frees a block (C23's `free_aligned_sized`).
///
/// # Safety
///
/// The promises of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(pointer: *mut c_void, _alignment: usize, _bytes: usize) {
    // SAFETY: the caller makes the promises of `free_aligned_sized`.
    unsafe { free(pointer) };
}

/// Behaves as libc's `reallocarray`.
///
/// # Safety
///
/// The promises of [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(pointer: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the caller makes the promises of `reallocarray`.
        Some(whole) => unsafe { realloc(pointer, whole) },
        None => nonnull(null_mut()),
    }
}

fn aligned(alignment: usize, bytes: usize) -> *mut c_void {
    if ours() {
        return nonnull(heap::allocate(bytes, alignment).cast());
    }
    // SAFETY: the callers pass a power of two as the alignment, which is all that jemalloc requires.
    unsafe { je::aligned_alloc(alignment.max(size_of::<usize>()), bytes) }
}

/// Behaves as libc's `posix_memalign`.
///
/// # Safety
///
/// `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let number = errno();
    let pointer = aligned(alignment, bytes);
    set_errno(number);
    if pointer.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller promises that `place` may be written.
    unsafe { place.write(pointer) };
    0
}

/// Behaves as libc's `aligned_alloc`: sets `EINVAL` if the alignment is not a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    aligned(alignment, bytes)
}

/// Behaves as libc's `memalign`, which rounds an alignment up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        Some(alignment) => aligned(alignment, bytes),
        None => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// Behaves as libc's `valloc`: the block is aligned to a page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(bytes: usize) -> *mut c_void {
    aligned(PAGE_BYTES, bytes)
}

/// Behaves as libc's `pvalloc`: the block is aligned to a page, and its size is rounded up to whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    match bytes.checked_next_multiple_of(PAGE_BYTES) {
        Some(bytes) => aligned(PAGE_BYTES, bytes),
        None => nonnull(null_mut()),
    }
}

/// Behaves as libc's `malloc_usable_size`.
///
/// # Safety
///
/// The promises of libc's `malloc_usable_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    if pointer.is_null() {
        0
    } else if heap::contains(pointer as usize) {
        heap::usable(pointer.cast())
    } else {
        // SAFETY: the pointer is jemalloc's, since it does not lie in this library's heap, the only other source of blocks.
        unsafe { je::malloc_usable_size(pointer) }
    }
}

/// Gives freed pages back to the system now, as libc's `malloc_trim`. Returns 1 if memory may have been given back.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_keep: usize) -> c_int {
    if ours() {
        return 0;
    }
    // 4096 is jemalloc's number that stands for all of its arenas.
    // SAFETY: the name is a C string, and the control takes no value.
    unsafe { je::mallctl(c"arena.4096.purge".as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    1
}

fn nonnull(pointer: *mut c_void) -> *mut c_void {
    if pointer.is_null() {
        set_errno(libc::ENOMEM);
    }
    pointer
}
