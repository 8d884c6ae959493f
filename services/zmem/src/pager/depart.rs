// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moves pages out of the arena, so that a page that the kernel or a device has pinned is not evicted.
//!
//! - **Flow** [`Pager::depart`] moves present, busy pages to the seat's staging slot (UFFDIO_MOVE) ──▶ they are packed or
//!   written from there ──▶ the slot is dropped, or [`Pager::bring_back`]
//! - **Order** a page is moved before it is read. The kernel refuses to move a page that is pinned for a device (EBUSY), and
//!   a moved page cannot be pinned, since it is mapped only in the slot. So no later write changes the bytes that are packed
//! - **Shared** a page that a fork shares is not moved either. It cannot be pinned, because pinning gives the process a page
//!   of its own. `/proc/self/pagemap` tells shared pages from pinned ones. A shared page is frozen and packed in place, and
//!   so is a page that the program may not write, which the kernel does not move
//! - **Not here** kernels without MOVE: all pages are frozen in place, and the preloaded library refuses a process whose pins
//!   cannot be known

use std::fmt::Write;
use std::sync::atomic::{AtomicU8, Ordering};

use super::entry::{Entry, Tag};
use super::seat::Page;
use super::shared::Owner;
use super::{Pager, address_of, kernel};
use crate::line::Line;
use crate::mapping::PAGE_BYTES;
use crate::uffd::Errno;

/// Attempts to move a page that the kernel is busy with for a moment (it may be splitting a huge page, or holding a lock).
const ATTEMPTS: u32 = 4;

/// Exit code when the kernel refuses a call that must succeed (`EX_OSERR`).
const KERNEL_EXIT_CODE: i32 = 71;
/// Exit code if a page's contents are lost (`EX_SOFTWARE`).
const LOST_EXIT_CODE: i32 = 70;

/// The way in which a page of a batch leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// The page is packed in place, and then dropped.
    InPlace,
    /// The page was moved to the staging slot, to this index.
    Staged(u8),
    /// The page does not leave, because it is pinned.
    Pinned,
}

impl Pager {
    /// Moves `ways.len()` present pages from `page` on, which this thread has made busy, to the staging slot from index
    /// `next` on. Sets the way in which each of them leaves. There may be at most as many pages as the slot has room for. If
    /// a page had to be made writable, its entry in `old` becomes dirty.
    pub(super) fn depart(
        &self,
        staging: Option<usize>,
        page: usize,
        next: &mut usize,
        old: &mut [Entry],
        ways: &mut [Way],
    ) {
        ways.fill(Way::InPlace);
        let Some(slot) = staging else { return };
        let pages = ways.len();
        let movable = |page: usize| {
            let access = i32::from(self.table.access(page)) & 7;
            access == libc::PROT_READ | libc::PROT_WRITE
        };
        let mut at = 0;
        while at < pages {
            if !movable(page + at) {
                at += 1;
                continue;
            }
            let run = (at..pages).take_while(|at| movable(page + at)).count();
            let moved = self.move_out(slot + *next * PAGE_BYTES, page + at, run);
            for index in at..at + moved {
                ways[index] = Way::Staged(*next as u8);
                old[index] = old[index].unshared();
                *next += 1;
            }
            at += moved;
            if moved < run {
                ways[at] = self.depart_alone(slot, page + at, next, &mut old[at]);
                at += 1;
            }
        }
    }

    /// Moves pages as far as the kernel allows. Returns the number of pages moved.
    fn move_out(&self, target: usize, page: usize, pages: usize) -> usize {
        let (mut done, mut attempts, mut window) = (0, 0, pages);
        while done < pages {
            let (to, from) = (target + done * PAGE_BYTES, address_of(page + done));
            // SAFETY: this thread has made the pages busy; the slot belongs to the seat, and is empty from `target` on.
            let step = unsafe { self.engine.uffd.relocate(to, from, window.min(pages - done) * PAGE_BYTES) };
            done += step.bytes / PAGE_BYTES;
            match step.error {
                _ if step.bytes > 0 => attempts = 0,
                // The run may extend over mappings that the kernel keeps apart: go on page by page.
                libc::EINVAL | libc::ENOENT if window > 1 => window = 1,
                libc::EAGAIN | libc::ENOMEM if attempts < ATTEMPTS => attempts += 1,
                _ => break,
            }
        }
        done
    }

    /// Decides the way of a page that the kernel did not move: it is shared, or pinned, or was shared before.
    fn depart_alone(&self, slot: usize, page: usize, next: &mut usize, old: &mut Entry) -> Way {
        match self.owner(page) {
            Owner::Shared => return Way::InPlace,
            Owner::None => Pager::end_gone(),
            Owner::Unknown => return Way::Pinned,
            Owner::Alone => {}
        }
        // If the other process of a fork has dropped the page, the kernel gives it to this process alone only at the next
        // write.
        if old.is_protected() {
            if self.thaw(page, 1, true).is_err() {
                return Way::Pinned;
            }
            if old.tag() == Tag::Clean {
                let clean = std::mem::replace(old, Entry::new(Tag::Dirty, 0).with_heat(old.heat()));
                self.table.park(page, *old);
                self.free_copy(clean);
            }
            *old = old.unshared();
        }
        // SAFETY: the page is present and the program may write it. A byte is exchanged for itself atomically, so no other
        // write is lost.
        let byte = unsafe { &*(address_of(page) as *const AtomicU8) };
        let value = byte.load(Ordering::Relaxed);
        // An atomic addition of zero would be compiled to a read.
        let _ = byte.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
        let moved = self.move_out(slot + *next * PAGE_BYTES, page, 1);
        if moved == 0 {
            return Way::Pinned;
        }
        *next += 1;
        Way::Staged((*next - 1) as u8)
    }

    /// Returns a page that lies in the staging slot.
    pub(super) fn staged(&self, slot: usize, index: u8) -> &Page {
        // SAFETY: the page was moved there and the slot stays mapped. The slot's seat belongs to the caller, which neither
        // drops nor moves the page while it is borrowed.
        unsafe { &*((slot + usize::from(index) * PAGE_BYTES) as *const Page) }
    }

    /// Moves a page from the staging slot back to its place, writable. That place is absent, and this thread has made it
    /// busy.
    pub(super) fn bring_back(&self, slot: usize, index: u8, page: usize) {
        let from = slot + usize::from(index) * PAGE_BYTES;
        let mut attempts = 0;
        loop {
            // SAFETY: the page in the slot belongs to the seat; the target is busy and absent.
            let step = unsafe { self.engine.uffd.relocate(address_of(page), from, PAGE_BYTES) };
            if step.bytes > 0 {
                return;
            }
            attempts += 1;
            if step.error != libc::EAGAIN || attempts > ATTEMPTS {
                break;
            }
            std::thread::yield_now();
        }
        // SAFETY: the page in the slot is plain readable memory; the target is busy and absent.
        let step = unsafe { self.place(page, from as *const Page, 1, false) };
        if step.bytes == 0 {
            self.end_refused("give a page back", step.error);
        }
        kernel::drop_range(from, PAGE_BYTES);
    }

    /// Ends the process with a message, because a page is gone that must be present. If a thread touched it, the fault would be
    /// answered by the page's holder, which is this thread.
    pub(super) fn end_gone() -> ! {
        kernel::end(
            "memlift: a page of the arena is gone that should be there; the job ends before it reads zeros for data\n",
            LOST_EXIT_CODE,
        )
    }

    /// Ends the process with a message, because the kernel refused a call that must succeed.
    pub(super) fn end_refused(&self, act: &str, error: Errno) -> ! {
        let advice = match error {
            libc::EPERM | libc::EACCES | libc::ENOSYS => {
                "the program has a system-call filter of its own; run it without memlift, or with the kernel's backend"
            }
            libc::ENOMEM => "the machine, or its memory cgroup, has no memory left",
            _ => "its memory cannot be kept under the budget",
        };
        let mut line = Line::new();
        let _ =
            writeln!(line, "memlift: the kernel refused to {act} (error {error}): {advice}; the job ends");
        line.write();
        kernel::end("", KERNEL_EXIT_CODE)
    }
}
