// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a bench could not begin or go on, and what to do about it.

use std::path::PathBuf;

/// What stops a bench as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// There is no such service.
    #[error("there is no bench for `{0}`; there are: {known}", known = crate::SERVICES.join(", "))]
    UnknownService(String),
    /// `--only` fits no row.
    #[error("no row of `{service}` fits `{only}`; rows are named like {example}")]
    NoRow {
        /// The service.
        service: String,
        /// What was asked for.
        only: String,
        /// A row that exists.
        example: String,
    },
    /// A definitions file cannot be read.
    #[error("bench/definitions/{service}.toml: {source}")]
    Definition {
        /// The service.
        service: String,
        /// What the parser says.
        source: toml::de::Error,
    },
    /// Too little memory for the areas.
    #[error(
        "{needed_bytes} bytes are needed and {available_bytes} are available; free some, or measure smaller \
         rows with --only"
    )]
    Memory {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes available.
        available_bytes: u64,
    },
    /// The bytes after a copy are not those before it.
    #[error("{name}: {rival} left other bytes in the target than the source has; its time is worth nothing")]
    Wrong {
        /// The row.
        name: String,
        /// Who copied.
        rival: String,
    },
    /// Two sides that did the same left different bytes.
    #[error("{name}: the checksums of memlift and {rival} differ: {sums:?}; both times are worth nothing")]
    Differ {
        /// The row.
        name: String,
        /// Who is compared with.
        rival: String,
        /// Ours, theirs.
        sums: [String; 2],
    },
    /// A modelled machine is impossible, or gave a wrong answer.
    #[error("{name}: {problem}")]
    Machine {
        /// The row.
        name: String,
        /// What the machine says.
        problem: String,
    },
    /// The engine cannot be opened.
    #[error("the engine: {reason}")]
    Engine {
        /// What it says.
        reason: String,
    },
    /// A library that was to be measured.
    #[error("{library}: {reason}")]
    Library {
        /// Which.
        library: String,
        /// What is wrong with it.
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
        /// Which.
        program: String,
        /// How.
        status: String,
    },
    /// A child process answered something unexpected.
    #[error("{program} answered `{answer}`, which is not what was asked for")]
    Answer {
        /// Which.
        program: String,
        /// What.
        answer: String,
    },
    /// The current folder lies in no checkout, so there is nowhere to record.
    #[error(
        "--record wants the current folder to lie in a memlift checkout (a folder with bench/definitions)"
    )]
    NoCheckout,
    /// Neither XDG_CACHE_HOME nor HOME is set.
    #[error("set XDG_CACHE_HOME or HOME: the Python side of the benches is unpacked there")]
    NoCacheFolder,
    /// Something about a file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something about the system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
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
