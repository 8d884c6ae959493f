// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that processes share since a fork: a copy of one is charged before the kernel makes it.
//!
//! - **Flow** before a fork, or when room becomes scarce after it, [`Pager::share`]: native chunks are armed, present pages
//!   write-protected ──fork──▶ both sides: the first write to one faults ──▶ room is made ──▶ [`crate::block::Job::unshare`] ──▶
//!   the kernel copies
//! - **Order** a page that leaves this process stays in the other one: its charge goes to what lies outside the arenas, so that
//!   `unused` does not rise by memory that nobody freed. When two processes do so at once it is charged twice, until the
//!   watcher's next look
//! - **Owner** `/proc/self/pagemap` says whether this process alone has a page; where it cannot be read, others have it too
//! - **Not with** `mprotect` alone: there the watcher sees all copies one look late
//! - **Not here** the fork itself ([`super::fork`]); pages outside the arena, whose copies the watcher sees one look late

use std::sync::atomic::Ordering;

use super::entry::{Entry, Tag};
use super::seat::CLUSTER;
use super::space::Pages;
use super::table::{CHUNK_PAGES, Mode};
use super::{Pager, Quiet, address_of, kernel};
use crate::mapping::PAGE_BYTES;

/// Processes that have a page, as `/proc/self/pagemap` tells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This process alone.
    Alone,
    /// Other processes too.
    Shared,
    /// The file cannot be read.
    Unknown,
}

/// The kernel's mark on a page that one process has.
const EXCLUSIVE: u64 = 1 << 56;

impl Owner {
    fn of(word: Option<u64>) -> Owner {
        match word {
            Some(word) if word & EXCLUSIVE == 0 => Owner::Shared,
            Some(_) => Owner::Alone,
            None => Owner::Unknown,
        }
    }
}

/// Words of `/proc/self/pagemap` for neighbouring pages: one read for many.
pub(super) struct Owners {
    first: usize,
    words: [u64; CLUSTER],
}

impl Owners {
    pub const fn new() -> Owners {
        Owners { first: usize::MAX, words: [0; CLUSTER] }
    }

    /// The next question is asked anew.
    pub fn forget(&mut self) {
        self.first = usize::MAX;
    }
}

impl Pager {
    /// Returns true if this process alone has the page, as it was when a page beside it was first asked for.
    pub(super) fn is_alone(&self, owners: &mut Owners, page: usize) -> bool {
        let first = page / CLUSTER * CLUSTER;
        if owners.first != first {
            owners.first = first;
            self.engine.pagemap.words(address_of(first), &mut owners.words);
        }
        owners.words[page - first] & EXCLUSIVE != 0
    }

    /// Moves the charge of the store's pages that a fork no longer shares to where it belongs.
    pub(super) fn settle_store(&self) {
        self.job.unshare(self.store.take_unshared());
    }

    /// Returns true if processes of a fork may share pages with this one.
    pub(super) fn forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// After a fork: protects what is shared once there is no room for copies of it; forgets the fork once no other process of
    /// the job is left.
    pub(super) fn tend_shared(&self) {
        if !self.forked() {
            return;
        }
        // Asked only after somebody joined or left: until the child has joined, this process only looks alone.
        let membership = self.job.ledger().membership();
        let changed = self.membership.swap(membership, Ordering::Relaxed) != membership;
        if changed && self.job.is_alone() {
            self.forked.store(false, Ordering::Relaxed);
            self.store.set_shared(false);
            self.protected.store(false, Ordering::Relaxed);
        } else if !self.protected.load(Ordering::Relaxed) && self.job.is_near(0) {
            let _quiet = Quiet::new();
            let _space = self.space.lock();
            self.seats.close();
            let evict = self.evict.lock();
            self.share();
            drop(evict);
            // SAFETY: this thread closed them.
            unsafe { self.seats.open() };
        }
    }

    pub(super) fn owner(&self, page: usize) -> Owner {
        Owner::of(self.engine.pagemap.word(address_of(page)))
    }

    /// Number of these pages that others have too. None unless there was a fork.
    pub(super) fn shared_among(&self, pages: Pages) -> usize {
        let (mut shared, mut words) = (0, [0; CLUSTER]);
        if !self.forked() {
            return shared;
        }
        for first in (pages.first..pages.end()).step_by(CLUSTER) {
            let words = &mut words[..CLUSTER.min(pages.end() - first)];
            self.engine.pagemap.words(address_of(first), words);
            let present = |page: usize| self.table.parked(page).is_present();
            shared += (first..)
                .zip(&*words)
                .filter(|(page, word)| **word & EXCLUSIVE == 0 && present(*page))
                .count();
        }
        shared
    }

    /// Notes a fork that is about to happen. Where there is no room for copies of all that it will share, that is write-protected.
    pub(super) fn prepare_fork(&self) {
        // Without marks of the kernel's, pages beside each other would become mappings of their own.
        if self.engine.hides() {
            return;
        }
        self.forked.store(true, Ordering::Relaxed);
        self.membership.store(self.job.ledger().membership(), Ordering::Relaxed);
        self.protected.store(false, Ordering::Relaxed);
        self.store.set_shared(true);
        if self.active() && self.job.is_near(self.job.charged()) {
            self.share();
        }
    }

    /// Write-protects every present page, so that its first write after the fork is a fault. Pages that a system call of
    /// another thread has pinned are left: it may be writing to them. The caller holds the space lock; nobody has a seat.
    pub(super) fn share(&self) {
        self.protected.store(true, Ordering::Relaxed);
        for chunk in 0..self.reached.load(Ordering::Acquire) {
            match self.table.chunk(chunk).mode() {
                Mode::Native => self.arm_charged(chunk),
                Mode::Armed => self.share_chunk(chunk),
                _ => {}
            }
        }
    }

    /// Arms every native chunk.
    pub(super) fn arm_all(&self) {
        for chunk in 0..self.reached.load(Ordering::Acquire) {
            if self.table.chunk(chunk).mode() == Mode::Native {
                self.arm_charged(chunk);
            }
        }
    }

    fn arm_charged(&self, chunk: usize) {
        // The table's page; arming gives more back, but for a chunk that is full.
        self.job.charge_ahead(PAGE_BYTES);
        if self.arm(chunk).is_none() {
            self.job.uncharge(PAGE_BYTES);
        }
    }

    /// Write-protects the present pages of an armed chunk that no system call works on.
    fn share_chunk(&self, chunk: usize) {
        for page in chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES {
            loop {
                let entry = self.table.load(page);
                if entry.tag() != Tag::Dirty || entry.pins() > 0 {
                    break;
                }
                let word = self.table.entry(page);
                let shared =
                    word.compare_exchange(entry.0, entry.shared().0, Ordering::AcqRel, Ordering::Relaxed);
                if shared.is_ok() {
                    break;
                }
            }
        }
        self.protect_inherited(chunk);
    }

    /// Write-protects the pages of an armed chunk whose entries say so: the child of a fork has no marks of the kernel's.
    pub(super) fn protect_inherited(&self, chunk: usize) {
        let (first, end) = (chunk * CHUNK_PAGES, (chunk + 1) * CHUNK_PAGES);
        let protected = |page: usize| self.table.load(page).is_protected();
        let mut page = first;
        while page < end {
            let start = page;
            while page < end && protected(page) {
                page += 1;
            }
            if page > start && self.freeze(start, page - start).is_err() {
                kernel::end(
                    "memlift: memory could not be protected for a fork; the process ends before a write is lost\n",
                    NO_PROTECTION_EXIT_CODE,
                );
            }
            page += usize::from(page == start);
        }
    }

    /// Claims the pages after a claimed one that were shared and are this process's alone by now. Returns their number with the
    /// first one, and sets their entries.
    pub(super) fn claim_unshared(&self, page: usize, old: &mut [Entry; CLUSTER]) -> usize {
        let most = CLUSTER.min(CHUNK_PAGES - page % CHUNK_PAGES);
        let mut words = [0; CLUSTER];
        self.engine.pagemap.words(address_of(page), &mut words[..most]);
        let mut pages = 1;
        while pages < most && words[pages] & EXCLUSIVE != 0 {
            let entry = self.table.load(page + pages);
            if entry.tag() != Tag::Shared || !self.table.claim(page + pages, entry) {
                break;
            }
            old[pages] = entry;
            pages += 1;
        }
        pages
    }
}

/// Exit code of a process whose memory cannot be protected (`EX_OSERR`).
const NO_PROTECTION_EXIT_CODE: i32 = 71;
