// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins: pages that a system call works on are brought in, and must stay until it ends.
//!
//! - **Flow** [`Pager::pin`] ──page by page: fault in, count up──▶ [`Pins`] ──drop──▶ count down
//! - **Layout** a pin is counted in the entry of a page of an armed chunk, or in the chunk itself if that is native. A page
//!   that once had [`MAX_PINS`] at a time (a futex on which so many threads wait) stays pinned for good, because more pins
//!   cannot be counted
//! - **Order** counts change by compare-and-swap of an entry that is not busy, and an evictor claims only pages without pins.
//!   A native chunk with pins is not armed, and an armed chunk with a pinned page keeps its mode. So dropping the pins finds
//!   the count where it was made
//! - **Not here** the system calls that need pins (the preloaded library)

use super::entry::{Entry, MAX_PINS};
use super::kernel::Quiet;
use super::table::{CHUNK_PAGES, Mode};
use super::{ARENA_BASE, Errno, Fault, Pager, address_of};
use crate::mapping::PAGE_BYTES;

use std::sync::atomic::Ordering;

/// Pages that stay where they are until this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Pins<'a> {
    pager: &'a Pager,
    first: usize,
    end: usize,
}

impl Pager {
    /// Faults in the part of the range that lies in the arena, and keeps it present until the pins are dropped.
    ///
    /// # Errors
    ///
    /// `EFAULT` if a page is not mapped, or not with that access. Then the pages before it are not pinned either.
    pub fn pin(&self, address: usize, bytes: usize, write: bool) -> Result<Pins<'_>, Errno> {
        let start = address.max(ARENA_BASE);
        let end = address.saturating_add(bytes).min(ARENA_BASE + self.bytes);
        let (first, end) = if start < end {
            ((start - ARENA_BASE) / PAGE_BYTES, (end - ARENA_BASE).div_ceil(PAGE_BYTES))
        } else {
            (0, 0)
        };
        let mut pins = Pins { pager: self, first, end: first };
        while pins.end < end {
            let _quiet = Quiet::new();
            pins.end = self.pin_from(pins.end, end, write)?;
        }
        Ok(pins)
    }

    /// Returns the number of bytes from `address` on that are mapped with the access, at most `bytes`, for the short counts
    /// of `read` and `write`. Memory outside the arena counts as accessible.
    pub fn accessible(&self, address: usize, bytes: usize, write: bool) -> usize {
        let end = address.saturating_add(bytes);
        let mut at = address;
        while at < end {
            match self.page_of(at) {
                Some(page) if !self.table.allows(page, write) => break,
                Some(_) => at = (at / PAGE_BYTES + 1) * PAGE_BYTES,
                None if at < ARENA_BASE => at = end.min(ARENA_BASE),
                None => at = end,
            }
        }
        at.min(end) - address
    }

    /// Returns start and size of the first accessible range of the arena that ends behind an address.
    pub fn accessible_from(&self, address: usize) -> Option<(usize, usize)> {
        let reached = self.reached.load(Ordering::Acquire) * CHUNK_PAGES;
        let mut page = address.max(ARENA_BASE).wrapping_sub(ARENA_BASE) / PAGE_BYTES;
        let mut first = None;
        while page < reached {
            let chunk = page / CHUNK_PAGES;
            // Memory is accessible in chunks that were admitted only.
            let vacant = self.table.chunk(chunk).mode() == Mode::Vacant;
            match first {
                None if vacant => page = (chunk + 1) * CHUNK_PAGES,
                None => {
                    first = self.table.allows(page, false).then_some(page);
                    page += 1;
                }
                Some(_) if vacant || !self.table.allows(page, false) => break,
                Some(_) => page += 1,
            }
        }
        first.map(|first| (address_of(first), (page - first) * PAGE_BYTES))
    }

    /// Pins the next page, or in a native chunk all pages up to `end` or the end of the chunk. Returns the page after the
    /// pinned ones.
    fn pin_from(&self, page: usize, end: usize, write: bool) -> Result<usize, Errno> {
        let chunk = page / CHUNK_PAGES;
        loop {
            if !self.table.allows(page, write) {
                return Err(libc::EFAULT);
            }
            match self.table.chunk(chunk).mode() {
                Mode::Native => {
                    let end = end.min((chunk + 1) * CHUNK_PAGES);
                    if let Some(hole) = (page..end).find(|page| !self.table.allows(*page, write))
                        && hole == page
                    {
                        return Err(libc::EFAULT);
                    }
                    if self.table.chunk(chunk).pin() {
                        // A call makes one pin per native chunk, and dropping the pins counts chunks too.
                        match (page..end).find(|page| !self.table.allows(*page, write)) {
                            None => return Ok(end),
                            Some(_) => {
                                self.table.chunk(chunk).unpin();
                                return Err(libc::EFAULT);
                            }
                        }
                    }
                }
                Mode::Armed => {
                    let entry = self.table.load(page);
                    let ready = entry.is_present() && !(write && entry.is_protected());
                    if ready && entry.pins() == MAX_PINS {
                        return Ok(page + 1);
                    } else if ready {
                        let pinned = entry.with_pins(entry.pins() + 1);
                        if self.change(page, entry, pinned) {
                            return Ok(page + 1);
                        }
                    } else if self.answer(page, write) == Fault::NotMine {
                        return Err(libc::EFAULT);
                    }
                }
                _ => {
                    if self.answer(page, write) == Fault::NotMine {
                        return Err(libc::EFAULT);
                    }
                }
            }
        }
    }

    fn change(&self, page: usize, from: Entry, to: Entry) -> bool {
        self.table.entry(page).compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn unpin(&self, first: usize, end: usize) {
        let mut page = first;
        while page < end {
            let chunk = page / CHUNK_PAGES;
            let next = end.min((chunk + 1) * CHUNK_PAGES);
            // A chunk has pins of its own only while it is native.
            if self.table.chunk(chunk).unpin() {
                page = next;
                continue;
            }
            while page < next {
                let entry = self.table.load(page);
                if entry.is_busy() {
                    self.table.wait(page);
                } else if matches!(entry.pins(), 0 | MAX_PINS)
                    || self.change(page, entry, entry.with_pins(entry.pins() - 1))
                {
                    page += 1;
                }
            }
        }
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        if self.first < self.end {
            let _quiet = Quiet::new();
            self.pager.unpin(self.first, self.end);
        }
    }
}
