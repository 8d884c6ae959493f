// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that is locked (`flock`) for as long as its owner has it.
//!
//! - **Owner** the process that locked it. Dropping it unlocks the file at once: closing a descriptor keeps the lock for as long as a
//!   child that was forked meanwhile has a copy, until its `exec` for example. A copy in a forked child unlocks nothing
//! - **Not here** waiting: a lock that somebody else has is an error at once

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// See the module's header.
#[derive(Debug)]
pub struct LockedFile {
    file: File,
    /// The process that unlocks the file; `None` if nobody locked it here.
    owner: Option<u32>,
}

impl LockedFile {
    /// Locks a file for this process alone.
    ///
    /// # Errors
    ///
    /// `WOULDBLOCK` if it is locked already; otherwise the operating system's error.
    pub fn exclusive(file: File) -> Result<LockedFile, Errno> {
        LockedFile::lock(file, FlockOperation::NonBlockingLockExclusive)
    }

    /// Locks a file against [`exclusive`](Self::exclusive).
    ///
    /// # Errors
    ///
    /// As [`exclusive`](Self::exclusive).
    pub fn shared(file: File) -> Result<LockedFile, Errno> {
        LockedFile::lock(file, FlockOperation::NonBlockingLockShared)
    }

    fn lock(file: File, operation: FlockOperation) -> Result<LockedFile, Errno> {
        flock(&file, operation)?;
        Ok(LockedFile { file, owner: Some(std::process::id()) })
    }
}

/// A file that is not locked, for what takes both.
impl From<File> for LockedFile {
    fn from(file: File) -> LockedFile {
        LockedFile { file, owner: None }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.owner == Some(std::process::id()) {
            let _ = flock(&self.file, FlockOperation::Unlock); // closing does it as well, if later
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_in_a_child_keeps_no_lock_and_takes_none_away() {
        let path = std::env::temp_dir().join(format!("memlift-locked-{}", std::process::id()));
        let open = || File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        let locked = LockedFile::exclusive(open()).unwrap();
        // A child has a copy of the descriptor, and of what is dropped.
        let (copy, child) = (locked.try_clone().unwrap(), LockedFile { file: open(), owner: Some(0) });
        drop(child);
        assert!(matches!(LockedFile::shared(open()), Err(Errno::WOULDBLOCK)));
        drop(locked);
        let readers = [LockedFile::shared(open()).unwrap(), LockedFile::shared(open()).unwrap()];
        assert!(matches!(LockedFile::exclusive(open()), Err(Errno::WOULDBLOCK)));
        drop(readers);
        drop(LockedFile::exclusive(open()).unwrap());
        drop(copy);
        std::fs::remove_file(&path).unwrap();
    }
}
