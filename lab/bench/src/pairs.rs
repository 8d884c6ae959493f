// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interleaved pairs: both sides do the same messages, one after the other, in both orders.
//!
//! - **Flow** round 0 warms both up and finds how often a sample repeats ─▶ rounds 1…: A B, B A, A B …
//! - **Order** everything runs on the calling thread; wall time is what counts, CPU time stands beside it

use std::time::Instant;

use crate::statistics::{Pair, median};
use crate::{BenchError, CpuSeconds, machine};

/// Pairs of a full run: enough for a bound, odd.
const PAIRS: usize = 31;
const PAIRS_QUICK: usize = 2;

/// Pairs of a run.
pub const fn count(quick: bool) -> usize {
    if quick { PAIRS_QUICK } else { PAIRS }
}

/// Side whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The side of memlift.
    Ours,
    /// The side of the rival.
    Theirs,
}

/// Wall time and CPU time of one message.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Wall time, seconds.
    pub seconds: f64,
    /// CPU time of all threads of this process, seconds.
    pub cpu_s: f64,
}

/// Times `work`, which handles `messages`.
pub fn time(messages: usize, work: impl FnOnce() -> Result<(), BenchError>) -> Result<Took, BenchError> {
    let cpu = machine::cpu_seconds();
    let start = Instant::now();
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_s = machine::cpu_seconds() - cpu;
    Ok(Took { seconds: seconds / messages as f64, cpu_s: cpu_s / messages as f64 })
}

/// All samples of a row.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Seconds per message.
    pub pairs: Vec<Pair>,
    /// Medians per message.
    pub cpu_s: CpuSeconds,
}

/// Lets both sides take turns; each call of `turn` gives a sample.
pub fn interleave(
    quick: bool,
    turn: impl FnMut(Side) -> Result<Took, BenchError>,
) -> Result<Samples, BenchError> {
    rounds(count(quick), turn)
}

/// The same with `count` pairs, for samples that take seconds.
pub fn rounds(
    count: usize,
    mut turn: impl FnMut(Side) -> Result<Took, BenchError>,
) -> Result<Samples, BenchError> {
    let (mut pairs, mut cpu) = (Vec::new(), [Vec::new(), Vec::new()]);
    for round in 0..=count {
        let order = if round % 2 == 0 { [Side::Ours, Side::Theirs] } else { [Side::Theirs, Side::Ours] };
        let mut pair: Pair = (0.0, 0.0);
        for side in order {
            let took = turn(side)?;
            match side {
                Side::Ours => pair.0 = took.seconds,
                Side::Theirs => pair.1 = took.seconds,
            }
            if round > 0 {
                cpu[usize::from(side == Side::Theirs)].push(took.cpu_s);
            }
        }
        if round > 0 {
            pairs.push(pair);
        }
    }
    let [ours, theirs] = cpu.map(median);
    Ok(Samples { pairs, cpu_s: CpuSeconds { ours: Some(ours), theirs: Some(theirs) } })
}

/// Returns how often a sample repeats its messages to last `sample_s`; `one` is what one pass took.
pub fn passes(quick: bool, sample_s: f64, messages: usize, one: Took) -> usize {
    if quick {
        return 1;
    }
    ((sample_s / (one.seconds * messages as f64)) as usize).clamp(1, 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_in_both_orders_and_the_first_round_does_not_count() {
        let mut turns = Vec::new();
        let samples = interleave(true, |side| {
            turns.push(side);
            let seconds = if side == Side::Ours { 1.0 } else { 2.0 };
            Ok(Took { seconds, cpu_s: seconds })
        })
        .expect("nothing fails");
        use Side::{Ours, Theirs};
        assert_eq!(turns, [Ours, Theirs, Theirs, Ours, Ours, Theirs]);
        assert_eq!(samples.pairs, [(1.0, 2.0); PAIRS_QUICK]);
        assert_eq!(samples.cpu_s, CpuSeconds { ours: Some(1.0), theirs: Some(2.0) });
    }

    #[test]
    fn a_sample_is_as_long_as_asked() {
        let one = Took { seconds: 1e-5, cpu_s: 1e-5 };
        assert_eq!(passes(false, 0.01, 10, one), 100);
        assert_eq!(passes(true, 0.01, 10, one), 1);
    }
}
