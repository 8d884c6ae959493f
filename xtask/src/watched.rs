// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A test program under watch: one that does not end is named while it runs, and in the end its stacks are printed and it is killed
//! with the processes that it started.
//!
//! - **Why** whoever waits for a whole run sees only that time passes, and a run that is ended from outside says nothing
//! - **Limit** [`PATIENCE`] is many times what the longest program takes on a slow machine: it tells hangs, not slowness
//! - **Output** goes to files without names: what a hung program printed until then is there, and who outlives its program while it
//!   holds the output is named instead of waited for

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// In the environment of a program and what descends from it: which program it is.
const MARK: &str = "XTASK_TEST_PROGRAM";
/// A program that runs as long is hung.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// A program that runs as long is mentioned, and again after as long.
const NEWS: Duration = Duration::from_secs(120);
/// Longest time between a program's end and the moment when it is seen.
const LOOK: Duration = Duration::from_millis(20);

/// Result of a program.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Stacks of a program that did not end.
    pub hung: Option<String>,
    /// Processes that outlived the program.
    pub left: Vec<String>,
}

/// Runs it to its end, or until it is hung.
pub fn run(title: &str, command: &mut Command) -> std::io::Result<Outcome> {
    let (mut stdout, mut stderr) = (nameless()?, nameless()?);
    command.stdout(Stdio::from(stdout.try_clone()?)).stderr(Stdio::from(stderr.try_clone()?));
    let mark = format!("{title} of {}", std::process::id());
    let mut child = command.env(MARK, &mark).spawn()?;
    let (started, mut told, mut hung) = (Instant::now(), 0, None);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let spent = started.elapsed();
        if spent >= PATIENCE && hung.is_none() {
            let family = family(child.id());
            hung = Some(stacks(&family));
            kill(&family);
        } else if spent >= NEWS * (told + 1) {
            told += 1;
            println!("   {title}: still running after {} s", spent.as_secs());
        }
        std::thread::sleep(LOOK);
    };
    let mut left = marked(&mark);
    if !left.is_empty() {
        // A process that was told to end needs a moment.
        std::thread::sleep(NEWS / 60);
        left = marked(&mark);
    }
    Ok(Outcome { status, stdout: whole(&mut stdout)?, stderr: whole(&mut stderr)?, hung, left })
}

/// Command lines of the processes with this mark.
fn marked(mark: &str) -> Vec<String> {
    let entry = format!("{MARK}={mark}");
    let bears = |(_, folder): &(u32, PathBuf)| {
        read(&folder.join("environ")).split('\0').any(|variable| variable == entry)
    };
    let line = |(pid, folder): (u32, PathBuf)| {
        format!("{pid} {}", read(&folder.join("cmdline")).trim_end_matches('\0').replace('\0', " "))
    };
    processes().into_iter().filter(bears).map(line).collect()
}

/// Every process, with its folder below `/proc`.
fn processes() -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))).collect()
}

/// A file for a program's output that goes with its last descriptor.
fn nameless() -> std::io::Result<File> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path =
        std::env::temp_dir().join(format!("xtask-{}-{number}-{:?}", std::process::id(), Instant::now()));
    let file = File::options().read(true).append(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn whole(file: &mut File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The process and what descends from it, parents first.
fn family(first: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, folder) in processes() {
        let status = read(&folder.join("status"));
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut family = vec![first];
    let mut next = 0;
    while let Some(member) = family.get(next) {
        family.extend(children.remove(member).unwrap_or_default());
        next += 1;
    }
    family
}

/// Of each process: its command, where each thread waits in the kernel, and the stacks if a debugger is installed.
fn stacks(family: &[u32]) -> String {
    let mut text = String::new();
    for pid in family {
        let folder = Path::new("/proc").join(pid.to_string());
        let line = read(&folder.join("cmdline")).replace('\0', " ");
        let _ = writeln!(text, "-- process {pid}: {line}");
        for entry in std::fs::read_dir(folder.join("task")).into_iter().flatten().flatten() {
            let of = |name: &str| read(&entry.path().join(name)).trim().to_owned();
            // A test's thread bears the test's name.
            let _ = writeln!(text, "   thread {}: in {}, call {}", of("comm"), of("wchan"), of("syscall"));
        }
        let debugger = Command::new("timeout")
            .args(["30", "gdb", "--batch", "-nx", "-ex", "thread apply all backtrace 30", "-p"])
            .arg(pid.to_string())
            .stdin(Stdio::null())
            .output();
        if let Ok(output) = debugger {
            text.push_str(&String::from_utf8_lossy(&output.stdout));
        }
    }
    text
}

/// Children last: who is not there any more starts none.
fn kill(family: &[u32]) {
    let _ = Command::new("kill").arg("-KILL").args(family.iter().map(u32::to_string)).status();
}

fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_found_and_its_waits_are_told() {
        let mut shell = Command::new("sh").args(["-c", "sleep 60; true"]).spawn().expect("a shell");
        let family = loop {
            let family = family(shell.id());
            if family.len() == 2 {
                break family;
            }
            std::thread::sleep(LOOK);
        };
        let told = stacks(&family);
        kill(&family);
        assert!(!shell.wait().expect("its end").success());
        assert!(told.contains("sleep 60") && told.contains("thread sleep: in "), "{told}");
    }

    #[test]
    fn who_outlives_a_program_is_named_and_not_waited_for() {
        let outcome =
            run("outlived", Command::new("sh").args(["-c", "sleep 60 & echo $!"])).expect("a shell");
        let sleeper = String::from_utf8(outcome.stdout).expect("a number").trim().to_owned();
        assert_eq!(outcome.left, [format!("{sleeper} sleep 60")]);
        kill(&[sleeper.parse().expect("a number")]);
    }

    #[test]
    fn what_was_printed_comes_back_with_the_status() {
        let outcome =
            run("", Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).expect("a shell");
        assert_eq!((outcome.status.code(), outcome.hung, outcome.left), (Some(3), None, Vec::new()));
        assert_eq!((&outcome.stdout[..], &outcome.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    }
}
