// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the measured rows: `bench/record/<cpu, family and model>/<date>.jsonl` of the checkout around the current folder.
//!
//! - **Layout** one JSON object per row: the row's fields, and under `machine` the CPU, its cores, the kernel, the
//!   time (UTC) and the version of memlift
//! - **Order** lines are appended; nothing is ever rewritten

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{BenchError, Row, machine};

/// Appends the rows; gives the file.
pub fn append(rows: &[Row]) -> Result<PathBuf, BenchError> {
    let folder = checkout()?.join("bench/record").join(machine::cpu_folder());
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

/// The nearest folder upwards that holds bench/definitions.
pub(crate) fn checkout() -> Result<PathBuf, BenchError> {
    let here = std::env::current_dir().map_err(BenchError::system("finding the current folder"))?;
    here.ancestors()
        .find(|folder| folder.join("bench/definitions").is_dir() && folder.join("Cargo.toml").is_file())
        .map(PathBuf::from)
        .ok_or(BenchError::NoCheckout)
}

/// Year-month-day (UTC) of seconds since 1970. Source: Howard Hinnant, chrono-compatible low-level date algorithms.
pub fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(4_107_542_400), "2100-03-01");
        assert_eq!(date(1_767_225_599), "2025-12-31");
    }

    #[test]
    fn this_test_runs_in_a_checkout() {
        assert!(checkout().expect("found upwards").join("bench/definitions/copy.toml").is_file());
    }
}
