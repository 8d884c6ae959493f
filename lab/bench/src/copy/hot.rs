// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hot copies: the same bytes again and again, as caches like it.
//!
//! - **Order** a sample repeats one copy long enough for the clock; before it the target is overwritten, after it
//!   compared by checksum
//! - **Mean** the geometric mean is over all hot definitions, whatever `--only` shows

use super::{Areas, verify};
use crate::copier::{self, Copier, Glibc};
use crate::definition::Definition;
use crate::ours::Memlift;
use crate::statistics::{self, Pair, median};
use crate::{BenchError, CpuSeconds, Row, machine, reference};

const PAIRS: usize = 41;
const PAIRS_QUICK: usize = 2;
/// Time that a sample shall last.
const SAMPLE_S: f64 = 400e-6;
/// Where misaligned copies begin: both ends off every vector, and by different amounts.
const MISALIGNED: (usize, usize) = (3, 7);

/// Measurements under one name.
#[derive(Clone, Debug)]
struct Samples {
    name: String,
    pairs: Vec<Pair>,
    cpu_s: CpuSeconds,
    calls: usize,
    faults: u64,
}

/// Measures hot rows on common areas, each name once.
pub(super) struct Hot<'a> {
    areas: &'a Areas,
    quick: bool,
    done: Vec<Samples>,
}

impl<'a> Hot<'a> {
    pub(super) fn new(areas: &'a Areas, quick: bool) -> Hot<'a> {
        Hot { areas, quick, done: Vec::new() }
    }

    pub(super) fn row(
        &mut self,
        definition: &Definition,
        bytes: usize,
        misaligned: bool,
    ) -> Result<Row, BenchError> {
        let at = self.measure(&definition.name, bytes, misaligned)?;
        let samples = &self.done[at];
        let mut row = Row::new(definition);
        row.cpu_s = samples.cpu_s;
        row.count.insert("faults".to_owned(), samples.faults);
        let took = median(samples.pairs.iter().map(|pair| pair.0));
        row.qualifies = format!(
            "hot: {} copies per sample; {}; {} cores; {} B pages; {}; ours: {}; {:.1} GB/s copied; theirs: {}, as shipped",
            samples.calls,
            if misaligned { "source 3 and target 7 bytes past a page" } else { "aligned to a page" },
            machine::cores(),
            machine::page_bytes(),
            machine::vectors(),
            Memlift::get(false)?.describe(),
            bytes as f64 / took * 1e-9,
            Glibc::new().describe(),
        );
        Ok(row.measured(definition, &samples.pairs, self.quick))
    }

    /// The mean over everything measured so far.
    pub(super) fn mean_row(&self, definition: &Definition) -> Row {
        let pairs: Vec<&[Pair]> = self.done.iter().map(|samples| samples.pairs.as_slice()).collect();
        let mut row = Row::new(definition);
        row.ratio = Some(statistics::geometric_mean(&pairs));
        if pairs.iter().all(|pairs| pairs.len() >= statistics::PAIRS_MIN) {
            row.low = Some(statistics::geometric_mean_low(&pairs));
        }
        row.qualifies = format!("geometric mean over {} hot rows of this run", pairs.len());
        row.verdict = definition.judge(&row, self.quick);
        row
    }

    /// Measures a name unless it has been; gives its place.
    pub(super) fn measure(
        &mut self,
        name: &str,
        bytes: usize,
        misaligned: bool,
    ) -> Result<usize, BenchError> {
        if let Some(at) = self.done.iter().position(|samples| samples.name == name) {
            return Ok(at);
        }
        let (ours, glibc) = (Memlift::get(false)?, Glibc::new());
        let (source_at, target_at) = if misaligned { MISALIGNED } else { (0, 0) };
        let target = self.areas.target.part(target_at, bytes);
        let sources = [0, 1].map(|index: usize| self.areas.sources[index].part(source_at, bytes));
        let sums = sources.map(reference::checksum);
        let calls = if self.quick {
            2
        } else {
            let probe = copier::time(&glibc, target, sources[0], 1 + (1 << 18) / bytes);
            ((SAMPLE_S / probe.seconds) as usize).clamp(2, 1 << 20)
        };
        let (mut pairs, mut cpu, mut faulted) = (Vec::new(), [Vec::new(), Vec::new()], 0);
        for round in 0..=(if self.quick { PAIRS_QUICK } else { PAIRS }) {
            let mut pair: Pair = (0.0, 0.0);
            for (turn, sum) in sums.into_iter().enumerate() {
                let ours_turn = (turn == 0) == (round % 2 == 0);
                reference::pattern(target, 77 + round as u64);
                let before = machine::faults();
                let timed = if ours_turn {
                    copier::time(&ours, target, sources[turn], calls)
                } else {
                    copier::time(&glibc, target, sources[turn], calls)
                };
                if ours_turn && round > 0 {
                    faulted += machine::faults() - before;
                }
                verify(name, if ours_turn { "memlift" } else { "glibc" }, target, sum)?;
                if ours_turn {
                    pair.0 = timed.seconds;
                } else {
                    pair.1 = timed.seconds;
                }
                if round > 0 {
                    cpu[usize::from(!ours_turn)].push(timed.cpu_s);
                }
            }
            if round > 0 {
                pairs.push(pair);
            }
        }
        let [ours_cpu, theirs_cpu] = cpu.map(median);
        self.done.push(Samples {
            name: name.to_owned(),
            pairs,
            cpu_s: CpuSeconds { ours: Some(ours_cpu), theirs: Some(theirs_cpu) },
            calls,
            faults: faulted,
        });
        Ok(self.done.len() - 1)
    }
}
