// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of a file on a disk, written past the page cache: a write is on the disk when it returns, in one request.
//!
//! - **Flow** bytes ─▶ whole blocks: what lies before them in their first block, the bytes, zeros ─▶ one write (`O_DIRECT`, `O_DSYNC`)
//! - **Rule** what lies behind the bytes in their last block gets lost, so a lane keeps that much room ([`GAP_BYTES`]). Lanes start
//!   and end at blocks: no two share one
//! - **Owner** the last block that was written, so that the next write need not read it
//! - **Not here** large writes, and file systems that refuse these: the caller writes and syncs the file

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

/// Bytes of a block: no disk in use has larger sectors.
const BLOCK_BYTES: usize = 4096;
/// Bytes behind the log's end that a write may overwrite.
pub(super) const GAP_BYTES: u64 = BLOCK_BYTES as u64;
/// Most bytes of one write.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// See the module's header.
#[derive(Debug)]
pub(super) struct DirectLog {
    file: File,
    /// True once the file system has refused such a write.
    is_refused: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Memory for one write, and the offset of its first aligned byte.
    memory: Vec<u8>,
    start: usize,
    /// Offset in the file and content of the last block, if it is not full.
    last: Option<(u64, [u8; BLOCK_BYTES])>,
}

impl DirectLog {
    /// Opens a file once more; `None` if its file system cannot be written past the page cache.
    pub(super) fn open(file: &File) -> Option<DirectLog> {
        let flags = (rustix::fs::OFlags::DIRECT | rustix::fs::OFlags::DSYNC).bits() as i32;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).ok()?;
        let memory = vec![0; WRITE_BYTES_MAX + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        let state = Mutex::new(State { memory, start, last: None });
        Some(DirectLog { file, is_refused: AtomicBool::new(false), state })
    }

    /// Writes bytes to the file; they are on the disk then. Returns false if they are too many, or the file system refuses: nothing
    /// that counts was written.
    ///
    /// # Errors
    ///
    /// The disk's error.
    pub(super) fn write(&self, offset: u64, source: &[u8]) -> io::Result<bool> {
        let skip = offset as usize % BLOCK_BYTES;
        let first = offset - skip as u64;
        let end = skip + source.len();
        let bytes = end.next_multiple_of(BLOCK_BYTES);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { memory, start, last } = &mut *state;
        // Taken, so that it is not used after a write that this is not told of.
        let before = last.take().filter(|(at, _)| *at == first);
        if bytes > WRITE_BYTES_MAX || self.is_refused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let target = &mut memory[*start..*start + bytes];
        if skip > 0 {
            match before {
                Some((_, block)) => target[..skip].copy_from_slice(&block[..skip]),
                None => self.file.read_exact_at(&mut target[..BLOCK_BYTES], first)?,
            }
        }
        target[skip..end].copy_from_slice(source);
        target[end..].fill(0);
        match self.file.write_at(target, first) {
            Ok(count) if count == bytes => {}
            // A part of it, which has no meaning to the file system: the caller writes all of it.
            Ok(_) => return Ok(false),
            Err(error) if Errno::from_io_error(&error).is_some_and(is_refusal) => {
                self.is_refused.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        if let Some(block) = target.last_chunk().filter(|_| end < bytes) {
            *last = Some((first + (bytes - BLOCK_BYTES) as u64, *block));
        }
        Ok(true)
    }
}

/// Returns true for errors by which a file system says that it cannot do this at all, or not with blocks of this size.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of the test's file.
    const BYTES: usize = 1 << 20;

    /// Lines of a write, and whether it is made in the other way, of which [`DirectLog`] is told by what it cannot do.
    fn writes() -> impl Strategy<Value = Vec<(usize, bool)>> {
        let lines = prop_oneof![9 => 1..=9usize, 1 => 1..=600usize];
        prop::collection::vec((lines, prop::bool::weighted(0.1)), 1..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]

        #[test]
        fn the_file_has_what_was_written(writes in writes()) {
            let folder = tempfile::tempdir()?;
            let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("file"))?;
            let mut wanted = vec![7; BYTES];
            file.write_all_at(&wanted, 0)?;
            let Some(direct) = DirectLog::open(&file) else {
                println!("not run: this file system cannot be written past the page cache");
                return Ok(());
            };
            // From the middle of a block that the file has, to the end, and again from the start.
            let mut at = 100 * 64;
            for (turn, (lines, is_plain)) in writes.into_iter().enumerate() {
                let source = vec![turn as u8; lines * 64];
                at = if at + source.len() > BYTES { 0 } else { at };
                let end = at + source.len();
                let many = vec![0; WRITE_BYTES_MAX + 1];
                let is_written = direct.write(at as u64, if is_plain { &many } else { &source })?;
                prop_assert_eq!(is_written, !is_plain);
                if is_plain {
                    file.write_all_at(&source, at as u64)?;
                } else {
                    wanted[end..end.next_multiple_of(BLOCK_BYTES)].fill(0);
                }
                wanted[at..end].copy_from_slice(&source);
                at = end;
            }
            let mut found = vec![0; BYTES];
            file.read_exact_at(&mut found, 0)?;
            prop_assert!(found == wanted);
        }
    }
}
