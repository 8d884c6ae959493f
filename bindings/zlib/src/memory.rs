// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that a stream keeps between two calls: from the program's `zalloc`, else from malloc.
//!
//! - **Owner** [`Memory`] is how to get and free it, taken from the `z_stream` at initialization. What it got has no `Drop`, because programs with
//!   an arena (nginx) drop a stream without a word, and then nothing of it may be touched any more.

use core::ffi::{c_uint, c_void};
use core::ptr::{self, NonNull};
use libz_rs_sys::{alloc_func, free_func, z_stream};

/// How a stream gets memory.
#[derive(Clone, Copy)]
pub struct Memory {
    zalloc: alloc_func,
    zfree: free_func,
    opaque: *mut c_void,
}

unsafe extern "C" fn from_malloc(_: *mut c_void, items: c_uint, bytes: c_uint) -> *mut c_void {
    // SAFETY: malloc takes any size; 2^64 is not reached.
    unsafe { libc::malloc(items as usize * bytes as usize) }
}

unsafe extern "C" fn to_free(_: *mut c_void, memory: *mut c_void) {
    // SAFETY: it came from `from_malloc`, as zlib.h asks of whoever calls this.
    unsafe { libc::free(memory) };
}

/// Sets the functions that the program left null, as zlib does.
///
/// # Safety
/// `strm` is valid.
pub unsafe fn fill_in(strm: *mut z_stream) {
    // SAFETY: the caller vouches for it.
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
    /// Returns the allocator of a stream; malloc and free stand in for functions that are missing.
    ///
    /// # Safety
    /// `strm` is valid.
    pub unsafe fn of(strm: *const z_stream) -> Memory {
        // SAFETY: the caller vouches for it.
        let (zalloc, zfree, opaque) = unsafe { ((*strm).zalloc, (*strm).zfree, (*strm).opaque) };
        Memory { zalloc: zalloc.unwrap_or(from_malloc), zfree: zfree.unwrap_or(to_free), opaque }
    }

    /// Memory for a value, which `make` makes once the memory is there. `None`: there is none, or nothing was made.
    pub fn make<T>(&self, make: impl FnOnce() -> Option<T>) -> Option<NonNull<T>> {
        const { assert!(align_of::<T>() <= 8) };
        let place = self.get(size_of::<T>())?;
        // SAFETY: as many bytes as a T, aligned to 8; without a value they go back.
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
        // SAFETY: the caller vouches for it.
        unsafe { self.free(place.cast()) };
    }

    /// Frees what [`get`](Memory::get) got.
    ///
    /// # Safety
    /// `place` came from `get` of the same memory, and nobody uses it any more.
    pub unsafe fn free(&self, place: NonNull<u8>) {
        // SAFETY: the caller vouches for it.
        unsafe { (self.zfree)(self.opaque, place.as_ptr().cast()) };
    }

    /// Memory of at least `bytes` bytes, aligned to 8.
    pub fn get(&self, bytes: usize) -> Option<NonNull<u8>> {
        // nginx gives 8 KiB to whoever asks for less and for anything but a multiple of 512: it takes that for zlib's state.
        let bytes = u32::try_from(bytes.next_multiple_of(512)).ok()?;
        // SAFETY: the program's function, called as zlib.h says.
        let place = unsafe { (self.zalloc)(self.opaque, 1, bytes) };
        NonNull::new(place.cast::<u8>()).filter(|place| place.as_ptr().addr().is_multiple_of(8))
    }
}

/// Bytes in memory of a stream, which the stream frees. Everything below `end` is initialized.
pub struct Buffer {
    start: *mut u8,
    capacity: usize,
    /// First byte that is of interest.
    pub at: usize,
    /// Behind the last byte.
    pub end: usize,
}

impl Buffer {
    /// Bytes in memory that was got before and has as many bytes.
    pub const fn within(memory: NonNull<u8>, capacity: usize) -> Buffer {
        Buffer { start: memory.as_ptr(), capacity, at: 0, end: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        if self.at == self.end {
            return &[];
        }
        // SAFETY: initialized, and within the capacity.
        unsafe { core::slice::from_raw_parts(self.start.add(self.at), self.end - self.at) }
    }

    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Everything below `end`, what was of interest before included.
    pub fn whole(&self) -> &[u8] {
        if self.end == 0 {
            return &[];
        }
        // SAFETY: initialized, and within the capacity.
        unsafe { core::slice::from_raw_parts(self.start, self.end) }
    }

    /// Bytes that can still be added.
    pub fn room(&self) -> usize {
        self.capacity - self.end
    }

    /// Adds bytes. Panics if there is no room.
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room());
        if !bytes.is_empty() {
            // SAFETY: there is room; the program's bytes are not in memory that only we have.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.end), bytes.len()) };
            self.end += bytes.len();
        }
    }

    /// Where the next bytes go; [`grow`](Buffer::grow) says how many came.
    pub fn free_room(&mut self) -> &mut [core::mem::MaybeUninit<u8>] {
        if self.start.is_null() {
            return &mut [];
        }
        // SAFETY: behind the end, within the capacity.
        unsafe { core::slice::from_raw_parts_mut(self.start.add(self.end).cast(), self.capacity - self.end) }
    }

    /// # Safety
    /// The first `bytes` bytes of [`free_room`](Buffer::free_room) were written.
    pub unsafe fn grow(&mut self, bytes: usize) {
        assert!(bytes <= self.room());
        self.end += bytes;
    }

    /// Keeps the last `bytes` bytes only, at the start.
    pub fn keep_last(&mut self, bytes: usize) {
        let bytes = bytes.min(self.end);
        if bytes != 0 {
            // SAFETY: both within what is initialized.
            unsafe { ptr::copy(self.start.add(self.end - bytes), self.start, bytes) };
        }
        (self.at, self.end) = (bytes, bytes);
    }

    /// Forgets all bytes, not the memory.
    pub fn clear(&mut self) {
        (self.at, self.end) = (0, 0);
    }

    /// Keeps the bytes of interest, and before them as many as fit into `bytes`, at the start. Returns how many of the latter, and of the former.
    pub fn move_down(&mut self, bytes: usize) -> (usize, usize) {
        let (history, waiting) = (self.at.min(bytes), self.end - self.at);
        self.keep_last(history + waiting);
        (history, waiting)
    }

    /// Takes over what another buffer holds. There is room for it.
    pub fn take_over(&mut self, other: &Buffer) {
        self.push(other.whole());
        self.at = other.at;
    }
}
