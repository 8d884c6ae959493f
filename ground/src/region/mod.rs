// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions: mapped memory with one owner, checked bounds and, if it is shared, seals.
//!
//! - **Flow** headroom check ──▶ mmap / memfd ──▶ seal ──▶ NUMA policy ──▶ huge pages ──▶ prefault ──▶ [`Region`]. A
//!   peer's memfd is mapped by [`Region::from_fd`]: size and seals are checked first, so that the peer cannot shrink it
//!   while this process uses it and turn a load into SIGBUS.
//! - **Order** no page is touched before the headroom check has passed; a memfd is sealed before anybody else gets its
//!   fd.
//! - **Owner** a `Region` owns its mapping and its fd; dropping it frees both. Share it as `Arc<Region>` and name
//!   positions in it by [`RegionOffset`].
//! - **Not here** allocation inside a region, and the meaning of the bytes. No `&[u8]` to a region is ever made,
//!   because another process may write it at any time. Copies in and out go through [`Window`]; control words are
//!   atomics.
//!
//! A sealed memfd cannot change its size, but its owner can still punch holes into it. Reading a hole gives zeros and
//! charges one page to the reader; it never faults.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use crate::facility::{Facility, usable};

mod copy;
mod error;
mod fork;
mod group;
mod headroom;
mod huge;
mod map;
mod window;

pub use error::RegionError;
pub(crate) use fork::{ForkMark, own_pid};
pub use fork::{process_mark, random};
pub use group::{GroupStat, MemoryGroup};
pub use headroom::Headroom;
pub(crate) use huge::{free_huge_pages, huge_page_bytes};
use map::Mapping;
pub(crate) use map::probe_populate_write;
pub use window::{AtomicLayout, Window};

/// A position in a region, in bytes from its start. Processes exchange offsets, never addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct RegionOffset(pub u64);

impl RegionOffset {
    /// Returns the offset `bytes` further on; `None` if that overflows.
    pub const fn checked_add(self, bytes: u64) -> Option<RegionOffset> {
        match self.0.checked_add(bytes) {
            Some(offset) => Some(RegionOffset(offset)),
            None => None,
        }
    }
}

impl std::fmt::Display for RegionOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The caller's choice of huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// Use huge pages if there are any, otherwise ordinary ones without an error. [`Region::huge`] returns which were
    /// used.
    #[default]
    Auto,
    /// Always use ordinary pages.
    Never,
}

/// Kind of pages that a region has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Huge {
    /// The region has ordinary pages.
    None,
    /// The kernel was asked for transparent huge pages and provides them if it can.
    Transparent,
    /// Every page is a reserved huge page.
    Reserved,
}

/// Accesses that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Loads only; the kernel enforces it.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// Options with which a region is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionOptions {
    /// True: map every page now instead of at its first use.
    pub prefault: bool,
    /// The choice of huge pages.
    pub huge_pages: HugePages,
    /// Prefer memory of this NUMA node; not guaranteed.
    pub numa_node: Option<u32>,
    /// True: fail if memory is short, before any page is touched, so that the OOM killer does not act.
    pub headroom: bool,
    /// True: forked children do not inherit the mapping; a child must not use the region.
    pub dont_fork: bool,
    /// True: other holders of the memfd can only map it for reading (`F_SEAL_FUTURE_WRITE`, Linux 5.1; without effect and
    /// without an error before).
    pub sole_writer: bool,
}

impl Default for RegionOptions {
    fn default() -> RegionOptions {
        RegionOptions {
            prefault: true,
            huge_pages: HugePages::Auto,
            numa_node: None,
            headroom: true,
            dont_fork: false,
            sole_writer: false,
        }
    }
}

/// Seals that fix a memfd's size.
pub(crate) const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapped range of memory with one owner.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    bytes: u64,
    access: Access,
    fd: Option<OwnedFd>,
    sealed: bool,
    huge: Huge,
    page_bytes: u64,
    numa_node: Option<u32>,
}

impl Region {
    /// Makes private memory of this process; children get a copy on write. Zeroed.
    ///
    /// # Errors
    ///
    /// [`RegionError::Empty`], [`RegionError::Headroom`], or the error of mmap or madvise.
    pub fn anonymous(bytes: u64, options: &RegionOptions) -> Result<Region, RegionError> {
        check_size(bytes)?;
        if options.headroom {
            Headroom::read().check(bytes)?;
        }
        let thp = huge::wants_thp(bytes, options.huge_pages);
        let mapping = Mapping::anonymous(bytes, thp)?;
        let huge = if thp && mapping.advise_huge() { Huge::Transparent } else { Huge::None };
        let mut region = Region {
            mapping,
            bytes,
            access: Access::ReadWrite,
            fd: None,
            sealed: false,
            huge,
            page_bytes: map::page_bytes(),
            numa_node: None,
        };
        region.apply_options(options, &|| false)?;
        Ok(region)
    }

    /// Makes shared memory without a name in any file system. `name` appears as `/memfd:NAME` in /proc. Zeroed, and sealed
    /// so that nobody can change its size; see [`sealed`](Region::sealed).
    ///
    /// # Errors
    ///
    /// [`RegionError::Empty`], [`RegionError::Headroom`], or the error of memfd_create, ftruncate or mmap.
    pub fn memfd(name: &str, bytes: u64, options: &RegionOptions) -> Result<Region, RegionError> {
        Region::memfd_interruptible(name, bytes, options, &|| false)
    }

    /// Does what [`memfd`](Region::memfd) does, but gives up when `stop` returns true. `stop` is called every few
    /// milliseconds while pages are mapped.
    ///
    /// # Errors
    ///
    /// The errors of [`memfd`](Region::memfd), and [`RegionError::Stopped`].
    pub fn memfd_interruptible(
        name: &str,
        bytes: u64,
        options: &RegionOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<Region, RegionError> {
        check_size(bytes)?;
        if options.prefault
            && let Some(page_bytes) = huge::reserved_page_for(bytes, options.huge_pages)
        {
            // Reserved pages do not count against the headroom. They may be in use by now, or a cgroup may forbid them:
            // then ordinary pages are used.
            match Region::memfd_of(name, bytes, Some(page_bytes), options, stop) {
                Err(error) if !matches!(error, RegionError::Stopped { .. }) => {}
                made => return made,
            }
        }
        if options.headroom {
            Headroom::read().check(bytes)?;
        }
        Region::memfd_of(name, bytes, None, options, stop)
    }

    fn memfd_of(
        name: &str,
        bytes: u64,
        hugetlb: Option<u64>,
        options: &RegionOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<Region, RegionError> {
        let seal = usable(Facility::MemfdSeal);
        let mut flags = MemfdFlags::CLOEXEC;
        if seal {
            flags |= MemfdFlags::ALLOW_SEALING;
        }
        if hugetlb.is_some() {
            flags |= MemfdFlags::HUGETLB;
        }
        let fd = rustix::fs::memfd_create(name, flags)
            .map_err(|source| RegionError::os("memfd_create", source))?;
        let page_bytes = hugetlb.unwrap_or_else(map::page_bytes);
        let length = map::round_up(bytes, page_bytes)?;
        rustix::fs::ftruncate(&fd, length).map_err(|source| RegionError::os("ftruncate", source))?;
        let thp = hugetlb.is_none() && huge::wants_shared_thp(bytes, options.huge_pages);
        let mapping = Mapping::shared(fd.as_fd(), length, Access::ReadWrite, thp)?;
        // After the mapping was made: the seal on future writers does not affect existing mappings.
        let sole = options.sole_writer
            && rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::FUTURE_WRITE).is_ok();
        if seal && !sole {
            rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS)
                .map_err(|source| RegionError::os("fcntl(F_ADD_SEALS)", source))?;
        }
        let huge = match hugetlb {
            Some(_) => Huge::Reserved,
            None if thp && mapping.advise_huge() => Huge::Transparent,
            None => Huge::None,
        };
        let mut region = Region {
            mapping,
            bytes,
            access: Access::ReadWrite,
            fd: Some(fd),
            sealed: seal,
            huge,
            page_bytes,
            numa_node: None,
        };
        region.apply_options(options, stop)?;
        Ok(region)
    }

    /// Maps a peer's memfd, without prefault. See [`from_fd_with`](Region::from_fd_with).
    ///
    /// # Errors
    ///
    /// The errors of [`from_fd_with`](Region::from_fd_with).
    pub fn from_fd(fd: OwnedFd, access: Access, expected_bytes: u64) -> Result<Region, RegionError> {
        let options = RegionOptions { prefault: false, ..RegionOptions::default() };
        Region::from_fd_with(fd, access, expected_bytes, &options)
    }

    /// Maps a peer's memfd. It must have at least `expected_bytes` and be sealed against shrinking and growing, so that
    /// nothing the peer does later can make a load or store here fault. Only pages that the peer has not touched yet count
    /// against the headroom.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooShort`] and [`RegionError::NotSealed`] are the peer's fault; the others are those of
    /// [`memfd`](Region::memfd).
    pub fn from_fd_with(
        fd: OwnedFd,
        access: Access,
        expected_bytes: u64,
        options: &RegionOptions,
    ) -> Result<Region, RegionError> {
        check_size(expected_bytes)?;
        let stat = rustix::fs::fstat(&fd).map_err(|source| RegionError::os("fstat", source))?;
        let actual = u64::try_from(stat.st_size).unwrap_or(0);
        if actual < expected_bytes {
            return Err(RegionError::TooShort { expected: expected_bytes, actual });
        }
        // An fd that cannot have seals gives EINVAL, which counts as not sealed.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        let sealed = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
        // A user who masks the facility trusts the peers not to shrink their memory.
        if !sealed && usable(Facility::MemfdSeal) {
            return Err(RegionError::NotSealed);
        }
        let page_bytes = huge::page_bytes_of(fd.as_fd());
        let length = map::round_up(expected_bytes, page_bytes)?;
        if options.prefault && options.headroom {
            let touched = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            Headroom::read().check(expected_bytes.saturating_sub(touched))?;
        }
        let reserved = page_bytes > map::page_bytes();
        let thp = !reserved && huge::wants_shared_thp(expected_bytes, options.huge_pages);
        let mapping = Mapping::shared(fd.as_fd(), length, access, thp)?;
        let huge = match reserved {
            true => Huge::Reserved,
            false if thp && mapping.advise_huge() => Huge::Transparent,
            false => Huge::None,
        };
        let mut region = Region {
            mapping,
            bytes: expected_bytes,
            access,
            fd: Some(fd),
            sealed,
            huge,
            page_bytes,
            numa_node: None,
        };
        region.apply_options(options, &|| false)?;
        Ok(region)
    }

    /// Maps a file, shared with other processes that map it. The file is made or extended to `bytes` if needed, with its
    /// blocks allocated, so that a full disk is an error here and not SIGBUS later. If anybody truncates the file while it
    /// is mapped this process faults: map only files that you own. Headroom is not checked, because the kernel can write
    /// the pages back.
    ///
    /// # Errors
    ///
    /// [`RegionError::Empty`], or the error of open, fallocate or mmap.
    pub fn file(path: &Path, bytes: u64, options: &RegionOptions) -> Result<Region, RegionError> {
        check_size(bytes)?;
        let fd = rustix::fs::open(
            path,
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH,
        )
        .map_err(|source| RegionError::os("open", source))?;
        map::allocate(fd.as_fd(), bytes)?;
        let page_bytes = huge::page_bytes_of(fd.as_fd());
        let length = map::round_up(bytes, page_bytes)?;
        let mapping = Mapping::shared(fd.as_fd(), length, Access::ReadWrite, false)?;
        let huge = if page_bytes > map::page_bytes() { Huge::Reserved } else { Huge::None };
        let mut region = Region {
            mapping,
            bytes,
            access: Access::ReadWrite,
            fd: Some(fd),
            sealed: false,
            huge,
            page_bytes,
            numa_node: None,
        };
        region.apply_options(options, &|| false)?;
        Ok(region)
    }

    /// Applies the options to a new mapping: the memory policy first, because it must be set before pages exist.
    fn apply_options(&mut self, options: &RegionOptions, stop: &dyn Fn() -> bool) -> Result<(), RegionError> {
        if options.dont_fork {
            self.mapping.dont_fork()?;
        }
        if let Some(node) = options.numa_node
            && usable(Facility::Numa)
            && self.mapping.prefer_node(node)
        {
            self.numa_node = Some(node);
        }
        if options.prefault {
            self.mapping.prefault(self.access, self.page_bytes, stop)?;
        }
        Ok(())
    }

    /// Makes the region read-only: a store then ends in a signal.
    ///
    /// # Errors
    ///
    /// [`RegionError::Os`] if mprotect fails.
    pub fn into_read_only(mut self) -> Result<Region, RegionError> {
        self.mapping.forbid_stores()?;
        self.access = Access::ReadOnly;
        Ok(self)
    }

    /// Maps the pages of a part once more, copy on write: pages that are stored to through the new region become this process's own.
    /// The others show what the memory's owner stores to them later. Returns the new region, and the place of the part in it.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`], and [`RegionError::Os`] if there is no descriptor (anonymous memory) or mmap fails.
    pub fn copy_on_write(
        &self,
        offset: RegionOffset,
        bytes: u64,
    ) -> Result<(Region, RegionOffset), RegionError> {
        check_size(bytes)?;
        self.window(offset, bytes)?;
        let fd = self.as_fd().ok_or(RegionError::os("mmap", rustix::io::Errno::BADF))?;
        let start = offset.0 - offset.0 % self.page_bytes;
        let length = map::round_up(offset.0 - start + bytes, self.page_bytes)?;
        let is_hugetlb = self.page_bytes > map::page_bytes();
        let region = Region {
            mapping: Mapping::copy_on_write(fd, start, length, is_hugetlb)?,
            bytes: length,
            access: Access::ReadWrite,
            fd: None,
            sealed: self.sealed,
            huge: self.huge,
            page_bytes: self.page_bytes,
            numa_node: self.numa_node,
        };
        Ok((region, RegionOffset(offset.0 - start)))
    }

    /// Returns the usable bytes, as requested.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address of the first byte in this process.
    pub fn base(&self) -> *const u8 {
        self.mapping.base()
    }

    /// Returns true if stores are possible.
    pub fn writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    /// Returns the fd to send to a peer; `None` for anonymous memory.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Takes the fd out of the region; the mapping stays without it.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Returns true if the size can no longer change.
    pub fn sealed(&self) -> bool {
        self.sealed
    }

    /// Returns the kind of pages that the region has.
    pub fn huge(&self) -> Huge {
        self.huge
    }

    /// Returns the page size that the mapping is sure to have; it may have transparent huge pages in addition.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Returns the NUMA node whose memory is preferred; `None` if no preference was set.
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    /// Returns a part of the region; its bounds are checked.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`] if it does not lie inside the region.
    pub fn window(&self, offset: RegionOffset, bytes: u64) -> Result<Window<'_>, RegionError> {
        Window::new(self, offset, bytes)
    }

    /// Returns the whole region as a window.
    pub fn whole(&self) -> Window<'_> {
        Window::new(self, RegionOffset(0), self.bytes).expect("a region contains itself")
    }

    /// Returns a typed view of the control words at `offset`. `T` consists of atomics only, so others may write them.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`], [`RegionError::Misaligned`], [`RegionError::ReadOnly`].
    pub fn layout<T: AtomicLayout>(&self, offset: RegionOffset) -> Result<&T, RegionError> {
        self.window(offset, size_of::<T>() as u64)?.into_layout()
    }
}

fn check_size(bytes: u64) -> Result<(), RegionError> {
    match bytes {
        0 => Err(RegionError::Empty),
        _ if bytes > isize::MAX as u64 => Err(RegionError::TooLarge { bytes }),
        _ => Ok(()),
    }
}
