// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the Rust tests of one build, several programs at a time: many wait (for a lease, a dead peer, a disk) while others compute.
//!
//! - **Flow** `cargo build` of all targets ─▶ test programs, from cargo's messages ─▶ one more at a time than there are cores, a line each ─▶
//!   what the failed ones printed ─▶ documentation tests
//! - **Hangs** a program that does not end is named with its stacks ([`watched`])
//! - **Alone** programs that compare measured times ([`ALONE`]) run after the others, test by test: who shares a core measures that
//! - **Order** a program runs as cargo would run it: in its package's folder, with the toolchain's libraries on the path
//! - **Why** `cargo test` runs one program after the other, and builds anew for each choice of packages, since that changes features.
//!   With the same cargo arguments the same programs run again under other masks, without a build

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;

use crate::Failure;
use crate::watched::{self, Outcome};

/// Programs that run at a time beyond the number of cores: most of them wait for something, most of the time.
const WAITING: usize = 1;
/// Programs that take longest, the longest first. They are started before the others, so that none is left to run by itself.
const LONG: [&str; 8] = [
    "bindings/preload:jobs",
    "cli:jobs",
    "services/persist:sim",
    "services/traverse:replica_etcd",
    "cli:services",
    "services/persist:pools",
    "services/zmem:pager",
    "services/ipc:processes",
];
/// Programs that compare measured times.
const ALONE: [&str; 1] = ["lab/cli:record"];

/// Choice of tests, and cargo's arguments.
#[derive(Default)]
pub struct Options {
    /// Folders, or `folder:program`; none: all.
    only: Vec<String>,
    /// For every program: tests that are left out.
    skip: Vec<String>,
    cargo: Vec<String>,
}

struct Program {
    /// Folder of the package, from the workspace's root.
    folder: String,
    /// As cargo calls the target.
    name: String,
    path: PathBuf,
}

impl Program {
    fn title(&self) -> String {
        format!("{}:{}", self.folder, self.name)
    }

    /// Position in the order in which programs are started.
    fn turn(&self) -> usize {
        LONG.iter().position(|long| *long == self.title()).unwrap_or(LONG.len())
    }

    fn is_alone(&self) -> bool {
        ALONE.contains(&&*self.title())
    }
}

impl Options {
    /// Reads the arguments after `test`.
    pub fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let list = match argument.as_str() {
                "--only" => &mut options.only,
                "--skip" => &mut options.skip,
                "--" => {
                    options.cargo.extend(rest.cloned());
                    break;
                }
                unknown => return Err(Failure::Usage(format!("no such option: {unknown}"))),
            };
            let value = rest.next().ok_or_else(|| Failure::Usage(format!("{argument} needs a value")))?;
            list.push(value.clone());
        }
        Ok(options)
    }

    fn wants(&self, program: &Program) -> bool {
        let wanted = |only: &String| match only.split_once(':') {
            Some((folder, name)) => program.folder == folder && program.name == name,
            None => program.folder == *only,
        };
        self.only.is_empty() || self.only.iter().any(wanted)
    }
}

/// Builds and runs; the message says how many passed.
pub fn run(options: &Options) -> Result<String, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut programs = build(&cargo, &options.cargo)?;
    programs.retain(|program| options.wants(program));
    programs.sort_by_key(Program::turn);
    if programs.is_empty() {
        return Err(Failure::Usage(format!("no test program is meant by --only {:?}", options.only)));
    }
    let (root, libraries) = (root()?, libraries()?);
    let (next, failed, total) = (AtomicUsize::new(0), Mutex::new(Vec::new()), programs.len());
    let (alone, programs): (Vec<Program>, Vec<Program>) = programs.into_iter().partition(Program::is_alone);
    let run_one = |program: &Program| {
        let started = Instant::now();
        let mut command = command(&root.join(&program.folder), program, &libraries, &options.skip);
        let outcome = watched::run(&program.title(), &mut command);
        if !report(program, started.elapsed().as_secs_f64(), &outcome) {
            failed.lock().expect("nobody panics").push(program.title());
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..(cores + WAITING).min(total) {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run_one(program);
                }
            });
        }
    });
    alone.iter().for_each(run_one);
    let failed = failed.into_inner().expect("nobody panics");
    if !failed.is_empty() {
        return Err(Failure::Broken(format!(
            "{} of {total} test programs failed: {}. One alone: cargo xtask test --only {} -- …",
            failed.len(),
            failed.join(", "),
            failed[0]
        )));
    }
    if options.only.is_empty() {
        documentation(&cargo, &options.cargo)?;
    }
    Ok(format!("{total} test programs passed"))
}

/// Builds everything once, with the features that tests ask for, and says which test programs there are. Programs and shared
/// libraries are left where `cargo build` leaves them: it would choose fewer features, and build half of the workspace again.
fn build(cargo: &OsString, arguments: &[String]) -> Result<Vec<Program>, Failure> {
    let output = Command::new(cargo)
        .args(["build", "--all-targets", "--timings", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure::Unavailable(format!("cargo: {error}")))?;
    if !output.status.success() {
        return Err(Failure::Broken("the tests cannot be built (above)".into()));
    }
    let root = root()?;
    let messages = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let mut programs = Vec::new();
    for message in messages {
        let message: Value = serde_json::from_slice(message)
            .map_err(|error| Failure::Broken(format!("cargo's message is no JSON: {error}")))?;
        let (Some(path), Some(true)) = (message["executable"].as_str(), message["profile"]["test"].as_bool())
        else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().and_then(|folder| folder.strip_prefix(&root).ok());
        programs.push(Program {
            folder: folder.unwrap_or(manifest).to_string_lossy().into_owned(),
            name: message["target"]["name"].as_str().unwrap_or_default().to_owned(),
            path: path.into(),
        });
    }
    Ok(programs)
}

/// Returns the root of the workspace that cargo runs this in: a build folder may be shared by several.
fn root() -> Result<PathBuf, Failure> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .ok_or_else(|| Failure::Unavailable("start it as cargo xtask test".into()))?;
    Ok(Path::new(&own).parent().expect("xtask lies in the workspace").to_path_buf())
}

/// Where the toolchain's own shared libraries lie: procedural macros need them, also under test.
fn libraries() -> Result<OsString, Failure> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir"])
        .output()
        .map_err(|error| Failure::Unavailable(format!("rustc: {error}")))?;
    let own = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&before)))
        .map_err(|error| Failure::Broken(format!("LD_LIBRARY_PATH: {error}")))
}

fn command(folder: &Path, program: &Program, libraries: &OsString, skip: &[String]) -> Command {
    let mut command = Command::new(&program.path);
    for name in skip {
        command.args(["--skip", name]);
    }
    if program.is_alone() {
        command.arg("--test-threads=1");
    }
    command.env("LD_LIBRARY_PATH", libraries).env("CARGO_MANIFEST_DIR", folder);
    // The libraries of this build lie beside its test programs.
    command.env("MEMLIFT_BUILT", program.path.parent().expect("cargo gives whole paths"));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// A line for what passed, everything for what did not.
fn report(program: &Program, seconds: f64, outcome: &std::io::Result<Outcome>) -> bool {
    let mut out = std::io::stdout().lock();
    let title = program.title();
    let passed = match outcome {
        Ok(outcome) if outcome.status.success() => {
            let text = String::from_utf8_lossy(&outcome.stdout);
            let verdict = text.lines().rev().find_map(|line| line.strip_prefix("test result: ok. "));
            let counts = verdict.and_then(|line| line.split(" measured").next()).unwrap_or("no harness");
            // "3 passed; 0 failed; 1 ignored; 0"
            let counts = counts.trim_end_matches("; 0").replace("; 0 failed", "").replace("; 0 ignored", "");
            for left in &outcome.left {
                let _ = writeln!(out, "   {title}: left a process behind: {left}");
            }
            writeln!(out, "   {title}: {counts}, {seconds:.1} s").is_ok()
        }
        Ok(outcome) => {
            let how =
                if outcome.hung.is_some() { "did not end".to_owned() } else { outcome.status.to_string() };
            let _ = writeln!(out, "== {title}: FAILED ({how}), {seconds:.1} s");
            let _ = out.write_all(&outcome.stdout).and_then(|()| out.write_all(&outcome.stderr));
            let _ = out.write_all(outcome.hung.as_deref().unwrap_or_default().as_bytes());
            false
        }
        Err(error) => {
            let _ = writeln!(out, "== {title}: cannot be started: {error}");
            false
        }
    };
    let _ = out.flush();
    passed
}

fn documentation(cargo: &OsString, arguments: &[String]) -> Result<(), Failure> {
    let status =
        Command::new(cargo).args(["test", "--quiet", "--doc"]).args(arguments).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Failure::Broken("a documentation test failed (above)".into())),
        Err(error) => Err(Failure::Unavailable(format!("cargo: {error}"))),
    }
}
