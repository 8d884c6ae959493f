// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opening a pool on a disk: one that was closed, and one whose process was killed with a full log.
//!
//! - **Open** a run closes the pool and opens it `count` times; opening alone is timed, with the file in the page cache
//! - **Recover** a run starts this program again to fill the log and to be killed in the middle, then opens the pool, once; its time is
//!   that of a gigabyte of log
//! - **Filled** the heap of an opened pool holds [`FILLED_BYTES`]; the rest is free. What opening reads, the directory, covers all
//!   of it either way

use std::path::{Path, PathBuf};
use std::time::Instant;

use memlift_persist::{Durability, Options, PSlice, Pool, TxOptions};

use super::failed;
use crate::child::Bound;
use crate::persist::draw::Draw;
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};
use crate::{BenchError, machine, reference};

const FILLED_BYTES: u64 = 64 << 20;
/// Bytes that a transaction overwrites.
const CHUNK_BYTES: u64 = 64 << 10;

/// A pool that was closed.
#[derive(Debug)]
pub struct Opening {
    path: PathBuf,
    options: Options,
}

fn fill(pool: &Pool, bytes: u64) -> Result<Vec<PSlice<u8>>, BenchError> {
    let chunk = vec![1u8; CHUNK_BYTES as usize];
    let buffered = TxOptions { durability: Durability::Buffered, ..TxOptions::default() };
    let fill = |_| pool.tx_with(buffered, |t| t.alloc_slice(&chunk)).map_err(failed);
    (0..bytes / CHUNK_BYTES).map(fill).collect()
}

impl Opening {
    /// A heap of this size, in a new file of this folder.
    pub fn open(heap_bytes: u64, folder: &Path) -> Result<Opening, BenchError> {
        let path = folder.join("large.pool");
        let options = Options { heap_bytes, max_bytes: heap_bytes, ..Options::default() };
        let pool = Pool::create(&path, &options).map_err(failed)?;
        fill(&pool, FILLED_BYTES.min(heap_bytes / 4))?;
        pool.close().map_err(failed)?;
        Ok(Opening { path, options })
    }
}

impl Work for Opening {
    fn about(&self) -> String {
        format!(
            "a heap of {} MiB, {} of them filled, closed before; its file in the page cache",
            self.options.heap_bytes >> 20,
            FILLED_BYTES.min(self.options.heap_bytes / 4) >> 20
        )
    }

    fn run(&mut self, _seed: u64, count: u64) -> Result<Ran, BenchError> {
        let (mut seconds, mut cpu_s) = (0.0, 0.0);
        for _ in 0..count {
            let (cpu, start) = (machine::cpu_seconds(), Instant::now());
            let pool = Pool::open(&self.path, &self.options).map_err(failed)?;
            seconds += start.elapsed().as_secs_f64();
            cpu_s += machine::cpu_seconds() - cpu;
            if !pool.recovered().clean {
                return Err(BenchError::Engine { reason: "a pool that was closed is not clean".to_owned() });
            }
            pool.close().map_err(failed)?;
        }
        Ok(Ran { seconds, cpu_s, ..Ran::default() })
    }

    fn step(&mut self, _stop: &dyn Fn()) -> Result<u64, BenchError> {
        Err(BenchError::Engine { reason: "opening is not stepped through".to_owned() })
    }
}

/// A pool whose process is killed.
#[derive(Debug)]
pub struct Recovering {
    path: PathBuf,
    log_bytes: u64,
}

impl Recovering {
    /// With about `log_bytes` in the log, in a new file of this folder.
    pub fn open(log_bytes: u64, folder: &Path) -> Result<Recovering, BenchError> {
        Ok(Recovering { path: folder.join("killed.pool"), log_bytes })
    }
}

/// Gives the log room for twice `log_bytes`, so that nothing is applied before the end.
fn options(log_bytes: u64) -> Options {
    Options {
        heap_bytes: 128 << 20,
        max_bytes: 128 << 20,
        lanes: 2,
        lane_bytes: (log_bytes * 5 / 2).next_multiple_of(1 << 20),
        ..Options::default()
    }
}

/// Fills the log of a new pool and kills this process; returns only on an error.
pub fn be_killed(log_bytes: u64, path: &Path) -> Result<(), BenchError> {
    let pool = Pool::create(path, &options(log_bytes)).map_err(failed)?;
    let chunks = fill(&pool, 64 << 20)?;
    pool.apply().map_err(failed)?;
    let buffered = TxOptions { durability: Durability::Buffered, ..TxOptions::default() };
    let (mut draw, before) = (Draw::new(1), pool.counters().log_bytes);
    for turn in 0.. {
        let chunk = chunks[turn % chunks.len()];
        let committed = pool.tx_with(buffered, |t| {
            reference::pattern_of(t.slice_mut(chunk)?, draw.next());
            Ok(())
        });
        committed.map_err(failed)?;
        if turn % 64 == 63 {
            pool.sync().map_err(failed)?;
            if pool.counters().log_bytes - before >= log_bytes {
                break;
            }
        }
    }
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .map_err(BenchError::system("being killed"))
}

impl Work for Recovering {
    fn about(&self) -> String {
        format!("about {} MiB of log, whose process was killed; per gigabyte", self.log_bytes >> 20)
    }

    fn run(&mut self, _seed: u64, _count: u64) -> Result<Ran, BenchError> {
        // The file does not exist before the first run.
        let _ = std::fs::remove_file(&self.path);
        let mut command = serve::party(&["be_killed", &self.log_bytes.to_string()], &self.path)?;
        let status = Bound::start(&mut command)?.wait()?;
        let mut recovered = None;
        let ran = serve::timed(|| {
            let pool = Pool::open(&self.path, &options(self.log_bytes)).map_err(failed)?;
            recovered = Some(pool.recovered());
            Ok(())
        })?;
        let Some(recovered) = recovered.filter(|recovered| recovered.log_bytes >= self.log_bytes / 2) else {
            let program = "the process that was to be killed".to_owned();
            return Err(BenchError::Child { program, status: status.to_string() });
        };
        let gigabytes = recovered.log_bytes as f64 * 1e-9;
        let counts = [("transactions", recovered.transactions), ("log_bytes", recovered.log_bytes)]
            .map(|(n, c)| (n.to_owned(), c));
        Ok(Ran {
            seconds: ran.seconds / gigabytes,
            cpu_s: ran.cpu_s / gigabytes,
            counts: counts.into_iter().collect(),
            ..ran
        })
    }

    fn step(&mut self, _stop: &dyn Fn()) -> Result<u64, BenchError> {
        Err(BenchError::Engine { reason: "recovery is not stepped through".to_owned() })
    }
}
