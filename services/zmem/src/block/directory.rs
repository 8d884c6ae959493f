// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file through which the processes of a user find their registry: it lists processes that have the registry open.
//!
//! - **Layout** `zmem.registry` in the user's folder, one line per holder: `PID START DESCRIPTOR`
//! - **Flow** lock the file ─▶ for each line whose process lives, open `/proc/PID/fd/DESCRIPTOR` and check that it is a
//!   registry; make a new one if none is ─▶ write the lines of living processes and this process's own ─▶ unlock
//! - **Owner** the folder and the file must belong to this user, and others may not write to them. A line is only a claim:
//!   the descriptor is checked like any that comes from outside ([`Shared::open`]). Only the first 64 KiB of the file are
//!   read
//! - **Not here** descriptors that are inherited: those need no file

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::pid::Process;
use super::shared::Shared;
use crate::{Error, Result};

const NAME: &str = "zmem.registry";
const MOST_BYTES: u64 = 64 << 10;

pub(super) fn folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    runtime.unwrap_or_else(|| format!("/tmp/memlift-{}", rustix::process::geteuid().as_raw()).into())
}

/// Returns the registry that the folder's file names, or else the one that `make` makes. The file lists this process
/// afterwards.
pub(super) fn open(folder: &Path, make: impl FnOnce() -> Result<Shared>) -> Result<Shared> {
    let mut file = file(folder)?;
    let refused = |source| Error::Folder { folder: folder.to_owned(), source };
    file.lock().map_err(refused)?;
    let mut text = String::new();
    // Text that is not UTF-8 was not written by this code; it is ignored.
    let _ = (&mut file).take(MOST_BYTES).read_to_string(&mut text);
    let living: Vec<(Process, RawFd)> =
        text.lines().filter_map(holder).filter(|(process, _)| process.lives()).collect();
    let found = living.iter().find_map(|(process, number)| reopen(*process, *number));
    let fresh = found.is_none();
    let shared = found.map_or_else(make, Ok)?;
    let mut lines = String::new();
    if !fresh {
        for (process, number) in &living {
            lines += &line(*process, *number);
        }
    }
    lines += &line(Process::current(), shared.file().as_raw_fd());
    file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(refused)?;
    file.write_all(lines.as_bytes()).map_err(refused)?;
    Ok(shared)
}

/// Adds a line for `process`, which inherited the registry as descriptor `number`.
pub(super) fn add(folder: &Path, process: Process, number: RawFd) -> Result<()> {
    let mut file = file(folder)?;
    let refused = |source| Error::Folder { folder: folder.to_owned(), source };
    file.lock().map_err(refused)?;
    file.seek(SeekFrom::End(0)).map_err(refused)?;
    file.write_all(line(process, number).as_bytes()).map_err(refused)
}

/// Returns the registry that `process` has open as descriptor `number`.
pub(super) fn reopen(process: Process, number: RawFd) -> Option<Shared> {
    let path = format!("/proc/{}/fd/{number}", process.pid);
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let shared = Shared::open(file.into()).ok()?;
    // Only this check after the opening proves that the pid had not passed to another process before the file was opened.
    process.lives().then_some(shared)
}

fn line(process: Process, number: RawFd) -> String {
    format!("{} {} {number}\n", process.pid, process.started)
}

fn holder(line: &str) -> Option<(Process, RawFd)> {
    let mut fields = line.split(' ');
    let mut next = || fields.next();
    let process = Process { pid: next()?.parse().ok()?, started: next()?.parse().ok()? };
    Some((process, next()?.parse().ok().filter(|number: &RawFd| *number >= 0)?))
}

fn file(folder: &Path) -> Result<File> {
    let refused = |source| Error::Folder { folder: folder.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(refused(error)),
        _ => {}
    }
    let status = std::fs::symlink_metadata(folder).map_err(refused)?;
    let uid = rustix::process::geteuid().as_raw();
    if !status.is_dir() || status.uid() != uid || status.mode() & 0o022 != 0 {
        return Err(Error::FolderOfOthers { folder: folder.to_owned() });
    }
    let flags = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).mode(0o600).custom_flags(flags);
    let file = file.open(folder.join(NAME)).map_err(refused)?;
    let status = file.metadata().map_err(refused)?;
    if !status.is_file() || status.uid() != uid {
        return Err(Error::FolderOfOthers { folder: folder.to_owned() });
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opener_finds_the_first_ones_registry_and_not_what_lies_say() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("memlift");
        let first = open(&folder, Shared::create).expect("made");
        let second = open(&folder, || panic!("there is one")).expect("found");
        first.block(7).total.store(42, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(second.block(7).total(), 42);
        // Lines with descriptors that are no registry, and with processes that do not exist.
        let own = Process::current();
        let lies = format!(
            "{} {} 0\n1 1 1\nx\n{} {} -1\n4294967295 0 3\n",
            own.pid, own.started, own.pid, own.started
        );
        std::fs::write(folder.join(NAME), lies).expect("written");
        let third = open(&folder, Shared::create).expect("made");
        assert_eq!(third.block(7).total(), 0);
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("set");
        assert!(matches!(open(folder.path(), Shared::create), Err(Error::FolderOfOthers { .. })));
        let link = tempfile::tempdir().expect("a folder");
        let link = link.path().join("link");
        std::os::unix::fs::symlink("/", &link).expect("linked");
        assert!(matches!(open(&link, Shared::create), Err(Error::FolderOfOthers { .. })));
    }
}
