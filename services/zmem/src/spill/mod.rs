// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The spill file: pages that do not fit compressed, on a local disk, past the page cache.
//!
//! - **Flow** pages ──[`Spill::write`]──▶ free slots, neighbouring ones if possible ──one direct write per run──▶ [`Slot`]s
//!   ──[`Spill::read_run`], checked──▶ pages. [`Spill::free`] ──▶ the slot is free; a MiB of free slots is punched out of the
//!   file
//! - **Layout** slot i is the 4 KiB at offset i · 4096 of its generation's file. A CRC-32C per slot, over tag and page, is in
//!   memory
//! - **Order** a slot is taken before it is written, and freed after its page is no longer needed. The checksum is stored
//!   after the write. If the disk refuses a write that lets the file grow, gaps in the file are used for a while before
//!   growth is tried again. If those writes fail too, nothing is written for a moment
//! - **Owner** the file has no name, so it ends with the last process that has it open. A fork starts a generation: the child
//!   reads its ancestors' files, writes to a file of its own, and has a pipe open as long as it lives. By that pipe the
//!   parent knows that freed slots which the child may read must not be used again yet
//! - **Not here** choosing the pages; encryption: anyone who can read the disk can read the pages
//!
//! All of this may run in signal handlers: it makes system calls, takes only locks of zmem's own, and does not allocate.

mod file;
mod slots;

use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use memlift_kernels::pages;

use crate::lock::{Lock, now_ms};
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::{Error, Result};
use file::File;
pub(crate) use file::MAX_GENERATIONS;
use slots::Slots;

/// Place of a page in the spill file, in 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Slot(pub u64);

impl Slot {
    const INDEX_BITS: u32 = 40;

    fn new(generation: usize, index: usize) -> Slot {
        Slot((generation as u64) << Slot::INDEX_BITS | index as u64)
    }

    pub(crate) fn generation(self) -> usize {
        (self.0 >> Slot::INDEX_BITS) as usize
    }

    /// Returns the next slot in the same file.
    pub fn next(self) -> Slot {
        Slot(self.0 + 1)
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & ((1 << Slot::INDEX_BITS) - 1)) as usize
    }
}

/// Reasons why a page was not written or not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpillError {
    /// The file has as many pages as it is allowed.
    #[error("the spill file holds its {max_bytes} bytes: allow more, or give the job more memory")]
    Full {
        /// Limit of the file, bytes.
        max_bytes: usize,
    },
    /// The disk refused a read or a write.
    #[error("the spill disk: {} (error {})", file::words(*.0), .0)]
    Device(
        /// The kernel's error number.
        i32,
    ),
    /// The page that came back is not the one that was written.
    #[error("the spill file gave back another page than was written: the disk or its driver is faulty")]
    Corrupt,
    /// The program closed the file, or uses its descriptor for another one.
    #[error(
        "the program closed the spill file's descriptor: run it where it leaves descriptors alone that it did not open"
    )]
    Closed,
    /// There were too many generations of forks, each with spilled pages.
    #[error(
        "more than {MAX_GENERATIONS} generations of processes forked while pages were spilled: spill less or fork less"
    )]
    Generations,
}

/// Upper bound of the pages of one direct write.
const RUN_PAGES: usize = 64;
/// Time for which a disk that refused a write is not asked again, milliseconds.
const REFUSED_MS: u64 = 100;

/// The state that the lock guards.
struct State {
    slots: Slots,
    files: [Option<File>; MAX_GENERATIONS],
    /// Generation of this process, the index of its own file.
    generation: usize,
    /// Reading ends of the pipes whose writing ends are open in children that may read freed slots.
    children: [Option<i32>; 64],
    /// True if some child could not be given a pipe: slots that it may read are never used again after they are freed.
    has_untracked_child: bool,
    /// The two ends of the new pipe, between [`Spill::before_fork`] and the call after the fork.
    pipe: Option<[i32; 2]>,
    /// The reason why the disk did not let the file grow, and the time until which growth is not tried again.
    refused: Option<(SpillError, u64)>,
}

/// The spill file of a process.
pub struct Spill {
    directory: i32,
    max_bytes: usize,
    sums: Mapping,
    state: Lock<State>,
    /// Page-aligned buffer, needed for direct access to pages that are not aligned themselves.
    bounce: Lock<Mapping>,
    bounced: AtomicUsize,
    pages: AtomicUsize,
    reached: AtomicUsize,
    /// Time until which nothing is written, milliseconds of the monotonic clock.
    closed_ms: AtomicU64,
    /// Descriptor of each generation's file, or -1; for who reads this process from outside.
    descriptors: [AtomicI32; MAX_GENERATIONS],
}

impl Spill {
    /// Makes a spill file in `directory` for up to `max_bytes`. Disk space is taken only as pages are written.
    ///
    /// # Errors
    ///
    /// [`Error::SpillDirectory`] if there is no such directory, if it lies in memory (tmpfs), or if the file cannot be made;
    /// [`Error::Map`].
    pub fn create(directory: &Path, max_bytes: usize) -> Result<Spill> {
        let refused =
            |reason: String| Error::SpillDirectory { directory: directory.display().to_string(), reason };
        let fd = file::open_directory(directory).map_err(&refused)?;
        let slots = (max_bytes / PAGE_BYTES).clamp(1, 1 << 36);
        let mut files = [const { None }; MAX_GENERATIONS];
        let opened = File::create(fd);
        match opened {
            Ok(file) => files[0] = Some(file),
            Err(errno) => {
                file::close(fd);
                return Err(refused(std::io::Error::from_raw_os_error(errno).to_string()));
            }
        }
        Ok(Spill {
            directory: fd,
            max_bytes,
            sums: Mapping::reserve("the checksums of spilled pages", slots * 4)?,
            state: Lock::new(State {
                slots: Slots::new(slots)?,
                files,
                generation: 0,
                children: [None; 64],
                has_untracked_child: false,
                pipe: None,
                refused: None,
            }),
            bounce: Lock::new(Mapping::reserve(
                "pages on their way to the spill file",
                RUN_PAGES * PAGE_BYTES,
            )?),
            bounced: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            reached: AtomicUsize::new(0),
            closed_ms: AtomicU64::new(0),
            descriptors: [const { AtomicI32::new(-1) }; MAX_GENERATIONS],
        }
        .named())
    }

    fn named(self) -> Spill {
        self.publish_files(&self.state.lock());
        self
    }

    /// Writes the descriptors of the files for [`Spill::ranges`].
    fn publish_files(&self, state: &State) {
        for (word, file) in self.descriptors.iter().zip(&state.files) {
            word.store(file.map_or(-1, |file| file.fd), Ordering::Relaxed);
        }
    }

    /// Returns the address of the checksums and their bytes, and the address of the descriptors of all generations, for who
    /// reads this process from outside.
    pub(crate) fn ranges(&self) -> [usize; 3] {
        [self.sums.pointer().as_ptr() as usize, self.sums.bytes(), self.descriptors.as_ptr() as usize]
    }

    /// Writes pages, each with a tag that must be given again to read it, and stores a slot for each page in `slots`. Either
    /// all pages are written or none.
    ///
    /// # Errors
    ///
    /// [`SpillError`].
    ///
    /// # Panics
    ///
    /// Panics if `slots` is shorter than `pages`.
    pub fn write(&self, pages: &[(u64, &[u8; PAGE_BYTES])], slots: &mut [Slot]) -> Result<(), SpillError> {
        assert!(pages.len() <= slots.len(), "a slot for each page");
        let mut written = 0;
        while written < pages.len() {
            match self.write_run(&pages[written..], &mut slots[written..]) {
                Ok(pages) => written += pages,
                Err(error) => {
                    for slot in &slots[..written] {
                        self.free(*slot);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns true if a write may succeed, that is, if writing was not stopped a moment ago.
    pub fn is_open(&self) -> bool {
        let until = self.closed_ms.load(Ordering::Relaxed);
        until == 0 || now_ms() >= until
    }

    /// Writes as many of the first `pages` as there are neighbouring slots for. Returns their number.
    fn write_run(&self, pages: &[(u64, &[u8; PAGE_BYTES])], slots: &mut [Slot]) -> Result<usize, SpillError> {
        let (file, generation, first, count, reached) = {
            let state = &mut *self.state.lock();
            let generation = state.generation;
            if state.files.get(generation).ok_or(SpillError::Generations)?.is_none() {
                state.files[generation] = Some(File::create(self.directory).map_err(SpillError::Device)?);
                self.publish_files(state);
            }
            state.reclaim();
            let (reached, refused) = (state.slots.reached(), state.refusal());
            let Some((first, count)) = state.slots.take(pages.len().min(RUN_PAGES), refused.is_none()) else {
                return Err(self.close(refused.unwrap_or(SpillError::Full { max_bytes: self.max_bytes })));
            };
            self.publish(state);
            (state.files[generation], generation, first, count, reached)
        };
        let file = file.ok_or(SpillError::Closed)?;
        if let Err(error) = self.write_pages(file, first, &pages[..count]) {
            let state = &mut *self.state.lock();
            state.slots.give_back(first, count, reached);
            self.publish(state);
            if first + count <= reached {
                return Err(self.close(error));
            }
            state.refused = Some((error, now_ms() + REFUSED_MS));
            // No page is lost. The file may have gaps, which can be written without more disk space.
            return if state.slots.taken() < state.slots.reached() { Ok(0) } else { Err(self.close(error)) };
        }
        self.closed_ms.store(0, Ordering::Relaxed);
        for (index, ((tag, page), slot)) in pages[..count].iter().zip(slots).enumerate() {
            self.sum(first + index).store(pages::checksum(*tag, page), Ordering::Relaxed);
            *slot = Slot::new(generation, first + index);
        }
        Ok(count)
    }

    /// Stops all writes for a moment. Returns `error` unchanged.
    fn close(&self, error: SpillError) -> SpillError {
        self.closed_ms.store(now_ms() + REFUSED_MS, Ordering::Relaxed);
        error
    }

    fn write_pages(
        &self,
        file: File,
        first: usize,
        pages: &[(u64, &[u8; PAGE_BYTES])],
    ) -> Result<(), SpillError> {
        let offset = first * PAGE_BYTES;
        if pages.iter().all(|(_, page)| page.as_ptr().addr().is_multiple_of(PAGE_BYTES)) {
            let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RUN_PAGES];
            for (part, (_, page)) in parts.iter_mut().zip(pages) {
                *part = libc::iovec { iov_base: page.as_ptr().cast_mut().cast(), iov_len: PAGE_BYTES };
            }
            // SAFETY: each part is a page that is borrowed for the call, and the call only reads it.
            return unsafe { file.write(&mut parts[..pages.len()], offset) };
        }
        let bounce = self.bounce.lock();
        self.bounced.fetch_max(pages.len() * PAGE_BYTES, Ordering::Relaxed);
        let start = bounce.pointer().as_ptr();
        for (index, (_, page)) in pages.iter().enumerate() {
            // SAFETY: the mapping has room for RUN_PAGES pages and belongs to the holder of its lock.
            unsafe { start.add(index * PAGE_BYTES).copy_from_nonoverlapping(page.as_ptr(), PAGE_BYTES) };
        }
        let mut parts = [libc::iovec { iov_base: start.cast(), iov_len: pages.len() * PAGE_BYTES }];
        // SAFETY: the part lies in the bounce buffer, whose lock this thread holds.
        unsafe { file.write(&mut parts, offset) }
    }

    /// Reads the page back that was written with this `tag`. The slot stays taken.
    ///
    /// # Errors
    ///
    /// [`SpillError::Corrupt`] if the slot has another page, [`SpillError::Device`], [`SpillError::Closed`]. The contents of
    /// `page` are then undefined.
    pub fn read(&self, slot: Slot, tag: u64, page: &mut [u8; PAGE_BYTES]) -> Result<(), SpillError> {
        self.read_run(slot, tag, std::slice::from_mut(page))
    }

    /// Does the same as [`Spill::read`] for pages in neighbouring slots with consecutive tags, with one read per
    /// [`RUN_PAGES`] pages.
    ///
    /// # Errors
    ///
    /// The errors of [`Spill::read`].
    pub fn read_run(&self, slot: Slot, tag: u64, pages: &mut [[u8; PAGE_BYTES]]) -> Result<(), SpillError> {
        let (first, file) = {
            let state = self.state.lock();
            if slot.index().saturating_add(pages.len()) > state.slots.count() {
                return Err(SpillError::Corrupt);
            }
            (slot.index(), state.files.get(slot.generation()).copied().flatten().ok_or(SpillError::Corrupt)?)
        };
        for (run, pages) in pages.chunks_mut(RUN_PAGES).enumerate() {
            let (offset, bytes) = ((first + run * RUN_PAGES) * PAGE_BYTES, size_of_val(pages));
            let target = pages.as_mut_ptr().cast::<u8>();
            if target.addr().is_multiple_of(PAGE_BYTES) {
                // SAFETY: the pages are borrowed mutably for the call.
                unsafe { file.read(target, bytes, offset)? };
                continue;
            }
            let bounce = self.bounce.lock();
            self.bounced.fetch_max(bytes, Ordering::Relaxed);
            let start = bounce.pointer().as_ptr();
            // SAFETY: the bounce buffer has room for RUN_PAGES pages, this thread holds its lock, and it does not overlap the
            // pages.
            unsafe {
                file.read(start, bytes, offset)?;
                target.copy_from_nonoverlapping(start, bytes);
            }
        }
        let right = |(index, page): (usize, &[u8; PAGE_BYTES])| {
            pages::checksum(tag + index as u64, page) == self.sum(first + index).load(Ordering::Relaxed)
        };
        if pages.iter().enumerate().all(right) { Ok(()) } else { Err(SpillError::Corrupt) }
    }

    /// Frees the slot of a page that is no longer needed.
    pub fn free(&self, slot: Slot) {
        let state = &mut *self.state.lock();
        let (index, own) = (slot.index(), slot.generation() == state.generation);
        if index >= state.slots.count() {
            return;
        }
        if own && state.has_children() && state.slots.is_old(index) {
            state.slots.give_later(index);
        } else if let Some(hole) = state.slots.give(index)
            && let Some(Some(file)) = state.files.get(state.generation)
        {
            file.punch(hole * PAGE_BYTES, slots::HOLE_SLOTS * PAGE_BYTES);
        }
        self.publish(state);
    }

    /// Returns an upper bound of the memory that the tables and the buffer have touched, bytes.
    pub fn bytes(&self) -> usize {
        let reached = self.reached.load(Ordering::Relaxed);
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE_BYTES);
        pages(reached * 4) + 3 * pages(reached.div_ceil(8)) + self.bounced.load(Ordering::Relaxed)
    }

    /// Returns the size of the pages in the file, bytes.
    pub fn disk_bytes(&self) -> usize {
        self.pages.load(Ordering::Relaxed) * PAGE_BYTES
    }

    /// Takes the locks before a fork and leaves them taken; called by the thread that forks.
    pub fn before_fork(&self) {
        std::mem::forget(self.bounce.lock());
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.pipe = if state.slots.taken() > 0 { file::pipe() } else { None };
        if state.slots.taken() > 0 {
            state.slots.remember();
            state.has_untracked_child |= state.pipe.is_none() || state.children.iter().all(Option::is_some);
        }
        std::mem::forget(guard);
    }

    /// Releases the locks in the parent after a fork, also if the fork failed.
    ///
    /// # Safety
    ///
    /// This thread called [`Spill::before_fork`].
    pub unsafe fn after_fork_parent(&self) {
        // SAFETY: the caller promises that this thread took both locks in `before_fork`.
        unsafe {
            self.state.unlock();
            self.bounce.unlock();
        }
        let state = &mut *self.state.lock();
        if let Some([ours, childs]) = state.pipe.take() {
            file::close(childs);
            match state.children.iter_mut().find(|child| child.is_none()) {
                Some(child) => *child = Some(ours),
                None => file::close(ours),
            }
        }
    }

    /// Releases the locks in the child after a fork; pages that the child spills from now on go to a file of its own.
    ///
    /// # Safety
    ///
    /// The forking thread called [`Spill::before_fork`], and no other thread exists.
    pub unsafe fn after_fork_child(&self) {
        // SAFETY: the caller promises that no other thread exists; the forking thread held both locks, so the state is
        // consistent.
        unsafe {
            self.state.reset();
            self.bounce.reset();
        }
        let state = &mut *self.state.lock();
        if let Some([parents, _ours]) = state.pipe.take() {
            // This process's end stays open until it ends or executes another program.
            file::close(parents);
        }
        for child in state.children.iter_mut().filter_map(Option::take) {
            file::close(child);
        }
        state.slots.forget();
        state.has_untracked_child = false;
        if state.slots.taken() > 0 {
            // At the last generation, spilled pages can still be read, but writing is refused.
            state.generation += 1;
        } else {
            // The child needs no page of its ancestors, and must not write to their files.
            for file in state.files.iter_mut().filter_map(Option::take) {
                file::close(file.fd);
            }
            state.generation = 0;
        }
        self.publish_files(state);
    }

    fn publish(&self, state: &State) {
        self.pages.store(state.slots.taken(), Ordering::Relaxed);
        self.reached.store(state.slots.reached(), Ordering::Relaxed);
    }

    fn sum(&self, index: usize) -> &AtomicU32 {
        let last = self.sums.bytes() / 4 - 1;
        // SAFETY: the word lies in the mapping, is aligned, and is only ever used as an atomic.
        unsafe { &*self.sums.pointer().as_ptr().cast::<AtomicU32>().add(index.min(last)) }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let state = &mut *self.state.lock();
        for file in state.files.iter_mut().filter_map(Option::take) {
            file::close(file.fd);
        }
        for child in state.children.iter_mut().filter_map(Option::take) {
            file::close(child);
        }
        file::close(self.directory);
    }
}

impl State {
    /// Returns the reason why the file may not grow now, or `None` if it may.
    fn refusal(&mut self) -> Option<SpillError> {
        self.refused = self.refused.filter(|(_, until)| now_ms() < *until);
        self.refused.map(|(error, _)| error)
    }

    fn has_children(&self) -> bool {
        self.has_untracked_child || self.children.iter().any(Option::is_some)
    }

    /// Frees the slots that waited for children, if all those children have ended.
    fn reclaim(&mut self) {
        if self.slots.waiting() == 0 {
            return;
        }
        for child in &mut self.children {
            if let Some(pipe) = *child
                && file::is_hung_up(pipe)
            {
                file::close(pipe);
                *child = None;
            }
        }
        if !self.has_children() {
            self.slots.give_waiting();
        }
    }
}
