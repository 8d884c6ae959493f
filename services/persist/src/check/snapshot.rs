// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool's file, read without a change: headers, lanes, and the heap as recovery would leave it.
//!
//! - **Flow** open for reading ─▶ shared lock (an owner is asked for a snapshot: `readers`) ─▶ private mapping ─▶ headers ─▶ lanes as they lie ─▶
//!   recovery into the private mapping ─▶ heap
//! - **Rule** recovery is the pool's own (`recover`), so what is shown is what the next open gives
//! - **Owner** stores of that recovery are private to this process; pages that it does not touch stay the file's

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use memlift_ground::locked_file::LockedFile;
use rustix::io::Errno;

use super::home::Home;
use super::{Files, family};
use crate::error::{Error, Result};
use crate::holes::Holes;
use crate::interleave;
use crate::layout::{HEADER_BYTES, Header, LANES_START};
use crate::medium::{Mapped, Medium};
use crate::open;
use crate::recover::{self, Loss, Recovered};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub medium: Medium,
    pub file_bytes: u64,
    /// The two headers, each as decoded or with its fault.
    pub headers: [Result<Header>; 2],
    /// Result of recovery, or the reason why it failed; None: it was not tried.
    pub recovered: Option<Result<Recovered>>,
    /// Where the heap is, after recovery.
    home: Option<Home>,
}

/// Opens a pool's file and locks it against an owner.
pub(crate) fn lock_file(path: &Path, write: bool) -> Result<LockedFile> {
    let failed = |action| move |source: std::io::Error| Error::File { action, path: path.to_owned(), source };
    let file = OpenOptions::new().read(true).write(write).open(path).map_err(failed("open"))?;
    if !file.metadata().map_err(failed("stat"))?.is_file() {
        return Err(Error::Argument { what: format!("{} is not a file", path.display()) });
    }
    let locked = if write { LockedFile::exclusive(file) } else { LockedFile::shared(file) };
    locked.map_err(|errno| match errno {
        Errno::WOULDBLOCK => Error::InUse { path: path.to_owned() },
        errno => failed("lock")(errno.into()),
    })
}

fn refuse_empty(file: &File) -> Result<()> {
    if file.metadata().is_ok_and(|metadata| metadata.len() == 0) { Err(Error::NotAPool) } else { Ok(()) }
}

impl Snapshot {
    /// Reads a pool. A damaged pool is no error; a file that is no pool is one.
    pub fn open(files: &impl Files) -> Result<Snapshot> {
        let paths = family(files)?;
        let locked = paths.iter().map(|path| lock_file(path, false)).collect::<Result<Vec<_>>>();
        match (locked, paths.as_slice()) {
            (Err(Error::InUse { .. }), [path]) => Snapshot::of(open::medium_beside(path)?),
            (locked, paths) => Snapshot::read_all(locked?, paths),
        }
    }

    /// As [`Snapshot::open`], for files that the caller has locked; dropping the snapshot unlocks them.
    pub fn read_all(mut files: Vec<LockedFile>, paths: &[PathBuf]) -> Result<Snapshot> {
        if let [path] = paths {
            let file = files.remove(0);
            refuse_empty(&file)?;
            return Snapshot::of(Medium::Mapped(Mapped::private_view(file, path)?));
        }
        let medium = interleave::of_files(files, paths, |file, path, _| Mapped::private_view(file, path))?;
        let file_bytes = medium.len();
        let header = |turn: u64| {
            let mut page = vec![0; HEADER_BYTES as usize];
            medium.read(turn * HEADER_BYTES, &mut page)?;
            Header::decode(&page)
        };
        let headers = [header(0), header(1)];
        Ok(Snapshot { medium, file_bytes, headers, recovered: None, home: None })
    }

    /// As [`Snapshot::open`], for a file that the caller has locked and keeps locked.
    pub fn read(file: LockedFile, path: &Path) -> Result<Snapshot> {
        refuse_empty(&file)?;
        Snapshot::of(Medium::Mapped(Mapped::private_view(file, path)?))
    }

    fn of(medium: Medium) -> Result<Snapshot> {
        let file_bytes = medium.len();
        if file_bytes < LANES_START {
            // Too short to be told apart from anything else, but for its first bytes.
            let mut start = vec![0; file_bytes.min(HEADER_BYTES) as usize];
            medium.read(0, &mut start)?;
            return Err(match Header::decode(&start) {
                Ok(_) => Error::corrupt(format!(
                    "the file ends after {file_bytes} bytes, before the first lane of its log"
                )),
                Err(error) => error,
            });
        }
        let header = |turn: u64| {
            let mut page = vec![0; HEADER_BYTES as usize];
            medium.read(turn * HEADER_BYTES, &mut page)?;
            Header::decode(&page)
        };
        let headers = [header(0), header(1)];
        if headers.iter().all(|header| {
            matches!(header, Err(Error::NotAPool | Error::Version { .. } | Error::Feature { .. }))
        }) {
            return Err(recover::read_header(&medium).expect_err("no header is good"));
        }
        let snapshot = Snapshot { medium, file_bytes, headers, recovered: None, home: None };
        match snapshot.header() {
            Some(header) if header.devices > 1 => Err(recover::alone(&header)),
            _ => Ok(snapshot),
        }
    }

    /// The header that holds.
    pub fn header(&self) -> Option<Header> {
        let newer = |a: Header, b: Header| if b.generation > a.generation { b } else { a };
        self.headers.iter().filter_map(|header| header.as_ref().ok().copied()).reduce(newer)
    }

    /// Returns true if the file is as long as its header says.
    pub fn whole(&self) -> bool {
        self.header().is_some_and(|header| self.file_bytes >= header.file_bytes())
    }

    /// Replays the log into the private mapping. Without a good header, or with bytes missing, it does nothing.
    pub fn recover(&mut self) -> Result<()> {
        if let Some(header) = self.header().filter(|_| self.whole()) {
            self.recovered = Some(
                recover::recover(&self.medium, true, Loss::Refuse, &Holes::default())
                    .map(|state| state.recovered),
            );
            self.home = Some(Home::of(&self.medium, &header)?);
        }
        Ok(())
    }

    /// The header and what was recovered of a pool that could be.
    pub fn sound(&mut self) -> Result<(Header, Recovered)> {
        self.recover()?;
        match (self.header(), self.recovered.take()) {
            (Some(header), Some(recovered)) => Ok((header, recovered?)),
            (None, _) => Err(Error::corrupt("neither of its headers is good")),
            (Some(_), None) => Err(Error::corrupt("the file was truncated")),
        }
    }

    /// Bytes of the heap.
    pub fn heap(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.home()?.read(&self.medium, offset, target)
    }

    /// Where the heap is.
    pub fn home(&self) -> Result<&Home> {
        self.home.as_ref().ok_or_else(|| Error::corrupt("the heap cannot be read"))
    }

    /// A word of the heap.
    pub fn word(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.heap(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "the test forks")]
mod tests {
    use super::*;
    use crate::{Options, Pool};

    #[test]
    fn a_pool_that_was_looked_at_is_free_while_a_forked_child_lives() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("test.pool");
        Pool::create(&path, &Options::default()).expect("created").close().expect("closed");
        let snapshot = Snapshot::open(&path).expect("opened");
        // SAFETY: the child waits for its end, as one does that is between fork and exec.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
        drop(snapshot);
        let again = Pool::open(&path, &Options::default()).map(drop);
        // SAFETY: ends the child above, and waits for it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        again.expect("the child's descriptor has no lock any more");
    }
}
