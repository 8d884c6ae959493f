// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost model: lines L = ns_per_byte · size + base_ns, and the thresholds that calibration found beside them.
//!
//! - **Layout** a `Model` is a list of curves, one per (executor, opcode, cache state); a curve is up to `LINES` lines,
//!   each valid from its `from_bytes` to the next one's. The file format (JSON) has the same structure.
//! - **Owner** decisions read a `Table`: fixed positions, words stored and loaded one by one, so that recalibration
//!   needs no lock. A decision during the exchange may see a mix of old and new lines; both are measurements of this
//!   machine.

use memlift_ground::observe::{CacheState, Executor};
use memlift_spec::Opcode;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Version of the calibration file. A file of another version is ignored, and the machine is measured again.
pub const FORMAT: u32 = 3;

/// Result of a calibration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of this structure.
    pub format: u32,
    /// The machine for which it is valid.
    pub machine: super::Machine,
    /// Instruction set of the measured kernels.
    pub isa: String,
    /// Time of the measurement, seconds since 1970.
    pub time_s: u64,
    /// Duration of the measurement, milliseconds.
    pub took_ms: u64,
    /// Judgement if decisions may use the numbers, and the reason if not.
    pub trust: super::Trust,
    /// Order in which copies past the cache walk memory, by size.
    pub shapes: Vec<super::ShapeFrom>,
    /// Sizes at which behaviour changes.
    pub thresholds: Thresholds,
    /// Predicted costs of all measured operations.
    pub model: Model,
}

/// Sizes and times that calibration found beside the lines.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Thresholds {
    /// Smallest size at which anything but an ordinary copy is faster, bytes.
    pub gate_bytes: u64,
    /// Smallest size from which non-temporal stores are faster for buffers in the cache, bytes; none: never.
    pub nt_from_hot_bytes: Option<u64>,
    /// Smallest size from which non-temporal stores are faster for buffers outside the cache, bytes; none: never.
    pub nt_from_cold_bytes: Option<u64>,
    /// Largest size of a buffer that is still read from cache the second time, bytes.
    pub cache_bytes: u64,
    /// Most cycles of one load, timing included, at which its line counts as cached; 0: cannot be told apart.
    pub hot_cycles: u32,
    /// Smallest size from which a cold copy shared with a worker is faster, bytes; none: never.
    pub split_from_cold_bytes: Option<u64>,
    /// Smallest size from which a hot copy shared with a worker is faster, bytes; none: never.
    pub split_from_hot_bytes: Option<u64>,
    /// Time from submitting empty work to a sleeping worker until its completion is seen, nanoseconds.
    pub hand_off_ns: u64,
    /// Smallest size from which string moves copy faster than vectors, bytes; none: never.
    pub rep_movsb_from_bytes: Option<u64>,
    /// Speed of a large cold copy shared with a worker, relative to a copy without one; 0: no worker.
    pub split_gain: f64,
}

/// One line: time as a linear function of size, from a smallest size on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Smallest size for which the line is meant, bytes.
    pub from_bytes: u64,
    /// Slope, nanoseconds per byte.
    pub ns_per_byte: f64,
    /// Intercept, nanoseconds; may be negative.
    pub base_ns: f64,
}

impl Line {
    /// Returns the predicted nanoseconds for `bytes`; never negative.
    pub fn predict_ns(&self, bytes: usize) -> f64 {
        (self.ns_per_byte * bytes as f64 + self.base_ns).max(0.0)
    }
}

/// Costs of one operation on one executor in one cache state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// Name of the executor, such as `inline_nt`.
    pub executor: String,
    /// Name of the opcode, such as `memmove`.
    pub opcode: String,
    /// `hot` or `cold`.
    pub cache: String,
    /// The lines, in order of `from_bytes`, at most three.
    pub lines: Vec<Line>,
}

/// Costs of all measured operations.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Model {
    /// The curves, in no particular order.
    pub curves: Vec<Curve>,
}

impl Model {
    /// Adds a curve.
    pub fn push(&mut self, executor: Executor, opcode: Opcode, cache: CacheState, lines: Vec<Line>) {
        self.curves.push(Curve {
            executor: executor.name().to_owned(),
            opcode: opcode.name().to_owned(),
            cache: cache.name().to_owned(),
            lines,
        });
    }

    /// Returns true if every number is one that a measurement can produce.
    pub fn is_sane(&self) -> bool {
        self.curves.iter().all(|curve| {
            let lines = &curve.lines;
            let ordered = lines.windows(2).all(|pair| pair[0].from_bytes < pair[1].from_bytes);
            let finite = lines
                .iter()
                .all(|line| (0.0..1e6).contains(&line.ns_per_byte) && (-1e12..1e12).contains(&line.base_ns));
            ordered && finite && (1..=LINES).contains(&lines.len())
        })
    }
}

/// Most lines of one curve.
pub const LINES: usize = 3;
/// Number of opcodes with curves of their own.
pub const OPCODES: usize = 8;
const EXECUTORS: usize = 4;

/// Returns the slot of an opcode's curve. An operation that is not measured uses the curve of the most similar one.
pub(super) const fn opcode_slot(opcode: Opcode) -> usize {
    match opcode {
        Opcode::FILL => 1,
        Opcode::COMPARE | Opcode::COMPARE_PATTERN | Opcode::DELTA_CREATE => 2,
        Opcode::CRC => 3,
        Opcode::COPY_CRC => 4,
        Opcode::DUALCAST => 5,
        Opcode::STRIDED_COPY => 6,
        _ => 0,
    }
}

const fn cache_slot(cache: CacheState) -> usize {
    matches!(cache, CacheState::Hot) as usize
}

/// Returns the index of (executor, opcode, cache) in a table with one entry each.
fn index(executor: Executor, opcode: usize, cache: CacheState) -> Option<usize> {
    let executor = executor as usize;
    (executor < EXECUTORS).then_some((executor * OPCODES + opcode) * 2 + cache_slot(cache))
}

/// Returns (opcode, cache) as one number below `2 * OPCODES`.
pub(super) fn pair(opcode: Opcode, cache: CacheState) -> usize {
    opcode_slot(opcode) * 2 + cache_slot(cache)
}

/// The model in the form that decisions read. A line is three words; a `from_bytes` of `u64::MAX` means that there
/// is no line.
#[derive(Debug)]
pub(super) struct Table {
    lines: Box<[[[AtomicU64; 3]; LINES]]>,
}

impl Default for Table {
    fn default() -> Table {
        let none = || [AtomicU64::new(u64::MAX), AtomicU64::new(0), AtomicU64::new(0)];
        Table { lines: (0..EXECUTORS * OPCODES * 2).map(|_| [none(), none(), none()]).collect() }
    }
}

impl Table {
    pub fn fill(&self, model: &Model) {
        self.lines.iter().flatten().for_each(|line| line[0].store(u64::MAX, Ordering::Relaxed));
        for curve in &model.curves {
            let executor = Executor::ALL.into_iter().find(|executor| executor.name() == curve.executor);
            let opcode = Opcode::NAMED.iter().find(|opcode| opcode.name() == curve.opcode);
            let (Some(executor), Some(&opcode)) = (executor, opcode) else { continue };
            let cache = if curve.cache == "hot" { CacheState::Hot } else { CacheState::Cold };
            let Some(index) = index(executor, opcode_slot(opcode), cache) else { continue };
            for (place, line) in self.lines[index].iter().zip(&curve.lines) {
                place[1].store(line.ns_per_byte.to_bits(), Ordering::Relaxed);
                place[2].store(line.base_ns.to_bits(), Ordering::Relaxed);
                place[0].store(line.from_bytes, Ordering::Relaxed);
            }
        }
    }

    /// Returns the line for `bytes`: the last one that starts at or below it, otherwise the first. For sharing
    /// there is no line below the smallest measured size.
    pub fn line(&self, executor: Executor, opcode: Opcode, cache: CacheState, bytes: usize) -> Option<Line> {
        let lines = &self.lines[index(executor, opcode_slot(opcode), cache)?];
        let from = |line: &[AtomicU64; 3]| line[0].load(Ordering::Relaxed);
        if from(&lines[0]) == u64::MAX {
            return None;
        }
        if executor == Executor::Split && from(&lines[0]) > bytes as u64 {
            return None;
        }
        let place = lines.iter().rev().find(|line| from(line) <= bytes as u64).unwrap_or(&lines[0]);
        let number = |word: &AtomicU64| f64::from_bits(word.load(Ordering::Relaxed));
        Some(Line { from_bytes: from(place), ns_per_byte: number(&place[1]), base_ns: number(&place[2]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_gives_the_line_that_a_size_lies_on() {
        let line = |from_bytes, ns_per_byte, base_ns| Line { from_bytes, ns_per_byte, base_ns };
        let lines = vec![line(1000, 1.0, 0.0), line(2000, 2.0, 5.0)];
        let mut model = Model::default();
        model.push(Executor::InlineNt, Opcode::CRC, CacheState::Cold, lines.clone());
        assert!(model.is_sane());
        let table = Table::default();
        table.fill(&model);
        let find = |bytes| table.line(Executor::InlineNt, Opcode::CRC, CacheState::Cold, bytes);
        assert_eq!([find(10), find(1999)], [Some(lines[0]); 2]);
        assert_eq!([find(2000), find(1 << 40)], [Some(lines[1]); 2]);
        assert_eq!(table.line(Executor::InlineNt, Opcode::CRC, CacheState::Hot, 10), None);
        assert_eq!(table.line(Executor::Idxd, Opcode::CRC, CacheState::Hot, 10), None);
        assert_eq!(lines[1].predict_ns(2000), 4005.0);
    }

    #[test]
    fn nonsense_is_not_sane() {
        let curve = |lines| {
            let mut model = Model::default();
            model.push(Executor::InlineNt, Opcode::CRC, CacheState::Cold, lines);
            model
        };
        let line = |from_bytes, ns_per_byte| Line { from_bytes, ns_per_byte, base_ns: 0.0 };
        assert!(!curve(vec![]).is_sane());
        assert!(!curve(vec![line(0, f64::NAN)]).is_sane());
        assert!(!curve(vec![line(0, -1.0)]).is_sane());
        assert!(!curve(vec![line(5, 1.0), line(5, 1.0)]).is_sane());
        assert!(!curve(vec![line(0, 1.0), line(1, 1.0), line(2, 1.0), line(3, 1.0)]).is_sane());
    }
}
