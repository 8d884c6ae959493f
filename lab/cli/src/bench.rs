// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift-lab bench`, `tour` and `report`: hands over to the bench crate, which measures and prints.
//!
//! - **Exit** 0 when every row ran and verified, and no target was missed · 1 when not. With `--agree`: 0 when at least 95 % of the verdicts
//!   are the recorded ones
//! - **Quick** proves that every row runs and verifies; what is missing or slow is said and does not fail

use std::path::Path;

use memlift_bench::{BenchError, Options, TourOptions, Verdict};

use crate::grammar::BenchService;
use memlift_cli::failure::Failure;
use memlift_cli::{output, print};

/// Share of verdicts, in percent, that have to be the recorded ones.
const AGREE_PERCENT: usize = 95;

/// Runs the rows of one service. `force` replaces a report that is there.
pub fn run(service: BenchService, options: &Options, force: bool) -> Result<(), Failure> {
    if let Some(folder) = &options.report {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::Usage(format!("--report {}: {error}", folder.display())))?;
        output::check(&folder.join("index.html"), "--report", force)?;
    }
    let service = match service {
        BenchService::Copy => "copy",
        BenchService::Devices => "devices",
        BenchService::Ipc => "ipc",
        BenchService::Persist => "persist",
        BenchService::Transform => "transform",
        BenchService::Traverse => "traverse",
        BenchService::Zmem => "zmem",
    };
    let summary = memlift_bench::run(service, options).map_err(failure)?;
    let count = |verdict| summary.count(verdict);
    let (short, missing) = (count(Verdict::Short), count(Verdict::Missing));
    if summary.failed > 0 {
        return Err(Failure::Failed(format!(
            "{} of {} rows failed or moved wrong bytes; each says why above",
            summary.failed,
            summary.rows.len()
        )));
    }
    if let Some(agreement) = &summary.agreement {
        let say = |verdict| if verdict == Verdict::Ok { "ok" } else { "short" };
        for (name, rival, before, now) in &agreement.changed {
            eprintln!("{name} against {rival}: recorded {}, now {}", say(*before), say(*now));
        }
        let (compared, percent) = (agreement.compared, agreement.percent());
        if compared == 0 {
            return Err(Failure::Unavailable("no row with a goal was recorded on this CPU".into()));
        }
        let text = format!("{percent} % of {compared} verdicts are the recorded ones");
        if percent < AGREE_PERCENT {
            return Err(Failure::Failed(text));
        }
        eprintln!("{text}");
        return Ok(());
    }
    if options.quick || short + missing == 0 {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "of {} rows {} are ok, {short} fall short of their target, {missing} have no rival here (each says what to \
         install)",
        summary.rows.len(),
        count(Verdict::Ok)
    )))
}

/// Runs chapters of the tour.
pub fn tour(options: &TourOptions) -> Result<(), Failure> {
    if memlift_bench::tour(options).map_err(failure)? {
        return Ok(());
    }
    Err(Failure::Failed("a chapter failed; it says why above".into()))
}

/// Writes the pages of numbers.
pub fn publish(folder: &Path) -> Result<(), Failure> {
    let written = memlift_bench::publish(folder).map_err(failure)?;
    print::line(&format!("{} files in {}", written.len(), folder.display()))
}

fn failure(error: BenchError) -> Failure {
    let text = error.to_string();
    match error {
        BenchError::UnknownService(_) | BenchError::NoRow { .. } => Failure::Usage(text),
        BenchError::NoPython | BenchError::Memory { .. } => Failure::Unavailable(text),
        _ => Failure::Failed(text),
    }
}
