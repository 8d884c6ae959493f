// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job's run: plain, or under `memlift run` with a budget.
//!
//! - **Flow** words of a job ──▶ [`plain`] or [`budgeted`], in a group ──▶ [`Ran`]: how it ended, what it printed, what the kernel saw
//! - **Needs** the `memlift` command and libmemlift_preload.so, built in release beside this program

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::group::{self, Ended, Group, Limit, Sampler, Seen};
use super::jobs::{self, Done};
use crate::BenchError;
use crate::child::Bound;
use crate::row::Stop;

/// A finished run.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub ended: Ended,
    /// Report that the job printed; None if it did not end well.
    pub done: Option<Done>,
    /// Memory that the kernel charged.
    pub seen: Seen,
    /// Kills in its group.
    pub kills: u64,
    /// The exit report of `memlift run`.
    pub report: Value,
}

impl Ran {
    /// Returns the report of the job, or an error that says how the job ended.
    pub fn done(&self, words: &[&str]) -> Result<&Done, BenchError> {
        self.done.as_ref().ok_or_else(|| BenchError::Child {
            program: words.join(" "),
            status: format!(
                "{}: {}",
                self.ended.status,
                self.ended.stderr.lines().last().unwrap_or_default()
            ),
        })
    }

    /// A number of the exit report; 0 where it has none such.
    pub fn reported(&self, name: &str) -> u64 {
        self.report[name].as_u64().unwrap_or(0)
    }
}

/// Memory that a job may use.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// Bytes of real memory.
    pub bytes: u64,
    /// Where to spill.
    pub spill: Option<&'a Path>,
}

/// The command `memlift`: this program, or the one beside it.
pub fn memlift() -> Result<PathBuf, Stop> {
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let named = |path: &Path| path.file_name().is_some_and(|name| name == "memlift");
    if named(&program) {
        return Ok(program);
    }
    let beside = program.with_file_name("memlift");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(Stop::Missing("the memlift command is not beside this program: cargo build --release -p memlift-cli -p memlift-preload".into()))
}

/// Reads the programs' files into the page cache, where they are charged to the bench: otherwise a job's group is charged for
/// files that it reads first.
fn warm(job: &Command) -> Result<(), Stop> {
    let memlift = memlift()?;
    for path in [Path::new(job.get_program()), &memlift, &memlift.with_file_name("libmemlift_preload.so")] {
        // A name without a path, or a missing file, is left to the process that starts it.
        if let Ok(mut file) = std::fs::File::open(path) {
            std::io::copy(&mut file, &mut std::io::sink()).map_err(BenchError::file(path))?;
        }
    }
    Ok(())
}

/// The job as a command of its own.
fn alone(words: &[&str]) -> Result<Command, Stop> {
    if let Some(what) = jobs::missing(words) {
        return Err(Stop::Missing(what));
    }
    let job = jobs::command(words)?;
    warm(&job)?;
    Ok(job)
}

/// The job under `memlift run`; its report goes to a file, if there is one.
fn under(words: &[&str], budget: Budget, report: Option<&Path>) -> Result<Command, Stop> {
    let job = alone(words)?;
    let mut command = Command::new(memlift()?);
    command.args(["run", "--memory", &budget.bytes.to_string()]);
    match report {
        Some(report) => command.arg("--report").arg(report),
        None => command.arg("--quiet"),
    };
    if let Some(spill) = budget.spill {
        command.arg("--spill").arg(spill);
    }
    command.arg("--").arg(job.get_program()).args(job.get_args());
    Ok(command)
}

fn finish(command: &Command, group: &Group, sampler: Sampler, words: &[&str]) -> Result<Ran, Stop> {
    let begun = Instant::now();
    let child = group
        .command(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(BenchError::system("starting a job"))?;
    let ended = group::wait(child, begun)?;
    let seen = sampler.seen();
    let done = if ended.status.success() { Some(jobs::parse(&ended.stdout, words)?) } else { None };
    Ok(Ran { ended, done, seen, kills: group.kills(), report: Value::Null })
}

/// Runs the job without memlift and without a limit; `seen` is its need, without the page cache that the kernel drops.
pub fn unlimited(words: &[&str]) -> Result<Ran, Stop> {
    let group = Group::new(Limit::None)?;
    finish(&alone(words)?, &group, group.sample_need(), words)
}

/// Runs the job without memlift, in this group; `beside` is added to `seen`.
pub fn plain(words: &[&str], group: &Group, beside: impl Fn() -> u64 + Send + 'static) -> Result<Ran, Stop> {
    finish(&alone(words)?, group, group.sample_with(u64::MAX, beside), words)
}

/// Runs the job under `memlift run`, and under a limit of the kernel or without one.
pub fn budgeted(words: &[&str], budget: Budget, limit: Limit) -> Result<Ran, Stop> {
    let group = Group::new(limit)?;
    let folder = tempfile::tempdir().map_err(BenchError::system("making a folder"))?;
    let report = folder.path().join("report.json");
    let mut ran = finish(&under(words, budget, Some(&report))?, &group, group.sample(budget.bytes), words)?;
    ran.report = std::fs::read_to_string(&report)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or(Value::Null);
    Ok(ran)
}

/// A running job; ended when it is dropped.
#[derive(Debug)]
pub struct Running {
    // Fields drop in this order: first the supervising process, last the group with the processes that are left of the job.
    child: Bound,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    words: String,
    sampler: Option<Sampler>,
    group: Option<Group>,
}

impl Running {
    /// Starts the job without memlift, in a group of its own; `beside` is added to `seen`.
    pub fn plain(
        words: &[&str],
        limit: Limit,
        beside: impl Fn() -> u64 + Send + 'static,
    ) -> Result<Running, Stop> {
        let group = Group::new(limit)?;
        let sampler = group.sample_with(u64::MAX, beside);
        Ok(Running::start(group.command(&alone(words)?), words)?.owning(group, sampler))
    }

    /// Starts the job without memlift, in a group that the caller owns.
    pub fn inside(words: &[&str], group: &Group) -> Result<Running, Stop> {
        Ok(Running::start(group.command(&alone(words)?), words)?)
    }

    /// Starts the job under `memlift run`.
    pub fn budgeted(words: &[&str], budget: Budget) -> Result<Running, Stop> {
        let group = Group::new(Limit::None)?;
        let sampler = group.sample(budget.bytes);
        Ok(Running::start(group.command(&under(words, budget, None)?), words)?.owning(group, sampler))
    }

    fn owning(mut self, group: Group, sampler: Sampler) -> Running {
        (self.group, self.sampler) = (Some(group), Some(sampler));
        self
    }

    fn start(mut command: Command, words: &[&str]) -> Result<Running, BenchError> {
        let mut child = Bound::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (Some(stdin), Some(stdout)) = (child.process().stdin.take(), child.process().stdout.take())
        else {
            return Err(BenchError::Engine { reason: "a job without pipes".to_owned() });
        };
        let stdout = BufReader::new(stdout);
        let mut running =
            Running { child, stdin, stdout, words: words.join(" "), sampler: None, group: None };
        // The first line says that the job is ready.
        running.line()?;
        Ok(running)
    }

    fn line(&mut self) -> Result<Done, BenchError> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(BenchError::system("reading what a job printed"))?;
        if line.is_empty()
            && let Ok(Some(status)) = self.child.process().try_wait()
        {
            return Err(BenchError::Child { program: self.words.clone(), status: status.to_string() });
        }
        jobs::parse(line.as_bytes(), &[&self.words])
    }

    /// Lets the job do one round.
    pub fn round(&mut self) -> Result<Done, BenchError> {
        writeln!(self.stdin).map_err(BenchError::system("writing to a job"))?;
        self.line()
    }

    /// Returns what its group's samples showed until now.
    pub fn seen(&self) -> Seen {
        self.sampler.as_ref().map(Sampler::so_far).unwrap_or_default()
    }
}
