// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registry's memory: one sealed memfd, mapped and accessed as atomics.
//!
//! - **Layout** Header 0 (4096) · ControlBlock × 256 (64) · Blade × 256 (64) · Ledger × 256 (768) · Slot × 512 (128)
//! - **Flow** [`Shared::create`] makes and seals the memfd; [`Shared::open`] takes a descriptor that another process named:
//!   it must be a memfd of this user, sealed against shrinking, of this size, with this header
//! - **Order** the header's magic is written last, with Release
//! - **Owner** the mapping is unmapped when dropped; the memfd lives as long as any process has it open

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::atomic::{AtomicU32, AtomicU64};
use super::{ControlBlock, Ledger, Slot};
use crate::{Error, Result};

/// Number of blocks of a registry; block 0 is the implicit one.
pub const BLOCKS: usize = 256;
/// Number of process slots of a registry.
pub const SLOTS: usize = 512;

const MAGIC: u64 = u64::from_le_bytes(*b"MLZMEM\0\x02");
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Words that all jobs share.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Header {
    magic: AtomicU64,
    words: [AtomicU64; 7],
    /// The current turn as one word, see [`super::turn`].
    pub turn: AtomicU64,
    /// Incremented when the turn changes. Processes wait on this word (futex).
    pub turned: AtomicU32,
    /// Number of processes that wait for `turned`. It is too high by those that were killed while they waited.
    pub turn_waiters: AtomicU32,
    more: [AtomicU64; 6],
    /// One bit per block, set while the block wants visits.
    pub ring: [AtomicU64; BLOCKS / 64],
}

/// One bit per slot, for one block: set while the slot's process wants visits. This is the paper's blade, with one process
/// per page list.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Blade(pub [AtomicU64; SLOTS / 64]);

const BLOCKS_AT: usize = 4096;
const BLADES_AT: usize = BLOCKS_AT + BLOCKS * size_of::<ControlBlock>();
const LEDGERS_AT: usize = BLADES_AT + BLOCKS * size_of::<Blade>();
const SLOTS_AT: usize = LEDGERS_AT + BLOCKS * size_of::<Ledger>();
const BYTES: usize = SLOTS_AT + SLOTS * size_of::<Slot>();

const _: () = {
    assert!(size_of::<Header>() <= BLOCKS_AT && size_of::<Blade>() == 64);
    assert!(BYTES == 4096 + 16384 + 16384 + 196608 + 65536 && BYTES.is_multiple_of(4096));
};

/// The mapped registry.
#[derive(Debug)]
pub(super) struct Shared {
    base: NonNull<u8>,
    file: OwnedFd,
}

// SAFETY: all memory behind `base` is atomics, which any thread of any process may access.
unsafe impl Send for Shared {}
// SAFETY: all memory behind `base` is atomics, so threads may share it.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes a registry, all zero except for its magic.
    pub fn create() -> Result<Shared> {
        let refused = |source: rustix::io::Errno| Error::Registry { source: source.into() };
        let file =
            memfd_create("memlift-zmem", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(refused)?;
        ftruncate(&file, BYTES as u64).map_err(refused)?;
        fcntl_add_seals(&file, SEALS).map_err(refused)?;
        let shared = Shared::map(file)?;
        shared.header().magic.store(MAGIC, Ordering::Release);
        Ok(shared)
    }

    /// Maps the registry behind `file`, which must belong to this user.
    pub fn open(file: OwnedFd) -> Result<Shared> {
        let status = fstat(&file).map_err(|source| Error::Registry { source: source.into() })?;
        let user = rustix::process::geteuid();
        if status.st_uid != user.as_raw() && !user.is_root() {
            return Err(Error::NotARegistry);
        }
        Shared::open_of_any(file)
    }

    /// Maps the registry behind `file`, no matter which user made it.
    fn open_of_any(file: OwnedFd) -> Result<Shared> {
        let status = fstat(&file).map_err(|source| Error::Registry { source: source.into() })?;
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        if !sealed || status.st_size != BYTES as i64 {
            return Err(Error::NotARegistry);
        }
        let shared = Shared::map(file)?;
        if shared.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::NotARegistry);
        }
        Ok(shared)
    }

    /// Maps the registry behind a descriptor number that this process inherited; the number stays open. The registry may
    /// belong to another user: a job that root started may drop its rights later. No check is needed, because the program
    /// that chose this process's descriptors chose its libraries too.
    pub fn inherited(number: RawFd) -> Result<Shared> {
        if number < 0 {
            return Err(Error::NotARegistry);
        }
        // SAFETY: the descriptor is borrowed for this one call; the kernel refuses a number that is not open.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        Shared::open_of_any(high(file).map_err(|_| Error::NotARegistry)?)
    }

    fn map(file: OwnedFd) -> Result<Shared> {
        // SAFETY: the mapping is new, at an address that the kernel chooses; the file is sealed, so none of its pages can go
        // away.
        let base = unsafe {
            mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        let base = base.map_err(|source| Error::Registry { source: source.into() })?;
        Ok(Shared { base: NonNull::new(base.cast()).ok_or(Error::NotARegistry)?, file })
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and begins with a header of atomics, for which every bit pattern is valid.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// Returns block `index`; an index beyond the last block wraps.
    pub fn block(&self, index: usize) -> &ControlBlock {
        self.part(BLOCKS_AT, index % BLOCKS)
    }

    pub fn blade(&self, index: usize) -> &Blade {
        self.part(BLADES_AT, index % BLOCKS)
    }

    pub fn ledger(&self, index: usize) -> &Ledger {
        self.part(LEDGERS_AT, index % BLOCKS)
    }

    pub fn slot(&self, index: usize) -> &Slot {
        self.part(SLOTS_AT, index % SLOTS)
    }

    fn part<T>(&self, at: usize, index: usize) -> &T {
        debug_assert!(at + (index + 1) * size_of::<T>() <= BYTES);
        // SAFETY: callers pass the start of a table and an index below its length, so the value lies in the mapping. Tables
        // start at multiples of their values' alignment, and all values are atomics, for which every bit pattern is valid.
        unsafe { self.base.byte_add(at + index * size_of::<T>()).cast::<T>().as_ref() }
    }
}

/// Duplicates `file` to a number above those that programs and scripts choose, if the limit of descriptors allows it.
fn high(file: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    const LEAST: RawFd = 200;
    rustix::io::fcntl_dupfd_cloexec(file, LEAST).or_else(|_| rustix::io::fcntl_dupfd_cloexec(file, 3))
}

/// Does the same as [`high`], but the new descriptor stays open over exec.
pub(super) fn inheritable(file: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let copy = high(file)?;
    rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
    Ok(copy)
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the range is this value's mapping, and references into it borrow from this value, so none is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), BYTES) };
    }
}
