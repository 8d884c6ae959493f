// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of the mirror that are this process's own, counted up to a limit.
//!
//! - **Layout** a bit per page, in blocks that are made when the first bit is set
//! - **Not here** giving the pages back: `trim`

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) const PAGE: u64 = 4096;
const WORDS: usize = 512;
/// Pages that one block of marks is for: 128 MiB of heap.
const BLOCK_PAGES: u64 = WORDS as u64 * 64;
/// The least limit, in pages.
const LEAST_PAGES: u64 = 256;

type Block = [AtomicU64; WORDS];

/// Pages of the mirror that are private: a bit for each, in blocks that are made when the first bit is set.
#[derive(Debug)]
pub(crate) struct PrivatePages {
    blocks: Vec<OnceLock<Box<Block>>>,
    pub count: AtomicU64,
    limit: u64,
    /// The count at which a trim is due.
    next: AtomicU64,
    pub due: AtomicBool,
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
    pub fn mark(&self, offset: u64, bytes: u64) {
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
    pub fn clear(&self) {
        for block in self.blocks.iter().filter_map(OnceLock::get) {
            block.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        self.count.store(0, Ordering::Relaxed);
        self.next.store(self.limit, Ordering::Relaxed);
        self.due.store(false, Ordering::Relaxed);
    }

    /// Puts a trim off that did not get all sections: it is due again when an eighth of the limit more was written.
    pub fn postpone(&self) {
        self.next.store(self.count.load(Ordering::Relaxed) + self.limit / 8, Ordering::Relaxed);
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
