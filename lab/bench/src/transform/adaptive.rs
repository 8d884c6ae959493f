// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `adaptive/…`: placement decided per message, against whichever fixed placement is best for the whole phase.
//!
//! - **Flow** a few rounds of every fixed placement ─▶ the fastest is the rival ─▶ interleaved pairs
//! - **Phases** idle: messages that are in no cache, nobody else · contended: the same beside a neighbour that copies · changing: every
//!   sample has messages in cache, whose results are read at once, and messages that are not; the neighbour comes
//!   and goes every few pairs, and a pair of the row is one beside it and one without it together: of two kinds of samples
//!   as many as of each other, a median would be that of either kind
//! - **Check** every placement's first sample by the target's checksum, and the adaptive one's last; every sample by the sum
//!   of all CRCs
//! - **Order** samples follow each other without a pause: the adaptive side measures contention at most so often per second, and
//!   none of that may fall out of its samples or be crowded into them
//!
//! Only our own time counts here, so the budget for slowing neighbours is wide open; `corunner/slowdown` measures theirs.

use memlift_ground::config::Placement;

use super::Stop;
use super::fused::{Areas, KEY};
use super::neighbour::{Neighbour, Work};
use super::ours::{Ours, Placing};
use crate::definition::Definition;
use crate::pairs::{self, Side, Took};
use crate::pin::Pinned;
use crate::statistics::Pair;
use crate::{BenchError, Row, median, reference};

const MESSAGE_BYTES: usize = 64 << 10;
const AREA_BYTES: usize = 64 << 20;
const AREA_BYTES_QUICK: usize = 4 << 20;
/// Messages that stay in the second-level cache, with their results.
const HOT: usize = 4;
/// Samples between two comings and goings of the neighbour: whole pairs.
const CHANGE_EVERY: usize = 16;
/// Passes of a sample.
const PASSES: usize = 3;
const PILOT: usize = 7;
const NEIGHBOUR_BYTES: usize = 32 << 20;
/// Neighbours may be slowed by so many percent: only our own time counts.
const BUDGET_PERCENT: u32 = 1000;
const FIXED: [Placement; 3] = [Placement::Temporal, Placement::Streaming, Placement::Isolated];

/// Phase that a row measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Contended,
    Changing,
}

impl Phase {
    pub fn parse(name: &str) -> Option<Phase> {
        match name {
            "idle" => Some(Phase::Idle),
            "contended" => Some(Phase::Contended),
            "changing" => Some(Phase::Changing),
            _ => None,
        }
    }
}

/// Runs samples of a phase.
struct Load {
    areas: Areas,
    order: Vec<usize>,
    passes: usize,
    phase: Phase,
    neighbour: Option<Neighbour>,
    samples: usize,
}

impl Load {
    /// One sample: its time and the sum of the CRCs.
    fn sample(&mut self, who: &Ours) -> Result<(Took, u64), BenchError> {
        if let Some(neighbour) = &self.neighbour {
            neighbour.wake(self.phase == Phase::Contended || comes(self.samples));
        }
        self.samples += 1;
        let messages = self.order.len() * self.passes;
        let part = |index: usize| {
            let at = index * MESSAGE_BYTES;
            (self.areas.source.part(at, MESSAGE_BYTES), self.areas.target.part(at, MESSAGE_BYTES))
        };
        let hot = if self.phase == Phase::Changing { messages } else { 0 };
        let mut sum = 0_u64;
        let took = pairs::time(messages + hot, || {
            for &index in self.order.iter().cycle().take(messages) {
                let (source, target) = part(index);
                sum += u64::from(who.copy_crc(source, target)?);
            }
            for index in 0..hot {
                let (source, target) = part(index % HOT);
                sum += u64::from(who.copy_crc(source, target)?) ^ (reference::xor64(target) & 0xff);
            }
            Ok(())
        })?;
        Ok((took, sum))
    }

    /// One sample over an overwritten target: the target's checksum and the sum of the CRCs.
    fn verified(&mut self, who: &Ours) -> Result<(u64, u64), BenchError> {
        self.areas.evict();
        let (_, sum) = self.sample(who)?;
        Ok((reference::checksum(self.areas.target.part(0, self.order.len() * MESSAGE_BYTES)), sum))
    }
}

/// Measures a row.
pub(super) fn row(definition: &Definition, phase: Phase, quick: bool) -> Result<Row, Stop> {
    let Some(pinned) = Pinned::first(None) else {
        return Err(Stop::Missing(
            "a second core for the neighbour: this process may use only one".to_owned(),
        ));
    };
    let bytes = if quick { AREA_BYTES_QUICK } else { AREA_BYTES };
    let neighbour = match phase {
        Phase::Idle => None,
        _ => Some(Neighbour::start(Work::Copy(NEIGHBOUR_BYTES), pinned.other)?),
    };
    let areas = Areas::new(bytes, true, quick)?;
    let count = areas.source.bytes() / MESSAGE_BYTES;
    let mut load = Load {
        areas,
        passes: if quick { 1 } else { PASSES },
        order: (0..count).map(|index| index * 1_000_003 % count).collect(),
        phase,
        neighbour,
        samples: 0,
    };
    let ours = Ours::new(&KEY, Placing::Adaptive(BUDGET_PERCENT))?;

    let right = load.verified(&ours)?;
    let mut fixed = Vec::new();
    for placement in FIXED {
        let who = Ours::new(&KEY, Placing::Fixed(placement))?;
        if load.verified(&who)? != right {
            return Err(wrong(definition, "a fixed placement").into());
        }
        fixed.push(who);
    }
    // The adaptive one learns meanwhile, as it would in a program that runs for longer than a bench.
    let mut times = [const { Vec::new() }; FIXED.len()];
    for _ in 0..(if quick { 1 } else { PILOT }) {
        for (who, times) in fixed.iter().zip(&mut times) {
            times.push(load.sample(who)?.0.seconds);
        }
        load.sample(&ours)?;
    }
    let medians = times.map(median);
    let (best, _) =
        medians.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).expect("there are several placements");
    let theirs = &fixed[best];

    // A round is a pair; the first one only warms up.
    load.samples = 0;
    let changes = phase == Phase::Changing && !quick;
    let rounds = if changes { changing_rounds(pairs::count(quick)) } else { pairs::count(quick) };
    let mut samples = pairs::rounds(rounds, |side| {
        let who = if side == Side::Ours { &ours } else { theirs };
        let (took, sum) = load.sample(who)?;
        if sum != right.1 {
            return Err(wrong(definition, if side == Side::Ours { "memlift" } else { "best_fixed" }));
        }
        Ok(took)
    })?;
    if load.verified(&ours)? != right {
        return Err(wrong(definition, "memlift").into());
    }
    let mut states = String::new();
    if changes {
        let (alone, beside) = by_state(&samples.pairs);
        let [alone_us, beside_us] = [&alone, &beside].map(|pairs| {
            let median = |of: fn(&Pair) -> f64| median(pairs.iter().map(of)) * 1e6;
            format!("{:.2} against {:.2}", median(|pair| pair.0), median(|pair| pair.1))
        });
        states = format!("alone, us: {alone_us}; beside the neighbour: {beside_us}; ");
        samples.pairs =
            alone.iter().zip(&beside).map(|(a, b)| ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0)).collect();
    }
    let mut row = Row::new(definition);
    row.cpu_s = samples.cpu_s;
    row.qualifies = format!(
        "copies with CRC-32C, {} KiB each; {}; best fixed: {:?}; all fixed, us: {}; {states}budget for neighbours {} %; ours pinned to a \
         core, the neighbour to another",
        MESSAGE_BYTES >> 10,
        load.areas.about(),
        FIXED[best],
        FIXED
            .iter()
            .zip(medians)
            .map(|(placement, seconds)| format!("{placement:?} {:.2}", seconds * 1e6))
            .collect::<Vec<_>>()
            .join(", "),
        BUDGET_PERCENT,
    );
    Ok(row.measured(definition, &samples.pairs, quick))
}

/// Returns true if the neighbour runs during this sample, in the phase in which it comes and goes.
fn comes(sample: usize) -> bool {
    sample / CHANGE_EVERY % 2 == 1
}

/// Rounds after the first that have `count` pairs of each state.
fn changing_rounds(count: usize) -> usize {
    let both = CHANGE_EVERY / 2 * 2;
    count.div_ceil(CHANGE_EVERY / 2) * both - 1
}

/// The pairs of rounds 1… without the neighbour, and those beside it, as many of each.
fn by_state(pairs: &[Pair]) -> (Vec<Pair>, Vec<Pair>) {
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for (round, &pair) in (1..).zip(pairs) {
        if comes(2 * round) { beside.push(pair) } else { alone.push(pair) }
    }
    let count = alone.len().min(beside.len());
    alone.truncate(count);
    beside.truncate(count);
    (alone, beside)
}

fn wrong(definition: &Definition, who: &str) -> BenchError {
    BenchError::Wrong { name: definition.name.clone(), rival: who.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_lie_in_one_state_and_are_as_many_of_each() {
        let rounds = changing_rounds(31);
        for round in 0..=rounds {
            assert_eq!(comes(2 * round), comes(2 * round + 1));
        }
        let pairs: Vec<Pair> =
            (1..=rounds).map(|round| (f64::from(u8::from(comes(2 * round))), 0.0)).collect();
        let (alone, beside) = by_state(&pairs);
        assert!(alone.len() == beside.len() && alone.len() >= 31);
        assert!(alone.iter().all(|pair| pair.0 == 0.0) && beside.iter().all(|pair| pair.0 == 1.0));
    }
}
