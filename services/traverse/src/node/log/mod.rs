// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log: every change of a node's memory, with the state of its request, so that a restarted node has its data.
//!
//! - **Flow** change ─▶ [`Log::append`] ─▶ a record ─▶ [`Log::commit`], before the change's answer leaves. At a start:
//!   [`OpenLog`]
//! - **Layout** `frame` defines head and records, `entry` the contents of a record
//! - **Order** each record states up to which position the file was known to be on the disk when the record was written. A bad
//!   record before such a position is damage, and the log is refused; any other is the remainder of a group that was not synced
//!   at a crash, and is cut off
//! - **Owner** the node's writer; one process at a time (the file is locked)
//! - **Not here** copies on other machines (`replica`); shortening the log (`compact`)

mod check;
mod entry;
pub(super) mod frame;
mod open;
mod sync;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlift_ground::locked_file::LockedFile;

pub use check::{LogEnd, LogReport, LogSaved, check_log, repair_log};
pub use entry::{Change, Entry, RangeStep};
use frame::Head;
pub(super) use frame::is_log;
pub use open::{OpenLog, Replayed};
use sync::Sync;

/// Pause after a write found the disk full, before the next attempt.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Time at which a change reaches the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// In the system's cache before the answer leaves, and on the disk about a second later. A killed node loses nothing; a
    /// machine that loses power loses the changes of about the last second.
    #[default]
    Process,
    /// On the disk before the answer leaves (fdatasync once per batch).
    Disk,
}

/// Reason that a log cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A system call failed.
    #[error("{}: {error}", path.display())]
    System {
        /// Path of the log.
        path: PathBuf,
        /// Error that the system returned.
        #[source]
        error: io::Error,
    },
    /// Another process has locked the log.
    #[error("{}: another node has this log open: stop it first, or name another file", .0.display())]
    Locked(PathBuf),
    /// The file is not a log.
    #[error("{}: not a log of `memlift node`: name another file", .0.display())]
    Foreign(PathBuf),
    /// The log was written by another version.
    #[error(
        "{}: a log of format version {version}, and this node reads {} and {}: start it with the memlift that wrote it, or begin with a \
         new log and load the data again",
        path.display(), frame::VERSIONS.start(), frame::VERSIONS.end()
    )]
    Version {
        /// Path of the log.
        path: PathBuf,
        /// Format version of the file.
        version: u32,
    },
    /// The log was written by a node with more memory, or with other addresses.
    #[error("{}: its node had {bytes} bytes from {base:#x} on: start with as many or more", path.display())]
    Other {
        /// Path of the log.
        path: PathBuf,
        /// That node's first address.
        base: u64,
        /// That node's bytes.
        bytes: u64,
    },
    /// Bytes that had reached the disk have changed.
    #[error(
        "{}: damaged at byte {at}; {behind} good records follow, and what is damaged was on the disk before them. The file was left as \
         it is: restore it from a copy, or save what can be read with `memlift node log repair {0} --out NEW`",
        path.display()
    )]
    Damaged {
        /// Path of the log.
        path: PathBuf,
        /// Offset of the first bad record; 0: the head.
        at: u64,
        /// Number of good records behind it.
        behind: u64,
    },
}

impl LogError {
    fn system(path: &Path) -> impl Fn(io::Error) -> LogError {
        move |error| LogError::System { path: path.to_owned(), error }
    }
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    file: Arc<LockedFile>,
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
    pub(super) head: Head,
    /// First address and bytes of the memory that the next snapshot's head names.
    pub(super) memory: (u64, u64),
    waiting: Vec<u8>,
    pub(super) bytes: u64,
    /// Bytes of the last snapshot in the file; 0 before the first compaction of this process.
    pub(super) snapshot_bytes: u64,
    sync: Sync,
    /// Format version in the file's head. `head` has a higher one while a record that needs it is queued.
    written_version: u32,
    /// Time at which a write last found the disk full; `None` after a write succeeded.
    full: Option<Instant>,
}

/// Locks a log against other processes.
pub(super) fn lock(file: File, path: &Path) -> Result<LockedFile, LogError> {
    LockedFile::exclusive(file).map_err(|errno| match errno {
        rustix::io::Errno::AGAIN => LogError::Locked(path.to_owned()),
        errno => LogError::System { path: path.to_owned(), error: errno.into() },
    })
}

/// Returns true for errors that go away when somebody frees room on the disk.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

impl Log {
    /// Queues a record; [`Log::commit`] writes it.
    pub fn append(&mut self, entry: &Entry) {
        let position = self.bytes + self.waiting.len() as u64;
        self.head.version = self.head.version.max(entry.version());
        self.head.put(position, self.sync.durable(), entry, &mut self.waiting);
    }

    /// Writes the head before the first record that needs its version. The head lies in one sector, which is written whole.
    fn raise_version(&mut self) -> io::Result<()> {
        if self.written_version != self.head.version {
            self.file.write_all_at(&self.head.encode(), 0)?;
            self.file.sync_data()?;
            self.written_version = self.head.version;
        }
        Ok(())
    }

    /// Writes the queued records, and syncs them if the log's durability asks for it. Returns false if the disk is full:
    /// then the records stay queued, and a call 100 ms or more later tries again. Until a call succeeds, no answer to these
    /// changes may leave.
    ///
    /// # Errors
    ///
    /// Any other error of the system. The records may not be in the file, so the node must not answer anything more.
    pub fn commit(&mut self) -> Result<bool, LogError> {
        if self.waiting.is_empty() {
            return Ok(true);
        }
        if self.full.is_some_and(|tried| tried.elapsed() < FULL_PAUSE) {
            return Ok(false);
        }
        let mut done = self.raise_version();
        done = done.and_then(|()| self.file.write_all_at(&self.waiting, self.bytes));
        if self.durability == Durability::Disk {
            done = done.and_then(|()| self.file.sync_data());
        }
        match done {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                self.full = Some(Instant::now());
                return Ok(false);
            }
            Err(error) => return Err(LogError::system(&self.path)(error)),
        }
        self.full = None;
        self.bytes += self.waiting.len() as u64;
        self.waiting.clear();
        self.sync.wrote(self.bytes, self.durability == Durability::Disk);
        Ok(true)
    }

    /// Returns true while the disk is full and queued records are not written.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the record that opens a start: boot id, and durability of the records that follow.
    pub(super) fn start_entry(&self) -> Entry {
        Entry { change: Change::Start(open::boot(), self.durability), request: None }
    }

    /// Continues the log in another file, which is synced and holds the same contents. No record may be queued.
    pub(super) fn replace(&mut self, file: LockedFile, head: Head, bytes: u64, snapshot_bytes: u64) {
        self.file = Arc::new(file);
        (self.head, self.bytes, self.snapshot_bytes) = (head, bytes, snapshot_bytes);
        self.written_version = head.version;
        self.sync = Sync::start(&self.file, self.durability, bytes);
    }
}

#[cfg(test)]
mod tests;
