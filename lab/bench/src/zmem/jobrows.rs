// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of whole jobs: whether they stay in their budget and survive a limit that kills them otherwise, and the cost of both.
//!
//! - **Flow** a job alone and unlimited ──▶ its need and its checksum ──▶ the same under budgets ──▶ rows
//! - **Rows** `budget/JOB`: the most that the kernel saw over the budget · `survive/JOB`: a real limit of that size, plain and under
//!   memlift · `native/JOB`: CPU time inside the budget · `fair/two`: two at once
//! - **Rule** a run with another checksum is counted as `wrong`; a run that did not end well fails its row
//! - **Not here** kernels beside a file job ([`super::colocate`]), and at shares of their need ([`super::gap`])

use std::path::{Path, PathBuf};

use super::group::{Group, Limit};
use super::under::{self, Budget, Ran};
use super::{jobs, unknown};
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::row::Stop;
use crate::{BenchError, Row};

/// Share of its need that a job gets, in percent.
const SHARE: u64 = 60;
const MIB: u64 = 1 << 20;
/// Runs of a row whose verdict is a count.
const RUNS: u64 = 3;

/// A folder for files that jobs read and write and for spilled pages; kept for the row.
#[derive(Debug)]
pub(super) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Result<Place, BenchError> {
        // Not in the temporary folder, which may be memory.
        let here = std::env::current_dir().map_err(BenchError::system("finding the current folder"))?;
        let folder = tempfile::Builder::new().prefix(".memlift-bench-").tempdir_in(here);
        Ok(Place { folder: folder.map_err(BenchError::system("making a folder"))? })
    }

    pub fn file(&self, bytes: u64) -> Result<PathBuf, BenchError> {
        let path = self.folder.path().join(format!("lines-{bytes}"));
        if !path.is_file() {
            jobs::make_file(&path, bytes)?;
        }
        Ok(path)
    }

    pub fn spill(&self) -> &Path {
        self.folder.path()
    }
}

/// The words of a job by its row's name, some hundred megabytes; a few under `--quick`.
fn job(name: &str, place: &Place, quick: bool) -> Result<Option<Vec<String>>, BenchError> {
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let size = |small, whole| if quick { small } else { whole };
    Ok(match name {
        "pagerank" => words(&["graph", "pr", size("18", "20"), "16", "2"]),
        "heap" => words(&["heap", size("100000", "800000"), "4"]),
        "columns" => words(&["columns", size("1500000", "8000000"), "6"]),
        "processes" => words(&["processes", "3", "columns", size("500000", "3000000"), "6"]),
        "file" => {
            let path = place.file(if quick { 64 * MIB } else { 400 * MIB })?;
            words(&["file", &path.to_string_lossy(), "3"])
        }
        "redis" => words(&["redis", &place.spill().to_string_lossy(), size("20000", "160000")]),
        "pandas" => words(&["python", "pandas", size("300000", "2500000"), "2"]),
        "xgboost" => words(&["python", "xgboost", size("50000", "600000"), size("3", "6")]),
        _ => None,
    })
}

/// A job that ran alone and unlimited: its need in bytes and the checksum of its results.
struct Alone {
    need: u64,
    checksum: String,
    ran: Ran,
}

fn alone(words: &[&str]) -> Result<Alone, Stop> {
    let ran = under::unlimited(words)?;
    let checksum = ran.done(words)?.checksum.clone();
    Ok(Alone { need: ran.seen.most, checksum, ran })
}

pub(super) fn count(row: &mut Row, name: &str, value: u64) {
    row.count.insert(name.to_owned(), value);
}

pub(super) fn add(row: &mut Row, name: &str, value: u64) {
    *row.count.entry(name.to_owned()).or_default() += value;
}

/// Adds the counts of a run to the row's.
pub(super) fn note(row: &mut Row, ran: &Ran, checksum: &str, words: &[&str]) -> Result<(), BenchError> {
    let right = ran.done(words)?.checksum == checksum;
    add(row, "wrong", u64::from(!right));
    for name in ["faults", "pages_stored", "pages_spilled", "compressed_memory_faults"] {
        count(row, name, ran.reported(name));
    }
    Ok(())
}

/// Measures one row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let place = Place::new()?;
    let parts: Vec<&str> = definition.name.split('/').collect();
    let words_of = |name: &str| job(name, &place, quick)?.ok_or_else(|| Stop::from(unknown(definition)));
    match parts[..] {
        ["budget", name] => budget(definition, &words_of(name)?, &place, quick),
        ["survive", name] => survive(definition, &words_of(name)?, &place, quick),
        ["native", name] => native(definition, &words_of(name)?, quick),
        ["fair", "two"] => fair(definition, &words_of("columns")?, quick),
        _ => Err(unknown(definition).into()),
    }
}

pub(super) fn strings(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn budget(definition: &Definition, words: &[String], place: &Place, quick: bool) -> Result<Row, Stop> {
    let words = &strings(words)[..];
    let alone = alone(words)?;
    let bytes = alone.need * SHARE / 100;
    let mut row = Row::new(definition);
    let (mut most, mut samples) = (0, 0);
    for _ in 0..if quick { 1 } else { RUNS } {
        let ran = under::budgeted(words, Budget { bytes, spill: Some(place.spill()) }, Limit::None)?;
        note(&mut row, &ran, &alone.checksum, words)?;
        add(&mut row, "samples_above", ran.seen.above);
        most = ran.seen.most.max(most);
        samples += ran.seen.samples;
        row.cpu_s.ours = Some(ran.ended.cpu_s);
    }
    row.cpu_s.theirs = Some(alone.ran.ended.cpu_s);
    row.ours = Some(most as f64 / bytes as f64);
    row.theirs = Some(1.0);
    row.ratio = row.ours.map(f64::recip);
    row.qualifies = format!(
        "needs {} MiB alone, budget {} MiB, {samples} samples at 1 kHz of its cgroup's usage, caches and supervisor included; no limit of \
         the kernel's",
        alone.need / MIB,
        bytes / MIB
    );
    row.verdict = definition.judge(&row, quick);
    Ok(row)
}

fn survive(definition: &Definition, words: &[String], place: &Place, quick: bool) -> Result<Row, Stop> {
    let words = &strings(words)[..];
    let alone = alone(words)?;
    let limit = alone.need * SHARE / 100;
    let group = Group::new(Limit::Hard(limit))?;
    let plain = under::plain(words, &group, || 0)?;
    drop(group);
    let mut row = Row::new(definition);
    let runs = if quick { 1 } else { RUNS };
    let mut well = 0;
    for _ in 0..runs {
        // The budget leaves a headroom below the limit: 1/32 of it, at least 4 MiB.
        let bytes = limit - (limit / 32).max(4 * MIB);
        let ran = under::budgeted(words, Budget { bytes, spill: Some(place.spill()) }, Limit::Hard(limit))?;
        add(&mut row, "kills", ran.kills + u64::from(ran.ended.killed()));
        note(&mut row, &ran, &alone.checksum, words)?;
        well += u64::from(ran.ended.status.success());
        let percent = 100.0 * ran.ended.wall_s / alone.ran.ended.wall_s;
        count(&mut row, "percent_of_time_alone", percent as u64);
        row.cpu_s.ours = Some(ran.ended.cpu_s);
    }
    row.cpu_s.theirs = Some(alone.ran.ended.cpu_s);
    row.ours = Some(well as f64 / runs as f64);
    row.theirs = Some(f64::from(u8::from(plain.ended.status.success())));
    row.qualifies = format!(
        "needs {} MiB, the kernel's limit is {} MiB, no swap; without memlift: {}",
        alone.need / MIB,
        limit / MIB,
        if plain.ended.status.success() {
            "it ended well too".to_owned()
        } else {
            plain.ended.status.to_string()
        }
    );
    row.verdict = definition.judge(&row, quick);
    Ok(row)
}

fn native(definition: &Definition, words: &[String], quick: bool) -> Result<Row, Stop> {
    let words = &strings(words)[..];
    let alone = alone(words)?;
    let bytes = alone.need * 2;
    let mut row = Row::new(definition);
    let (mut extra, mut own) = (0, alone.ran.ended.faults.max(1));
    let mut stop = None;
    // A row of a job of several seconds takes minutes.
    let pairs = if quick {
        1
    } else if alone.ran.ended.wall_s > 2.5 {
        9
    } else {
        21
    };
    let samples = pairs::rounds(pairs, |side| {
        let ran = match side {
            Side::Ours => under::budgeted(words, Budget { bytes, spill: None }, Limit::None),
            Side::Theirs => under::unlimited(words),
        };
        let ran = match ran {
            Ok(ran) => ran,
            Err(Stop::Failed(error)) => return Err(error),
            Err(missing) => {
                stop = Some(missing);
                return Err(BenchError::Engine { reason: "stopped".to_owned() });
            }
        };
        let done = ran.done(words)?;
        let wrong = u64::from(done.checksum != alone.checksum);
        add(&mut row, "wrong", wrong);
        match side {
            Side::Ours => extra = ran.ended.faults,
            Side::Theirs => own = ran.ended.faults.max(1),
        }
        Ok(Took { seconds: ran.ended.cpu_s, cpu_s: ran.ended.cpu_s })
    });
    if let Some(stop) = stop {
        return Err(stop);
    }
    let samples = samples?;
    row.cpu_s = samples.cpu_s;
    count(&mut row, "extra_faults", extra.saturating_sub(own) * 1000 / own);
    count(&mut row, "page_faults", extra);
    count(&mut row, "theirs_page_faults", own);
    row.qualifies =
        format!("needs {} MiB, budget twice that; CPU time of job and supervisor", alone.need / MIB);
    Ok(row.measured(definition, &samples.pairs, quick))
}

fn fair(definition: &Definition, words: &[String], quick: bool) -> Result<Row, Stop> {
    let words = &strings(words)[..];
    let alone = alone(words)?;
    let bytes = alone.need * SHARE / 100;
    let mut row = Row::new(definition);
    let mut pairs = Vec::new();
    for _ in 0..if quick { 1 } else { 21 } {
        let one = || under::budgeted(words, Budget { bytes, spill: None }, Limit::None);
        let (first, second) = std::thread::scope(|scope| {
            let other = scope.spawn(one);
            let first = one();
            (first, other.join())
        });
        let second = second.map_err(|_| BenchError::Engine { reason: "a thread panicked".to_owned() })?;
        let (first, second) = (first?, second?);
        note(&mut row, &first, &alone.checksum, words)?;
        note(&mut row, &second, &alone.checksum, words)?;
        let (one, two) = (first.ended.wall_s, second.ended.wall_s);
        // The slower one is ours: a ratio of 1 is perfect fairness.
        pairs.push((one.max(two), one.min(two)));
    }
    row.qualifies = format!("two equal jobs, {} MiB each of {} MiB needed", bytes / MIB, alone.need / MIB);
    Ok(row.measured(definition, &pairs, quick))
}
