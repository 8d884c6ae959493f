// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rivals of checkpoint and shadow rows: a whole page is copied to durable memory and fenced, however little of it changed.
//!
//! - **Checkpoint** 8 of a page's 64 lines are overwritten; then the page is copied to its durable place
//! - **Shadow** the same to four pages; each is copied to the one of its two durable places that does not hold its newest version
//! - **Way** `memcpy_clwb`: memcpy, write-back of every line, fence · `nt_copy`: stores past the cache, fence; per page
//! - **Flattering** no table of pages is written and nothing guards a page that is overwritten in place: a crash in the middle of a
//!   copy may tear it. What is timed is the copying alone.
//! - **Check** the sum over the newest durable version of every page

use std::path::Path;

use super::draw::{Draw, RECORD_BYTES, STEP_SEED};
use super::limit::shared;
use super::party::Ran;
use super::serve::{self, Work};
use crate::area::{Area, Part};
use crate::{BenchError, reference};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pages of the image: more than a first-level cache, less than a last-level one.
pub const PAGES: usize = 1024;
/// Lines that a change overwrites.
const LINES: usize = 8;
/// Pages of a shadow transaction.
const SHADOWED: usize = 4;

/// Kind of operation on pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Changes one page at a time.
    Checkpoint,
    /// Changes four pages at a time.
    Shadow,
}

impl Shape {
    /// By the first part of a row's name.
    pub fn parse(name: &str) -> Option<Shape> {
        match name {
            "checkpoint" => Some(Shape::Checkpoint),
            "shadow" => Some(Shape::Shadow),
            _ => None,
        }
    }

    /// Returns the first part of a row's name.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Checkpoint => "checkpoint",
            Shape::Shadow => "shadow",
        }
    }

    /// Pages of one operation.
    pub fn pages(self) -> usize {
        match self {
            Shape::Checkpoint => 1,
            Shape::Shadow => SHADOWED,
        }
    }

    /// The pages of the next operation; no page comes twice.
    pub fn draw(self, draw: &mut Draw) -> impl Iterator<Item = usize> + use<> {
        let first = draw.next() as usize;
        (0..self.pages()).map(move |turn| first.wrapping_add(turn * (PAGES / SHADOWED)) % PAGES)
    }
}

/// The lines of a page that the next change overwrites, as offsets, and the seeds of their contents.
pub fn change(draw: &mut Draw) -> impl Iterator<Item = (usize, u64)> {
    let word = draw.next() as usize;
    let (first, stride) = (word, word >> 32 | 1);
    (0..LINES).map(move |turn| {
        let line = first.wrapping_add(turn.wrapping_mul(stride)) % (PAGE_BYTES / RECORD_BYTES);
        (line * RECORD_BYTES, draw.next())
    })
}

/// How a page is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Through the cache, written back.
    CopyFlush,
    /// Past the cache.
    CopyNt,
}

impl Way {
    /// By the rival's name.
    pub fn parse(name: &str) -> Option<Way> {
        match name {
            "memcpy_clwb" => Some(Way::CopyFlush),
            "nt_copy" => Some(Way::CopyNt),
            _ => None,
        }
    }
}

/// An image and its durable pages.
#[derive(Debug)]
pub struct Pages {
    way: Way,
    shape: Shape,
    image: Area,
    durable: Area,
    /// Place that holds a page's newest version: 0 or 1 under [`Shape::Shadow`], else 0.
    newest: Vec<u8>,
}

impl Pages {
    /// Every page is the pattern of its number, durable in a new file at `path`.
    pub fn open(way: Way, shape: Shape, path: &Path) -> Result<Pages, BenchError> {
        let places = if shape == Shape::Shadow { 2 } else { 1 };
        let image = Area::private(PAGES * PAGE_BYTES)?;
        let durable = shared(path, places * PAGES * PAGE_BYTES)?;
        let pages = Pages { way, shape, image, durable, newest: vec![0; PAGES] };
        // The first version of every page.
        (0..PAGES).for_each(|page| {
            reference::pattern(pages.page(page), page as u64);
            reference::copy_nt(pages.place(page), pages.page(page));
        });
        Ok(pages)
    }

    fn page(&self, page: usize) -> Part<'_> {
        self.image.part(page * PAGE_BYTES, PAGE_BYTES)
    }

    fn place(&self, page: usize) -> Part<'_> {
        let place = usize::from(self.newest[page]) * PAGES + page;
        self.durable.part(place * PAGE_BYTES, PAGE_BYTES)
    }

    fn operation(&mut self, draw: &mut Draw) {
        for page in self.shape.draw(draw) {
            for (offset, seed) in change(draw) {
                reference::pattern(self.image.part(page * PAGE_BYTES + offset, RECORD_BYTES), seed);
            }
            if self.shape == Shape::Shadow {
                self.newest[page] ^= 1;
            }
            match self.way {
                Way::CopyFlush => reference::copy_flush(self.place(page), self.page(page)),
                Way::CopyNt => reference::copy_nt(self.place(page), self.page(page)),
            }
        }
    }

    fn sum(&self) -> u64 {
        (0..PAGES)
            .fold(0, |sum: u64, page| sum.wrapping_add(reference::checksum(self.place(page)) ^ page as u64))
    }
}

impl Work for Pages {
    fn about(&self) -> String {
        match self.way {
            Way::CopyFlush => format!(
                "memcpy of the whole page, {} of its lines, a fence per page, no table of pages",
                reference::flush_name()
            ),
            Way::CopyNt => {
                "the whole page stored past the cache, a fence per page, no table of pages".to_owned()
            }
        }
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        let ran = serve::timed(|| {
            (0..count).for_each(|_| self.operation(&mut draw));
            Ok(())
        })?;
        Ok(Ran { checksum: serve::checksum(self.sum()), ..ran })
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        let mut draw = Draw::new(STEP_SEED);
        stop();
        stop();
        self.operation(&mut draw);
        stop();
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_touches_different_pages_and_different_lines() {
        let mut draw = Draw::new(3);
        for _ in 0..1000 {
            let mut pages: Vec<usize> = Shape::Shadow.draw(&mut draw).collect();
            pages.sort_unstable();
            pages.dedup();
            assert!(pages.len() == SHADOWED && pages.iter().all(|page| *page < PAGES));
            let mut lines: Vec<usize> = change(&mut draw).map(|(offset, _)| offset).collect();
            lines.sort_unstable();
            lines.dedup();
            assert!(lines.len() == LINES && lines.iter().all(|offset| offset + RECORD_BYTES <= PAGE_BYTES));
        }
    }

    #[test]
    fn both_ways_leave_the_same_pages() {
        for shape in [Shape::Checkpoint, Shape::Shadow] {
            let sums: Vec<String> = [Way::CopyFlush, Way::CopyNt]
                .into_iter()
                .map(|way| {
                    let room = super::super::disk::Shared::new(16 << 20).expect("room");
                    let mut pages = Pages::open(way, shape, &room.path).expect("opens");
                    let before = serve::checksum(pages.sum());
                    let after = pages.run(7, 50).expect("runs").checksum;
                    assert_ne!(before, after);
                    after
                })
                .collect();
            assert_eq!(sums[0], sums[1]);
        }
    }
}
