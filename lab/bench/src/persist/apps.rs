// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole programs on a pool: TPC-C's new-order, TATP and a key-value store, under any mechanism, on one to sixteen threads.
//!
//! - **Flow** [`Apps::open`]: a new pool, its tables filled ─▶ `run`: the transactions of all threads, each durable when it returns, and
//!   what is left of the log brought to its place, all in the window ─▶ every table is looked through, outside of it
//! - **Draw** thread t of run s starts from s * 256 + t; a row that is there at first from its table and number
//! - **Sum** [`Tally`]: of what transactions read and of all that is there. What the order of threads changes counts for one thread only
//! - **Check** looking through the tables fails when a rule of theirs is broken: TPC-C's consistency conditions, references of TATP, whole
//!   values
//! - **Sections** where commits are by lines: one for each part of a table that is locked apart; by pages: one, as they lock the whole pool
//! - **Not here** the rivals' programs, which do the same in C: engines/persist/apps.c

mod kv;
#[cfg(test)]
mod killed;
mod tatp;
mod tatp_rows;
mod tpcc;
mod tpcc_rows;

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use memlift_persist::{Durability, Error, Mechanism, Options, Pool, TxOptions};

use super::draw::Draw;
use super::ours::{about, create, failed};
use super::party::Ran;
use super::serve::{self, Work};
use crate::{BenchError, machine};

/// Most threads of a program.
pub const THREADS_MAX: u64 = 16;
/// Parts of a table that are locked apart.
const PARTS: u64 = 64;
/// Half of it is the largest transaction of those that fill tables.
const LANE_BYTES: u64 = 512 << 10;
/// Transactions that are stepped through, and those before them; the rival has the same numbers.
const STEPPED: u64 = 16;
const BEFORE_STEPS: u64 = 100;

/// Application that both sides run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum App {
    /// New-order transactions of TPC-C.
    Tpcc,
    /// The seven transactions of TATP.
    Tatp,
    /// SETs of a key-value store.
    Kv,
    /// GETs and SETs of a key-value store by halves.
    KvMixed,
}

impl App {
    /// By the second part of a row's name.
    pub fn parse(name: &str) -> Option<App> {
        [App::Tpcc, App::Tatp, App::Kv, App::KvMixed].into_iter().find(|app| app.name() == name)
    }

    /// Returns the second part of a row's name.
    pub fn name(self) -> &'static str {
        match self {
            App::Tpcc => "tpcc",
            App::Tatp => "tatp",
            App::Kv => "kv",
            App::KvMixed => "kv_mixed",
        }
    }

    /// Transactions of a run: some ten milliseconds of the slower side.
    pub fn count(self) -> u64 {
        match self {
            App::Tpcc => 2048,
            App::Tatp => 65_536,
            App::Kv | App::KvMixed => 16_384,
        }
    }

    /// Describes its tables, for the reader who judges the comparison.
    pub fn scale(self) -> &'static str {
        match self {
            App::Tpcc => {
                "TPC-C new-order alone, one warehouse with all 100,000 items and stock rows, 10 districts, 30,000 customers, of wide rows the columns that it uses, no orders at first, terminals of no fixed district"
            }
            App::Tatp => {
                "TATP's mix of seven transactions on 100,000 subscribers, numbers not uniform (A = 65535)"
            }
            App::Kv => {
                "100 % SET on 100,000 records of 16 B keys and 64 B values, Zipf with exponent 1; hash maps on both sides"
            }
            App::KvMixed => {
                "GET and SET by halves on 100,000 records of 16 B keys and 64 B values, Zipf with exponent 1; hash maps on both sides"
            }
        }
    }

    fn rows(self) -> u64 {
        100_000
    }

    fn heap_bytes(self) -> u64 {
        match self {
            App::Tpcc => 192 << 20,
            App::Tatp => 128 << 20,
            App::Kv | App::KvMixed => 64 << 20,
        }
    }

    /// Fills a new pool with tables of `rows` rows.
    fn fill(self, pool: &Pool, rows: u64) -> Result<(), Error> {
        match self {
            App::Tpcc => tpcc_rows::fill(pool, rows),
            App::Tatp => tatp_rows::fill(pool, rows),
            App::Kv | App::KvMixed => kv::fill(pool, rows),
        }
    }

    /// The program on a pool that was filled.
    fn program(self, pool: &Pool, rows: u64) -> Result<Box<dyn Program>, Error> {
        Ok(match self {
            App::Tpcc => Box::new(tpcc::Tpcc::open(pool)?),
            App::Tatp => Box::new(tatp::Tatp::open(pool)?),
            App::Kv => Box::new(kv::Store::open(pool, rows, 100)?),
            App::KvMixed => Box::new(kv::Store::open(pool, rows, 50)?),
        })
    }
}

/// Checksums of what transactions read and left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Sum of everything that is the same in every order of the threads.
    pub settled: u64,
    /// Sum of everything that depends on their order.
    pub racing: u64,
    /// Transactions that undid themselves, as their workload wants.
    pub aborted: u64,
}

impl Tally {
    fn settle(&mut self, sum: u64) {
        self.settled = self.settled.wrapping_add(sum);
    }

    fn race(&mut self, sum: u64) {
        self.racing = self.racing.wrapping_add(sum);
    }
}

/// A program that runs on a pool.
trait Program: std::fmt::Debug + Send + Sync {
    /// Draws in advance the numbers that a thread's next run needs.
    fn prepare(&mut self, _thread: usize, _state: u64, _count: u64) {}

    /// Runs `count` transactions of a thread.
    fn work(
        &self,
        pool: &Pool,
        thread: usize,
        state: u64,
        count: u64,
        tally: &mut Tally,
    ) -> Result<(), Error>;

    /// Reads all tables. Fails when one of their rules is broken.
    fn audit(&self, pool: &Pool, tally: &mut Tally) -> Result<(), Error>;
}

/// One step of splitmix64's finaliser.
fn spread(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Adds a word to a sum that depends on the order of its words.
fn mix(hash: u64, word: u64) -> u64 {
    spread(hash ^ word)
}

/// Returns the draws from which an initial row of a table is made.
fn row_draw(table: u64, row: u64) -> Draw {
    Draw::new(table << 40 | row)
}

/// Returns the seed from which a thread of a run draws.
fn state(seed: u64, thread: usize) -> u64 {
    seed.wrapping_mul(256).wrapping_add(thread as u64)
}

/// A rule of the tables that is broken.
fn broken(what: &str) -> Error {
    Error::Aborted(format!("the tables break a rule: {what}"))
}

/// Returns the section of a part, which is 1 or more; section 0 has the data that all parts share.
fn section(pool: &Pool, part: u64) -> u16 {
    if pool.header().sections == 1 { 0 } else { part as u16 }
}

/// A transaction that fills tables.
fn filling(sections: &[u16]) -> TxOptions<'_> {
    TxOptions { durability: Durability::Buffered, sections: Some(sections) }
}

fn options(app: App, mechanism: Mechanism, threads: u64) -> Options {
    let sections = match mechanism {
        Mechanism::Redo | Mechanism::Undo => match app {
            App::Tpcc => 1 + tpcc_rows::DISTRICTS + PARTS,
            App::Tatp => 1 + PARTS,
            App::Kv | App::KvMixed => PARTS,
        },
        Mechanism::Checkpoint | Mechanism::Shadow => 1,
    };
    Options {
        heap_bytes: app.heap_bytes(),
        max_bytes: app.heap_bytes(),
        lanes: threads as u32 + 1,
        lane_bytes: LANE_BYTES,
        sections: sections as u32,
        mechanism,
        group_wait: Duration::ZERO,
        ..Options::default()
    }
}

/// A program on a pool of its own.
#[derive(Debug)]
pub struct Apps {
    pool: Pool,
    options: Options,
    program: Box<dyn Program>,
    threads: usize,
}

impl Apps {
    /// In a new file at `path`.
    pub fn open(app: App, mechanism: Mechanism, threads: u64, path: &Path) -> Result<Apps, BenchError> {
        Apps::with_rows(app, mechanism, threads, app.rows(), path)
    }

    fn with_rows(
        app: App,
        mechanism: Mechanism,
        threads: u64,
        rows: u64,
        path: &Path,
    ) -> Result<Apps, BenchError> {
        let options = options(app, mechanism, threads);
        let pool = create(path, &options)?;
        app.fill(&pool, rows).map_err(failed)?;
        pool.apply().map_err(failed)?;
        let program = app.program(&pool, rows).map_err(failed)?;
        Ok(Apps { pool, options, program, threads: threads as usize })
    }

    /// Runs all threads, from a barrier to the end of the last one.
    fn transactions(&self, seed: u64, each: u64, tally: &mut Tally) -> Result<Ran, BenchError> {
        let (pool, program) = (&self.pool, &*self.program);
        if self.threads == 1 {
            return serve::timed(|| {
                program.work(pool, 0, state(seed, 0), each, tally).map_err(failed)?;
                pool.apply().map_err(failed)
            });
        }
        let barrier = Barrier::new(self.threads + 1);
        std::thread::scope(|scope| {
            let barrier = &barrier;
            let work = |thread: usize| {
                move || {
                    let mut tally = Tally::default();
                    barrier.wait();
                    program.work(pool, thread, state(seed, thread), each, &mut tally).map(|()| tally)
                }
            };
            let running: Vec<_> = (0..self.threads).map(|thread| scope.spawn(work(thread))).collect();
            let (cpu, start) = (machine::cpu_seconds(), Instant::now());
            barrier.wait();
            for thread in running {
                let panicked = |_| BenchError::Engine { reason: "a thread panicked".to_owned() };
                let done = thread.join().map_err(panicked)?.map_err(failed)?;
                tally.settle(done.settled);
                tally.race(done.racing);
                tally.aborted += done.aborted;
            }
            pool.apply().map_err(failed)?;
            let seconds = start.elapsed().as_secs_f64();
            Ok(Ran { seconds, cpu_s: machine::cpu_seconds() - cpu, ..Ran::default() })
        })
    }
}

impl Work for Apps {
    fn about(&self) -> String {
        format!("{}, {} sections", about(&self.pool, &self.options), self.options.sections)
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let each = count / self.threads as u64;
        (0..self.threads).for_each(|thread| self.program.prepare(thread, state(seed, thread), each));
        let (before, applier) = (self.pool.counters(), self.pool.applier_counters());
        let mut tally = Tally::default();
        let ran = self.transactions(seed, each, &mut tally)?;
        let after = self.pool.counters();
        let counts = [
            ("transactions", each * self.threads as u64),
            ("aborted", tally.aborted),
            ("all_fences", after.hardens - before.hardens),
            ("applier_fences", self.pool.applier_counters().hardens - applier.hardens),
            ("log_bytes", after.log_bytes - before.log_bytes),
        ];
        self.program.audit(&self.pool, &mut tally).map_err(failed)?;
        let racing = if self.threads == 1 { tally.racing } else { 0 };
        let counts = counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect();
        Ok(Ran { checksum: serve::checksum(tally.settled.wrapping_add(racing)), counts, ..ran })
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        let mut tally = Tally::default();
        for (seed, count) in [(1, BEFORE_STEPS), (2, STEPPED)] {
            // The rival steps with seeds 1 and 2. So does this, so that both write the same.
            self.program.prepare(0, seed, count);
            if seed == 2 {
                // Empties the log first: how full it would be is chance, and applying it is timed in the runs.
                self.pool.apply().map_err(failed)?;
                stop();
                stop();
            }
            self.program.work(&self.pool, 0, seed, count, &mut tally).map_err(failed)?;
        }
        stop();
        Ok(STEPPED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persist::disk::Shared;

    const ROWS: u64 = 2000;

    fn apps(app: App, mechanism: Mechanism, threads: u64) -> (Shared, Apps) {
        let place = Shared::new(512 << 20).expect("room in memory");
        let apps = Apps::with_rows(app, mechanism, threads, ROWS, &place.path).expect("opens");
        (place, apps)
    }

    /// With one thread every mechanism leaves the same state. With several, the part that does not depend on their order is the
    /// same.
    #[test]
    fn every_mechanism_and_any_number_of_threads_leave_the_same() {
        for app in [App::Tpcc, App::Tatp, App::Kv, App::KvMixed] {
            for threads in [1, 4] {
                let sums = Mechanism::ALL.map(|mechanism| {
                    let (_place, mut apps) = apps(app, mechanism, threads);
                    [1, 2].map(|seed| {
                        let ran = apps.run(seed, 800).expect("runs and keeps its rules");
                        assert_eq!(ran.counts["transactions"], 800);
                        ran.checksum
                    })
                });
                assert!(sums.iter().all(|sum| *sum == sums[0]), "{app:?}, {threads} threads: {sums:?}");
                // With several threads the last writer of a record is chance. It is not in the sum, so two runs may have the
                // same sum.
                assert!(threads > 1 || sums[0][0] != sums[0][1], "{app:?}");
            }
        }
    }

    #[test]
    fn a_redo_transaction_costs_one_fence() {
        for app in [App::Tpcc, App::Tatp, App::Kv] {
            let (_place, mut apps) = apps(app, Mechanism::Redo, 1);
            apps.run(1, 200).expect("runs");
            let ran = apps.run(2, 200).expect("runs");
            assert!(ran.counts["all_fences"] <= 200, "{app:?}: {:?}", ran.counts);
        }
    }
}
