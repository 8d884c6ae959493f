// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job's run: plain, or under `memlift run` with a budget.
//!
//! Flow    words of a job ──▶ [`plain`] or [`budgeted`], in a group ──▶ [`Ran`]: how it ended, what it printed, what the kernel saw
//! Needs   the `memlift` command and libmemlift_preload.so, built in release beside this program

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::group::{self, Ended, Group, Seen};
use super::jobs::{self, Done};
use crate::BenchError;
use crate::row::Stop;

/// A finished run.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub ended: Ended,
    /// What it printed; None when it was ended before.
    pub done: Option<Done>,
    /// What the kernel charged.
    pub seen: Seen,
    /// Kills in its group.
    pub kills: u64,
    /// The exit report of `memlift run`.
    pub report: Value,
}

impl Ran {
    /// What the job printed, or why there is nothing.
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

/// A budget.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// Bytes.
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

fn finish(command: &mut Command, group: &Group, budget: u64, words: &[&str]) -> Result<Ran, Stop> {
    let sampler = group.sample(budget);
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

/// Without memlift, under a limit of the kernel's or without.
pub fn plain(words: &[&str], limit: Option<u64>) -> Result<Ran, Stop> {
    let group = Group::new(limit)?;
    finish(&mut jobs::command(words)?, &group, limit.unwrap_or(u64::MAX), words)
}

/// Under `memlift run`, and under a limit of the kernel's or without.
pub fn budgeted(words: &[&str], budget: Budget, limit: Option<u64>) -> Result<Ran, Stop> {
    let group = Group::new(limit)?;
    let folder = tempfile::tempdir().map_err(BenchError::system("making a folder"))?;
    let report = folder.path().join("report.json");
    let mut command = Command::new(memlift()?);
    command
        .arg("--json")
        .arg("run")
        .arg("--memory")
        .arg(budget.bytes.to_string())
        .arg("--report")
        .arg(&report);
    if let Some(spill) = budget.spill {
        command.arg("--spill").arg(spill);
    }
    let job = jobs::command(words)?;
    command.arg("--").arg(job.get_program()).args(job.get_args());
    let mut ran = finish(&mut command, &group, budget.bytes, words)?;
    ran.report = std::fs::read_to_string(&report)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or(Value::Null);
    Ok(ran)
}

/// As [`budgeted`], for a job that does not end: started, and ended when the value is dropped.
pub fn endless(words: &[&str], budget: Budget) -> Result<Endless, Stop> {
    let group = Group::new(None)?;
    let mut command = Command::new(memlift()?);
    command.arg("run").arg("--quiet").arg("--memory").arg(budget.bytes.to_string());
    if let Some(spill) = budget.spill {
        command.arg("--spill").arg(spill);
    }
    let job = jobs::command(words)?;
    command.arg("--").arg(job.get_program()).args(job.get_args());
    let child = group
        .command(&command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(BenchError::system("starting a job"))?;
    Ok(Endless { child, _group: group })
}

/// A running job; dropped with its group.
#[derive(Debug)]
pub struct Endless {
    child: std::process::Child,
    _group: Group,
}

impl Drop for Endless {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
