// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager: the arena of a process, its faults, and the eviction of its pages when the budget is short.
//!
//! ```text
//! map ──▶ chunks (guarded · native · armed) ──first touch, SIGBUS──▶ fault ──▶ page present, charged
//!                                                                     │ no room
//! store / spill ◀── packed in the staging slot or in place ◀── evict ◀┘   (or the block's turn: evictor)
//! ```
//!
//! - **Order** locks, outer first: space (for calls that change mappings) · a seat · busy chunks and pages · eviction ·
//!   store. The holder of a busy page never waits for another busy page, unless it holds the space lock. Signals are blocked
//!   while any of these is held
//! - **Owner** one pager per process, in a mapping that is never given back
//!
//! `docs/design/zmem.md` describes the states and the order of their changes.

mod advise;
mod arm;
mod cold;
mod depart;
mod engine;
mod entry;
mod evict;
mod evictor;
mod fault;
mod fork;
mod kernel;
pub mod outside;
mod pin;
mod probation;
mod recycle;
mod remap;
mod room;
mod seat;
mod serve;
mod shared;
pub mod signal;
mod space;
mod spill;
mod stream;
mod table;
mod view;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use memlift_ground::facility::{Facility, usable};

use crate::block::Job;
use crate::lock::Lock;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::store::Store;
use crate::{Error, Result};
use engine::Engine;
use entry::{Entry, Tag};
use evict::Evict;
use probation::Probation;
use seat::Seats;
use space::Space;
use spill::Spiller;
use stream::Streams;
use table::{CHUNK_BYTES, CHUNK_PAGES, Table};

pub use crate::uffd::Errno;
pub use engine::Mechanism;
pub(crate) use kernel::{Quiet, own_thread};
pub use pin::Pins;
pub use room::charge_start;
pub use view::View;

/// First address of the arena. It is the same in every process, so that a system-call filter can recognise arena addresses by
/// their high bits.
pub const ARENA_BASE: usize = 0x2000_0000_0000;
/// Size of the largest arena; arenas are smaller if the address space is limited.
pub const ARENA_BYTES: usize = 1 << 42;

/// Size of the smallest arena that is still useful.
const MIN_ARENA_BYTES: usize = 1 << 26;

/// Outcome of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page is present: run the instruction again.
    Done,
    /// The page's state changed meanwhile: run the instruction again, which may fault again.
    Retry,
    /// The fault is the program's own mistake: the program's handler or the default action follows.
    NotMine,
}

/// Settings of a pager.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// True if the caller runs [`Pager::serve`] on a thread, which is needed if userfaultfd's SIGBUS mode is not available.
    pub handler_thread: bool,
    /// True if all of this process is under the budget, its code and stacks too. Then a job's watcher measures it, and while it is dormant and
    /// small, its first chunks, which the allocator of each program takes and hardly touches, are charged with a part of their size.
    pub is_whole: bool,
}

/// A pager's counts since its start, and the bytes that it holds now.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Numbers {
    /// Faults that the pager was asked to answer.
    pub faults: u64,
    /// Pages brought in, including pages that were brought in together with the one that faulted.
    pub pages_in: u64,
    /// Pages that were compressed when they left.
    pub pages_packed: u64,
    /// Pages that were compressed once more, by Zstandard.
    pub pages_packed_cold: u64,
    /// Pages that left without being compressed, because their copy was still valid.
    pub pages_dropped: u64,
    /// Pages that compression did not make smaller.
    pub pages_raw: u64,
    /// Pages written to the spill file.
    pub pages_spilled: u64,
    /// Evictions that a fault had to wait for.
    pub evictions: u64,
    /// Bytes present in armed chunks.
    pub present_bytes: usize,
    /// Bytes that native chunks are charged with.
    pub native_bytes: usize,
    /// Bytes of the store.
    pub store_bytes: usize,
    /// Bytes of tables and work buffers.
    pub table_bytes: usize,
    /// Bytes that the program has mapped.
    pub mapped_bytes: usize,
}

/// Counters of a pager.
#[derive(Default)]
struct Counts {
    faults: AtomicU64,
    pages_in: AtomicU64,
    packed: AtomicU64,
    packed_cold: AtomicU64,
    dropped: AtomicU64,
    raw: AtomicU64,
    spilled: AtomicU64,
    evictions: AtomicU64,
    /// Pages present in armed chunks; each is charged.
    present: AtomicUsize,
    /// Bytes that native chunks are charged with.
    native: AtomicUsize,
    /// Bytes of tables and work buffers; they are charged.
    tables: AtomicUsize,
    mapped: AtomicUsize,
    /// Number of chunks that are not vacant.
    admitted: AtomicUsize,
}

/// The pager of this process.
pub struct Pager {
    job: &'static Job,
    /// True while the process is dormant and has no chunk behind the first ones, which are then charged in part.
    is_small: AtomicBool,
    bytes: usize,
    table: Table,
    store: Store,
    engine: Engine,
    seats: Seats,
    space: Lock<Space>,
    evict: Lock<Evict>,
    streams: Streams,
    probation: Probation,
    counts: Counts,
    active: AtomicBool,
    /// True if processes that a fork made may share pages with this one.
    forked: AtomicBool,
    /// Value of the job's `membership` count at the last fork, or when it was last compared since.
    membership: AtomicU64,
    /// True if the pages shared by a fork are write-protected.
    protected: AtomicBool,
    vectored: AtomicBool,
    recycling: AtomicBool,
    hook: AtomicPtr<()>,
    spill: Spiller,
    /// Signal mask that the forking thread had before the fork.
    fork_mask: AtomicU64,
    /// Index after the last chunk that was ever used.
    reached: AtomicUsize,
    /// Value of `pages_in` when an eviction last found no victim.
    no_victim_at: AtomicU64,
    /// Number of rounds that the clock hand has made around the arena.
    round: AtomicU64,
    /// Sum of pages packed and pages found raw, at the moment when no cold page was left to pack again.
    cold_packed: AtomicU64,
    /// For each value of the low bits of a page's number: a page (high half), and how often in a row its fault was not
    /// answered.
    unanswered: [AtomicU64; fault::UNANSWERED],
    view: View,
}

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

impl Pager {
    /// Reserves the arena, as large as the limit on address space allows, and starts the pager.
    ///
    /// # Errors
    ///
    /// The address space or the fault mechanism is not available; the error says what is missing.
    pub fn start(job: &'static Job, options: Options) -> Result<&'static Pager> {
        if Pager::get().is_some() {
            return Err(Error::Started);
        }
        let mechanism = Mechanism::available(options.handler_thread).ok_or(Error::NoFaults)?;
        // Choosing an implementation reads the environment, which may lie in the arena; do that now and not in a fault.
        let _ = memlift_kernels::pages::checksum(0, &[0; PAGE_BYTES]);
        // Find out now, for the same reason, if `memlift record` listens.
        let _ = memlift_ground::observe::is_recorded();
        let (bytes, store_bytes) = reserve_arena()?;
        let memory = rustix::system::sysinfo();
        let memory = (memory.totalram as usize).saturating_mul(memory.mem_unit as usize);
        let place = Mapping::reserve("the pager", size_of::<Pager>())?;
        let pager = place.pointer().as_ptr().cast::<Pager>();
        let value = Pager {
            job,
            is_small: AtomicBool::new(options.is_whole && job.is_measured()),
            bytes,
            table: Table::new(bytes)?,
            store: Store::new(memory.min(store_bytes))?,
            engine: Engine::new(mechanism)?,
            seats: Seats::new()?,
            space: Lock::new(Space::default()),
            evict: Lock::new(Evict::new()),
            streams: Streams::default(),
            probation: Probation::new(),
            counts: Counts::default(),
            active: AtomicBool::new(false),
            forked: AtomicBool::new(false),
            membership: AtomicU64::new(0),
            protected: AtomicBool::new(false),
            vectored: AtomicBool::new(usable(Facility::ProcessMadvise)),
            recycling: AtomicBool::new(true),
            hook: AtomicPtr::new(std::ptr::null_mut()),
            spill: Spiller::default(),
            fork_mask: AtomicU64::new(0),
            reached: AtomicUsize::new(0),
            no_victim_at: AtomicU64::new(u64::MAX / 2),
            round: AtomicU64::new(0),
            cold_packed: AtomicU64::new(u64::MAX),
            unanswered: [const { AtomicU64::new(0) }; fault::UNANSWERED],
            view: View::default(),
        };
        value
            .engine
            .attach()
            .map_err(|errno| Error::Faults { source: std::io::Error::from_raw_os_error(errno) })?;
        // SAFETY: the mapping is as large as the value, aligned to a page, belongs to this call alone, and is never unmapped.
        unsafe { pager.write(value) };
        if PAGER.compare_exchange(std::ptr::null_mut(), pager, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::Started);
        }
        std::mem::forget(place);
        let pager = Pager::get().ok_or(Error::Started)?;
        pager.publish_view();
        Ok(pager)
    }

    /// Returns the process's pager, if one was started.
    pub fn get() -> Option<&'static Pager> {
        // SAFETY: a pointer that is stored there refers to a pager that lives as long as the process.
        unsafe { PAGER.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the end of this process's arena. Addresses from there to the end of the largest arena are the program's own.
    pub fn arena_end(&self) -> usize {
        ARENA_BASE + self.bytes
    }

    /// Returns true if the address lies in the range of the largest arena.
    pub fn contains(address: usize) -> bool {
        address.wrapping_sub(ARENA_BASE) < ARENA_BYTES
    }

    /// Returns the way in which faults reach the pager.
    pub fn mechanism(&self) -> Mechanism {
        self.engine.mechanism
    }

    /// Returns true if pages are moved out (`UFFDIO_MOVE`), which the kernel refuses for a page that it or a device has
    /// pinned. Such pages then stay without a pin of the pager's.
    pub fn sees_pins(&self) -> bool {
        self.engine.staging(0).is_some()
    }

    /// Returns the job that the memory is charged to.
    pub fn job(&self) -> &'static Job {
        self.job
    }

    /// Returns true if pages of the arena can be absent.
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Returns the bytes of the chunks in which memory is or was accessible, present or not. Memory that was only reserved
    /// (`PROT_NONE`) is not included.
    pub fn admitted_bytes(&self) -> usize {
        self.counts.admitted.load(Ordering::Relaxed) * CHUNK_BYTES
    }

    /// Returns the size of the arena, a reservation of address space, bytes.
    pub fn arena_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of the arena that the program has mapped, accessible or not.
    pub fn mapped_bytes(&self) -> usize {
        self.counts.mapped.load(Ordering::Relaxed) * PAGE_BYTES
    }

    /// Sets the hook that runs once, before the first page can become absent; the system-call filter is installed there. The
    /// hook may run on any thread inside any call into the pager, with all signals blocked, and must not touch the arena.
    pub fn on_activate(&self, hook: fn()) {
        self.hook.store(hook as *mut (), Ordering::Release);
    }

    /// Returns the pager's counts and the bytes that it holds.
    pub fn numbers(&self) -> Numbers {
        let counts = &self.counts;
        Numbers {
            faults: counts.faults.load(Ordering::Relaxed),
            pages_in: counts.pages_in.load(Ordering::Relaxed),
            pages_packed: counts.packed.load(Ordering::Relaxed),
            pages_packed_cold: counts.packed_cold.load(Ordering::Relaxed),
            pages_dropped: counts.dropped.load(Ordering::Relaxed),
            pages_raw: counts.raw.load(Ordering::Relaxed),
            pages_spilled: counts.spilled.load(Ordering::Relaxed),
            evictions: counts.evictions.load(Ordering::Relaxed),
            present_bytes: counts.present.load(Ordering::Relaxed) * PAGE_BYTES,
            native_bytes: counts.native.load(Ordering::Relaxed),
            store_bytes: self.store.bytes(),
            table_bytes: counts.tables.load(Ordering::Relaxed),
            mapped_bytes: counts.mapped.load(Ordering::Relaxed) * PAGE_BYTES,
        }
    }

    /// Returns the number of the page at an arena address.
    fn page_of(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(ARENA_BASE);
        (offset < self.bytes).then_some(offset / PAGE_BYTES)
    }

    fn has_range(&self, address: usize, bytes: usize) -> bool {
        let offset = address.wrapping_sub(ARENA_BASE);
        offset < self.bytes && bytes <= self.bytes - offset
    }

    /// Frees a page's copy. Returns the bytes of memory that came back to the job.
    fn free_copy(&self, entry: Entry) -> usize {
        let mut released = 0;
        match entry.tag() {
            Tag::Clean | Tag::Spilled if entry.slot().is_some() => {
                if let Some((spill, slot)) = self.spill.file().zip(entry.slot()) {
                    spill.free(slot);
                }
            }
            Tag::Clean | Tag::Stored | Tag::Word => {
                if let Some(handle) = store_handle(entry) {
                    released = self.store.free(handle);
                    self.settle_store();
                }
            }
            _ => {}
        }
        if released > 0 {
            self.job.uncharge(released);
        }
        released
    }

    /// Charges memory of tables and work buffers, after making room if needed. Returns false if there is no room yet.
    fn charge_tables(&self, seat: &mut seat::Seat, bytes: usize) -> bool {
        let made = self.make_room(seat, bytes, true) == room::Room::Made;
        if made {
            self.counts.tables.fetch_add(bytes, Ordering::Relaxed);
        }
        made
    }

    fn uncharge_tables(&self, bytes: usize) {
        self.counts.tables.fetch_sub(bytes, Ordering::Relaxed);
        self.job.uncharge(bytes);
    }

    /// Returns the bytes that must stay unused when a chunk becomes native.
    fn native_reserve_bytes(&self) -> usize {
        let total = usize::try_from(self.job.total()).unwrap_or(0);
        let objective = usize::try_from(self.job.unused_objective()).unwrap_or(0);
        (total / 16).max(objective).saturating_add(self.job.reserved_bytes())
    }
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pager").field("bytes", &self.bytes).field("numbers", &self.numbers()).finish()
    }
}

/// Returns the store's handle in an entry that has one.
fn store_handle(entry: Entry) -> Option<crate::store::Handle> {
    std::num::NonZeroU32::new(entry.handle_of_store()).map(crate::store::Handle)
}

/// Returns the first address of a page.
fn address_of(page: usize) -> usize {
    ARENA_BASE + page * PAGE_BYTES
}

/// Reserves as much of [`ARENA_BYTES`] as the limit on address space leaves. Returns the arena's size, and the largest size
/// for the store.
fn reserve_arena() -> Result<(usize, usize)> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut bytes = ARENA_BYTES;
    let mut share = 1;
    if limit < 2 * ARENA_BYTES {
        // The arena gets half of the free address space and the store an eighth; the rest is for the tables and for what the
        // program maps elsewhere.
        let free = limit.saturating_sub(kernel::virtual_bytes());
        bytes = ((free / 2) & !(CHUNK_BYTES - 1)).clamp(MIN_ARENA_BYTES, ARENA_BYTES);
        share = 4;
    }
    loop {
        match kernel::reserve(ARENA_BASE, bytes) {
            Ok(()) => return Ok((bytes, bytes / share)),
            // A mapping of the program may be in the way: try an arena that ends before it.
            Err(libc::ENOMEM | libc::EEXIST) if bytes > MIN_ARENA_BYTES => {
                bytes = ((bytes / 2) & !(CHUNK_BYTES - 1)).max(MIN_ARENA_BYTES);
            }
            Err(errno) => {
                let source = std::io::Error::from_raw_os_error(errno);
                return Err(Error::Map { what: "the arena", bytes, source });
            }
        }
    }
}

const _: () = assert!(CHUNK_PAGES == 512);
