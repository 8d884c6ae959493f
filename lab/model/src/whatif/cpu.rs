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
use super::timeline::{Call, Trace, part};
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
    /// By number of the kind: the place of its cold and its hot curve, or of the one that stands for both; true if it was calibrated.
    places: Vec<([Option<usize>; 2], bool)>,
    /// Bytes that stay in its cache.
    pub cache_bytes: u64,
    /// Cost of a page fault.
    pub fault: Estimate,
    /// Kinds whose lines were calibrated.
    pub calibrated: BTreeSet<Kind>,
}

/// Where a call's bytes were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residency<'a> {
    /// Bytes of the source that were in the cache.
    pub source: u64,
    /// Bytes of the target.
    pub target: u64,
    /// Bytes of both that were used before, by working set.
    pub again: &'a [Again],
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
const FAULTS_MIN: u32 = 16;
/// Calls that have to say so.
const SAMPLES_MIN: usize = 8;
/// Costs of a fault that a CPU can have: below are errors of the line that is taken off, above are huge pages and disks.
const FAULT_NS: std::ops::Range<f64> = 50.0..100_000.0;

impl Cpu {
    /// A CPU with these curves; what they lack is fitted to the trace.
    #[must_use]
    pub fn new(curves: Vec<Curve>, cache_bytes: u64, fault: Estimate, trace: &Trace) -> Cpu {
        let calibrated = curves.iter().map(|curve| curve.kind).collect();
        let cache_bytes = cache_bytes.clamp(1 << 16, 1 << 32);
        let mut cpu = Cpu { curves, places: Vec::new(), cache_bytes, fault, calibrated };
        let mut kinds: BTreeMap<Kind, Vec<&Call>> = BTreeMap::new();
        for call in trace.calls().filter(|call| !cpu.calibrated.contains(&call.kind)) {
            kinds.entry(call.kind).or_default().push(call);
        }
        for (kind, calls) in kinds {
            let lines = fit(&calls);
            cpu.curves.push(Curve { kind, hot: true, lines: lines.clone() });
            cpu.curves.push(Curve { kind, hot: false, lines });
        }
        cpu.find_places();
        if let Some(measured) = cpu.fault_of(trace) {
            cpu.fault = measured;
        }
        cpu
    }

    fn find_places(&mut self) {
        let last = self.curves.iter().map(|curve| curve.kind as usize).max();
        self.places = vec![([None; 2], false); last.map_or(0, |last| last + 1)];
        // The first curve of each counts.
        for (place, curve) in self.curves.iter().enumerate().rev() {
            let of = &mut self.places[curve.kind as usize];
            of.0[usize::from(curve.hot)] = Some(place);
            of.1 = self.calibrated.contains(&curve.kind);
        }
        for ([cold, hot], _) in &mut self.places {
            (*cold, *hot) = (cold.or(*hot), hot.or(*cold));
        }
    }

    /// Cost of a fault where calls had many. None: they are too few, or most say what no fault costs, because the lines of copies do not
    /// fit this trace.
    fn fault_of(&self, trace: &Trace) -> Option<Estimate> {
        let samples: Vec<f64> = trace
            .calls()
            .filter(|call| call.faults.is_some_and(|faults| faults >= FAULTS_MIN))
            .map(|call| {
                let plain = self.cold_ns(call);
                (call.cpu_ns as f64 - plain).max(0.0) / f64::from(call.faults.unwrap_or(1))
            })
            .collect();
        let plausible: Vec<f64> = samples.iter().copied().filter(|ns| FAULT_NS.contains(ns)).collect();
        if plausible.len() < SAMPLES_MIN || plausible.len() * 2 < samples.len() {
            return None;
        }
        Estimate::of(plausible)
    }

    fn curve(&self, kind: Kind, hot: bool) -> Option<&Curve> {
        let (places, _) = self.places.get(kind as usize)?;
        places[usize::from(hot)].map(|place| &self.curves[place])
    }

    /// Nanoseconds of a call of which nothing is known but its bytes.
    fn cold_ns(&self, call: &Call) -> f64 {
        self.curve(call.kind, false).map_or(call.cpu_ns as f64, |curve| curve.ns(call.bytes(), call))
    }

    /// Nanoseconds of a call, so many pages of whose target were not there yet.
    #[must_use]
    pub fn cost_ns(&self, call: &Call, residency: &Residency<'_>, fresh: u32) -> u64 {
        let (touched, cold) = (touched(call), self.cold_ns(call));
        let mut sum = cold + f64::from(fresh) * self.fault.ns;
        if fresh == 0 && touched > 0 && !residency.again.is_empty() {
            let calibrated = self.places.get(call.kind as usize).is_some_and(|places| places.1);
            let hot = self.curve(call.kind, true);
            let bytes = call.bytes();
            let own = hot.map_or(call.cpu_ns as f64, |hot| hot.ns(bytes, call));
            // Time of the call where all its bytes have a working set of so many.
            let within = |set: u64| match hot {
                Some(hot) if set > touched && calibrated => {
                    let alike = part(bytes, set, touched);
                    let scaled = hot.ns(alike, call) * (bytes as f64 / alike as f64);
                    scaled.min(cold).max(own)
                }
                _ => own,
            };
            for again in residency.again {
                let part = again.bytes as f64 / touched as f64;
                sum += part * (within(again.set) - cold);
            }
        }
        sum.max(0.0) as u64
    }
}

impl Curve {
    /// Nanoseconds of a call like this one with so many bytes.
    fn ns(&self, bytes: u64, call: &Call) -> f64 {
        let line = self.lines.iter().rfind(|line| line.from_bytes <= bytes).or(self.lines.first());
        let Some(line) = line else { return call.cpu_ns as f64 };
        let least = line.from_bytes.max(1);
        let of = |size: u64| (line.ns_per_byte * size as f64 + line.base_ns).max(0.0);
        if bytes >= least {
            return of(bytes);
        }
        // Below the least size that was measured a byte costs what it did there: that line's base is not a small call's.
        of(least) * (bytes as f64 / least as f64)
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
    /// Bytes that the last call used again.
    again: Vec<Again>,
}

impl Shadow {
    /// An empty one; `sets`: working sets are asked for, else [`Residency::again`] stays empty.
    #[must_use]
    pub fn new(bytes: u64, sets: bool) -> Shadow {
        let reuse = sets.then(Reuse::default);
        Shadow { cache: Cache::new(bytes, 16, 2), bytes, reuse, again: Vec::new() }
    }

    /// The blocks of a range. More than the cache holds was not in it; only the end of such a range is afterwards.
    fn blocks(&self, address: u64, bytes: u64) -> std::ops::Range<u64> {
        let skip = bytes.saturating_sub(2 * self.bytes);
        let (first, end) = (address.saturating_add(skip), address.saturating_add(bytes));
        first / BLOCK..end.div_ceil(BLOCK)
    }

    fn touch(&mut self, address: u64, bytes: u64) -> u64 {
        let blocks = self.blocks(address, bytes);
        (self.cache.reuse(blocks) * BLOCK).min(bytes)
    }

    /// A call by the CPU: what of it was there; all of it is afterwards, as far as it fits.
    pub fn call(&mut self, call: &Call) -> Residency<'_> {
        if call.kind.is_work() {
            return Residency::default();
        }
        let source = self.touch(call.source, call.read);
        self.again.clear();
        if let Some(reuse) = &mut self.reuse {
            reuse.touch(call.source, call.read, |again| self.again.push(again));
            reuse.touch(call.target, second(call), |again| self.again.push(again));
        }
        let target = self.touch(call.target, second(call));
        Residency { source, target, again: &self.again }
    }

    /// A call by a device: what it reads may be there; what it writes is not, afterwards.
    pub fn device(&mut self, call: &Call) -> Residency<'_> {
        let source = self.touch(call.source, call.read);
        let blocks = self.blocks(call.target, call.written);
        self.cache.write(blocks, false);
        if let Some(reuse) = &mut self.reuse {
            reuse.touch(call.source, call.read, drop);
            reuse.forget(call.target, call.written, drop);
        }
        Residency { source, target: 0, again: &[] }
    }
}
