// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that a stream keeps between two calls, from the program's `zalloc`, or from malloc if there is none.
//!
//! - **Owner** [`Memory`] holds the functions that get and free memory, copied from the `z_stream` at initialization. The memory has no
//!   `Drop`, because programs with an arena (nginx) free everything at once without `deflateEnd`, and then none of it may be touched any
//!   more.

use core::ffi::{c_uint, c_void};
use core::ptr::{self, NonNull};
use libz_rs_sys::{alloc_func, free_func, z_stream};

/// The allocator of a stream.
#[derive(Clone, Copy)]
pub struct Memory {
    zalloc: alloc_func,
    zfree: free_func,
    opaque: *mut c_void,
}

unsafe extern "C" fn from_malloc(_: *mut c_void, items: c_uint, bytes: c_uint) -> *mut c_void {
    // SAFETY: malloc takes any size, and the product of two `u32` does not overflow.
    unsafe { libc::malloc(items as usize * bytes as usize) }
}

unsafe extern "C" fn to_free(_: *mut c_void, memory: *mut c_void) {
    // SAFETY: zlib.h requires that the memory came from `from_malloc`.
    unsafe { libc::free(memory) };
}

/// Sets the allocation functions that the program left null, as zlib does.
///
/// # Safety
/// `strm` is valid.
pub unsafe fn fill_in(strm: *mut z_stream) {
    // SAFETY: the caller guarantees a valid stream.
    unsafe {
        if (*strm).zalloc.is_none() {
            (*strm).zalloc = Some(from_malloc);
            (*strm).opaque = ptr::null_mut();
        }
        if (*strm).zfree.is_none() {
            (*strm).zfree = Some(to_free);
        }
    }
}

impl Memory {
    /// Returns the allocator of a stream; malloc and free replace missing functions.
    ///
    /// # Safety
    /// `strm` is valid.
    pub unsafe fn of(strm: *const z_stream) -> Memory {
        // SAFETY: the caller guarantees a valid stream.
        let (zalloc, zfree, opaque) = unsafe { ((*strm).zalloc, (*strm).zfree, (*strm).opaque) };
        Memory { zalloc: zalloc.unwrap_or(from_malloc), zfree: zfree.unwrap_or(to_free), opaque }
    }

    /// Allocates memory for a value, then makes the value by `make`; returns `None` if there is no memory or no value.
    pub fn make<T>(&self, make: impl FnOnce() -> Option<T>) -> Option<NonNull<T>> {
        const { assert!(align_of::<T>() <= 8) };
        let place = self.get(size_of::<T>())?;
        // SAFETY: the memory is as large as a `T` and aligned to 8; if no value was made, it is freed.
        unsafe {
            let Some(value) = make() else {
                self.free(place);
                return None;
            };
            place.cast::<T>().write(value);
        }
        Some(place.cast())
    }

    /// Frees what [`keep`](Memory::keep) got.
    ///
    /// # Safety
    /// `place` came from `keep` of the same memory, and nobody uses it any more.
    pub unsafe fn drop_kept<T>(&self, place: NonNull<T>) {
        // SAFETY: the caller guarantees that the memory came from `keep` and is not used any more.
        unsafe { self.free(place.cast()) };
    }

    /// Frees what [`get`](Memory::get) got.
    ///
    /// # Safety
    /// `place` came from `get` of the same memory, and nobody uses it any more.
    pub unsafe fn free(&self, place: NonNull<u8>) {
        // SAFETY: the caller guarantees that the memory came from `get` and is not used any more.
        unsafe { (self.zfree)(self.opaque, place.as_ptr().cast()) };
    }

    /// Allocates at least `bytes` bytes, aligned to 8.
    pub fn get(&self, bytes: usize) -> Option<NonNull<u8>> {
        // nginx returns 8 KiB for a request below that which is not a multiple of 512, because it takes the request for zlib's
        // state.
        let bytes = u32::try_from(bytes.next_multiple_of(512)).ok()?;
        // SAFETY: the program's function is called as zlib.h describes.
        let place = unsafe { (self.zalloc)(self.opaque, 1, bytes) };
        NonNull::new(place.cast::<u8>()).filter(|place| place.as_ptr().addr().is_multiple_of(8))
    }
}

/// Bytes in a part of a stream's memory, which the stream frees. Everything below `end` is initialized.
pub struct Buffer {
    start: *mut u8,
    capacity: usize,
    /// Start of the current bytes.
    pub at: usize,
    /// End of the current bytes.
    pub end: usize,
}

impl Buffer {
    /// Creates an empty buffer in memory of `capacity` bytes.
    pub const fn within(memory: NonNull<u8>, capacity: usize) -> Buffer {
        Buffer { start: memory.as_ptr(), capacity, at: 0, end: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        if self.at == self.end {
            return &[];
        }
        // SAFETY: bytes below `end` are initialized and within the capacity.
        unsafe { core::slice::from_raw_parts(self.start.add(self.at), self.end - self.at) }
    }

    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Returns everything below `end`, including the bytes before `at`.
    pub fn whole(&self) -> &[u8] {
        if self.end == 0 {
            return &[];
        }
        // SAFETY: bytes below `end` are initialized and within the capacity.
        unsafe { core::slice::from_raw_parts(self.start, self.end) }
    }

    /// Returns the number of bytes that can still be added.
    pub fn room(&self) -> usize {
        self.capacity - self.end
    }

    /// Adds bytes. Panics if there is no room.
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room());
        if !bytes.is_empty() {
            // SAFETY: there is room, and `bytes` does not overlap memory that only this buffer uses.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.end), bytes.len()) };
            self.end += bytes.len();
        }
    }

    /// Returns the room behind the bytes; [`grow`](Buffer::grow) then says how many were written.
    pub fn free_room(&mut self) -> &mut [core::mem::MaybeUninit<u8>] {
        if self.start.is_null() {
            return &mut [];
        }
        // SAFETY: the room begins at `end` and ends at the capacity.
        unsafe { core::slice::from_raw_parts_mut(self.start.add(self.end).cast(), self.capacity - self.end) }
    }

    /// Adds bytes that were written to the room.
    ///
    /// # Safety
    /// The first `bytes` bytes of [`free_room`](Buffer::free_room) were written.
    pub unsafe fn grow(&mut self, bytes: usize) {
        assert!(bytes <= self.room());
        self.end += bytes;
    }

    /// Drops all but the last `bytes` bytes, which move to the start.
    pub fn retain_last(&mut self, bytes: usize) {
        let bytes = bytes.min(self.end);
        if bytes != 0 {
            // SAFETY: source and target are within the initialized bytes.
            unsafe { ptr::copy(self.start.add(self.end - bytes), self.start, bytes) };
        }
        (self.at, self.end) = (bytes, bytes);
    }

    /// Drops all bytes; the memory stays.
    pub fn clear(&mut self) {
        (self.at, self.end) = (0, 0);
    }

    /// Moves the current bytes to the start, preceded by up to `bytes` of the bytes before them. Returns the number of the
    /// preceding bytes, and of the current ones.
    pub fn move_down(&mut self, bytes: usize) -> (usize, usize) {
        let (history, waiting) = (self.at.min(bytes), self.end - self.at);
        self.retain_last(history + waiting);
        (history, waiting)
    }

    /// Adds the bytes of another buffer, for which there must be room.
    pub fn take_over(&mut self, other: &Buffer) {
        self.push(other.whole());
        self.at = other.at;
    }
}
