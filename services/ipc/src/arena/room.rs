// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room for a value: waiting for it, and filling it.
//!
//! - **Flow** `reserve`: look at blocks whose end is near ─▶ allocate; without room: look at all ─▶ evict or wait ─▶ again
//! - **Owner** a block that is being written is its writer's alone; dropped unpublished, it is free again

use super::books::{Books, Room};
use super::handle::{BlockId, Handle};
use super::service::ring;
use super::{Shared, WhenFull};
use crate::error::Error;
use crate::payload::Outgoing;
use crate::transfer::Transfer;
use memlift_ground::region::{Headroom, Region, RegionOffset, Window};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// From this many bytes on the machine is asked whether it has them, and gives them in one call.
const POPULATED_BYTES: u64 = 64 << 10;

/// Room for a value. Dropped unpublished, it is given back.
pub struct Reserved {
    shared: Arc<Shared>,
    id: BlockId,
    offset: u64,
    bytes: u64,
    published: bool,
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reserved").field("bytes", &self.bytes).finish()
    }
}

impl Shared {
    pub(super) fn reserve(
        this: &Arc<Self>,
        bytes: u64,
        until: Option<Instant>,
    ) -> Result<Option<Reserved>, Error> {
        this.check_own()?;
        let mut books = this.books.lock();
        let limit = books.budget_bytes;
        if bytes > limit {
            return Err(Error::MessageTooLarge { bytes, limit });
        }
        books.check_open()?;
        books.reclaim(false);
        loop {
            let room = books.allocate(bytes).or_else(|| this.make_room(&mut books, bytes));
            if let Some(room) = room {
                drop(books);
                return this.given(room, bytes).map(Some);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            books.waiting += 1;
            books.header().waiting.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            // A lease may have ended before its reader could see that somebody waits.
            if !books.reclaim(true) {
                books = books.wait(&this.room, left);
            }
            books.waiting -= 1;
            if books.waiting == 0 {
                books.header().waiting.store(0, Ordering::SeqCst);
            }
            books.check_open()?;
        }
    }

    fn make_room(&self, books: &mut Books, bytes: u64) -> Option<Room> {
        if books.reclaim(true)
            && let Some(room) = books.allocate(bytes)
        {
            return Some(room);
        }
        while self.options.when_full == WhenFull::Evict && books.evict() {
            if let Some(room) = books.allocate(bytes) {
                return Some(room);
            }
        }
        None
    }

    /// Gives the room its memory.
    fn given(self: &Arc<Self>, room: Room, bytes: u64) -> Result<Reserved, Error> {
        let reserved =
            Reserved { shared: Arc::clone(self), id: room.id, offset: room.offset, bytes, published: false };
        if room.fresh_bytes >= POPULATED_BYTES {
            if self.books.with(|books| books.memory_bytes() > books.budget_bytes) {
                self.trim();
            }
            if let Err(refused) = Headroom::read().check(room.fresh_bytes) {
                // Its room counts as having memory, and must not when the next value comes to lie there.
                drop(reserved);
                self.trim();
                return Err(refused.into());
            }
            reserved.populate();
        }
        if room.fresh_bytes != 0 {
            self.row.set_memory_bytes(self.books.with(|books| books.memory_bytes()));
        }
        if room.first {
            ring(&self.bell);
        }
        Ok(reserved)
    }
}

impl Reserved {
    /// Length of the value, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn window(&self) -> Result<Window<'_>, Error> {
        Ok(self.shared.data.window(RegionOffset(self.offset), self.bytes)?)
    }

    /// Copies one part of the value to its place, `at` bytes from the start.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if it does not fit.
    pub fn write(&mut self, at: u64, part: &Outgoing<'_>) -> Result<(), Error> {
        if part.bytes() == 0 {
            return Ok(());
        }
        let target = self.window()?.window(at, part.bytes())?.as_mut_ptr()?;
        // SAFETY: the window has the part's length, is writable, and belongs to this value alone; a part never lies in the writable
        // mapping of an arena, of which no reader has a view.
        unsafe { part.copy_here(target, Transfer::PLAIN) };
        Ok(())
    }

    /// First byte of the value, to be written in place while this lives.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] for a value of no bytes.
    pub fn as_mut_ptr(&self) -> Result<*mut u8, Error> {
        Ok(self.window()?.as_mut_ptr()?)
    }

    /// Lets readers take the value. `reads`: the number of times after which it goes; `None`: it stays until it is released.
    pub fn publish(self, reads: Option<u32>) -> Handle {
        let shared = Arc::clone(&self.shared);
        let (id, bytes) = self.into_id();
        shared.books.with(|books| books.publish(id, reads.map(|reads| reads.max(1))));
        shared.row.put(bytes);
        shared.handle(id, bytes)
    }

    /// Gives the block up to the caller, who publishes it.
    pub(super) fn into_id(mut self) -> (BlockId, u64) {
        self.published = true;
        (self.id, self.bytes)
    }

    fn populate(&self) {
        let Ok(start) = self.window().and_then(|window| Ok(window.as_mut_ptr()?)) else { return };
        let before = start.addr() % 4096;
        // SAFETY: populating changes no byte; the range begins at the value's first page and ends with the value, inside the mapping.
        // Best effort: pages that get no memory here get it at the first store.
        let _ = unsafe {
            rustix::mm::madvise(
                start.sub(before).cast(),
                self.bytes as usize + before,
                rustix::mm::Advice::LinuxPopulateWrite,
            )
        };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.published && self.shared.check_own().is_ok() {
            self.shared.books.with(|books| books.abandon(self.id));
            self.shared.room.notify_all();
        }
    }
}

/// Keeps the data's pages in memory, each from its first use on.
///
/// # Errors
///
/// [`Error::System`] if RLIMIT_MEMLOCK forbids it.
pub(super) fn lock_pages(data: &Region) -> Result<(), Error> {
    // SAFETY: the range is the whole mapping, which outlives the call; locking changes no byte.
    unsafe {
        rustix::mm::mlock_with(
            data.base().cast_mut().cast(),
            data.bytes() as usize,
            rustix::mm::MlockFlags::ONFAULT,
        )
    }
    .map_err(Error::system("locking an arena's memory (raise RLIMIT_MEMLOCK: ulimit -l)"))
}
