// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that processes share since a fork: the copy of such a page is charged before the kernel makes it.
//!
//! - **Flow** before a fork, or when room becomes scarce after it, [`Pager::share`] arms native chunks and write-protects
//!   present pages ──fork──▶ in both processes the first write to such a page faults ──▶ room is made ──▶
//!   [`crate::block::Job::unshare`] ──▶ the kernel copies the page
//! - **Order** a page that leaves this process stays in the other one. Its charge is moved to `outside`, so that `unused`
//!   does not rise by memory that was not freed. If both processes drop the page at the same time it is charged twice, until
//!   the watcher's next look
//! - **Owner** `/proc/self/pagemap` says if this process alone has a page; if it cannot be read, the page counts as shared
//! - **Not with** the `mprotect` mechanism: there the watcher counts all copies at its next look
//! - **Not here** the fork itself ([`super::fork`]); pages outside the arena, whose copies the watcher counts at its next
//!   look

use std::sync::atomic::Ordering;

use super::entry::{Entry, Tag};
use super::seat::CLUSTER;
use super::space::Pages;
use super::table::{CHUNK_PAGES, Mode};
use super::{Pager, Quiet, address_of, kernel};
use crate::mapping::PAGE_BYTES;

/// The processes that have a page, according to `/proc/self/pagemap`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This process alone.
    Alone,
    /// Other processes too.
    Shared,
    /// No process: there is no page.
    None,
    /// The file cannot be read.
    Unknown,
}

/// The kernel's mark for a page that only one process has.
const EXCLUSIVE: u64 = 1 << 56;
/// The kernel's marks for a page that is in memory, and for one that is in swap or on its way to another place.
const THERE: u64 = 3 << 62;

impl Owner {
    fn of(word: Option<u64>) -> Owner {
        match word {
            Some(word) if word & THERE == 0 => Owner::None,
            Some(word) if word & EXCLUSIVE == 0 => Owner::Shared,
            Some(_) => Owner::Alone,
            None => Owner::Unknown,
        }
    }
}

/// Words of `/proc/self/pagemap` for neighbouring pages, which one read fetches together.
pub(super) struct Owners {
    first: usize,
    words: [u64; CLUSTER],
}

impl Owners {
    pub const fn new() -> Owners {
        Owners { first: usize::MAX, words: [0; CLUSTER] }
    }

    /// Forgets the words, so that they are read again for the next page.
    pub fn forget(&mut self) {
        self.first = usize::MAX;
    }
}

impl Pager {
    /// Returns true if this process alone has the page. The words of neighbouring pages are read together, so this may be
    /// slightly old.
    pub(super) fn is_alone(&self, owners: &mut Owners, page: usize) -> bool {
        let first = page / CLUSTER * CLUSTER;
        if owners.first != first {
            owners.first = first;
            self.engine.pagemap.words(address_of(first), &mut owners.words);
        }
        owners.words[page - first] & EXCLUSIVE != 0
    }

    /// Moves the charge of the store's pages that are no longer shared to `outside`.
    pub(super) fn settle_store(&self) {
        self.job.unshare(self.store.take_unshared());
    }

    /// Returns true if processes of a fork may share pages with this one.
    pub(super) fn forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// Called now and then after a fork: protects the shared pages once there is no room for copies of them, and forgets the
    /// fork once the job has no other process.
    pub(super) fn update_fork_protection(&self) {
        if !self.forked() {
            return;
        }
        // Check this only after a process joined or left: before the child has joined, this process only seems to be alone.
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
            // SAFETY: this thread took all seats in `close` above.
            unsafe { self.seats.open() };
        }
    }

    pub(super) fn owner(&self, page: usize) -> Owner {
        Owner::of(self.engine.pagemap.word(address_of(page)))
    }

    /// Returns the number of these pages that other processes have too; 0 if there was no fork.
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

    /// Notes a fork that is about to happen. If there is no room for copies of all pages that it will share, they are
    /// write-protected.
    pub(super) fn prepare_fork(&self) {
        // Without userfaultfd's marks, neighbouring pages with different protection would become separate mappings.
        if self.engine.revokes_access() {
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

    /// Write-protects every present page, so that its first write after the fork faults. Pages that a system call of another
    /// thread has pinned are left out, because it may be writing to them. The caller holds the space lock and all seats.
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
        // This charges the table's page. Arming gives back more than that, except for a chunk that is full.
        self.job.charge_ahead(PAGE_BYTES);
        if self.arm(chunk).is_none() {
            self.job.uncharge(PAGE_BYTES);
        }
    }

    /// Marks the present pages of an armed chunk as shared, except for pinned ones, and write-protects them.
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

    /// Write-protects the pages of an armed chunk whose entries say so, because the child of a fork does not inherit the
    /// kernel's marks.
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

    /// Claims pages after a claimed one that were shared and belong to this process alone by now. Returns their number
    /// including the first one, and sets their entries.
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

/// Exit code of a process whose memory cannot be write-protected (`EX_OSERR`).
const NO_PROTECTION_EXIT_CODE: i32 = 71;
