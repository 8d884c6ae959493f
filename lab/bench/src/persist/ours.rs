// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memlift as a party: what it shares between its workloads.

pub mod devices;
pub mod fences;
pub mod maps;
pub mod opening;
pub mod pages;
pub mod readers;
pub mod records;
#[cfg(feature = "replicate")]
pub mod replicas;
pub mod stores;
pub mod words;

use std::path::Path;

use memlift_persist::{Error, Options, Pool};

use crate::BenchError;

/// Turns a pool's error into one of the bench.
pub fn failed(error: Error) -> BenchError {
    BenchError::Engine { reason: error.to_string() }
}

/// Makes a new pool and touches every page. In memory its name is removed at once, so that nothing is left however this process
/// ends.
pub fn create(path: &Path, options: &Options) -> Result<Pool, BenchError> {
    let pool = Pool::create(path, &Options { prefault: true, ..options.clone() }).map_err(failed)?;
    std::fs::remove_file(path).map_err(BenchError::file(path))?;
    Ok(pool)
}

/// Describes how it is configured, and what memory it takes beside the file.
pub fn about(pool: &Pool, options: &Options) -> String {
    format!(
        "memlift {}, {}, {}, {} lanes of {} KiB, prefaulted, a mirror of {} MiB in memory",
        env!("CARGO_PKG_VERSION"),
        pool.mechanism().name(),
        pool.guarantee(),
        options.lanes,
        options.lane_bytes >> 10,
        options.heap_bytes >> 20,
    )
}
