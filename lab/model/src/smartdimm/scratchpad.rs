// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scratchpad: pages of results that wait for the write-back of their lines.
//!
//! - **Flow** [`Scratchpad::take`] a page ─▶ [`Scratchpad::put`] its lines as they are computed ─▶ [`Scratchpad::recycle`] each when it is
//!   written back ─▶ after the last one the page is free
//! - **Rule** a line can be recycled once, and not before it is there; a page is free when all have been that come to this device
//! - **Owner** the device; which physical page a scratchpad page is for is kept here, for the list of pending pages

use super::{LINE, Line, PAGE};
use crate::event::Time;

const LINES: usize = (PAGE / LINE) as usize;

#[derive(Clone, Debug)]
struct Page {
    /// Physical page number.
    page: u64,
    /// Bit by bit: computed and not yet recycled.
    there: u64,
    /// Bit by bit: recycled, or never here.
    gone: u64,
    ready: [Time; LINES],
    lines: Box<[Line; LINES]>,
}

/// State of a line of a pending page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the scratchpad, from this time on.
    Here(Line, Time),
    /// Not computed: its source has not been read.
    Missing,
    /// In DRAM again.
    Recycled,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Scratchpad {
    pages: Vec<Option<Page>>,
    free: Vec<u32>,
    most: usize,
}

impl Scratchpad {
    /// `pages` pages, all free.
    #[must_use]
    pub fn new(pages: u32) -> Scratchpad {
        Scratchpad { pages: vec![None; pages as usize], free: (0..pages).rev().collect(), most: 0 }
    }

    /// Number of free pages.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Most pages that were in use at a time.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Physical pages that wait for write-backs, by their place here.
    pub fn pending(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().flatten().map(|page| page.page)
    }

    /// A page for the results of a physical page, of which these lines come here; `None` if none is free.
    pub fn take(&mut self, page: u64, mine: u64) -> Option<u32> {
        let index = self.free.pop()?;
        let lines = Box::new([[0; LINE as usize]; LINES]);
        self.pages[index as usize] =
            Some(Page { page, there: 0, gone: !mine, ready: [Time::ZERO; LINES], lines });
        self.most = self.most.max(self.used());
        Some(index)
    }

    /// A line has been computed, and is there from `ready` on. One that is there or recycled stays as it is.
    pub fn put(&mut self, index: u32, line: usize, data: Line, ready: Time) {
        if let Some(page) = &mut self.pages[index as usize]
            && (page.there | page.gone) >> line & 1 == 0
        {
            page.there |= 1 << line;
            page.ready[line] = ready;
            page.lines[line] = data;
        }
    }

    /// Returns the state of a line.
    #[must_use]
    pub fn find(&self, index: u32, line: usize) -> Found {
        match &self.pages[index as usize] {
            Some(page) if page.there >> line & 1 == 1 => Found::Here(page.lines[line], page.ready[line]),
            Some(page) if page.gone >> line & 1 == 0 => Found::Missing,
            _ => Found::Recycled,
        }
    }

    /// A line that is there has been written back; the physical page, if it was its last one.
    pub fn recycle(&mut self, index: u32, line: usize) -> Option<u64> {
        let page = self.pages[index as usize].as_mut()?;
        page.gone |= page.there & 1 << line;
        page.there &= !(1 << line);
        if page.gone != u64::MAX {
            return None;
        }
        self.free.push(index);
        self.pages[index as usize].take().map(|page| page.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_after_its_last_line_and_lines_go_once() {
        let mut pad = Scratchpad::new(2);
        let index = pad.take(77, u64::MAX).unwrap();
        assert_eq!((pad.take(78, u64::MAX).is_some(), pad.take(79, u64::MAX), pad.used()), (true, None, 2));
        assert_eq!(
            (pad.recycle(index, 3), pad.find(index, 3)),
            (None, Found::Missing),
            "not before it is there"
        );
        for line in 0..64 {
            pad.put(index, line, [line as u8; 64], Time::from_ns(5));
        }
        assert_eq!(pad.find(index, 9), Found::Here([9; 64], Time::from_ns(5)));
        assert!((0..63).all(|line| pad.recycle(index, line).is_none()));
        pad.put(index, 9, [1; 64], Time::ZERO);
        assert_eq!((pad.find(index, 9), pad.recycle(index, 9)), (Found::Recycled, None));
        assert_eq!((pad.pending().collect::<Vec<_>>(), pad.recycle(index, 63)), (vec![77, 78], Some(77)));
        assert_eq!((pad.free(), pad.most(), pad.pending().count()), (1, 2, 1));
    }
}
