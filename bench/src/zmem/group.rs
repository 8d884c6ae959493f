// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory cgroup for one run: what is started in it is counted by the kernel, as the killer counts it.
//!
//! Flow    [`Group::new`] below this process's own group ──▶ [`Group::command`] starts a program in it ──▶ [`Sampler`] reads its usage
//!         a thousand times a second ──▶ dropped with all that is still in it
//! Needs   the right to make groups: root where version 1 is mounted; else [`Stop::Missing`]
//! Owner   whatever is left in the group when it is dropped is killed, by id

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlift_engine::region::MemoryGroup;

use crate::BenchError;
use crate::row::Stop;

/// Between two looks at the usage.
const LOOK: Duration = Duration::from_millis(1);

/// A group of its own.
#[derive(Debug)]
pub struct Group {
    group: MemoryGroup,
}

impl Group {
    /// A new one, with a limit in bytes or without.
    pub fn new(limit: Option<u64>) -> Result<Group, Stop> {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let missing = |why: &str| {
            Stop::Missing(format!(
                "{why}: these rows measure in memory cgroups of their own; run them as root on cgroup version 1"
            ))
        };
        let own = MemoryGroup::own().ok_or_else(|| missing("no memory cgroup is mounted"))?;
        if own.version != 1 {
            return Err(missing(
                "memory is on cgroup version 2 here, whose groups with processes have no children",
            ));
        }
        let name = format!("memlift-bench-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let directory: PathBuf = own.directory.join(name);
        fs::create_dir(&directory).map_err(|error| missing(&format!("{}: {error}", directory.display())))?;
        let group = Group { group: MemoryGroup { directory, version: own.version } };
        if let Some(bytes) = limit {
            fs::write(group.group.limit_file(), bytes.to_string())
                .map_err(|error| missing(&format!("setting the limit: {error}")))?;
        }
        Ok(group)
    }

    /// `command`, started in the group: a shell joins it and becomes the program.
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("/bin/sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.group.directory.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Starts looking at its usage.
    pub fn sample(&self, budget: u64) -> Sampler {
        let (group, stop) = (self.group.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let mut next = Instant::now();
            while !stopped.load(Ordering::Acquire) {
                if let Some(usage) = group.usage() {
                    seen.samples += 1;
                    seen.most = seen.most.max(usage);
                    seen.above += u64::from(usage > budget);
                }
                next += LOOK;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            seen
        });
        Sampler { stop, thread: Some(thread) }
    }

    /// How often the killer came.
    pub fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.group.directory.join("memory.oom_control")).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel refuses to remove a group with processes; they are this bench's own.
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
    }
}

/// What was seen of a group's usage.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// Looks.
    pub samples: u64,
    /// Those above the budget.
    pub above: u64,
    /// The most, bytes.
    pub most: u64,
}

/// Looks at a group's usage until it is asked what it saw.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Seen>>,
}

impl Sampler {
    /// What was seen.
    pub fn seen(mut self) -> Seen {
        self.stop.store(true, Ordering::Release);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
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
    /// Its status.
    pub status: ExitStatus,
    /// Its output.
    pub stdout: Vec<u8>,
    /// What it said on standard error, its last kilobytes.
    pub stderr: String,
    /// Wall time, seconds.
    pub wall_s: f64,
    /// CPU of it and the children that it waited for, seconds.
    pub cpu_s: f64,
    /// Page faults of them all.
    pub faults: u64,
}

impl Ended {
    /// Whether a signal ended it, or one of its children: the killer's.
    pub fn killed(&self) -> bool {
        self.status.signal() == Some(9) || self.status.code() == Some(137)
    }
}

/// What a process and the children that it waited for have used.
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
