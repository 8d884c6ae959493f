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

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::biased::WriteGuard;
use crate::commit::Committed;
use crate::error::Result;
use crate::layout::Entry;
use crate::options::Durability;
use crate::pool::Pool;
use crate::section::{Held, Section};
use crate::store::Store;
use crate::writes::Writes;

const PAGE: u64 = 4096;
const WORDS: usize = 512;
/// Pages that one block of marks is for: 128 MiB of heap.
const BLOCK_PAGES: u64 = WORDS as u64 * 64;
/// The least limit, in pages.
const LEAST_PAGES: u64 = 256;
/// Tries of an automatic trim to lock a section, yielding in between.
const PATIENCE: u32 = 200;

type Block = [AtomicU64; WORDS];

/// Pages of the mirror that are private: a bit for each, in blocks that are made when the first bit is set.
#[derive(Debug)]
pub(crate) struct PrivatePages {
    blocks: Vec<OnceLock<Box<Block>>>,
    count: AtomicU64,
    limit: u64,
    /// The count at which a trim is due.
    next: AtomicU64,
    due: AtomicBool,
}

impl PrivatePages {
    /// For a heap of up to `heap_bytes`; None: there is no limit.
    pub fn new(heap_bytes: u64, mirror_bytes: Option<u64>) -> Option<PrivatePages> {
        let limit = (mirror_bytes? / PAGE).max(LEAST_PAGES);
        let blocks = (0..heap_bytes.div_ceil(BLOCK_PAGES * PAGE)).map(|_| OnceLock::new()).collect();
        Some(PrivatePages {
            blocks,
            count: AtomicU64::new(0),
            limit,
            next: AtomicU64::new(limit),
            due: AtomicBool::new(false),
        })
    }

    /// Marks the pages of a range that was written.
    fn mark(&self, offset: u64, bytes: u64) {
        let mut fresh = 0;
        for page in offset / PAGE..(offset + bytes).div_ceil(PAGE) {
            let Some(block) = self.blocks.get((page / BLOCK_PAGES) as usize) else { break };
            let block = block.get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
            let (word, bit) = ((page % BLOCK_PAGES / 64) as usize, 1 << (page % 64));
            if block[word].load(Ordering::Relaxed) & bit == 0 {
                fresh += u64::from(block[word].fetch_or(bit, Ordering::Relaxed) & bit == 0);
            }
        }
        if fresh > 0 {
            let count = self.count.fetch_add(fresh, Ordering::Relaxed) + fresh;
            if count >= self.next.load(Ordering::Relaxed) {
                self.due.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Forgets all marks; the caller holds all sections, so nobody marks meanwhile.
    fn clear(&self) {
        for block in self.blocks.iter().filter_map(OnceLock::get) {
            block.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        self.count.store(0, Ordering::Relaxed);
        self.next.store(self.limit, Ordering::Relaxed);
        self.due.store(false, Ordering::Relaxed);
    }

    /// Puts a trim off that did not get all sections: it is due again when an eighth of the limit more was written.
    fn postpone(&self) {
        self.next.store(self.count.load(Ordering::Relaxed) + self.limit / 8, Ordering::Relaxed);
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_once_and_a_trim_is_due_at_the_limit() {
        assert!(PrivatePages::new(1 << 30, None).is_none());
        let pages = PrivatePages::new(1 << 30, Some(2 << 20)).expect("a limit");
        assert_eq!(pages.limit, 512);
        pages.mark(4095, 2);
        pages.mark(0, 8192);
        pages.mark(100, 0);
        assert_eq!(pages.count.load(Ordering::Relaxed), 2);
        pages.mark((128 << 20) - 4096, 509 * 4096);
        assert!(!pages.due.load(Ordering::Relaxed));
        pages.mark(512 << 20, 1);
        assert!(pages.due.load(Ordering::Relaxed));
        pages.due.store(false, Ordering::Relaxed);
        pages.postpone();
        pages.mark(600 << 20, 63 * 4096);
        assert!(!pages.due.load(Ordering::Relaxed));
        pages.mark(700 << 20, 1);
        assert!(pages.due.load(Ordering::Relaxed));
        pages.clear();
        pages.mark(0, 4096);
        assert_eq!((pages.count.load(Ordering::Relaxed), pages.due.load(Ordering::Relaxed)), (1, false));
        pages.mark(u64::MAX / 2, 10); // beyond the heap: nothing to mark
    }
}
