// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions: mapped memory with one owner, checked bounds and, where it is shared, seals.
//!
//! - **Flow** headroom check ──▶ mmap / memfd ──▶ seal ──▶ NUMA policy ──▶ huge pages ──▶ prefault ──▶ [`Region`]
//!   A peer's memfd comes in through [`Region::from_fd`]: size and seals are checked first, so that the
//!   peer cannot shrink it under us and turn a load into SIGBUS.
//! - **Order** nothing is touched before the headroom check passed; a memfd is sealed before anybody sees its fd.
//! - **Owner** a `Region` owns its mapping and its fd; both go when it is dropped. Share it as `Arc<Region>` and
//!   name places in it by [`RegionOffset`].
//! - **Not here** allocation inside a region, and what the bytes mean. No `&[u8]` to a region is ever made: another
//!   process may write it at any time. Copies in and out go through [`Window`]; control words are atomics.
//!
//! A sealed memfd cannot change its size, but its owner can still punch holes into it. Reading a hole gives
//! zeros and charges one page to the reader; it never faults.

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

/// A place in a region, in bytes from its start. What crosses a process boundary is this, never an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct RegionOffset(pub u64);

impl RegionOffset {
    /// The offset `bytes` further on, unless that overflows.
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
    /// When there are any; silently without otherwise. [`Region::huge`] says what happened.
    #[default]
    Auto,
    /// Ordinary pages always.
    Never,
}

/// How a region came to huge pages, or did not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Huge {
    /// It has ordinary pages.
    None,
    /// The kernel was asked for transparent huge pages and gives them where it can.
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

/// How a region is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionOptions {
    /// Map every page now rather than at its first use.
    pub prefault: bool,
    /// The choice of huge pages.
    pub huge_pages: HugePages,
    /// Prefer memory of this node. Best effort.
    pub numa_node: Option<u32>,
    /// Refuse when memory is short, before any page is touched, instead of meeting the OOM killer.
    pub headroom: bool,
    /// Leave the mapping out of forked children. A child must not use the region.
    pub dont_fork: bool,
    /// Whoever is given the memfd can map it for reading only (`F_SEAL_FUTURE_WRITE`, Linux 5.1; silently without before).
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

/// The seals that keep a memfd's size as it is.
pub(crate) const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A stretch of memory.
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
    /// Memory of this process only (and of children, copied on write). Zeroed.
    ///
    /// # Errors
    ///
    /// [`RegionError::Empty`], [`RegionError::Headroom`], or what mmap and madvise say.
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
        region.settle(options, &|| false)?;
        Ok(region)
    }

    /// Shared memory without a name in any file system. `name` shows as `/memfd:NAME` in /proc. Zeroed.
    /// Sealed, so that nobody can change its size; see [`sealed`](Region::sealed).
    ///
    /// # Errors
    ///
    /// [`RegionError::Empty`], [`RegionError::Headroom`], or what memfd_create, ftruncate and mmap say.
    pub fn memfd(name: &str, bytes: u64, options: &RegionOptions) -> Result<Region, RegionError> {
        Region::memfd_unless(name, bytes, options, &|| false)
    }

    /// The same, given up as soon as `stop` says so. It is asked every few milliseconds while pages are mapped.
    ///
    /// # Errors
    ///
    /// As there, and [`RegionError::Stopped`].
    pub fn memfd_unless(
        name: &str,
        bytes: u64,
        options: &RegionOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<Region, RegionError> {
        check_size(bytes)?;
        if options.prefault
            && let Some(page_bytes) = huge::reserved_page_for(bytes, options.huge_pages)
        {
            // Reserved pages count against no headroom. They may be gone by now, or a cgroup may forbid them:
            // then ordinary ones serve.
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
        // After the mapping: a seal on future writers leaves this one.
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
        region.settle(options, stop)?;
        Ok(region)
    }

    /// A peer's memfd, without prefault. See [`from_fd_with`](Region::from_fd_with).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn from_fd(fd: OwnedFd, access: Access, expected_bytes: u64) -> Result<Region, RegionError> {
        let options = RegionOptions { prefault: false, ..RegionOptions::default() };
        Region::from_fd_with(fd, access, expected_bytes, &options)
    }

    /// A peer's memfd: it must hold at least `expected_bytes` and be sealed against shrinking and growing, so
    /// that nothing the peer does later can make a load or store here fault. Only the parts that the peer has
    /// not touched yet count against the headroom.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooShort`] and [`RegionError::NotSealed`] are the peer's fault; the rest as in
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
        // An fd that cannot have seals answers EINVAL: the same verdict.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        let sealed = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
        // Whoever masks the facility trusts his peers not to shrink what they share.
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
        region.settle(options, &|| false)?;
        Ok(region)
    }

    /// A file, shared with whoever else maps it. Made or lengthened to `bytes` when needed, with its blocks
    /// allocated, so that a full disk is an error here and not SIGBUS later. Whoever truncates the file while
    /// it is mapped makes this process fault: map only files that you own. Headroom is not checked, since the
    /// kernel can write the pages back.
    ///
    /// # Errors
    ///
    /// [`RegionError::Empty`], or what open, fallocate and mmap say.
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
        region.settle(options, &|| false)?;
        Ok(region)
    }

    /// Applies the options to a fresh mapping: the memory policy first, because it must be set before pages exist.
    fn settle(&mut self, options: &RegionOptions, stop: &dyn Fn() -> bool) -> Result<(), RegionError> {
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

    /// The same without stores: the kernel answers one with a signal.
    ///
    /// # Errors
    ///
    /// [`RegionError::Os`] when mprotect fails.
    pub fn into_read_only(mut self) -> Result<Region, RegionError> {
        self.mapping.forbid_stores()?;
        self.access = Access::ReadOnly;
        Ok(self)
    }

    /// Usable bytes, as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of the first byte, in this process.
    pub fn base(&self) -> *const u8 {
        self.mapping.base()
    }

    /// Returns true if stores are possible.
    pub fn writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    /// The fd to hand to a peer; none for anonymous memory.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Takes the fd out: the mapping stays, and needs none.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Returns true if the size can no longer change.
    pub fn sealed(&self) -> bool {
        self.sealed
    }

    /// How it came to huge pages, or did not.
    pub fn huge(&self) -> Huge {
        self.huge
    }

    /// Bytes of one page that the mapping is sure to have; transparent huge pages come on top.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The memory node that was asked for successfully.
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    /// A part of the region, bounds checked.
    ///
    /// # Errors
    ///
    /// [`RegionError::Bounds`] when it does not lie inside.
    pub fn window(&self, offset: RegionOffset, bytes: u64) -> Result<Window<'_>, RegionError> {
        Window::new(self, offset, bytes)
    }

    /// The whole region.
    pub fn whole(&self) -> Window<'_> {
        Window::new(self, RegionOffset(0), self.bytes).expect("a region contains itself")
    }

    /// A typed view of control words at `offset`. `T` consists of atomics only, so others may write it.
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
