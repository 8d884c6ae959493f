// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sorted map in a pool on a disk, used as the rival stores are.
//!
//! - **Workload** `commit`: one insert per durable transaction · `group16`: the same from 16 threads, each transaction its own,
//!   durable when it returns · `get`: random reads · `scan`: 100 neighbours from a random key
//! - **Window** as the rivals': commits, gets or scans; opening, loading and the sum after inserts lie outside. After inserts the log
//!   is brought to its place within the window: a pool owes nothing when the clock stops. So a run has as many commits as a rival has
//!   before it brings its log to its place
//! - **Map** one tree in one section for all threads, as the rivals have one table: a thread has the section until its record is in
//!   the log's mirror, and threads that wait for the disk share its sync

use std::path::{Path, PathBuf};

use memlift_persist::structures::BTree;
use memlift_persist::{Durability, Options, Pool, TxOptions};

use super::maps::Value;
use super::{about, failed};
use crate::BenchError;
use crate::persist::draw::Draw;
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};

/// Entries of a scan, as in the rivals' program.
const SCANNED: usize = 100;
const THREADS: u64 = 16;
/// The pool's file in its folder.
const FILE: &str = "entries.pool";
/// Rows of one transaction of the loading.
const LOADED_AT_ONCE: u64 = 1000;

/// The key of a row that is loaded before anything is timed: its draw from this seed.
const LOADED_SEED: u64 = 0x6b65_7973;

#[inline]
fn loaded_key(row: u64) -> u64 {
    Draw::new(LOADED_SEED).skip(row).next()
}

/// Reads `count` of `loaded` rows; the sum of what was there.
pub fn gets(
    pool: &Pool,
    entries: &BTree<u64, Value>,
    loaded: u64,
    draw: &mut Draw,
    count: u64,
) -> Result<u64, BenchError> {
    let sum = pool.read(|r| {
        let mut sum = 0u64;
        for _ in 0..count {
            let key = loaded_key(draw.next() % loaded);
            if let Some(value) = entries.get(r, &key)? {
                sum = sum.wrapping_add(value.sum(key));
            }
        }
        Ok(sum)
    });
    sum.map_err(failed)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Workload {
    Commit,
    Group,
    Get,
    Scan,
}

impl Workload {
    fn parse(name: &str) -> Option<Workload> {
        Some(match name {
            "commit" => Workload::Commit,
            "group16" => Workload::Group,
            "get" => Workload::Get,
            "scan" => Workload::Scan,
            _ => return None,
        })
    }

    fn reads(self) -> bool {
        matches!(self, Workload::Get | Workload::Scan)
    }
}

/// A pool with the map.
#[derive(Debug)]
pub struct Stores {
    pool: Pool,
    options: Options,
    entries: BTree<u64, Value>,
    workload: Workload,
    loaded: u64,
}

impl Stores {
    /// With `loaded` rows, in a new file of this folder; None for an unknown workload.
    pub fn open(workload: &str, loaded: u64, folder: &Path) -> Result<Option<Stores>, BenchError> {
        let Some(workload) = Workload::parse(workload) else { return Ok(None) };
        Stores::with(workload, loaded, folder, 0).map(Some)
    }

    /// The same, whose pool other processes may read.
    pub fn beside_readers(loaded: u64, folder: &Path) -> Result<Stores, BenchError> {
        Stores::with(Workload::Get, loaded, folder, 64 << 20)
    }

    fn with(
        workload: Workload,
        loaded: u64,
        folder: &Path,
        readers_bytes: u64,
    ) -> Result<Stores, BenchError> {
        let heap_bytes = if workload.reads() { 256 << 20 } else { 32 << 20 };
        let max_bytes = heap_bytes;
        let options =
            Options { heap_bytes, max_bytes, lanes: 2, prefault: true, readers_bytes, ..Options::default() };
        // Its name stays: a file without one might be cheaper to sync.
        let pool = Pool::create(folder.join(FILE), &options).map_err(failed)?;
        let entries = pool.tx(BTree::create).map_err(failed)?;
        let buffered = TxOptions { durability: Durability::Buffered, ..TxOptions::default() };
        for first in (0..loaded).step_by(LOADED_AT_ONCE as usize) {
            let committed = pool.tx_with(buffered, |t| {
                (first..loaded.min(first + LOADED_AT_ONCE)).try_for_each(|row| {
                    let key = loaded_key(row);
                    entries.insert(t, &key, Value::of(key)).map(drop)
                })
            });
            committed.map_err(failed)?;
        }
        pool.apply().map_err(failed)?;
        Ok(Stores { pool, options, entries, workload, loaded })
    }

    /// The pool's file.
    pub fn path(&self, folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// Where the map is.
    pub fn place(&self) -> u64 {
        self.entries.pointer().offset()
    }

    /// The pool and its options.
    pub fn parts(&self) -> (&Pool, &Options) {
        (&self.pool, &self.options)
    }

    /// Inserts all keys in one transaction, which is durable then.
    pub fn insert_at_once(&self, keys: &[u64]) -> Result<(), BenchError> {
        let committed = self
            .pool
            .tx(|t| keys.iter().try_for_each(|key| self.entries.insert(t, key, Value::of(*key)).map(drop)));
        committed.map_err(failed)
    }

    /// Inserts `count` keys of this seed, each in a transaction of its own.
    pub fn commit_each(&self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        let keys: Vec<u64> = (0..count).map(|_| draw.next()).collect();
        self.inserted(|| self.commits(&keys, Durability::Sync))
    }

    fn commits(&self, keys: &[u64], durability: Durability) -> Result<(), BenchError> {
        let options = TxOptions { durability, ..TxOptions::default() };
        keys.iter().try_for_each(|key| {
            let committed =
                self.pool.tx_with(options, |t| self.entries.insert(t, key, Value::of(*key)).map(drop));
            committed.map_err(failed)
        })
    }

    fn group(&self, threads: &[Vec<u64>]) -> Result<(), BenchError> {
        std::thread::scope(|scope| {
            let running: Vec<_> =
                threads.iter().map(|keys| scope.spawn(|| self.commits(keys, Durability::Group))).collect();
            running.into_iter().try_for_each(|thread| {
                let panicked = |_| BenchError::Engine { reason: "a thread panicked".to_owned() };
                thread.join().map_err(panicked)?
            })
        })
    }

    /// Times the inserts and the applying of their log; then returns the sum of all entries, and the counts of syncs and log
    /// bytes.
    fn inserted(&self, insert: impl FnOnce() -> Result<(), BenchError>) -> Result<Ran, BenchError> {
        let (before, applier_before) = (self.pool.counters(), self.pool.applier_counters());
        let ran = serve::timed(|| {
            insert()?;
            self.pool.apply().map_err(failed)
        })?;
        let (after, applier) = (self.pool.counters(), self.pool.applier_counters());
        let counts = [
            ("syncs", after.hardens - before.hardens),
            ("applier_syncs", applier.hardens - applier_before.hardens),
            ("log_bytes", after.log_bytes - before.log_bytes),
        ];
        let counts = counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect();
        Ok(Ran { checksum: serve::checksum(self.all()?), counts, ..ran })
    }

    fn all(&self) -> Result<u64, BenchError> {
        let sum = self.pool.read(|r| {
            self.entries
                .iter(r)?
                .try_fold(0, |sum: u64, entry| entry.map(|(key, value)| sum.wrapping_add(value.sum(*key))))
        });
        sum.map_err(failed)
    }

    fn scans(&self, draw: &mut Draw, count: u64) -> Result<u64, BenchError> {
        let sum = self.pool.read(|r| {
            let mut sum = 0u64;
            for _ in 0..count {
                let key = loaded_key(draw.next() % self.loaded);
                for entry in self.entries.range(r, &key..)?.take(SCANNED) {
                    let (key, value) = entry?;
                    sum = sum.wrapping_add(value.sum(*key));
                }
            }
            Ok(sum)
        });
        sum.map_err(failed)
    }

    fn read(
        &self,
        seed: u64,
        read: impl FnOnce(&mut Draw) -> Result<u64, BenchError>,
    ) -> Result<Ran, BenchError> {
        let (mut draw, mut sum) = (Draw::new(seed), 0);
        let ran = serve::timed(|| read(&mut draw).map(|read| sum = read))?;
        Ok(Ran { checksum: serve::checksum(sum), ..ran })
    }
}

impl Work for Stores {
    fn about(&self) -> String {
        let map = if self.workload == Workload::Group {
            ", one B+tree in one section, Durability::Group"
        } else {
            ", one B+tree"
        };
        about(&self.pool, &self.options) + map
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        match self.workload {
            Workload::Commit => {
                let mut draw = Draw::new(seed);
                let keys: Vec<u64> = (0..count).map(|_| draw.next()).collect();
                self.inserted(|| self.commits(&keys, Durability::Sync))
            }
            Workload::Group => {
                let mut draw = Draw::new(seed);
                let mut keys = || (0..count / THREADS).map(|_| draw.next()).collect();
                let threads: Vec<Vec<u64>> = (0..THREADS).map(|_| keys()).collect();
                self.inserted(|| self.group(&threads))
            }
            Workload::Get => {
                self.read(seed, |draw| gets(&self.pool, &self.entries, self.loaded, draw, count))
            }
            Workload::Scan => self.read(seed, |draw| self.scans(draw, count)),
        }
    }

    fn step(&mut self, _stop: &dyn Fn()) -> Result<u64, BenchError> {
        Err(BenchError::Engine {
            reason: "a sync is no instruction; stores are not stepped through".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::persist::disk::Folder;

    fn sum(keys: impl Iterator<Item = u64>) -> String {
        serve::checksum(keys.fold(0, |sum: u64, key| sum.wrapping_add(Value::of(key).sum(key))))
    }

    #[test]
    fn commits_of_one_thread_and_of_sixteen_leave_what_plain_rust_leaves() {
        let folder = Folder::new().expect("a disk");
        for workload in ["commit", "group16"] {
            let place = folder.path.join(workload);
            std::fs::create_dir_all(&place).expect("made");
            let mut store = Stores::open(workload, 10_000, &place).expect("opens").expect("a workload");
            let mut keys: BTreeSet<u64> = (0..10_000).map(loaded_key).collect();
            for seed in [1, 2] {
                let ran = store.run(seed, 32).expect("runs");
                let mut draw = Draw::new(seed);
                keys.extend((0..32).map(|_| draw.next()));
                assert_eq!(ran.checksum, sum(keys.iter().copied()), "{workload}");
                assert!((1..=32).contains(&ran.counts["syncs"]), "{workload}: {:?}", ran.counts);
            }
        }
    }
}
