// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that appears under its name whole, or not at all.
//!
//! - **Flow** a file without a name, or where there are none, and for makers that want a path, a hidden name beside the target
//!   ─▶ its maker fills it ─▶ [`Fresh::publish`]: durable, linked, folder durable
//! - **Owner** a temporary name goes when this is dropped, whichever way. A file without a name goes with the process

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::error::{Error, Result};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Fresh {
    file: Option<File>,
    temporary: Option<PathBuf>,
    target: PathBuf,
}

/// Makes the error of a failed call from what the system said.
pub(crate) fn file_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::File { action, path: path.to_owned(), source }
}

fn folder(target: &Path) -> &Path {
    target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Fresh {
    /// A name beside `target`, which must not exist.
    pub fn beside(target: &Path) -> Result<Fresh> {
        if target.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: target.to_owned() });
        }
        let name = target
            .file_name()
            .ok_or_else(|| Error::Argument { what: format!("{} names no file", target.display()) })?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let temporary = target.with_file_name(hidden);
        // A file of this name belongs to somebody else: it is neither overwritten nor removed when this is dropped.
        if temporary.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: temporary });
        }
        Ok(Fresh { file: None, temporary: Some(temporary), target: target.to_owned() })
    }

    /// An empty file for `target`, which must not exist. Where the file system can, it has no name until it is published, so that
    /// a process that is killed leaves nothing.
    pub fn file(target: &Path) -> Result<Fresh> {
        let mut fresh = Fresh::beside(target)?;
        if let Some(nameless) = nameless(folder(target)) {
            (fresh.file, fresh.temporary) = (Some(nameless), None);
            return Ok(fresh);
        }
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(fresh.path());
        match made {
            Ok(file) => fresh.file = Some(file),
            Err(source) => {
                let error = file_error("create", fresh.path())(source);
                fresh.temporary = None; // it is not ours
                return Err(error);
            }
        }
        Ok(fresh)
    }

    /// The temporary path, for writing: of [`Fresh::beside`] only.
    pub fn path(&self) -> &Path {
        self.temporary.as_deref().unwrap_or(&self.target)
    }

    /// A descriptor of [`Fresh::file`]'s file.
    pub fn open(&self) -> Result<File> {
        match &self.file {
            Some(file) => file.try_clone(),
            None => File::open(self.path()),
        }
        .map_err(file_error("open", self.path()))
    }

    /// Makes the file durable and gives it its name.
    pub fn publish(self) -> Result<()> {
        let file = self.open()?;
        file.sync_all().map_err(file_error("sync", &self.target))?;
        let linked = match &self.temporary {
            Some(temporary) => std::fs::hard_link(temporary, &self.target),
            None => rustix::fs::linkat(CWD, by_number(&file), CWD, &self.target, AtFlags::SYMLINK_FOLLOW)
                .map_err(io::Error::from),
        };
        match linked {
            Ok(()) => {}
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { path: self.target.clone() });
            }
            Err(source) => return Err(file_error("link", &self.target)(source)),
        }
        let folder = File::open(folder(&self.target)).and_then(|folder| folder.sync_all());
        folder.map_err(file_error("sync the folder of", &self.target))
    }
}

fn by_number(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A file in a folder that has no name and can be given one; None where the file system or a missing /proc prevents it.
fn nameless(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok()?);
    Path::new(&by_number(&file)).exists().then_some(file)
}

/// A file without a name beside `path`, for what need not outlive the process. Where the folder cannot be written, it is memory of this
/// process.
#[cfg(feature = "replicate")]
pub(crate) fn scratch(path: &Path) -> Result<File> {
    if let Some(file) = nameless(folder(path)) {
        return Ok(file);
    }
    let made = rustix::fs::memfd_create("memlift-scratch", rustix::fs::MemfdFlags::CLOEXEC);
    made.map(File::from).map_err(|errno| file_error("make a file beside", path)(errno.into()))
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary); // it may never have been made
        }
    }
}
