// SPDX-License-Identifier: Apache-2.0 OR MIT
//! fork: no work on pages is half done when it happens, and the child answers its own faults from the first instruction.
//!
//! - **Flow** [`Pager::before_fork`]: space lock, all seats, the hand, the store ──fork──▶ parent: open them · child: a
//!   userfaultfd of its own, guarded and armed chunks registered, clean pages protected again, then open them
//! - **Order** the child registers before any of the program's code runs: otherwise absent pages would read as zeros
//! - **Owner** the child closes the descriptor that it inherited, which speaks for its parent's memory
//! - **Not here** the job's slot (`block`)

use std::sync::atomic::Ordering;

use super::Pager;
use super::evict::BATCH;
use super::kernel::{self, Quiet, sigmask};
use super::table::{CHUNK_PAGES, Mode};
use crate::watch::FILLED_BETWEEN_LOOKS;

/// Part of the total that is made free before a fork, so that both sides have pages of their own to turn over: 1/16.
const FORK_ROOM_SHARE: usize = 16;

/// Exit code of a child that cannot have a pager (`EX_OSERR`).
const NO_PAGER_EXIT_CODE: i32 = 71;

impl Pager {
    /// Makes room for a few pages of this process's own before a fork: those that are shared make none when they leave.
    fn make_room_for_fork(&self) {
        let room = usize::try_from(self.job.total()).unwrap_or(0) / FORK_ROOM_SHARE + self.job.keep();
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

    /// Waits until no thread works on a page, and keeps it so until one of the two calls below. Signals are blocked meanwhile.
    pub fn before_fork(&self) {
        // A dormant process whose memory would not fit twice must see its writes from now on, unless the watcher looks again
        // before what is left is full of copies.
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
        if let Some(spill) = self.spill() {
            spill.before_fork();
        }
        self.job.before_fork();
        self.fork_mask.store(mask, Ordering::Relaxed);
    }

    /// The parent goes on (also after a failed fork).
    pub fn after_fork_parent(&self) {
        if let Some(spill) = self.spill() {
            // SAFETY: this thread called `before_fork`, which called the spill file's.
            unsafe { spill.after_fork_parent() };
        }
        self.reopen();
    }

    /// The child registers its arena anew, before any of the program's code. It has no evictor thread until the caller
    /// starts one.
    pub fn after_fork_child(&self) {
        self.engine.detach();
        let _ = self.job.fork_child();
        if let Some(spill) = self.spill() {
            // SAFETY: the thread that forked called `before_fork`, and there is no other.
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
        // Access that was taken away is inherited.
        while chunk < reached && !self.engine.hides() {
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

    /// Takes pins away: they are of system calls in threads that the child does not have.
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
        // SAFETY: the thread that forked, which in the child is the only one, locked all of these in `before_fork`.
        unsafe {
            self.store.unlock_all();
            self.evict.unlock();
            self.seats.open();
            self.space.unlock();
        }
        sigmask(libc::SIG_SETMASK, mask);
    }
}
