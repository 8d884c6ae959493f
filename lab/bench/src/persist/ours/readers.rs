// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Four processes that read a pool beside the one that writes it.
//!
//! - **Workload** `readers4`: the writer commits 16 inserts, durably; then each process sees them and reads its share of the gets ·
//!   `beside`, `alone`: durable inserts, one for each transaction; with `beside` each process takes a new snapshot and reads 100 keys every 10 ms meanwhile
//! - **Window** `readers4`: from the commit to the last process's answer · the others: the commits, and the applying of their log
//! - **Flow** [`Readers`] starts this program again as `persist reader POOL OFFSET` ─▶ `run SEED COUNT` ─▶ a line with the sum of what it read

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlift_persist::structures::BTree;
use memlift_persist::{Options, PPtr, Pool};

use super::maps::Value;
use super::stores::{self, Stores};
use super::{about, failed};
use crate::BenchError;
use crate::child::Bound;
use crate::persist::draw::Draw;
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};

const PROCESSES: u64 = 4;
/// Inserts of the transaction that readers have to see.
const COMMITTED: u64 = 16;
/// Gets of a reader beside a writer, and how often it has them.
const PACED_GETS: u64 = 100;
const PACE: Duration = Duration::from_millis(10);

/// A process that reads.
#[derive(Debug)]
struct Reader {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _child: Bound,
}

impl Reader {
    fn start(pool: &Path, place: u64, loaded: u64) -> Result<Reader, BenchError> {
        let wish = ["reader", &place.to_string(), &loaded.to_string()];
        let mut command = serve::party(&wish, pool)?;
        let mut child = Bound::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let process = child.process();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let (stdin, stdout) = (stdin.expect("it is piped"), BufReader::new(stdout.expect("it is piped")));
        let mut reader = Reader { stdin, stdout, _child: child };
        reader.hear()?;
        Ok(reader)
    }

    fn say(&mut self, seed: u64, count: u64) -> Result<(), BenchError> {
        let said = writeln!(self.stdin, "{seed} {count}").and_then(|()| self.stdin.flush());
        said.map_err(BenchError::system("asking a reader"))
    }

    fn hear(&mut self) -> Result<u64, BenchError> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(BenchError::system("hearing a reader"))?;
        let answer = || BenchError::Answer { program: "a reader".to_owned(), answer: line.clone() };
        line.trim().parse().map_err(|_| answer())
    }
}

/// This program as a reader: until its stdin ends.
pub fn read(place: u64, loaded: u64, path: &Path) -> Result<(), BenchError> {
    let options = Options { read_only: true, ..Options::default() };
    let mut pool = Pool::open(path, &options).map_err(failed)?;
    let entries: BTree<u64, Value> = BTree::open(PPtr::from_offset(place));
    let answer = |sum: u64| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{sum}").and_then(|()| stdout.flush()).map_err(BenchError::system("answering"))
    };
    answer(0)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("reading a wish"))?;
        let wish =
            || BenchError::Answer { program: "whoever started this reader".to_owned(), answer: line.clone() };
        let (seed, count) = line.split_once(' ').ok_or_else(wish)?;
        let (seed, count) = (seed.parse().map_err(|_| wish())?, count.parse().map_err(|_| wish())?);
        pool.refresh().map_err(failed)?;
        answer(stores::gets(&pool, &entries, loaded, &mut Draw::new(seed), count)?)?;
    }
    Ok(())
}

/// The writer, and its readers.
#[derive(Debug)]
pub struct Readers {
    store: Stores,
    readers: Vec<Reader>,
    /// The readers read while the writer's commits are timed.
    paced: bool,
}

impl Readers {
    /// With `loaded` rows, in a new file of this folder; None for an unknown workload.
    pub fn open(workload: &str, loaded: u64, folder: &Path) -> Result<Option<Readers>, BenchError> {
        let paced = match workload {
            "readers4" => false,
            "beside" | "alone" => true,
            _ => return Ok(None),
        };
        let store = Stores::beside_readers(loaded, folder)?;
        let path: PathBuf = store.path(folder);
        let count = if workload == "alone" { 0 } else { PROCESSES };
        let readers =
            (0..count).map(|_| Reader::start(&path, store.place(), loaded)).collect::<Result<_, _>>()?;
        Ok(Some(Readers { store, readers, paced }))
    }

    /// The readers' gets behind a commit.
    fn behind(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        let keys: Vec<u64> = (0..COMMITTED).map(|_| draw.next()).collect();
        let mut sum = 0u64;
        let Readers { store, readers, .. } = self;
        let ran = serve::timed(|| {
            store.insert_at_once(&keys)?;
            for (seed, reader) in (seed..).zip(readers.iter_mut()) {
                reader.say(seed, count / PROCESSES)?;
            }
            for reader in readers.iter_mut() {
                sum = sum.wrapping_add(reader.hear()?);
            }
            Ok(())
        })?;
        Ok(Ran { checksum: serve::checksum(sum), ..ran })
    }

    /// The writer's commits, with the readers at their pace.
    fn commits(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = std::mem::take(&mut self.readers)
            .into_iter()
            .map(|mut reader| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Acquire) {
                        reader.say(seed, PACED_GETS)?;
                        reader.hear()?;
                        std::thread::sleep(PACE);
                    }
                    Ok::<_, BenchError>(reader)
                })
            })
            .collect();
        let ran = self.store.commit_each(seed, count);
        stop.store(true, Ordering::Release);
        for thread in threads {
            let panicked = |_| BenchError::Engine { reason: "a thread panicked".to_owned() };
            self.readers.push(thread.join().map_err(panicked)??);
        }
        ran
    }
}

impl Work for Readers {
    fn about(&self) -> String {
        let (pool, options) = self.store.parts();
        format!("{}, one B+tree, {} reading processes", about(pool, options), self.readers.len())
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        if self.paced { self.commits(seed, count) } else { self.behind(seed, count) }
    }

    fn step(&mut self, _stop: &dyn Fn()) -> Result<u64, BenchError> {
        Err(BenchError::Engine { reason: "readers are not stepped through".to_owned() })
    }
}
