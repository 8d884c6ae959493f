// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift tour`: one chapter per service, on real input, beside the rivals.
//!
//! - **Flow** chapter `ipc` here, then those in tour/; tour/ipc_chapter.py ─▶ JSON lines (`about`, `row`, `missing`, `error`) ─▶ one
//!   table, or the lines as they are
//! - **Not here** how a chapter measures; each says that in its own header

mod persist;
mod transform;
mod traverse;
mod zmem;

use serde::Deserialize;
use serde_json::Value;

use crate::BenchError;
use crate::python::Script;
use crate::row::three_digits;

/// Options of `memlift tour`.
#[derive(Clone, Debug, Default)]
pub struct TourOptions {
    /// Chapters to run; none: all, in their order.
    pub chapters: Vec<Chapter>,
    /// JSON lines on stdout instead of the table.
    pub json: bool,
    /// As briefly as possible: everything runs and is checked, the numbers say little.
    pub quick: bool,
}

/// A chapter: the service whose main job it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chapter {
    /// A model server in another process.
    Ipc,
    /// A web server before and after the drop-ins.
    Transform,
    /// A program that is killed, and what its pool has then.
    Persist,
    /// One lookup along a chain.
    Traverse,
    /// A job that its memory limit kills.
    Zmem,
}

impl Chapter {
    /// All, in their order.
    pub const ALL: [Chapter; 5] =
        [Chapter::Ipc, Chapter::Transform, Chapter::Persist, Chapter::Traverse, Chapter::Zmem];

    fn run(self, options: &TourOptions) -> Result<bool, BenchError> {
        match self {
            Chapter::Ipc => ipc(options),
            Chapter::Transform => transform::run(options),
            Chapter::Persist => persist::run(options),
            Chapter::Traverse => traverse::run(options),
            Chapter::Zmem => zmem::run(options),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    About(About),
    Row(Entry),
    Missing { transport: String, missing: String },
    Error { error: String },
}

#[derive(Debug, Deserialize)]
struct About {
    rows: u64,
    columns: u64,
    batch_bytes: u64,
    batches: u64,
    rounds: u64,
    measured_s: f64,
    depth: u64,
    xgboost: String,
    threads: u64,
    cores: u64,
    right: f64,
}

#[derive(Debug, Deserialize)]
struct Entry {
    transport: String,
    mode: String,
    transfer_ms: f64,
    end_to_end_ms: f64,
    rows_per_s: f64,
    cpu_s: f64,
    ratio: Option<f64>,
    transfer_ratio: Option<f64>,
}

/// Runs the chapters; prints tables on stdout, progress on stderr. Gives whether everything ran and was right.
///
/// # Errors
/// No Python, or a chapter that could not begin.
pub fn tour(options: &TourOptions) -> Result<bool, BenchError> {
    let mut right = true;
    for chapter in Chapter::ALL {
        if options.chapters.is_empty() || options.chapters.contains(&chapter) {
            right &= chapter.run(options)?;
        }
    }
    Ok(right)
}

/// Runs the first chapter: ipc.
fn ipc(options: &TourOptions) -> Result<bool, BenchError> {
    let mut arguments = Vec::new();
    if options.quick {
        arguments.extend(["--seconds", "0", "--batches", "2"].map(str::to_owned));
    }
    let (mut about, mut entries, mut remarks, mut right) = (None, Vec::new(), Vec::new(), true);
    let ended = Script { path: "tour/ipc_chapter.py", arguments }.run(|value: Value| {
        if options.json {
            println!("{value}");
        }
        match serde_json::from_value(value) {
            Ok(Line::About(line)) => about = Some(line),
            Ok(Line::Row(entry)) => entries.push(entry),
            Ok(Line::Missing { transport, missing }) => {
                right &= transport != "memlift";
                remarks.push(format!("{transport} is missing: {missing}"));
            }
            Ok(Line::Error { error }) => remarks.push(format!("failed: {error}")),
            Err(error) => remarks.push(format!("a line that cannot be read: {error}")),
        }
    })?;
    if !options.json {
        print!("{}", chapter(about.as_ref(), &entries, &remarks));
    }
    Ok(ended && right)
}

/// The chapter as text.
fn chapter(about: Option<&About>, entries: &[Entry], remarks: &[String]) -> String {
    let mut text = String::new();
    if let Some(about) = about {
        text += &format!(
            "\nipc: a model server in another process\n\
             XGBoost {} ({} thread, {:.1} % right) on scikit-learn's breast-cancer data; batches of {} rows × {} float32 \
             ({:.0} MB),\nall predictions compared with local ones. Medians of {} rounds of {} batches, {:.0} s, {} cores.\n\n",
            about.xgboost,
            about.threads,
            about.right * 100.0,
            about.rows,
            about.columns,
            about.batch_bytes as f64 * 1e-6,
            about.rounds,
            about.batches,
            about.measured_s,
            about.cores,
        );
    }
    if !entries.is_empty() {
        text += &format!(
            "{:<9} {:<15} {:>13} {:>15} {:>13} {:>11} {:>9} {:>9}\n",
            "over", "mode", "transfer ms", "end to end ms", "Mrows/s", "CPU ms", "transfer", "job"
        );
    }
    for entry in entries {
        let ratio = |value: Option<f64>| {
            value.map_or_else(|| "–".to_owned(), |ratio| format!("{}×", three_digits(ratio)))
        };
        text += &format!(
            "{:<9} {:<15} {:>13} {:>15} {:>13} {:>11} {:>9} {:>9}\n",
            entry.transport,
            entry.mode,
            three_digits(entry.transfer_ms),
            three_digits(entry.end_to_end_ms),
            three_digits(entry.rows_per_s * 1e-6),
            three_digits(entry.cpu_s * 1e3),
            ratio(entry.transfer_ratio),
            ratio(entry.ratio),
        );
    }
    if let Some(about) = about.filter(|_| !entries.is_empty()) {
        text += &format!(
            "\ntransfer: one call that reads every byte of a batch; the last but one column says how many times memlift's \
             it takes.\njob: how many times the rows per second memlift does in the same mode, building and checking \
             included.\nCPU: client and server process, per batch. pipelined: up to {} batches outstanding, so a batch \
             waits for those before it.\n",
            about.depth
        );
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
    fn a_chapter_has_one_line_per_row_and_says_what_is_missing() {
        let row = r#"{"kind": "row", "transport": "zmq", "mode": "sync", "transfer_ms": 12.0, "end_to_end_ms": 150.0,
            "rows_per_s": 1200000.0, "cpu_s": 0.2, "ratio": 1.25, "transfer_ratio": 3.0, "qualifies": "x"}"#;
        let Line::Row(entry) = serde_json::from_str(row).expect("a row") else { panic!("not a row") };
        let text = chapter(None, &[entry], &["grpc is missing: pip install grpcio".to_owned()]);
        let line = text.lines().find(|line| line.starts_with("zmq")).expect("the row's line");
        assert!(line.contains("12.0") && line.contains("1.25×") && line.contains("3.00×"), "{line}");
        assert!(text.contains("pip install grpcio"));
    }
}
