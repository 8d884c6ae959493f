// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows `gap/KERNEL/PERCENT`: a round of a graph kernel at a share of what it needs, against itself unlimited and on swap to zram.
//!
//! - **Flow** the kernel unlimited: its graph is built, one round ─▶ its need and its checksum, kept for the kernel's rows ─▶ the same with
//!   a budget, or in a group whose limit and device together stay within the budget ─▶ rounds by turns
//! - **Rule** a round with another sum is counted as `wrong`
//! - **Zram** the limit is reckoned from what its pages compress to. Where no limit from a quarter of the need up keeps both
//!   together within the budget, the group alone is given the budget: then it has more real memory than ours, and the row says
//!   so

use super::group::Limit;
use super::jobrows::{Place, add, count};
use super::under::{Budget, Running};
use super::unknown;
use super::zram::Zram;
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::row::Stop;
use crate::{BenchError, Row};

const MIB: u64 = 1 << 20;
/// Starts that look for the rival's limit.
const TRIES: u32 = 3;

/// A kernel, unlimited.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    words: Vec<String>,
    running: Running,
    need: u64,
    checksum: String,
}

impl Kernel {
    fn start(name: &str, quick: bool) -> Result<Option<Kernel>, Stop> {
        let scale = if quick { "18" } else { "19" };
        let degree = if name == "sssp" { "8" } else { "16" };
        if !["bfs", "sssp", "pr", "cc"].contains(&name) {
            return Ok(None);
        }
        let words: Vec<String> = ["graph", name, scale, degree, "served"].map(str::to_owned).to_vec();
        let mut running = Running::plain(&strings(&words), Limit::None, || 0)?;
        let checksum = running.round()?.checksum;
        let need = running.seen().most;
        Ok(Some(Kernel { name: name.to_owned(), words, running, need, checksum }))
    }

    /// The kernel on swap, warm, whose group and device stay within `budget` if they can; and the most that they held.
    fn on_zram(&self, zram: &Zram, budget: u64) -> Result<(Running, u64, u64), Stop> {
        let words = strings(&self.words);
        let mut limit = budget;
        for _ in 0..TRIES {
            let mut running = Running::plain(&words, Limit::Swapping(limit), zram.gauge())?;
            running.round()?;
            let most = running.seen().most;
            let away = self.need.saturating_sub(limit) as f64;
            // Real memory per byte on the device.
            let taken = most.saturating_sub(limit) as f64 / away.max(1.0);
            let fits = (budget as f64 - self.need as f64 * taken) / (1.0 - taken);
            if most <= budget + budget / 100 {
                return Ok((running, limit, most));
            }
            if taken > 0.99 || fits < self.need as f64 / 4.0 {
                break;
            }
            drop(running);
            limit = (fits * 0.98) as u64;
        }
        let mut running = Running::plain(&words, Limit::Swapping(budget), zram.gauge())?;
        running.round()?;
        let most = running.seen().most;
        Ok((running, budget, most))
    }
}

fn strings(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Measures one row; `kept` is the kernel of the row before.
pub fn row(definition: &Definition, kept: &mut Option<Kernel>, quick: bool) -> Result<Row, Stop> {
    let unknown = || Stop::from(unknown(definition));
    let parts: Vec<&str> = definition.name.split('/').collect();
    let [_, name, percent] = parts[..] else { return Err(unknown()) };
    let percent: u64 =
        percent.parse().ok().filter(|percent| (10..=100).contains(percent)).ok_or_else(unknown)?;
    if kept.as_ref().is_none_or(|kernel| kernel.name != name) {
        *kept = None;
        *kept = Kernel::start(name, quick)?;
    }
    let kernel = kept.as_mut().ok_or_else(unknown)?;
    let place = Place::new()?;
    let bytes = kernel.need * percent / 100;
    let budget = Budget { bytes, spill: Some(place.spill()) };
    let mut ours = Running::budgeted(&strings(&kernel.words), budget)?;
    ours.round()?;
    // Dropped after the process that swaps to it.
    let zram;
    let mut rival = None;
    let mut theirs_have = "unlimited".to_owned();
    if definition.rival == "zram_lz4" {
        zram = Zram::create("lz4", 2 * kernel.need).map_err(Stop::Missing)?;
        let (running, limit, most) = kernel.on_zram(&zram, bytes)?;
        theirs_have = format!(
            "zram: group limited to {} MiB, {} MiB real with the device{}",
            limit / MIB,
            most / MIB,
            if most > bytes + bytes / 100 { ": more than ours, since it cannot do with that" } else { "" }
        );
        rival = Some(running);
    }
    let mut row = Row::new(definition);
    let mut wrong = 0;
    let checksum = kernel.checksum.clone();
    let theirs = rival.as_mut().unwrap_or(&mut kernel.running);
    let samples = pairs::rounds(if quick { 1 } else { 21 }, |side| {
        let done = if side == Side::Ours { ours.round()? } else { theirs.round()? };
        wrong += u64::from(done.checksum != checksum);
        Ok::<_, BenchError>(Took { seconds: done.worked_s, cpu_s: done.cpu_s })
    })?;
    add(&mut row, "wrong", wrong);
    row.cpu_s = samples.cpu_s;
    let seen = ours.seen();
    count(&mut row, "samples_above", seen.above);
    count(&mut row, "real_mib", seen.most / MIB);
    row.qualifies = format!(
        "time of a round, graph already built; {} of {} MiB; against: {theirs_have}; both sides' processes live during the rounds",
        bytes / MIB,
        kernel.need / MIB
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}
