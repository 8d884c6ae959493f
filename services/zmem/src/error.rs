// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors that are found before the program starts to run; each message says what to do about it.

use memlift_ground::size::readable;

/// Reasons for which a job, an arena or a spill file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory cannot hold a spill file.
    #[error(
        "no spill file in {directory}: {reason}; name another directory with --spill, or run without one"
    )]
    SpillDirectory {
        /// Path of the directory.
        directory: String,
        /// The reason for the refusal.
        reason: String,
    },
    /// The kernel gave no memory or address space.
    #[error(
        "no room for {what}, {bytes} bytes: {source}; raise the limit (ulimit -v, vm.max_map_count) or ask for less"
    )]
    Map {
        /// Purpose of the memory.
        what: &'static str,
        /// Bytes that were asked for.
        bytes: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The process has a pager already.
    #[error("this process has a pager already; a process belongs to one job")]
    Started,
    /// The kernel offers no way to be told of page faults.
    #[error(
        "neither userfaultfd nor signals of faults may be used; allow userfaultfd in seccomp, or unset MEMLIFT_DISABLE"
    )]
    NoFaults,
    /// The kernel refused a userfaultfd.
    #[error("userfaultfd: {source}; allow it in seccomp, or disable it with MEMLIFT_DISABLE=uffd")]
    Faults {
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The registry of jobs could not be made.
    #[error(
        "no registry of jobs: {source}; memlift needs memfd_create with seals (Linux 3.17) and about 256 KiB"
    )]
    Registry {
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The descriptor or file is not a registry.
    #[error("this is not a registry of jobs of this user and version; start the program with `memlift run`")]
    NotARegistry,
    /// The folder of the registry's file cannot be used.
    #[error("{}: {source}; set XDG_RUNTIME_DIR to a folder of your own", folder.display())]
    Folder {
        /// Path of the folder.
        folder: std::path::PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The folder of the registry's file belongs to another user, or others may write to it.
    #[error("{} belongs to somebody else or others may write it; set XDG_RUNTIME_DIR to a folder of your own", folder.display())]
    FolderOfOthers {
        /// Path of the folder.
        folder: std::path::PathBuf,
    },
    /// The total that was asked for is more than the machine has left.
    #[error(
        "{} were asked for, {} are not given to other jobs; ask for less, or see `memlift job list`",
        readable(*.total as u64),
        readable(*.left as u64)
    )]
    Admission {
        /// Bytes that were asked for.
        total: usize,
        /// Bytes that are not given to other jobs.
        left: usize,
    },
    /// All blocks of the registry are taken.
    #[error("all jobs' blocks are taken; end a job first (`memlift job list`)")]
    Blocks,
    /// All slots for processes of the registry are taken.
    #[error("all processes' slots are taken; a registry holds 512")]
    Processes,
    /// The block belongs to no job.
    #[error("there is no job {block}; `memlift job list` names those that run")]
    NoBlock {
        /// Index of the block.
        block: usize,
    },
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
