// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift node log`: checks the log of a node that does not run, and saves the readable records of a damaged one.
//!
//! - **Flow** `check` reports how the file ends; `repair --out NEW` writes a copy with which a node starts. The file itself never
//!   changes
//! - **Exit** 1 for a damaged log

use std::path::{Path, PathBuf};

use clap::Subcommand;
use memlift::traverse::node::{LogEnd, LogReport, check_log, repair_log};
use serde_json::json;

use crate::failure::Failure;
use crate::{input, print};

/// Verbs that work on a log.
#[derive(Debug, Subcommand)]
pub enum LogVerb {
    /// Read a log and say whether it is whole, torn at its end, or damaged
    Check {
        /// The log; no node has it open
        file: PathBuf,
    },
    /// Write what can be read of a log to a new one
    Repair {
        /// The log; it is not changed
        file: PathBuf,
        /// The new log
        #[arg(long, value_name = "NEW")]
        out: PathBuf,
        /// Take records behind the damage, too: more data, but collections whose other changes are lost may be broken
        #[arg(long)]
        behind: bool,
    },
}

/// Runs one verb on a log.
pub fn run(verb: &LogVerb, as_json: bool) -> Result<(), Failure> {
    let (LogVerb::Check { file } | LogVerb::Repair { file, .. }) = verb;
    input::plain(file)?;
    match verb {
        LogVerb::Check { file } => check(file, as_json),
        LogVerb::Repair { file, out, behind } => {
            let saved = repair_log(file, out, *behind).map_err(|error| Failure::of(&error))?;
            if as_json {
                let saved = json!({"out": out, "records": saved.records, "left_out": saved.left_out});
                return print::line(&saved.to_string());
            }
            let more =
                if saved.left_out > 0 && !behind { "; --behind takes what it can of them" } else { "" };
            print::line(&format!(
                "{}: {} records, {} behind the damage left out{more}",
                out.display(),
                saved.records,
                saved.left_out
            ))
        }
    }
}

fn check(file: &Path, as_json: bool) -> Result<(), Failure> {
    let report = check_log(file).map_err(|error| Failure::of(&error))?;
    let LogReport { version, base, memory_bytes, file_bytes, records, end } = report;
    let (state, at, tail_bytes, behind) = match end {
        LogEnd::Whole => ("whole", file_bytes, 0, 0),
        LogEnd::Torn { at, bytes } => ("torn", at, bytes, 0),
        LogEnd::Damaged { at, behind } => ("damaged", at, file_bytes - at, behind),
    };
    if as_json {
        let document = json!({
            "file": file, "version": version, "base": base, "memory_bytes": memory_bytes, "file_bytes": file_bytes, "records": records,
            "state": state, "good_to": at, "tail_bytes": tail_bytes, "records_behind": behind,
        });
        print::line(&document.to_string())?;
    } else {
        let ends = match end {
            LogEnd::Whole => "whole".to_owned(),
            LogEnd::Torn { at, bytes } => {
                format!("{bytes} bytes of a torn end at byte {at}, which the next start cuts off")
            }
            LogEnd::Damaged { at, behind } => format!("damaged at byte {at}, {behind} good records behind"),
        };
        print::line(&format!(
            "{}: {records} records in {}, {ends}",
            file.display(),
            print::bytes(file_bytes)
        ))?;
    }
    match end {
        LogEnd::Damaged { .. } => Err(Failure::Failed(format!(
            "{0} is damaged: restore it from a copy, or memlift node log repair {0} --out NEW",
            file.display()
        ))),
        _ => Ok(()),
    }
}
