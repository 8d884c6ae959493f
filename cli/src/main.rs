// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `memlift` command: parses the arguments, runs one verb, and turns its result into an exit code.
//!
//! - **Flow** [`grammar`] ─▶ one module per verb ─▶ text or JSON on standard output, progress on standard error
//! - **Exit** 0 ok · 1 failed · 2 usage · 3 unavailable, see [`failure`]
//! - **Errors** `memlift: error: …` on standard error, which says what to do
#![forbid(unsafe_code)]

mod calibrate;
mod config;
mod doctor;
mod dropin;
mod explain;
mod exposition;
mod grammar;
mod help;
mod http;
mod job;
mod jupyter;
mod lab;
mod map;
mod metrics;
mod node;
mod node_log;
mod ping;
mod pool;
mod python;
mod record;
mod run;
mod sample;
mod series;
mod sessions;
mod sibling;
mod top;

use std::process::ExitCode;
use std::time::Duration;

use memlift_cli::{failure, input, output, print, probe};

use failure::Failure;
use grammar::{Arguments, Command, ConfigVerb, IpcVerb};

fn main() -> ExitCode {
    // `doctor` and `dropin check` start this program again to measure a library.
    if let Some(code) = probe::child_main() {
        return code;
    }
    // `memlift help SERVICE` is handled here, because services are not verbs.
    let words: Vec<_> = std::env::args().skip(1).filter(|word| word != "--json").take(3).collect();
    if let [help, service] = words.as_slice()
        && help == "help"
        && let Some(page) = help::page(service)
    {
        return match print::line(&page) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.exit(),
        };
    }
    let arguments: Arguments = match memlift_cli::arguments::parse(help::command()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let json = arguments.json;
    failure::say_json(json);
    let programs = match &arguments.command {
        Command::Run(args) => Some(run::run(args, json)),
        Command::Record(args) => Some(record::run(args, json)),
        _ => None,
    };
    match programs {
        Some(Ok(code)) => return ExitCode::from(code),
        Some(Err(failure)) => return failure.exit(),
        None => {}
    }
    match verb(arguments.command, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn verb(command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Doctor { path, fix } => doctor::run(&path, fix, json),
        Command::Config { verb: ConfigVerb::Show } => config::show(json),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut help::command(), "memlift", &mut text);
            print::line(String::from_utf8_lossy(&text).trim_end())
        }
        Command::Man { folder } => help::manuals(&folder),
        Command::Dropin { verb } => dropin::run(verb, json),
        Command::Node(args) => node::run(&args, json),
        Command::Map { verb } => map::run(verb, json),
        Command::Job { verb } => job::run(&verb, json),
        Command::Jupyter { verb } => jupyter::run(&verb, json),
        Command::Run(args) => run::run(&args, json).map(|_| ()),
        Command::Record(args) => record::run(&args, json).map(|_| ()),
        Command::Whatif(args) => Err(lab::run("whatif", &args, json)),
        Command::Pool { verb } => pool::run(verb, json),
        Command::Ipc { verb: IpcVerb::Ls } => sessions::list(json),
        Command::Ipc { verb: IpcVerb::Ping(args) } => ping::run(&args, json),
        Command::Top { once, interval_ms } => top::run(once, Duration::from_millis(interval_ms), json),
        Command::Metrics { listen: Some(address), allow_remote, .. } => {
            metrics::listen(address, allow_remote)
        }
        Command::Metrics { listen: None, .. } => metrics::once(json),
        Command::Explain { subject, size, cache } => explain::run(&subject, size.as_deref(), cache, json),
        Command::Calibrate => calibrate::run(json),
        Command::Reproduce(args) => Err(lab::run("reproduce", &args, json)),
        Command::Bench(args) => Err(lab::run("bench", &args, json)),
        Command::Tour(args) => Err(lab::run("tour", &args, json)),
    }
}
