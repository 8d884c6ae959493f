// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fifth chapter: a job that its memory limit kills, and the same job finishing under memlift, as a table.
//!
//! - **Flow** the job alone ─▶ its need and its checksum ─▶ in a memory cgroup of 60 % of that, without swap: as it is, then by
//!   `memlift run` ─▶ JSON lines (`about`, `row`, `missing`, `error`) ─▶ text, or the lines as they are
//! - **Check** a run that finishes has the checksum of the job alone
//! - **Skipped** where this user may make no groups: without a limit no process is killed, and there is nothing to show
//! - **Not here** the numbers that count: `memlift bench zmem`, rows `survive/…`

use serde::Serialize;
use serde_json::json;

use super::TourOptions;
use crate::BenchError;
use crate::row::{Stop, three_digits};
use crate::zmem::group::{Group, Limit};
use crate::zmem::under::{self, Budget, Ran};

const MIB: u64 = 1 << 20;
/// The kernel's memory limit, in percent of the job's need.
const SHARE: u64 = 60;

/// One run of the job, as its JSON line reports it.
#[derive(Debug, Serialize)]
struct Entry {
    run: &'static str,
    limit_bytes: Option<u64>,
    most_bytes: u64,
    ended: String,
    right: Option<bool>,
    wall_s: f64,
    cpu_s: f64,
}

/// Runs the chapter; gives whether what could be had ran and was right.
pub(super) fn run(options: &TourOptions) -> Result<bool, BenchError> {
    let (mut entries, mut remarks) = (Vec::new(), Vec::new());
    let mut hear = |entry: Entry| {
        if options.json {
            println!("{}", json!({"chapter": "zmem", "kind": "row", "row": entry}));
        }
        entries.push(entry);
    };
    match runs(options, &mut hear) {
        Ok(()) => {}
        Err(Stop::Missing(missing)) => remarks.push(format!("skipped: {missing}")),
        Err(Stop::Failed(error)) => remarks.push(format!("failed: {error}")),
    }
    let well = entries.iter().all(|entry| entry.run == KILLED || entry.right == Some(true));
    if options.json {
        for remark in &remarks {
            println!("{}", json!({"chapter": "zmem", "kind": "missing", "missing": remark}));
        }
    } else {
        print!("{}", chapter(&entries, &remarks));
    }
    Ok(well && remarks.iter().all(|remark| remark.starts_with("skipped: ")))
}

const KILLED: &str = "as it is";

fn runs(options: &TourOptions, hear: &mut impl FnMut(Entry)) -> Result<(), Stop> {
    let words = if options.quick { ["heap", "200000", "1"] } else { ["heap", "1200000", "3"] };
    let alone = under::unlimited(&words)?;
    let checksum = alone.done(&words)?.checksum.clone();
    let entry = |run: &'static str, limit_bytes: Option<u64>, ran: &Ran| Entry {
        run,
        limit_bytes,
        most_bytes: ran.seen.most,
        ended: match (ran.kills, ran.ended.killed()) {
            (0, false) if ran.ended.status.success() => "well".into(),
            (0, false) => ran.ended.status.to_string(),
            _ => "killed by the limit".into(),
        },
        right: ran.done.as_ref().map(|done| done.checksum == checksum),
        wall_s: ran.ended.wall_s,
        cpu_s: ran.ended.cpu_s,
    };
    hear(entry("without a limit", None, &alone));
    let limit = alone.seen.most * SHARE / 100;
    let group = Group::new(Limit::Hard(limit))?;
    let plain = under::plain(&words, &group, || 0)?;
    drop(group);
    hear(entry(KILLED, Some(limit), &plain));
    // The budget leaves a headroom below the limit: 1/32 of it, at least 4 MiB.
    let bytes = limit - (limit / 32).max(4 * MIB);
    let here = std::env::current_dir().map_err(BenchError::system("finding the current folder"))?;
    let folder = tempfile::Builder::new().prefix(".memlift-tour-").tempdir_in(here);
    let folder = folder.map_err(BenchError::system("making a folder to spill to"))?;
    let ran = under::budgeted(&words, Budget { bytes, spill: Some(folder.path()) }, Limit::Hard(limit))?;
    hear(entry("memlift run", Some(limit), &ran));
    Ok(())
}

/// The chapter as text.
fn chapter(entries: &[Entry], remarks: &[String]) -> String {
    let mut text = "\nzmem: a job that its memory limit kills\n".to_owned();
    if !entries.is_empty() {
        text += &format!(
            "A sorted map of small records, looked up and replaced in part. The kernel's limit is {SHARE} % of what the job \
             takes alone,\nswap is off.\n\n{:<16} {:>10} {:>10} {:>22} {:>7} {:>8} {:>8}\n",
            "the job", "limit MiB", "most MiB", "ended", "right", "time s", "CPU s"
        );
    }
    for entry in entries {
        text += &format!(
            "{:<16} {:>10} {:>10} {:>22} {:>7} {:>8} {:>8}\n",
            entry.run,
            entry.limit_bytes.map_or_else(|| "–".to_owned(), |bytes| (bytes / MIB).to_string()),
            entry.most_bytes / MIB,
            entry.ended,
            match entry.right {
                Some(true) => "yes",
                Some(false) => "no",
                None => "–",
            },
            three_digits(entry.wall_s),
            three_digits(entry.cpu_s),
        );
    }
    if !entries.is_empty() {
        text += "\nmost: what the kernel charged the job's cgroup at the most, looked at a thousand times a second; `memlift run` \
                 and its\nlibrary included. right: the same checksum as alone.\n";
    }
    for remark in remarks {
        text += &format!("{remark}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_the_job_ended_and_missing_things_are_said() {
        let entry = Entry {
            run: KILLED,
            limit_bytes: Some(60 * MIB),
            most_bytes: 60 * MIB,
            ended: "killed by the limit".into(),
            right: None,
            wall_s: 1.5,
            cpu_s: 1.25,
        };
        let text = chapter(&[entry], &["skipped: no memory cgroup is mounted".to_owned()]);
        let line = text.lines().find(|line| line.starts_with(KILLED)).expect("the row's line");
        assert!(
            line.contains("killed by the limit") && line.contains("1.50") && line.contains("–"),
            "{line}"
        );
        assert!(text.contains("no memory cgroup is mounted"));
    }
}
