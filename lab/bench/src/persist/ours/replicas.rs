// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A replica in a folder: how far it is behind, and how long a restore takes.
//!
//! - **Window** (`window`) a run commits a value every few milliseconds, durably, while the pool is replicated by default settings; its time is the
//!   median from the end of a commit to the moment at which the replica has it. The longest is counted
//! - **Restore** a run restores the pool to a new file, once; its time is that of a gigabyte of what it read. `limit`: the same bytes read from one file,
//!   written to another and synced
//! - **Check** behind every run a restored pool has every value that was put into the other one, byte for byte

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlift_persist::kv::Kv;
use memlift_persist::replicate::{ReplicaOptions, restore};
use memlift_persist::{Durability, Options, Pool};

use super::failed;
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};
use crate::statistics::median;
use crate::{BenchError, machine, reference};

/// Commits of a run are so far apart.
const APART: Duration = Duration::from_millis(37);
/// How often it is looked how far the replica is.
const LOOK: Duration = Duration::from_micros(500);
/// Longer than any commit should wait.
const PATIENCE: Duration = Duration::from_secs(60);
const VALUE_BYTES: usize = 1000;
/// Keys of the window's pool.
const KEYS: u64 = 10_000;
/// Values of the restored pool.
const LARGE_BYTES: usize = 1 << 20;

fn engine(reason: String) -> BenchError {
    BenchError::Engine { reason }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    reference::pattern_of(&mut value, number);
    value
}

fn url(folder: &Path) -> Result<String, BenchError> {
    folder.to_str().map(str::to_owned).ok_or_else(|| engine(format!("{} is not UTF-8", folder.display())))
}

/// Restores a replica and compares every value; gives the restored bytes.
fn compared(
    url: &str,
    target: &Path,
    expected: impl Iterator<Item = (u64, Vec<u8>)>,
) -> Result<u64, BenchError> {
    let restored = restore(url, target, None).map_err(failed)?;
    compare(target, expected)?;
    std::fs::remove_file(target).map_err(BenchError::file(target))?;
    Ok(restored.bytes)
}

fn compare(pool: &Path, expected: impl Iterator<Item = (u64, Vec<u8>)>) -> Result<(), BenchError> {
    let pool = Pool::open(pool, &Options::default()).map_err(failed)?;
    let store = Kv::open(&pool, Durability::Sync).map_err(failed)?;
    for (number, wanted) in expected {
        if store.get(&key(number)).map_err(failed)?.as_deref() != Some(&wanted[..]) {
            return Err(engine(format!("the restored pool has another value of key {number}")));
        }
    }
    Ok(())
}

/// A pool that is replicated while it is written.
#[derive(Debug)]
pub struct Window {
    pool: Pool,
    url: String,
    restored: PathBuf,
    /// The number that each key's value was made of.
    latest: Vec<u64>,
}

impl Window {
    /// In new files of this folder.
    pub fn open(folder: &Path) -> Result<Window, BenchError> {
        let options = Options { max_bytes: 1 << 30, ..Options::default() };
        let pool = Pool::create(folder.join("written.pool"), &options).map_err(failed)?;
        let store = Kv::open(&pool, Durability::Buffered).map_err(failed)?;
        for number in 0..KEYS {
            store.set(&key(number), &value(number, VALUE_BYTES), 0).map_err(failed)?;
        }
        drop(store);
        let url = url(&folder.join("replica"))?;
        Ok(Window { pool, url, restored: folder.join("restored.pool"), latest: (0..KEYS).collect() })
    }
}

impl Work for Window {
    fn about(&self) -> String {
        format!(
            "memlift {}, {KEYS} values of {VALUE_BYTES} bytes, a durable commit each {} ms, the default interval of 1 s, a folder",
            env!("CARGO_PKG_VERSION"),
            APART.as_millis()
        )
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let cpu = machine::cpu_seconds();
        let store = Kv::open(&self.pool, Durability::Sync).map_err(failed)?;
        let replication = self.pool.replicate(&self.url, &ReplicaOptions::default()).map_err(failed)?;
        replication.wait(PATIENCE).map_err(failed)?; // the first segment has all pages
        let sent_before = replication.status().bytes;
        let (mut waiting, mut delays) = (std::collections::VecDeque::new(), Vec::new());
        let (mut next, mut done) = (Instant::now(), 0);
        while done < count || !waiting.is_empty() {
            if done < count && Instant::now() >= next {
                let number = (seed << 32) + done;
                let place = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS) as usize;
                store.set(&key(place as u64), &value(number, VALUE_BYTES), 0).map_err(failed)?;
                self.latest[place] = number;
                let status = replication.status();
                waiting.push_back((status.committed.unwrap_or_default(), Instant::now()));
                (done, next) = (done + 1, next + APART);
            }
            let status = replication.status();
            if let Some(why) = status.trouble {
                return Err(engine(why));
            }
            while let Some((sequence, since)) = waiting.front().copied() {
                if sequence > status.sequence {
                    if since.elapsed() > PATIENCE {
                        return Err(engine("a commit does not come into the replica".to_owned()));
                    }
                    break;
                }
                delays.push(since.elapsed().as_secs_f64());
                waiting.pop_front();
            }
            std::thread::sleep(LOOK);
        }
        let sent = replication.status().bytes - sent_before;
        drop(store);
        replication.finish(PATIENCE).map_err(failed)?;
        let expected = (0..).zip(&self.latest).map(|(key, number)| (key, value(*number, VALUE_BYTES)));
        compared(&self.url, &self.restored, expected)?;
        let worst = delays.iter().copied().fold(0.0, f64::max);
        let counts = [("worst_us", (worst * 1e6) as u64), ("sent_bytes_per_commit", sent / count)];
        Ok(Ran {
            // The median stands for each commit.
            seconds: median(delays.iter().copied()) * count as f64,
            cpu_s: machine::cpu_seconds() - cpu,
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect(),
            ..Ran::default()
        })
    }

    fn step(&mut self, _stop: &dyn Fn()) -> Result<u64, BenchError> {
        Err(engine("a replica is not stepped through".to_owned()))
    }
}

/// A replica that is restored.
#[derive(Debug)]
pub struct Restoring {
    url: String,
    target: PathBuf,
    bytes: u64,
    /// A file with as many bytes, for the limit.
    plain: Option<PathBuf>,
}

impl Restoring {
    /// Of a pool with so many bytes of values, in this folder; with `limit`, a file is copied in its place.
    pub fn open(bytes: u64, limit: bool, folder: &Path) -> Result<Restoring, BenchError> {
        let target = folder.join("restored.pool");
        let url = url(&folder.join("replica"))?;
        if limit {
            let plain = folder.join("plain");
            let file = File::create(&plain).map_err(BenchError::file(&plain))?;
            for number in 0..bytes / LARGE_BYTES as u64 {
                std::io::Write::write_all(&mut &file, &value(number, LARGE_BYTES))
                    .map_err(BenchError::file(&plain))?;
            }
            file.sync_all().map_err(BenchError::file(&plain))?;
            return Ok(Restoring { url, target, bytes, plain: Some(plain) });
        }
        let options = Options { max_bytes: bytes * 2 + (256 << 20), ..Options::default() };
        let path = folder.join("written.pool");
        let pool = Pool::create(&path, &options).map_err(failed)?;
        let store = Kv::open(&pool, Durability::Buffered).map_err(failed)?;
        for number in 0..bytes / LARGE_BYTES as u64 {
            store.set(&key(number), &value(number, LARGE_BYTES), 0).map_err(failed)?;
        }
        drop(store);
        pool.replicate_once(&url, &ReplicaOptions::default()).map_err(failed)?;
        pool.close().map_err(failed)?;
        std::fs::remove_file(&path).map_err(BenchError::file(&path))?;
        Ok(Restoring { url, target, bytes, plain: None })
    }
}

impl Work for Restoring {
    fn about(&self) -> String {
        match &self.plain {
            Some(_) => format!("a file of {} MiB read, written to another one and synced", self.bytes >> 20),
            None => format!(
                "memlift {}, a snapshot with {} MiB of values in a folder, each object and page compared with its checksum; per gigabyte",
                env!("CARGO_PKG_VERSION"),
                self.bytes >> 20
            ),
        }
    }

    fn run(&mut self, _seed: u64, _count: u64) -> Result<Ran, BenchError> {
        let _ = std::fs::remove_file(&self.target); // there is none before the first run
        let mut read = self.bytes;
        let ran = serve::timed(|| {
            match &self.plain {
                Some(plain) => {
                    let copied =
                        std::fs::copy(plain, &self.target).and_then(|_| File::open(&self.target)?.sync_all());
                    copied.map_err(BenchError::file(&self.target))?;
                }
                None => read = restore(&self.url, &self.target, None).map_err(failed)?.bytes,
            }
            Ok(())
        })?;
        let gigabytes = read as f64 * 1e-9;
        let counts = if self.plain.is_none() {
            let expected =
                (0..self.bytes / LARGE_BYTES as u64).map(|number| (number, value(number, LARGE_BYTES)));
            compare(&self.target, expected)?;
            std::iter::once(("read_bytes".to_owned(), read)).collect()
        } else {
            std::collections::BTreeMap::default()
        };
        Ok(Ran { seconds: ran.seconds / gigabytes, cpu_s: ran.cpu_s / gigabytes, counts, ..ran })
    }

    fn step(&mut self, _stop: &dyn Fn()) -> Result<u64, BenchError> {
        Err(engine("a restore is not stepped through".to_owned()))
    }
}
