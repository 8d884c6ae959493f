// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the measured rows: `lab/bench/record/<cpu, family and model>/<date>.jsonl` of the checkout around the current folder.
//!
//! - **Layout** one JSON object per row: the row's fields, and under `machine` the CPU, its cores, the kernel, the
//!   time (UTC) and the version of memlift
//! - **Order** lines are appended; nothing is ever rewritten

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use memlift_cli::date::date;

use crate::{BenchError, Row, machine};

/// Appends the rows; gives the file.
pub fn append(rows: &[Row]) -> Result<PathBuf, BenchError> {
    let folder = checkout()?.join("lab/bench/record").join(machine::cpu_folder());
    fs::create_dir_all(&folder).map_err(BenchError::file(&folder))?;
    let time = now();
    let path = folder.join(format!("{}.jsonl", &time[..10]));
    let machine = serde_json::json!({
        "cpu": machine::cpu_name(),
        "cores": machine::cores(),
        "kernel": machine::kernel(),
        "time": time,
        "version": env!("CARGO_PKG_VERSION"),
    });
    let mut text = String::new();
    for row in rows {
        let mut line = serde_json::to_value(row).expect("a row is plain data");
        line["machine"] = machine.clone();
        text.push_str(&line.to_string());
        text.push('\n');
    }
    let mut file =
        OpenOptions::new().create(true).append(true).open(&path).map_err(BenchError::file(&path))?;
    file.write_all(text.as_bytes()).map_err(BenchError::file(&path))?;
    Ok(path)
}

/// Now, as 2000-02-29T12:34:56Z.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{}T{:02}:{:02}:{:02}Z", date(seconds), seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// The nearest folder upwards that holds lab/bench/definitions.
pub(crate) fn checkout() -> Result<PathBuf, BenchError> {
    let here = std::env::current_dir().map_err(BenchError::system("finding the current folder"))?;
    here.ancestors()
        .find(|folder| folder.join("lab/bench/definitions").is_dir() && folder.join("Cargo.toml").is_file())
        .map(PathBuf::from)
        .ok_or(BenchError::NoCheckout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_runs_in_a_checkout() {
        assert!(checkout().expect("found upwards").join("lab/bench/definitions/copy.toml").is_file());
    }
}
