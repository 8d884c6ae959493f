// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift dropin`: attaches the drop-ins to a program, shows their effect, and removes them.
//!
//! - **Flow** [`check`] finds copies (copies.rs on elf.rs) and measures ─▶ [`enable`] writes or prints the environment (unit.rs,
//!   openssl_cnf.rs) ─▶ [`status`] shows from maps and counters that they work ─▶ [`enable::disable`] removes the files
//! - **Not here** the drop-ins: bindings/zlib and bindings/openssl

pub mod check;
mod copies;
pub mod elf;
mod enable;
mod files;
mod openssl_cnf;
mod original;
pub mod page;
mod processes;
mod root;
mod shape;
mod status;
mod subject;
mod syntax;
mod unit;

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use memlift_cli::libraries::Dropin;

use crate::failure::Failure;
use enable::EnableArgs;
use root::Root;
use unit::Place;

/// Verbs of `dropin`.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show a program's copies of zlib and OpenSSL, and whether a drop-in would help
    Check {
        #[command(flatten)]
        subject_args: SubjectArgs,
        /// Only look, do not measure
        #[arg(long)]
        no_measure: bool,
        /// Measure the program's own use: sizes, levels and flushes of this trace, which memlift record wrote
        #[arg(long, value_name = "TRACE", conflicts_with = "no_measure")]
        trace: Option<PathBuf>,
    },
    /// Attach the drop-ins: write a setting beside the unit, or print the environment for a command
    Enable {
        #[command(flatten)]
        subject_args: SubjectArgs,
        /// Say what would be written and write nothing
        #[arg(long)]
        dry_run: bool,
        /// Attach this one, whatever a search finds; may be repeated
        #[arg(long, value_enum, value_name = "DROPIN")]
        only: Vec<Which>,
        /// The openssl.cnf to start from [default: the one that the program reads now]
        #[arg(long, value_name = "FILE")]
        openssl_conf: Option<PathBuf>,
    },
    /// Prove which processes have a drop-in, and show what it has done
    Status {
        #[command(flatten)]
        subject_args: SubjectArgs,
    },
    /// Undo exactly what enable wrote
    Disable {
        #[command(flatten)]
        subject_args: SubjectArgs,
        /// Say what would be removed and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// The program or service that a verb is about.
#[derive(Debug, clap::Args)]
pub struct SubjectArgs {
    /// A systemd service, a command, or a process id
    #[arg(value_name = "UNIT|COMMAND|PID")]
    subject: String,
    /// The user's own units
    #[arg(long)]
    user: bool,
    /// Look for units below this folder, as in an image
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
}

/// A drop-in, as the command line calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Which {
    /// zlib, by LD_PRELOAD
    Libz,
    /// OpenSSL 3, by OPENSSL_CONF
    Openssl,
}

impl SubjectArgs {
    fn parts(self) -> (String, Place) {
        (self.subject, Place { root: Root::new(self.root), user: self.user })
    }
}

/// Runs a verb.
pub fn run(verb: Verb, json: bool) -> Result<(), Failure> {
    match verb {
        Verb::Check { subject_args, no_measure, trace } => {
            let (subject, place) = subject_args.parts();
            check::check(&subject, &place, !no_measure, trace.as_deref(), json)
        }
        Verb::Enable { subject_args, dry_run, only, openssl_conf } => {
            let (subject, place) = subject_args.parts();
            let only = only.into_iter().map(|which| match which {
                Which::Libz => Dropin::Libz,
                Which::Openssl => Dropin::OpenSsl,
            });
            enable::enable(&EnableArgs { subject, place, dry_run, only: only.collect(), openssl_conf }, json)
        }
        Verb::Status { subject_args } => {
            let (subject, place) = subject_args.parts();
            status::status(&subject, &place, json)
        }
        Verb::Disable { subject_args, dry_run } => {
            let (subject, place) = subject_args.parts();
            enable::disable(&subject, &place, dry_run, json)
        }
    }
}
