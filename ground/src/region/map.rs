// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Raw mappings: mmap, madvise, mbind and munmap, without policy.
//!
//! - **Order** alignment for huge pages is achieved by reserving more address space than needed without access, mapping
//!   over the aligned part, and unmapping the rest.
//! - **Owner** a [`Mapping`] owns its address range. A mapping that children do not inherit (`MADV_DONTFORK`) is
//!   unmapped only by the process that made it: in a child the range may already be used for something else.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use rustix::process::{Pid, getpid};

use super::{Access, RegionError};
use crate::facility::{Facility, usable};

/// Bytes of a transparent huge page on x86-64 and on aarch64 with 4 KiB pages.
pub(super) const THP_BYTES: u64 = 2 << 20;

/// Bytes of one step of prefaulting: enough to amortise the call, few enough to stay interruptible.
const POPULATE_STEP_BYTES: usize = 16 << 20;

/// Bytes of an ordinary page.
pub(crate) fn page_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| rustix::param::page_size() as u64)
}

/// Rounds `bytes` up to whole pages.
pub(super) fn round_up(bytes: u64, page_bytes: u64) -> Result<u64, RegionError> {
    bytes.checked_next_multiple_of(page_bytes).ok_or(RegionError::TooLarge { bytes })
}

/// Extends a file to at least `bytes`; allocates blocks for the new part if the file system supports that.
pub(super) fn allocate(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), RegionError> {
    let stat = rustix::fs::fstat(fd).map_err(|source| RegionError::os("fstat", source))?;
    let actual = u64::try_from(stat.st_size).unwrap_or(0);
    if actual >= bytes {
        return Ok(());
    }
    match rustix::fs::fallocate(fd, FallocateFlags::empty(), actual, bytes - actual) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            rustix::fs::ftruncate(fd, bytes).map_err(|source| RegionError::os("ftruncate", source))
        }
        Err(source) => Err(RegionError::os("fallocate", source)),
    }
}

/// An address range of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// The process that made the mapping, if children do not inherit it.
    private_to: Option<Pid>,
}

// SAFETY: a mapping is an address range that belongs to no thread, and it only gives out raw pointers and atomics.
unsafe impl Send for Mapping {}
// SAFETY: all methods take `&self` and change only kernel state, or bytes through atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn anonymous(bytes: u64, align_huge: bool) -> Result<Mapping, RegionError> {
        let length =
            usize::try_from(round_up(bytes, page_bytes())?).map_err(|_| RegionError::TooLarge { bytes })?;
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        Mapping::placed(length, align_huge, |address, fixed| {
            // SAFETY: `address` is null, or inside a range that `placed` has reserved for this mapping.
            unsafe { mmap_anonymous(address, length, read_write, MapFlags::PRIVATE | fixed) }
        })
    }

    pub(super) fn shared(
        fd: BorrowedFd<'_>,
        length: u64,
        access: Access,
        align_huge: bool,
    ) -> Result<Mapping, RegionError> {
        let bytes = length;
        let length = usize::try_from(length).map_err(|_| RegionError::TooLarge { bytes })?;
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        Mapping::placed(length, align_huge, |address, fixed| {
            // SAFETY: `address` is null, or inside a range that `placed` has reserved for this mapping.
            unsafe { mmap(address, length, protection, MapFlags::SHARED | fixed, fd, 0) }
        })
    }

    /// Maps part of a file copy on write: a page that is stored to becomes this process's own.
    pub(super) fn copy_on_write(
        fd: BorrowedFd<'_>,
        at: u64,
        length: u64,
        is_hugetlb: bool,
    ) -> Result<Mapping, RegionError> {
        let bytes = length;
        let length = usize::try_from(length).map_err(|_| RegionError::TooLarge { bytes })?;
        // Reserved huge pages are taken at once, since a store that finds none is a signal.
        let flags = MapFlags::PRIVATE | if is_hugetlb { MapFlags::empty() } else { MapFlags::NORESERVE };
        Mapping::placed(length, false, |address, fixed| {
            // SAFETY: `address` is null, or inside a range that `placed` has reserved for this mapping.
            unsafe { mmap(address, length, ProtFlags::READ | ProtFlags::WRITE, flags | fixed, fd, at) }
        })
    }

    /// Calls `map` with a null hint, or with an address aligned to huge pages and MAP_FIXED.
    fn placed(
        length: usize,
        align_huge: bool,
        map: impl Fn(*mut core::ffi::c_void, MapFlags) -> rustix::io::Result<*mut core::ffi::c_void>,
    ) -> Result<Mapping, RegionError> {
        let align = THP_BYTES as usize;
        let reserved = if align_huge { length.checked_add(align) } else { None };
        let Some(reserved) = reserved else {
            let base =
                map(ptr::null_mut(), MapFlags::empty()).map_err(|source| RegionError::os("mmap", source))?;
            return Ok(Mapping { base: non_null(base.cast()), length, private_to: None });
        };
        // SAFETY: with a null hint the kernel picks a free range, which belongs to this function from here on.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|source| RegionError::os("mmap", source))?;
        let head = start.align_offset(align);
        let base = start.wrapping_byte_add(head);
        let outcome = map(base, MapFlags::FIXED);
        // SAFETY: head, tail and (if mapping failed) middle lie inside the range reserved above, and nothing points into
        // them.
        unsafe {
            if head > 0 {
                let _ = munmap(start, head);
            }
            let _ = munmap(base.wrapping_byte_add(length), align - head);
            if outcome.is_err() {
                let _ = munmap(base, length);
            }
        }
        let base = outcome.map_err(|source| RegionError::os("mmap", source))?;
        Ok(Mapping { base: non_null(base.cast()), length, private_to: None })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Asks for transparent huge pages; returns false if the kernel does not support them.
    pub(super) fn advise_huge(&self) -> bool {
        self.advise(0, self.length, Advice::LinuxHugepage).is_ok()
    }

    pub(super) fn dont_fork(&mut self) -> Result<(), RegionError> {
        self.advise(0, self.length, Advice::LinuxDontFork)
            .map_err(|source| RegionError::os("madvise(MADV_DONTFORK)", source))?;
        self.private_to = Some(getpid());
        Ok(())
    }

    /// Makes children read zeros here; returns false before Linux 4.14.
    pub(super) fn wipe_on_fork(&self) -> bool {
        self.advise(0, self.length, Advice::LinuxWipeOnFork).is_ok()
    }

    /// Asks for memory of `node` as a preference; returns false if the kernel refuses.
    pub(super) fn prefer_node(&self, node: u32) -> bool {
        const MPOL_PREFERRED: usize = 1;
        const NODES_MAX: usize = 1024;
        if node as usize >= NODES_MAX {
            return false;
        }
        let mut mask = [0u64; NODES_MAX / 64];
        mask[node as usize / 64] |= 1 << (node % 64);
        // SAFETY: mbind reads NODES_MAX bits at `mask`, which has that many, and sets the policy of this mapping's range.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.length,
                MPOL_PREFERRED,
                mask.as_ptr(),
                NODES_MAX + 1,
                0usize,
            )
        };
        rc == 0
    }

    /// Forbids stores to the mapping from now on.
    pub(super) fn forbid_stores(&mut self) -> Result<(), RegionError> {
        // SAFETY: the range is this mapping, and `&mut` proves that nobody holds a window or a control word of it. A store
        // through a raw pointer that was kept faults, which is the purpose.
        unsafe { mprotect(self.base.as_ptr().cast(), self.length, MprotectFlags::READ) }
            .map_err(|source| RegionError::os("mprotect", source))
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> rustix::io::Result<()> {
        debug_assert!(offset + bytes <= self.length);
        // SAFETY: the range lies inside this mapping, and none of the advices used here (HUGEPAGE, DONTFORK, WIPEONFORK,
        // POPULATE_*) discards bytes that this process could still read.
        unsafe { madvise(self.base.as_ptr().wrapping_add(offset).cast(), bytes, advice) }
    }

    /// Maps every page now, without changing a byte. Calls `stop` between two steps.
    pub(super) fn prefault(
        &self,
        access: Access,
        page_bytes: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), RegionError> {
        let advice = match access {
            Access::ReadOnly => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        let mut offset = 0;
        let check = |offset: usize| match offset > 0 && offset.is_multiple_of(POPULATE_STEP_BYTES) && stop() {
            true => Err(RegionError::Stopped { bytes: self.length as u64 }),
            false => Ok(()),
        };
        while offset < self.length && usable(Facility::PopulateWrite) {
            check(offset)?;
            let step = POPULATE_STEP_BYTES.max(page_bytes as usize).min(self.length - offset);
            match self.advise(offset, step, advice) {
                Ok(()) => offset += step,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
                Err(source) => return Err(RegionError::os("madvise(MADV_POPULATE)", source)),
            }
        }
        while offset < self.length {
            check(offset)?;
            self.touch(offset, access);
            offset += page_bytes as usize;
        }
        Ok(())
    }

    /// Touches a page by one load, or by one store of the byte that is already there.
    fn touch(&self, offset: usize, access: Access) {
        // SAFETY: `offset` lies inside the mapping, which is at least readable; an AtomicU8 needs no alignment, and these
        // bytes are otherwise accessed through atomics and opaque copies only.
        let byte = unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(offset)) };
        let mut seen = byte.load(Ordering::Relaxed);
        if access == Access::ReadOnly {
            return;
        }
        // A compare-exchange, because the compiler may turn `fetch_or(0)` into a load.
        while let Err(now) = byte.compare_exchange_weak(seen, seen, Ordering::Relaxed, Ordering::Relaxed) {
            seen = now;
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.private_to.is_some_and(|owner| owner != getpid()) {
            return;
        }
        // SAFETY: the mapping owns the range, and every pointer that safe code holds into it borrows the mapping's owner.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn non_null(base: *mut u8) -> NonNull<u8> {
    NonNull::new(base).expect("mmap does not return null without MAP_FIXED at 0")
}

/// Tries `MADV_POPULATE_WRITE` on one page.
pub(crate) fn probe_populate_write() -> std::io::Result<()> {
    let mapping = Mapping::anonymous(page_bytes(), false).map_err(std::io::Error::other)?;
    loop {
        match mapping.advise(0, mapping.length, Advice::LinuxPopulateWrite) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}
