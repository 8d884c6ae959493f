// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mappings of the arena: the pager's versions of `mmap`, `munmap` and `mprotect`.
//!
//! - **Flow** map: find free pages (first fit; large mappings begin at a chunk) ──▶ admit their chunks ──▶ grant access.
//!   Unmap, protect: [`Pager::hold`] the range ──▶ the kernel's call ──▶ free copies, give charges back ──▶ let go
//! - **Layout** the arena is one private anonymous reservation. Memory is mapped by `mprotect` of a part of it, so that its
//!   registration stays
//! - **Order** one such call runs at a time (space lock). Access is granted in the kernel first and in the table afterwards,
//!   and is also taken away in the kernel first. So a fault that the table forbids is the program's own mistake
//! - **Not here** moving ([`super::remap`]), advice ([`super::advise`])

use std::sync::atomic::Ordering;

use super::entry::{Entry, Tag};
use super::kernel::{self, Quiet};
use super::table::{CHUNK_BYTES, CHUNK_PAGES, FIRST_CHUNKS, MAPPED, Mode};
use super::{ARENA_BASE, Errno, Pager, address_of};
use crate::mapping::PAGE_BYTES;

/// Number of partly used chunks that are searched for a small mapping before a new chunk is used.
const CHUNKS_SEARCHED: usize = 32;

/// Positions at which the search for free pages starts.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// First chunk that may be without a mapping; each earlier chunk has one.
    vacant: usize,
    /// Chunk in which a small mapping last found room.
    small: usize,
}

/// The pages `[first, first + count)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    pub first: usize,
    pub count: usize,
}

impl Pages {
    pub fn end(self) -> usize {
        self.first + self.count
    }

    pub fn address(self) -> usize {
        address_of(self.first)
    }

    pub fn bytes(self) -> usize {
        self.count * PAGE_BYTES
    }

    /// Returns the parts of the range, one per chunk.
    pub fn by_chunk(self) -> impl Iterator<Item = (usize, Pages)> {
        let chunks = self.first / CHUNK_PAGES..self.end().div_ceil(CHUNK_PAGES);
        chunks.map(move |chunk| {
            let first = self.first.max(chunk * CHUNK_PAGES);
            let end = self.end().min((chunk + 1) * CHUNK_PAGES);
            (chunk, Pages { first, count: end - first })
        })
    }
}

impl Pager {
    /// Maps private anonymous memory (`mmap`): `bytes` (rounded up to pages) with access `prot`, at an address of the pager's
    /// choice, or at exactly `at` in the arena, where it replaces old mappings (`MAP_FIXED`). Returns the address.
    ///
    /// # Errors
    ///
    /// The errors of `mmap`.
    pub fn map(&self, bytes: usize, prot: i32, at: Option<usize>) -> Result<usize, Errno> {
        if bytes == 0 || prot & !(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) != 0 {
            return Err(libc::EINVAL);
        }
        let count = bytes.div_ceil(PAGE_BYTES);
        let _quiet = Quiet::new();
        let mut space = self.space.lock();
        let pages = match at {
            Some(address) => {
                let pages = self.range(address, bytes).ok_or(libc::ENOMEM)?;
                self.unmap_held(&mut space, pages)?;
                pages
            }
            None => Pages { first: self.find(&mut space, count).ok_or(libc::ENOMEM)?, count },
        };
        self.commit(&mut space, pages, prot)?;
        Ok(pages.address())
    }

    /// Does the same as [`Pager::map`], at `hint` if that range of the arena is free, and elsewhere if it is not.
    ///
    /// # Errors
    ///
    /// The errors of `mmap`.
    pub fn map_near(&self, bytes: usize, prot: i32, hint: usize) -> Result<usize, Errno> {
        if prot & !(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) != 0 {
            return Err(libc::EINVAL);
        }
        {
            let _quiet = Quiet::new();
            let mut space = self.space.lock();
            if let Some(pages) = self.range(hint & !(PAGE_BYTES - 1), bytes)
                && self.none_mapped(pages)
            {
                self.commit(&mut space, pages, prot)?;
                return Ok(pages.address());
            }
        }
        self.map(bytes, prot, None)
    }

    /// Unmaps a range of the arena (`munmap`).
    ///
    /// # Errors
    ///
    /// The errors of `munmap`.
    pub fn unmap(&self, address: usize, bytes: usize) -> Result<(), Errno> {
        let pages = self.range(address, bytes).ok_or(libc::EINVAL)?;
        let _quiet = Quiet::new();
        let mut space = self.space.lock();
        self.unmap_held(&mut space, pages)
    }

    /// Changes the access of a range of the arena (`mprotect`).
    ///
    /// # Errors
    ///
    /// The errors of `mprotect`.
    pub fn protect(&self, address: usize, bytes: usize, prot: i32) -> Result<(), Errno> {
        if prot & !(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) != 0 {
            return Err(libc::EINVAL);
        }
        if bytes == 0 && address.is_multiple_of(PAGE_BYTES) {
            return Ok(());
        }
        let pages = self.range(address, bytes).ok_or(libc::EINVAL)?;
        let _quiet = Quiet::new();
        let mut space = self.space.lock();
        if !self.all_mapped(pages) {
            return Err(libc::ENOMEM);
        }
        if prot != libc::PROT_NONE {
            self.admit(&mut space, pages)?;
        }
        self.hold(pages);
        let outcome = self.grant(pages, prot);
        if outcome.is_ok() {
            self.table.set_access(pages.first, pages.count, MAPPED | prot as u8);
        }
        self.let_go(pages, |_, entry| entry);
        outcome
    }

    /// Checks that all pages of the range are mapped.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, as from `mincore`, if a page is not mapped.
    pub fn mapped(&self, address: usize, bytes: usize) -> Result<(), Errno> {
        let pages =
            self.range(address & !(PAGE_BYTES - 1), bytes + address % PAGE_BYTES).ok_or(libc::ENOMEM)?;
        if self.all_mapped(pages) { Ok(()) } else { Err(libc::ENOMEM) }
    }

    /// Returns the pages of a range, if it begins at a page boundary and lies in the arena.
    pub(super) fn range(&self, address: usize, bytes: usize) -> Option<Pages> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
        (bytes > 0 && address.is_multiple_of(PAGE_BYTES) && self.has_range(address, bytes))
            .then(|| Pages { first: (address - ARENA_BASE) / PAGE_BYTES, count: bytes / PAGE_BYTES })
    }

    /// Finds `count` neighbouring free pages. Returns the first.
    pub(super) fn find(&self, space: &mut Space, count: usize) -> Option<usize> {
        if count < CHUNK_PAGES
            && let Some(first) = self.find_small(space, count)
        {
            return Some(first);
        }
        let chunks = count.div_ceil(CHUNK_PAGES);
        let (mut first, mut run, mut lowest) = (space.vacant, 0, true);
        for chunk in space.vacant..self.table.chunk_count() {
            if self.table.chunk(chunk).mapped.load(Ordering::Relaxed) > 0 {
                (run, first) = (0, chunk + 1);
                if lowest {
                    space.vacant = first;
                }
                continue;
            }
            lowest = false;
            run += 1;
            if run == chunks {
                space.small = first + chunks - 1;
                return Some(first * CHUNK_PAGES);
            }
        }
        None
    }

    fn find_small(&self, space: &mut Space, count: usize) -> Option<usize> {
        let reached = self.reached.load(Ordering::Relaxed);
        let mut searched = 0;
        for turn in 0..reached.min(4 * CHUNKS_SEARCHED) {
            let chunk = (space.small + reached - turn % reached) % reached;
            let mapped = self.table.chunk(chunk).mapped.load(Ordering::Relaxed) as usize;
            if mapped == 0 || CHUNK_PAGES - mapped < count {
                continue;
            }
            let mut run = 0;
            for page in chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES {
                run = if self.table.is_mapped(page) { 0 } else { run + 1 };
                if run == count {
                    space.small = chunk;
                    return Some(page + 1 - count);
                }
            }
            searched += 1;
            if searched == CHUNKS_SEARCHED {
                break;
            }
        }
        None
    }

    /// Maps free pages with access `prot`.
    pub(super) fn commit(&self, space: &mut Space, pages: Pages, prot: i32) -> Result<(), Errno> {
        for (chunk, part) in pages.by_chunk() {
            self.table.chunk(chunk).mapped.fetch_add(part.count as u32, Ordering::AcqRel);
        }
        self.counts.mapped.fetch_add(pages.count, Ordering::Relaxed);
        self.reached.fetch_max(pages.end().div_ceil(CHUNK_PAGES), Ordering::AcqRel);
        // Here the table is set before access is granted, because only the caller knows the address yet.
        self.table.set_access(pages.first, pages.count, MAPPED | prot as u8);
        let admitted = if prot == libc::PROT_NONE { Ok(()) } else { self.admit(space, pages) };
        let outcome = admitted.and_then(|()| {
            if !self.engine.revokes_access() {
                return self.grant(pages, prot);
            }
            // The chunk must not become armed meanwhile.
            self.hold(pages);
            let outcome = self.grant(pages, prot);
            self.let_go(pages, |_, entry| entry);
            outcome
        });
        if let Err(error) = outcome {
            if matches!(error, libc::EPERM | libc::ENOSYS) {
                // `mmap` itself never fails with this error. It means that the program's filter allows mapping but not
                // changing the access.
                self.end_refused("map memory in the arena", error);
            }
            self.unmap_held(space, pages)?;
            return Err(error);
        }
        Ok(())
    }

    /// Admits vacant chunks in which memory becomes accessible for the first time: they become native or guarded.
    fn admit(&self, _space: &mut Space, pages: Pages) -> Result<(), Errno> {
        let mut chunk = pages.first / CHUNK_PAGES;
        let end = pages.end().div_ceil(CHUNK_PAGES);
        while chunk < end {
            if self.table.chunk(chunk).mode() != Mode::Vacant {
                chunk += 1;
                continue;
            }
            if !self.active() {
                // A process that grows beyond its first chunks is charged for all of them.
                let part = if chunk < FIRST_CHUNKS { 0 } else { self.uncharged_part() };
                if self.job.try_charge(self.native_charge(chunk) + part, self.native_reserve_bytes())
                    && self.table.chunk(chunk).claim(Mode::Vacant, false)
                {
                    if chunk >= FIRST_CHUNKS {
                        self.no_longer_small(part);
                    }
                    self.now_native(chunk);
                    self.counts.admitted.fetch_add(1, Ordering::Relaxed);
                    self.table.settle(chunk, Mode::Native);
                    chunk += 1;
                    continue;
                }
                self.activate_held();
            }
            let first = chunk;
            while chunk < end && self.table.chunk(chunk).mode() == Mode::Vacant {
                chunk += 1;
            }
            match self.cover(first, chunk - first) {
                Ok(()) => {}
                Err(error @ (libc::ENOMEM | libc::EAGAIN)) => return Err(error),
                // The program's system call must not return such an error, so the job ends.
                Err(error) => self.end_refused("watch the program's memory", error),
            }
            for chunk in first..chunk {
                if self.table.chunk(chunk).claim(Mode::Vacant, false) {
                    self.counts.admitted.fetch_add(1, Ordering::Relaxed);
                    self.table.settle(chunk, Mode::Guarded);
                }
            }
        }
        Ok(())
    }

    fn all_mapped(&self, pages: Pages) -> bool {
        self.table.every_access(pages.first, pages.count, |access| access & MAPPED != 0)
    }

    pub(super) fn none_mapped(&self, pages: Pages) -> bool {
        self.table.every_access(pages.first, pages.count, |access| access & MAPPED == 0)
    }

    /// Claims chunks (native, guarded) or pages (armed) of a range, waiting for each. Then no thread faults or evicts there.
    pub(super) fn hold(&self, pages: Pages) {
        for (chunk, part) in pages.by_chunk() {
            let record = self.table.chunk(chunk);
            loop {
                match record.mode() {
                    Mode::Vacant => break,
                    Mode::Busy => self.table.wait_chunk(chunk),
                    mode @ (Mode::Native | Mode::Guarded) => {
                        if record.claim(mode, false) {
                            break;
                        }
                    }
                    Mode::Armed => {
                        for page in part.first..part.end() {
                            let entry = self.table.claim_now(page);
                            self.table.park(page, entry);
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Ends [`Pager::hold`]. `change` returns the new entry of each page of an armed chunk.
    pub(super) fn let_go(&self, pages: Pages, mut change: impl FnMut(usize, Entry) -> Entry) {
        for (chunk, part) in pages.by_chunk() {
            let record = self.table.chunk(chunk);
            match record.mode() {
                Mode::Busy => self.table.settle(chunk, record.mode_before()),
                Mode::Armed => {
                    for page in part.first..part.end() {
                        let entry = self.table.parked(page);
                        self.table.publish(page, change(page, entry));
                    }
                }
                Mode::Vacant | Mode::Native | Mode::Guarded => {}
            }
        }
    }

    /// Unmaps the mapped pages of the range. The caller holds the space lock.
    pub(super) fn unmap_held(&self, space: &mut Space, pages: Pages) -> Result<(), Errno> {
        if self.none_mapped(pages) {
            return Ok(());
        }
        self.hold(pages);
        if let Err(error) = kernel::protect(pages.address(), pages.bytes(), libc::PROT_NONE) {
            self.let_go(pages, |_, entry| entry);
            return Err(error);
        }
        self.discard(pages);
        let mut gone = 0;
        for (chunk, part) in pages.by_chunk() {
            let here = self.table.set_access(part.first, part.count, 0);
            gone += here;
            let record = self.table.chunk(chunk);
            let left = record.mapped.fetch_sub(here as u32, Ordering::AcqRel) - here as u32;
            let held = matches!(record.mode(), Mode::Busy);
            if left == 0 {
                space.vacant = space.vacant.min(chunk);
            }
            if left == 0 && held && record.pins() == 0 {
                let mode = record.mode_before();
                let _ = kernel::vacate(address_of(chunk * CHUNK_PAGES), CHUNK_BYTES);
                if mode == Mode::Native {
                    self.job.uncharge(self.no_longer_native(chunk));
                }
                self.counts.admitted.fetch_sub(1, Ordering::Relaxed);
                self.table.settle(chunk, Mode::Vacant);
            } else if left == 0 && record.mode() == Mode::Armed {
                self.disarm(chunk, part);
            } else {
                self.let_go(part, |_, entry| entry);
            }
        }
        self.counts.mapped.fetch_sub(gone, Ordering::Relaxed);
        Ok(())
    }

    /// Makes an armed chunk vacant that has no mapped pages any more, and ends the hold of its pages. If a page is pinned,
    /// or a thread works on one that is not held, the chunk stays armed.
    fn disarm(&self, chunk: usize, part: Pages) {
        let pages = Pages { first: chunk * CHUNK_PAGES, count: CHUNK_PAGES };
        let record = self.table.chunk(chunk);
        let others = || (pages.first..part.first).chain(part.end()..pages.end());
        let pinned = (part.first..part.end()).any(|page| self.table.parked(page).pins() > 0);
        // A fault that was reported before the pages were unmapped may still be answered. A page that it claims from here on
        // would get memory in a chunk that is no longer armed, and the entry would be believed when it is armed again.
        let closed = if pinned { 0 } else { others().take_while(|page| self.table.close(*page)).count() };
        if pinned || closed < others().count() || !record.claim(Mode::Armed, false) {
            for page in others().take(closed) {
                self.table.reopen(page);
            }
            self.let_go(part, |_, entry| entry);
            return;
        }
        let _ = kernel::vacate(pages.address(), pages.bytes());
        for page in part.first..part.end() {
            self.table.publish(page, Entry::CLOSED);
        }
        self.table.forget(chunk);
        self.uncharge_tables(PAGE_BYTES);
        self.counts.admitted.fetch_sub(1, Ordering::Relaxed);
        self.table.settle(chunk, Mode::Vacant);
    }

    /// Drops the contents of held pages, which read as zeros afterwards.
    pub(super) fn discard(&self, pages: Pages) {
        for (chunk, part) in pages.by_chunk() {
            if self.table.chunk(chunk).mode() == Mode::Armed
                && (part.first..part.end()).any(|page| self.table.parked(page).is_present())
            {
                self.hide(part);
            }
        }
        let armed = |chunk: usize| self.table.chunk(chunk).mode() == Mode::Armed;
        let parts = pages.by_chunk().filter(|(chunk, _)| armed(*chunk));
        let shared: usize = parts.map(|(_, part)| self.shared_among(part)).sum();
        kernel::drop_range(pages.address(), pages.bytes());
        let mut dropped = 0;
        for (chunk, part) in pages.by_chunk() {
            let record = self.table.chunk(chunk);
            if record.mode() != Mode::Armed {
                continue;
            }
            let mut present = 0;
            for page in part.first..part.end() {
                let entry = self.table.parked(page);
                present += u32::from(entry.is_present());
                if entry.tag() != Tag::Empty {
                    self.free_copy(entry);
                    self.table.park(page, Entry::EMPTY.with_pins(entry.pins()));
                }
            }
            record.present.fetch_sub(present, Ordering::AcqRel);
            self.counts.present.fetch_sub(present as usize, Ordering::Relaxed);
            dropped += present as usize;
        }
        // Pages that other processes have too were not freed.
        let shared = shared.min(dropped);
        self.job.unshare(shared * PAGE_BYTES);
        self.job.uncharge((dropped - shared) * PAGE_BYTES);
    }
}
