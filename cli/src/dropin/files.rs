// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that enable writes: recognized by their first line, so that files of others are never overwritten.
//!
//! - **Layout** the first line is [`MARKER`] and the FNV-1a hash of the rest. A file without it belongs to somebody else; one with another
//!   hash was edited
//! - **Order** complete before it has its name
//! - **Not here** the contents: enable.rs

use std::fs;
use std::io::Write;
use std::path::Path;

use memlift::ground::fresh_file::FreshFile;

use crate::failure::Failure;

const MARKER: &str = "# memlift dropin 1 ";

/// Returns the FNV-1a hash of a text, which shows if a file is unchanged.
pub fn sum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Puts the marker line in front of a text.
pub fn marked(text: &str) -> String {
    format!("{MARKER}{:016x}\n{text}", sum(text))
}

/// Owner of a file at one of our paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileOwner {
    /// There is no file.
    Missing,
    /// The file is as memlift wrote it.
    Ours,
    /// Memlift wrote the file, and somebody changed it.
    Edited,
    /// Memlift did not write the file.
    Foreign,
}

/// Finds out who wrote the file at `path`.
pub fn owner_of(path: &Path) -> Result<FileOwner, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(FileOwner::Missing),
        Err(error) => return Err(Failure::Failed(format!("{}: {error}", path.display()))),
    };
    let Some((first, rest)) = text.split_once('\n') else { return Ok(FileOwner::Foreign) };
    Ok(match first.strip_prefix(MARKER) {
        None => FileOwner::Foreign,
        Some(stated) if u64::from_str_radix(stated, 16) == Ok(sum(rest)) => FileOwner::Ours,
        Some(_) => FileOwner::Edited,
    })
}

/// Returns an error for a file that is not as memlift wrote it.
pub fn refuse_foreign(path: &Path) -> Result<FileOwner, Failure> {
    let why = match owner_of(path)? {
        FileOwner::Foreign => "was not written by memlift",
        FileOwner::Edited => "was edited since memlift wrote it",
        owner => return Ok(owner),
    };
    Err(Failure::Failed(format!("{} {why}: it stays as it is; move it away first", path.display())))
}

/// Writes a file, which appears under its name once it is complete.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let root = if error.kind() == std::io::ErrorKind::PermissionDenied {
            "; units of the system need root (sudo)"
        } else {
            ""
        };
        Failure::Failed(format!("{}: {error}{root}", path.display()))
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(failed)?;
    let fresh = FreshFile::create(path, 0o666).map_err(failed)?;
    fresh.file().write_all(text.as_bytes()).map_err(failed)?;
    fresh.publish(true).map_err(failed)
}
