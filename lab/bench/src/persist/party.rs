// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A side of a row, as a process of its own: ours, a rival or a limit; all live the same life.
//!
//! - **Layout** it says `{"about"}` once it is ready ─▶ `run SEED COUNT` ─▶ `{"seconds", "cpu_s", "checksum", "counts"}` · `step` ─▶ three
//!   SIGSTOPs of its first thread: nothing lies between the first two, some transactions between the last two ─▶
//!   `{"transactions"}`
//! - **Window** a run is timed by the party itself; opening, loading, touching pages and checksums lie outside
//! - **Owner** the process ends with its stdin, and by the kernel if this process dies

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::steps::{self, Steps};
use crate::BenchError;
use crate::child::Bound;

/// Result of a run, as the party reports it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Ran {
    /// Wall time, seconds.
    pub seconds: f64,
    /// CPU time of all threads, seconds.
    pub cpu_s: f64,
    /// Checksum over all that it left or read.
    #[serde(default)]
    pub checksum: String,
    /// Further counts, by name.
    #[serde(default)]
    pub counts: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct Ready {
    about: String,
}

#[derive(Deserialize)]
struct Stepped {
    transactions: u64,
}

/// A running side.
#[derive(Debug)]
pub struct Party {
    name: &'static str,
    /// Version and configuration, in its own words.
    pub about: String,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    child: Bound,
}

impl Party {
    /// Starts it and waits until it is ready.
    pub fn start(name: &'static str, command: &mut Command) -> Result<Party, BenchError> {
        let mut child = Bound::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let process = child.process();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let mut party = Party {
            name,
            about: String::new(),
            stdin: stdin.expect("stdin is piped"),
            stdout: BufReader::new(stdout.expect("stdout is piped")),
            child,
        };
        party.about = party.hear::<Ready>()?.about;
        Ok(party)
    }

    /// `count` operations with the draws of `seed`.
    pub fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        self.say(&format!("run {seed} {count}"))?;
        let ran: Ran = self.hear()?;
        if ran.seconds > 0.0 && ran.seconds.is_finite() && ran.cpu_s >= 0.0 {
            return Ok(ran);
        }
        Err(self.wrong(&format!("{ran:?}")))
    }

    /// Counts what the party's transactions execute; also returns how many they were. None where this process may not trace it.
    pub fn step(&mut self) -> Result<Option<(Steps, u64)>, BenchError> {
        let Some(traced) = steps::Traced::new(self.child.process().id()) else { return Ok(None) };
        self.say("step")?;
        let steps = traced.count();
        let stepped: Stepped = self.hear()?;
        Ok(steps.map(|steps| (steps, stepped.transactions)))
    }

    /// Lets it end by itself.
    pub fn end(self) -> Result<(), BenchError> {
        let Party { name, stdin, stdout, child, .. } = self;
        drop(stdin);
        let status = child.wait()?;
        drop(stdout);
        if status.success() {
            return Ok(());
        }
        Err(BenchError::Child { program: name.to_owned(), status: status.to_string() })
    }

    fn say(&mut self, wish: &str) -> Result<(), BenchError> {
        writeln!(self.stdin, "{wish}")
            .and_then(|()| self.stdin.flush())
            .map_err(BenchError::system("asking a side of a row"))
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(BenchError::system("hearing a side of a row"))?;
        serde_json::from_str(&line).map_err(|_| self.wrong(line.trim_end()))
    }

    fn wrong(&self, answer: &str) -> BenchError {
        let answer = if answer.is_empty() { "nothing; it ended, and what it said is above" } else { answer };
        BenchError::Answer { program: self.name.to_owned(), answer: answer.to_owned() }
    }
}
