// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An arena: values that one process writes once and any number of processes read where they lie.
//!
//! - **Flow** `reserve` ─▶ copy ─▶ `publish` gives a [`Handle`] of a few bytes ─▶ any channel ─▶ [`get`] in any process: a read-only view
//! - **Layout** one sealed memfd for data and one for the directory, which readers cannot write; one table of leases per reader
//!   ([`layout`]). Readers get their descriptors from the arena's socket, whose address is in the handle
//! - **Order** see [`layout`] for why a reader never sees memory that is used again
//! - **Owner** the arena keeps a value until it was released or taken as often as was said, and then until no lease is left. Leases end
//!   with their process, since the kernel closes its socket. When the arena's process dies, its readers keep what they see
//! - **Not here** values of many types: `Outgoing` gathers them, and who writes them says how they are encoded

mod books;
mod handle;
#[expect(unsafe_code, reason = "promises that the shared words are atomics only")]
mod layout;
mod packet;
mod publish;
mod reader;
#[expect(unsafe_code, reason = "copies values into the data, and gives it memory")]
mod room;
mod service;
#[cfg(test)]
#[expect(unsafe_code, reason = "forks children that read and die")]
mod tests;
mod topic;

use crate::address::Address;
use crate::error::Error;
use crate::fork;
use crate::payload::Outgoing;
use crate::rank::{Lock, Rank, holds_none};
use crate::row::ArenaRow;
use books::Books;
use handle::BlockId;
pub use handle::Handle;
use layout::{BLOCKS_MAX, ENTRIES_AT, Header, MAGIC, VERSION, directory_bytes};
use memlift_ground::region::{Headroom, HugePages, Region, RegionOffset, RegionOptions, random};
pub use reader::{Subscription, Update, get, get_now, release};
pub use room::Reserved;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use service::Service;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
pub use topic::Slow;

/// Readers that one arena has at most, unless told otherwise.
const READERS: usize = 1024;
/// Blocks that one arena has at most, unless told otherwise.
const BLOCKS: u32 = 1 << 14;
/// Address space per byte of budget: sizes that come and go leave gaps.
const SPREAD: u64 = 2;

/// Behaviour of an arena that has no room for a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// The writer waits until readers let go.
    #[default]
    Wait,
    /// The oldest values go that nobody reads at the moment; their handles expire.
    Evict,
}

/// How an arena is made.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// Bytes of memory that values may take; `None`: half of what is available now.
    pub bytes_max: Option<u64>,
    /// Values that may be kept at once.
    pub values_max: u32,
    /// Processes that may read at once.
    pub readers_max: usize,
    /// Behaviour when there is no room.
    pub when_full: WhenFull,
    /// The choice of huge pages for the data.
    pub huge_pages: HugePages,
    /// Prefer memory of this NUMA node.
    pub numa_node: Option<u32>,
    /// Values stay in memory (`mlock`), as far as RLIMIT_MEMLOCK allows.
    pub lock: bool,
    /// Users other than our own that may read; `None`: every user who reaches the address.
    pub allowed_uids: Option<Vec<u32>>,
    /// Folder of sockets for names without a `/`; `None`: the abstract namespace.
    pub socket_dir: Option<PathBuf>,
}

impl Default for ArenaOptions {
    fn default() -> ArenaOptions {
        ArenaOptions {
            bytes_max: None,
            values_max: BLOCKS,
            readers_max: READERS,
            when_full: WhenFull::Wait,
            huge_pages: HugePages::Auto,
            numa_node: None,
            lock: false,
            allowed_uids: Some(Vec::new()),
            socket_dir: None,
        }
    }
}

/// State of an arena at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ArenaStats {
    /// Values that can be taken.
    pub values: usize,
    /// Processes that are connected, and subscriptions.
    pub readers: usize,
    /// Bytes that values take.
    pub used_bytes: u64,
    /// Bytes of values that are kept only because a reader has a view of them.
    pub ending_bytes: u64,
    /// Bytes of memory that the arena has.
    pub memory_bytes: u64,
    /// Bytes of memory that values may take.
    pub budget_bytes: u64,
    /// Values that were evicted so far.
    pub evicted: u64,
}

/// An arena, in the process that writes it. Clones share it; with the last one it is closed.
#[derive(Clone)]
pub struct Arena(Arc<Owner>);

/// Closes the arena when its last user goes.
struct Owner {
    shared: Arc<Shared>,
    service: Mutex<Option<Service>>,
}

struct Shared {
    id: [u64; 2],
    address: Address,
    uid: u32,
    generation: u32,
    options: ArenaOptions,
    data: Region,
    /// Data and directory, opened for reading only.
    shown: [OwnedFd; 2],
    books: Lock<Books>,
    room: Condvar,
    /// Wakes the arena's thread.
    bell: Arc<OwnedFd>,
    row: ArenaRow,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("address", &self.0.shared.address).finish()
    }
}

impl Arena {
    /// Makes an arena. `name`: a name or a socket's path, as for a server; `None`: one that nobody else has.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`], [`Error::AddressInUse`]; [`Error::Memory`] without room for its books; [`Error::System`].
    pub fn new(name: Option<&str>, options: ArenaOptions) -> Result<Arena, Error> {
        let id = [random(), random()];
        let drawn = format!("arena-{:016x}", id[0]);
        let mut address = Address::parse(name.unwrap_or(&drawn), options.socket_dir.as_deref())?;
        if let Address::Path(path) = &address {
            // Handles are read in processes with other current folders.
            let absolute = std::path::absolute(path)
                .map_err(|source| Error::System { doing: "finding the current folder", source })?;
            address = Address::parse(&absolute.to_string_lossy(), None)?;
        }
        let blocks = options.values_max.clamp(1, BLOCKS_MAX);
        let available = || (Headroom::read().bytes / 2).clamp(1 << 20, 1 << 40);
        let budget_bytes = options.bytes_max.unwrap_or_else(available).clamp(4096, 1 << 40);
        let data = map_data(budget_bytes, &options)?;
        if options.lock {
            room::lock_pages(&data)?;
        }
        let books_options = RegionOptions { prefault: false, sole_writer: true, ..RegionOptions::default() };
        let directory = Region::memfd("memlift-arena-directory", directory_bytes(blocks), &books_options)?;
        let header: &Header = directory.layout(RegionOffset(0))?;
        header.version.store(u64::from(VERSION), Ordering::Relaxed);
        header.id[0].store(id[0], Ordering::Relaxed);
        header.id[1].store(id[1], Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        debug_assert!(directory.bytes() > ENTRIES_AT);
        let shown = [read_only(&data)?, read_only(&directory)?];
        let books = Books::new(Arc::new(directory), blocks, data.bytes(), budget_bytes);
        let shared = Arc::new(Shared {
            id,
            uid: rustix::process::getuid().as_raw(),
            generation: fork::generation(),
            row: ArenaRow::open(&address.to_string()),
            address,
            options,
            data,
            shown,
            books: Lock::new(Rank::Arena, books),
            room: Condvar::new(),
            bell: Arc::new(service::bell()?),
        });
        let service = Service::start(&shared)?;
        Ok(Arena(Arc::new(Owner { shared, service: Mutex::new(Some(service)) })))
    }

    /// Address by which readers find it.
    pub fn address(&self) -> &Address {
        &self.0.shared.address
    }

    /// Takes room for a value of `bytes`. `None`: there was none until `until` (`None`: waits for ever).
    ///
    /// # Errors
    ///
    /// [`Error::MessageTooLarge`] beyond the arena's budget, [`Error::Memory`] when the machine has too little left, [`Error::Closed`],
    /// [`Error::Forked`].
    pub fn reserve(&self, bytes: u64, until: Option<Instant>) -> Result<Option<Reserved>, Error> {
        Shared::reserve(&self.0.shared, bytes, until)
    }

    /// Puts one copy of a value. `reads`: the number of times that it will be taken, after which it goes; `None`: it stays until it is
    /// released. `Ok(None)`: there was no room until `until`.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Arena::reserve).
    pub fn put(
        &self,
        value: &Outgoing<'_>,
        reads: Option<u32>,
        until: Option<Instant>,
    ) -> Result<Option<Handle>, Error> {
        let Some(mut reserved) = self.reserve(value.bytes(), until)? else { return Ok(None) };
        reserved.write(0, value)?;
        Ok(Some(reserved.publish(reads)))
    }

    /// Gives a value up: nobody can take it from now on. Whoever has a view keeps it.
    pub fn release(&self, handle: &Handle) {
        self.0.shared.release(handle.id);
    }

    /// State of the arena now.
    pub fn stats(&self) -> ArenaStats {
        self.0.shared.books.with(|books| {
            books.reclaim(true);
            ArenaStats {
                values: books.values(),
                readers: books.seats.len(),
                used_bytes: books.used_bytes,
                ending_bytes: books.ending_bytes(),
                memory_bytes: books.memory_bytes(),
                budget_bytes: books.budget_bytes,
                evicted: books.evicted,
            }
        })
    }

    /// Bytes of memory that values may take.
    pub fn budget_bytes(&self) -> u64 {
        self.0.shared.books.with(|books| books.budget_bytes)
    }

    /// Gives memory back that no value needs. The arena does it by itself when nothing was put for a while.
    pub fn trim(&self) {
        self.0.shared.trim();
    }

    /// Closes the arena: its values can no longer be taken, and their memory goes back with the last view of them.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Owner {
    fn close(&self) {
        if self.shared.generation != fork::generation() {
            return;
        }
        self.shared.close();
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(service);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn handle(&self, id: BlockId, bytes: u64) -> Handle {
        Handle { uid: self.uid, arena: self.id, id, bytes, address: self.address.clone() }
    }

    fn check_own(&self) -> Result<(), Error> {
        match self.generation == fork::generation() {
            true => Ok(()),
            false => Err(Error::NotWriter),
        }
    }

    fn release(&self, id: BlockId) {
        if self.books.with(|books| books.release(id)) {
            self.room.notify_all();
        }
    }

    fn close(&self) {
        let mut books = self.books.lock();
        if books.closed {
            return;
        }
        books.close();
        // Now or never: readers are hung up on below, and after that nobody knows of their leases.
        self.punch(&mut books);
        let sockets: Vec<_> = books.seats.iter().map(|seat| Arc::clone(&seat.socket)).collect();
        drop(books);
        // Subscribers learn of the end.
        for socket in &sockets {
            let _ = rustix::net::shutdown(&**socket, rustix::net::Shutdown::Both);
        }
        self.room.notify_all();
    }

    /// Gives the memory back of what holds no value, unless the arena was closed: leases are not known any more then.
    fn trim(&self) {
        let mut books = self.books.lock();
        if !books.closed {
            self.punch(&mut books);
        }
    }

    /// Gives the memory back of what holds no value, under the lock: a value could come to lie there.
    fn punch(&self, books: &mut Books) {
        let ranges = books.unused();
        let Some(fd) = self.data.as_fd() else { return };
        for (offset, bytes) in ranges {
            // Best effort: the range counts as fresh, and is given memory again when a value comes to lie there.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(fd, flags, offset, bytes.min(self.data.bytes() - offset));
        }
        self.row.set_memory_bytes(books.memory_bytes());
    }
}

/// Maps the data: as much address space as sizes that come and go need, or less where that is limited.
fn map_data(budget_bytes: u64, options: &ArenaOptions) -> Result<Region, Error> {
    let sparse = RegionOptions {
        prefault: false,
        headroom: false,
        huge_pages: options.huge_pages,
        numa_node: options.numa_node,
        ..RegionOptions::default()
    };
    let bytes = budget_bytes.saturating_mul(SPREAD).clamp(1 << 20, 1 << 40).next_multiple_of(4096);
    let map = |bytes| Region::memfd("memlift-arena", bytes, &sparse);
    map(bytes)
        .or_else(|_| map((budget_bytes + budget_bytes / 8).next_multiple_of(4096)))
        .map_err(Error::Memory)
}

/// Opens a region's memory once more, for loads only: who gets that descriptor cannot map it for stores.
fn read_only(region: &Region) -> Result<OwnedFd, Error> {
    let fd = region.as_fd().ok_or(Error::Closed { what: "arena" })?;
    let doing = "opening an arena's memory for its readers";
    // Another user cannot open it again with more rights than these.
    rustix::fs::fchmod(fd, Mode::RUSR | Mode::RGRP | Mode::ROTH).map_err(Error::system(doing))?;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(Error::system(doing))
}

/// Outcome of [`Arena::publish`].
#[derive(Debug)]
pub enum Published {
    /// It is the latest of its topic.
    Done(Handle),
    /// A subscriber had no room for it.
    Behind(Reserved),
}

/// The publisher's side of topics.
impl Arena {
    /// Publishes a value: it becomes the latest of `topic`, and is given to those who follow it. It stays until the next one. With
    /// [`Slow::Wait`] and a subscriber that is behind until `until`, it is given back unpublished.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Arena::reserve); [`Error::BadAddress`] for a topic's name that is too long.
    pub fn publish(
        &self,
        topic: &str,
        reserved: Reserved,
        slow: Slow,
        until: Option<Instant>,
    ) -> Result<Published, Error> {
        packet::Packet::new(packet::PUBLISHED).named(topic)?;
        let shared = &self.0.shared;
        let mut books = shared.books.lock();
        while slow == Slow::Wait && books.slow_subscriber(topic).is_some() {
            books.check_open()?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                drop(books);
                return Ok(Published::Behind(reserved));
            }
            books = books.wait(&shared.room, left);
        }
        books.check_open()?;
        let (id, bytes) = reserved.into_id();
        books.publish(id, None);
        let parcels = books.announce(topic, id);
        books.release(id);
        drop(books);
        shared.row.put(bytes);
        shared.send(parcels);
        Ok(Published::Done(shared.handle(id, bytes)))
    }

    /// Process of a subscriber of `topic` that has no room for one more value; 0 for one of another container.
    pub fn slow_subscriber(&self, topic: &str) -> Option<u32> {
        self.0.shared.books.with(|books| books.slow_subscriber(topic))
    }
}

impl Shared {
    /// Sends what subscribers are to get. One that cannot be sent to is hung up on, and leaves by that.
    fn send(&self, parcels: Vec<topic::Parcel>) {
        holds_none("sends values to subscribers");
        for (_, socket, packet) in parcels {
            if crate::handshake::send_now(&*socket, &packet, &[]).is_err() {
                let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
            }
        }
    }
}
