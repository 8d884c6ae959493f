// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verbs of `memlift-lab`, which `memlift` starts as git starts its subcommands.
//!
//! - **Order** the program beside this one, otherwise the first in PATH; this process becomes it, so its exit code is
//!   passed on
//! - **Not here** their arguments, which `memlift-lab` parses

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use memlift_cli::failure::Failure;
use memlift_cli::print;

use crate::sibling::find;

/// Name of the program.
const LAB: &str = "memlift-lab";

/// Everything behind the verb.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Arguments of memlift-lab; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process by `memlift-lab VERB ARGUMENTS`. Returns only if that cannot be started.
pub fn run(verb: &str, args: &Args, json: bool) -> Failure {
    let Some(program) = find(LAB) else {
        return Failure::Unavailable(format!(
            "{LAB} is not here: `memlift {verb}` is one of its verbs. It is a wheel of its own: pip install {LAB}, or in a checkout \
             `make wheel-lab`, then pip install dist/memlift_lab-*.whl. Without Python: cargo build --release -p {LAB}, and put \
             target/release/{LAB} beside this command or into PATH"
        ));
    };
    let mut command = Command::new(&program);
    // clap takes the name in the usage line from here: the user typed `memlift`.
    command.arg0("memlift").arg(verb).args(json.then_some("--json")).args(&args.arguments);
    let error = command.exec();
    Failure::Unavailable(format!("{}: {error}", program.display()))
}

/// Prints on standard error a summary of a new trace.
pub fn summary(trace: &Path, json: bool) -> Result<(), Failure> {
    let Some(program) = find(LAB) else {
        print::note(&format!("recorded into {}; {LAB}, which is not here, reads it", trace.display()));
        return Ok(());
    };
    let mut command = Command::new(&program);
    command.args(["whatif", "--summary"]).args(json.then_some("--json")).arg(trace).stdout(Stdio::null());
    let failed = |why: &dyn std::fmt::Display| Failure::Failed(format!("{}: {why}", program.display()));
    let status = command.status().map_err(|error| failed(&error))?;
    if status.success() { Ok(()) } else { Err(failed(&status)) }
}
