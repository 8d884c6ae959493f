// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that is exported, packed where its name ends in .gz.
//!
//! - **Layout** gzip: members of at most [`PIECE`] bytes of text each, one behind the other, as RFC 1952 allows
//! - **Owner** the file gets its name when it is whole

use std::io::Write;
use std::path::{Path, PathBuf};

use memlift_cli::failure::Failure;
use memlift_cli::output::Output;
use memlift_kernels::deflate::{Effort, Format, Packer, bound};

/// Bytes that are written, or packed, at a time.
const PIECE: usize = 1 << 20;

/// A file under construction.
pub struct Sink {
    output: Output,
    path: PathBuf,
    held: Vec<u8>,
    /// None: the bytes stay as they are.
    packer: Option<(Packer, Vec<u8>)>,
}

impl Sink {
    /// Begins the file.
    ///
    /// # Errors
    /// It is there and `force` is false, or cannot be written.
    pub fn create(path: &Path, force: bool) -> Result<Sink, Failure> {
        let output = Output::create(path, "--export", force)?;
        let packs = path.extension().is_some_and(|end| end == "gz");
        let packer = packs.then(|| (Packer::new(), vec![0; bound(Format::Gzip, PIECE)]));
        Ok(Sink { output, path: path.to_owned(), held: Vec::with_capacity(PIECE), packer })
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while self.held.len() + bytes.len() >= PIECE {
            let (now, later) = bytes.split_at(PIECE - self.held.len());
            self.held.extend_from_slice(now);
            self.flush()?;
            bytes = later;
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let failed =
            |why: &dyn std::fmt::Display| Failure::Failed(format!("--export {}: {why}", self.path.display()));
        let bytes = match &mut self.packer {
            Some((packer, target)) => {
                let packed = packer
                    .pack(Format::Gzip, Effort::Default, &self.held, target)
                    .map_err(|_| failed(&"a piece does not fit what it is packed into"))?;
                &target[..packed]
            }
            None => &self.held[..],
        };
        let mut file = self.output.file();
        file.write_all(bytes).map_err(|error| failed(&error))?;
        self.held.clear();
        Ok(())
    }

    /// Ends the file: its name.
    ///
    /// # Errors
    /// It cannot be written, or cannot get its name.
    pub fn finish(mut self) -> Result<PathBuf, Failure> {
        // An empty file is a member, too.
        if !self.held.is_empty() || self.packer.is_some() {
            self.flush()?;
        }
        self.output.finish()?;
        Ok(self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift_kernels::deflate::Unpacker;

    #[test]
    fn packed_files_hold_what_was_written_whatever_its_length() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.gz");
        let text: Vec<u8> = (0..PIECE + PIECE / 2).map(|index| ((index * index) >> 7) as u8).collect();
        for length in [0, 1, PIECE - 1, PIECE, text.len()] {
            let mut sink = Sink::create(&path, true).expect("a file");
            text[..length].chunks(77_777).for_each(|part| sink.write(part).expect("written"));
            assert_eq!(sink.finish().expect("finished"), path);
            let packed = std::fs::read(&path).expect("read");
            let (mut from, mut unpacked) = (0, Vec::new());
            while from < packed.len() {
                let mut piece = vec![0; PIECE];
                let done = Unpacker::new().unpack(Format::Gzip, &packed[from..], &mut piece).expect("gzip");
                unpacked.extend_from_slice(&piece[..done.written]);
                from += done.read;
            }
            assert!(unpacked == text[..length], "{length}");
        }
    }
}
