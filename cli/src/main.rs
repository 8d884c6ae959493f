// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `memlift` command: reads the arguments, runs one verb, turns its outcome into an exit code.
//!
//! - **Flow** [`grammar`] ─▶ one module per verb ─▶ text or JSON on standard output, progress on standard error
//! - **Exit** 0 ok · 1 failed · 2 usage · 3 unavailable, see [`failure`]
//! - **Errors** `memlift: error: …` on standard error, which says what to do
#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod config;
mod doctor;
mod dropin;
mod explain;
mod exposition;
mod failure;
mod grammar;
mod http;
mod job;
mod map;
mod metrics;
mod node;
mod node_log;
mod output;
mod pool;
mod print;
mod python;
mod record;
mod reproduce;
mod run;
mod sample;
mod sessions;
mod size;
mod top;
mod whatif;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use memlift_bench::{Options, TourOptions};

use failure::Failure;
use grammar::{Arguments, Command, ConfigVerb, IpcVerb, TourChapter};

fn main() -> ExitCode {
    // A bench may start this program again as the process that it compares with.
    if let Some(code) = memlift_bench::child() {
        return code;
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and version are errors to clap, with exit code 0.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let _ = write!(std::io::stderr(), "memlift: {}", error.render());
            return ExitCode::from(Failure::Usage(String::new()).exit_code());
        }
    };
    let json = arguments.json;
    let programs = match &arguments.command {
        Command::Run(wish) => Some(run::run(wish, json)),
        Command::Record(wish) => Some(record::run(wish, json)),
        _ => None,
    };
    match programs {
        Some(Ok(code)) => return ExitCode::from(code),
        Some(Err(failure)) => return failed(&failure),
        None => {}
    }
    match verb(arguments.command, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    if !matches!(failure, Failure::NobodyReads) {
        let _ = writeln!(std::io::stderr(), "memlift: error: {failure}");
    }
    ExitCode::from(failure.exit_code())
}

fn verb(command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Doctor { path } => doctor::run(&path, json),
        Command::Config { verb: ConfigVerb::Show } => config::show(json),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "memlift", &mut text);
            print::line(String::from_utf8_lossy(&text).trim_end())
        }
        Command::Dropin { verb } => dropin::run(verb, json),
        Command::Node(args) => node::run(&args, json),
        Command::Map { verb } => map::run(verb, json),
        Command::Job { verb } => job::run(&verb, json),
        Command::Run(wish) => run::run(&wish, json).map(|_| ()),
        Command::Record(wish) => record::run(&wish, json).map(|_| ()),
        Command::Whatif(wish) => whatif::run(&wish, json),
        Command::Pool { verb } => pool::run(verb, json),
        Command::Ipc { verb: IpcVerb::Ls } => sessions::list(json),
        Command::Top { once, interval_ms } => top::run(once, Duration::from_millis(interval_ms), json),
        Command::Metrics { listen: Some(address), allow_remote, .. } => {
            metrics::listen(address, allow_remote)
        }
        Command::Metrics { listen: None, .. } => metrics::once(json),
        Command::Explain { subject, size, cache } => explain::run(&subject, size.as_deref(), cache, json),
        Command::Calibrate => calibrate::run(json),
        Command::Reproduce(wish) => reproduce::run(&wish, json),
        Command::Bench { service, only, quick, record, report, force } => {
            bench::run(service, &Options { only, quick, json, record, report }, force)
        }
        Command::Tour { chapters, quick } => {
            let chapters = chapters.into_iter().map(TourChapter::into).collect();
            bench::tour(&TourOptions { chapters, json, quick })
        }
    }
}
