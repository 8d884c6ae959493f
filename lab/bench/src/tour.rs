// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift tour`: one chapter per service, on real input, beside the rivals.
//!
//! - **Flow** tour/ipc_chapter.py for `ipc`, then the chapters in tour/ ─▶ a table each, or JSON lines (`about`, `row`, `missing`, `error`)
//! - **Not here** how a chapter measures; each says that in its own header

mod persist;
mod transform;
mod traverse;
mod zmem;

use crate::BenchError;
use crate::python::Script;

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

/// Runs the first chapter: ipc. Its script prints the table itself, because `make demo` starts it before this program is built.
fn ipc(options: &TourOptions) -> Result<bool, BenchError> {
    let mut arguments = Vec::new();
    if options.quick {
        arguments.extend(["--seconds", "0", "--batches", "2"].map(str::to_owned));
    }
    if options.json {
        arguments.push("--json".to_owned());
    }
    Script { path: "tour/ipc_chapter.py", arguments }.show()
}
