// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that cargo does not have: `cargo xtask layers`, `words`, `test` and `fresh`.
//!
//! - **Exit** 0 the check holds · 1 it does not · 2 usage · 3 it cannot be run here (and why)
#![forbid(unsafe_code)]

mod circles;
mod fresh;
mod layers;
mod test;
mod watched;
mod words;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask CHECK

  layers   Fails on a dependency between folders that the architecture forbids,
           on unsafe code outside an island that is opened in plain sight, and on a circle
           of modules that xtask/src/circles.in does not hold with its reason
  words [--record] [--list RULE [FOLDER]]
           Fails when forms of words that the style forbids become more than recorded in
           xtask/words.json; --record lowers the record, --list shows the places
  test [--only FOLDER[:PROGRAM]]... [--skip TEST]... [-- CARGO-ARGUMENTS]
           Builds the tests once, with cargo's arguments, and runs as many of the
           test programs at a time as there are cores
  fresh [--suite NAME] [--mirror URL] [--keep] [TARGET...]
           Runs `make demo` and `make test` (or the named targets) for an unprivileged
           user in a new minimal Debian root, from a clone of what is committed. `wheel` and
           `deb`: installs and uses what dist/ has in a root without Rust.
           Needs root, debootstrap and a network; this machine is left as it was";

/// Reason why a check did not pass.
pub enum Failure {
    /// The check ran and does not hold.
    Broken(String),
    /// The check cannot be run on this machine.
    Unavailable(String),
    /// The arguments make no sense.
    Usage(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("layers") if arguments.len() == 1 => layers::check(),
        Some("words") => words::Options::parse(&arguments[1..]).and_then(|options| words::check(&options)),
        Some("test") => test::Options::parse(&arguments[1..]).and_then(|options| test::run(&options)),
        Some("fresh") => fresh::Options::parse(&arguments[1..]).and_then(|options| fresh::prove(&options)),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => Err(Failure::Usage(format!("no such check: {:?}", arguments.join(" ")))),
    };
    let (code, message) = match outcome {
        Ok(message) => {
            println!("xtask: {message}");
            return ExitCode::SUCCESS;
        }
        Err(Failure::Broken(message)) => (1, message),
        Err(Failure::Usage(message)) => (2, format!("{message}\n\n{USAGE}")),
        Err(Failure::Unavailable(message)) => (3, format!("not run: {message}")),
    };
    eprintln!("xtask: {message}");
    ExitCode::from(code)
}
