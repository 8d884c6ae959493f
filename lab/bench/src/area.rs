// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapped memory that benches copy from, copy to and sweep.
//!
//! - **Flow** `Area::shared` makes a memfd and maps it · another process maps the same pages with `Area::open`
//!   `Area::private` is anonymous memory with huge pages where the kernel gives them
//! - **Order** every page is touched before the constructor returns, so no fault falls into a window
//! - **Owner** an `Area` owns its mapping and unmaps it when dropped; addresses must not outlive it

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::BenchError;

/// A prefaulted mapping.
#[derive(Debug)]
pub struct Area {
    start: NonNull<u8>,
    bytes: usize,
    memfd: Option<OwnedFd>,
}

impl Area {
    /// Maps `bytes` of a fresh memfd. Its pages are small wherever huge pages are off for shared memory, as in most
    /// installations.
    pub fn shared(bytes: usize) -> Result<Area, BenchError> {
        let fail = BenchError::system("making a memfd");
        let memfd = rustix::fs::memfd_create("memlift-bench", MemfdFlags::CLOEXEC).map_err(fail)?;
        rustix::fs::ftruncate(&memfd, bytes as u64).map_err(BenchError::system("sizing a memfd"))?;
        Area::open(memfd, bytes)
    }

    /// Maps a memfd that holds `bytes`.
    pub fn open(memfd: OwnedFd, bytes: usize) -> Result<Area, BenchError> {
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is replaced.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &memfd,
                0,
            )
        };
        Area::mapped(start, bytes, Some(memfd))
    }

    /// Maps `bytes` of anonymous memory, in huge pages if there are any.
    pub fn private(bytes: usize) -> Result<Area, BenchError> {
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let area = Area::mapped(start, bytes, None)?;
        // SAFETY: the range is exactly the mapping made above. The advice changes no contents; a kernel without huge pages
        // refuses it, and then the area has small pages.
        let _ = unsafe { rustix::mm::madvise(area.start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        // SAFETY: the mapping is writable, `bytes` long and not yet shared with any other code.
        unsafe { ptr::write_bytes(area.start.as_ptr(), 1, bytes) };
        Ok(area)
    }

    fn mapped(
        start: rustix::io::Result<*mut core::ffi::c_void>,
        bytes: usize,
        memfd: Option<OwnedFd>,
    ) -> Result<Area, BenchError> {
        let start = start.map_err(BenchError::system("mapping memory for a bench"))?;
        let start = NonNull::new(start.cast()).expect("mmap gives no null without MAP_FIXED");
        Ok(Area { start, bytes, memfd })
    }

    /// Returns the number of bytes mapped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memfd, of a shared area.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }

    /// A part of the area.
    ///
    /// # Panics
    /// When it does not lie inside.
    pub fn part(&self, offset: usize, bytes: usize) -> Part<'_> {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "a part must lie inside its area");
        // SAFETY: `offset` is at most the mapping's length, asserted above.
        let start = unsafe { self.start.add(offset) };
        Part { start, bytes, area: std::marker::PhantomData }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this type, and every `Part` borrows `self`, so none is left.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "unmapping what was mapped cannot fail");
    }
}

/// A range of mapped, readable and writable bytes. Never a slice: another process maps the same pages.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    start: NonNull<u8>,
    bytes: usize,
    area: std::marker::PhantomData<&'a Area>,
}

impl Part<'_> {
    /// Address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes of the range.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    #[test]
    fn two_mappings_of_a_memfd_show_the_same_bytes() {
        let first = Area::shared(1 << 20).expect("memfd");
        let memfd = first.memfd().expect("shared").try_clone_to_owned().expect("dup");
        let second = Area::open(memfd, 1 << 20).expect("map");
        reference::pattern(first.part(0, 1 << 20), 5);
        let sum = reference::checksum(second.part(0, 1 << 20));
        assert_eq!(sum, reference::checksum(first.part(0, 1 << 20)));
        reference::pattern(second.part(0, 64), 6);
        assert_ne!(sum, reference::checksum(first.part(0, 1 << 20)));
    }

    #[test]
    #[should_panic(expected = "inside its area")]
    fn a_part_outside_is_refused() {
        let area = Area::private(1 << 16).expect("mmap");
        let _ = area.part(1 << 16, 1);
    }
}
