// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool that is interleaved over two files: synchronisation of the second one is put off, or asked for by every commit.
//!
//! - **Flow** `run`: a transaction overwrites a record of each of two arrays, which lie in different files; durable when it returns ·
//!   what is left of the log goes to its place, within the window
//! - **Way** `delayed`: a commit syncs the file of the log, all others when the log is to forget · `software_sync`: every commit
//!   syncs every file (NearPM's MD SW-sync)
//! - **Counts** syncs of each file, of all transactions of the last run and, rounded up, of a hundred of them

use std::path::Path;

use memlift_persist::{Domain, Options, PSlice, Persist, Pool, View};

use super::{about, failed};
use crate::persist::draw::{Draw, RECORD_BYTES};
use crate::persist::party::Ran;
use crate::persist::serve::{self, Work};
use crate::{BenchError, reference};

const RECORDS: u64 = 1024;
const STRIPE_BYTES: u64 = 1 << 20;
const LANE_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, Persist)]
#[repr(C, align(64))]
struct Record {
    bytes: [u8; RECORD_BYTES],
}

/// The pool and its arrays.
#[derive(Debug)]
pub struct Devices {
    pool: Pool,
    options: Options,
    arrays: [PSlice<Record>; 2],
    way: &'static str,
}

impl Devices {
    /// In new files of this folder; None for an unknown way.
    pub fn open(way: &str, folder: &Path) -> Result<Option<Devices>, BenchError> {
        let Some(way) = ["delayed", "software_sync"].into_iter().find(|one| *one == way) else {
            return Ok(None);
        };
        let options = Options {
            heap_bytes: 8 << 20,
            max_bytes: 8 << 20,
            lanes: 2,
            lane_bytes: LANE_BYTES,
            stripe_bytes: STRIPE_BYTES,
            domain: Domain::Pages,
            sync_every_device: way == "software_sync",
            prefault: true,
            ..Options::default()
        };
        let files = ["first.pool", "second.pool"].map(|name| folder.join(name));
        let pool = Pool::create_interleaved(&files, &options).map_err(failed)?;
        let zero = vec![Record { bytes: [0; RECORD_BYTES] }; RECORDS as usize];
        // Filler, allocated until the second array lies in a stripe of the other file.
        let between = vec![0u8; 32 << 10];
        let mut arrays = [PSlice::EMPTY; 2];
        arrays[0] = pool.tx(|t| t.alloc_slice(&zero)).map_err(failed)?;
        let file = |array: PSlice<Record>| array.offset() / STRIPE_BYTES % 2;
        loop {
            arrays[1] = pool.tx(|t| t.alloc_slice(&zero)).map_err(failed)?;
            if file(arrays[0]) != file(arrays[1]) {
                break;
            }
            pool.tx(|t| t.alloc_slice(&between)).map_err(failed)?;
        }
        pool.apply().map_err(failed)?;
        Ok(Some(Devices { pool, options, arrays, way }))
    }

    fn transaction(&self, draw: &mut Draw) -> Result<(), BenchError> {
        let committed = self.pool.tx(|t| {
            for array in self.arrays {
                let place = t.slice_part_mut(array, draw.next() % RECORDS, 1)?;
                reference::pattern_of(&mut place[0].bytes, draw.next());
            }
            Ok(())
        });
        committed.map_err(failed)
    }

    fn sum(&self) -> Result<u64, BenchError> {
        let bytes = self.pool.read(|r| {
            let mut bytes = Vec::new();
            for array in self.arrays {
                r.slice(array)?.iter().for_each(|record| bytes.extend_from_slice(&record.bytes));
            }
            Ok(bytes)
        });
        Ok(reference::checksum_of(&bytes.map_err(failed)?))
    }
}

impl Work for Devices {
    fn about(&self) -> String {
        let way = if self.way == "delayed" {
            "the second file is synced when the log is to forget"
        } else {
            "every commit syncs both files"
        };
        format!("{}, two files in stripes of 1 MiB, {way}", about(&self.pool, &self.options))
    }

    fn run(&mut self, seed: u64, count: u64) -> Result<Ran, BenchError> {
        let mut draw = Draw::new(seed);
        let before = self.pool.device_syncs();
        let ran = serve::timed(|| {
            (0..count).try_for_each(|_| self.transaction(&mut draw))?;
            self.pool.apply().map_err(failed)
        })?;
        let after = self.pool.device_syncs();
        let syncs = |at: usize| after[at] - before[at];
        let counts = [
            ("transactions", count),
            ("syncs_first", syncs(0)),
            ("syncs_second", syncs(1)),
            ("syncs_per_100", ((syncs(0) + syncs(1)) * 100).div_ceil(count)),
        ];
        let counts = counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect();
        Ok(Ran { checksum: serve::checksum(self.sum()?), counts, ..ran })
    }

    fn step(&mut self, _stop: &dyn Fn()) -> Result<u64, BenchError> {
        Err(BenchError::Engine {
            reason: "a sync is no instruction; devices are not stepped through".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persist::disk::Folder;

    #[test]
    fn both_ways_leave_the_same_and_the_delayed_one_syncs_less() {
        let folder = Folder::new().expect("a disk");
        let ran = ["delayed", "software_sync"].map(|way| {
            let place = folder.path.join(way);
            std::fs::create_dir_all(&place).expect("made");
            Devices::open(way, &place).expect("opens").expect("a way").run(1, 20).expect("runs")
        });
        assert_eq!(ran[0].checksum, ran[1].checksum);
        assert!(ran[0].counts["syncs_second"] < 20 && ran[1].counts["syncs_second"] >= 20, "{ran:?}");
        assert!(Devices::open("never", &folder.path).expect("opens").is_none());
    }
}
