// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel backend: cgroup v2 keeps the budget, zswap compresses, the freezer pauses.
//!
//! ```text
//! total              memory.high = budget, memory.max = budget + twice the grace (zswap's bytes are charged since 5.19)
//! unused objective   what is missing to it is asked for by memory.reclaim
//! min uncompressed   memory.zswap.max = budget − it
//! fault and grace    memory.current above budget + grace ─▶ pause: cgroup.freeze, a line, a time limit; fail: cgroup.kill
//! accesses           memory.stat zswpin
//! ```
//!
//! - **Flow** [`find`] a folder in which this user may make a group ─▶ [`run`]: the child enters the group before it becomes the
//!   program ─▶ a check every 20 ms ─▶ the group is removed
//! - **Owner** the group `memlift-PID` beside this process's own
//! - **Not here** fairness between jobs: the kernel's reclaim does not provide it. Machines without a swap device: zswap needs one.
//!   Before Linux 6.8 the device also takes pages that zswap refuses, even without --spill

use std::fs;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift::ground::region::MemoryGroup;
use memlift::zmem::block::{GRACE_BYTES, OVERFLOW_EXIT_CODE, OnOverflow};
use memlift::zmem::supervise::{self, Supervised};

use super::budget::Budget;
use super::outcome::Outcome;
use super::program::Program;
use super::{Args, streams};
use crate::failure::Failure;
use crate::print;

const LOOK: Duration = Duration::from_millis(20);
/// Time between two lines about a pause.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Place in which a group can be made.
#[derive(Clone, Debug)]
pub struct Group {
    /// The folder in which it will be made.
    pub folder: PathBuf,
}

/// Finds a folder in which this user may make a group with a memory controller; the error is the reason that
/// there is none.
pub fn find() -> Result<Group, String> {
    let own = MemoryGroup::own().filter(|group| group.version == 2);
    let own = own.ok_or("memory is not on cgroup v2 here (boot with systemd.unified_cgroup_hierarchy=1)")?;
    let root = own.directory.parent().is_none_or(|parent| !parent.join("cgroup.procs").exists());
    let folder = if root {
        own.directory.clone()
    } else {
        own.directory.parent().map_or(own.directory.clone(), Path::to_owned)
    };
    let controllers = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
    if !controllers.split_whitespace().any(|name| name == "memory") {
        return Err(format!(
            "{} gives its groups no memory controller (systemd: Delegate=memory)",
            folder.display()
        ));
    }
    if fs::OpenOptions::new().write(true).open(folder.join("cgroup.procs")).is_err() {
        return Err(format!("{} is not this user's to change (systemd: Delegate=yes)", folder.display()));
    }
    if fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() < 2) {
        return Err("no swap device is on, and zswap needs one".to_owned());
    }
    if fs::read_to_string("/sys/module/zswap/parameters/enabled").is_ok_and(|text| !text.starts_with('Y')) {
        return Err("zswap is off (as root: echo Y > /sys/module/zswap/parameters/enabled)".to_owned());
    }
    Ok(Group { folder })
}

/// Returns the CPU time of children that ended, in seconds.
pub fn children_cpu_s() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks =
        |field: usize| fields.split(' ').nth(field).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    // The fields 16 and 17 of the line are in ticks; every Linux that runs this counts hundredths of a second
    // in /proc.
    (ticks(13) + ticks(14)) / 100.0
}

struct Made {
    folder: PathBuf,
}

impl Made {
    fn set(&self, file: &str, value: &str) -> Result<(), Failure> {
        let path = self.folder.join(file);
        fs::write(&path, value).map_err(|error| Failure::Unavailable(format!("{}: {error}", path.display())))
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.folder.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("cgroup.freeze"), "0");
        // Fails while processes outlive the program: then the group remains for them.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Runs the program in a new cgroup with the budget as its limit.
pub fn run(args: &Args, program: &Program, budget: &Budget, group: Group) -> Result<Outcome, Failure> {
    let folder = group.folder.join(format!("memlift-{}", std::process::id()));
    fs::create_dir(&folder)
        .map_err(|error| Failure::Unavailable(format!("{}: {error}", folder.display())))?;
    let made = Arc::new(Made { folder });
    let grace = GRACE_BYTES as u64;
    made.set("memory.high", &budget.bytes.to_string())?;
    made.set("memory.max", &(budget.bytes + 2 * grace).to_string())?;
    if made.folder.join("memory.zswap.max").exists() {
        let zswap = budget.bytes.saturating_sub(args.min_uncompressed);
        made.set("memory.zswap.max", &zswap.to_string())?;
        // Spilled pages go to the swap device; without --spill zswap writes nothing there.
        let _ = made.set("memory.zswap.writeback", if args.spill.is_some() { "1" } else { "0" });
    }
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(made.folder.join("cgroup.procs"));
    command.arg(&program.path).args(&args.command[1..]);
    streams(args, &mut command);
    let (began, cpu_before) = (Instant::now(), children_cpu_s());
    let child =
        Supervised::spawn(command).map_err(|error| Failure::Unavailable(format!("/bin/sh: {error}")))?;
    let stop = Arc::new(AtomicBool::new(false));
    let overs = Arc::new(AtomicU64::new(0));
    let thread = {
        let (made, stop, overs, args, budget) =
            (made.clone(), stop.clone(), overs.clone(), args.clone(), budget.bytes);
        std::thread::spawn(move || watch(&made, &args, budget, &stop, &overs))
    };
    // A frozen process receives no signal.
    let stuck = |signal| {
        let frozen = made.number("cgroup.freeze") == 1;
        if frozen {
            print::warn(&format!(
                "the job is paused for want of memory and cannot take {}: it is ended by force",
                supervise::signal_name(signal)
            ));
            let _ = fs::write(made.folder.join("cgroup.kill"), "1");
        }
        frozen
    };
    let ended = child.wait(stuck).map_err(|error| Failure::Failed(error.to_string()))?;
    let wall_s = began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Release);
    let failed = thread.join().unwrap_or(false);
    let stat = MemoryGroup { directory: made.folder.clone(), version: 2 }.stat();
    let of_stat = |name| stat.field(name).unwrap_or(0);
    let peak = made.number("memory.peak");
    Ok(Outcome {
        exit_code: if failed { OVERFLOW_EXIT_CODE as u8 } else { ended.code() },
        ending_signal: ended.ending_signal,
        backend: "kernel",
        budget: budget.bytes,
        budget_at_start: budget.bytes,
        origin: budget.origin.clone(),
        source: made.folder.display().to_string(),
        peak,
        peak_counted: peak,
        covered: peak,
        wall_s,
        cpu_s: children_cpu_s() - cpu_before,
        processes: 1,
        events: overs.load(Ordering::Relaxed),
        compressed_accesses: of_stat("zswpin"),
        counters: vec![("pages_stored", of_stat("zswpout")), ("faults", of_stat("zswpin"))],
        ..Outcome::default()
    })
}

/// Checks the group until the program has ended; returns true if the program was ended for lack of memory.
fn watch(made: &Made, args: &Args, budget: u64, stop: &AtomicBool, overs: &AtomicU64) -> bool {
    let grace = GRACE_BYTES as u64;
    let mut paused: Option<Instant> = None;
    let (mut said, parent) = (Instant::now(), parent_id());
    while !stop.load(Ordering::Acquire) {
        let current = made.number("memory.current");
        let wanted = args.unused.unwrap_or(budget / 32);
        if let Some(missing) = (current + wanted).checked_sub(budget).filter(|missing| *missing > 0) {
            let _ = fs::write(made.folder.join("memory.reclaim"), missing.to_string());
        }
        if made.number("memory.current") > budget + grace {
            let limit = match args.on_overflow {
                OnOverflow::Fail => Duration::ZERO,
                OnOverflow::Pause { limit_s } => Duration::from_secs(limit_s.into()),
            };
            let since = *paused.get_or_insert_with(|| {
                overs.fetch_add(1, Ordering::Relaxed);
                print::warn(&format!(
                    "this job needs more than its budget of {}, compressed as far as it goes; it waits at most {} s; give it \
                     more with --memory",
                    print::bytes(budget),
                    limit.as_secs()
                ));
                let _ = fs::write(made.folder.join("cgroup.freeze"), "1");
                said = Instant::now();
                said
            });
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                print::note(&format!(
                    "paused for {} s, {} s at most",
                    since.elapsed().as_secs(),
                    limit.as_secs()
                ));
            }
            if since.elapsed() >= limit {
                let _ = fs::write(made.folder.join("cgroup.kill"), "1");
                return true;
            }
        } else if paused.take().is_some() {
            let _ = fs::write(made.folder.join("cgroup.freeze"), "0");
        }
        if args.end_with_parent && parent != parent_id() {
            print::warn("the process that started memlift has ended, so the job ends");
            let _ = fs::write(made.folder.join("cgroup.kill"), "1");
            return false;
        }
        std::thread::sleep(LOOK);
    }
    false
}
