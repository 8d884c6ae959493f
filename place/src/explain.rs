// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Explanations: a decision with all the numbers behind it.
//!
//! - **Flow** `Placer::explain` ──▶ `Explanation` (serializable) ──▶ `memlift explain`, bench rows
//! - **Not here** past decisions: the stats page has them, with a code of `reason`

use super::model::Line;
use super::store::Origin;
use super::{Placer, Rules};
use memlift_ground::observe::{CacheState, Executor};
use memlift_kernels::Routine;
use memlift_spec::Opcode;

/// Prediction for one executor.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Candidate {
    /// Name of the executor.
    pub executor: &'static str,
    /// Predicted time with correction, nanoseconds.
    pub predicted_ns: f64,
    /// The line of the cost model that gives the prediction.
    pub line: Line,
    /// Factor on the line's value, learned from operations measured since the calibration.
    pub correction: f64,
}

/// A decision with all the numbers behind it.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Explanation {
    /// Name of the operation.
    pub opcode: &'static str,
    /// Size of the operation, bytes.
    pub bytes: usize,
    /// The cache state that was assumed.
    pub cache: &'static str,
    /// Name of the executor that would run it now.
    pub chosen: &'static str,
    /// Reason of the choice.
    pub reason: String,
    /// Executors that could run it, the fastest first.
    pub candidates: Vec<Candidate>,
    /// Smallest size that is decided about, bytes.
    pub gate_bytes: usize,
    /// Origin of the lines.
    pub origin: Origin,
    /// Order in which copies of this size walk memory if they store past the cache.
    pub shape: String,
    /// Time at which the lines were measured, seconds since 1970; 0: they are built in.
    pub time_s: u64,
    /// Judgement if the machine was quiet at that time.
    pub trust: super::Trust,
}

pub(super) fn explain(placer: &Placer, opcode: Opcode, bytes: usize, cache: CacheState) -> Explanation {
    let cache = if cache == CacheState::Unknown { placer.guess(bytes) } else { cache };
    let gate_bytes = placer.gate_bytes();
    let mut candidates: Vec<Candidate> = Executor::ALL
        .into_iter()
        .filter_map(|executor| {
            let line = placer.fast.model.line(executor, opcode, cache, bytes)?;
            let correction = placer.correction.factor(executor, opcode, cache, bytes);
            let predicted_ns = line.predict_ns(bytes) * correction;
            Some(Candidate { executor: executor.name(), predicted_ns, line, correction })
        })
        .collect();
    candidates.sort_by(|a, b| a.predicted_ns.total_cmp(&b.predicted_ns));
    let temporal = Executor::InlineTemporal.name();
    let cost = |candidate: &Candidate| {
        let executor = Executor::ALL.into_iter().find(|executor| executor.name() == candidate.executor);
        candidate.predicted_ns * executor.map_or(1.0, super::price)
    };
    let synchronous = candidates
        .iter()
        .filter(|candidate| candidate.executor != Executor::Worker.name())
        .min_by(|a, b| cost(a).total_cmp(&cost(b)));
    let chosen = if bytes < gate_bytes { temporal } else { synchronous.map_or(temporal, |c| c.executor) };
    let reason = if bytes < gate_bytes {
        format!("below {gate_bytes} bytes an operation is the kernel and nothing else")
    } else {
        match (synchronous, candidates.iter().find(|c| c.executor == temporal)) {
            (Some(best), Some(plain)) if best.executor != temporal => format!(
                "{} predicted, {:.2} times as fast as an ordinary copy; another must look {:.0} % faster to \
                 replace it",
                duration(best.predicted_ns),
                plain.predicted_ns / best.predicted_ns.max(1.0),
                (1.0 - Rules::COPIES.switch_below) * 100.0
            ),
            _ => "nothing is predicted to be faster than ordinary stores on the caller's core".to_owned(),
        }
    };
    let loaded = placer.loaded();
    let shape = memlift_kernels::shape(routine(opcode), bytes, placer.isa).to_string();
    let trust = match &loaded.origin {
        Origin::Untrusted { why, .. } => {
            super::Trust { trusted: false, why: why.clone(), ..super::Trust::assumed() }
        }
        _ => loaded.calibration.trust,
    };
    Explanation {
        opcode: opcode.name(),
        bytes,
        cache: cache.name(),
        chosen,
        reason,
        candidates,
        gate_bytes,
        origin: loaded.origin,
        shape,
        time_s: loaded.calibration.time_s,
        trust,
    }
}

/// Returns the streaming routine for an opcode.
fn routine(opcode: Opcode) -> Routine {
    match opcode {
        Opcode::COPY_CRC => Routine::CopyCrc,
        Opcode::DUALCAST => Routine::Dualcast,
        Opcode::FILL => Routine::Fill,
        Opcode::STRIDED_COPY => Routine::Strided,
        _ => Routine::Copy,
    }
}

/// Returns a time as text, with three digits and a unit.
fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        1e3..1e6 => (ns / 1e3, "µs"),
        1e6..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}
