// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift job`: the jobs of this user that run under a budget, their objectives, live, and their memory for debuggers.
//!
//! - **Flow** the registry in the user's folder ─▶ a line per job · one store per objective: the job adopts it when it next
//!   charges memory, without being asked · the view of one of its processes, by which [`core`] reads absent pages
//! - **Not here** starting a job: run/

pub mod attach;
pub mod core;
mod elf;
mod maps;

use std::io;

use clap::Subcommand;
use memlift::zmem::block::Registry;
use memlift::zmem::pager::outside::Outside;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::print;
use crate::run::{enough, parts, size};

/// Verbs of `job`.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List running jobs, their memory and its cost
    #[command(visible_alias = "ls")]
    List,
    /// Change what a running job is given
    #[command(
        group = clap::ArgGroup::new("what").required(true).multiple(true),
        override_usage = "memlift job set [OPTIONS] <JOB>\n           --memory|--unused|--min-uncompressed|\n           --steal <SIZE>"
    )]
    Set {
        /// Its number in `memlift job list`
        job: usize,
        /// Budget of real memory
        #[arg(long, short, value_name = "SIZE", value_parser = size, group = "what")]
        memory: Option<u64>,
        /// Memory that is kept free ahead of need
        #[arg(long, value_name = "SIZE", value_parser = size, group = "what")]
        unused: Option<u64>,
        /// Least memory that stays uncompressed
        #[arg(long, value_name = "SIZE", value_parser = size, group = "what")]
        min_uncompressed: Option<u64>,
        /// Take away memory that it does not use, if it has so much
        #[arg(long, value_name = "SIZE", value_parser = size, group = "what")]
        steal: Option<u64>,
    },
    /// Write a whole core of a process, whose memory may be away, and let it go on
    Core(core::Args),
    /// Start a debugger that reads a process's memory also where it is away
    Attach(attach::Args),
}

/// Runs one verb of `memlift job`.
pub fn run(verb: &Verb, as_json: bool) -> Result<(), Failure> {
    let registry = Registry::of_user().map_err(|error| Failure::Unavailable(error.to_string()))?;
    match verb {
        Verb::List => list(&registry, as_json),
        Verb::Core(args) => core::run(args, as_json),
        Verb::Attach(args) => attach::run(args),
        Verb::Set { job, memory, unused, min_uncompressed, steal } => {
            if !registry.is_live(*job) {
                return Err(Failure::Unavailable(format!("there is no job {job}: memlift job list")));
            }
            if let Some(bytes) = memory {
                enough(*bytes)?;
            }
            let budget = memory.unwrap_or(registry.control(*job).total().max(0) as u64);
            parts(*unused, min_uncompressed.unwrap_or(0), budget)?;
            if let Some(bytes) = memory {
                registry
                    .set_total(*job, *bytes as usize)
                    .map_err(|error| Failure::Unavailable(error.to_string()))?;
            }
            if let Some(bytes) = unused {
                registry.set_unused_objective(*job, *bytes as usize);
            }
            if let Some(bytes) = min_uncompressed {
                registry.set_min_uncompressed(*job, *bytes as usize);
            }
            if let Some(bytes) = steal
                && !registry.steal(*job, *bytes as usize)
            {
                let unused = registry.control(*job).unused().max(0) as u64;
                return Err(Failure::Unavailable(format!(
                    "job {job} has {} unused: take less, or set --unused and wait",
                    print::bytes(unused)
                )));
            }
            Ok(())
        }
    }
}

/// Returns the address of the view of a process that runs under a budget.
fn view(registry: &Registry, pid: u32) -> Result<u64, Failure> {
    let slots = registry.jobs().flat_map(|(index, ..)| registry.processes(index));
    slots.filter(|slot| slot.pid() == Some(pid)).find_map(|slot| slot.view()).ok_or_else(|| {
        Failure::Unavailable(format!(
            "process {pid} runs under no budget of this user: memlift job list --json names those that do; for others there is gcore"
        ))
    })
}

/// Returns the address of the view of a process, by the user's registry.
fn view_of(pid: u32) -> Result<u64, Failure> {
    let registry = Registry::of_user().map_err(|error| Failure::Unavailable(error.to_string()))?;
    view(&registry, pid)
}

/// Opens the memory of a process whose view lies at `view`.
fn outside_at(pid: u32, view: u64) -> Result<Outside, Failure> {
    Outside::open(pid, view).map_err(|error| refused(pid, &error))
}

/// Returns the failure for a process whose memory cannot be read.
fn refused(pid: u32, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::Interrupted => Failure::Failed("interrupted: nothing was written".to_owned()),
        io::ErrorKind::PermissionDenied => Failure::Unavailable(format!(
            "process {pid} may not be traced: another debugger has it, or it is another user's, or ptrace is restricted \
             (/proc/sys/kernel/yama/ptrace_scope): end that debugger, or run this as root"
        )),
        io::ErrorKind::InvalidData => Failure::Unavailable(format!(
            "process {pid} was started by another version of memlift: use the command of that version"
        )),
        io::ErrorKind::TimedOut => Failure::Failed(format!(
            "process {pid}: a thread does not stop, it waits for a device or a network disk: try again"
        )),
        _ => Failure::Failed(format!("process {pid}: {error}")),
    }
}

fn list(registry: &Registry, as_json: bool) -> Result<(), Failure> {
    let signed = |bytes: i64| match bytes {
        0.. => print::bytes(bytes as u64),
        _ => format!("-{}", print::bytes(bytes.unsigned_abs())),
    };
    if as_json {
        let jobs: Vec<Value> = registry
            .jobs()
            .map(|(index, block, ledger)| {
                json!({
                    "job": index,
                    "name": ledger.name(),
                    "total_bytes": block.total(),
                    "unused_bytes": block.unused() - ledger.borrowed(),
                    "unused_objective_bytes": block.unused_objective(),
                    "min_uncompressed_bytes": block.min_uncompressed(),
                    "outside_bytes": ledger.outside(),
                    "compressed_accesses": block.compressed_accesses(),
                    "compressed_memory_faults": ledger.events(),
                    "active": ledger.active(),
                    "pids": registry.processes(index).filter_map(|slot| slot.pid()).collect::<Vec<_>>(),
                })
            })
            .collect();
        let implicit = registry.implicit();
        return print::json(&json!({
            "machine_bytes": implicit.total(),
            "left_bytes": implicit.unused(),
            "jobs": jobs,
        }));
    }
    let rows: Vec<Vec<String>> = registry
        .jobs()
        .map(|(index, block, ledger)| {
            vec![
                index.to_string(),
                ledger.name(),
                signed(block.total()),
                signed(block.unused() - ledger.borrowed()),
                signed(ledger.outside()),
                block.compressed_accesses().to_string(),
                registry.processes(index).count().to_string(),
                if ledger.active() { "compressing" } else { "fits" }.to_owned(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return print::line("no job runs under a budget; start one with: memlift run --memory 2G -- program");
    }
    let headings =
        [">job", "name", ">budget", ">unused", ">outside", ">compressed accesses", ">processes", "state"];
    print::line(&print::table(&headings, &rows))
}
