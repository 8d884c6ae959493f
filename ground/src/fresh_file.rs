// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that appears under its name whole, or not at all.
//!
//! - **Flow** a file without a name, or where the file system has none, one with a hidden name beside the target ─▶ the caller fills it
//!   ─▶ [`FreshFile::publish`] gives it the target's name
//! - **Owner** a file without a name goes with the process, however that ends. A hidden name is removed when this is dropped, and stays
//!   only if the process is killed
//! - **Not here** durability: callers that promise it sync the file before and the folder afterwards

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// See the module's header.
#[derive(Debug)]
pub struct FreshFile {
    file: File,
    hidden: Option<PathBuf>,
    target: PathBuf,
}

impl FreshFile {
    /// Makes an empty file for `target`, open for reading and writing. `mode` are its permissions before the umask.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `target` names no file; otherwise the operating system's error.
    pub fn create(target: &Path, mode: u32) -> io::Result<FreshFile> {
        if target.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this path names no file"));
        }
        let target = target.to_owned();
        if let Some(file) = nameless(folder(&target), mode) {
            return Ok(FreshFile { file, hidden: None, target });
        }
        let hidden = hidden_name(&target);
        // A file of this name belongs to somebody else: it is neither overwritten nor removed.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&hidden)?;
        Ok(FreshFile { file, hidden: Some(hidden), target })
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns a path by which this process can open the file until it is published.
    pub fn path(&self) -> PathBuf {
        self.hidden.clone().unwrap_or_else(|| by_number(&self.file).into())
    }

    /// Gives the file the target's name, in the place of what has it if `replace` is set.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the name is taken and `replace` is false; otherwise the operating system's error.
    pub fn publish(mut self, replace: bool) -> io::Result<()> {
        if self.hidden.is_none() {
            let name = if replace { hidden_name(&self.target) } else { self.target.clone() };
            rustix::fs::linkat(CWD, by_number(&self.file), CWD, &name, AtFlags::SYMLINK_FOLLOW)?;
            if !replace {
                return Ok(());
            }
            self.hidden = Some(name);
        }
        let Some(hidden) = &self.hidden else { return Ok(()) };
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(CWD, hidden, CWD, &self.target, flags) {
            Ok(()) => {}
            // The file system lacks the flag. A link fails, too, if the name exists, and the hidden name goes when this is dropped.
            Err(Errno::INVAL | Errno::NOSYS) if !replace => {
                rustix::fs::linkat(CWD, hidden, CWD, &self.target, AtFlags::empty())?;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.hidden = None;
        Ok(())
    }
}

impl Drop for FreshFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            let _ = std::fs::remove_file(hidden); // somebody may have cleaned up
        }
    }
}

/// Makes a file without a name that goes with the process. `None` if the folder's file system or a missing /proc prevents it.
pub fn nameless(folder: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(mode)).ok()?);
    Path::new(&by_number(&file)).exists().then_some(file)
}

/// Returns the folder of a path: `.` for a name alone.
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn by_number(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn hidden_name(target: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    target.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A file as [`FreshFile::create`] makes it where no file can be without a name.
    fn with_hidden_name(target: &Path) -> FreshFile {
        let hidden = hidden_name(target);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&hidden).unwrap();
        FreshFile { file, hidden: Some(hidden), target: target.to_owned() }
    }

    #[test]
    fn a_file_appears_whole_and_takes_the_place_of_another_only_where_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let kinds: [fn(&Path) -> FreshFile; 2] =
            [|target| FreshFile::create(target, 0o600).unwrap(), with_hidden_name];
        for create in kinds {
            let fresh = create(&target);
            fresh.file().write_all(b"new").unwrap();
            assert!(!target.exists());
            assert_eq!(std::fs::read(fresh.path()).unwrap(), b"new");
            fresh.publish(false).unwrap();
            assert_eq!(std::fs::read(&target).unwrap(), b"new");
            let refused = create(&target).publish(false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            create(&target).publish(true).unwrap();
            assert_eq!(std::fs::read(&target).unwrap(), b"");
            drop(create(&target));
            assert_eq!(names(folder.path()), ["target"]);
            std::fs::remove_file(&target).unwrap();
        }
        assert_eq!(FreshFile::create(Path::new("/"), 0o600).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_hidden_name_of_somebody_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::fs::write(hidden_name(&target), "theirs").unwrap();
        let fresh = FreshFile::create(&target, 0o600).unwrap();
        fresh.publish(true).unwrap_err();
        assert_eq!(std::fs::read(hidden_name(&target)).unwrap(), b"theirs");
        assert!(!target.exists());
    }
}
