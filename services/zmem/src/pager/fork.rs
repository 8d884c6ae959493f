// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fork: it happens while no thread works on a page, and the child answers its own faults from its first instruction on.
//!
//! - **Flow** [`Pager::before_fork`] takes the space lock, all seats, the eviction lock and the store's lock ──fork──▶ the
//!   parent releases them · the child makes a userfaultfd of its own, registers guarded and armed chunks, protects clean
//!   pages again, then releases them
//! - **Order** the child registers before any of the program's code runs; otherwise absent pages would read as zeros
//! - **Owner** the child closes the descriptor that it inherited, which acts on its parent's memory
//! - **Not here** the job's slot (`block`)

use std::sync::atomic::Ordering;

use super::Pager;
use super::evict::BATCH;
use super::kernel::{self, Quiet, sigmask};
use super::table::{CHUNK_PAGES, Mode};
use crate::descriptor;
use crate::watch::FILLED_BETWEEN_LOOKS;

/// Part of the total that is made free before a fork, so that parent and child can each evict and bring in pages of their
/// own: 1/16.
const FORK_ROOM_SHARE: usize = 16;

/// Exit code of a child that cannot have a pager (`EX_OSERR`).
const NO_PAGER_EXIT_CODE: i32 = 71;

impl Pager {
    /// Evicts some pages of this process before a fork, because pages that are shared afterwards free nothing when they
    /// leave.
    fn make_room_for_fork(&self) {
        let room =
            usize::try_from(self.job.total()).unwrap_or(0) / FORK_ROOM_SHARE + self.job.reserved_bytes();
        let missing = || {
            let missing = i64::try_from(room).unwrap_or(i64::MAX).saturating_sub(self.job.unused());
            usize::try_from(missing).unwrap_or(0)
        };
        if missing() == 0 {
            return;
        }
        let mut seat = self.seats.take();
        self.evict(&mut seat, missing(), BATCH);
        if missing() > 0 {
            self.spill_cold(&mut seat, missing(), 0);
        }
        while missing() > 0 && self.pack_cold(&mut seat, 0).tried > 0 {}
    }

    /// Waits until no thread works on a page, and prevents new work until one of the two calls below. Signals are blocked
    /// meanwhile.
    pub fn before_fork(&self) {
        // If a dormant process's memory would not fit twice, the pager must see its writes from now on, unless the watcher
        // looks again before the copies have filled what is left.
        if !self.active() && self.job.unused() < FILLED_BETWEEN_LOOKS && self.job.is_near(self.job.charged())
        {
            self.activate();
        }
        if self.active() && self.job.is_near(self.job.charged()) {
            let _quiet = Quiet::new();
            self.make_room_for_fork();
        }
        let mask = sigmask(libc::SIG_SETMASK, u64::MAX);
        std::mem::forget(self.space.lock());
        self.seats.close();
        std::mem::forget(self.evict.lock());
        self.prepare_fork();
        self.store.lock_all();
        if let Some(spill) = self.spill.file() {
            spill.before_fork();
        }
        self.job.before_fork();
        descriptor::before_fork();
        self.fork_mask.store(mask, Ordering::Relaxed);
    }

    /// Lets the parent go on after a fork, also after one that failed.
    pub fn after_fork_parent(&self) {
        // SAFETY: this thread called `before_fork`, which called that of the descriptors.
        unsafe { descriptor::after_fork() };
        if let Some(spill) = self.spill.file() {
            // SAFETY: this thread called `before_fork`, which called that of the spill file.
            unsafe { spill.after_fork_parent() };
        }
        self.reopen();
    }

    /// Registers the child's arena anew, before any of the program's code runs. The child has no evictor thread until the
    /// caller starts one.
    pub fn after_fork_child(&self) {
        // SAFETY: the thread that forked called `before_fork`, which called that of the descriptors.
        unsafe { descriptor::after_fork() };
        self.engine.detach();
        let _ = self.job.fork_child();
        if let Some(spill) = self.spill.file() {
            // SAFETY: the thread that forked called `before_fork`, and no other thread exists in the child.
            unsafe { spill.after_fork_child() };
        }
        if self.engine.attach().is_err() {
            kernel::end(
                "memlift: a forked process got no userfaultfd, or none of its memory's file; it ends before it reads zeros for data\n",
                NO_PAGER_EXIT_CODE,
            );
        }
        let reached = self.reached.load(Ordering::Acquire);
        for chunk in 0..reached {
            self.forget_pins(chunk);
        }
        let mut chunk = 0;
        // With `mprotect` nothing is registered: the child inherits the missing access.
        while chunk < reached && !self.engine.revokes_access() {
            let covered =
                |chunk: usize| matches!(self.table.chunk(chunk).mode(), Mode::Guarded | Mode::Armed);
            if !covered(chunk) {
                chunk += 1;
                continue;
            }
            let first = chunk;
            while chunk < reached && covered(chunk) {
                chunk += 1;
            }
            if self.cover(first, chunk - first).is_err() {
                kernel::end(
                    "memlift: a forked process could not register its memory; it ends before it reads zeros for data\n",
                    NO_PAGER_EXIT_CODE,
                );
            }
            for chunk in first..chunk {
                if self.table.chunk(chunk).mode() == Mode::Armed {
                    self.protect_inherited(chunk);
                }
            }
        }
        self.reopen();
    }

    /// Clears the pins of a chunk: they belong to system calls of threads that the child does not have.
    fn forget_pins(&self, chunk: usize) {
        while self.table.chunk(chunk).unpin() {}
        if self.table.chunk(chunk).mode() == Mode::Armed {
            for page in chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES {
                let entry = self.table.load(page);
                if entry.pins() > 0 {
                    self.table.entry(page).store(entry.with_pins(0).0, Ordering::Release);
                }
            }
        }
    }

    fn reopen(&self) {
        let mask = self.fork_mask.load(Ordering::Relaxed);
        // SAFETY: the thread that forked took all of these in `before_fork`; in the child it is the only thread.
        unsafe {
            self.store.unlock_all();
            self.evict.unlock();
            self.seats.open();
            self.space.unlock();
        }
        sigmask(libc::SIG_SETMASK, mask);
    }
}
