// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From two parties to a row: interleaved runs with the same draws, equal checksums, counted steps.
//!
//! - **Order** run n of both sides has seed n; a party's state goes on from run to run, and so does the other's
//! - **Check** the checksums of run n must be equal, unless the rival is a limit, which does not do the work
//! - **Count** after the last run: what transactions execute, ours under the plain names, theirs with `theirs_` before them; where
//!   they are more than one, `_per_N` says so; and what our last run counted itself

use super::party::{Party, Ran};
use super::steps::Steps;
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::statistics::median;
use crate::{BenchError, Row, machine};

/// Runs of a row without a rival.
const RUNS_ALONE: u64 = 5;

/// How a row is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Operations of a run.
    pub count: u64,
    /// Parts of an operation; a run's wall time is divided by operations and parts.
    pub per: u64,
    /// True if both sides leave or read the same bytes.
    pub compares: bool,
    /// True if transactions are stepped through.
    pub steps: bool,
}

/// Two parties that are ready.
#[derive(Debug)]
pub struct Sides {
    /// The party of memlift.
    pub ours: Party,
    /// The party of the rival.
    pub theirs: Party,
}

/// Runs both parties and judges the row.
pub fn row(
    definition: &Definition,
    mut sides: Sides,
    plan: Plan,
    qualifies: &str,
    quick: bool,
) -> Result<Row, BenchError> {
    let count = plan.count;
    let mut ran: [Vec<Ran>; 2] = [Vec::new(), Vec::new()];
    let samples = pairs::interleave(quick, |side| {
        let at = usize::from(side == Side::Theirs);
        let party = if side == Side::Ours { &mut sides.ours } else { &mut sides.theirs };
        let one = party.run(ran[at].len() as u64 + 1, count)?;
        let took = Took { seconds: one.seconds / (count * plan.per) as f64, cpu_s: one.cpu_s / count as f64 };
        ran[at].push(one);
        match (ran[0].last(), ran[1].last()) {
            (Some(ours), Some(theirs))
                if plan.compares && ran[0].len() == ran[1].len() && ours.checksum != theirs.checksum =>
            {
                Err(BenchError::Differ {
                    name: definition.name.clone(),
                    rival: definition.rival.clone(),
                    sums: [ours.checksum.clone(), theirs.checksum.clone()],
                })
            }
            _ => Ok(took),
        }
    })?;
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    if plan.steps {
        note(&mut row, "", sides.ours.step()?);
        note(&mut row, "theirs_", sides.theirs.step()?);
    }
    row.count.extend(ran[0].last().map(|ran| ran.counts.clone()).unwrap_or_default());
    row.qualifies = format!(
        "ours: {}; theirs: {}; {count} operations per run{}; {} cores, not pinned; {qualifies}",
        sides.ours.about,
        sides.theirs.about,
        if plan.compares { ", equal checksums of both sides after each" } else { "" },
        machine::cores(),
    );
    sides.ours.end()?;
    sides.theirs.end()?;
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// A row of memlift alone: its median, and what its last run counted.
pub fn alone(
    definition: &Definition,
    mut party: Party,
    count: u64,
    qualifies: &str,
    quick: bool,
) -> Result<Row, BenchError> {
    let runs = if quick { 1 } else { RUNS_ALONE };
    let ran = (0..runs).map(|seed| party.run(seed + 1, count)).collect::<Result<Vec<Ran>, _>>()?;
    let mut row = Row::new(definition);
    let seconds = median(ran.iter().map(|ran| ran.seconds / count as f64));
    row.ours = Some(row.shown(seconds));
    row.cpu_s.ours = Some(median(ran.iter().map(|ran| ran.cpu_s / count as f64)));
    row.count = ran.last().map(|ran| ran.counts.clone()).unwrap_or_default();
    row.qualifies = format!("ours: {}; {} runs; {} cores; {qualifies}", party.about, runs, machine::cores());
    party.end()?;
    row.verdict = definition.judge(&row, quick);
    Ok(row)
}

fn note(row: &mut Row, whose: &str, counted: Option<(Steps, u64)>) {
    let Some((steps, transactions)) = counted else { return };
    let per = if transactions == 1 { String::new() } else { format!("_per_{transactions}") };
    let counts = [
        ("fences", steps.fences),
        ("loaded_fences", steps.loaded),
        ("locked", steps.locked),
        ("flushes", steps.flushes),
        ("streams", steps.streams),
        ("instructions", steps.instructions),
    ];
    for (what, count) in counts {
        row.count.insert(format!("{whose}{what}{per}"), count);
    }
}
