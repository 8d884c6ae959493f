// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages as they were: what a snapshot needs of a file that goes on changing.
//!
//! - **Flow** a store outside the log ─▶ does a snapshot need the page as it is? ─▶ copied, linked to its number ─▶ the store …… a reader
//!   reads the file ─▶ looks whether the page was copied since its snapshot: then the oldest such copy is what it reads
//! - **Order** copy ─▶ link ─▶ fence ─▶ store to the file. A reader reads the file ─▶ fence ─▶ looks for a link: without one, what it
//!   read is as old as its snapshot
//! - **Rule** nobody waits for a reader. When the room is used up, the oldest snapshots are taken back; their readers look for that
//!   after everything that they read
//! - **Rule** a copy's place is used again only with a later number, so one number read twice says that what was read in between is whole
//! - **Owner** one memory file, sealed: the pool's process stores, readers map it for reading. The first word is a robust
//!   futex (`memlift_ground::robust`): the kernel marks it when the thread that owns it dies, which is before the process gives up any file
//! - **Layout** of the memory file: words of the process and the snapshots (a page), then numbers, pages, older copies, newest copies by
//!   page, and the copies themselves

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memlift_ground::robust;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Snapshots that there can be at once: two for each of 240 readers.
pub(crate) const SNAPSHOTS_MAX: usize = 480;
/// The snapshots' words start here; the process's word is the first.
const SNAPSHOTS: u64 = 64;
const _: () = assert!(SNAPSHOTS + SNAPSHOTS_MAX as u64 * 8 <= PAGE);
/// Marks a snapshot that was taken back.
const TAKEN_BACK: u64 = 1 << 63;
const SEALS: SealFlags =
    SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);
/// Copies are given back to the system when there is no snapshot, if they were so many: 1 MiB.
const KEPT_COPIES: u64 = 256;

/// Sizes of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    /// Pages that the pool's file can have.
    pub pages: u64,
    /// Copies that there is room for.
    pub room: u64,
}

impl Sizes {
    /// Most of either: page numbers and links have 32 bits.
    const MOST: u64 = u32::MAX as u64 - 1;

    /// Returns true if a table can be so large.
    pub fn are_possible(self) -> bool {
        (1..=Sizes::MOST).contains(&self.pages) && (1..=Sizes::MOST).contains(&self.room)
    }

    fn numbers(self) -> u64 {
        PAGE
    }

    fn places(self) -> u64 {
        self.numbers() + self.room * 8
    }

    fn older(self) -> u64 {
        self.places() + self.room * 4
    }

    fn newest(self) -> u64 {
        self.older() + self.room * 4
    }

    fn copies(self) -> u64 {
        (self.newest() + self.pages * 4).next_multiple_of(PAGE)
    }

    fn bytes(self) -> u64 {
        self.copies() + self.room * PAGE
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct OldPages {
    base: NonNull<u8>,
    file: OwnedFd,
    sizes: Sizes,
    /// The newest snapshot; 0: there is none, and nothing is copied.
    newest: AtomicU64,
    state: Mutex<State>,
}

/// The writer's own part.
#[derive(Debug, Default)]
struct State {
    /// Snapshots so far: the number of the last one.
    clock: u64,
    /// The oldest snapshot; 0: there is none.
    oldest: u64,
    /// Copies that were made, and of them those that nobody needs: copy `n` lies at `n % room`.
    made: u64,
    freed: u64,
    /// Copies made when the system last got their memory back.
    emptied: u64,
}

// SAFETY: everything behind `base` is atomics or copies of pages that are read and written as the module's header says, by any thread.
unsafe impl Send for OldPages {}
// SAFETY: as above; the writer's part is behind a mutex.
unsafe impl Sync for OldPages {}

/// How much a writer or reader may do with the mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Write,
    Read,
}

impl OldPages {
    /// An empty table of a pool that was opened for writing.
    pub fn new(sizes: Sizes) -> Result<OldPages, Errno> {
        let file =
            rustix::fs::memfd_create("memlift-readers", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, sizes.bytes())?;
        let old = OldPages::map(file, sizes, Access::Write)?;
        // From here on nobody else can map it for writing.
        rustix::fs::fcntl_add_seals(&old.file, SEALS)?;
        Ok(old)
    }

    /// The table of another process. None: the file is something else, or may change its size.
    pub fn of(file: OwnedFd, sizes: Sizes) -> Result<Option<OldPages>, Errno> {
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        if !sizes.are_possible() || !sealed || rustix::fs::fstat(&file)?.st_size as u64 != sizes.bytes() {
            return Ok(None);
        }
        OldPages::map(file, sizes, Access::Read).map(Some)
    }

    fn map(file: OwnedFd, sizes: Sizes, access: Access) -> Result<OldPages, Errno> {
        let protection = match access {
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
            Access::Read => ProtFlags::READ,
        };
        let bytes = usize::try_from(sizes.bytes()).map_err(|_| Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0");
        Ok(OldPages { base, file, sizes, newest: AtomicU64::new(0), state: Mutex::default() })
    }

    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The address of a byte of the table, at least `bytes` before its end.
    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(offset + bytes <= self.sizes.bytes());
        // SAFETY: within the mapping (above).
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    fn word64(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: within the mapping (`at`), aligned (all tables start at multiples of 8 or are of words of 4 bytes), and only used as an
        // atomic, by readers for loads.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    fn word32(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: as in `word64`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    fn alive(&self) -> &AtomicU32 {
        self.word32(0)
    }

    fn snapshot(&self, index: usize) -> &AtomicU64 {
        assert!(index < SNAPSHOTS_MAX);
        self.word64(SNAPSHOTS + index as u64 * 8)
    }

    /// The last snapshot that a copy is for. 0: the copy is being changed.
    fn number(&self, copy: u64) -> &AtomicU64 {
        self.word64(self.sizes.numbers() + copy * 8)
    }

    /// The page that a copy is of.
    fn place(&self, copy: u64) -> &AtomicU32 {
        self.word32(self.sizes.places() + copy * 4)
    }

    /// 1 + the copy of the same page that was made before; 0: none.
    fn older(&self, copy: u64) -> &AtomicU32 {
        self.word32(self.sizes.older() + copy * 4)
    }

    /// 1 + the newest copy of a page; 0: none.
    fn newest_of(&self, page: u64) -> &AtomicU32 {
        self.word32(self.sizes.newest() + page * 4)
    }

    // The writer's side.

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the process lives, for as long as this thread keeps what is returned, or until [`OldPages::close`].
    pub fn live(&self) -> Alive<'_> {
        Alive { pages: self, _owned: robust::own(self.alive()) }
    }

    /// Ends all snapshots: the file is about to be somebody else's.
    pub fn close(&self) {
        self.alive().store(0, Ordering::SeqCst);
    }

    /// Takes a snapshot for these indices, which have none. The caller holds everything still that readers see.
    pub fn begin(&self, indices: &[usize]) -> u64 {
        let mut state = self.lock();
        state.clock += 1;
        indices.iter().for_each(|index| self.snapshot(*index).store(state.clock, Ordering::Release));
        self.count(&mut state);
        state.clock
    }

    /// Ends the snapshot with that index, if it has one.
    pub fn end(&self, index: usize) {
        let mut state = self.lock();
        self.snapshot(index).store(0, Ordering::Release);
        self.count(&mut state);
    }

    /// Returns true if there is a snapshot.
    pub fn any(&self) -> bool {
        self.newest.load(Ordering::Acquire) != 0
    }

    /// Looks which snapshots there are.
    fn count(&self, state: &mut State) {
        let all = (0..SNAPSHOTS_MAX).map(|index| self.snapshot(index).load(Ordering::Relaxed));
        let (oldest, newest) = all.filter(|number| *number != 0 && number & TAKEN_BACK == 0).fold(
            (0, 0),
            |(low, high): (u64, u64), number| {
                (if low == 0 { number } else { low.min(number) }, high.max(number))
            },
        );
        state.oldest = oldest;
        self.newest.store(newest, Ordering::SeqCst);
        if newest == 0 && state.made - state.emptied > KEPT_COPIES {
            (state.freed, state.emptied) = (state.made, state.made);
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the system refuses, the memory is used again later.
            let _ = rustix::fs::fallocate(&self.file, how, self.sizes.copies(), self.sizes.room * PAGE);
        }
    }

    /// Takes the oldest snapshots back: their readers find out.
    fn take_back(&self, state: &mut State) {
        for index in 0..SNAPSHOTS_MAX {
            let word = self.snapshot(index);
            if word.load(Ordering::Relaxed) == state.oldest {
                word.store(state.oldest | TAKEN_BACK, Ordering::Release);
            }
        }
        fence(Ordering::SeqCst);
        self.count(state);
    }

    /// Copies the pages of [offset, offset + bytes) of the file that a snapshot needs, before they are stored to. `read` gives a page as it
    /// is in the file; nobody else stores to it meanwhile.
    #[inline]
    pub fn before_store(&self, offset: u64, bytes: u64, read: impl FnMut(u64, &mut [u8])) {
        if self.any() {
            self.save(offset, bytes, read);
        }
    }

    #[cold]
    fn save(&self, offset: u64, bytes: u64, mut read: impl FnMut(u64, &mut [u8])) {
        let mut state = self.lock();
        let end = (offset + bytes).div_ceil(PAGE).min(self.sizes.pages);
        for page in offset / PAGE..end {
            let before = self.newest_of(page).load(Ordering::Relaxed);
            let kept = self.entry(before, page).map_or(0, |(number, _)| number);
            if kept >= self.newest.load(Ordering::Relaxed) {
                continue;
            }
            let Some(copy) = self.room(&mut state) else { break };
            self.number(copy).store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            self.place(copy).store(page as u32, Ordering::Relaxed);
            self.older(copy).store(if kept == 0 { 0 } else { before }, Ordering::Relaxed);
            // SAFETY: within the mapping (`at`); the writer alone stores here, under its lock, and readers believe nothing while the
            // number is 0 or changes.
            let target = unsafe {
                std::slice::from_raw_parts_mut(
                    self.at(self.sizes.copies() + copy * PAGE, PAGE),
                    PAGE as usize,
                )
            };
            read(page * PAGE, target);
            self.number(copy).store(state.clock, Ordering::Release);
            self.newest_of(page).store(copy as u32 + 1, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }

    /// A place for a copy, if there still is a snapshot that needs it.
    fn room(&self, state: &mut State) -> Option<u64> {
        while state.made - state.freed >= self.sizes.room {
            let last = self.number(state.freed % self.sizes.room).load(Ordering::Relaxed);
            if state.oldest == 0 || last < state.oldest {
                state.freed += 1;
            } else {
                self.take_back(state);
            }
        }
        if state.oldest == 0 {
            return None;
        }
        state.made += 1;
        Some((state.made - 1) % self.sizes.room)
    }

    // The reader's side, which believes no number before it has looked at it.

    /// A copy's number and the link to the one before it, if it is of that page.
    fn entry(&self, link: u32, page: u64) -> Option<(u64, u32)> {
        let copy = u64::from(link).checked_sub(1).filter(|copy| *copy < self.sizes.room)?;
        let number = self.number(copy).load(Ordering::Acquire);
        let place = self.place(copy).load(Ordering::Acquire);
        let older = self.older(copy).load(Ordering::Acquire);
        (number != 0 && u64::from(place) == page).then_some((number, older))
    }

    /// Puts what a page held at `snapshot`, from byte `inside` on, over `target`, if the page was stored to since. `target` was read
    /// from the file before.
    pub fn put(&self, page: u64, snapshot: u64, inside: usize, target: &mut [u8]) {
        if page >= self.sizes.pages {
            return;
        }
        fence(Ordering::SeqCst);
        let (mut link, mut before, mut found) =
            (self.newest_of(page).load(Ordering::Acquire), u64::MAX, None);
        while let Some((number, older)) =
            self.entry(link, page).filter(|(number, _)| (snapshot..before).contains(number))
        {
            found = Some(u64::from(link) - 1);
            (before, link) = (number, older);
        }
        let Some(copy) = found else { return };
        assert!(inside + target.len() <= PAGE as usize);
        let start = self.at(self.sizes.copies() + copy * PAGE, PAGE).cast::<u64>();
        let mut bytes = [0; PAGE as usize];
        for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: within the copy, aligned. Another process may store there; then the snapshot was taken back, and the caller believes
            // nothing (`why_gone`).
            *word = unsafe { start.add(at).read_volatile() }.to_ne_bytes();
        }
        target.copy_from_slice(&bytes[inside..inside + target.len()]);
        fence(Ordering::SeqCst);
    }

    /// Returns true if the page was stored to since `snapshot`, as far as that is still there.
    pub fn changed(&self, page: u64, snapshot: u64) -> bool {
        if page >= self.sizes.pages {
            return true;
        }
        let newest = self.newest_of(page).load(Ordering::Acquire);
        self.entry(newest, page).is_some_and(|(number, _)| number >= snapshot)
    }

    /// Reason why nothing that was read of a snapshot counts any more; None: it all does.
    pub fn why_gone(&self, index: usize, snapshot: u64) -> Option<&'static str> {
        fence(Ordering::SeqCst);
        let now = self.snapshot(index).load(Ordering::Acquire);
        let taken = "the writer changed more pages since than it keeps for readers";
        self.why_ended().or((now != snapshot).then_some(taken))
    }

    /// Reason why there are no snapshots any more; None: there are.
    pub fn why_ended(&self) -> Option<&'static str> {
        match self.alive().load(Ordering::Acquire) {
            0 => Some("its writer has closed the pool"),
            alive if alive & robust::OWNER_DIED != 0 => Some("its writer has ended"),
            _ => None,
        }
    }
}

/// The thread that stands for the process: without it nobody would be told of the process's death, so its end ends all snapshots.
pub(crate) struct Alive<'a> {
    pages: &'a OldPages,
    _owned: robust::Owned<'a>,
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.pages.close();
    }
}

impl Drop for OldPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this table's, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.sizes.bytes() as usize) };
    }
}
