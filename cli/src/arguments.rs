// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses the arguments of a command; help and errors look the same in `memlift` and `memlift-lab`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, FromArgMatches};

use crate::failure::{self, Failure};
use crate::print;

/// Parses the arguments of this process with `command`, the clap command of `Arguments`.
///
/// # Errors
///
/// The exit code if there is nothing more to do: help or an error was printed.
pub fn parse<Arguments: FromArgMatches>(mut command: Command) -> Result<Arguments, ExitCode> {
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    matches.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(|error| {
        // For clap, help and version are errors, with exit code 0.
        if !error.use_stderr() {
            return match error.print().and_then(|()| io::stdout().flush()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => print::unwritten(error).exit(),
            };
        }
        // The help of a command without its verb.
        let only_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let error = error.format(&mut command);
        let own = std::env::args_os().skip(1).take_while(|word| word != "--");
        if own.into_iter().any(|word| word == "--json") {
            failure::say_json(true);
            let text = error.render().to_string();
            let is_verb_missing = only_help || error.kind() == ErrorKind::MissingSubcommand;
            let text = if is_verb_missing { format!("a verb is missing\n\n{text}") } else { text };
            return Failure::Usage(text.trim_start_matches("error: ").trim_end().to_owned()).exit();
        }
        let _ = write!(io::stderr(), "{}{}", if only_help { "" } else { "memlift: " }, error.render());
        ExitCode::from(Failure::Usage(String::new()).exit_code())
    })
}
