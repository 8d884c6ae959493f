// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift run`: a program under an exact budget of real memory, compressed pages included.
//!
//! - **Flow** [`program`]: can it be covered? ─▶ [`budget`] (given, or from the cgroup) ─▶ [`check`] ─▶ [`backend`]: user space or the
//!   kernel ─▶ admission ─▶ [`launch`]: environment, child, watcher ─▶ its end ─▶ [`report`]. With `--profile`: the same under several
//!   budgets, [`profile`]
//! - **Exit** the program's own code, 128 + signal if a signal ended it; 75 if the budget was not enough; 1–3 as in all commands if it was
//!   not started
//! - **Not here** the memory itself: bindings/preload in the program, services/zmem

mod backend;
mod budget;
mod curve;
mod kernel;
mod launch;
mod limits;
mod outcome;
mod plot;
mod profile;
pub mod program;
mod progress;
mod report;
mod swap;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use memlift::zmem::block::OnOverflow;
use memlift::zmem::spill::Spill;

use crate::failure::Failure;
use crate::{output, print};
pub use backend::checks;
pub use budget::{enough, size};
pub use kernel::children_cpu_s;

/// Bytes of a spill file that is made only to check that one can be made.
const SPILL_PROBE_BYTES: usize = 1 << 20;

/// Examples for the help.
pub const EXAMPLES: &str = "\
Examples:
  memlift run --memory 2G -- python train.py
  memlift run --memory 2G --spill /scratch --on-overflow pause:300 -- ./solver input
  memlift run --profile -- ./solver input        which budget is enough?

Exit codes: the program's own; 75 when it did not fit into its budget; 70 when a page could not be read back from the spill folder as it was written; 128 + N when signal N ended it.";

/// Arguments of `memlift run`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Budget of real memory for everything: bytes, or with K, M, G, T [default: the cgroup's limit less headroom]
    #[arg(long, short, value_name = "SIZE", value_parser = budget::size)]
    memory: Option<u64>,
    /// Least memory that stays uncompressed
    #[arg(long, value_name = "SIZE", value_parser = budget::size, default_value = "0")]
    min_uncompressed: u64,
    /// Memory that is kept free ahead of need [default: 1/128 of the budget, at least 512K if
    /// that is no more than 1/32; for the kernel's backend 1/32]
    #[arg(long, value_name = "SIZE", value_parser = budget::size)]
    unused: Option<u64>,
    /// Folder on a disk of this node for what does not fit even compressed
    #[arg(long, value_name = "FOLDER")]
    spill: Option<PathBuf>,
    /// When even that is not enough: pause[:SECONDS] or fail
    #[arg(long, value_name = "WHAT", value_parser = overflow, default_value = "pause:60")]
    on_overflow: OnOverflow,
    /// End the program when the process that started memlift ends
    #[arg(long)]
    end_with_parent: bool,
    /// The keeper of the budget
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Write the exit report there as JSON; `-` is standard error
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Replace a report or a plot that is there
    #[arg(long)]
    force: bool,
    /// Write a line on standard error every few seconds: memory, faults, and time in them
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "5")]
    progress: Option<u32>,
    /// No exit report
    #[arg(long, short)]
    quiet: bool,
    /// Run it twice and estimate run time against memory; or run it under each of these budgets, in % of what it needs
    #[arg(long, value_name = "PERCENT,…", num_args = 0..=1, require_equals = true, default_missing_value = profile::CURVE)]
    profile: Option<String>,
    /// With --profile: the slow-down that is accepted
    #[arg(long, value_name = "FACTOR", default_value_t = 1.25, requires = "profile")]
    slow_down: f64,
    /// With --profile: draw the curve into this SVG file
    #[arg(long, value_name = "FILE", requires = "profile")]
    plot: Option<PathBuf>,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The keeper of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// User space where the program can be covered, else the kernel
    Auto,
    /// memlift, in the program's own processes
    User,
    /// cgroup v2 with zswap
    Kernel,
}

fn overflow(text: &str) -> Result<OnOverflow, String> {
    OnOverflow::parse(text).ok_or_else(|| "write pause, pause:SECONDS or fail".to_owned())
}

/// Runs a program; returns the program's exit code.
pub fn run(args: &Args, json: bool) -> Result<u8, Failure> {
    if let Some(percents) = &args.profile {
        return profile::run(args, percents, json);
    }
    let outcome = once(args)?;
    let is_quiet = args.quiet && args.report.as_deref().is_none_or(|file| file == std::path::Path::new("-"));
    if !is_quiet {
        report::write(&outcome, args.report.as_deref(), args.force, json)?;
    }
    Ok(outcome.exit_code)
}

/// Detaches input and output from the user's for a program that runs several times.
fn streams(args: &Args, command: &mut std::process::Command) {
    if args.profile.is_some() {
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    }
}

/// Refuses parts of a budget that are not smaller than the budget.
pub fn parts(unused: Option<u64>, min_uncompressed: u64, budget_bytes: u64) -> Result<(), Failure> {
    for (option, bytes) in [("--unused", unused), ("--min-uncompressed", Some(min_uncompressed))] {
        if let Some(bytes) = bytes.filter(|bytes| *bytes >= budget_bytes) {
            let (bytes, budget) = (print::bytes(bytes), print::bytes(budget_bytes));
            return Err(Failure::Usage(format!("{option} {bytes}: the budget is {budget}; write less")));
        }
    }
    Ok(())
}

/// Refuses impossible requests now, so that the program does not run for hours before they fail.
fn check(args: &Args, budget_bytes: u64) -> Result<(), Failure> {
    parts(args.unused, args.min_uncompressed, budget_bytes)?;
    if let Some(folder) = &args.spill {
        if !folder.is_dir() {
            let there = folder.exists();
            let what = if there { "this is not a folder" } else { "there is no such folder" };
            let text = format!("--spill {}: {what}", folder.display());
            return Err(if there { Failure::Usage(text) } else { Failure::Unavailable(text) });
        }
        Spill::create(folder, SPILL_PROBE_BYTES)
            .map_err(|error| Failure::Usage(format!("--spill {}: {error}", folder.display())))?;
    }
    if let Some(file) = args.report.as_deref().filter(|file| *file != Path::new("-")) {
        output::check(file, "--report", args.force)?;
    }
    if let Some(file) = &args.plot {
        output::check(file, "--plot", args.force)?;
    }
    Ok(())
}

/// Runs the program once under one budget.
fn once(args: &Args) -> Result<outcome::Outcome, Failure> {
    let program = program::find(&args.command[0])?;
    let budget = budget::choose(args.memory)?;
    check(args, budget.bytes)?;
    match backend::choose(args.backend, &program)? {
        backend::Choice::User { library } => launch::run(args, &program, &budget, &library),
        backend::Choice::Kernel(group) => kernel::run(args, &program, &budget, group),
    }
}
