// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool repair`, `convert`, `backup` and `compact`: the verbs that write a pool from a pool.
//!
//! - **Rule** except for `compact`, the source stays unchanged unless `--in-place`, or `--accept-loss` without a target, is given; a target
//!   appears complete or not at all

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use memlift::persist::convert::{self, Conversion};
use memlift::persist::{BackupOptions, Error, Options, Pool, repair};
use serde_json::{Value, json};

use super::{check, failure, info, target_folder};
use crate::failure::Failure;
use crate::print;

/// Repairs a copy or, without a target, the file itself.
pub fn repair(
    files: &[PathBuf],
    target: Option<&Path>,
    accept_loss: bool,
    as_json: bool,
) -> Result<(), Failure> {
    target.map_or(Ok(()), target_folder)?;
    let repaired = match (target, accept_loss) {
        (Some(target), false) => repair::repair(files, target),
        (Some(target), true) => repair::repair_accepting_loss(files, target),
        (None, false) => repair::repair_in_place(files),
        (None, true) => repair::repair_in_place_accepting_loss(files),
    }
    .map_err(failure(&files[0]))?;
    let (made, report) = (target.unwrap_or(&files[0]), &repaired.report);
    if as_json {
        let changes: Vec<Value> = repaired
            .changes
            .iter()
            .map(|one| json!({ "part": one.part.name(), "offset": one.offset, "what": one.what }))
            .collect();
        let sound = report.sound();
        print::json(
            &json!({ "path": made, "changes": changes, "sound": sound, "findings": check::findings(report) }),
        )?;
    } else {
        let mut lines = vec![made.display().to_string()];
        lines.extend(repaired.changes.iter().map(|change| format!("  → {change}")));
        if repaired.changes.is_empty() {
            lines.push("  ✓ nothing had to be changed".to_owned());
        }
        lines.extend(check::lines(report));
        print::line(&lines.join("\n"))?;
    }
    if report.sound() {
        return Ok(());
    }
    Err(Failure::Failed("some damage is left: the list above says what".to_owned()))
}

/// Copies a pool into a new file.
pub fn convert(files: &[PathBuf], target: &Path, args: &Conversion, as_json: bool) -> Result<(), Failure> {
    target_folder(target)?;
    let made = convert::convert(files, target, args).map_err(failure(&files[0]))?;
    if as_json {
        return print::json(&json!({
            "path": target, "source": info::header(&made.source), "target": info::header(&made.target),
            "replayed": made.replayed, "copied_bytes": made.copied,
        }));
    }
    let replayed = match made.replayed {
        0 => String::new(),
        count => format!(", {count} of its log replayed"),
    };
    print::line(&format!(
        "{}: {} of slabs copied{replayed}; {} in the file",
        target.display(),
        print::bytes(made.copied),
        print::bytes(made.target.file_bytes())
    ))
}

/// Copies a pool unchanged; the pool is only read.
pub fn backup(path: &Path, target: &Path, rate: Option<u64>, as_json: bool) -> Result<(), Failure> {
    target_folder(target)?;
    let bytes_per_second = match rate.map(NonZeroU64::new) {
        Some(None) => {
            return Err(Failure::Usage("--rate 0 copies nothing: name the bytes of a second".to_owned()));
        }
        rate => rate.flatten(),
    };
    let pool = Pool::open(path, &Options { read_only: true, ..Options::default() }).map_err(|error| match error {
        Error::InUse { .. } => Failure::Unavailable(format!(
            "{} is open in a program that lets nobody else read it: it copies it by itself, with pool.backup(\"{}\") in Python or BGSAVE of `pool serve --copies FOLDER`",
            path.display(),
            target.display()
        )),
        error => failure(path)(error),
    })?;
    let mut told = std::time::Instant::now();
    let done = pool.backup(target, BackupOptions { bytes_per_second }, |done, total| {
        if told.elapsed().as_secs() >= 1 {
            print::progress(&format!("{} of {}", print::bytes(done), print::bytes(total)));
            told = std::time::Instant::now();
        }
        true
    });
    let done = done.map_err(failure(path))?;
    if as_json {
        return print::json(&json!({ "path": path, "target": target, "bytes": done.bytes }));
    }
    print::line(&format!("{}: {} in use, read back and compared", target.display(), print::bytes(done.bytes)))
}

/// Moves a pool's objects together and gives its free blocks back to the file system.
pub fn compact(path: &Path, as_json: bool) -> Result<(), Failure> {
    let pool = Pool::open(path, &Options::default()).map_err(failure(path))?;
    let mut told = std::time::Instant::now();
    let done = pool.compact(|done, total| {
        if told.elapsed().as_secs() >= 1 {
            print::progress(&format!("{done} of {total}"));
            told = std::time::Instant::now();
        }
    });
    let done = done.map_err(failure(path))?;
    pool.close().map_err(failure(path))?;
    let freed = done.freed * memlift::persist::layout::SLAB_BYTES;
    if as_json {
        return print::json(&json!({
            "path": path, "moved": done.moved, "freed_bytes": freed, "disk_bytes_before": done.before, "disk_bytes": done.after,
        }));
    }
    print::line(&format!(
        "{}: {} objects moved, {} of the heap became free; {} on the disk, {} before",
        path.display(),
        done.moved,
        print::bytes(freed),
        print::bytes(done.after),
        print::bytes(done.before)
    ))
}
