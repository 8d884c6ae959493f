// SPDX-License-Identifier: Apache-2.0 OR MIT
//! New files of pools: durable, and under their names whole or not at all ([`FreshFile`]).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memlift_ground::fresh_file::{self, FreshFile};

use crate::error::{Error, Result};

const MODE: u32 = 0o600;

/// A file that its maker fills and then publishes.
#[derive(Debug)]
pub(crate) struct Fresh {
    made: FreshFile,
    target: PathBuf,
}

/// Makes the error of a failed call from what the system said.
pub(crate) fn file_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::File { action, path: path.to_owned(), source }
}

impl Fresh {
    /// An empty file for `target`, which must not exist.
    pub fn file(target: &Path) -> Result<Fresh> {
        if target.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: target.to_owned() });
        }
        match FreshFile::create(target, MODE) {
            Ok(made) => Ok(Fresh { made, target: target.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(Error::Argument { what: format!("{} names no file", target.display()) })
            }
            Err(error) => Err(file_error("create", target)(error)),
        }
    }

    /// A path by which this process can open the file.
    pub fn path(&self) -> PathBuf {
        self.made.path()
    }

    /// A descriptor of the file.
    pub fn open(&self) -> Result<File> {
        self.made.file().try_clone().map_err(file_error("open", &self.target))
    }

    /// Makes the file durable and gives it its name.
    pub fn publish(self) -> Result<()> {
        let Fresh { made, target } = self;
        made.file().sync_all().map_err(file_error("sync", &target))?;
        match made.publish(false) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { path: target });
            }
            Err(error) => return Err(file_error("link", &target)(error)),
        }
        let folder = File::open(fresh_file::folder(&target)).and_then(|folder| folder.sync_all());
        folder.map_err(file_error("sync the folder of", &target))
    }
}

/// A file without a name beside `path`, for what need not outlive the process. Where the folder cannot be written, it is memory of this
/// process.
#[cfg(feature = "replicate")]
pub(crate) fn scratch(path: &Path) -> Result<File> {
    if let Some(file) = fresh_file::nameless(fresh_file::folder(path), MODE) {
        return Ok(file);
    }
    let made = rustix::fs::memfd_create("memlift-scratch", rustix::fs::MemfdFlags::CLOEXEC);
    made.map(File::from).map_err(|errno| file_error("make a file beside", path)(errno.into()))
}
