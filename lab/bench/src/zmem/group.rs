// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory cgroup for one run: the kernel counts the memory of the processes in it, as its killer does.
//!
//! - **Flow** [`Group::new`] below this process's own group, or beside it ──▶ a program enters: by itself ([`Group::entrance`]) or started by
//!   [`Group::command`] ──▶ [`Sampler`] reads the usage a thousand times a second ──▶ dropped with all that is still in it
//! - **Version** 1: below. 2: below where the own group gives its children the memory controller, which one with processes does only
//!   at the root; else beside it
//! - **Needs** the right to make groups: root as a rule; else [`Stop::Missing`]
//! - **Owner** whatever is left in the group when it is dropped is killed, by id

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memlift_ground::region::MemoryGroup;

use crate::BenchError;
use crate::row::Stop;

/// Time between two samples of the usage.
const LOOK: Duration = Duration::from_millis(1);

/// A group of its own.
#[derive(Debug)]
pub struct Group {
    group: MemoryGroup,
}

/// Memory limit of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// No limit at all.
    None,
    /// So many bytes, and nothing is swapped: above them the killer comes.
    Hard(u64),
    /// So many bytes; what is above them is swapped.
    Swapping(u64),
}

impl Limit {
    /// Returns the limit in bytes; None if there is none.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Limit::None => None,
            Limit::Hard(bytes) | Limit::Swapping(bytes) => Some(bytes),
        }
    }
}

impl Group {
    /// Makes a new group with this limit.
    pub fn new(limit: Limit) -> Result<Group, Stop> {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let missing = |why: &str| {
            Stop::Missing(format!(
                "{why}; these rows measure in memory cgroups of their own: run them as root where groups can be made"
            ))
        };
        let own = MemoryGroup::own().ok_or_else(|| missing("no memory cgroup is mounted"))?;
        let name = format!("memlift-bench-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let beside = own.directory.parent().filter(|_| own.version == 2);
        let mut why = String::new();
        for parent in [Some(own.directory.as_path()), beside].into_iter().flatten() {
            match Group::below(parent, &name, own.version, limit) {
                Ok(group) => return Ok(group),
                Err(reason) => why = reason,
            }
        }
        Err(missing(&why))
    }

    fn below(parent: &Path, name: &str, version: u8, limit: Limit) -> Result<Group, String> {
        let directory = parent.join(name);
        let refused = |error: std::io::Error| format!("{}: {error}", directory.display());
        fs::create_dir(&directory).map_err(refused)?;
        // From here on dropping `group` removes it again.
        let group = Group { group: MemoryGroup { directory: directory.clone(), version } };
        if group.group.usage().is_none() {
            return Err(format!("{} gives its children no memory controller", parent.display()));
        }
        if let Some(bytes) = limit.bytes() {
            fs::write(group.group.limit_file(), bytes.to_string()).map_err(refused)?;
        }
        if let Limit::Hard(bytes) = limit {
            // Version 1 limits memory and swap together. The file is missing where the kernel does not count swap.
            let (file, most) = match version {
                2 => ("memory.swap.max", 0),
                _ => ("memory.memsw.limit_in_bytes", bytes),
            };
            let file = directory.join(file);
            if file.exists() {
                fs::write(file, most.to_string()).map_err(refused)?;
            }
        }
        Ok(group)
    }

    /// Makes a group below this one, without a limit of its own; its memory counts here.
    pub fn child(&self, name: &str) -> Result<Group, Stop> {
        let control = self.group.directory.join("cgroup.subtree_control");
        if self.group.version == 2 {
            fs::write(&control, "+memory")
                .map_err(|error| Stop::Missing(format!("{}: {error}", control.display())))?;
        }
        Group::below(&self.group.directory, name, self.group.version, Limit::None).map_err(Stop::Missing)
    }

    /// Returns the file to which a process writes `0` to enter.
    pub fn entrance(&self) -> PathBuf {
        self.group.directory.join("cgroup.procs")
    }

    /// Returns the memory that it is charged, bytes; 0 if that cannot be read.
    pub fn usage(&self) -> u64 {
        self.group.usage().unwrap_or(0)
    }

    /// `command`, started in the group: a shell joins it and becomes the program.
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("/bin/sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.entrance());
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Starts sampling its usage, page cache included.
    pub fn sample(&self, budget: u64) -> Sampler {
        let group = self.group.clone();
        Sampler::new(budget, move || group.usage())
    }

    /// Starts sampling its usage plus the bytes that `beside` gives.
    pub fn sample_with(&self, budget: u64, beside: impl Fn() -> u64 + Send + 'static) -> Sampler {
        let group = self.group.clone();
        Sampler::new(budget, move || group.usage().map(|usage| usage + beside()))
    }

    /// Starts sampling its need: its usage without the page cache that the kernel drops before it kills.
    pub fn sample_need(&self) -> Sampler {
        let group = self.group.clone();
        Sampler::new(u64::MAX, move || group.usage().map(|usage| usage.saturating_sub(group.reclaimable())))
    }

    /// Returns how often the kernel killed a process of the group.
    pub fn kills(&self) -> u64 {
        let file = if self.group.version == 2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.group.directory.join(file)).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel refuses to remove a group that has processes; these belong to the bench, so they are killed.
        for _ in 0..200 {
            let left = fs::read_to_string(self.group.directory.join("cgroup.procs")).unwrap_or_default();
            for process in
                left.lines().filter_map(|line| line.parse().ok()).filter_map(rustix::process::Pid::from_raw)
            {
                let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            }
            if fs::remove_dir(&self.group.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("{} could not be removed: remove it", self.group.directory.display());
    }
}

/// Samples of a group's usage, summed up.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// Number of samples.
    pub samples: u64,
    /// Samples above the budget.
    pub above: u64,
    /// Greatest usage seen, bytes.
    pub most: u64,
}

/// Samples a group's usage until [`Sampler::seen`] is called or it is dropped.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sampler {
    fn new(budget: u64, usage: impl Fn() -> Option<u64> + Send + 'static) -> Sampler {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
        let (stopped, sees) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            let mut next = Instant::now();
            while !stopped.load(Ordering::Acquire) {
                if let Some(usage) = usage() {
                    let mut seen = sees.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.samples += 1;
                    seen.most = seen.most.max(usage);
                    seen.above += u64::from(usage > budget);
                }
                next = (next + LOOK).max(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Sampler { stop, seen, thread: Some(thread) }
    }

    /// Returns what the samples showed until now.
    pub fn so_far(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops sampling and returns what the samples showed.
    pub fn seen(mut self) -> Seen {
        self.stop.store(true, Ordering::Release);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
        self.so_far()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// How a program ended, and what it used.
#[derive(Debug)]
pub struct Ended {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// The last kilobytes of its standard error.
    pub stderr: String,
    /// Wall time, seconds.
    pub wall_s: f64,
    /// CPU of it and the children that it waited for, seconds.
    pub cpu_s: f64,
    /// Page faults of them all.
    pub faults: u64,
}

impl Ended {
    /// Returns true if a signal ended it, or one of its children: the killer's.
    pub fn killed(&self) -> bool {
        self.status.signal() == Some(9) || self.status.code() == Some(137)
    }
}

/// CPU time and page faults of a process and the children that it waited for.
struct Usage {
    cpu_s: f64,
    faults: u64,
}

impl Usage {
    /// Of a child, when it has ended and before it is reaped.
    fn of(child: &Child) -> Result<Usage, BenchError> {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let id = WaitId::Pid(Pid::from_child(child));
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .map_err(BenchError::system("waiting for a job"))?;
        let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<u64> =
            after_name.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        // Of proc(5), whose field 3 is the first here: faults are 10 to 13, times 14 to 17.
        let sum = |first: usize| fields.iter().skip(first - 3).take(4).sum::<u64>();
        Ok(Usage { cpu_s: sum(14) as f64 / rustix::param::clock_ticks_per_second() as f64, faults: sum(10) })
    }
}

/// Waits for a child whose output is piped.
pub fn wait(child: Child, begun: Instant) -> Result<Ended, BenchError> {
    use std::io::Read;

    let mut child = child;
    let (mut out, mut error) = (child.stdout.take(), child.stderr.take());
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(error) = error.as_mut() {
            let _ = error.read_to_end(&mut text);
        }
        text
    });
    let mut stdout = Vec::new();
    if let Some(out) = out.as_mut() {
        out.read_to_end(&mut stdout).map_err(BenchError::system("reading what a job printed"))?;
    }
    let usage = Usage::of(&child)?;
    let status = child.wait().map_err(BenchError::system("waiting for a job"))?;
    let stderr = reader.join().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr[stderr.len().saturating_sub(4096)..]).into_owned();
    Ok(Ended {
        status,
        stdout,
        stderr,
        wall_s: begun.elapsed().as_secs_f64(),
        cpu_s: usage.cpu_s,
        faults: usage.faults,
    })
}
