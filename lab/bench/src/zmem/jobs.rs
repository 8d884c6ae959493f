// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs that need memory: programs as users have them, which know nothing of zmem, with a checksum of their results.
//!
//! - **Flow** this program, started again with [`CHILD_ARGUMENT`](crate::contender::CHILD_ARGUMENT), [`NAME`] and a job's words ─▶ it builds
//!   its data, works on it, and prints one JSON line: [`Done`]
//! - **Served** a graph job whose rounds are `served` does one for each line on its stdin; a file job whose rounds are `endless` says that it
//!   has read its file, and goes on until it is ended
//! - **Others** redis-server, pandas, XGBoost and programs of others, as users bring them ([`missing`])
//! - **Rule** the same words give the same checksum on every machine; memory comes from `malloc`, as in any program
//! - **Not here** what is measured on them, and under which budget

mod columns;
mod file;
mod gapbs;
mod graph;
mod heap;
mod program;
mod redis;

use std::ffi::OsString;
use std::io::BufRead;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::corpora::Random as Draw;
use crate::contender::CHILD_ARGUMENT;
use crate::{BenchError, machine, python};

/// The word after [`CHILD_ARGUMENT`].
pub(crate) const NAME: &str = "zmem_job";

/// Report that a job prints.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Checksum of its results.
    pub checksum: String,
    /// Seconds of building its data.
    pub built_s: f64,
    /// Seconds of the work proper.
    pub worked_s: f64,
    /// CPU of all threads in that time, seconds; 0 if the job does not report it.
    #[serde(default)]
    pub cpu_s: f64,
}

/// A sum that depends on order.
#[derive(Clone, Copy, Debug)]
struct Sum(u64);

impl Sum {
    fn new() -> Sum {
        Sum(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
}

/// Builds and works; both are timed.
fn timed<D>(build: impl FnOnce() -> D, work: impl FnOnce(D) -> Sum) -> Done {
    let begun = Instant::now();
    let data = build();
    let (built, cpu) = (Instant::now(), machine::cpu_seconds());
    let sum = work(data);
    Done {
        checksum: format!("{:016x}", sum.0),
        built_s: (built - begun).as_secs_f64(),
        worked_s: built.elapsed().as_secs_f64(),
        cpu_s: machine::cpu_seconds() - cpu,
    }
}

/// A file for the job that reads one: lines of a log, about `bytes` bytes.
///
/// # Errors
///
/// When it cannot be written.
pub fn make_file(path: &Path, bytes: u64) -> Result<(), BenchError> {
    file::make(path, bytes)
}

/// The script with the jobs in Python.
const SCRIPT: &str = "engines/zmem/jobs.py";

/// A job's program: this one, or Python.
///
/// # Errors
///
/// When it cannot be found.
pub fn command(words: &[&str]) -> Result<Command, BenchError> {
    if let ["python", words @ ..] = words {
        let mut command = python::command(SCRIPT)?;
        command.args(words);
        return Ok(command);
    }
    if let ["gapbs", kernel, scale] = words {
        return gapbs::command(kernel, number(scale)?);
    }
    if let ["program", name, size] = words {
        return program::command(name, number(size)?);
    }
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let mut command = Command::new(program);
    command.arg(CHILD_ARGUMENT).arg(NAME).args(words);
    Ok(command)
}

/// Names a program or package that a job needs and that is not installed.
pub fn missing(words: &[&str]) -> Option<String> {
    match *words {
        ["redis", ..] => redis::missing(),
        ["gapbs", ..] => gapbs::missing(),
        ["program", name, _] => program::missing(name),
        ["python", job, ..] => {
            let output = python::command(SCRIPT).ok()?.args(["can", job]).output().ok()?;
            (!output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => None,
    }
}

fn number(word: &str) -> Result<u64, BenchError> {
    word.parse().map_err(|_| unknown(&[word]))
}

fn unknown(words: &[&str]) -> BenchError {
    BenchError::Engine {
        reason: format!(
            "`{}` is no job: graph bfs|sssp|pr|cc SCALE DEGREE ROUNDS|served, heap ENTRIES ROUNDS, columns ROWS ROUNDS, \
             file PATH ROUNDS|endless, redis FOLDER KEYS, processes COUNT JOB…",
            words.join(" ")
        ),
    }
}

fn run(words: &[&str]) -> Result<Done, BenchError> {
    match *words {
        ["graph", kernel, scale, degree, rounds] => {
            let kernel = graph::Kernel::parse(kernel).ok_or_else(|| unknown(words))?;
            let (scale, degree) = (number(scale)?.clamp(4, 26) as u32, number(degree)?.clamp(1, 64));
            if rounds == "served" {
                return serve_rounds(graph::Graph::kronecker(scale, degree, kernel), kernel);
            }
            let rounds = number(rounds)?;
            Ok(timed(|| graph::Graph::kronecker(scale, degree, kernel), |graph| graph.work(kernel, rounds)))
        }
        ["heap", entries, rounds] => {
            let (entries, rounds) = (number(entries)?, number(rounds)?);
            Ok(timed(|| heap::build(entries), |heap| heap::work(heap, rounds)))
        }
        ["columns", rows, rounds] => {
            let (rows, rounds) = (number(rows)? as usize, number(rounds)?);
            Ok(timed(|| columns::Columns::new(rows), |columns| columns.work(rounds)))
        }
        ["file", path, "endless"] => {
            let bytes = file::read(Path::new(path))?;
            say(&Done::default());
            loop {
                std::hint::black_box(file::work(&bytes, 1).0);
            }
        }
        ["file", path, rounds] => {
            let rounds = number(rounds)?;
            let bytes = file::read(Path::new(path))?;
            Ok(timed(|| bytes, |bytes| file::work(&bytes, rounds)))
        }
        ["redis", folder, keys] => redis::work(Path::new(folder), number(keys)?),
        ["processes", count, ref job @ ..] if !job.is_empty() => processes(number(count)?.clamp(1, 64), job),
        _ => Err(unknown(words)),
    }
}

/// Prints the report as one line.
fn say(done: &Done) {
    println!("{}", serde_json::to_string(done).expect("plain data"));
}

/// Prints a report when the graph is built, then runs one round for each line of stdin. Gives the report of the last round.
fn serve_rounds(graph: graph::Graph, kernel: graph::Kernel) -> Result<Done, BenchError> {
    let mut done = Done::default();
    say(&done);
    for line in std::io::stdin().lock().lines() {
        line.map_err(BenchError::system("reading a wish"))?;
        done = timed(|| (), |()| graph.work(kernel, 1));
        say(&done);
    }
    Ok(done)
}

/// Several processes at once, each with the same job; the checksum is that of all.
fn processes(count: u64, job: &[&str]) -> Result<Done, BenchError> {
    let begun = Instant::now();
    let started: Vec<_> = (0..count)
        .map(|_| command(job)?.stdout(Stdio::piped()).spawn().map_err(BenchError::system("starting a job")))
        .collect::<Result<_, _>>()?;
    let mut sum = Sum::new();
    let mut all = Done::default();
    for process in started {
        let output = process.wait_with_output().map_err(BenchError::system("waiting for a job"))?;
        if !output.status.success() {
            return Err(BenchError::Child { program: job.join(" "), status: output.status.to_string() });
        }
        let done = parse(&output.stdout, job)?;
        sum.add(u64::from_str_radix(&done.checksum, 16).map_err(|_| unknown(job))?);
        all.built_s = all.built_s.max(done.built_s);
        all.cpu_s += done.cpu_s;
    }
    all.worked_s = begun.elapsed().as_secs_f64() - all.built_s;
    all.checksum = format!("{:016x}", sum.0);
    Ok(all)
}

/// Parses a job's report, the last line that it printed.
///
/// # Errors
///
/// When that is no JSON of ours.
pub fn parse(stdout: &[u8], job: &[&str]) -> Result<Done, BenchError> {
    let text = String::from_utf8_lossy(stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|_| BenchError::Answer { program: job.join(" "), answer: line.chars().take(200).collect() })
}

/// Does the job that the words name, and prints its report.
pub(crate) fn serve(words: impl Iterator<Item = OsString>) -> Result<(), BenchError> {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = run(&words)?;
    say(&done);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(words: &[&str]) -> String {
        run(words).expect("it runs").checksum
    }

    #[test]
    fn the_same_words_give_the_same_sum_and_others_another_one() {
        for kernel in ["bfs", "sssp", "pr", "cc"] {
            let first = sum(&["graph", kernel, "10", "8", "2"]);
            assert_eq!(first, sum(&["graph", kernel, "10", "8", "2"]), "{kernel}");
            assert_ne!(first, sum(&["graph", kernel, "11", "8", "2"]), "{kernel}");
        }
        assert_eq!(sum(&["heap", "2000", "2"]), sum(&["heap", "2000", "2"]));
        assert_ne!(sum(&["heap", "2000", "2"]), sum(&["heap", "2001", "2"]));
        assert_eq!(sum(&["columns", "5000", "2"]), sum(&["columns", "5000", "2"]));
        assert_ne!(sum(&["columns", "5000", "2"]), sum(&["columns", "5001", "2"]));
    }

    #[test]
    fn a_file_is_read_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        file::make(&path, 1 << 20).expect("made");
        let text = path.to_str().expect("UTF-8");
        let first = sum(&["file", text, "1"]);
        assert_eq!(first, sum(&["file", text, "1"]));
        let mut bytes = std::fs::read(&path).expect("read");
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        assert_ne!(first, sum(&["file", text, "1"]));
    }

    #[test]
    fn words_that_are_no_job_are_refused() {
        for words in [&["graph"][..], &["graph", "dfs", "10", "8", "1"], &["heap", "many", "1"], &[]] {
            assert!(run(words).is_err(), "{words:?}");
        }
    }
}
