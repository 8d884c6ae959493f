// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift job attach`: a debugger, or another program that reads a process under a budget, to which absent memory is as if it were
//! present.
//!
//! - **Flow** the process's view goes to the environment, the library to LD_PRELOAD ─▶ the debugger takes the place of this program.
//!   The library answers its reads of absent pages (`bindings/preload/src/foreign.rs`)
//! - **Not here** a debugger that reads memory without libc: it is refused

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use memlift::zmem::pager::outside::ENV_READ;

use super::{outside_at, refused, view_of};
use crate::failure::Failure;
use crate::run::program;

/// Arguments of `memlift job attach`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The process; `memlift job list --json` names those of each job
    pid: u32,
    /// The debugger and its arguments [default: gdb -p PID]
    #[arg(value_name = "DEBUGGER", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Starts the debugger; returns only if that fails.
pub fn run(args: &Args) -> Result<(), Failure> {
    let pid = args.pid;
    let view = view_of(pid)?;
    let outside = outside_at(pid, view)?;
    let command = if args.command.is_empty() {
        // The signals by which the program brings its memory back are no news.
        let segv = if outside.faults_are_sigsegv() { " SIGSEGV" } else { "" };
        let handle = format!("handle SIGBUS SIGSYS{segv} nostop noprint pass");
        ["gdb", "-p", &pid.to_string(), "-ex", &handle].map(OsString::from).to_vec()
    } else {
        args.command.clone()
    };
    let program = program::find(&command[0])?;
    if let Some(why) = program.uncovered {
        return Err(Failure::Unavailable(format!("memory that is away cannot be brought to it: {why}")));
    }
    let library = memlift_cli::libraries::preload().ok_or_else(|| {
        Failure::Unavailable(memlift_cli::libraries::advice("libmemlift_preload.so", "memlift-preload"))
    })?;
    let mut preload = library.into_os_string();
    if let Some(already) = std::env::var_os("LD_PRELOAD").filter(|already| !already.is_empty()) {
        preload.push(":");
        preload.push(already);
    }
    let error = Command::new(&program.path)
        .args(&command[1..])
        .env("LD_PRELOAD", preload)
        .env(ENV_READ, format!("{pid}:{view}"))
        .exec();
    Err(refused(pid, &error))
}
