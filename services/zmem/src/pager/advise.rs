// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `madvise` on the arena.
//!
//! - **Flow** advice that drops contents: hold the pages, drop them, free their copies · advice that asks for pages: fault
//!   them in · hints about huge pages: passed to the kernel for native chunks · other hints: accepted, without effect ·
//!   [`Pager::residence`] is `mincore`
//! - **Not here** `mprotect` and mapping ([`super::space`]); advice about dumps and forks, which the caller keeps

use super::kernel::{self, Quiet};
use super::space::Pages;
use super::table::Mode;
use super::{ARENA_BASE, Errno, Fault, Pager, address_of};
use crate::mapping::PAGE_BYTES;

const POPULATE_READ: i32 = 22;
const POPULATE_WRITE: i32 = 23;
const DONTNEED_LOCKED: i32 = 24;
const COLLAPSE: i32 = 25;

impl Pager {
    /// `madvise` for a range in the arena.
    ///
    /// # Errors
    ///
    /// The errors of `madvise`: `ENOMEM` if part of the range is not mapped (the mapped part was advised nevertheless),
    /// `EINVAL` for advice that the arena cannot follow.
    pub fn advise(&self, address: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
        const LAST: i32 = COLLAPSE;
        if !(0..=LAST).contains(&advice) || (5..8).contains(&advice) {
            return Err(libc::EINVAL);
        }
        if bytes == 0 && address.is_multiple_of(PAGE_BYTES) {
            return Ok(());
        }
        let pages = self.range(address, bytes).ok_or(libc::EINVAL)?;
        match advice {
            libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED => {
                let _quiet = Quiet::new();
                let _space = self.space.lock();
                self.hold(pages);
                self.discard(pages);
                self.let_go(pages, |_, entry| entry);
            }
            POPULATE_READ | POPULATE_WRITE => self.populate(pages, advice == POPULATE_WRITE)?,
            libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE | COLLAPSE => {
                let _quiet = Quiet::new();
                let _space = self.space.lock();
                for (chunk, part) in pages.by_chunk() {
                    if self.table.chunk(chunk).mode() == Mode::Native {
                        // This advice is a hint: not following it is no error.
                        let _ = kernel::advise(part.address(), part.bytes(), advice);
                    }
                }
            }
            libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_MERGEABLE
            | libc::MADV_UNMERGEABLE => {}
            _ => return Err(libc::EINVAL),
        }
        self.mapped(address, bytes)
    }

    /// Writes 1 for each page that has memory, and 0 for each that is compressed, spilled or was never touched. `pages` has a
    /// byte for each page from `address` on, which is the start of a page in the arena; the range is mapped.
    pub fn residence(&self, address: usize, pages: &mut [u8]) {
        let Some(range) = self.range(address, pages.len() * PAGE_BYTES) else { return pages.fill(0) };
        for (chunk, part) in range.by_chunk() {
            let target = &mut pages[part.first - range.first..][..part.count];
            match self.table.chunk(chunk).mode() {
                Mode::Vacant | Mode::Guarded => target.fill(0),
                Mode::Armed => {
                    for (page, byte) in (part.first..part.end()).zip(target) {
                        let entry = self.table.load(page);
                        // A page that is being worked on is on its way in or out.
                        *byte = u8::from(entry.is_present() || entry.is_busy());
                    }
                }
                Mode::Native | Mode::Busy => {
                    if kernel::mincore(part.address(), part.bytes(), target).is_err() {
                        target.fill(1);
                    }
                }
            }
        }
    }

    fn populate(&self, pages: Pages, write: bool) -> Result<(), Errno> {
        for page in pages.first..pages.end() {
            loop {
                let quiet = Quiet::new();
                if !self.table.allows(page, write) {
                    return Err(libc::EFAULT);
                }
                let native = self.table.chunk(page / super::CHUNK_PAGES).mode() == Mode::Native;
                if native {
                    let advice = if write { POPULATE_WRITE } else { POPULATE_READ };
                    // A page that is not populated now is populated at its first touch.
                    let _ = kernel::advise(address_of(page), PAGE_BYTES, advice);
                    break;
                }
                if self.table.load(page).is_present() {
                    break;
                }
                if self.answer(page, write) == Fault::NotMine {
                    return Err(libc::EFAULT);
                }
                drop(quiet);
            }
        }
        debug_assert!(pages.address() >= ARENA_BASE);
        Ok(())
    }
}
