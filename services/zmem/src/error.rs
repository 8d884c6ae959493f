// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong before anything ran, and what to do about it.

/// Why a job, an arena or a spill file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory cannot hold a spill file.
    #[error(
        "no spill file in {directory}: {reason}; name another directory with --spill, or run without one"
    )]
    SpillDirectory {
        /// Its path.
        directory: String,
        /// Why not.
        reason: String,
    },
    /// The kernel gave no memory or address space.
    #[error(
        "no room for {what}, {bytes} bytes: {source}; raise the limit (ulimit -v, vm.max_map_count) or ask for less"
    )]
    Map {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A process has one pager.
    #[error("this process has a pager already; a process belongs to one job")]
    Started,
    /// No way to be told of faults.
    #[error(
        "neither userfaultfd nor signals of faults may be used; allow userfaultfd in seccomp, or unset MEMLIFT_DISABLE"
    )]
    NoFaults,
    /// The kernel refused a userfaultfd.
    #[error("userfaultfd: {source}; allow it in seccomp, or disable it with MEMLIFT_DISABLE=uffd")]
    Faults {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The registry could not be made.
    #[error(
        "no registry of jobs: {source}; memlift needs memfd_create with seals (Linux 3.17) and about 256 KiB"
    )]
    Registry {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A descriptor or a file that does not hold what it should.
    #[error("this is not a registry of jobs of this user and version; start the program with `memlift run`")]
    NotARegistry,
    /// The folder of the registry's file cannot be used.
    #[error("{}: {source}; set XDG_RUNTIME_DIR to a folder of your own", folder.display())]
    Folder {
        /// Which.
        folder: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The folder of the registry's file is not this user's alone.
    #[error("{} belongs to somebody else or others may write it; set XDG_RUNTIME_DIR to a folder of your own", folder.display())]
    FolderOfOthers {
        /// Which.
        folder: std::path::PathBuf,
    },
    /// More was asked for than the machine has left.
    #[error(
        "{total} bytes were asked for, {left} are not given to other jobs; ask for less, or see `memlift job list`"
    )]
    Admission {
        /// What was asked for.
        total: usize,
        /// What is left.
        left: usize,
    },
    /// No block is free.
    #[error("all jobs' blocks are taken; end a job first (`memlift job list`)")]
    Blocks,
    /// No slot is free.
    #[error("all processes' slots are taken; a registry holds 512")]
    Processes,
    /// A block that is not a job's.
    #[error("there is no job {block}; `memlift job list` names those that run")]
    NoBlock {
        /// Its index.
        block: usize,
    },
}

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
