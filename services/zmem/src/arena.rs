// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explicit use of zmem: memory of a job that the program itself asks for.
//!
//! - **Flow** [`enter`] (once per process: makes it a job of its own with an exact total) ──▶ [`Arena::new`] ──▶ a slice of
//!   bytes whose cold pages are compressed ──▶ dropping the arena gives its memory back
//! - **Owner** an arena's bytes are its own until it is dropped
//! - **Order** a system call on an arena's bytes goes through [`Arena::pinned`], because accesses by the kernel may fail on
//!   absent pages
//! - **Not here** unchanged programs (see the preloaded library); small objects (see [`crate::allocator`])

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use crate::block::{Job, Objectives, Registry};
use crate::pager::{Mechanism, Options, Pager, Pins, Quiet, own_thread, signal};
use crate::{Error, Result};

/// Makes this process a job of its own and starts its pager, with one thread that evicts ahead of need and one that measures
/// the memory that the process holds outside of its arena. May be called once per process.
///
/// # Errors
///
/// The machine has not that much memory left, or its kernel offers no way to handle faults.
pub fn enter(name: &str, objectives: &Objectives) -> Result<&'static Pager> {
    let registry = Registry::of_user()?;
    let admission: &'static _ = Box::leak(Box::new(registry.admit(name, objectives)?));
    let job = Box::leak(Box::new(Job::attach(registry, admission.block())?));
    let pager = attach(job)?;
    let mut watcher = crate::watch::Watcher::new(admission);
    thread("memlift-watch", move || {
        loop {
            watcher.round(|_| ());
        }
    })?;
    Ok(pager)
}

/// Starts the pager, and the thread that evicts, of a process that belongs to a job already.
///
/// # Errors
///
/// The kernel offers no way to handle faults, or the process has a pager already.
pub fn attach(job: &'static Job) -> Result<&'static Pager> {
    let pager = Pager::start(job, Options { handler_thread: true, ..Options::default() })?;
    signal::install()?;
    if pager.mechanism() == Mechanism::Thread {
        thread("memlift-faults", move || pager.serve())?;
    }
    thread("memlift-evict", move || pager.evictor())?;
    Ok(pager)
}

fn thread(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    // The new thread blocks all signals from its start. If a handler of the program ran in the thread that answers faults and
    // touched an absent page, that thread would wait for itself.
    let _quiet = Quiet::new();
    let spawned = std::thread::Builder::new().name(name.into()).spawn(|| {
        own_thread();
        body();
    });
    spawned.map(drop).map_err(|source| Error::Map { what: name, bytes: 0, source })
}

/// A slice of bytes in the job's memory, zero at first.
#[derive(Debug)]
pub struct Arena {
    pager: &'static Pager,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an arena is the only owner of its bytes, and faults on them are handled on any thread.
unsafe impl Send for Arena {}
// SAFETY: an arena is the only owner of its bytes, and shared access only reads them.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes an arena of `bytes` bytes, at least one page.
    ///
    /// # Errors
    ///
    /// The arena of the process has no room for `bytes`.
    pub fn new(pager: &'static Pager, bytes: usize) -> Result<Arena> {
        let error =
            |errno| Error::Map { what: "an arena", bytes, source: std::io::Error::from_raw_os_error(errno) };
        let address = pager.map(bytes.max(1), libc::PROT_READ | libc::PROT_WRITE, None).map_err(error)?;
        let address = NonNull::new(address as *mut u8).ok_or_else(|| error(libc::ENOMEM))?;
        Ok(Arena { pager, address, bytes })
    }

    /// Pins a part of the arena until the result is dropped, as a system call on that part needs.
    ///
    /// # Errors
    ///
    /// The job has no room for the pinned pages.
    ///
    /// # Panics
    ///
    /// Panics if the range is not inside the arena.
    pub fn pinned(&self, range: Range<usize>, write: bool) -> Result<Pins<'static>> {
        assert!(range.start <= range.end && range.end <= self.bytes, "the range lies in the arena");
        let bytes = range.end - range.start;
        let pins = self.pager.pin(self.address.as_ptr() as usize + range.start, bytes, write);
        pins.map_err(|errno| Error::Map {
            what: "a pinned range",
            bytes,
            source: std::io::Error::from_raw_os_error(errno),
        })
    }
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped readable as long as the arena lives, and initialised (zero) from the start.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are mapped writable and initialised as long as the arena lives, and `&mut self` excludes every
        // other reference.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // If the arena cannot be unmapped, its memory is not given back; nothing else goes wrong.
        let _ = self.pager.unmap(self.address.as_ptr() as usize, self.bytes.max(1));
    }
}
