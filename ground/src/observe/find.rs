// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the stats pages of processes through /proc.
//!
//! - **Flow** /proc/PID/fd/* ──link is `/memfd:memlift-stats (deleted)`──▶ open read-only ──▶ [`StatsView::open`]
//! - **Order** a forked child inherits its parent's fd until it makes its own page; the pid in the page tells the
//! - **Order** a forked child inherits its parent's fd until it makes its own page; the pid in the page tells the two
//!   apart. In a pid namespace that is the innermost pid, NSpid of /proc/PID/status.
//! - **Not here** permissions: the kernel lets a process open another's fds if it has the same uid or ptrace rights.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::layout::NAME;
use super::read::{Refusal, StatsView};
use super::stats::ProcessStats;

/// Reason that a process's stats cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// There is no such process.
    #[error("there is no process {pid}; memlift top lists those that can be observed")]
    NoSuchProcess {
        /// The process id that was asked for.
        pid: u32,
    },
    /// The process has no stats page.
    #[error(
        "process {pid} has no memlift stats page; it does not use memlift, or has not done any work with it yet"
    )]
    NotMemlift {
        /// The process id that was asked for.
        pid: u32,
    },
    /// This user may not observe the process.
    #[error("process {pid} may not be observed by this user; run as its user, or as root")]
    Permission {
        /// The process id that was asked for.
        pid: u32,
    },
    /// The process's page has another layout.
    #[error(
        "process {pid} writes stats of version {found}, this command reads {supported}; use the memlift of that process"
    )]
    Version {
        /// The process id that was asked for.
        pid: u32,
        /// Version of that process's page.
        found: u64,
        /// Version that this reader supports.
        supported: u64,
    },
    /// The kernel returned another error.
    #[error("process {pid}: {source}")]
    Os {
        /// The process id that was asked for.
        pid: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl ObserveError {
    fn from_io(pid: u32, source: io::Error) -> ObserveError {
        match source.kind() {
            ErrorKind::NotFound => ObserveError::NoSuchProcess { pid },
            ErrorKind::PermissionDenied => ObserveError::Permission { pid },
            _ if source.raw_os_error() == Some(libc::ESRCH) => ObserveError::NoSuchProcess { pid },
            _ => ObserveError::Os { pid, source },
        }
    }
}

/// Opens the stats page of process `pid`.
///
/// # Errors
///
/// [`ObserveError`].
pub fn attach(pid: u32) -> Result<StatsView, ObserveError> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let links = links(&folder).map_err(|error| ObserveError::from_io(pid, error))?;
    let inner_pid = inner_pid(&folder).unwrap_or(pid);
    let mut refusal = ObserveError::NotMemlift { pid };
    for link in links {
        // NONBLOCK: opening does not block if a FIFO has that name.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match rustix::fs::open(&link, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => continue,
            Err(error) => {
                refusal = ObserveError::from_io(pid, error.into());
                continue;
            }
        };
        match StatsView::open(fd, pid, inner_pid) {
            Ok(view) => return Ok(view),
            Err(Refusal::Foreign) => {}
            Err(Refusal::Version(found)) => {
                refusal = ObserveError::Version { pid, found, supported: super::layout::VERSION };
            }
            Err(Refusal::Os(source)) => refusal = ObserveError::Os { pid, source },
        }
    }
    Err(refusal)
}

/// Returns all processes whose stats this user may read, by pid.
pub fn list() -> Vec<ProcessStats> {
    views().iter().map(StatsView::process).collect()
}

/// Returns the pages of all processes whose stats this user may read, by pid.
pub fn views() -> Vec<StatsView> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| attach(pid).ok()).collect()
}

/// Returns the fds of a process that look like a stats page.
fn links(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let wanted = format!("/memfd:{NAME} (deleted)");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder.join("fd"))? {
        let Ok(entry) = entry else { break };
        let path = entry.path();
        if fs::read_link(&path).is_ok_and(|target| target.as_os_str() == wanted.as_str()) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the pid that a process has in its own pid namespace.
fn inner_pid(folder: &Path) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}
