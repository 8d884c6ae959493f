// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of zmem's own: anonymous, page-aligned, outside the arena, from the kernel and not from `malloc`.
//!
//! - **Flow** [`Mapping::reserve`] ──address space only──▶ pages appear at first touch ──[`Mapping::release`]──▶ pages are
//!   gone again
//! - **Owner** a mapping is unmapped when dropped; it holds plain bytes or atomics, nothing that would have to be dropped
//! - **Limits** [`reserved_bytes`] is the sum of all mappings. A limit on address space that the program set is raised by this
//!   sum; [`before_growth`] names the function that does so before the sum grows
//! - **Not here** charges: the caller counts the pages that it touches

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::{Error, Result};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

static RESERVED: AtomicUsize = AtomicUsize::new(0);
static BEFORE_GROWTH: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the address space that all mappings of this process take, bytes.
pub fn reserved_bytes() -> usize {
    RESERVED.load(Ordering::Relaxed)
}

/// Sets the function that runs before a new mapping is made, when [`reserved_bytes`] already includes it.
pub fn before_growth(hook: fn()) {
    BEFORE_GROWTH.store(hook as *mut (), Ordering::Release);
}

/// Counts a new mapping of this library.
pub fn count_reserved(bytes: usize) {
    RESERVED.fetch_add(bytes, Ordering::Relaxed);
    let hook = BEFORE_GROWTH.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: only `before_growth` stores a pointer here, which is a function of this type.
        unsafe { std::mem::transmute::<*mut (), fn()>(hook)() };
    }
}

/// A range of anonymous private memory.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range that this value alone owns. Its bytes are reached only through `pointer`, whose users
// say how they share them.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives only the address; users of the address say how they share the bytes behind it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `bytes` (rounded up to pages) of address space that is readable, writable, zero at first touch, not counted
    /// against overcommit, and in no core dump. The error names `what`.
    ///
    /// # Errors
    ///
    /// [`Error::Map`].
    pub fn reserve(what: &'static str, bytes: usize) -> Result<Mapping> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        count_reserved(bytes);
        // This makes the system call directly, because `mmap` may be a function of the preloaded library.
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory that exists.
        let address = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                0,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        match NonNull::new(address as *mut u8) {
            Some(address) if address.as_ptr() as isize != -1 => {
                // Copies of the program's memory belong in no core dump, since the program may have kept the memory itself out.
                // SAFETY: this is advice for the new mapping; a kernel that refuses it leaves the mapping as it is.
                unsafe { libc::syscall(libc::SYS_madvise, address.as_ptr(), bytes, libc::MADV_DONTDUMP) };
                Ok(Mapping { address, bytes })
            }
            _ => {
                let source = std::io::Error::last_os_error();
                RESERVED.fetch_sub(bytes, Ordering::Relaxed);
                Err(Error::Map { what, bytes, source })
            }
        }
    }

    /// Returns the address of the first byte.
    pub fn pointer(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the size of the mapping, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the pages of `[offset, offset + bytes)` back to the kernel; they read as zeros again. Both arguments are
    /// multiples of the page size.
    ///
    /// # Panics
    ///
    /// Panics if the range is not inside the mapping, or does not consist of whole pages.
    pub fn release(&self, offset: usize, bytes: usize) {
        assert!(
            offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES),
            "whole pages are released"
        );
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "the range lies in the mapping");
        // SAFETY: the range lies in this mapping, and its owner gives up the contents.
        unsafe {
            libc::syscall(libc::SYS_madvise, self.address.as_ptr().add(offset), bytes, libc::MADV_DONTNEED)
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's, and no reference to it lives longer than this value.
        unsafe { libc::syscall(libc::SYS_munmap, self.address.as_ptr(), self.bytes) };
        RESERVED.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_as_zeros() {
        let mapping = Mapping::reserve("a test", 3 * PAGE_BYTES - 1).expect("address space");
        assert_eq!(mapping.bytes(), 3 * PAGE_BYTES);
        let byte = mapping.pointer().as_ptr().wrapping_add(PAGE_BYTES);
        // SAFETY: the byte lies in the mapping, which this test owns alone.
        unsafe {
            byte.write(7);
            assert_eq!(byte.read(), 7);
            mapping.release(PAGE_BYTES, PAGE_BYTES);
            assert_eq!(byte.read(), 0);
        }
    }
}
