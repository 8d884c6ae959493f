// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the arguments of a command; help and errors look the same in both programs.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::failure::Failure;

/// Parses the arguments of this process.
///
/// # Errors
///
/// The exit code, where there is nothing more to do: help was printed, or the error was.
pub fn parse<Arguments: Parser>() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        // Help and version are errors to clap, with exit code 0.
        if !error.use_stderr() {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        let _ = write!(io::stderr(), "memlift: {}", error.render());
        ExitCode::from(Failure::Usage(String::new()).exit_code())
    })
}
