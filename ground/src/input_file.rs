// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads files that a user or a variable named: at most a given number of bytes, whatever the path leads to.
//!
//! - **Why** `/dev/zero`, a growing log or a disk image must end in an error, not use up the machine's memory. A check of the
//!   length by `stat` is not enough: devices and pipes have no length
//! - **Not here** the contents: callers parse and validate

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a whole file of at most `most_bytes`.
///
/// # Errors
///
/// The error of the system; [`io::ErrorKind::FileTooLarge`] for a file that is longer or has no end.
pub fn bytes(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        let text = format!("it has more than the {most_bytes} bytes that such a file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Reads a whole text file of at most `most_bytes`.
///
/// # Errors
///
/// The errors of [`bytes`]; [`io::ErrorKind::InvalidData`] if the file is not UTF-8.
pub fn text(path: &Path, most_bytes: u64) -> io::Result<String> {
    String::from_utf8(bytes(path, most_bytes)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not a text: not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_and_one_byte_too_many_are_refused() {
        let endless = bytes(Path::new("/dev/zero"), 1 << 16).expect_err("it has no end");
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        std::fs::write(&path, "12345").expect("writable");
        assert_eq!(text(&path, 5).expect("it fits"), "12345");
        assert_eq!(text(&path, 4).expect_err("too long").kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&path, [0xff]).expect("writable");
        assert_eq!(text(&path, 4).expect_err("no text").kind(), io::ErrorKind::InvalidData);
    }
}
