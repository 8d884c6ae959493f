// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lower bounds of a commit's cost: one loaded fence, and one sync of a file.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::draw::Draw;
use super::party::Ran;
use super::serve::{self, Work};
use crate::area::Area;
use crate::{BenchError, reference};

/// Bytes that the stores and writes cycle through: more than a log's head, less than a second-level cache.
const ROUND_BYTES: usize = 1 << 20;
/// Bytes of a write before a sync: the record of a transaction with 64 bytes.
const WRITE_BYTES: usize = 128;

/// A prefaulted mapping of a new file at `path`, whose name is removed at once.
pub fn shared(path: &Path, bytes: usize) -> Result<Area, BenchError> {
    let fail = |error| BenchError::File { path: path.to_owned(), source: error };
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(fail)?;
    fs::remove_file(path).map_err(fail)?;
    file.set_len(bytes as u64).map_err(fail)?;
    Area::open(file.into(), bytes)
}

/// Stores past the cache, then fences.
#[derive(Debug)]
pub struct Fence {
    area: Area,
    bytes: usize,
}

impl Fence {
    /// `bytes` per fence, whole lines.
    pub fn open(bytes: usize, path: &Path) -> Result<Fence, BenchError> {
        Ok(Fence { area: shared(path, ROUND_BYTES)?, bytes })
    }

    fn fence(&self, turn: u64, word: u64) {
        let slots = self.area.bytes() / self.bytes;
        reference::stream_fence(self.area.part(turn as usize % slots * self.bytes, self.bytes), word);
    }
}

impl Work for Fence {
    fn about(&self) -> String {
        format!("{} B stored past the cache and one fence", self.bytes)
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        serve::timed(|| {
            (0..count).for_each(|turn| self.fence(turn, draw.next()));
            Ok(())
        })
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        stop();
        stop();
        self.fence(0, 1);
        stop();
        Ok(1)
    }
}

/// Writes to a file that has all its blocks, then syncs its data.
#[derive(Debug)]
pub struct Sync {
    file: File,
    written: usize,
}

impl Sync {
    /// A new file in this folder.
    pub fn open(folder: &Path) -> Result<Sync, BenchError> {
        let path = folder.join("sync");
        let fail = |error| BenchError::File { path: path.clone(), source: error };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(fail)?;
        fs::remove_file(&path).map_err(fail)?;
        file.write_all_at(&vec![1; ROUND_BYTES], 0).and_then(|()| file.sync_all()).map_err(fail)?;
        Ok(Sync { file, written: 0 })
    }

    fn sync(&mut self, word: u64) -> Result<(), BenchError> {
        let mut bytes = [0; WRITE_BYTES];
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        self.file
            .write_all_at(&bytes, (self.written % ROUND_BYTES) as u64)
            .and_then(|()| self.file.sync_data())
            .map_err(BenchError::system("writing and syncing a file"))?;
        self.written += WRITE_BYTES;
        Ok(())
    }
}

impl Work for Sync {
    fn about(&self) -> String {
        format!("one pwrite of {WRITE_BYTES} B into allocated blocks and one fdatasync")
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        serve::timed(|| (0..count).try_for_each(|_| self.sync(draw.next())))
    }

    fn step(&mut self, stop: &dyn Fn()) -> Result<u64, BenchError> {
        stop();
        stop();
        self.sync(1)?;
        stop();
        Ok(1)
    }
}
