// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that a command writes at a path given by the user: only plain files, and never over an existing one without
//! `--force`.
//!
//! - **Flow** [`Output::create`] refuses paths that may not be replaced and makes a file without a name ─▶ the caller writes its
//!   bytes ─▶ [`Output::finish`] gives it the target's name
//! - **Order** the target is unchanged until all bytes are written; a command that fails or is interrupted leaves it
//!   unchanged
//! - **Not here** pools, logs and sockets, which their services open

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use memlift::ground::fresh_file::FreshFile;

use crate::failure::Failure;

/// A file under construction. If it is dropped without [`finish`](Output::finish), or the process is killed, it is gone.
#[derive(Debug)]
pub struct Output {
    fresh: FreshFile,
    target: PathBuf,
    force: bool,
    option: &'static str,
}

impl Output {
    /// Makes a file for `target`. `option` is the command line option that named the target, for errors.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`]: the target is not a plain file, or exists and `force` is false, or its folder cannot be written.
    /// [`Failure::Unavailable`]: its folder is not there.
    pub fn create(target: &Path, option: &'static str, force: bool) -> Result<Output, Failure> {
        let refused = |error: &dyn std::fmt::Display| {
            Failure::Usage(format!("{option} {}: {error}: name a file that can be written", target.display()))
        };
        if let Some(folder) =
            target.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            let (target, folder) = (target.display(), folder.display());
            return Err(Failure::Unavailable(format!("{option} {target}: there is no folder {folder}")));
        }
        let resolved = resolve(target).map_err(|error| refused(&error))?;
        match fs::symlink_metadata(&resolved) {
            Ok(found) if !found.is_file() => {
                let kind = kind_name(found.file_type());
                return Err(Failure::Usage(format!(
                    "{option} {}: it is {kind}: name a plain file",
                    target.display()
                )));
            }
            Ok(_) if !force => return Err(exists(option, target)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&error)),
        }
        let fresh = FreshFile::create(&resolved, 0o600).map_err(|error| refused(&error))?;
        Ok(Output { fresh, target: resolved, force, option })
    }

    /// Returns the file to write to.
    pub fn file(&self) -> &File {
        self.fresh.file()
    }

    /// Returns the path that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Gives the file its name. The returned handle stays valid.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`]: somebody made the target meanwhile and `force` is false. [`Failure::Failed`]: the file cannot be
    /// renamed.
    pub fn finish(self) -> Result<File, Failure> {
        let file = self.fresh.file().try_clone()?;
        match self.fresh.publish(self.force) {
            Ok(()) => Ok(file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !self.force => {
                Err(exists(self.option, &self.target))
            }
            Err(error) => Err(Failure::Failed(format!("{} {}: {error}", self.option, self.target.display()))),
        }
    }
}

/// Refuses a target that [`write()`] would refuse later, before work is done for it.
///
/// # Errors
///
/// The errors of [`Output::create`].
pub fn check(target: &Path, option: &'static str, force: bool) -> Result<(), Failure> {
    Output::create(target, option, force).map(drop)
}

/// Writes all of `bytes` to `target`.
///
/// # Errors
///
/// The errors of [`Output::create`]; [`Failure::Failed`] if the bytes cannot be written.
pub fn write(target: &Path, option: &'static str, force: bool, bytes: &[u8]) -> Result<(), Failure> {
    let output = Output::create(target, option, force)?;
    let mut file = output.file();
    file.write_all(bytes)
        .map_err(|error| Failure::Failed(format!("{option} {}: {error}", target.display())))?;
    output.finish().map(drop)
}

fn exists(option: &str, target: &Path) -> Failure {
    Failure::Usage(format!(
        "{option} {}: it is there already: give --force to replace it, or another name",
        target.display()
    ))
}

/// Resolves a path: its folder must exist, and a link at its end is followed.
fn resolve(target: &Path) -> io::Result<PathBuf> {
    let target = std::path::absolute(target)?;
    let Some(name) = target.file_name() else {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
    };
    if fs::symlink_metadata(&target).is_ok_and(|found| found.is_symlink()) {
        // A link without a target is refused here.
        return fs::canonicalize(&target);
    }
    let folder = target.parent().unwrap_or(Path::new("/"));
    Ok(fs::canonicalize(folder)?.join(name))
}

/// Names what is at a path, with an article.
pub(crate) fn kind_name(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "no plain file",
    }
}
