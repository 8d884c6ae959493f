// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program under memlift's own budget: admission, environment, child, watcher.
//!
//! - **Flow** registry ─▶ admission (the job's total is taken from the machine's) ─▶ child with LD_PRELOAD and the
//!   registry's descriptor ─▶ the watcher's checks until the child ends ─▶ [`Outcome`]
//! - **Order** the child is started before the watcher's thread: starting it blocks the signals of this process, also for
//!   threads started later, and they are then passed on to the child
//! - **Owner** a paused job reacts to no signal: if one that ends programs stays pending, the job is killed, with that
//!   signal's exit code. Memory that cannot be compressed is watched too: a job whose uncovered memory alone exceeds
//!   the budget is ended, exit code 75
//! - **Not here** the processes' use of their budget

use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memlift::zmem::block::{
    Admission, Counter, ENV_ON_OVERFLOW, ENV_SPILL, OVERFLOW_EXIT_CODE, Objectives, Registry, Slot,
};
use memlift::zmem::supervise::{self, Supervised};
use memlift::zmem::watch::{Source, Watcher, Watching};

use super::budget::Budget;
use super::limits::Limits;
use super::outcome::Outcome;
use super::program::Program;
use super::progress::Progress;
use super::{Args, kernel, streams};
use crate::failure::Failure;
use crate::print;

/// Consecutive checks that must find the uncovered memory alone above the budget before the job is ended.
const PATIENCE: u32 = 40;
/// Consecutive checks, a tenth of a second apart, that must find that a paused job does not react to a signal before it is
/// killed.
const UNRESPONSIVE_CHECKS: u32 = 3;
/// In a run with fewer checks than this little was seen, so the kernel's peak of its processes counts too.
const FEW_CHECKS: u32 = 10;

/// The counters in the report.
const COUNTERS: [(&str, Counter); 17] = [
    ("faults", Counter::Faults),
    ("fault_ns", Counter::FaultNs),
    ("room_ns", Counter::RoomNs),
    ("unspill_ns", Counter::UnspillNs),
    ("paused_ns", Counter::PausedNs),
    ("pages_stored", Counter::PagesStored),
    ("bytes_stored", Counter::BytesStored),
    ("pages_cold_packed", Counter::PagesColdPacked),
    ("bytes_cold_packed", Counter::BytesColdPacked),
    ("pages_filled", Counter::PagesFilled),
    ("pages_incompressible", Counter::PagesIncompressible),
    ("pages_spilled", Counter::PagesSpilled),
    ("pages_unspilled", Counter::PagesUnspilled),
    ("evictions_in_faults", Counter::SynchronousEvictions),
    ("evictions_ahead", Counter::BackgroundEvictions),
    ("visits", Counter::Visits),
    ("trapped_calls", Counter::TrappedCalls),
];

#[derive(Debug, Default)]
struct Peaks {
    counted: AtomicI64,
    covered: AtomicI64,
    outside: AtomicI64,
    need: AtomicI64,
    away: AtomicI64,
    /// Bytes of the compressed copies when `away` was highest.
    store: AtomicI64,
    over: AtomicU32,
    /// Bytes outside memlift's arenas when they ended the job, and the total at that time.
    ended_at: [AtomicI64; 2],
    looks: AtomicU32,
}

/// Runs the program with the library preloaded and watches its memory.
pub fn run(args: &Args, program: &Program, budget: &Budget, library: &Path) -> Result<Outcome, Failure> {
    let unavailable = |error: memlift::zmem::Error| Failure::Unavailable(error.to_string());
    let folder = Registry::folder();
    let registry = Registry::open(&folder).map_err(unavailable)?;
    let objectives = Objectives {
        total: usize::try_from(budget.bytes).unwrap_or(usize::MAX),
        unused: args.unused.unwrap_or(super::budget::unused(budget.bytes)) as usize,
        min_uncompressed: args.min_uncompressed as usize,
        on_overflow: args.on_overflow,
    };
    let name = Path::new(&args.command[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let job = registry.admit(&name, &objectives).map_err(unavailable)?;
    let inherited = job.inheritable().map_err(unavailable)?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&inherited);

    let mut command = Command::new(&program.path);
    std::os::unix::process::CommandExt::arg0(&mut command, &args.command[0]);
    command.args(&args.command[1..]).envs(job.environment(number));
    let mut preload = library.as_os_str().to_owned();
    if let Some(already) = std::env::var_os("LD_PRELOAD").filter(|already| !already.is_empty()) {
        preload.push(":");
        preload.push(already);
    }
    command.env("LD_PRELOAD", preload).env(ENV_ON_OVERFLOW, args.on_overflow.to_string());
    match &args.spill {
        Some(folder) => command
            .env(ENV_SPILL, std::path::absolute(folder).map_err(|error| Failure::Usage(error.to_string()))?),
        None => command.env_remove(ENV_SPILL),
    };
    streams(args, &mut command);
    let watcher = Watcher::new(&job);
    let limits = Limits::new(args.memory, budget.bytes);
    let source = match watcher.source() {
        Source::Group(group) => group.directory.display().to_string(),
        Source::Resident => "resident sizes".to_owned(),
    };
    let began = Instant::now();
    let cpu_before = kernel::children_cpu_s();
    let child = Supervised::spawn(command)
        .map_err(|error| Failure::Unavailable(format!("{}: {error}", program.path.display())))?;
    if let Err(error) = job.name_holder(&folder, child.pid(), number) {
        print::warn(&format!("{error}"));
    }
    let peaks = Arc::new(Peaks::default());
    let parent = args.end_with_parent.then(parent_id);
    let attended = Attended { limits, quiet: args.quiet, progress: Progress::new(args.progress), parent };
    let watching = watch(watcher, &job, child.pid(), &peaks, attended)?;
    let pid = child.pid();
    let mut asks = 0;
    let stuck = |signal| {
        let (registry, block) = (job.registry(), job.block());
        let members = registry.processes(block).filter_map(memlift::zmem::block::Slot::pid).chain([pid]);
        let deaf = job.ledger().paused() && members.into_iter().any(|pid| supervise::is_pending(pid, signal));
        asks = if deaf { asks + 1 } else { 0 };
        if asks >= UNRESPONSIVE_CHECKS {
            print::warn(&format!(
                "the job is paused for want of memory and cannot take {}: it is ended by force",
                supervise::signal_name(signal)
            ));
            end(registry, block, pid, true);
        }
        asks >= UNRESPONSIVE_CHECKS
    };
    let ended = child.wait(stuck).map_err(|error| Failure::Failed(error.to_string()))?;
    let wall_s = began.elapsed().as_secs_f64();
    if !watching.end() {
        print::warn("the watcher ended early; the numbers of the report are incomplete");
    }
    let mut exit_code = ended.code();
    let refused = (peaks.over.load(Ordering::Relaxed) > PATIENCE).then(|| {
        exit_code = OVERFLOW_EXIT_CODE as u8;
        let [outside, total] = peaks.ended_at.each_ref().map(|word| word.load(Ordering::Relaxed));
        refusal(outside, total.max(0) as u64)
    });
    // In a job that ended within a few checks little was seen.
    let unseen = if peaks.looks.load(Ordering::Relaxed) < FEW_CHECKS { ended.peak_resident } else { 0 };
    let (control, ledger) = (job.control(), job.ledger());
    let at_least_zero = |word: &AtomicI64| word.load(Ordering::Relaxed).max(0) as u64;
    Ok(Outcome {
        exit_code,
        ending_signal: ended.ending_signal,
        backend: "user",
        budget: control.total().max(0) as u64,
        budget_at_start: budget.bytes,
        origin: budget.origin.clone(),
        source,
        peak: ledger.peak().max(unseen),
        peak_counted: at_least_zero(&peaks.counted).max(unseen),
        covered: at_least_zero(&peaks.covered),
        outside: at_least_zero(&peaks.outside),
        need: at_least_zero(&peaks.need).max(at_least_zero(&peaks.counted)),
        away: at_least_zero(&peaks.away),
        store: at_least_zero(&peaks.store),
        returns: ledger.returns(),
        least_budget: if exit_code == OVERFLOW_EXIT_CODE as u8 {
            (control.total() - ledger.least_unused()).max(0) as u64
        } else {
            0
        },
        wall_s,
        cpu_s: kernel::children_cpu_s() - cpu_before,
        processes: ledger.processes(),
        events: ledger.events(),
        compressed_accesses: control.compressed_accesses(),
        counters: COUNTERS.iter().map(|(name, counter)| (*name, ledger.counted(*counter))).collect(),
        refused,
    })
}

fn refusal(outside: i64, budget: u64) -> String {
    format!(
        "what memlift cannot compress of this job (text, stacks, page tables, memory of uncovered programs) is {}, its \
         whole budget {}: give it more with --memory, or see --backend kernel",
        print::bytes(outside.max(0) as u64),
        print::bytes(budget)
    )
}

/// Duties of the watcher's thread at each look, beside the peaks.
struct Attended {
    /// The limits that the budget follows.
    limits: Limits,
    /// True if no line says that the budget changed.
    quiet: bool,
    progress: Progress,
    /// The process that started this one, if the job ends with it.
    parent: Option<u32>,
}

fn watch(
    watcher: Watcher,
    job: &Admission,
    child: u32,
    peaks: &Arc<Peaks>,
    mut attended: Attended,
) -> Result<Watching, Failure> {
    let (registry, block) = (job.registry().clone(), job.block());
    let peaks = peaks.clone();
    let mut ended: Option<Instant> = None;
    let each = move |seen: memlift::zmem::watch::Measurement| {
        peaks.looks.fetch_add(1, Ordering::Relaxed);
        attended.limits.follow(&registry, block, attended.quiet);
        if seen.usage > peaks.counted.fetch_max(seen.usage, Ordering::Relaxed) {
            peaks.covered.store(seen.present, Ordering::Relaxed);
        }
        peaks.outside.fetch_max(seen.outside, Ordering::Relaxed);
        let (away, store) = sums(&registry, block);
        attended.progress.report(&registry, block, seen, away);
        peaks.need.fetch_max(seen.usage - store + away, Ordering::Relaxed);
        if away > peaks.away.fetch_max(away, Ordering::Relaxed) {
            peaks.store.store(store, Ordering::Relaxed);
        }
        let total = registry.control(block).total();
        let over = peaks.over.load(Ordering::Relaxed);
        if over <= PATIENCE {
            // Once the job was ended the count does not fall.
            peaks.over.store(if seen.outside > total { over + 1 } else { 0 }, Ordering::Relaxed);
            if over == PATIENCE && seen.outside > total {
                for (word, value) in peaks.ended_at.iter().zip([seen.outside, total]) {
                    word.store(value, Ordering::Relaxed);
                }
                print::warn(&refusal(seen.outside, total.max(0) as u64));
                end(&registry, block, child, false);
                ended = Some(Instant::now());
            }
        }
        if ended.is_none() && attended.parent.is_some_and(|parent| parent != parent_id()) {
            print::warn("the process that started memlift has ended, so the job ends");
            end(&registry, block, child, false);
            ended = Some(Instant::now());
        } else if ended.is_some_and(|at| at.elapsed() > Duration::from_secs(5)) {
            end(&registry, block, child, true);
        }
    };
    watcher.spawn(each).map_err(|error| Failure::Failed(error.to_string()))
}

/// Returns the bytes of the job's pages that are compressed or spilled, and the bytes of the compressed copies.
fn sums(registry: &Registry, block: usize) -> (i64, i64) {
    // The sizes are the processes' own words: more than a machine can have is not believed.
    let believed = |bytes: u64| bytes.min(1 << 48) as i64;
    registry.processes(block).fold((0, 0), |(away, store), slot: &Slot| {
        (away + believed(slot.away()), store + believed(slot.published().1))
    })
}

fn end(registry: &Registry, block: usize, child: u32, at_once: bool) {
    let members = registry.processes(block).filter_map(memlift::zmem::block::Slot::pid);
    supervise::end(members.chain([child]), at_once);
}
