// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `jobs/PROGRAM/PERCENT` and `gapbs/KERNEL/PERCENT`: whole programs of others at a share of their need, against swap on zram with
//! equal real memory.
//!
//! - **Flow** the program alone ──▶ its need, its CPU, its checksum ──▶ a limit at which group and device together stay within the
//!   budget ──▶ pairs of whole runs
//! - **Counts** `faults` pages that came back (from the store or the spill file), `swap_ins` pages that the kernel swapped in, `faults_percent` of them: medians. `alone_percent`: the
//!   CPU that the program takes alone, as a share of ours
//! - **CPU** what the program's processes took. What the kernel's own threads do for zram beside them is not counted, nor the time
//!   of `memlift run` itself, which starts no work for a page
//! - **Rule** a run with another checksum is counted as `wrong`

use super::group::{Group, Limit};
use super::jobrows::{Place, add, count, strings};
use super::under::{self, Budget, Ran};
use super::unknown;
use super::zram::Zram;
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::row::Stop;
use crate::statistics::median;
use crate::{BenchError, Row};

const MIB: u64 = 1 << 20;
/// Runs that look for the rival's limit.
const TRIES: u32 = 4;

/// The words of a program, a few hundred megabytes; some tens under `--quick`.
fn words(family: &str, name: &str, quick: bool) -> Option<Vec<String>> {
    let size = |small, whole| if quick { small } else { whole };
    let words: &[&str] = match name {
        kernel if family == "gapbs" => &["gapbs", kernel, size("16", "17")],
        "objects" => &["program", "objects", size("500000", "1500000")],
        "sort" => &["program", "sort", size("2000000", "6000000")],
        "java" => &["program", "java", size("500000", "2000000")],
        "ocaml" => &["program", "ocaml", size("500000", "1500000")],
        "sqlite" => &["program", "sqlite", size("300000", "900000")],
        "perl" => &["program", "perl", size("400000", "1000000")],
        "g++" => &["program", "g++", size("100", "500")],
        "pandas" => &["python", "pandas", size("800000", "2500000"), "2"],
        "xgboost" => &["python", "xgboost", size("200000", "600000"), size("2", "6")],
        _ => return None,
    };
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

/// Pages that the kernel has swapped in, on the whole machine.
fn swap_ins() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("pswpin "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// A run on swap, whose group is limited to `limit`.
fn swapped(words: &[&str], zram: &Zram, limit: u64) -> Result<Ran, Stop> {
    under::plain(words, &Group::new(Limit::Swapping(limit))?, zram.gauge())
}

/// Finds a limit at which the group and the device together stay within `budget`. Returns it, and the most that both held. Where
/// there is none from a quarter of the need up, or the kernel kills the program there, it is the budget.
fn find_limit(words: &[&str], zram: &Zram, need: u64, budget: u64) -> Result<(u64, u64), Stop> {
    let mut limit = budget;
    for _ in 0..TRIES {
        let Ok(ran) = swapped(words, zram, limit) else { break };
        let most = ran.seen.most;
        if ran.ended.killed() {
            break;
        }
        if most <= budget + budget / 100 {
            return Ok((limit, most));
        }
        // Real memory per byte on the device.
        let taken = most.saturating_sub(limit) as f64 / (need.saturating_sub(limit) as f64).max(1.0);
        let fits = (budget as f64 - need as f64 * taken) / (1.0 - taken);
        if taken > 0.99 || fits < need as f64 / 4.0 {
            break;
        }
        limit = (fits * 0.98) as u64;
    }
    Ok((budget, swapped(words, zram, budget)?.seen.most))
}

fn middle(counts: &[u64]) -> u64 {
    if counts.is_empty() { 0 } else { median(counts.iter().map(|count| *count as f64)) as u64 }
}

/// Measures one row.
pub fn row(definition: &Definition, quick: bool) -> Result<Row, Stop> {
    let unknown = || Stop::from(unknown(definition));
    let parts: Vec<&str> = definition.name.split('/').collect();
    let [family, name, percent] = parts[..] else { return Err(unknown()) };
    let percent: u64 =
        percent.parse().ok().filter(|percent| (10..=100).contains(percent)).ok_or_else(unknown)?;
    let words = words(family, name, quick).ok_or_else(unknown)?;
    let words = &strings(&words)[..];
    let place = Place::new()?;
    let alone = under::unlimited(words)?;
    let (need, checksum) = (alone.seen.most, alone.done(words)?.checksum.clone());
    let bytes = need * percent / 100;
    let zram = Zram::create("lz4", 2 * need).map_err(Stop::Missing)?;
    let (limit, most) = find_limit(words, &zram, need, bytes)?;
    let mut row = Row::new(definition);
    let (mut wrong, mut above) = (0, 0);
    let (mut faults, mut swaps) = (Vec::new(), Vec::new());
    // A row of a program of several seconds takes minutes.
    let pairs = if quick {
        1
    } else if alone.ended.wall_s > 2.5 {
        9
    } else {
        21
    };
    let samples = pairs::rounds(pairs, |side| {
        let failed = |stop| match stop {
            Stop::Failed(error) => error,
            Stop::Missing(reason) => BenchError::Engine { reason },
        };
        let ran = if side == Side::Ours {
            let budget = Budget { bytes, spill: Some(place.spill()) };
            let ran = under::budgeted(words, budget, Limit::None).map_err(failed)?;
            faults.push(ran.reported("compressed_accesses") + ran.reported("pages_unspilled"));
            above += ran.seen.above;
            ran
        } else {
            let before = swap_ins();
            let ran = swapped(words, &zram, limit).map_err(failed)?;
            swaps.push(swap_ins() - before);
            ran
        };
        wrong += u64::from(ran.done(words)?.checksum != checksum);
        Ok::<_, BenchError>(Took { seconds: ran.ended.cpu_s, cpu_s: ran.ended.cpu_s })
    })?;
    row.cpu_s = samples.cpu_s;
    let (faults, swaps) = (middle(&faults), middle(&swaps));
    add(&mut row, "wrong", wrong);
    count(&mut row, "samples_above", above);
    count(&mut row, "faults", faults);
    count(&mut row, "swap_ins", swaps);
    count(&mut row, "faults_percent", faults * 100 / swaps.max(1));
    let ours = row.cpu_s.ours.unwrap_or(f64::INFINITY);
    count(&mut row, "alone_percent", (alone.ended.cpu_s * 100.0 / ours) as u64);
    row.qualifies = format!(
        "CPU of the whole program; {} of {} MiB; zram: group limited to {} MiB, {} MiB real with the device{}",
        bytes / MIB,
        need / MIB,
        limit / MIB,
        most / MIB,
        if most > bytes + bytes / 100 { ": more than ours, since it cannot do with that" } else { "" }
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}
