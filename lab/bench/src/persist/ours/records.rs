// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions that overwrite records of an array, as the rival does.
//!
//! - **Flow** `run`: per range, record = draw % [`RECORDS`], contents = pattern(draw); one transaction for all ranges, durable
//!   when it returns. Applying the log is in the window: the committing thread does it when a lane is half full
//! - **Steady** a lane wraps many times in every run

use std::path::Path;
use std::time::Duration;

use memlift_persist::{Durability, Options, PSlice, Persist, Pool, TxOptions, View};

use super::{about, create, failed};
use crate::persist::draw::{Draw, RECORD_BYTES, STEP_SEED};
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};
use crate::{BenchError, reference};

/// Records; a mebibyte, as the rival's array.
const RECORDS: u64 = 16_384;
/// Records of one array: its first contents are one transaction, of which a lane must hold two.
const CHUNK: u64 = 1024;
/// Small enough that a log and its mirror stay in a second-level cache.
const LANE_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, Persist)]
#[repr(C, align(64))]
struct Record {
    bytes: [u8; RECORD_BYTES],
}

/// A pool with the array.
#[derive(Debug)]
pub struct Records {
    pool: Pool,
    options: Options,
    chunks: Vec<PSlice<Record>>,
    ranges: u64,
}

impl Records {
    /// All zero, in a new file at `path`.
    pub fn open(ranges: u64, path: &Path) -> Result<Records, BenchError> {
        let options = Options { heap_bytes: 8 << 20, max_bytes: 8 << 20, ..Options::default() };
        // Buffered transactions wait for `sync` alone: on a slow machine the pool's own thread would come first, with a fence more.
        let options = Options { lane_bytes: LANE_BYTES, lanes: 2, buffered_wait: Duration::ZERO, ..options };
        let pool = create(path, &options)?;
        let zero = vec![Record { bytes: [0; RECORD_BYTES] }; CHUNK as usize];
        let chunks = (0..RECORDS / CHUNK).map(|_| pool.tx(|t| t.alloc_slice(&zero)).map_err(failed));
        let chunks = chunks.collect::<Result<_, _>>()?;
        Ok(Records { pool, options, chunks, ranges })
    }

    /// Returns the pool that holds them.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Overwrites `ranges` drawn records in one transaction.
    #[inline]
    pub fn transaction(
        &self,
        draw: &mut Draw,
        ranges: u64,
        durability: Durability,
    ) -> Result<(), BenchError> {
        let committed = self.pool.tx_with(TxOptions { durability, ..TxOptions::default() }, |t| {
            for _ in 0..ranges {
                let record = draw.next() % RECORDS;
                let chunk = self.chunks[(record / CHUNK) as usize];
                let place = t.slice_part_mut(chunk, record % CHUNK, 1)?;
                reference::pattern_of(&mut place[0].bytes, draw.next());
            }
            Ok(())
        });
        committed.map_err(failed)
    }

    fn next(&self, draw: &mut Draw) -> Result<(), BenchError> {
        self.transaction(draw, self.ranges, Durability::Sync)
    }

    fn sum(&self) -> Result<u64, BenchError> {
        let read = self.pool.read(|r| {
            let mut bytes = Vec::new();
            for chunk in &self.chunks {
                r.slice(*chunk)?.iter().for_each(|record| bytes.extend_from_slice(&record.bytes));
            }
            Ok(bytes)
        });
        Ok(reference::checksum_of(&read.map_err(failed)?))
    }
}

impl Work for Records {
    fn about(&self) -> String {
        about(&self.pool, &self.options)
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        let ran = serve::timed(|| (0..count).try_for_each(|_| self.next(&mut draw)))?;
        Ok(Ran { checksum: serve::checksum(self.sum()?), ..ran })
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        let mut draw = Draw::new(STEP_SEED);
        (0..3).try_for_each(|_| self.next(&mut draw))?;
        stop();
        stop();
        self.next(&mut draw)?;
        stop();
        Ok(1)
    }
}
