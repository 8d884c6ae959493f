// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that appears under its name whole, or not at all.
//!
//! - **Flow** a hidden temporary name beside the target ─▶ its maker fills it ─▶ [`Fresh::publish`]: durable, linked, folder
//!   durable
//! - **Owner** the temporary goes when this is dropped, whichever way
//! - **Not here** new pools: `open::create` does the same for itself

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Fresh {
    temporary: PathBuf,
    target: PathBuf,
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
        Ok(Fresh { temporary, target: target.to_owned() })
    }

    /// The temporary path, for writing.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Gives the file its name.
    pub fn publish(self) -> Result<()> {
        let failed = |action| {
            let path = self.target.clone();
            move |source: io::Error| Error::File { action, path, source }
        };
        File::open(&self.temporary).and_then(|file| file.sync_all()).map_err(failed("sync"))?;
        match std::fs::hard_link(&self.temporary, &self.target) {
            Ok(()) => {}
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { path: self.target.clone() });
            }
            Err(source) => return Err(failed("link")(source)),
        }
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = File::open(parent.unwrap_or(Path::new(".")));
        folder.and_then(|folder| folder.sync_all()).map_err(failed("sync the folder of"))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.temporary); // it may never have been made
    }
}
