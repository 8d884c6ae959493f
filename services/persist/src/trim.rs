// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits a mirror's memory: pages whose changes are in the file go back to the file's page cache.
//!
//! - **Flow** commit and abort mark the pages that a transaction wrote ─▶ more than [`crate::Options::mirror_bytes`] are marked:
//!   a trim is due ─▶ at the end of a commit, with no lock held: log made durable and applied ─▶ all sections locked for
//!   writing ─▶ later records applied as well ─▶ private pages dropped, marks cleared
//! - **Rule** under those locks nothing private differs from the file, so a dropped page reads the same as before
//! - **Order** an automatic trim never waits for a section without end: this thread itself may keep a transaction open that holds
//!   it. It tries a while, and again when an eighth of the limit was written since
//! - **Not here** pools without a mirror (undo, shadow, the simulator's): trimming does nothing there

use std::sync::atomic::Ordering;

use crate::biased::WriteGuard;
use crate::commit::Committed;
use crate::error::Result;
use crate::layout::Entry;
use crate::options::Durability;
use crate::pool::Pool;
use crate::private_pages::{PAGE, PrivatePages};
use crate::section::{Held, Section};
use crate::store::Store;
use crate::writes::Writes;

/// Tries of an automatic trim to lock a section, yielding in between.
const PATIENCE: u32 = 200;

impl Store {
    /// Marks what a transaction wrote to the mirror, committed or not; its sections are held.
    #[inline]
    pub(crate) fn mark_private(&self, writes: &Writes) {
        if let Some(pages) = &self.private {
            for touched in &writes.touched {
                pages.mark(touched.offset, u64::from(touched.bytes));
            }
            for (slab, _) in &writes.entries {
                pages.mark(Entry::offset(*slab), 16);
            }
        }
    }

    /// Ends a commit: durable as asked for, the mirror within its limit, emptied slabs free if the pool grew beside them. The caller holds no lock.
    #[inline]
    pub fn finish(&self, committed: Committed, durability: Durability) -> Result<()> {
        self.await_durable(committed, durability)?;
        if durability == Durability::Replicated {
            self.await_replica()?;
        }
        if self.reclaim_due.load(Ordering::Relaxed) {
            crate::reclaim::when_free(self)?;
        }
        match &self.private {
            Some(pages) if pages.due.load(Ordering::Relaxed) => self.trim_when_free(pages),
            _ => Ok(()),
        }
    }

    #[cold]
    fn trim_when_free(&self, pages: &PrivatePages) -> Result<()> {
        if !pages.due.swap(false, Ordering::Relaxed) {
            return Ok(()); // another thread is at it
        }
        self.sync()?;
        self.apply_all()?;
        match self.try_all() {
            Some(_all) => self.drop_private(),
            None => {
                pages.postpone();
                Ok(())
            }
        }
    }

    /// All sections, unless one of them stays locked.
    pub fn try_all(&self) -> Option<Vec<WriteGuard<'_, Section>>> {
        let mut all = Vec::with_capacity(self.sections.len());
        for section in &self.sections {
            let mut tries = 0;
            all.push(loop {
                match section.try_write() {
                    Some(guard) => break guard,
                    None if tries == PATIENCE => return None,
                    None => {
                        tries += 1;
                        std::thread::yield_now();
                    }
                }
            });
        }
        Some(all)
    }

    /// Waits for all sections.
    fn trim(&self) -> Result<()> {
        self.running()?;
        if !self.image.is_mirror() || self.options.read_only {
            return Ok(());
        }
        self.sync()?;
        self.apply_all()?;
        let _all = Held::lock(&self.sections, None);
        self.drop_private()
    }

    /// The caller holds all sections for writing.
    fn drop_private(&self) -> Result<()> {
        if self.by_pages() {
            self.checkpoint_held()?;
        }
        self.apply_all()?;
        self.image.drop_private();
        if let Some(verified) = &self.verified {
            verified.clear();
        }
        if let Some(pages) = &self.private {
            pages.clear();
        }
        Ok(())
    }
}

impl Pool {
    /// Gives the memory of the mirror back: everything is made durable and brought to its place, and pages that this process
    /// had of its own are the file's again. Waits for all sections, so not from within a transaction. Pools without a mirror
    /// (undo, shadow) have nothing to give. [`crate::Options::mirror_bytes`] does this by itself.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Stopped`] when the disk fails.
    pub fn trim(&self) -> Result<()> {
        self.store().trim()
    }

    /// Bytes of the mirror that were written since the last trim; None where there is no mirror, or no limit for it.
    pub fn private_bytes(&self) -> Option<u64> {
        self.store().private.as_ref().map(|pages| pages.count.load(Ordering::Relaxed) * PAGE)
    }
}
