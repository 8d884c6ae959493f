// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many fences commits ask for, by the pool's own exact counters, which need no tracer.
//!
//! - **Redo** `count` transactions with 1, 2 … 16 records, each durable when it returns
//! - **Group** `count` groups of [`GROUP`] buffered transactions, each group made durable at once
//! - **Counts** `fences`: of all commits, rounded up to whole ones per transaction or group · `applier_fences`: of the background

use std::path::Path;

use memlift_persist::Durability;

use super::failed;
use super::records::Records;
use crate::BenchError;
use crate::persist::draw::Draw;
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};

/// Transactions of a group.
pub const GROUP: u64 = 16;
const RANGES_MAX: u64 = 16;

/// A pool with records.
#[derive(Debug)]
pub struct Fences {
    records: Records,
    grouped: bool,
}

impl Fences {
    /// In a new file at `path`.
    pub fn open(grouped: bool, path: &Path) -> Result<Fences, BenchError> {
        Ok(Fences { records: Records::open(1, path)?, grouped })
    }
}

impl Work for Fences {
    fn about(&self) -> String {
        let what = if self.grouped { "groups of 16 transactions" } else { "transactions of 1 to 16 records" };
        format!("{what}; {}", self.records.about())
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        let pool = self.records.pool();
        let (before, applier_before) = (pool.counters().hardens, pool.applier_counters().hardens);
        let ran = serve::timed(|| {
            for turn in 0..count {
                let ranges = turn % RANGES_MAX + 1;
                if !self.grouped {
                    self.records.transaction(&mut draw, ranges, Durability::Sync)?;
                    continue;
                }
                for _ in 0..GROUP {
                    self.records.transaction(&mut draw, ranges, Durability::Buffered)?;
                }
                pool.sync().map_err(failed)?;
            }
            Ok(())
        })?;
        let hardens = pool.counters().hardens - before;
        let counts = [
            ("fences", hardens.div_ceil(count)),
            ("all_fences", hardens),
            (if self.grouped { "groups" } else { "transactions" }, count),
            ("applier_fences", pool.applier_counters().hardens - applier_before),
        ];
        Ok(Ran { counts: counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect(), ..ran })
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        self.records.step(stop)
    }
}
