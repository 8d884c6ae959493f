// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool create`: a new, empty pool.

use std::path::Path;

use memlift::persist::{Mechanism, Options, Pool};
use serde_json::json;

use super::{failure, info, target_folder};
use crate::failure::Failure;
use crate::print;

/// Returns the options of the pool to create.
pub fn options(size: u64, mechanism: Mechanism, lanes: u32, lane_bytes: u64, sections: u32) -> Options {
    let plain = Options::default();
    let max_bytes = plain.max_bytes.max(size);
    Options { heap_bytes: size, max_bytes, mechanism, lanes, lane_bytes, sections, ..plain }
}

/// Creates a pool, and prints its durability guarantee on this disk.
pub fn create(path: &Path, options: &Options, as_json: bool) -> Result<(), Failure> {
    target_folder(path)?;
    let pool = Pool::create(path, options).map_err(failure(path))?;
    let (header, guarantee) = (pool.header(), pool.guarantee());
    pool.close().map_err(failure(path))?;
    if as_json {
        return print::json(&json!({
            "path": path, "header": info::header(&header), "file_bytes": header.file_bytes(),
            "guarantee": info::guarantee(&guarantee),
        }));
    }
    print::line(&format!(
        "{}: {}, heap of {}, {} in the file\n  {guarantee}",
        path.display(),
        options.mechanism.name(),
        print::bytes(header.heap_bytes),
        print::bytes(header.file_bytes())
    ))
}
