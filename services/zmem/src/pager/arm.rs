// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of state: the process from dormant to active, and a chunk from native to armed.
//!
//! - **Flow** [`Pager::activate`]: run the hook ──▶ each native chunk becomes guarded if nothing is present in it; otherwise
//!   it stays native until the clock hand reaches it and [`Pager::arm`] registers it, splits its huge pages, counts its
//!   present pages and gives back the charge of the others
//! - **Order** a chunk is busy while its mode changes, and threads that fault in it wait. It is registered before its present
//!   pages are read, so that a page that appears meanwhile is either counted or faults
//! - **Not here** the choice of the chunk and the moment ([`super::evict`])

use std::sync::atomic::Ordering;

use super::engine::UNIT;
use super::entry::{Entry, Tag};
use super::kernel::{self, Quiet};
use super::table::{CHUNK_BYTES, CHUNK_PAGES, FIRST_CHUNKS, Mode};
use super::{Pager, address_of};
use crate::mapping::PAGE_BYTES;

/// Charge for each of the chunks of a small process, bytes.
const FIRST_CHARGE_BYTES: usize = 512 << 10;

impl Pager {
    /// Makes a dormant process active: runs the hook of [`Pager::on_activate`], then checks each chunk. Does nothing if it is
    /// active.
    pub fn activate(&self) {
        if self.active() {
            return;
        }
        let _quiet = Quiet::new();
        let _space = self.space.lock();
        self.activate_held();
    }

    /// Does the same as [`Pager::activate`] for a caller that holds the space lock.
    pub(super) fn activate_held(&self) {
        if self.active() {
            return;
        }
        let hook = self.hook.load(Ordering::Acquire);
        if !hook.is_null() {
            // SAFETY: the only non-null values are functions of this type, stored by `on_activate`.
            let hook = unsafe { std::mem::transmute::<*mut (), fn()>(hook) };
            hook();
        }
        let part = self.uncharged_part();
        self.job.charge_ahead(part);
        self.no_longer_small(part);
        self.active.store(true, Ordering::Release);
        self.start_float();
        for chunk in 0..self.reached.load(Ordering::Acquire) {
            if self.table.chunk(chunk).mode() == Mode::Native {
                self.guard(chunk);
            }
        }
        self.job.set_active();
        self.job.activate();
        if self.forked() {
            self.arm_all();
        }
    }

    /// Returns the bytes that a native chunk is charged with: all of it, because its memory is touched without a fault. The chunks of a
    /// small process are charged with a part ([`super::Options::is_whole`]); what they hold beyond that is measured, as stacks and
    /// libraries are.
    pub(super) fn native_charge(&self, chunk: usize) -> usize {
        let is_part = chunk < FIRST_CHUNKS && self.is_small.load(Ordering::Acquire);
        if is_part { FIRST_CHARGE_BYTES } else { CHUNK_BYTES }
    }

    /// Returns the part of native chunks that is not charged, bytes. The caller holds the space lock.
    pub(super) fn uncharged_part(&self) -> usize {
        let is_native = |chunk: &usize| self.table.chunk(*chunk).mode() == Mode::Native;
        (0..FIRST_CHUNKS).filter(is_native).map(|chunk| CHUNK_BYTES - self.native_charge(chunk)).sum()
    }

    /// Notes that the process is not small any more. The caller holds the space lock, and has charged the [`Pager::uncharged_part`].
    pub(super) fn no_longer_small(&self, part: usize) {
        if self.is_small.swap(false, Ordering::AcqRel) {
            self.counts.native.fetch_add(part, Ordering::Relaxed);
        }
    }

    /// Counts a chunk that becomes native, for which the caller has charged [`Pager::native_charge`].
    pub(super) fn now_native(&self, chunk: usize) {
        self.counts.native.fetch_add(self.native_charge(chunk), Ordering::Relaxed);
    }

    /// Counts a chunk that is no longer native. Returns the bytes that it is charged with, for which the caller has to account.
    pub(super) fn no_longer_native(&self, chunk: usize) -> usize {
        let charged = self.native_charge(chunk);
        self.counts.native.fetch_sub(charged, Ordering::Relaxed);
        charged
    }

    /// Makes a native chunk guarded if nothing is present in it.
    fn guard(&self, chunk: usize) {
        if !self.table.chunk(chunk).claim(Mode::Native, true) {
            return;
        }
        let _seat = self.seats.take();
        let address = address_of(chunk * CHUNK_PAGES);
        let mut present = [0u8; CHUNK_PAGES];
        let is_empty = |present: &mut [u8; CHUNK_PAGES]| {
            kernel::mincore(address, CHUNK_BYTES, present).is_ok() && present.iter().all(|page| page & 1 == 0)
        };
        let mode = if is_empty(&mut present) && self.cover(chunk, 1).is_ok() {
            if is_empty(&mut present) {
                self.job.uncharge(self.no_longer_native(chunk));
                Mode::Guarded
            } else {
                self.uncover_again(chunk);
                Mode::Native
            }
        } else {
            Mode::Native
        };
        self.table.settle(chunk, mode);
    }

    /// Undoes a `cover` by this thread. If that fails, the job ends, because faults on pages of a native chunk would not be
    /// answered.
    fn uncover_again(&self, chunk: usize) {
        if let Err(error) = self.uncover(chunk) {
            self.end_refused("give memory back to the program", error);
        }
    }

    /// Keeps the kernel from joining an armed chunk's pages to a huge page, whose memory would stay until all of it is
    /// dropped. A kernel without huge pages refuses the advice, which is fine.
    pub(super) fn refuse_huge_pages(&self, chunk: usize) {
        let _ = kernel::advise(address_of(chunk * CHUNK_PAGES), CHUNK_BYTES, libc::MADV_NOHUGEPAGE);
    }

    /// Arms a native chunk, for which the caller has charged a page of table. Returns the bytes that came back to the job, or
    /// `None` if the chunk stays native; the caller then gives the charge of that page back.
    pub(super) fn arm(&self, chunk: usize) -> Option<usize> {
        let record = self.table.chunk(chunk);
        if !record.claim(Mode::Native, true) {
            return None;
        }
        let address = address_of(chunk * CHUNK_PAGES);
        if let Err(error) = self.cover(chunk, 1) {
            if !matches!(error, libc::ENOMEM | libc::EAGAIN) {
                self.end_refused("watch the program's memory", error);
            }
            self.table.settle(chunk, Mode::Native);
            return None;
        }
        self.refuse_huge_pages(chunk);
        // Cold advice for part of a huge page splits it; otherwise its memory would stay until all of it is dropped.
        let _ = kernel::advise(address, PAGE_BYTES, libc::MADV_COLD);
        let mut resident = [0u8; CHUNK_PAGES];
        if kernel::mincore(address, CHUNK_BYTES, &mut resident).is_err() {
            self.uncover_again(chunk);
            self.table.settle(chunk, Mode::Native);
            return None;
        }
        if self.engine.revokes_access() {
            self.whole_units(chunk, &mut resident);
        }
        // The first write to a page that a fork shares makes a copy, so it must fault.
        let shared = self.forked();
        let (tag, mut present) = (if shared { Tag::Shared } else { Tag::Dirty }, 0);
        self.table.open(chunk);
        for (index, resident) in resident.iter().enumerate() {
            if resident & 1 != 0 {
                self.table.entry(chunk * CHUNK_PAGES + index).store(Entry::new(tag, 0).0, Ordering::Relaxed);
                present += 1;
            }
        }
        if self.engine.revokes_access() || shared {
            let mut page = 0;
            while page < CHUNK_PAGES {
                let first = page;
                while page < CHUNK_PAGES && resident[page] & 1 == resident[first] & 1 {
                    page += 1;
                }
                if resident[first] & 1 == 0 {
                    continue;
                }
                let (first, pages) = (chunk * CHUNK_PAGES + first, page - first);
                if !shared {
                    self.thaw_again(first, pages, true);
                } else if let Err(error) = self.freeze(first, pages) {
                    self.end_refused("watch the program's memory", error);
                }
            }
        }
        record.present.store(present as u32, Ordering::Release);
        self.counts.present.fetch_add(present, Ordering::Relaxed);
        let charged = self.no_longer_native(chunk);
        self.counts.tables.fetch_add(PAGE_BYTES, Ordering::Relaxed);
        self.table.settle(chunk, Mode::Armed);
        let held = present * PAGE_BYTES;
        self.job.uncharge(charged.saturating_sub(held));
        self.job.charge_ahead(held.saturating_sub(charged));
        Some(charged.saturating_sub(held))
    }

    /// If one page of a unit is present, counts all its mapped pages as present, which needs fewer mappings. The others read
    /// as zeros.
    fn whole_units(&self, chunk: usize, resident: &mut [u8; CHUNK_PAGES]) {
        for (unit, pages) in resident.chunks_exact_mut(UNIT).enumerate() {
            if pages.iter().any(|page| *page & 1 != 0) {
                for (index, page) in pages.iter_mut().enumerate() {
                    *page |= u8::from(self.table.is_mapped(chunk * CHUNK_PAGES + unit * UNIT + index));
                }
            }
        }
    }

    /// Returns the bytes of native chunks that are present according to the kernel.
    pub(super) fn native_present(&self) -> usize {
        let mut bytes = 0;
        if self.native_bytes() == 0 {
            return 0;
        }
        let mut resident = [0u8; CHUNK_PAGES];
        for chunk in 0..self.reached.load(Ordering::Acquire) {
            if self.table.chunk(chunk).mode() == Mode::Native
                && kernel::mincore(address_of(chunk * CHUNK_PAGES), CHUNK_BYTES, &mut resident).is_ok()
            {
                bytes += resident.iter().filter(|page| **page & 1 != 0).count() * PAGE_BYTES;
            }
        }
        bytes
    }
}
