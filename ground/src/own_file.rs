// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens working files beside a file of this program; they are renamed over it when they are complete.
//!
//! - **Flow** [`open`] `NAME.new` ─▶ check that it is ours ─▶ the caller empties it, fills it, syncs it and renames it
//! - **Owner** an existing file is ours if it is a regular file of this user with a single name, and is empty or starts as our files
//!   do. Anything else is left untouched: a link is not followed, and opening does not wait for a FIFO
//! - **Not here** the rename, and the meaning of the bytes

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Number of bytes at the start of a file that are checked.
pub const START_BYTES: usize = 16;

/// Opens the file for reading and writing, or makes it. `is_ours` checks the first [`START_BYTES`] bytes of an existing file
/// that is not empty, or fewer if it is shorter.
///
/// # Errors
///
/// `AlreadyExists` if a file that is not ours lies there; otherwise the operating system's error.
pub fn open(path: &Path, is_ours: impl FnOnce(&[u8]) -> bool) -> io::Result<File> {
    let foreign = || {
        let text = format!("{} is not memlift's and stays as it is: move it away first", path.display());
        io::Error::new(io::ErrorKind::AlreadyExists, text)
    };
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o644).custom_flags(flags);
    let file = options.open(path).map_err(|error| match path.symlink_metadata() {
        Ok(there) if !there.is_file() => foreign(),
        _ => error,
    })?;
    let stat = file.metadata()?;
    if !stat.is_file() || stat.uid() != rustix::process::geteuid().as_raw() || stat.nlink() != 1 {
        return Err(foreign());
    }
    let mut start = [0; START_BYTES];
    let length = usize::try_from(stat.len()).unwrap_or(START_BYTES).min(START_BYTES);
    file.read_exact_at(&mut start[..length], 0)?;
    if length > 0 && !is_ours(&start[..length]) {
        return Err(foreign());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_not_ours_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let ours = |start: &[u8]| start.starts_with(b"OURS");
        let refused = |name: &str| {
            let error = open(&at(name), ours).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{name}: {error}");
        };
        std::fs::write(at("foreign"), "precious").unwrap();
        refused("foreign");
        assert_eq!(std::fs::read_to_string(at("foreign")).unwrap(), "precious");
        std::fs::write(at("target"), "OURS, by another name").unwrap();
        symlink(at("target"), at("link")).unwrap();
        refused("link");
        std::fs::hard_link(at("target"), at("second name")).unwrap();
        refused("second name");
        std::fs::create_dir(at("folder")).unwrap();
        refused("folder");
        let fifo = std::ffi::CString::new(at("fifo").to_str().unwrap()).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        refused("fifo");
        drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
        refused("socket");
        std::fs::write(at("left"), "OURS, half written").unwrap();
        open(&at("left"), ours).unwrap();
        std::fs::write(at("empty"), "").unwrap();
        open(&at("empty"), ours).unwrap();
        open(&at("new"), ours).unwrap();
    }
}
