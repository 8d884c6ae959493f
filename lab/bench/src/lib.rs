// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Benches: the rows of each service, their rivals, and how both are measured.
//!
//! - **Flow** `definitions/*.toml` say which rows exist ──▶ [`copy`], [`devices`], [`persist`], [`transform`], [`traverse`] and [`zmem`] measure here, [`ipc`] lets Python
//!   measure most ([`scripted`]) ──▶ pairs of samples ──[`statistics`]──▶ [`Row`] ──▶ table or JSON on stdout, and [`record`]
//! - **Rule** both sides of a pair write, read and check every byte with the routines of `limits/reference.c`
//! - **Owner** every child process is ended when its measurement is, and by the kernel if this process dies
//! - **Not here** a verdict that depends on anything but the rows' own numbers
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "maps the memory that is copied from, copied to and swept")]
mod area;
mod cache;
#[expect(unsafe_code, reason = "ties the life of a child process to this one before it starts")]
mod child;
#[expect(unsafe_code, reason = "calls the copy routines under test on raw memory")]
mod copier;
mod copy;
mod definition;
mod devices;
pub mod drawing;
mod error;
mod ipc;
#[expect(unsafe_code, reason = "takes over the descriptors that its parent left open")]
mod contender;
mod machine;
#[expect(unsafe_code, reason = "calls the engine on raw memory")]
mod ours;
mod pairs;
#[expect(unsafe_code, reason = "calls C loops on raw memory")]
mod pass;
mod persist;
mod pin;
mod python;
mod published;
mod record;
#[expect(unsafe_code, reason = "calls the C reference routines")]
mod reference;
mod report;
#[expect(unsafe_code, reason = "calls the C generator of graphs")]
mod rmat;
mod row;
mod scripted;
mod statistics;
mod tour;
mod transform;
mod traverse;
mod zmem;

pub use contender::child;
pub use definition::Definition;
pub use error::BenchError;
pub use published::write as publish;
pub use record::Agreement;
pub use row::{CpuSeconds, Row, Verdict};
pub use statistics::{geometric_mean, geometric_mean_low, median, ratio, ratio_low};
pub use tour::{Chapter, TourOptions, tour};

/// The services that have benches.
pub const SERVICES: &[&str] = &["copy", "devices", "ipc", "persist", "transform", "traverse", "zmem"];

/// Options of `memlift bench`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only rows whose name starts with this, or matches it where it holds a `*`.
    pub only: Option<String>,
    /// Run and verify every row, as briefly as possible; time gives no verdict.
    pub quick: bool,
    /// One JSON object per line on stdout instead of the table.
    pub json: bool,
    /// Append the rows to `lab/bench/record/<cpu, family and model>/<date>.jsonl` of the checkout that holds the current folder.
    pub record: bool,
    /// Compare the verdicts with the newest rows that were recorded on this CPU.
    pub agree: bool,
    /// Write a page with drawings of the rows into this folder.
    pub report: Option<std::path::PathBuf>,
}

/// Result of a bench.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Every row, in the order of the definitions.
    pub rows: Vec<Row>,
    /// Rows whose measurement failed or whose bytes were wrong.
    pub failed: usize,
    /// Verdicts beside the recorded ones, if that was asked for.
    pub agreement: Option<Agreement>,
}

impl Summary {
    /// How many rows have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == Some(verdict)).count()
    }
}

/// Runs the benches of one service and prints its rows on stdout as they come; progress goes to stderr.
///
/// # Errors
/// An unknown service, an `only` that fits no row, or a measurement that could not begin. A row that fails by
/// itself does not stop the others: it is counted in [`Summary::failed`].
pub fn run(service: &str, options: &Options) -> Result<Summary, BenchError> {
    let definitions = definition::select(service, options.only.as_deref())?;
    let mut sink = row::Sink::new(options.json);
    let failed = match service {
        "copy" => copy::run(&definitions, options, &mut sink)?,
        "devices" => devices::run(&definitions, options, &mut sink)?,
        "persist" => persist::run(&definitions, options, &mut sink)?,
        "transform" => transform::run(&definitions, options, &mut sink)?,
        "traverse" => traverse::run(&definitions, options, &mut sink)?,
        "zmem" => zmem::run(&definitions, options, &mut sink)?,
        _ => ipc::run(&definitions, options, &mut sink)?,
    };
    let rows = sink.finish();
    let agreement = if options.agree { Some(record::agreement(&definitions, &rows)?) } else { None };
    if options.record && !options.quick {
        let path = record::append(&rows)?;
        eprintln!("recorded in {}", path.display());
    }
    if let Some(folder) = &options.report {
        let path = report::write(folder, service, &rows)?;
        eprintln!("report in {}", path.display());
    }
    Ok(Summary { rows, failed, agreement })
}
