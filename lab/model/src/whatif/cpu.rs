// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU's cost of calls: lines from this machine's calibration, and from the trace itself where there are none.
//!
//! - **Flow** calls ─▶ [`Shadow`]: what of it was used before, and how much else since? ─▶ [`Cpu::cost_ns`]: the hot line for that
//!   working set, the cold one for what is new, and the page faults on top
//! - **Method** kinds without a calibrated line get one from the trace: least squares of time over bytes, in classes of size. What a
//!   page fault takes comes from calls whose faults were counted, where enough of them agree, else from this machine
//!   A hot line was measured on the same buffers again and again, at each size: a call of that size had a working set of its own
//!   bytes. A call with a larger one, since others came in between, pays for each byte what a call of so many bytes paid then,
//!   but not more than the cold line: so the hot line says by itself what each level of the cache keeps
//! - **Rule** [`Cpu::calibrated`] tells which kinds are predicted; the others are fitted to what is compared with
//! - **Not here** gaps between calls: they stay as recorded

use std::collections::{BTreeMap, BTreeSet};

use memlift_spec::formats::trace::Kind;

use super::reuse::{Again, Reuse};
use super::timeline::{Call, Trace};
use crate::dsa::cache::{BLOCK, Cache};

/// A line of a curve: nanoseconds = `ns_per_byte` · bytes + `base_ns`, from `from_bytes` on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// Smallest size that the line is for, bytes.
    pub from_bytes: u64,
    /// Slope: nanoseconds per byte.
    pub ns_per_byte: f64,
    /// Intercept: nanoseconds for no bytes.
    pub base_ns: f64,
}

/// Cost of one kind of call in one cache state.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Kind of the calls.
    pub kind: Kind,
    /// True if its bytes are in the cache.
    pub hot: bool,
    /// Lines of the curve, by size.
    pub lines: Vec<Line>,
}

/// Cost model of the recorded CPU.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    curves: Vec<Curve>,
    /// Bytes that stay in its cache.
    pub cache_bytes: u64,
    /// Cost of a page fault.
    pub fault: Estimate,
    /// Kinds whose lines were calibrated.
    pub calibrated: BTreeSet<Kind>,
}

/// Where a call's bytes were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Bytes of the source that were in the cache.
    pub source: u64,
    /// Bytes of the target.
    pub target: u64,
    /// Bytes of both that were used before, by working set.
    pub again: Vec<Again>,
}

/// A number from repeated samples: their median and their middle half.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The median, nanoseconds.
    pub ns: f64,
    /// A quarter of the samples are below this.
    pub low_ns: f64,
    /// A quarter of the samples are above this.
    pub high_ns: f64,
    /// Number of samples; 0: it was given.
    pub samples: usize,
}

impl Estimate {
    /// A number that is given, without a spread.
    #[must_use]
    pub fn exactly(ns: f64) -> Estimate {
        Estimate { ns, low_ns: ns, high_ns: ns, samples: 0 }
    }

    /// Of these samples; None: there is none.
    #[must_use]
    pub fn of(mut samples: Vec<f64>) -> Option<Estimate> {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| samples.get(samples.len() * part / 4).copied();
        Some(Estimate { ns: at(2)?, low_ns: at(1)?, high_ns: at(3)?, samples: samples.len() })
    }
}

/// A call says what a fault costs if it had so many.
const FAULTS_MIN: u64 = 16;
/// Calls that have to say so.
const SAMPLES_MIN: usize = 8;
/// Costs of a fault that a CPU can have: below are errors of the line that is taken off, above are huge pages and disks.
const FAULT_NS: std::ops::Range<f64> = 50.0..100_000.0;

impl Cpu {
    /// A CPU with these curves; what they lack is fitted to the trace.
    #[must_use]
    pub fn new(curves: Vec<Curve>, cache_bytes: u64, fault: Estimate, trace: &Trace) -> Cpu {
        let calibrated = curves.iter().map(|curve| curve.kind).collect();
        let mut cpu = Cpu { curves, cache_bytes: cache_bytes.clamp(1 << 16, 1 << 32), fault, calibrated };
        let mut kinds: BTreeMap<Kind, Vec<&Call>> = BTreeMap::new();
        for call in trace.calls().filter(|call| !cpu.calibrated.contains(&call.kind)) {
            kinds.entry(call.kind).or_default().push(call);
        }
        for (kind, calls) in kinds {
            let lines = fit(&calls);
            cpu.curves.push(Curve { kind, hot: true, lines: lines.clone() });
            cpu.curves.push(Curve { kind, hot: false, lines });
        }
        if let Some(measured) = cpu.fault_of(trace) {
            cpu.fault = measured;
        }
        cpu
    }

    /// Cost of a fault where calls had many. None: they are too few, or most say what no fault costs, because the lines of copies do not
    /// fit this trace.
    fn fault_of(&self, trace: &Trace) -> Option<Estimate> {
        let samples: Vec<f64> = trace
            .calls()
            .filter(|call| call.faults.is_some_and(|faults| faults >= FAULTS_MIN))
            .map(|call| {
                let plain = self.line_ns(call, false);
                (call.cpu_ns as f64 - plain).max(0.0) / call.faults.unwrap_or(1) as f64
            })
            .collect();
        let plausible: Vec<f64> = samples.iter().copied().filter(|ns| FAULT_NS.contains(ns)).collect();
        if plausible.len() < SAMPLES_MIN || plausible.len() * 2 < samples.len() {
            return None;
        }
        Estimate::of(plausible)
    }

    fn line_ns(&self, call: &Call, hot: bool) -> f64 {
        self.sized_ns(call, call.bytes(), hot)
    }

    /// Time of a call like this one with so many bytes.
    fn sized_ns(&self, call: &Call, bytes: u64, hot: bool) -> f64 {
        let curve = |hot| self.curves.iter().find(|curve| curve.kind == call.kind && curve.hot == hot);
        let Some(curve) = curve(hot).or_else(|| curve(!hot)) else { return call.cpu_ns as f64 };
        let line = curve.lines.iter().rfind(|line| line.from_bytes <= bytes).or(curve.lines.first());
        line.map_or(call.cpu_ns as f64, |line| {
            // Below the least size that was measured a byte costs what it did there: that line's base is not a small call's.
            let size = bytes.max(line.from_bytes).max(1) as f64;
            (line.ns_per_byte * size + line.base_ns).max(0.0) * (bytes as f64 / size)
        })
    }

    /// Time of a call where all its bytes have a working set of so many.
    fn within_ns(&self, call: &Call, set: u64, touched: u64) -> f64 {
        let (own, bytes) = (self.line_ns(call, true), call.bytes());
        if set <= touched || !self.calibrated.contains(&call.kind) {
            return own;
        }
        let alike = (u128::from(bytes) * u128::from(set) / u128::from(touched)) as u64;
        let scaled = self.sized_ns(call, alike, true) * (bytes as f64 / alike as f64);
        scaled.min(self.line_ns(call, false)).max(own)
    }

    /// Nanoseconds of a call, so many pages of whose target were not there yet.
    #[must_use]
    pub fn cost_ns(&self, call: &Call, residency: &Residency, fresh: u32) -> u64 {
        let touched = touched(call);
        let cold = self.line_ns(call, false);
        let mut sum = cold + f64::from(fresh) * self.fault.ns;
        if fresh == 0 && touched > 0 {
            for again in &residency.again {
                let part = again.bytes as f64 / touched as f64;
                sum += part * (self.within_ns(call, again.set, touched) - cold);
            }
        }
        sum.max(0.0) as u64
    }
}

/// Bytes of both sides of a call; two sides are compared.
fn touched(call: &Call) -> u64 {
    call.read.saturating_add(second(call))
}

fn second(call: &Call) -> u64 {
    if call.kind == Kind::Compare { call.read } else { call.written }
}

/// Lines by classes of size, a factor of 8 each, so that small calls do not hide behind large ones.
fn fit(calls: &[&Call]) -> Vec<Line> {
    let mut classes: BTreeMap<u32, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        classes.entry(call.bytes().max(1).ilog2() / 3).or_default().push(call);
    }
    let of = |(class, calls): (u32, Vec<&Call>)| {
        let count = calls.len() as f64;
        let mean = |of: &dyn Fn(&Call) -> f64| calls.iter().map(|call| of(call)).sum::<f64>() / count;
        let (x, y) = (mean(&|call| call.bytes() as f64), mean(&|call| call.cpu_ns as f64));
        let spread = mean(&|call| (call.bytes() as f64 - x).powi(2));
        let together = mean(&|call| (call.bytes() as f64 - x) * (call.cpu_ns as f64 - y));
        let slope = if spread > 0.0 { (together / spread).max(0.0) } else { 0.0 };
        Line { from_bytes: 1 << (3 * class), ns_per_byte: slope, base_ns: y - slope * x }
    };
    classes.into_iter().map(of).collect()
}

/// The caches as calls use them: the last level a page at a time, and what was used since.
#[derive(Debug)]
pub struct Shadow {
    cache: Cache,
    bytes: u64,
    /// None: nobody asks what was used since.
    reuse: Option<Reuse>,
}

impl Shadow {
    /// An empty one, for so many calls whose working sets are asked for; none: [`Residency::again`] stays empty.
    #[must_use]
    pub fn new(bytes: u64, calls: Option<usize>) -> Shadow {
        Shadow { cache: Cache::new(bytes, 16, 2), bytes, reuse: calls.map(|calls| Reuse::new(2 * calls)) }
    }

    fn touch(&mut self, address: u64, bytes: u64) -> u64 {
        // More than the cache holds was not in it; only its end is afterwards.
        let skip = bytes.saturating_sub(2 * self.bytes);
        let (first, end) = (address.saturating_add(skip), address.saturating_add(bytes));
        let mut there = 0;
        for block in first / BLOCK..end.div_ceil(BLOCK) {
            if self.cache.reuse(block) {
                there += BLOCK;
            }
        }
        there.min(bytes)
    }

    /// A call by the CPU: what of it was there; all of it is afterwards, as far as it fits.
    pub fn call(&mut self, call: &Call) -> Residency {
        if call.kind.is_work() {
            return Residency::default();
        }
        let source = self.touch(call.source, call.read);
        let mut again = Vec::new();
        if let Some(reuse) = &mut self.reuse {
            again = reuse.touch(call.source, call.read);
            again.extend(reuse.touch(call.target, second(call)));
        }
        Residency { source, target: self.touch(call.target, second(call)), again }
    }

    /// A call by a device: what it reads may be there; what it writes is not, afterwards.
    pub fn device(&mut self, call: &Call) -> Residency {
        let source = self.touch(call.source, call.read);
        let skip = call.written.saturating_sub(2 * self.bytes);
        let (first, end) = (call.target.saturating_add(skip), call.target.saturating_add(call.written));
        (first / BLOCK..end.div_ceil(BLOCK)).for_each(|block| self.cache.write(block, false));
        if let Some(reuse) = &mut self.reuse {
            reuse.touch(call.source, call.read);
            reuse.forget(call.target, call.written);
        }
        Residency { source, target: 0, again: Vec::new() }
    }
}
