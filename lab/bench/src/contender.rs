// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contenders that copy cold. Each is a process of its own and lives the same life, so that the scheduler, the caches and the
//! page tables treat all alike. The tuned memcpy needs a process of its own because glibc reads its tunables once, at start.
//!
//! - **Flow** this program, started again with [`CHILD_ARGUMENT`] and a contender's name, inherits the memfds of the areas ─▶
//!   it maps them, prefaulted ─▶ one line per wish on its stdin, one line per answer on its stdout
//! - **Layout** `describe` ─▶ text · `sweep` ─▶ `ok` · `PASS SOURCE BYTES` ─▶ `NANOSECONDS CPU_NANOSECONDS FAULTS VALUE` ·
//!   `limit SOURCE BYTES` ─▶ `NANOSECONDS 0 0 0`
//! - **Owner** [`Contender`] ends the process; the process also ends when its stdin does

use std::ffi::OsString;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use memlift_ground::observe::{self, Executor, OperationStats};

use crate::area::Area;
use crate::child::Bound;
use crate::copier::{Copier, Glibc};
use crate::copy::Areas;
use crate::ours::Memlift;
use crate::pass::{Buffers, Pass, Plain};
use crate::{BenchError, machine, reference};

/// First argument of a contender's process. No command of the CLI has this name.
pub(crate) const CHILD_ARGUMENT: &str = "--memlift-bench-contender";
/// glibc's name for the size from which it stops storing through the cache.
const TUNABLE: &str = "glibc.cpu.x86_non_temporal_threshold";

/// Identity of a contender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// memlift as it is configured.
    Memlift,
    /// memlift that never shares a copy with another core.
    MemliftOneCore,
    /// memcpy as shipped.
    Glibc,
    /// memcpy that stores past the cache from this size on, bytes.
    GlibcTuned(usize),
    /// The fastest of some loops in C.
    Plain,
}

impl Identity {
    fn name(self) -> &'static str {
        match self {
            Identity::Memlift => "memlift",
            Identity::MemliftOneCore => "memlift_1core",
            Identity::Glibc | Identity::GlibcTuned(_) => "glibc",
            Identity::Plain => "plain",
        }
    }
}

/// Result of one pass.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Wall time, seconds.
    pub seconds: f64,
    /// CPU time of all threads, seconds.
    pub cpu_s: f64,
    /// Page faults that the pass took.
    pub faults: u64,
    /// Value that the pass gave: the CRC, or 0.
    pub value: u64,
}

/// A running contender.
#[derive(Debug)]
pub struct Contender {
    who: Identity,
    // Fields drop in this order: the process sees the end of its stdin before it is killed.
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    child: Bound,
}

impl Contender {
    /// Starts it on these areas.
    pub fn start(who: Identity, areas: &Areas) -> Result<Contender, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
        let mut command = Command::new(&program);
        command.arg(CHILD_ARGUMENT).arg(who.name()).stdin(Stdio::piped()).stdout(Stdio::piped());
        match who {
            Identity::GlibcTuned(bytes) => command.env("GLIBC_TUNABLES", format!("{TUNABLE}={bytes}")),
            _ => command.env_remove("GLIBC_TUNABLES"),
        };
        // Duplicates without close-on-exec, which live only until the process has been started.
        let mut inherited: Vec<OwnedFd> = Vec::new();
        for area in areas.all() {
            let memfd = area.memfd().expect("areas of a copy are shared");
            let copy = rustix::io::dup(memfd).map_err(BenchError::system("duplicating a memfd"))?;
            command.arg(copy.as_raw_fd().to_string()).arg(area.bytes().to_string());
            inherited.push(copy);
        }
        let mut child = Bound::start(&mut command)?;
        drop(inherited);
        let process = child.process();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        Ok(Contender {
            who,
            stdin: stdin.expect("stdin is piped"),
            stdout: BufReader::new(stdout.expect("stdout is piped")),
            child,
        })
    }

    /// Returns the contender's identity.
    pub fn identity(&self) -> Identity {
        self.who
    }

    /// Returns how many of its copies were shared with another core, as its stats page counts them.
    pub fn shared_copies(&mut self) -> Result<u64, BenchError> {
        let view = observe::attach(self.child.process().id())
            .map_err(|error| BenchError::Engine { reason: error.to_string() })?;
        let shared = |row: &OperationStats| row.executor == Executor::Split.name();
        Ok(view.operations().iter().filter(|row| shared(row)).map(|row| row.operations).sum())
    }

    /// Describes how it is configured.
    pub fn describe(&mut self) -> Result<String, BenchError> {
        let text = self.ask("describe")?;
        Ok(match self.who {
            Identity::GlibcTuned(bytes) => format!("{text}, but {TUNABLE}={bytes}"),
            Identity::Glibc => format!("{text}, as shipped"),
            Identity::Memlift | Identity::MemliftOneCore | Identity::Plain => text,
        })
    }

    /// Lets it evict everything from the caches.
    pub fn sweep(&mut self) -> Result<(), BenchError> {
        match self.ask("sweep")?.as_str() {
            "ok" => Ok(()),
            other => Err(self.answer(other)),
        }
    }

    /// Lets it run a pass once, on a source.
    pub fn run(&mut self, pass: Pass, source: usize, bytes: usize) -> Result<Took, BenchError> {
        self.timed(&format!("{} {source} {bytes}", pass.name()))
    }

    /// Lets it copy once with the reference routine, which shows the speed of one core and the memory.
    pub fn limit(&mut self, source: usize, bytes: usize) -> Result<Took, BenchError> {
        self.timed(&format!("limit {source} {bytes}"))
    }

    fn timed(&mut self, wish: &str) -> Result<Took, BenchError> {
        let answer = self.ask(wish)?;
        let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [wall_ns, cpu_ns, faults, value] => {
                Ok(Took { seconds: wall_ns as f64 * 1e-9, cpu_s: cpu_ns as f64 * 1e-9, faults, value })
            }
            _ => Err(self.answer(&answer)),
        }
    }

    fn ask(&mut self, wish: &str) -> Result<String, BenchError> {
        let fail = |source| BenchError::System { what: "talking to a contender's process", source };
        writeln!(self.stdin, "{wish}").map_err(fail)?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).map_err(fail)?;
        Ok(answer.trim_end().to_owned())
    }

    fn answer(&self, answer: &str) -> BenchError {
        BenchError::Answer {
            program: format!("the process of {}", self.who.name()),
            answer: answer.to_owned(),
        }
    }
}

/// Runs as a contender if this process was started as one. The first thing that the `main` of a program with a
/// `bench` command calls: `Some` means that the work is done and `main` returns it.
pub fn child() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != CHILD_ARGUMENT {
        return None;
    }
    let who = arguments.next();
    let served = match who.as_deref().and_then(|name| name.to_str()) {
        Some("memlift") => Memlift::get(false).and_then(|ours| serve(&ours, arguments)),
        Some("memlift_1core") => Memlift::get(true).and_then(|ours| serve(&ours, arguments)),
        Some("glibc") => serve(&Glibc::new(), arguments),
        Some("plain") => serve(&Plain::default(), arguments),
        Some(BUSY) => occupy_core(),
        Some(crate::traverse::NAME) => crate::traverse::serve_replicated(arguments),
        Some(crate::ipc::NAME) => crate::ipc::serve(arguments),
        Some(crate::persist::NAME) => crate::persist::serve(arguments),
        Some(crate::zmem::NAME) => crate::zmem::serve(arguments),
        Some(crate::zmem::SIDE) => crate::zmem::serve_side(arguments),
        _ => Err(bad_command("who?")),
    };
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

fn bad_command(wish: &str) -> BenchError {
    BenchError::Answer { program: "whoever started this contender".to_owned(), answer: wish.to_owned() }
}

/// Something that runs passes.
trait Party {
    /// Runs one pass; returns the CRC, or 0 if the pass has none.
    fn pass(&self, pass: Pass, buffers: Buffers<'_>) -> u64;
    /// How it is configured.
    fn text(&self) -> String;
    /// Called before a pass is timed. `cold` evicts everything from the caches, for a party that first tries several ways.
    fn prepare(&self, _pass: Pass, _buffers: Buffers<'_>, _cold: &dyn Fn()) {}
}

impl Party for Memlift {
    fn pass(&self, pass: Pass, buffers: Buffers<'_>) -> u64 {
        self.run(pass, buffers)
    }

    fn text(&self) -> String {
        self.describe()
    }
}

impl Party for Glibc {
    fn pass(&self, _pass: Pass, buffers: Buffers<'_>) -> u64 {
        let (target, source) = (black_box(buffers.target.start()), black_box(buffers.source.start()));
        // SAFETY: both parts are mapped for these bytes and are apart.
        unsafe { self.copy(target, source, black_box(buffers.target.bytes())) };
        0
    }

    fn text(&self) -> String {
        self.describe()
    }
}

impl Party for Plain {
    fn pass(&self, pass: Pass, buffers: Buffers<'_>) -> u64 {
        self.run(pass, buffers)
    }

    fn text(&self) -> String {
        self.describe()
    }

    fn prepare(&self, pass: Pass, buffers: Buffers<'_>, cold: &dyn Fn()) {
        self.learn(pass, buffers, cold);
    }
}

/// Keeps one core busy until stdin ends, which happens when the parent process ends or closes it.
fn occupy_core() -> Result<(), BenchError> {
    std::thread::spawn(|| {
        let mut word = 1_u64;
        loop {
            word = black_box(word.wrapping_mul(3));
        }
    });
    let _ = std::io::stdin().lock().lines().last();
    Ok(())
}

/// Word after [`CHILD_ARGUMENT`] that starts a process which keeps one core busy.
pub(crate) const BUSY: &str = "busy";

/// Starts a process that keeps one core busy until it is dropped.
pub(crate) fn busy() -> Result<(ChildStdin, Bound), BenchError> {
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let mut command = Command::new(&program);
    command.arg(CHILD_ARGUMENT).arg(BUSY).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = Bound::start(&mut command)?;
    let stdin = child.process().stdin.take().expect("stdin is piped");
    Ok((stdin, child))
}

fn serve<P: Party>(party: &P, mut arguments: impl Iterator<Item = OsString>) -> Result<(), BenchError> {
    let mut number = || {
        let argument = arguments.next().and_then(|text| text.to_str()?.parse::<usize>().ok());
        argument.ok_or_else(|| bad_command("no number"))
    };
    let mut area = || -> Result<Area, BenchError> {
        let (descriptor, bytes) = (number()?, number()?);
        let descriptor = RawFd::try_from(descriptor).map_err(|_| bad_command("no descriptor"))?;
        // SAFETY: whoever started this process left the descriptor open for it alone, and each number is used
        // once; what is not a memfd of that size makes `Area::open` fail.
        let memfd = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Area::open(memfd, bytes)
    };
    let areas = Areas { sources: [area()?, area()?], target: area()?, sweep: area()? };
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("reading a wish"))?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["describe"] => party.text(),
            ["sweep"] => {
                areas.sweep();
                "ok".to_owned()
            }
            [routine, source, bytes] => {
                let number = |text: &str| text.parse::<usize>().map_err(|_| bad_command(&line));
                let (turn, bytes) = (number(source)?, number(bytes)?);
                let source = areas.sources.get(turn).ok_or_else(|| bad_command(&line))?;
                if routine == "limit" {
                    let start = std::time::Instant::now();
                    reference::copy_nt(areas.target.part(0, bytes), source.part(0, bytes));
                    format!("{} 0 0 0", start.elapsed().as_nanos())
                } else {
                    let pass = Pass::from_name(routine).ok_or_else(|| bad_command(&line))?;
                    let buffers = areas.buffers(pass, turn, bytes);
                    party.prepare(pass, buffers, &|| areas.sweep());
                    let faults = machine::faults();
                    let (cpu, start) = (machine::cpu_seconds(), std::time::Instant::now());
                    let value = party.pass(pass, buffers);
                    let took_ns = start.elapsed().as_nanos();
                    let cpu_ns = (machine::cpu_seconds() - cpu) * 1e9;
                    format!("{took_ns} {cpu_ns:.0} {} {value}", machine::faults() - faults)
                }
            }
            _ => return Err(bad_command(&line)),
        };
        writeln!(stdout, "{answer}")
            .and_then(|()| stdout.flush())
            .map_err(BenchError::system("answering a wish"))?;
    }
    Ok(())
}
