// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reasons that a bench could not begin or go on, and what to do about each.

use std::path::PathBuf;

/// Error that stops a bench as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// There is no such service.
    #[error("there is no bench for `{0}`; there are: {known}", known = crate::SERVICES.join(", "))]
    UnknownService(String),
    /// `--only` fits no row.
    #[error("no row of `{service}` fits `{only}`; rows are named like {example}")]
    NoRow {
        /// Name that was asked for.
        service: String,
        /// Pattern that `--only` was given.
        only: String,
        /// A row that exists.
        example: String,
    },
    /// A definitions file cannot be read.
    #[error("lab/bench/definitions/{service}.toml: {source}")]
    Definition {
        /// Service whose definitions are meant.
        service: String,
        /// Error of the TOML parser.
        source: toml::de::Error,
    },
    /// Too little memory for the areas.
    #[error(
        "{needed_bytes} bytes are needed and {available_bytes} are available; free some, or measure smaller \
         rows with --only"
    )]
    Memory {
        /// Bytes that the areas need.
        needed_bytes: u64,
        /// Bytes that are available now.
        available_bytes: u64,
    },
    /// The bytes after a copy are not those before it.
    #[error("{name}: {rival} left other bytes in the target than the source has; its time is worth nothing")]
    Wrong {
        /// Name of the row.
        name: String,
        /// The side that copied.
        rival: String,
    },
    /// Two sides that did the same left different bytes.
    #[error("{name}: the checksums of memlift and {rival} differ: {sums:?}; both times are worth nothing")]
    Differ {
        /// Name of the row.
        name: String,
        /// The side that memlift is compared with.
        rival: String,
        /// Checksum of memlift's side, then of the rival's.
        sums: [String; 2],
    },
    /// A modelled machine is impossible, or gave a wrong answer.
    #[error("{name}: {problem}")]
    Machine {
        /// Name of the row.
        name: String,
        /// Problem that the machine reports.
        problem: String,
    },
    /// The engine cannot be opened.
    #[error("the engine: {reason}")]
    Engine {
        /// Reason that the engine gives.
        reason: String,
    },
    /// A library that was to be measured.
    #[error("{library}: {reason}")]
    Library {
        /// Name of the library.
        library: String,
        /// Fault of the library.
        reason: String,
    },
    /// No Python was found.
    #[error(
        "no Python was found: activate a virtual environment, run `make build` (it leaves one in .venv), or \
         install python3"
    )]
    NoPython,
    /// A child process ended badly.
    #[error("{program} ended with {status}; what it said is above")]
    Child {
        /// Name of the program.
        program: String,
        /// Its exit status, in words.
        status: String,
    },
    /// A child process answered something unexpected.
    #[error("{program} answered `{answer}`, which is not what was asked for")]
    Answer {
        /// Name of the program.
        program: String,
        /// The unexpected answer itself.
        answer: String,
    },
    /// The current folder lies in no checkout, so there is nowhere to record.
    #[error(
        "--record wants the current folder to lie in a memlift checkout (a folder with lab/bench/definitions)"
    )]
    NoCheckout,
    /// Neither XDG_CACHE_HOME nor HOME is set.
    #[error("set XDG_CACHE_HOME or HOME: the Python side of the benches is unpacked there")]
    NoCacheFolder,
    /// An operation on a file failed.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error that the system gave.
        source: std::io::Error,
    },
    /// A system call or another operation of the system failed.
    #[error("{what}: {source}")]
    System {
        /// Operation that was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl BenchError {
    /// For `map_err` on file operations.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> BenchError {
        let path = path.into();
        move |source| BenchError::File { path, source }
    }

    /// For `map_err` on system calls.
    pub(crate) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> BenchError {
        move |source| BenchError::System { what, source: source.into() }
    }
}
