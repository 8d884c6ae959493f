// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager: the arena of a process, its faults, and what leaves it when the budget is short.
//!
//! ```text
//! map ──▶ chunks (guarded · native · armed) ──first touch, SIGBUS──▶ fault ──▶ page present, charged
//!                                                                     │ no room
//! store / spill ◀── pack ◀── write-protected or moved aside ◀── evict ◀┘   (or the block's turn: evictor)
//! ```
//!
//! `docs/design/zmem.md` has the states and their order.
#![allow(unused_variables, clippy::unused_self)]

pub mod signal;

/// First address of the arena: the same in every process, so that a system-call filter can tell by the high bits.
pub const ARENA_BASE: usize = 0x2000_0000_0000;
/// The largest arena; less where the address space is limited.
pub const ARENA_BYTES: usize = 1 << 42;

/// An error number of the C library, as the call would have set it.
pub type Errno = i32;

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page is there: run the instruction again.
    Done,
    /// The state changed under it: run the instruction again.
    Retry,
    /// The program's own mistake: its handler, or the default action.
    NotMine,
}

/// How a pager is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// One thread runs the program's code (zmem's own do not count) until [`Pager::threads_started`] says otherwise.
    pub single_threaded: bool,
}

/// What a pager did so far and holds now.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Numbers {
    /// Faults answered.
    pub faults: u64,
}

/// Pages that stay where they are until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Pins<'a> {
    pager: &'a Pager,
    address: usize,
    bytes: usize,
}

/// The pager of this process.
#[derive(Debug)]
pub struct Pager {}

impl Pager {
    /// The process's pager, once started.
    pub fn get() -> Option<&'static Pager> {
        None
    }

    /// Whether the address lies in the arena.
    pub fn contains(address: usize) -> bool {
        address.wrapping_sub(ARENA_BASE) < ARENA_BYTES
    }

    /// `mmap` of private anonymous memory: `bytes` (rounded up to pages), `PROT_*`, at an address of the pager's choice or
    /// exactly `at` (in the arena; replaces what is there, as `MAP_FIXED`). Returns the address.
    ///
    /// # Errors
    ///
    /// As `mmap`.
    pub fn map(&self, bytes: usize, prot: i32, at: Option<usize>) -> Result<usize, Errno> {
        unimplemented!()
    }

    /// `munmap` of a range in the arena.
    ///
    /// # Errors
    ///
    /// As `munmap`.
    pub fn unmap(&self, address: usize, bytes: usize) -> Result<(), Errno> {
        unimplemented!()
    }

    /// `mprotect` of a range in the arena.
    ///
    /// # Errors
    ///
    /// As `mprotect`.
    pub fn protect(&self, address: usize, bytes: usize, prot: i32) -> Result<(), Errno> {
        unimplemented!()
    }

    /// `mremap` of a range in the arena; `new_address` counts with `MREMAP_FIXED` and lies in the arena.
    ///
    /// # Errors
    ///
    /// As `mremap`.
    pub fn remap(
        &self,
        address: usize,
        bytes: usize,
        new_bytes: usize,
        flags: i32,
        new_address: usize,
    ) -> Result<usize, Errno> {
        unimplemented!()
    }

    /// `madvise` of a range in the arena.
    ///
    /// # Errors
    ///
    /// As `madvise`.
    pub fn advise(&self, address: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
        unimplemented!()
    }

    /// `mincore`: which pages of the range are mapped at all; `ENOMEM` where one is not.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, as `mincore`.
    pub fn mapped(&self, address: usize, bytes: usize) -> Result<(), Errno> {
        unimplemented!()
    }

    /// Answers a fault at `address`. For fault handlers: all signals are blocked, no arena memory is touched.
    ///
    /// # Safety
    ///
    /// The caller is a handler of a fault at that address, and keeps all signals blocked meanwhile.
    pub unsafe fn fault(&self, address: usize, write: bool) -> Fault {
        Fault::NotMine
    }

    /// Faults in the whole range (any part of it that lies in the arena) and keeps it there until the pins are dropped.
    ///
    /// # Errors
    ///
    /// `EFAULT` where a page is not mapped or not so accessible; the pages before it are not pinned either.
    pub fn pin(&self, address: usize, bytes: usize, write: bool) -> Result<Pins<'_>, Errno> {
        unimplemented!()
    }

    /// How many bytes from `address` on are mapped with the access, up to `bytes`: for the short counts of `read`, `write`.
    pub fn accessible(&self, address: usize, bytes: usize, write: bool) -> usize {
        unimplemented!()
    }

    /// Another thread may run the program's code from now on.
    pub fn threads_started(&self) {}

    /// From dormant to active: classifies the chunks and runs the hook of [`Pager::on_activate`] first. Idempotent.
    pub fn activate(&self) {}

    /// Whether pages of the arena can be absent.
    pub fn active(&self) -> bool {
        false
    }

    /// What runs before the first page can be absent, once: the system-call filter. It may run in any thread inside any
    /// call into the pager, with all signals blocked, and must not touch the arena.
    pub fn on_activate(&self, hook: fn()) {}

    /// Waits until nobody works on a page, and keeps it so until one of the two calls below.
    pub fn before_fork(&self) {}

    /// The parent goes on (also after a failed fork).
    pub fn after_fork_parent(&self) {}

    /// The child registers its arena anew, before any of the program's code. It has no evictor thread until the caller
    /// starts one.
    pub fn after_fork_child(&self) {}

    /// Body of the background thread: compresses pages at the block's turn. Returns when the process's job is left.
    pub fn evictor(&self) {}

    /// What it did and holds.
    pub fn numbers(&self) -> Numbers {
        Numbers::default()
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {}
}
