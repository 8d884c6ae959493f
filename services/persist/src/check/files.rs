// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the files that a tool works on: those that are named, or one and the others of its pool.
//!
//! - **Flow** one path ─▶ its header ─▶ a pool of one file, or of several ─▶ the others: files in the same folder with the header
//!   of the same pool, one for each device
//! - **Rule** two files that claim one device are never chosen between: the caller names all
//! - **Not here** whether the files agree: `interleave`

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::recover::header_of;

/// An argument of the tools: one path, or all paths of an interleaved pool in any order.
pub trait Files {
    /// The paths as they were named.
    fn paths(&self) -> Vec<PathBuf>;
}

macro_rules! one {
    ($($name:ty)*) => {$(
        impl Files for $name {
            fn paths(&self) -> Vec<PathBuf> {
                vec![PathBuf::from(self)]
            }
        }
    )*};
}

one!(Path str String PathBuf);

impl<P: AsRef<Path>> Files for [P] {
    fn paths(&self) -> Vec<PathBuf> {
        self.iter().map(|path| path.as_ref().to_owned()).collect()
    }
}

impl<P: AsRef<Path>> Files for Vec<P> {
    fn paths(&self) -> Vec<PathBuf> {
        self.as_slice().paths()
    }
}

impl<P: AsRef<Path>, const N: usize> Files for [P; N] {
    fn paths(&self) -> Vec<PathBuf> {
        self.as_slice().paths()
    }
}

impl<T: Files + ?Sized> Files for &T {
    fn paths(&self) -> Vec<PathBuf> {
        (**self).paths()
    }
}

/// All files of the pool: those named, or with one named those that are found beside it.
pub(crate) fn family(named: &impl Files) -> Result<Vec<PathBuf>> {
    let named = named.paths();
    let [only] = &named[..] else {
        return Ok(named);
    };
    // A file without a good header is passed on: the code that opens it reports the fault.
    let Some(header) = File::open(only).ok().and_then(|file| header_of(&file, only).ok()) else {
        return Ok(named);
    };
    if header.devices <= 1 {
        return Ok(named);
    }
    let mut found: Vec<Option<PathBuf>> = vec![None; usize::from(header.devices)];
    found[usize::from(header.device)] = Some(only.clone());
    let folder = only.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let list = std::fs::read_dir(folder);
    let list = list.map_err(|source| Error::File { action: "list", path: folder.to_owned(), source })?;
    for path in list.flatten().filter(|one| one.file_type().is_ok_and(|kind| kind.is_file())) {
        let path = path.path();
        let Some(other) = File::open(&path).ok().and_then(|file| header_of(&file, &path).ok()) else {
            continue;
        };
        if other.uuid != header.uuid || other.devices != header.devices || other.device == header.device {
            continue;
        }
        let place = &mut found[usize::from(other.device)];
        if let Some(first) = place {
            return Err(Error::Argument {
                what: format!(
                    "{} and {} both say that they are device {} of the pool: name all of its {} files",
                    first.display(),
                    path.display(),
                    other.device,
                    header.devices
                ),
            });
        }
        *place = Some(path);
    }
    let missing: Vec<String> =
        (0..found.len()).filter(|at| found[*at].is_none()).map(|at| at.to_string()).collect();
    if !missing.is_empty() {
        return Err(Error::Argument {
            what: format!(
                "{} is device {} of a pool that is interleaved over {} files, and device {} is not in its folder: name all of them",
                only.display(),
                header.device,
                header.devices,
                missing.join(", ")
            ),
        });
    }
    Ok(found.into_iter().flatten().collect())
}
