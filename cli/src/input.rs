// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of the files that a verb reads, before it opens them: the same fault has the same exit code in every verb.
//!
//! - **Exit** a file that is not there: unavailable (3) · something that is not a file: usage (2) · a file that may not be read, or
//!   has other contents: failed (1). The last two, and a missing file, are reported by the code that opens it ([`Failure::about`])
//! - **Why** opening a named pipe waits for a writer, so the kind is looked at first

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::failure::Failure;
use crate::output::kind_name;

/// Refuses a path that leads to anything but a plain file. A path that leads nowhere passes.
///
/// # Errors
///
/// [`Failure::Usage`]: there is a folder, a pipe, a socket or a device.
pub fn plain(path: &Path) -> Result<(), Failure> {
    refuse(path, |found| !found.is_file())
}

/// Refuses a path that leads to anything but a plain file or a pipe without a name, which somebody has already opened: `/dev/stdin`
/// behind another command, or a shell's `<(command)`. To open a pipe with a name would wait for its writer.
///
/// # Errors
///
/// [`Failure::Usage`]: there is a folder, a pipe with a name, a socket or a device.
pub fn plain_or_piped(path: &Path) -> Result<(), Failure> {
    refuse(path, |found| {
        let is_nameless = found.file_type().is_fifo() && std::fs::canonicalize(path).is_err();
        !found.is_file() && !is_nameless
    })
}

/// Refuses a path that leads to a folder. A pipe passes, so that a shell's `<(command)` can stand for a text file.
///
/// # Errors
///
/// [`Failure::Usage`]: there is a folder.
pub fn stream(path: &Path) -> Result<(), Failure> {
    refuse(path, std::fs::Metadata::is_dir)
}

fn refuse(path: &Path, refused: impl Fn(&std::fs::Metadata) -> bool) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(found) if refused(&found) => Err(Failure::Usage(format!(
            "{}: it is {}: name a plain file",
            path.display(),
            kind_name(found.file_type())
        ))),
        _ => Ok(()),
    }
}
