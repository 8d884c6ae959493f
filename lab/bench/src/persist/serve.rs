// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The child's end of a party that is this program: reads commands, times the work, answers.
//!
//! - **Flow** [`party`] starts this program again as `persist WHAT …` ─▶ [`serve`] opens the work ─▶ one command per line until
//!   stdin ends. The layout of commands and answers is in party.rs.

use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memlift_persist::Mechanism;
use serde_json::json;

use super::apps::{App, Apps, THREADS_MAX};
use super::limit::{Fence, Sync};
use super::ours::devices::Devices;
use super::ours::fences::Fences;
use super::ours::maps::Maps;
use super::ours::opening::{self, Opening, Recovering};
use super::ours::pages::Paged;
use super::ours::readers::{self, Readers};
use super::ours::records::Records;
use super::ours::stores::Stores;
use super::ours::words;
use super::pages::{Pages, Shape, Way};
use super::party::Ran;
use super::steps;
use crate::contender::CHILD_ARGUMENT;
use crate::{BenchError, machine};

/// Word after [`CHILD_ARGUMENT`] that starts a party.
pub(crate) const NAME: &str = "persist";

/// Work that can be run for its time.
pub trait Work {
    /// Version and configuration.
    fn about(&self) -> String;
    /// `count` operations with the draws of `seed`, in [`timed`].
    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError>;
    /// Calls `stop` twice, does some transactions, calls it again; gives how many they were.
    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError>;
}

/// Times `work`; the checksum is not yet known.
pub fn timed(work: impl FnOnce() -> Result<(), BenchError>) -> Result<Ran, BenchError> {
    let (cpu, start) = (machine::cpu_seconds(), Instant::now());
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Ran { seconds, cpu_s: machine::cpu_seconds() - cpu, ..Ran::default() })
}

/// How a checksum is written.
pub fn checksum(sum: u64) -> String {
    format!("{sum:016x}")
}

/// This program as a party.
pub fn party(arguments: &[&str], path: &Path) -> Result<Command, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let mut command = Command::new(program);
    command.arg(CHILD_ARGUMENT).arg(NAME).args(arguments).arg(path);
    Ok(command)
}

fn open(arguments: &[&str]) -> Result<Box<dyn Work>, BenchError> {
    let bad = || bad_command(&arguments.join(" "));
    Ok(match *arguments {
        ["records", ranges, path] => {
            let ranges = ranges.parse().ok().filter(|ranges| (1..=1024).contains(ranges));
            Box::new(Records::open(ranges.ok_or_else(bad)?, Path::new(path))?)
        }
        ["map", kind, path] => Box::new(Maps::open(kind, Path::new(path))?.ok_or_else(bad)?),
        ["store", workload, loaded, folder] => {
            let loaded = loaded.parse().ok().filter(|loaded| *loaded > 0).ok_or_else(bad)?;
            Box::new(Stores::open(workload, loaded, Path::new(folder))?.ok_or_else(bad)?)
        }
        ["readers", workload, loaded, folder] => {
            let loaded = loaded.parse().ok().filter(|loaded| *loaded > 0).ok_or_else(bad)?;
            Box::new(Readers::open(workload, loaded, Path::new(folder))?.ok_or_else(bad)?)
        }
        ["pages", shape, way, path] => {
            let way = super::ours::pages::Way::named(way).ok_or_else(bad)?;
            Box::new(Paged::open(Shape::parse(shape).ok_or_else(bad)?, way, Path::new(path))?)
        }
        ["fences", grouped @ ("redo" | "group"), path] => {
            Box::new(Fences::open(grouped == "group", Path::new(path))?)
        }
        ["opening", bytes, folder] => {
            Box::new(Opening::open(bytes.parse().map_err(|_| bad())?, Path::new(folder))?)
        }
        ["recovering", bytes, folder] => {
            Box::new(Recovering::open(bytes.parse().map_err(|_| bad())?, Path::new(folder))?)
        }
        ["app", app, mechanism, threads, path] => {
            let app = App::parse(app).ok_or_else(bad)?;
            let mechanism = Mechanism::ALL.into_iter().find(|one| one.name() == mechanism).ok_or_else(bad)?;
            let threads = threads.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
            Box::new(Apps::open(app, mechanism, threads.ok_or_else(bad)?, Path::new(path))?)
        }
        #[cfg(feature = "replicate")]
        ["replica", "window", folder] => Box::new(super::ours::replicas::Window::open(Path::new(folder))?),
        #[cfg(feature = "replicate")]
        ["replica", way @ ("restore" | "limit"), bytes, folder] => {
            let bytes = bytes.parse().map_err(|_| bad())?;
            Box::new(super::ours::replicas::Restoring::open(bytes, way == "limit", Path::new(folder))?)
        }
        ["devices", way, folder] => Box::new(Devices::open(way, Path::new(folder))?.ok_or_else(bad)?),
        ["page", way, shape, path] => {
            let way = Way::parse(way).ok_or_else(bad)?;
            Box::new(Pages::open(way, Shape::parse(shape).ok_or_else(bad)?, Path::new(path))?)
        }
        ["fence", bytes, path] => {
            let bytes = bytes.parse().ok().filter(|bytes| (64..=4096).contains(bytes) && bytes % 64 == 0);
            Box::new(Fence::open(bytes.ok_or_else(bad)?, Path::new(path))?)
        }
        ["sync", path] => Box::new(Sync::open(Path::new(path))?),
        _ => return Err(bad()),
    })
}

/// Serves until stdin ends.
pub(crate) fn serve(arguments: impl Iterator<Item = OsString>) -> Result<(), BenchError> {
    let arguments: Vec<OsString> = arguments.collect();
    let arguments: Option<Vec<&str>> = arguments.iter().map(|argument| argument.to_str()).collect();
    match arguments.as_deref() {
        Some(["be_killed", bytes, path]) => {
            let bytes = bytes.parse().map_err(|_| bad_command("be_killed"))?;
            return opening::be_killed(bytes, Path::new(path));
        }
        Some(["reader", place, loaded, path]) => {
            let number = |text: &str| text.parse().map_err(|_| bad_command(text));
            return readers::read(number(place)?, number(loaded)?, Path::new(path));
        }
        Some(["words", "write", pool, text]) => return words::write(Path::new(pool), Path::new(text)),
        Some(["words", "read", pool]) => return words::read(Path::new(pool)),
        _ => {}
    }
    let mut work = open(&arguments.ok_or_else(|| bad_command("not UTF-8"))?)?;
    answer(&json!({"about": work.about()}))?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("reading a wish"))?;
        match line.split(' ').collect::<Vec<&str>>()[..] {
            ["run", seed, count] => {
                let number = |text: &str| text.parse::<u64>().map_err(|_| bad_command(&line));
                let ran = work.run(number(seed)?, number(count)?)?;
                answer(&serde_json::to_value(ran).expect("plain data"))?;
            }
            ["step"] => answer(&json!({"transactions": work.step(&steps::stop)?}))?,
            _ => return Err(bad_command(&line)),
        }
    }
    Ok(())
}

/// One line on stdout.
pub fn answer(value: &serde_json::Value) -> Result<(), BenchError> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{value}").and_then(|()| stdout.flush()).map_err(BenchError::system("answering a wish"))
}

fn bad_command(wish: &str) -> BenchError {
    BenchError::Answer { program: "whoever started this party".to_owned(), answer: wish.to_owned() }
}
