// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager: the arena of a process, its faults, and the eviction of its pages when the budget is short.
//!
//! ```text
//! map ──▶ chunks (guarded · native · armed) ──first touch, SIGBUS──▶ fault ──▶ page present, charged
//!                                                                     │ no room
//! store / spill ◀──── packed where it lies, write-protected ◀── evict ◀┘   (or the block's turn: evictor)
//! ```
//!
//! - **Order** locks, outer first: space (calls that change mappings) · a seat · busy chunks and pages · eviction · store.
//!   The holder of a busy page never waits for another one, unless it holds the space lock. Signals are blocked wherever
//!   one of these is held
//! - **Owner** one per process, in a mapping that is never given back
//!
//! `docs/design/zmem.md` has the states and their order.

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

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use memlift_ground::facility::{Facility, usable};

use crate::block::Job;
use crate::lock::Lock;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::spill::Spill;
use crate::store::Store;
use crate::{Error, Result};
use engine::Engine;
use entry::{Entry, Tag};
use evict::Evict;
use probation::Probation;
use seat::Seats;
use space::Space;
use stream::Streams;
use table::{CHUNK_BYTES, CHUNK_PAGES, Table};

pub use crate::uffd::Errno;
pub use engine::Mechanism;
pub(crate) use kernel::{Quiet, own_thread};
pub use pin::Pins;

/// First address of the arena: the same in every process, so that a system-call filter can tell by the high bits.
pub const ARENA_BASE: usize = 0x2000_0000_0000;
/// The largest arena; less where the address space is limited.
pub const ARENA_BYTES: usize = 1 << 42;

/// The smallest arena that is worth having.
const MIN_ARENA_BYTES: usize = 1 << 26;

/// Outcome of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page is there: run the instruction again.
    Done,
    /// The state changed under it: run the instruction again.
    Retry,
    /// The program's own mistake: its handler or the default action follows.
    NotMine,
}

/// How a pager is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The caller runs [`Pager::serve`] on a thread: needed where SIGBUS mode is not available.
    pub handler_thread: bool,
}

/// A pager's counts since its start, and the bytes that it holds now.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Numbers {
    /// Faults that the pager was asked to answer.
    pub faults: u64,
    /// Pages brought in, clusters included.
    pub pages_in: u64,
    /// Pages that were packed.
    pub pages_packed: u64,
    /// Pages packed once more, by Zstandard.
    pub pages_packed_cold: u64,
    /// Pages dropped whose copy was still right.
    pub pages_dropped: u64,
    /// Pages that packing did not make smaller.
    pub pages_raw: u64,
    /// Pages written to the spill file.
    pub pages_spilled: u64,
    /// Evictions inside a fault.
    pub evictions: u64,
    /// Bytes present in armed chunks.
    pub present_bytes: usize,
    /// Bytes of native chunks.
    pub native_bytes: usize,
    /// Bytes of the store.
    pub store_bytes: usize,
    /// Bytes of tables and workplaces.
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
    /// Pages present in armed chunks, all charged.
    present: AtomicUsize,
    /// Native chunks, each charged in full.
    native: AtomicUsize,
    /// Bytes of tables and workplaces, charged.
    tables: AtomicUsize,
    mapped: AtomicUsize,
    /// Chunks that are not vacant.
    admitted: AtomicUsize,
}

/// The pager of this process.
pub struct Pager {
    job: &'static Job,
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
    /// Processes of a fork may share pages with this one.
    forked: AtomicBool,
    /// How often processes had joined the job or left it, at the last fork or the last look since.
    membership: AtomicU64,
    /// The pages that they share are write-protected.
    protected: AtomicBool,
    vectored: AtomicBool,
    recycling: AtomicBool,
    hook: AtomicPtr<()>,
    spill: AtomicPtr<Spill>,
    spill_hand: AtomicUsize,
    /// The error number that the last message named.
    spill_refused: AtomicI32,
    /// Credit for spilling ahead, pages: faults that more room would have saved, less the cost of spilling and reading back.
    credit: AtomicI64,
    /// Signal mask of the thread that forks.
    fork_mask: AtomicU64,
    /// First of the chunks that were never used.
    reached: AtomicUsize,
    /// Value of `pages_in` when an eviction last found no victim.
    barren: AtomicU64,
    /// Rounds of the clock hand.
    round: AtomicU64,
    /// How many pages had been packed, or found raw, when no cold one was left to try.
    cold_packed: AtomicU64,
    /// By the low bits of a page's number: the page (high half) and how often in a row its fault was not answered.
    unanswered: [AtomicU64; fault::UNANSWERED],
}

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

impl Pager {
    /// Reserves the arena, as large as the limit on address space allows, and starts the pager.
    ///
    /// # Errors
    ///
    /// The address space or the fault mechanism is not available; the error says which.
    pub fn start(job: &'static Job, options: Options) -> Result<&'static Pager> {
        if Pager::get().is_some() {
            return Err(Error::Started);
        }
        let mechanism = Mechanism::available(options.handler_thread).ok_or(Error::NoFaults)?;
        // Choosing a kernel reads the environment, which may lie in the arena: choose now and not in a fault.
        let _ = memlift_kernels::page::checksum(0, &[0; PAGE_BYTES]);
        // Choose now too whether `memlift record` listens.
        let _ = memlift_ground::observe::tapped();
        let (bytes, store_bytes) = reserve_arena()?;
        let memory = rustix::system::sysinfo();
        let memory = (memory.totalram as usize).saturating_mul(memory.mem_unit as usize);
        let place = Mapping::reserve("the pager", size_of::<Pager>())?;
        let pager = place.pointer().as_ptr().cast::<Pager>();
        let value = Pager {
            job,
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
            spill: AtomicPtr::new(std::ptr::null_mut()),
            spill_hand: AtomicUsize::new(0),
            spill_refused: AtomicI32::new(0),
            credit: AtomicI64::new(0),
            fork_mask: AtomicU64::new(0),
            reached: AtomicUsize::new(0),
            barren: AtomicU64::new(u64::MAX / 2),
            round: AtomicU64::new(0),
            cold_packed: AtomicU64::new(u64::MAX),
            unanswered: [const { AtomicU64::new(0) }; fault::UNANSWERED],
        };
        value
            .engine
            .attach()
            .map_err(|errno| Error::Faults { source: std::io::Error::from_raw_os_error(errno) })?;
        // SAFETY: the mapping is as large as the value, aligned to a page, and nobody else's; it is never unmapped.
        unsafe { pager.write(value) };
        if PAGER.compare_exchange(std::ptr::null_mut(), pager, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::Started);
        }
        std::mem::forget(place);
        Pager::get().ok_or(Error::Started)
    }

    /// The process's pager, once started.
    pub fn get() -> Option<&'static Pager> {
        // SAFETY: what is stored there is a pager that lives as long as the process.
        unsafe { PAGER.load(Ordering::Acquire).as_ref() }
    }

    /// End of the arena of this process. Addresses behind it, below the largest arena's end, are the program's own.
    pub fn arena_end(&self) -> usize {
        ARENA_BASE + self.bytes
    }

    /// Returns true if the address lies in the largest arena.
    pub fn contains(address: usize) -> bool {
        address.wrapping_sub(ARENA_BASE) < ARENA_BYTES
    }

    /// The way in which faults reach the pager.
    pub fn mechanism(&self) -> Mechanism {
        self.engine.mechanism
    }

    /// Returns true if a page that the kernel or a device has pinned stays by itself: where pages are moved out (`UFFDIO_MOVE`).
    pub fn sees_pins(&self) -> bool {
        self.engine.staging(0).is_some()
    }

    /// The job that the memory is charged to.
    pub fn job(&self) -> &'static Job {
        self.job
    }

    /// Returns true if pages of the arena can be absent.
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Bytes of the chunks in which something is accessible or was, present or not. What was only reserved (`PROT_NONE`) is not
    /// among them.
    pub fn admitted_bytes(&self) -> usize {
        self.counts.admitted.load(Ordering::Relaxed) * CHUNK_BYTES
    }

    /// Sets the hook that runs once, before the first page can be absent: the place to install the system-call filter. It
    /// may run in any thread inside any call into the pager, with all signals blocked, and must not touch the arena.
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
            native_bytes: counts.native.load(Ordering::Relaxed) * CHUNK_BYTES,
            store_bytes: self.store.bytes(),
            table_bytes: counts.tables.load(Ordering::Relaxed),
            mapped_bytes: counts.mapped.load(Ordering::Relaxed) * PAGE_BYTES,
        }
    }

    /// The page of an address of the arena.
    fn page_of(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(ARENA_BASE);
        (offset < self.bytes).then_some(offset / PAGE_BYTES)
    }

    fn has_range(&self, address: usize, bytes: usize) -> bool {
        let offset = address.wrapping_sub(ARENA_BASE);
        offset < self.bytes && bytes <= self.bytes - offset
    }

    /// Forgets a page's copy. Returns the bytes of memory that came back to the job.
    fn free_copy(&self, entry: Entry) -> usize {
        let mut released = 0;
        match entry.tag() {
            Tag::Clean | Tag::Spilled if entry.slot().is_some() => {
                if let Some((spill, slot)) = self.spill().zip(entry.slot()) {
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

    /// Charges memory of tables and workplaces, where needed after making room; false where there is none yet.
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

    /// Bytes that must stay unused when a chunk becomes native.
    fn reserve_bytes(&self) -> usize {
        let total = usize::try_from(self.job.total()).unwrap_or(0);
        let objective = usize::try_from(self.job.unused_objective()).unwrap_or(0);
        (total / 16).max(objective).saturating_add(self.job.keep())
    }
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pager").field("bytes", &self.bytes).field("numbers", &self.numbers()).finish()
    }
}

/// The store's handle in an entry that has one.
fn store_handle(entry: Entry) -> Option<crate::store::Handle> {
    std::num::NonZeroU32::new(entry.handle_of_store()).map(crate::store::Handle)
}

/// First address of a page.
fn address_of(page: usize) -> usize {
    ARENA_BASE + page * PAGE_BYTES
}

/// Reserves as much of [`ARENA_BYTES`] as the limit on address space leaves. Returns its size, and the most for the store.
fn reserve_arena() -> Result<(usize, usize)> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut bytes = ARENA_BYTES;
    let mut share = 1;
    if limit < 2 * ARENA_BYTES {
        // Half is the arena, an eighth the store; the tables and what the program maps elsewhere have the rest.
        let free = limit.saturating_sub(kernel::virtual_bytes());
        bytes = ((free / 2) & !(CHUNK_BYTES - 1)).clamp(MIN_ARENA_BYTES, ARENA_BYTES);
        share = 4;
    }
    loop {
        match kernel::reserve(ARENA_BASE, bytes) {
            Ok(()) => return Ok((bytes, bytes / share)),
            // Or something of the program's is in the way: the arena ends before it.
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
