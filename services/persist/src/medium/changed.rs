// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of a pool's file that were stored to since a replica last got them.
//!
//! - **Layout** one bit per page of 4096 bytes of the file, set at first: nothing is known of a page that was never read for the replica
//! - **Order** the medium stores, then marks; the replicator clears, then reads. Both are read-modify-writes of one word: a store that
//!   the read missed has its mark after the clearing
//! - **Rule** the log's pages are not marked: a replica has pages of the heap only

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct ChangedPages {
    words: Box<[AtomicU64]>,
}

impl ChangedPages {
    /// For a file of up to `bytes`, with every page marked.
    pub fn new(bytes: u64) -> ChangedPages {
        let words = bytes.div_ceil(PAGE * 64);
        ChangedPages { words: (0..words).map(|_| AtomicU64::new(u64::MAX)).collect() }
    }

    fn word(&self, page: u64) -> Option<(&AtomicU64, u64)> {
        self.words.get((page / 64) as usize).map(|word| (word, 1 << (page % 64)))
    }

    /// Marks the pages of a range of the file that was stored to.
    pub fn mark(&self, offset: u64, bytes: u64) {
        for page in offset / PAGE..(offset + bytes).div_ceil(PAGE) {
            if let Some((word, bit)) = self.word(page) {
                word.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    /// Marks every page.
    pub fn mark_all(&self) {
        self.words.iter().for_each(|word| word.store(u64::MAX, Ordering::Release));
    }

    /// Clears the mark of a page that is read next.
    pub fn clear(&self, page: u64) {
        if let Some((word, bit)) = self.word(page) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Returns true if a page is marked; one behind the file's greatest length never is.
    pub fn is_marked(&self, page: u64) -> bool {
        self.word(page).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_of_whole_pages() {
        let changed = ChangedPages::new(70 * PAGE);
        (0..128).for_each(|page| changed.clear(page));
        changed.mark(PAGE - 1, 2);
        changed.mark(69 * PAGE, 0);
        changed.mark(500 * PAGE, 8); // behind the end: nothing
        let marked: Vec<u64> = (0..200).filter(|page| changed.is_marked(*page)).collect();
        assert_eq!(marked, [0, 1]);
        changed.mark_all();
        assert!(changed.is_marked(69) && !changed.is_marked(128));
    }
}
