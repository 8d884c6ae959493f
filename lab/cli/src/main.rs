// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `memlift-lab` command: benches and the tour, the papers' figures, and estimates from recorded programs.
//!
//! - **Flow** [`grammar`] ─▶ one module per verb ─▶ text or JSON on standard output, progress on standard error. `memlift bench`,
//!   `tour`, `whatif` and `reproduce` start this program with their arguments
//! - **Exit** 0 ok · 1 failed · 2 usage · 3 unavailable
//! - **Errors** `memlift: error: …` on standard error, which says what to do
#![forbid(unsafe_code)]

mod bench;
mod grammar;
mod reproduce;
mod whatif;

use std::process::ExitCode;

use clap::CommandFactory;
use memlift_bench::{Options, TourOptions};
use memlift_cli::failure::{self, Failure};

use grammar::{Arguments, Command};

/// A file of parameters is not longer. Bytes.
const PARAMETERS_BYTES_MAX: u64 = 1 << 20;

fn main() -> ExitCode {
    // A bench may start this program again as the process that it compares with.
    if let Some(code) = memlift_bench::child() {
        return code;
    }
    let arguments: Arguments = match memlift_cli::arguments::parse(Arguments::command()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    failure::say_json(arguments.json);
    match verb(arguments.command, arguments.json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn verb(command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Whatif(args) => whatif::run(&args, json),
        Command::Reproduce(args) => reproduce::run(&args, json),
        Command::Bench { service, only, quick, record, agree, report, force } => {
            bench::run(service, &Options { only, quick, json, record, agree, report }, force)
        }
        Command::Tour { chapters, quick } => bench::tour(&TourOptions {
            chapters: chapters.into_iter().map(Into::into).collect(),
            json,
            quick,
        }),
        Command::Report { folder } => bench::publish(&folder),
    }
}
