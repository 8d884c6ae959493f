// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mremap` for ranges of the arena.
//!
//! - **Flow** with `MREMAP_DONTUNMAP` the old range stays mapped and is empty afterwards. Otherwise: to shrink, the tail is unmapped; to grow, the pages after the range are used if they are free. Otherwise new
//!   pages are mapped and the contents are moved: from native to native chunks by the kernel, absent pages by copying the
//!   entry, present pages one by one. Into a chunk that stays native, because a system call works on another part of it,
//!   contents are copied
//! - **Order** both ranges are held while contents move. A page has left its old place before the entry of the new place says
//!   that it is there
//! - **Not here** mapping itself ([`super::space`])

use std::sync::atomic::Ordering;

use super::entry::{Entry, Tag};
use super::kernel::{self, Quiet};
use super::room::Room;
use super::seat::Page;
use super::shared::Owner;
use super::space::Pages;
use super::table::{CHUNK_PAGES, Mode};
use super::{Errno, Pager, address_of};
use crate::mapping::PAGE_BYTES;

/// Exit code if contents would be lost (`EX_OSERR`).
const LOST_EXIT_CODE: i32 = 71;
/// Number of failed attempts to arm a chunk after which the process ends.
const ATTEMPTS: u32 = 10_000;
const LOST: &str =
    "memlift: a page could not be moved by mremap; the job ends before its contents are lost\n";

impl Pager {
    /// `mremap` for a range in the arena. `new_address` is used only with `MREMAP_FIXED`, and lies in the arena.
    ///
    /// # Errors
    ///
    /// The errors of `mremap`.
    pub fn remap(
        &self,
        address: usize,
        bytes: usize,
        new_bytes: usize,
        flags: i32,
        new_address: usize,
    ) -> Result<usize, Errno> {
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let stays = flags & libc::MREMAP_DONTUNMAP != 0;
        if flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0
            || (fixed || stays) && flags & libc::MREMAP_MAYMOVE == 0
            || new_bytes == 0
            || stays && new_bytes.div_ceil(PAGE_BYTES) != bytes.div_ceil(PAGE_BYTES)
        {
            return Err(libc::EINVAL);
        }
        let old = self.range(address, bytes).ok_or(libc::EINVAL)?;
        let count = new_bytes.div_ceil(PAGE_BYTES);
        let _quiet = Quiet::new();
        let mut space = self.space.lock();
        let access = self.table.access(old.first);
        if access == 0 || !self.table.every_access(old.first, old.count, |each| each == access) {
            // The kernel, too, moves only one mapping per call.
            return Err(libc::EFAULT);
        }
        let prot = i32::from(access & 7);
        let target = if fixed {
            let new = self.range(new_address, new_bytes).ok_or(libc::ENOMEM)?;
            if new.first < old.end() && old.first < new.end() {
                return Err(libc::EINVAL);
            }
            self.unmap_held(&mut space, new)?;
            new.first
        } else if count <= old.count && !stays {
            if count < old.count {
                self.unmap_held(&mut space, Pages { first: old.first + count, count: old.count - count })?;
            }
            return Ok(address);
        } else {
            let tail = Pages { first: old.end(), count: count - old.count };
            if !stays && tail.end() <= self.table.pages() && self.none_mapped(tail) {
                self.commit(&mut space, tail, prot)?;
                return Ok(address);
            }
            if flags & libc::MREMAP_MAYMOVE == 0 {
                return Err(libc::ENOMEM);
            }
            self.find(&mut space, count).ok_or(libc::ENOMEM)?
        };
        let new = Pages { first: target, count };
        self.commit(&mut space, new, prot)?;
        let kept = Pages { count: old.count.min(count), ..old };
        if prot & libc::PROT_READ == 0 && !self.engine.revokes_access() {
            // Contents are read in place, so the pages must be readable.
            kernel::protect(kept.address(), kept.bytes(), prot | libc::PROT_READ)?;
        }
        self.transfer(kept, target, prot);
        if prot & libc::PROT_READ == 0 && !self.engine.revokes_access() {
            // The kernel moves the access with the contents, so set the right access again.
            kernel::protect(new.address(), new.bytes(), prot)?;
        }
        if stays {
            self.hold(old);
            self.discard(old);
            self.let_go(old, |_, entry| entry);
        } else {
            self.unmap_held(&mut space, old)?;
        }
        Ok(address_of(target))
    }

    /// Moves contents to pages that were just mapped. The caller holds the space lock.
    fn transfer(&self, old: Pages, target: usize, prot: i32) {
        let congruent = old.first % CHUNK_PAGES == target % CHUNK_PAGES;
        for (chunk, part) in old.by_chunk() {
            let to = target + (part.first - old.first);
            let mode = self.settled_mode(chunk);
            if mode == Mode::Guarded
                || mode == Mode::Vacant
                || mode == Mode::Native && congruent && self.move_native(part, to)
            {
                continue;
            }
            for page in part.first..part.end() {
                let to = to + (page - part.first);
                if self.arm_target(to / CHUNK_PAGES) {
                    self.move_page(page, to);
                } else {
                    self.copy_page(page, to, prot);
                    self.table.chunk(to / CHUNK_PAGES).unpin();
                }
            }
        }
    }

    fn settled_mode(&self, chunk: usize) -> Mode {
        loop {
            match self.table.chunk(chunk).mode() {
                Mode::Busy => self.table.wait_chunk(chunk),
                mode => return mode,
            }
        }
    }

    /// Moves the pages of one native chunk to a guarded or native one with the kernel's `mremap`. Returns false if that is
    /// not possible.
    fn move_native(&self, part: Pages, to: usize) -> bool {
        let target = to / CHUNK_PAGES;
        let charge = self.native_charge(target);
        let chunk = part.first / CHUNK_PAGES;
        if self.settled_mode(target) == Mode::Guarded && self.job.try_charge(charge, 0) {
            if !self.table.chunk(target).claim(Mode::Guarded, false) {
                self.job.uncharge(charge);
                return false;
            }
            if self.uncover(target).is_err() {
                self.table.settle(target, Mode::Guarded);
                self.job.uncharge(charge);
                return false;
            }
            self.job.slacken(charge);
            self.now_native(target);
            self.table.settle(target, Mode::Native);
        }
        if !self.table.chunk(target).claim(Mode::Native, true) {
            return false;
        }
        let claimed = self.table.chunk(chunk).claim(Mode::Native, true);
        let moved = claimed && kernel::relocate(part.address(), part.bytes(), address_of(to)).is_ok();
        if claimed {
            self.table.settle(chunk, Mode::Native);
        }
        self.table.settle(target, Mode::Native);
        moved
    }

    /// Arms a new target chunk, so that single pages can be put into it. If system calls have pinned the chunk, it stays
    /// native; then this adds a pin and returns false.
    fn arm_target(&self, chunk: usize) -> bool {
        let mut attempts = 0;
        while matches!(self.settled_mode(chunk), Mode::Guarded | Mode::Native) {
            let mut seat = self.seats.take();
            if !self.charge_tables(&mut seat, PAGE_BYTES) {
                continue;
            }
            if self.table.chunk(chunk).claim(Mode::Guarded, false) {
                self.table.open(chunk);
                self.table.settle(chunk, Mode::Armed);
                return true;
            }
            self.counts.tables.fetch_sub(PAGE_BYTES, Ordering::Relaxed);
            if self.arm(chunk).is_none() {
                self.job.uncharge(PAGE_BYTES);
                let record = self.table.chunk(chunk);
                if record.pins() > 0 && record.pin() {
                    return false;
                }
                attempts += 1;
                if attempts > ATTEMPTS {
                    kernel::end(LOST, LOST_EXIT_CODE);
                }
                std::thread::yield_now();
            }
        }
        true
    }

    /// Pins a page's chunk so that it stays native, and returns true; returns false if the chunk is armed, and `None` if it
    /// has no contents.
    fn pin_native(&self, page: usize) -> Option<bool> {
        loop {
            if self.table.chunk(page / CHUNK_PAGES).pin() {
                return Some(true);
            }
            match self.settled_mode(page / CHUNK_PAGES) {
                Mode::Armed => return Some(false),
                Mode::Native => {}
                _ => return None,
            }
        }
    }

    /// Copies one page's contents to a page that was just mapped, in a native chunk that this thread has pinned.
    fn copy_page(&self, page: usize, to: usize, prot: i32) {
        let mut seat = self.seats.take();
        let Some(native) = self.pin_native(page) else { return };
        let source = if native { Entry::new(Tag::Dirty, 0) } else { self.table.claim_now(page) };
        if source.tag() != Tag::Empty {
            if !source.is_present() {
                self.unpack(&mut seat, &[page], &[source]);
            }
            let (_, _, room) = seat.parts();
            let contents: *const Page =
                if source.is_present() { self.contents(page, &mut room[0]) } else { &raw const room[0] };
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let opened =
                prot & access == access || kernel::protect(address_of(to), PAGE_BYTES, prot | access).is_ok();
            if !opened {
                kernel::end(LOST, LOST_EXIT_CODE);
            }
            // SAFETY: the contents are readable, and stay present because of their claim or of their chunk's pin. The target
            // is native because of its pin, was made writable, and belongs to the caller alone.
            unsafe { (address_of(to) as *mut Page).copy_from_nonoverlapping(contents, 1) };
            if prot & access != access {
                let _ = kernel::protect(address_of(to), PAGE_BYTES, prot);
            }
        }
        if native {
            self.table.chunk(page / CHUNK_PAGES).unpin();
        } else {
            self.empty_and_publish(page, source);
        }
    }

    /// Drops the memory of a claimed, present page, and gives its charge back.
    pub(super) fn give_up(&self, page: usize) {
        self.drop_memory(page, None);
    }

    /// Does the same as [`Pager::give_up`] for a page whose memory is in place, or was moved to the slot and index in
    /// `staged`.
    pub(super) fn drop_memory(&self, page: usize, staged: Option<(usize, u8)>) {
        let shared = staged.is_none() && self.forked() && self.owner(page) != Owner::Alone;
        match staged {
            Some((slot, index)) => kernel::drop_range(slot + usize::from(index) * PAGE_BYTES, PAGE_BYTES),
            None => self.drop_frozen(page),
        }
        self.table.chunk(page / CHUNK_PAGES).present.fetch_sub(1, Ordering::AcqRel);
        self.counts.present.fetch_sub(1, Ordering::Relaxed);
        if shared {
            self.job.unshare(PAGE_BYTES);
        } else {
            self.job.uncharge(PAGE_BYTES);
        }
    }

    /// Gives up the memory and the copy of a claimed page whose contents were moved elsewhere, and publishes it as empty.
    fn empty_and_publish(&self, page: usize, source: Entry) {
        if source.is_present() {
            self.give_up(page);
        }
        self.free_copy(source);
        self.table.publish(page, Entry::EMPTY.with_pins(source.pins()));
    }

    /// Claims a page that was just mapped, and drops its memory: arming may have counted it as present with its neighbours.
    fn claim_absent(&self, page: usize) -> Entry {
        let entry = self.table.claim_now(page);
        if !entry.is_present() {
            return entry;
        }
        self.give_up(page);
        Entry::EMPTY.with_pins(entry.pins())
    }

    /// Moves one page's contents to a page that was just mapped.
    fn move_page(&self, page: usize, to: usize) {
        let mut seat = self.seats.take();
        // The chunk must stay native meanwhile; otherwise making room might arm it and evict its pages.
        let Some(native) = self.pin_native(page) else { return };
        let source = if native { Entry::new(Tag::Dirty, 0) } else { self.table.claim_now(page) };
        // The spill file tags each page with its number, so a spilled page must be read here; its slot cannot be passed on.
        let spilled = source.tag() == Tag::Spilled;
        if !source.is_present() && !spilled {
            let target = self.claim_absent(to);
            self.table.publish(to, if source.tag() == Tag::Empty { target } else { source.with_heat(0) });
            self.table.publish(page, if source.tag() == Tag::Empty { source } else { Entry::EMPTY });
            return;
        }
        while self.make_room(&mut seat, PAGE_BYTES, true) != Room::Made {}
        let target = self.claim_absent(to);
        if spilled {
            self.unpack(&mut seat, &[page], &[source]);
        }
        let (_, _, room) = seat.parts();
        // The source is present (or native) and `remap` made it readable, or its contents lie in the seat.
        let contents: *const Page =
            if spilled { &raw const room[0] } else { self.contents(page, &mut room[0]) };
        // SAFETY: the contents are readable, in the source or in the seat; the target is absent, and this thread has claimed
        // it.
        let progress = unsafe { self.place(to, contents, 1, false) };
        if progress.bytes == 0 {
            let line = match progress.error {
                libc::EEXIST => {
                    "memlift: mremap: the page is there already; the job ends before contents are lost\n"
                }
                libc::EFAULT => {
                    "memlift: mremap: the old page cannot be read; the job ends before contents are lost\n"
                }
                libc::ENOENT => {
                    "memlift: mremap: the new page is not the arena's; the job ends before contents are lost\n"
                }
                _ => LOST,
            };
            kernel::end(line, LOST_EXIT_CODE);
        }
        self.table.chunk(to / CHUNK_PAGES).present.fetch_add(1, Ordering::AcqRel);
        self.counts.present.fetch_add(1, Ordering::Relaxed);
        self.table.publish(to, Entry::new(Tag::Dirty, 0).with_heat(1).with_pins(target.pins()));
        if native {
            self.table.chunk(page / CHUNK_PAGES).unpin();
        } else {
            self.empty_and_publish(page, source);
        }
    }
}
