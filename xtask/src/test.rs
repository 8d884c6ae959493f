// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the tests of one build, several programs at a time: many wait (for a lease, a dead peer, a disk) while others compute.
//!
//! - **Flow** `cargo build` of all targets ─▶ test programs, from cargo's messages ─▶ those and the commands beside them, as [`Admission`]
//!   lets them start, a line each ─▶ what the failed ones printed
//! - **Order** commands beside the programs and the longest programs ([`LONG`]) first, so that no core idles at the end
//! - **Again** some programs run a second time in another environment, with the others: that needs no other build
//! - **Hangs** a program that does not end is named with its stacks ([`watched`])
//! - **Alone** programs that compare measured times ([`ALONE`]) run after the others, test by test: who shares a core measures that
//! - **Place** a program runs as cargo would run it: in its package's folder, with the toolchain's libraries on the path
//! - **Why** `cargo test` runs one program after the other, and builds anew for each choice of packages, since that changes features

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;

use crate::Failure;
use crate::admission::Admission;
use crate::watched::{self, Outcome};

/// Programs that compare measured times.
const ALONE: [&str; 1] = ["lab/cli:record"];
/// Programs that take half a minute or more; those that take longest are first.
const LONG: [&str; 12] = [
    "services/persist:sim_pool",
    "services/persist:sim_large",
    "bindings/preload:masks",
    "bindings/preload:odd",
    "lab/cli:reproduce",
    "services/persist:trim",
    "cli:replica",
    "services/ipc:processes",
    "lab/bench:memlift_bench",
    "cli:spill",
    "bindings/preload:calls",
    "services/zmem:pager_limits",
];

/// Choice of tests, and cargo's arguments.
#[derive(Default)]
pub struct Options {
    /// Folders, or `folder:program`; none: all.
    only: Vec<String>,
    again: Vec<Again>,
    /// Commands of a shell that run among the programs, with their names.
    beside: Vec<(String, String)>,
    cargo: Vec<String>,
}

/// A second run of some programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Again {
    environment: Vec<(String, String)>,
    only: Vec<String>,
    skip: Vec<String>,
}

struct Program {
    /// Folder of the package, from the workspace's root.
    folder: String,
    /// As cargo calls the target.
    name: String,
    path: PathBuf,
}

/// A process to run, and the name that it has in the report.
struct Job {
    title: String,
    command: Mutex<Command>,
}

impl Program {
    fn title(&self) -> String {
        format!("{}:{}", self.folder, self.name)
    }

    /// Returns true if the program is one of `only`, or `only` names none.
    fn is_of(&self, only: &[String]) -> bool {
        let names = |only: &String| match only.split_once(':') {
            Some((folder, name)) => self.folder == folder && self.name == name,
            None => self.folder == *only,
        };
        only.is_empty() || only.iter().any(names)
    }
}

impl Again {
    fn parse(text: &str) -> Self {
        let mut again = Self::default();
        for word in text.split_whitespace() {
            if let Some(test) = word.strip_prefix('-') {
                again.skip.push(test.to_owned());
            } else if let Some((name, value)) = word.split_once('=') {
                again.environment.push((name.to_owned(), value.to_owned()));
            } else {
                again.only.push(word.to_owned());
            }
        }
        again
    }

    fn title(&self, program: &Program) -> String {
        let settings: Vec<String> =
            self.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} with {}", program.title(), settings.join(" "))
    }
}

impl Options {
    /// Reads the arguments after `test`.
    pub fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value =
                || rest.next().cloned().ok_or_else(|| Failure::Usage(format!("{argument} needs a value")));
            match argument.as_str() {
                "--only" => options.only.push(value()?),
                "--again" => options.again.push(Again::parse(&value()?)),
                "--beside" => options.beside.push((value()?, value()?)),
                "--" => {
                    options.cargo.extend(rest.cloned());
                    break;
                }
                unknown => return Err(Failure::Usage(format!("no such option: {unknown}"))),
            }
        }
        Ok(options)
    }
}

/// Builds and runs; the message says how many passed.
pub fn run(options: &Options) -> Result<String, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let programs = build(&cargo, &options.cargo)?;
    let (jobs, alone) = jobs(options, &programs)?;
    let (total, failed, running) = (jobs.len() + alone.len(), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let run_one = |job: &Job| {
        let mut command = job.command.lock().expect("nobody panics");
        let started = Instant::now();
        let outcome = watched::run(&job.title, &mut command);
        if !report(&job.title, started.elapsed().as_secs_f64(), &outcome) {
            failed.lock().expect("nobody panics").push(job.title.clone());
        }
    };
    let mut admission = Admission::new(std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for job in &jobs {
            admission.wait(&running);
            running.fetch_add(1, Ordering::AcqRel);
            scope.spawn(|| {
                run_one(job);
                running.fetch_sub(1, Ordering::AcqRel);
            });
        }
    });
    alone.iter().for_each(run_one);
    let failed = failed.into_inner().expect("nobody panics");
    if !failed.is_empty() {
        return Err(Failure::Broken(format!(
            "{} of {total} test programs failed: {}. One alone: cargo xtask test --only FOLDER:PROGRAM -- …",
            failed.len(),
            failed.join(", "),
        )));
    }
    Ok(format!("{total} test programs passed"))
}

/// Returns what is to run at a time, in order, and what is to run alone.
fn jobs(options: &Options, programs: &[Program]) -> Result<(Vec<Job>, Vec<Job>), Failure> {
    let (root, libraries) = (root()?, libraries()?);
    let job = |title: String, program: &Program, again: &Again| {
        let command = command(&root.join(&program.folder), program, &libraries, again);
        Job { title, command: Mutex::new(command) }
    };
    let first = Again::default();
    let (alone, mut jobs): (Vec<_>, Vec<_>) =
        programs.iter().filter(|program| program.is_of(&options.only)).partition(|program| is_alone(program));
    let order: HashMap<&str, usize> = LONG.iter().copied().zip(0..).collect();
    jobs.sort_by_key(|program| *order.get(&*program.title()).unwrap_or(&LONG.len()));
    let mut jobs: Vec<Job> = jobs.into_iter().map(|program| job(program.title(), program, &first)).collect();
    // In the middle: long ones of them overlap with the programs before, and short ones with those behind.
    let middle = LONG.len().min(jobs.len());
    let again = options.again.iter().flat_map(|again| {
        let wanted = programs.iter().filter(|program| program.is_of(&again.only) && !is_alone(program));
        wanted.map(|program| job(again.title(program), program, again)).collect::<Vec<_>>()
    });
    jobs.splice(middle..middle, again.collect::<Vec<_>>());
    let beside = options.beside.iter().map(|(name, line)| {
        let mut command = Command::new("bash");
        command.args(["-eu", "-o", "pipefail", "-c", line]).current_dir(&root).stdin(Stdio::null());
        Job { title: name.clone(), command: Mutex::new(command) }
    });
    jobs.splice(..0, beside.collect::<Vec<_>>());
    let alone: Vec<Job> = alone.into_iter().map(|program| job(program.title(), program, &first)).collect();
    if jobs.is_empty() && alone.is_empty() {
        return Err(Failure::Usage(format!("no test program is meant by --only {:?}", options.only)));
    }
    Ok((jobs, alone))
}

fn is_alone(program: &Program) -> bool {
    ALONE.contains(&&*program.title())
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

fn command(folder: &Path, program: &Program, libraries: &OsString, again: &Again) -> Command {
    let mut command = Command::new(&program.path);
    for name in &again.skip {
        command.args(["--skip", name]);
    }
    if is_alone(program) {
        command.arg("--test-threads=1");
    }
    command.envs(again.environment.iter().map(|(name, value)| (name, value)));
    command.env("LD_LIBRARY_PATH", libraries).env("CARGO_MANIFEST_DIR", folder);
    // The libraries of this build lie beside its test programs.
    command.env("MEMLIFT_BUILT", program.path.parent().expect("cargo gives whole paths"));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// A line for what passed, everything for what did not.
fn report(title: &str, seconds: f64, outcome: &std::io::Result<Outcome>) -> bool {
    let mut out = std::io::stdout().lock();
    let passed = match outcome {
        Ok(outcome) if outcome.status.success() => {
            let verdict = verdict(&String::from_utf8_lossy(&outcome.stdout));
            for left in &outcome.left {
                let _ = writeln!(out, "   {title}: left a process behind: {left}");
            }
            writeln!(out, "   {title}: {verdict}, {seconds:.1} s, {:.1} s of CPU", outcome.cpu_s).is_ok()
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

/// Returns libtest's counts, over all programs that a command ran, or the last line of another program.
fn verdict(text: &str) -> String {
    let (mut ran, mut passed, mut ignored) = (false, 0, 0);
    for line in text.lines().filter_map(|line| line.strip_prefix("test result: ok. ")) {
        // "3 passed; 0 failed; 1 ignored; 0 measured; …"
        let count = |what: &str| -> u64 {
            line.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse().ok()).unwrap_or(0)
        };
        (ran, passed, ignored) = (true, passed + count("passed"), ignored + count("ignored"));
    }
    match (ran, ignored) {
        (true, 0) => format!("{passed} passed"),
        (true, _) => format!("{passed} passed; {ignored} ignored"),
        (false, _) => {
            text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("passed").trim().to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Options {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Options::parse(&words).unwrap_or_else(|_| panic!("{words:?} are understood"))
    }

    fn program(title: &str) -> Program {
        let (folder, name) = title.split_once(':').expect("a folder and a name");
        Program { folder: folder.into(), name: name.into(), path: "/built/deps/program".into() }
    }

    #[test]
    fn programs_run_again_where_they_are_named_and_commands_first() {
        let options = options(&[
            "--again",
            "MEMLIFT_ISA=scalar ground -slow_test",
            "--beside",
            "python",
            "true",
            "--",
            "--workspace",
        ]);
        let programs: Vec<Program> =
            ["ground:region", "cli:pool", "lab/cli:record", "services/persist:sim_pool"].map(program).into();
        let (jobs, alone) = jobs(&options, &programs).unwrap_or_else(|_| panic!("there are some"));
        let titles: Vec<&str> = jobs.iter().map(|job| &*job.title).collect();
        assert_eq!(
            titles,
            [
                "python",
                "services/persist:sim_pool",
                "ground:region",
                "cli:pool",
                "ground:region with MEMLIFT_ISA=scalar"
            ]
        );
        assert_eq!(alone.len(), 1);
        let again = format!("{:?}", jobs[4].command.lock().expect("nobody panics"));
        assert!(
            again.contains("MEMLIFT_ISA=\"scalar\"") && again.contains("\"--skip\" \"slow_test\""),
            "{again}"
        );
        assert_eq!(options.cargo, ["--workspace"]);
    }

    #[test]
    fn counts_and_last_lines_are_the_verdict() {
        let libtest =
            "running 3 tests\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(verdict(libtest), "3 passed; 1 ignored");
        assert_eq!(verdict(&libtest.repeat(2)), "6 passed; 2 ignored");
        assert_eq!(verdict("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured"), "2 passed");
        assert_eq!(verdict("...\n7 passed, 1 skipped in 2.0s\n\n"), "7 passed, 1 skipped in 2.0s");
        assert_eq!(verdict(""), "passed");
    }
}
