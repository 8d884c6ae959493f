// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The grammar of `memlift-lab`.
//!
//! - **Not here** what a command does: one file each.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use memlift_bench::Chapter;

use crate::{reproduce, whatif};

/// Measures memlift, and runs the machines of the papers that it comes from.
#[derive(Debug, Parser)]
#[command(name = "memlift-lab", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 not available here.")]
pub struct Arguments {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Verb of the command
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs of memlift-lab.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The main job of each service on real input, beside its rivals
    Tour {
        /// Only these; all without one
        chapters: Vec<TourChapter>,
        /// As briefly as possible: everything runs and is checked, the numbers say little
        #[arg(long)]
        quick: bool,
    },
    /// Measure a service beside its rivals
    Bench {
        /// The service to measure
        service: BenchService,
        /// Only rows whose name starts with this, or matches it where it holds a *
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// Prove that every row runs and verifies; no verdict on time
        #[arg(long)]
        quick: bool,
        /// Append the rows to lab/bench/record of the checkout that holds the current folder
        #[arg(long)]
        record: bool,
        /// Compare the verdicts with the newest that were recorded on this CPU; fails when fewer than 95 % agree
        #[arg(long, conflicts_with = "quick")]
        agree: bool,
        /// Write index.html into this folder: both sides over size, ratios, every row; one file, no network
        #[arg(long, value_name = "DIR")]
        report: Option<PathBuf>,
        /// Replace a report that is there
        #[arg(long, requires = "report")]
        force: bool,
    },
    /// Estimate the effect of an accelerator on a recorded program
    #[command(after_help = whatif::EXAMPLES)]
    Whatif(whatif::Args),
    /// Figures of papers on accelerators, beside what the device models here give
    #[command(after_help = reproduce::EXAMPLES)]
    Reproduce(reproduce::Args),
    /// Write the pages of numbers from lab/bench/record of the checkout that holds the current folder; existing pages are replaced
    Report {
        /// Folder to write into
        #[arg(default_value = "docs/benchmarks")]
        folder: PathBuf,
    },
}

/// Services with a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchService {
    /// Copies inside one process
    Copy,
    /// The papers' machines: how fast they run, how near they come to their papers
    Devices,
    /// Calls between processes
    Ipc,
    /// Transactions that survive a crash
    Persist,
    /// Copies that seal, open, pack, unpack or check on the way
    Transform,
    /// Pointer walks that run where the data lives
    Traverse,
    /// More memory than the budget
    Zmem,
}

/// Chapters of the tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TourChapter {
    /// A model server in another process
    Ipc,
    /// Debian's nginx before and after the drop-ins
    Transform,
    /// A program that is killed, and what its pool has then
    Persist,
    /// One lookup along a chain, as a walk and as many reads
    Traverse,
    /// A job that its memory limit kills, and the same under a budget
    Zmem,
}

impl From<TourChapter> for Chapter {
    fn from(chapter: TourChapter) -> Chapter {
        match chapter {
            TourChapter::Ipc => Chapter::Ipc,
            TourChapter::Transform => Chapter::Transform,
            TourChapter::Persist => Chapter::Persist,
            TourChapter::Traverse => Chapter::Traverse,
            TourChapter::Zmem => Chapter::Zmem,
        }
    }
}
