// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool`: makes, shows, checks, repairs, compacts, dumps, converts, serves and replicates pools of `memlift::persist`.
//!
//! - **Flow** [`create`] and [`change`] write files · [`info`], [`check`] and [`dump`] read them: for a pool that is closed, or whose
//!   owner died, the log is replayed in memory, and nothing is written
//! - **Exit** 0 done, and for check: no damage · 1 failed, or damaged · 2 usage · 3 in use, or the pool, the replica or its store is not to be had
//! - **Not here** the work of the verbs: `memlift::persist::{check, repair, dump, convert}`

mod change;
mod check;
mod create;
mod dump;
mod info;
#[cfg(feature = "replicate")]
mod replica;
#[cfg(not(feature = "replicate"))]
#[path = "no_replica.rs"]
mod replica;
mod serve;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use memlift::ground::size;
use memlift::persist::convert::Conversion;
use memlift::persist::{Error, Mechanism};
use memlift::traverse::resolve::resolve;

use crate::failure::Failure;
use crate::input;

/// Verbs of `pool`.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a pool; a crash or a full disk leaves none
    #[command(
        after_help = "Examples:\n  memlift pool create words.pool --size 1G\n  memlift pool create ledger.pool --size 64M --mechanism shadow --sections 16"
    )]
    Create {
        /// The new file
        path: PathBuf,
        /// Heap at first, in bytes or with K, M, G, T; it grows by itself
        #[arg(long, value_parser = size::parse, default_value = "256K")]
        size: u64,
        /// How transactions are made durable
        #[arg(long, value_enum, default_value_t = MechanismArg::Redo)]
        mechanism: MechanismArg,
        /// Lanes of the log: writers at once, plus one that groups share
        #[arg(long, default_value_t = 8)]
        lanes: u32,
        /// Bytes of a lane; a transaction may write half of it
        #[arg(long, value_parser = size::parse, default_value = "1M", value_name = "SIZE")]
        lane_bytes: u64,
        /// Parts that are locked apart: writers that do not wait for each other
        #[arg(long, default_value_t = 1)]
        sections: u32,
    },
    /// Show a pool's properties, its promise on this disk, and its objects
    #[command(
        after_help = "Examples:\n  memlift pool info words.pool\n  memlift pool info words.pool --json"
    )]
    Info {
        /// File of the pool
        path: PathBuf,
        #[command(flatten)]
        with: MoreFiles,
    },
    /// Look for damage in headers, log, directory and bitmaps, and follow every pointer
    #[command(
        after_help = "Examples:\n  memlift pool check words.pool && cp words.pool backup/\n\nExit code 1 says that there is damage. Notes are none."
    )]
    Check {
        /// File of the pool
        path: PathBuf,
        #[command(flatten)]
        with: MoreFiles,
    },
    /// Make a damaged pool one that opens, and list every change
    #[command(
        after_help = "Examples:\n  memlift pool repair words.pool words.good\n  memlift pool repair words.pool --in-place\n  memlift pool repair --accept-loss words.pool"
    )]
    Repair {
        /// File of the pool
        path: PathBuf,
        /// The new file for the repaired copy
        #[arg(required_unless_present_any = ["in_place", "accept_loss"], conflicts_with = "in_place")]
        target: Option<PathBuf>,
        /// Change the file itself; what it held before is gone
        #[arg(long)]
        in_place: bool,
        /// Go on without the transactions that damage in the log costs; without a target in the file itself
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        with: MoreFiles,
    },
    /// Print the objects, decoded by the types that the pool knows
    #[command(
        after_help = "Examples:\n  memlift pool dump words.pool --type Node --limit 10\n  memlift pool dump words.pool --offset 0x14080\n  memlift pool dump words.pool --json | jq .type     (one document per line)"
    )]
    Dump {
        /// File of the pool
        path: PathBuf,
        /// Only objects of this type; an array's name is in brackets: [u8]
        #[arg(long = "type", value_name = "TYPE")]
        name: Option<String>,
        /// Only the object that holds this byte of the heap, decimal or 0x…
        #[arg(long, value_parser = offset)]
        offset: Option<u64>,
        /// Stop after this many objects
        #[arg(long, value_name = "COUNT")]
        limit: Option<u64>,
        #[command(flatten)]
        with: MoreFiles,
    },
    /// Move objects together and give what is free back to the file system
    #[command(
        after_help = "Examples:\n  memlift pool compact words.pool\n\nThe file keeps its length and gets holes (du shows them, ls -l does not). Objects move in stores of `pool serve` and in dicts of\nPython and C; in other pools only what is free already goes back. It may be interrupted at any time."
    )]
    Compact {
        /// File of the pool
        path: PathBuf,
    },
    /// Copy a pool into a new file, reading every page against its checksum
    #[command(
        after_help = "Examples:\n  memlift pool backup words.pool /backup/words.pool\n  memlift pool backup words.pool /backup/words.pool --rate 50M\n\nThe copy is a pool: use it as it is. A pool that a program has open is copied as it is now if that program lets others read\n(`pool serve` does, and persist.open(…, readers=True) in Python). Else the program copies it while it goes on: in Python\npool.backup(TARGET), in C memlift_pool_backup, of `pool serve --copies FOLDER` with redis-cli BGSAVE."
    )]
    Backup {
        /// File of the pool
        path: PathBuf,
        /// The new file; nothing is overwritten
        target: PathBuf,
        /// Bytes to copy per second, at most, or with K, M, G, T
        #[arg(long, value_parser = size::parse, value_name = "SIZE")]
        rate: Option<u64>,
    },
    /// Copy a pool into a new file with another mechanism, log, number of sections or size
    #[command(
        after_help = "Examples:\n  memlift pool convert words.pool words2.pool --mechanism undo\n  memlift pool convert words.pool words2.pool --size 10G --sections 64\n\nObjects keep their places, so pointers stay good. There is one version of the format so far."
    )]
    Convert {
        /// File of the pool
        path: PathBuf,
        /// The new file
        target: PathBuf,
        #[command(flatten)]
        args: ServeArgs,
        #[command(flatten)]
        with: MoreFiles,
    },
    /// Keep a copy of a pool in an object store or a folder up to date, while a program writes it
    #[command(
        after_help = "Examples:\n  memlift pool replicate words.pool s3://bucket/words\n  memlift pool replicate words.pool /mnt/nas/words --once\n\nURL is s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH (keys and settings come from the environment: AWS_…, GOOGLE_…,\nAZURE_…) or a folder. A program that has the pool open has to let others read it: `pool serve` does, and persist.open(…,\nreaders=True) in Python. It goes on until Ctrl-C or SIGTERM. `memlift pool restore` makes a pool of it."
    )]
    Replicate {
        /// File of the pool
        path: PathBuf,
        /// Place of the copy: of this pool only
        url: String,
        /// Send what the copy lacks, and end
        #[arg(long)]
        once: bool,
        /// Seconds from one look at the pool to the next
        #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, conflicts_with = "once")]
        interval: f64,
        /// Hours for which every state stays; what is older is removed
        #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = hours)]
        retain: f64,
        /// Send away a process of this machine that writes the copy and is alive
        #[arg(long)]
        take_over: bool,
    },
    /// Make a pool of a copy that `replicate` keeps, as it is now or was at a time
    #[command(
        after_help = "Examples:\n  memlift pool restore s3://bucket/words words.pool\n  memlift pool restore s3://bucket/words before.pool --at 2026-11-30T05:12:33Z\n  memlift pool restore s3://bucket/words --list\n\nNothing is overwritten. Everything that is read is compared with its checksum; if anything is missing or damaged, there is no file,\nand the error says up to which time a restore is possible."
    )]
    Restore {
        /// Place of the copy
        url: String,
        /// The new file
        #[arg(required_unless_present = "list")]
        target: Option<PathBuf>,
        /// Time of the state, UTC, as 2026-11-30T05:12:33Z, or seconds since 1970 [default: the last one]
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        /// Say which times the copy has, and who wrote it
        #[arg(long, conflicts_with_all = ["target", "at"])]
        list: bool,
    },
    /// Serve a key-value store in a pool to clients of Redis; the pool is made if there is none
    #[command(
        after_help = "Examples:\n  memlift pool serve words.pool\n  memlift pool serve words.pool --listen 127.0.0.1:7000 --durability sync\n  redis-benchmark -p 6379 -t set,get\n\nEnd it with Ctrl-C or SIGTERM."
    )]
    Serve {
        /// File of the pool
        path: PathBuf,
        /// Address to listen on; port 0: any
        #[arg(long, value_name = "HOST:PORT", value_parser = resolve, default_value = "127.0.0.1:6379")]
        listen: SocketAddr,
        /// Listen on an address that other machines reach; there is no authentication
        #[arg(long)]
        allow_remote: bool,
        /// When a reply to a write leaves
        #[arg(long, value_enum, default_value_t = serve::When::Group)]
        durability: serve::When,
        /// Threads that serve [default: one per core, 4 at most]
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
        threads: Option<u16>,
        /// Memory that changed pages may take, in bytes or with K, M, G, T [default: a quarter of what the process may have]
        #[arg(long, value_parser = size::parse, value_name = "SIZE")]
        memory: Option<u64>,
        /// Folder for copies of the pool that BGSAVE asks for; each is a new file, POOL.SECONDS
        #[arg(long, value_name = "FOLDER")]
        copies: Option<PathBuf>,
        /// Memory for pages as they were, while other processes read the pool (`memlift pool dump` or `backup`, say), in bytes or with K, M,
        /// G, T; 0: none may [default: 64M]
        #[arg(long, value_parser = size::parse, value_name = "SIZE")]
        readers: Option<u64>,
        /// Place of a copy that is kept up to date, a second behind: s3://BUCKET/PATH, gs://, az://, or a folder (see `pool replicate`)
        #[arg(long, value_name = "URL", required_if_eq("durability", "replicated"))]
        replicate: Option<String>,
    },
}

/// The rest of a pool that is interleaved over several files.
#[derive(Debug, Args)]
pub struct MoreFiles {
    /// Another file of an interleaved pool, once for each; those in the folder of the first are found without
    #[arg(long = "with", value_name = "FILE")]
    others: Vec<PathBuf>,
}

impl MoreFiles {
    fn files(&self, path: PathBuf) -> Vec<PathBuf> {
        let mut files = vec![path];
        files.extend(self.others.iter().cloned());
        files
    }
}

/// Properties that conversion changes.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Heap, in bytes or with K, M, G, T
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// How transactions are made durable
    #[arg(long, value_enum)]
    mechanism: Option<MechanismArg>,
    /// Lanes of the log
    #[arg(long)]
    lanes: Option<u32>,
    /// Bytes of a lane
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    lane_bytes: Option<u64>,
    /// Parts that are locked apart
    #[arg(long)]
    sections: Option<u32>,
}

/// A mechanism, as the command line calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum MechanismArg {
    /// Changes go to the log, one fence, later to their place
    Redo,
    /// Old contents go to the log, then changes are made in place; no mirror in memory
    Undo,
    /// Changed lines of pages; transactions share a checkpoint
    Checkpoint,
    /// Two copies of each page; a commit turns pages over
    Shadow,
}

impl From<MechanismArg> for Mechanism {
    fn from(arg: MechanismArg) -> Mechanism {
        match arg {
            MechanismArg::Redo => Mechanism::Redo,
            MechanismArg::Undo => Mechanism::Undo,
            MechanismArg::Checkpoint => Mechanism::Checkpoint,
            MechanismArg::Shadow => Mechanism::Shadow,
        }
    }
}

impl Verb {
    /// Returns the files of an existing pool that the verb opens.
    fn inputs(&self) -> Vec<&Path> {
        match self {
            Verb::Create { .. } | Verb::Restore { .. } => Vec::new(),
            Verb::Info { path, with }
            | Verb::Check { path, with }
            | Verb::Repair { path, with, .. }
            | Verb::Dump { path, with, .. }
            | Verb::Convert { path, with, .. } => {
                std::iter::once(path).chain(&with.others).map(PathBuf::as_path).collect()
            }
            Verb::Compact { path }
            | Verb::Backup { path, .. }
            | Verb::Replicate { path, .. }
            | Verb::Serve { path, .. } => vec![path],
        }
    }
}

/// Runs a verb.
pub fn run(verb: Verb, json: bool) -> Result<(), Failure> {
    verb.inputs().into_iter().try_for_each(input::plain)?;
    match verb {
        Verb::Create { path, size, mechanism, lanes, lane_bytes, sections } => {
            create::create(&path, &create::options(size, mechanism.into(), lanes, lane_bytes, sections), json)
        }
        Verb::Info { path, with } => info::info(&with.files(path), json),
        Verb::Check { path, with } => check::check(&with.files(path), json),
        Verb::Repair { path, target, accept_loss, with, .. } => {
            change::repair(&with.files(path), target.as_deref(), accept_loss, json)
        }
        Verb::Dump { path, name, offset, limit, with } => {
            dump::dump(&with.files(path), name, offset, limit, json)
        }
        Verb::Replicate { path, url, once, interval, retain, take_over } => {
            let retain = Duration::from_secs_f64(retain * 3600.0);
            let settings =
                replica::Settings { once, interval: Duration::from_secs_f64(interval), retain, take_over };
            replica::replicate(&path, &url, settings, json)
        }
        Verb::Restore { url, target: Some(target), at, .. } => {
            replica::restore(&url, &target, at.as_deref(), json)
        }
        Verb::Restore { url, target: None, .. } => replica::list(&url, json),
        Verb::Serve {
            path,
            listen,
            allow_remote,
            durability,
            threads,
            memory,
            copies,
            readers,
            replicate,
        } => {
            let options = serve::ServeSettings {
                durability,
                threads: threads.map(usize::from),
                memory,
                copies,
                readers,
                replicate,
            };
            serve::serve(&path, listen, allow_remote, options, json)
        }
        Verb::Backup { path, target, rate } => change::backup(&path, &target, rate, json),
        Verb::Compact { path } => change::compact(&path, json),
        Verb::Convert { path, target, args, with } => {
            let args = Conversion {
                mechanism: args.mechanism.map(Mechanism::from),
                lanes: args.lanes,
                lane_bytes: args.lane_bytes,
                sections: args.sections,
                heap_bytes: args.size,
            };
            change::convert(&with.files(path), &target, &args, json)
        }
    }
}

/// Refuses a new file whose folder is not there. The service would name the file under construction beside it.
fn target_folder(target: &Path) -> Result<(), Failure> {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
            Err(Failure::Unavailable(format!("{}: there is no such folder", folder.display())))
        }
        _ => Ok(()),
    }
}

/// Converts an error of the service to a failure. A text that starts with "the pool" gets the pool's path in front.
fn failure(path: &Path) -> impl Fn(Error) -> Failure {
    move |error| match error {
        Error::InUse { .. } => Failure::Unavailable(error.to_string()),
        Error::Argument { .. } | Error::Exists { .. } => Failure::Usage(error.to_string()),
        Error::File { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Failure::Unavailable(error.to_string())
        }
        Error::File { ref source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            Failure::Failed(format!("{error}; nothing was left behind: make room, or ask for less"))
        }
        Error::NoReplica { .. } | Error::ReplicaStore { .. } => Failure::Unavailable(error.to_string()),
        Error::File { .. } | Error::Replica { .. } | Error::Fenced { .. } | Error::NotReplicated { .. } => {
            Failure::Failed(error.to_string())
        }
        other => Failure::Failed(format!("{}: {other}", path.display())),
    }
}

/// Parses a positive number that is no longer than `most`.
fn positive(text: &str, most: f64, unit: &str) -> Result<f64, String> {
    let wrong = || format!("write {unit}, more than 0 and at most {most}");
    text.parse().ok().filter(|number| *number >= 0.001 && *number <= most).ok_or_else(wrong)
}

fn seconds(text: &str) -> Result<f64, String> {
    positive(text, 86_400.0, "seconds")
}

fn hours(text: &str) -> Result<f64, String> {
    positive(text, 24.0 * 3660.0, "hours")
}

fn offset(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write a place in the heap, decimal or 0x…".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert_eq!((offset("0x10"), offset("17")), (Ok(16), Ok(17)));
        assert!(offset("here").is_err());
        assert_eq!((seconds("0.5"), hours("24")), (Ok(0.5), Ok(24.0)));
        assert!(["0", "-1", "NaN", "inf", "1e9", ""].iter().all(|text| seconds(text).is_err()));
    }
}
