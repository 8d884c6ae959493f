// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a command that does not succeed: one line that says what to do, and an exit code.
//!
//! - **JSON** after [`say_json`] the line is an object: `{"error": {"kind": …, "exit_code": …, "message": …}}`
//! - **Exit** 0 ok · 1 failed · 2 usage · 3 unavailable (the requested item does not exist on this machine, or not yet)

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if errors are printed as JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// Sets if errors are printed as JSON from now on, as `--json` asks.
pub fn say_json(json: bool) {
    JSON.store(json, Ordering::Relaxed);
}

/// Reason that a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The command ran and failed.
    Failed(String),
    /// The arguments do not fit together.
    Usage(String),
    /// Something that the command needs does not exist.
    Unavailable(String),
    /// The reader of the output has stopped reading: this is no error, and nothing is printed.
    OutputClosed,
}

impl Failure {
    /// Converts the error about a requested item: a missing file is unavailable, a folder in place of a file is a wrong argument,
    /// everything else failed.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        Self::about(error, error.to_string())
    }

    /// Does what [`Failure::of`] does, with another text.
    pub fn about(error: &(dyn Error + 'static), text: String) -> Self {
        let mut cause = Some(error);
        while let Some(one) = cause {
            match one.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::NotFound) => return Self::Unavailable(text),
                Some(io::ErrorKind::IsADirectory) => return Self::Usage(text),
                _ => {}
            }
            cause = one.source();
        }
        Self::Failed(text)
    }

    /// Prints the failure on standard error; returns the exit code of the command.
    pub fn exit(&self) -> ExitCode {
        let kind = match self {
            Self::OutputClosed => return ExitCode::from(self.exit_code()),
            Self::Failed(_) => "failed",
            Self::Usage(_) => "usage",
            Self::Unavailable(_) => "unavailable",
        };
        let line = if JSON.load(Ordering::Relaxed) {
            let exit_code = self.exit_code();
            serde_json::json!({ "error": { "kind": kind, "exit_code": exit_code, "message": self.to_string() } })
                .to_string()
        } else {
            format!("memlift: error: {self}")
        };
        let _ = writeln!(io::stderr(), "{line}");
        ExitCode::from(self.exit_code())
    }

    /// Returns the exit code of the command.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Unavailable(_) => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutputClosed => Ok(()),
            Self::Failed(text) | Self::Usage(text) | Self::Unavailable(text) => formatter.write_str(text),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::of(&error)
    }
}
