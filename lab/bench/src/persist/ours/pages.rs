// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of pages under the mechanisms that work by pages: only the lines that changed are found and made durable.
//!
//! - **Flow** `run`: the pages and lines that the rival draws; all pages of an operation together, durable when it returns, or with the
//!   eighth operation after it ([`Way::Late`]). Marking what changed and applying the log are in the window

use std::path::Path;

use memlift_persist::{Durability, Mechanism, Options, Overwrite, PSlice, Persist, Pool, View};

use super::{about, create, failed};
use crate::persist::draw::{Draw, RECORD_BYTES, STEP_SEED};
use crate::persist::pages::{PAGE_BYTES, PAGES, Shape, change};
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};
use crate::{BenchError, reference};

/// Lines of a page.
const LINES: usize = PAGE_BYTES / RECORD_BYTES;
/// Pages of one array: large enough that it begins at a page, small enough for one transaction.
const CHUNK: usize = 16;

/// Operations that become durable together, of [`Way::Late`].
const GROUP: u64 = 8;
/// Lines of an operation on one page, and most of any.
const CHANGED: usize = 8;
const CHANGED_MAX: usize = 32;

/// How an operation's lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In a transaction that borrows them.
    Transaction,
    /// By [`Pool::overwrite`], durable when it returns.
    Sync,
    /// By [`Pool::overwrite`], durable with the eighth operation.
    Late,
}

impl Way {
    /// By the last parts of a row's name.
    pub fn parse(parts: &[&str]) -> Option<Way> {
        match parts {
            [] => Some(Way::Transaction),
            [name] => Way::named(name).filter(|way| *way != Way::Transaction),
            _ => None,
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Way> {
        [Way::Transaction, Way::Sync, Way::Late].into_iter().find(|way| way.name() == name)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Transaction => "transaction",
            Way::Sync => "sync",
            Way::Late => "late",
        }
    }
}

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C, align(64))]
struct Line {
    bytes: [u8; RECORD_BYTES],
}

/// A pool with the pages.
#[derive(Debug)]
pub struct Paged {
    pool: Pool,
    options: Options,
    chunks: Vec<PSlice<Line>>,
    shape: Shape,
    way: Way,
    /// New lines of an operation: memory of the program, which the rival does without since it changes its pages in place.
    lines: Box<[Line; CHANGED_MAX]>,
    /// Operations since the last one that was made durable.
    late: u64,
}

impl Paged {
    /// Every page is the pattern of its number, in a new file at `path`.
    pub fn open(shape: Shape, way: Way, path: &Path) -> Result<Paged, BenchError> {
        let mechanism = match shape {
            Shape::Checkpoint => Mechanism::Checkpoint,
            Shape::Shadow => Mechanism::Shadow,
        };
        let options = Options { heap_bytes: 16 << 20, max_bytes: 16 << 20, mechanism, ..Options::default() };
        let pool = create(path, &options)?;
        let mut chunks = Vec::new();
        for first in (0..PAGES).step_by(CHUNK) {
            let mut lines = Vec::new();
            for page in first..first + CHUNK {
                let mut bytes = [0; PAGE_BYTES];
                reference::pattern_of(&mut bytes, page as u64);
                let whole = bytes.as_chunks::<RECORD_BYTES>().0;
                lines.extend(whole.iter().map(|line| Line { bytes: *line }));
            }
            chunks.push(pool.tx(|t| t.alloc_slice(&lines)).map_err(failed)?);
        }
        let lines = Box::new([Line { bytes: [0; RECORD_BYTES] }; CHANGED_MAX]);
        Ok(Paged { pool, options, chunks, shape, way, lines, late: 0 })
    }

    fn operation(&mut self, draw: &mut Draw) -> Result<(), BenchError> {
        if self.way != Way::Transaction {
            return match self.shape {
                Shape::Checkpoint => self.overwrite::<CHANGED>(draw),
                Shape::Shadow => self.overwrite::<CHANGED_MAX>(draw),
            };
        }
        let committed = self.pool.tx(|t| {
            for page in self.shape.draw(draw) {
                let chunk = self.chunks[page / CHUNK];
                for (offset, seed) in change(draw) {
                    let line = page % CHUNK * LINES + offset / RECORD_BYTES;
                    let place = t.slice_part_mut(chunk, line as u64, 1)?;
                    reference::pattern_of(&mut place[0].bytes, seed);
                }
            }
            Ok(())
        });
        committed.map_err(failed)
    }

    /// An operation of `LINES_CHANGED` lines.
    fn overwrite<const LINES_CHANGED: usize>(&mut self, draw: &mut Draw) -> Result<(), BenchError> {
        let mut places = [(PSlice::EMPTY, 0); LINES_CHANGED];
        let mut count = 0;
        for page in self.shape.draw(draw) {
            let chunk = self.chunks[page / CHUNK];
            for (offset, seed) in change(draw) {
                reference::pattern_of(&mut self.lines[count].bytes, seed);
                places[count] = (chunk, (page % CHUNK * LINES + offset / RECORD_BYTES) as u64);
                count += 1;
            }
        }
        assert_eq!(count, LINES_CHANGED, "as many as the rival changes");
        let parts: [Overwrite<'_, Line>; LINES_CHANGED] = std::array::from_fn(|at| Overwrite {
            array: places[at].0,
            from: places[at].1,
            values: std::slice::from_ref(&self.lines[at]),
        });
        let durability = if self.way == Way::Late { Durability::Buffered } else { Durability::Sync };
        self.pool.overwrite(&parts, durability).map_err(failed)?;
        self.late += u64::from(self.way == Way::Late);
        if self.late == GROUP {
            self.late = 0;
            self.pool.sync().map_err(failed)?;
        }
        Ok(())
    }

    fn sum(&self) -> Result<u64, BenchError> {
        let sum = self.pool.read(|r| {
            let (mut sum, mut bytes) = (0u64, Vec::new());
            for page in 0..PAGES {
                let lines = &r.slice(self.chunks[page / CHUNK])?[page % CHUNK * LINES..][..LINES];
                bytes.clear();
                lines.iter().for_each(|line| bytes.extend_from_slice(&line.bytes));
                sum = sum.wrapping_add(reference::checksum_of(&bytes) ^ page as u64);
            }
            Ok(sum)
        });
        sum.map_err(failed)
    }
}

impl Work for Paged {
    fn about(&self) -> String {
        about(&self.pool, &self.options)
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        let ran = serve::timed(|| (0..count).try_for_each(|_| self.operation(&mut draw)))?;
        Ok(Ran { checksum: serve::checksum(self.sum()?), ..ran })
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        let mut draw = Draw::new(STEP_SEED);
        (0..3).try_for_each(|_| self.operation(&mut draw))?;
        stop();
        stop();
        self.operation(&mut draw)?;
        stop();
        Ok(1)
    }
}
