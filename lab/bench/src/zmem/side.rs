// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process with a set of pages larger than its memory: under zmem's budget, or in a group with a limit over swap.
//!
//! - **Flow** this program, started again as `zmem_side SIDE TOTAL SET ENTRANCE CONTENTS`, enters its group, fills its set and says `ready`
//!   ─▶ one wish a line on stdin, one answer a line on stdout, until stdin ends
//! - **Layout** `random ACCESSES SEED WRITE_PERCENT THREADS` or `scan PASSES` ─▶
//!   `NANOSECONDS CPU_NANOSECONDS P99_NANOSECONDS CHECKSUM`
//! - **Rule** both sides draw the same pages and words; the checksum is over all words read
//! - **Owner** [`Side`] ends the process; the process also ends when its stdin does

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use memlift_zmem::arena::{self, Arena};
use memlift_zmem::block::{Objectives, OnOverflow};

use super::corpora::{Corpus, PAGE_BYTES, Page, Random};
use super::group::Group;
use crate::child::Bound;
use crate::contender::CHILD_ARGUMENT;
use crate::{BenchError, machine};

/// Word after [`CHILD_ARGUMENT`] that starts a side.
pub(crate) const NAME: &str = "zmem_side";

/// Side that holds the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A job with this total.
    Zmem {
        /// Bytes of real memory.
        total: u64,
    },
    /// A process that its group's limit sends into swap.
    Swap,
}

/// Result of a command to a side.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Wall time, seconds.
    pub seconds: f64,
    /// CPU time of all threads, seconds.
    pub cpu_s: f64,
    /// The 99th percentile of one access, seconds.
    pub p99: f64,
    /// Checksum over all words read.
    pub checksum: u64,
}

/// A running side.
#[derive(Debug)]
pub struct Side {
    // Fields drop in this order: the process sees the end of its stdin before it is killed, and has ended before its
    // group is removed.
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _child: Bound,
    /// The group that counts its memory.
    pub group: Group,
}

fn answer(text: &str) -> BenchError {
    BenchError::Answer { program: "a process of the zmem bench".to_owned(), answer: text.trim().to_owned() }
}

impl Side {
    /// Starts it and waits until its set is filled.
    pub fn start(who: Holder, set: u64, contents: &Contents, group: Group) -> Result<Side, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
        let (name, total) = match who {
            Holder::Zmem { total } => ("job", total),
            Holder::Swap => ("swap", 0),
        };
        let mut command = Command::new(program);
        command
            .args([CHILD_ARGUMENT, NAME, name, &total.to_string(), &set.to_string()])
            .arg(group.entrance())
            .arg(&contents.0);
        let mut child = Bound::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (Some(stdin), Some(stdout)) = (child.process().stdin.take(), child.process().stdout.take())
        else {
            return Err(answer("no pipes"));
        };
        let mut side = Side { stdin, stdout: BufReader::new(stdout), _child: child, group };
        match side.line()?.trim() {
            "ready" => Ok(side),
            other => Err(answer(other)),
        }
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(BenchError::system("reading from a child process"))?;
        Ok(line)
    }

    /// Sends a command and waits for its result.
    pub fn command(&mut self, wish: &str) -> Result<Took, BenchError> {
        writeln!(self.stdin, "{wish}").map_err(BenchError::system("writing to a child process"))?;
        let line = self.line()?;
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [ns, cpu_ns, p99_ns, checksum] => Ok(Took {
                seconds: ns as f64 * 1e-9,
                cpu_s: cpu_ns as f64 * 1e-9,
                p99: p99_ns as f64 * 1e-9,
                checksum,
            }),
            _ => Err(answer(&line)),
        }
    }
}

/// Times of single accesses: 16 steps to each doubling.
struct Histogram([u32; 1024]);

impl Histogram {
    fn bucket(ns: u64) -> usize {
        let ns = ns.max(16);
        let doubling = ns.ilog2() as usize;
        (doubling * 16 + (ns >> (doubling - 4) & 15) as usize).min(1023)
    }

    fn p99(&self) -> u64 {
        let (all, mut seen) = (self.0.iter().map(|count| u64::from(*count)).sum::<u64>(), 0);
        for (bucket, count) in self.0.iter().enumerate() {
            seen += u64::from(*count);
            if seen * 100 >= all * 99 && seen > 0 {
                return ((16 + bucket as u64 % 16) << (bucket / 16)) >> 4;
            }
        }
        0
    }
}

fn word(page: &[u8], word: usize) -> u64 {
    page.get(word * 8..word * 8 + 8)
        .map_or(0, |bytes| bytes.iter().rfold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Random accesses to `set`; the sum of the words.
fn random(set: &mut [u8], accesses: u64, seed: u64, write_percent: u64, times: &mut Histogram) -> u64 {
    let (mut random, mut sum) = (Random(seed), 0u64);
    let pages = (set.len() / PAGE_BYTES) as u64;
    for _ in 0..accesses {
        let (page, at) = (random.below(pages) as usize, random.below(512) as usize);
        let writes = write_percent > 0 && random.below(100) < write_percent;
        let start = Instant::now();
        let place = &mut set[page * PAGE_BYTES..][..PAGE_BYTES];
        let value = std::hint::black_box(word(place, at));
        if writes {
            place[at * 8..at * 8 + 8].copy_from_slice(&value.wrapping_add(1).to_le_bytes());
        }
        times.0[Histogram::bucket(start.elapsed().as_nanos() as u64)] += 1;
        sum = sum.wrapping_add(value);
    }
    sum
}

/// The same from several threads, which only read.
fn random_threads(set: &[u8], accesses: u64, seed: u64, threads: u64, times: &mut Histogram) -> u64 {
    let parts: Vec<(u64, Histogram)> = std::thread::scope(|scope| {
        let part = |thread: u64| {
            let (mut random, mut sum, mut times) = (Random(seed ^ thread << 32), 0u64, Histogram([0; 1024]));
            let pages = (set.len() / PAGE_BYTES) as u64;
            for _ in 0..accesses / threads {
                let (page, at) = (random.below(pages) as usize, random.below(512) as usize);
                let start = Instant::now();
                let value = std::hint::black_box(word(&set[page * PAGE_BYTES..][..PAGE_BYTES], at));
                times.0[Histogram::bucket(start.elapsed().as_nanos() as u64)] += 1;
                sum = sum.wrapping_add(value);
            }
            (sum, times)
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    for (_, part) in &parts {
        for (count, more) in times.0.iter_mut().zip(part.0) {
            *count += more;
        }
    }
    parts.iter().fold(0, |sum, (part, _)| sum.wrapping_add(*part))
}

/// Reads a word of every page in order; each page counts as an access.
fn scan(set: &[u8], passes: u64, times: &mut Histogram) -> u64 {
    let mut sum = 0u64;
    for pass in 0..passes {
        for page in set.chunks_exact(PAGE_BYTES) {
            let start = Instant::now();
            sum = sum.wrapping_add(std::hint::black_box(word(page, (pass * 67 % 512) as usize)));
            times.0[Histogram::bucket(start.elapsed().as_nanos() as u64)] += 1;
        }
    }
    sum
}

/// File with which sides fill their sets: a third each of a Python heap, a data frame and a graph, in stretches of 1 MiB. It is
/// made by this process, where no budget counts it.
#[derive(Debug)]
pub struct Contents(PathBuf);

impl Contents {
    /// Writes a file of 48 MiB into the folder for temporary files.
    pub fn create() -> Result<Contents, BenchError> {
        let count = 4096;
        let sources: [Vec<Page>; 3] =
            [Corpus::Heap, Corpus::Columns, Corpus::Csr].map(|corpus| corpus.pages(count, 11));
        let contents =
            Contents(std::env::temp_dir().join(format!("memlift-bench-zmem-{}", std::process::id())));
        let pages = (0..3 * count).map(|index| sources[index / 256 % 3][index / 768 * 256 + index % 256]);
        let bytes: Vec<u8> = pages.flatten().collect();
        fs::write(&contents.0, bytes).map_err(BenchError::file(&contents.0))?;
        Ok(contents)
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        // The file lies in the folder for temporary files, and may have been removed there.
        let _ = fs::remove_file(&self.0);
    }
}

/// Fills the set from the file, over and over.
fn fill(set: &mut [u8], contents: &Path) -> Result<(), BenchError> {
    let file = fs::File::open(contents).map_err(BenchError::file(contents))?;
    let pages = file.metadata().map_err(BenchError::file(contents))?.len() / PAGE_BYTES as u64;
    let mut page = [0; PAGE_BYTES];
    for (index, target) in set.chunks_exact_mut(PAGE_BYTES).enumerate() {
        // The page goes through the stack, so that the kernel does not fault in pages of the set itself.
        let offset = index as u64 % pages * PAGE_BYTES as u64;
        file.read_exact_at(&mut page, offset).map_err(BenchError::file(contents))?;
        target.copy_from_slice(&page);
    }
    Ok(())
}

fn serve_wishes(set: &mut [u8], contents: &Path) -> Result<(), BenchError> {
    fill(set, contents)?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("reading a wish"))?;
        let mut words = line.split_whitespace();
        let what = words.next().unwrap_or_default().to_owned();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let mut times = Histogram([0; 1024]);
        let (cpu, start) = (machine::cpu_seconds(), Instant::now());
        let sum = match (what.as_str(), &numbers[..]) {
            ("random", [accesses, seed, writes, 1]) => random(set, *accesses, *seed, *writes, &mut times),
            ("random", [accesses, seed, 0, threads]) => {
                random_threads(set, *accesses, *seed, *threads, &mut times)
            }
            ("scan", [passes]) => scan(set, *passes, &mut times),
            _ => return Err(answer(&line)),
        };
        let ns = start.elapsed().as_nanos();
        let cpu_ns = ((machine::cpu_seconds() - cpu) * 1e9) as u64;
        println!("{ns} {cpu_ns} {} {sum}", times.p99());
    }
    Ok(())
}

/// Runs as a side.
pub(crate) fn serve(mut arguments: impl Iterator<Item = OsString>) -> Result<(), BenchError> {
    let mut text = || arguments.next().and_then(|text| text.into_string().ok()).ok_or_else(|| answer("who?"));
    let (side, total, set, entrance, contents) = (text()?, text()?, text()?, text()?, text()?);
    let contents = Path::new(&contents);
    let number = |text: String| text.parse::<usize>().map_err(|_| answer(&text));
    let (total, set) = (number(total)?, number(set)?);
    fs::write(&entrance, "0").map_err(BenchError::file(&entrance))?;
    if side == "swap" {
        return serve_wishes(&mut vec![0; set], contents);
    }
    let engine = |error: memlift_zmem::Error| BenchError::Engine { reason: error.to_string() };
    let objectives =
        Objectives { total, unused: total / 64, min_uncompressed: 0, on_overflow: OnOverflow::Fail };
    let pager = arena::enter("bench", &objectives).map_err(engine)?;
    let mut set = Arena::new(pager, set).map_err(engine)?;
    let served = serve_wishes(&mut set, contents);
    if std::env::var_os("MEMLIFT_BENCH_NUMBERS").is_some() {
        eprintln!("{:?}", pager.numbers());
    }
    served
}
