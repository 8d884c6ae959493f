// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of the heap that changed since the last checkpoint.
//!
//! - **Layout** a bit per 64-byte line, by page; the pages in the order in which they were touched first
//! - **Not here** making a checkpoint of them: `checkpoint`

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use memlift_spec::formats::log::{PAGE_ENTRY_BYTES, RECORD_HEADER_BYTES};

/// Hash of a page's number: the pages are the program's own, so nobody chooses them to collide.
#[derive(Debug, Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32; // both ends of it are used
    }
}

/// Lines that changed since the last checkpoint, by page.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Page and lines, in the order in which they were touched first.
    pub pages: Vec<(u64, u64)>,
    /// Where in `pages` a page is, once there are more than [`FEW`].
    index: HashMap<u64, usize, BuildHasherDefault<PageHasher>>,
    lines: u64,
    /// Number of the last transaction that marked lines.
    pub marked: u64,
    /// Transactions up to this one are in a checkpoint that was appended.
    pub appended: u64,
    /// End of that checkpoint in the shared lane.
    pub position: u64,
}

const HEADER_BYTES: u64 = RECORD_HEADER_BYTES as u64;
/// Bytes of a page in a record, without its lines: those of lines take fewer.
const ENTRY_BYTES: u64 = PAGE_ENTRY_BYTES as u64;
/// Up to this many pages are searched one by one, without `index`.
const FEW: usize = 16;

impl Dirty {
    /// Marks lines of a page.
    #[inline]
    pub fn mark(&mut self, page: u64, lines: u64) {
        let at = if self.pages.len() <= FEW {
            self.pages.iter().rposition(|one| one.0 == page)
        } else {
            self.index.get(&page).copied()
        };
        match at {
            Some(at) => {
                let before = &mut self.pages[at].1;
                self.lines += u64::from((lines & !*before).count_ones());
                *before |= lines;
            }
            None if lines != 0 => self.add(page, lines),
            None => {}
        }
    }

    #[inline]
    fn add(&mut self, page: u64, lines: u64) {
        self.lines += u64::from(lines.count_ones());
        self.pages.push((page, lines));
        if self.pages.len() > FEW {
            self.number();
        }
    }

    #[cold]
    fn number(&mut self) {
        let numbered = self.index.len();
        let new = self.pages.iter().enumerate().skip(numbered).map(|(at, one)| (one.0, at));
        self.index.extend(new);
    }

    /// Marks the lines of [offset, offset + bytes).
    pub fn mark_range(&mut self, offset: u64, bytes: u64) {
        for line in offset / 64..(offset + bytes).div_ceil(64) {
            self.mark(line / 64, 1 << (line % 64));
        }
    }

    /// Returns true if the pages are searched one by one.
    #[inline]
    pub fn is_few(&self) -> bool {
        self.pages.len() <= FEW
    }

    /// Takes all marks away: nothing was changed.
    #[cold]
    pub fn forget(&mut self) {
        self.pages.clear();
        self.index.clear();
        self.lines = 0;
    }

    /// Everything is in a checkpoint that ends at `position` of the shared lane, or was made durable.
    pub fn clean(&mut self, position: u64) {
        self.pages.clear();
        if !self.index.is_empty() {
            self.index.clear();
        }
        self.lines = 0;
        self.appended = self.marked;
        self.position = position;
    }

    /// Bytes that a checkpoint of all of it would take in the log.
    pub fn record_bytes(&self, shadow: bool) -> u64 {
        let lines = if shadow { 0 } else { self.lines * 64 };
        (lines + self.pages.len() as u64 * ENTRY_BYTES + HEADER_BYTES).next_multiple_of(64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_marked_once() {
        let mut dirty = Dirty::default();
        dirty.mark_range(4096 - 8, 16);
        dirty.mark_range(4096, 64);
        dirty.mark_range(64, 0);
        assert_eq!(dirty.pages, [(0, 1 << 63), (1, 1)]);
        assert_eq!(dirty.lines, 2);
        assert_eq!((dirty.record_bytes(false), dirty.record_bytes(true)), (256, 128));
    }

    #[test]
    fn many_pages_are_found_again() {
        let mut dirty = Dirty::default();
        for turn in 0..2 {
            (0..100).for_each(|page| dirty.mark(page * 7, 1 << turn));
        }
        assert_eq!((dirty.pages.len(), dirty.lines), (100, 200));
        dirty.clean(0);
        dirty.mark(7, 1);
        assert_eq!((&dirty.pages[..], dirty.lines), (&[(7, 1)][..], 1));
    }
}
