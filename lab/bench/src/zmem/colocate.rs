// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `colocate/SIZE`: the paper's experiment (DMU §V.A, figure 19): a graph kernel with a budget beside a job that holds a file in
//! memory, small, medium or large. What the second job holds must not change what the first one meets.
//!
//! - **Flow** job 2 starts and has read its file ─▶ each kernel once as job 1 ─▶ the same beside the small file ─▶ by turns, in both orders
//! - **Rows** against `small`: job 1's faults, CPU time beside them · against `zram_lz4`: the share of its speed (CPU time) that job 1 keeps,
//!   ours over that of both jobs in one group on swap to zram
//! - **Zram** both jobs in one group whose limit is half of the two budgets together; the device comes on top, and the row says
//!   how much it took
//! - **Size** a quarter of the paper's files and of its 400 MB for job 2, kernels of scale 17: the paper's take a quarter of an hour a row on two
//!   cores. Rounds are begun until [`ENOUGH`] is over, at least one
//! - **Rule** a run with another checksum is counted as `wrong`

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::group::{Group, Limit, Sampler};
use super::jobrows::{Place, add, count, note};
use super::under::{self, Budget, Ran, Running};
use super::unknown;
use super::zram::Zram;
use crate::definition::Definition;
use crate::row::Stop;
use crate::statistics::{Pair, median};
use crate::{Row, machine};

const MIB: u64 = 1 << 20;
/// No round is begun after so long.
const ENOUGH: Duration = Duration::from_secs(90);

/// Job 1, with 4/7 of its need as in the paper: 40 of 70 MB.
struct First {
    words: [&'static str; 5],
    budget: u64,
    checksum: String,
}

impl First {
    fn all(quick: bool) -> Result<Vec<First>, Stop> {
        let kernels = if quick { &["bfs"][..] } else { &["bfs", "sssp", "pr", "cc"][..] };
        kernels
            .iter()
            .map(|kernel| {
                let degree = if *kernel == "sssp" { "12" } else { "20" };
                let words = ["graph", kernel, "17", degree, "1"];
                let alone = under::unlimited(&words)?;
                let checksum = alone.done(&words)?.checksum.clone();
                Ok(First { words, budget: alone.seen.most * 4 / 7, checksum })
            })
            .collect()
    }
}

/// Environment that runs both jobs.
enum Host<'a> {
    Memlift { place: &'a Place, second: u64 },
    Zram { group: &'a Group },
}

impl Host<'_> {
    /// All first jobs beside a file; their runs.
    fn run(&self, firsts: &[First], file: &Path) -> Result<Vec<Ran>, Stop> {
        let text = file.to_string_lossy().into_owned();
        let words = ["file", &text, "endless"];
        match self {
            Host::Memlift { place, second } => {
                let budget = Budget { bytes: *second, spill: Some(place.spill()) };
                let _second = Running::budgeted(&words, budget)?;
                let one = |first: &First| {
                    let budget = Budget { bytes: first.budget, spill: Some(place.spill()) };
                    under::budgeted(&first.words, budget, Limit::None)
                };
                firsts.iter().map(one).collect()
            }
            Host::Zram { group } => {
                let (one, two) = (group.child("first")?, group.child("second")?);
                let _second = Running::inside(&words, &two)?;
                firsts.iter().map(|first| under::plain(&first.words, &one, || 0)).collect()
            }
        }
    }
}

/// Runs rounds of all kernels beside both files; in every second round the small file comes first.
fn rounds(
    count: usize,
    host: &Host,
    firsts: &[First],
    files: [&Path; 2],
) -> Result<Vec<[Vec<Ran>; 2]>, Stop> {
    let begun = Instant::now();
    (0..count)
        .take_while(|round| *round == 0 || begun.elapsed() < ENOUGH)
        .map(|round| {
            let [other, small] = files;
            Ok(if round % 2 == 0 {
                let small = host.run(firsts, small)?;
                [host.run(firsts, other)?, small]
            } else {
                let other = host.run(firsts, other)?;
                [other, host.run(firsts, small)?]
            })
        })
        .collect()
}

/// Pairs a number of job 1 beside the other file with the one beside the small file, kernel by kernel.
fn pairs(rounds: &[[Vec<Ran>; 2]], number: impl Fn(&Ran) -> f64) -> Vec<Pair> {
    rounds
        .iter()
        .flat_map(|[other, small]| other.iter().zip(small))
        .map(|(other, small)| (number(other), number(small)))
        .collect()
}

/// Returns the share of its speed that job 1 keeps beside the other file, from one kernel's medians.
fn kept(rounds: &[[Vec<Ran>; 2]], kernel: usize) -> f64 {
    let cpu = |index: usize| median(rounds.iter().map(|round| round[index][kernel].ended.cpu_s));
    cpu(1) / cpu(0)
}

/// Measures one row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let place = Place::new()?;
    let file = |size: &str| -> Result<PathBuf, Stop> {
        let bytes = match size {
            "small" => 150 * MIB,
            "medium" => 200 * MIB,
            "large" => 512 * MIB,
            _ => return Err(Stop::from(unknown(definition))),
        };
        Ok(place.file(if quick { bytes / 4 } else { bytes })?)
    };
    let size = definition.name.rsplit('/').next().unwrap_or_default();
    let (other, small) = (file(size)?, file("small")?);
    let files = [other.as_path(), small.as_path()];
    let firsts = First::all(quick)?;
    // Of the 400 MB that it gets in the paper.
    let second = if quick { 25 * MIB } else { 100 * MIB };
    let ours = Host::Memlift { place: &place, second };
    let mut row = Row::new(definition);
    let budgets = format!(
        "{} kernels at 4/7 of their need ({} to {} MiB) beside a file job with {} MiB, files of a quarter of \
         the paper's sizes; {} cores",
        firsts.len(),
        firsts.iter().map(|first| first.budget / MIB).min().unwrap_or(0),
        firsts.iter().map(|first| first.budget / MIB).max().unwrap_or(0),
        second / MIB,
        machine::cores()
    );
    let check = |row: &mut Row, rounds: &[[Vec<Ran>; 2]]| -> Result<(), Stop> {
        for ran in rounds.iter().flatten() {
            for (ran, first) in ran.iter().zip(&firsts) {
                note(row, ran, &first.checksum, &first.words)?;
            }
        }
        Ok(())
    };
    if definition.rival == "small" {
        let measured = rounds(if quick { 1 } else { 6 }, &ours, &firsts, files)?;
        check(&mut row, &measured)?;
        let cpu = pairs(&measured, |ran| ran.ended.cpu_s);
        row.cpu_s.ours = Some(median(cpu.iter().map(|pair| pair.0)));
        row.cpu_s.theirs = Some(median(cpu.iter().map(|pair| pair.1)));
        let sum = |side: fn(&Pair) -> f64| cpu.iter().map(side).sum::<f64>();
        count(&mut row, "cpu_kept_permille", (1000.0 * sum(|pair| pair.1) / sum(|pair| pair.0)) as u64);
        for ran in measured.iter().flatten().flatten() {
            add(&mut row, "samples_above", ran.seen.above);
        }
        row.qualifies = format!("faults of job 1, {} rounds of {budgets}", measured.len());
        let faults = pairs(&measured, |ran| ran.reported("faults").max(1) as f64);
        return Ok(row.measured(definition, &faults, quick));
    }
    let zram = Zram::create("lz4", 1024 * MIB).map_err(Stop::Missing)?;
    let most = firsts.iter().map(|first| first.budget).max().unwrap_or(0);
    let limit = (second + most) / 2;
    let group = Group::new(Limit::Swapping(limit))?;
    let sampler: Sampler = group.sample_with(u64::MAX, zram.gauge());
    let count_of = if quick { 1 } else { 3 };
    let theirs = rounds(count_of, &Host::Zram { group: &group }, &firsts, files)?;
    let held = sampler.seen().most;
    let measured = rounds(count_of, &ours, &firsts, files)?;
    check(&mut row, &theirs)?;
    check(&mut row, &measured)?;
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for kernel in 0..firsts.len() {
        one.push(kept(&measured, kernel));
        two.push(kept(&theirs, kernel));
    }
    (row.ours, row.theirs) = (Some(median(one.iter().copied())), Some(median(two.iter().copied())));
    row.ratio = row.ours.zip(row.theirs).map(|(ours, theirs)| ours / theirs);
    count(&mut row, "budgets_mib", (second + most) / MIB);
    count(&mut row, "their_real_mib", held / MIB);
    row.qualifies = format!(
        "share of its speed (CPU time) that job 1 keeps, median of {budgets}, {} and {} rounds; zram: both jobs in one group limited to {} MiB, {} MiB real with the \
         device",
        measured.len(),
        theirs.len(),
        limit / MIB,
        held / MIB
    );
    row.verdict = definition.judge(&row, quick);
    Ok(row)
}
