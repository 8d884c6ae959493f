// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The grammar of the command line: services are nouns (`ipc`), verbs are global.
//!
//! - **Not here** the work of a command: each has a file of its own.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use memlift::traverse::resolve::resolve;

use crate::{dropin, job, jupyter, lab, map, node, ping, pool, record, run};

/// Memory work, lifted off the core.
#[derive(Debug, Parser)]
#[command(name = "memlift", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 not available here.")]
pub struct Arguments {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Verb of the command
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs and nouns.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The main job of each service on real input, beside its rivals (starts memlift-lab)
    Tour(lab::Args),
    /// Show this machine's facilities, how memlift uses them, and what to do about the rest
    Doctor {
        /// Where a pool would be: its folder is asked what it can promise
        #[arg(long, value_name = "FOLDER", default_value = ".")]
        path: PathBuf,
        /// Print the commands that it suggests, as a script
        #[arg(long)]
        fix: bool,
    },
    /// Measure this machine (about a second) and keep the result on disk
    Calibrate,
    /// Measure a service beside its rivals (starts memlift-lab)
    Bench(lab::Args),
    /// Calls between processes
    Ipc {
        /// The verb of sessions
        #[command(subcommand)]
        verb: IpcVerb,
    },
    /// Show the work of every process, live
    Top {
        /// Print one snapshot and end; also what happens when the output is not a terminal
        #[arg(long)]
        once: bool,
        /// Milliseconds between two readings
        #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
        interval_ms: u64,
    },
    /// Show the work of every process as metrics for Prometheus
    #[command(
        group = clap::ArgGroup::new("where").required(true).args(["listen", "once"]),
        override_usage = "memlift metrics [OPTIONS] --listen <HOST:PORT>|--once"
    )]
    Metrics {
        /// Address to listen on, for example 127.0.0.1:9464
        #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
        listen: Option<SocketAddr>,
        /// Print the page to standard output and end
        #[arg(long)]
        once: bool,
        /// Listen on an address that other machines reach; there is no authentication
        #[arg(long, requires = "listen")]
        allow_remote: bool,
    },
    /// Why work ran where it ran: the last decisions of a process, or of one copy beforehand
    Explain {
        /// A process id, or the word `copy`
        #[arg(value_name = "PID|copy")]
        subject: String,
        /// Size of the copy: bytes, or with K, M, G
        #[arg(value_name = "SIZE")]
        size: Option<String>,
        /// Cache state to assume for a copy
        #[arg(long, value_enum, default_value_t = CacheState::Cold)]
        cache: CacheState,
    },
    /// Drop-ins for programs as they are: zlib and OpenSSL, faster
    Dropin {
        /// The verb of drop-ins
        #[command(subcommand)]
        verb: dropin::Verb,
    },
    /// A memory node: keeps data, and walks through it for its clients
    #[command(
        after_help = node::EXAMPLES,
        override_usage = "memlift node [OPTIONS]\n           --memory <SIZE> --listen <WHERE>\n       memlift node log <COMMAND>"
    )]
    Node(node::NodeArgs),
    /// Range maps: which memory node has which addresses
    Map {
        /// The verb of maps
        #[command(subcommand)]
        verb: map::Verb,
    },
    /// A program under an exact budget of memory, compressed pages included
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::Args>),
    /// Jobs that run under a budget
    Job {
        /// The verb of jobs
        #[command(subcommand)]
        verb: job::Verb,
    },
    /// Kernels of Jupyter notebooks under a budget
    Jupyter {
        /// The verb of kernels
        #[command(subcommand)]
        verb: jupyter::Verb,
    },
    /// Record a program's work on memory while it runs
    #[command(after_help = record::EXAMPLES)]
    Record(record::Args),
    /// Estimate the effect of an accelerator on a recorded program (starts memlift-lab)
    Whatif(lab::Args),
    /// Figures of papers on accelerators, beside what the device models give (starts memlift-lab)
    Reproduce(lab::Args),
    /// Pools: objects that survive a crash, in a file
    Pool {
        /// The verb of pools
        #[command(subcommand)]
        verb: pool::Verb,
    },
    /// Settings in effect, and where each comes from
    Config {
        /// The verb of settings
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Write manual pages into a folder
    Man {
        /// Folder that the pages are written into; it is made if it is not there
        folder: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// Shell to print them for
        shell: clap_complete::Shell,
    },
}

/// Verbs of `ipc`.
#[derive(Clone, Debug, Subcommand)]
pub enum IpcVerb {
    /// Servers and sessions of this machine
    #[command(visible_alias = "list")]
    Ls,
    /// Ask a server if it is ready: exit code 0 if it is, 1 if it is not, 3 if there is none
    Ping(ping::Args),
}

/// Verbs of `config`.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum ConfigVerb {
    /// Each setting, and where its value comes from
    Show,
}

/// Where the bytes of a copy lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheState {
    /// Bytes are in the CPU's cache
    Hot,
    /// Bytes are in memory, not in the cache
    Cold,
}
