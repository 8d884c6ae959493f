// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift explain`: shows the reasons for the placement of work.
//!
//! - **PID** the last decisions of that process, each with its reason, and the counters of its services, job and
//!   drop-ins
//! - **copy SIZE** the decision about a copy of that size, by the calibration on disk; nothing is copied

use memlift::ground::observe::{CacheState, ObserveError};
use memlift::ground::size::{self, SizeError};
use memlift::place::{Explanation, Origin, reason_text};
use memlift::spec::Opcode;
use serde_json::json;

use crate::doctor::calibration::age;
use crate::failure::Failure;
use crate::grammar;
use crate::sample::Sample;
use crate::top::{cells, nanoseconds, number, services};
use crate::{calibrate, print};

/// Explains a process or a copy.
pub fn run(
    subject: &str,
    size: Option<&str>,
    cache: grammar::CacheState,
    as_json: bool,
) -> Result<(), Failure> {
    match (subject, size) {
        ("copy", Some(text)) => {
            let bytes = size::parse(text)
                .and_then(|bytes| usize::try_from(bytes).map_err(|_| SizeError::Large))
                .map_err(|error| Failure::Usage(format!("{text} is no size: {error}")))?;
            copy(bytes, cache, as_json)
        }
        ("copy", None) => {
            Err(Failure::Usage("explain copy wants a size, for example: explain copy 32M".into()))
        }
        (pid, size) => match (pid.parse(), size) {
            (Ok(pid), None) => process(pid, as_json),
            (Ok(_), Some(_)) => {
                Err(Failure::Usage("a process has no size; only `explain copy` takes one".into()))
            }
            (Err(_), _) => Err(Failure::Usage(format!("{pid} is neither a process id nor the word copy"))),
        },
    }
}

fn process(pid: u32, as_json: bool) -> Result<(), Failure> {
    let sample = Sample::of(pid).map_err(|error| match error {
        ObserveError::Os { .. } => Failure::Failed(error.to_string()),
        _ => Failure::Unavailable(error.to_string()),
    })?;
    let shown = sample.processes.first();
    let none = Vec::new();
    let decisions = shown.map_or(&none, |one| &one.decisions);
    if as_json {
        let reasons = decisions
            .iter()
            .map(|decision| json!({ "decision": decision, "why": reason_text(decision.reason) }));
        let (reasons, mut document) = (reasons.collect::<Vec<_>>(), sample.json());
        document["process"] = json!(shown.map(|one| &one.process));
        document["decisions"] = json!(reasons);
        return print::json(&document);
    }
    match shown {
        Some(one) => {
            print::line(&format!("{pid}: {}", one.process.command))?;
            print::line(&format!(
                "{} decisions, the last {} below; {} operations, {}",
                one.process.decisions,
                decisions.len(),
                one.process.operations,
                print::bytes(one.process.bytes)
            ))?;
        }
        None => print::line(&format!("{pid}: it decides nothing; others count for it"))?,
    }
    let services = services(&sample, |_, value| number(value));
    if !services.is_empty() {
        let headings = [">pid", "service", "role", "name", "numbers"];
        print::line(&format!("\n{}", print::table(&headings, &services)))?;
    }
    if decisions.is_empty() {
        return print::line(
            "\nno decision yet: work below the gate is not decided about, see memlift explain copy SIZE",
        );
    }
    let rows: Vec<Vec<String>> = decisions.iter().map(cells).collect();
    let headings = [">ago", "opcode", ">size", "cache", "executor", ">predicted", ">measured", "why"];
    print::line(&format!("\n{}", print::table(&headings, &rows)))
}

fn copy(bytes: usize, cache: grammar::CacheState, as_json: bool) -> Result<(), Failure> {
    let cache = match cache {
        grammar::CacheState::Hot => CacheState::Hot,
        grammar::CacheState::Cold => CacheState::Cold,
    };
    let explanation = calibrate::open()?.explain(Opcode::MEMMOVE, bytes, cache);
    if as_json {
        return print::json(&json!(explanation));
    }
    print::line(&copy_text(&explanation))
}

fn copy_text(explanation: &Explanation) -> String {
    let mut text = format!(
        "a copy of {} with its bytes {}: {}\nwhy: {}\n",
        print::bytes(explanation.bytes as u64),
        if explanation.cache == "hot" { "in the cache" } else { "in memory" },
        explanation.chosen,
        explanation.reason,
    );
    match &explanation.origin {
        Origin::Builtin { why } => text += &format!("by built-in numbers: {why}\n"),
        Origin::Untrusted { why, time_s } => {
            let age = age(*time_s);
            text += &format!("not trusted, built-in numbers used: {why}; measured on {age}\n");
        }
        Origin::File { path } => {
            let age = age(explanation.time_s);
            text += &format!("by the calibration in {}, trusted, of {age}\n", path.display());
        }
        Origin::Measured => text += "by a calibration of this process, trusted\n",
    }
    text += &format!("past the cache it would walk in the shape {}\n", explanation.shape);
    let rows: Vec<Vec<String>> = explanation
        .candidates
        .iter()
        .map(|candidate| {
            vec![
                candidate.executor.to_owned(),
                nanoseconds(candidate.predicted_ns as u64),
                format!("{:.4}", candidate.line.ns_per_byte),
                format!("{:.0}", candidate.line.base_ns),
                format!("{:.2}", candidate.correction),
            ]
        })
        .collect();
    let headings = ["executor", ">predicted", ">a, ns/byte", ">b, ns", ">correction"];
    text + "\n" + &print::table(&headings, &rows)
}
