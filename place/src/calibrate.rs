// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calibration: about a second of measuring what this machine's memory operations cost.
//!
//! - **Flow** two buffers, prefaulted ─▶ read sweep (cache size) ─▶ load latency (hot or cold) ─▶ string moves ─▶ the shape
//!   of copies past the cache ─▶ copies hot and cold, with and without streaming ─▶ copies shared with a worker ─▶ other
//!   operations ─▶ lines
//! - **Alone** in the background: small buffers, no worker, at most [`BUDGET`] of one core. The cache size and the cost of
//!   sharing keep the built-in numbers.
//! - **Method** hot: the same buffers repeatedly. Cold: windows that move through both buffers, so that a window was last
//!   touched a whole pass ago, which is more than a cache holds; windows of small buffers are flushed instead. The lower
//!   quartile of interleaved repeats is used: every candidate is measured once per round, so that a slow moment affects all
//!   of them.
//! - **Trust** a [`Watch`] judges if the machine was quiet meanwhile
//! - **Not here** cache sizes from cpuid. The machine on which this was written reports 105 MiB of last-level cache and
//!   behaves as if it had a fraction of that.

use super::arena::{ARENA_BYTES, ARENA_BYTES_MIN, Arena, core_ns, time};
use super::background::BUDGET;
use super::builtin;
use super::fit::{fit, lower_quartile, median};
use super::machine::Machine;
use super::model::{Calibration, FORMAT, Line, Model, Thresholds};
use super::quiet::{Trust, Watch};
use super::residency::{LINES, load_cycles};
use super::shapes::{self, ShapeFrom};
use super::stores::StoreKind;
use memlift_ground::observe::{CacheState, Executor};
use memlift_ground::region::RegionError;
use memlift_kernels::{Kernels, Shape, rep_movsb_from, set_rep_movsb_from};
use memlift_spec::Opcode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Reason that calibration was not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The machine has not enough memory even for the smallest buffers.
    #[error("calibration needs 32 MiB of memory: {0}")]
    Memory(#[from] RegionError),
}

/// Part of [`BUDGET`] after which no further point is begun, because the last one must end within the budget too.
const BEGIN_WITHIN: f64 = 0.85;
/// Sizes at which copies are measured, in powers of two.
const COPY_SHIFTS: std::ops::RangeInclusive<u32> = 16..=26;
/// Sizes at which the other operations are measured, in powers of two.
const OTHER_SHIFTS: [u32; 4] = [17, 19, 21, 23];

/// Returns the nanoseconds, by the clock, of work in which other threads take part.
fn time_shared(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}

/// Threads that can share a copy with their caller. `memlift-offload` provides them; calibration measures them.
pub trait Helpers {
    /// Number of threads; 0: sharing is not measured.
    fn threads(&self) -> usize;
    /// Starts the threads now.
    fn start(&self);
    /// Returns the number of threads that spin while they wait for work.
    fn awake(&self) -> usize;
    /// Gives a thread an empty share and waits until it is done.
    fn round_trip(&self);
    /// Copies `bytes` together with one thread.
    ///
    /// # Safety
    ///
    /// `source` is readable and `target` writable for `bytes` until this returns, and they do not overlap.
    unsafe fn share(&self, stores: StoreKind, target: *mut u8, source: *const u8, bytes: usize);
}

/// Measures this machine, including `worker` if it has threads.
///
/// # Errors
///
/// [`CalibrateError::Memory`].
pub fn calibrate(kernels: &'static Kernels, worker: &dyn Helpers) -> Result<Calibration, CalibrateError> {
    let mut arena = Arena::new(ARENA_BYTES)?;
    let worker = Some(worker).filter(|worker| worker.threads() > 0);
    let limit = Limit { until_ns: f64::INFINITY, stop: None };
    let watch = Watch::new(worker.is_some());
    Ok(Bench { kernels, worker, arena: &mut arena, watch, limit, shapes: Vec::new() }.calibration())
}

/// Measures this machine with one core within [`BUDGET`], until `stop` is set.
///
/// # Errors
///
/// [`CalibrateError::Memory`].
pub fn calibrate_alone(kernels: &'static Kernels, stop: &AtomicBool) -> Result<Calibration, CalibrateError> {
    let until_ns = core_ns() + BUDGET.as_nanos() as f64 * BEGIN_WITHIN;
    let mut arena = Arena::new(ARENA_BYTES_MIN)?;
    let limit = Limit { until_ns, stop: Some(stop) };
    let watch = Watch::new(false);
    Ok(Bench { kernels, worker: None, arena: &mut arena, watch, limit, shapes: Vec::new() }.calibration())
}

/// The core time, or the flag, after which no further point is begun.
struct Limit<'a> {
    /// Core time of the measuring thread, nanoseconds.
    until_ns: f64,
    stop: Option<&'a AtomicBool>,
}

impl Limit<'_> {
    fn is_over(&self) -> bool {
        core_ns() > self.until_ns || self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

/// Measured points (bytes, ns), ascending.
type Points = Vec<(u64, f64)>;

#[derive(Default)]
struct Copies {
    temporal: Points,
    streaming: Points,
    split: Points,
}

/// Returns the smallest size from which `other` is faster by 2 % or more, at that size and at every larger one.
fn crossing(usual: &[(u64, f64)], other: &[(u64, f64)]) -> Option<u64> {
    let faster = |(usual, other): &(&(u64, f64), &(u64, f64))| other.1 < usual.1 * 0.98;
    usual.iter().zip(other).rev().take_while(faster).last().map(|(_, other)| other.0)
}

/// Returns the size from which the other way must be used so that the whole sweep costs least, given its time relative to
/// the usual way at each size; `None`: never. A single noisy size cannot move the result far.
fn cheapest_threshold(relative: &[(u64, f64)]) -> Option<u64> {
    let gain = |from: usize| relative[from..].iter().map(|(_, ratio)| 1.0 - ratio).sum::<f64>();
    let best = (0..relative.len()).max_by(|&a, &b| gain(a).total_cmp(&gain(b)))?;
    (gain(best) > 0.02).then(|| relative[best].0)
}

fn least(a: &[(u64, f64)], b: &[(u64, f64)]) -> Points {
    a.iter().zip(b).map(|(a, b)| (a.0, a.1.min(b.1))).collect()
}

struct Bench<'a> {
    kernels: &'static Kernels,
    /// The worker with which sharing is measured; if there is one, it has threads.
    worker: Option<&'a dyn Helpers>,
    arena: &'a mut Arena,
    watch: Watch,
    limit: Limit<'a>,
    /// The measured shapes, which all later streaming copies use.
    shapes: Vec<ShapeFrom>,
}

impl Bench<'_> {
    fn calibration(mut self) -> Calibration {
        let start = Instant::now();
        let assumed = builtin::calibration();
        self.watch.sample();
        // A small buffer cannot show the size of a large cache.
        let is_whole = self.arena.bytes == ARENA_BYTES;
        let cache_bytes = if is_whole { self.cache_bytes() } else { assumed.thresholds.cache_bytes };
        let hot_cycles = self.hot_cycles();
        let rep_before = rep_movsb_from();
        // In the background the threshold is not measured, because measuring changes it for every thread of the process.
        let rep_movsb_from_bytes = if is_whole {
            self.rep_movsb()
        } else {
            Some(rep_before as u64).filter(|bytes| *bytes < usize::MAX as u64)
        };
        set_rep_movsb_from(rep_movsb_from_bytes.map_or(usize::MAX, |bytes| bytes as usize));
        let sizes = self.arena.shape_sizes();
        self.shapes = shapes::measure(self.kernels, self.arena, &mut self.watch, sizes);
        let hand_off_ns = self.hand_off_ns();

        let mut model = Model::default();
        let hot = self.copies(CacheState::Hot);
        let cold = self.copies(CacheState::Cold);
        self.measure_other_operations(&mut model);
        let trust = if self.limit.is_over() {
            Trust { trusted: false, why: "it could not finish in time".to_owned(), ..self.watch.verdict() }
        } else {
            self.watch.verdict()
        };
        // The caller decides if the process uses the new numbers.
        set_rep_movsb_from(rep_before);

        let nt_from_hot_bytes = crossing(&hot.temporal, &hot.streaming);
        let nt_from_cold_bytes = crossing(&cold.temporal, &cold.streaming);
        let best_hot = least(&hot.temporal, &hot.streaming);
        let best_cold = least(&cold.temporal, &cold.streaming);
        for (copies, best, cache) in
            [(&hot, &best_hot, CacheState::Hot), (&cold, &best_cold, CacheState::Cold)]
        {
            // Out of time before the first size: the calibration is not trusted, so it needs no curve.
            if best.is_empty() {
                continue;
            }
            model.push(Executor::InlineTemporal, Opcode::MEMMOVE, cache, fit(&copies.temporal));
            model.push(Executor::InlineNt, Opcode::MEMMOVE, cache, fit(&copies.streaming));
            if !copies.split.is_empty() {
                model.push(Executor::Split, Opcode::MEMMOVE, cache, fit(&copies.split));
            }
            if hand_off_ns > 0 {
                let later = |line: Line| Line { base_ns: line.base_ns + hand_off_ns as f64, ..line };
                let lines = fit(best).into_iter().map(later).collect();
                model.push(Executor::Worker, Opcode::MEMMOVE, cache, lines);
            }
        }
        add_strided(&mut model);

        let split_from = |best: &[(u64, f64)], split: &[(u64, f64)]| {
            let tail = &best[best.len() - split.len()..];
            crossing(tail, split)
        };
        let split_gain = match (best_cold.last(), cold.split.last()) {
            (Some(alone), Some(shared)) => alone.1 / shared.1.max(1.0),
            _ => 0.0,
        };
        let (mut split_from_cold_bytes, mut split_from_hot_bytes) =
            (split_from(&best_cold, &cold.split), split_from(&best_hot, &hot.split));
        if self.worker.is_none() && !is_whole {
            // Without a worker, sharing keeps the built-in numbers.
            let built_in = assumed.model.curves.into_iter();
            model.curves.extend(built_in.filter(|curve| curve.executor == Executor::Split.name()));
            split_from_cold_bytes = assumed.thresholds.split_from_cold_bytes;
            split_from_hot_bytes = assumed.thresholds.split_from_hot_bytes;
        }
        let gates = [nt_from_hot_bytes, nt_from_cold_bytes, split_from_cold_bytes, split_from_hot_bytes];
        // If nothing crossed, the gate is twice the largest measured size; larger sizes are still decided individually.
        let measured_bytes = cold.temporal.last().map_or(0, |point| point.0);
        Calibration {
            format: FORMAT,
            machine: Machine::read(),
            isa: self.kernels.isa.name().to_owned(),
            time_s: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()),
            took_ms: start.elapsed().as_millis() as u64,
            trust,
            shapes: self.shapes,
            thresholds: Thresholds {
                gate_bytes: gates
                    .into_iter()
                    .flatten()
                    .min()
                    .unwrap_or(2 * measured_bytes)
                    .max(super::GATE_BYTES_MIN as u64),
                nt_from_hot_bytes,
                nt_from_cold_bytes,
                cache_bytes,
                hot_cycles,
                split_from_cold_bytes,
                split_from_hot_bytes,
                hand_off_ns,
                rep_movsb_from_bytes,
                split_gain,
            },
            model,
        }
    }

    /// Returns the largest size that is still read from cache the second time: the size at which the bandwidth is half way
    /// between that of 1 MiB and that of the whole buffer.
    fn cache_bytes(&mut self) -> u64 {
        let source = self.arena.source.base();
        let shifts = 20..=self.arena.bytes.ilog2();
        let sweep: Points = shifts
            .map(|shift| {
                let bytes = 1usize << shift;
                // SAFETY: the range lies in the arena's source buffer, which is mapped.
                let read = || unsafe { (self.kernels.compare_pattern)(source, 0, bytes) };
                read();
                let mut times: Vec<f64> = (0..3)
                    .map(|_| {
                        time(|| {
                            std::hint::black_box(read());
                        })
                    })
                    .collect();
                (bytes as u64, lower_quartile(&mut times) / bytes as f64)
            })
            .collect();
        let (first, last) = (sweep[0].1, sweep[sweep.len() - 1].1);
        let half_way = (first * last).sqrt().max(first * 1.1);
        sweep.iter().take_while(|point| point.1 <= half_way).last().map_or(1 << 20, |point| point.0)
    }

    /// Returns the limit between cached and uncached loads, in cycles; 0 if they cannot be told apart.
    fn hot_cycles(&mut self) -> u32 {
        let mut hot = Vec::new();
        let mut cold = Vec::new();
        for bytes in [256 << 10, 1 << 20, 4 << 20] {
            for _ in 0..6 {
                let (_, source) = self.arena.cold(bytes);
                // SAFETY: the window lies in the arena's source buffer, which is mapped.
                unsafe {
                    cold.extend(load_cycles::<LINES>(source, bytes).map(f64::from));
                    (self.kernels.compare_pattern)(source, 0, bytes);
                    hot.extend(load_cycles::<LINES>(source, bytes).map(f64::from));
                }
            }
        }
        hot.sort_unstable_by(f64::total_cmp);
        // The 90th percentile of hot loads against the median cold one: large hot buffers lie in the slower cache levels.
        let (hot, cold) = (hot[hot.len() * 9 / 10], median(&mut cold));
        if cold < hot * 1.2 { 0 } else { (hot * cold).sqrt() as u32 }
    }

    /// Returns the smallest size from which string moves are faster, over aligned and misaligned targets.
    fn rep_movsb(&mut self) -> Option<u64> {
        set_rep_movsb_from(usize::MAX);
        let mut rows = Vec::new();
        for shift in 12..=20 {
            let bytes = 1usize << shift;
            let repeats = ((1 << 17) / bytes).max(1);
            // Some CPUs are normal at one alignment and ten times slower at another, so all alignments count.
            let mut ratio = 0.0;
            for offset in [0, 7, 15, 32] {
                let (target, source) = self.arena.pair(0);
                let target = target.wrapping_add(offset);
                let mut least = [f64::INFINITY; 2];
                for _ in 0..3 {
                    // SAFETY: both ranges lie in the two buffers of the arena, which are mapped and do not overlap.
                    least[0] = least[0].min(time(|| unsafe {
                        (0..repeats).for_each(|_| (self.kernels.copy)(target, source, bytes));
                    }));
                    // SAFETY: both ranges lie in the two buffers of the arena, which are mapped and do not overlap.
                    least[1] = least[1].min(time(|| unsafe {
                        let copy = self.kernels.shaped.copy;
                        (0..repeats).for_each(|_| copy(target, source, bytes, Shape::STRING));
                    }));
                }
                ratio += least[1] / least[0].max(1.0) / 4.0;
            }
            rows.push((bytes as u64, ratio));
        }
        cheapest_threshold(&rows)
    }

    /// Returns the time from offering an empty share to a sleeping worker until its answer; 0 without workers.
    fn hand_off_ns(&mut self) -> u64 {
        let Some(worker) = self.worker else { return 0 };
        worker.start();
        let mut times: Vec<f64> = (0..9)
            .map(|_| {
                // Longer than any worker spins, so that the worker is asleep.
                std::thread::sleep(Duration::from_micros(400));
                time_shared(|| worker.round_trip())
            })
            .collect();
        lower_quartile(&mut times) as u64
    }

    fn window(&mut self, cache: CacheState, bytes: usize) -> (*mut u8, *const u8) {
        if cache == CacheState::Cold { self.arena.cold(bytes) } else { self.arena.pair(0) }
    }

    fn shifts(&self) -> impl Iterator<Item = u32> + use<> {
        let largest = self.arena.bytes.ilog2() - 1;
        COPY_SHIFTS.filter(move |&shift| shift <= largest)
    }

    fn copies(&mut self, cache: CacheState) -> Copies {
        let mut copies = Copies::default();
        for shift in self.shifts() {
            if self.limit.is_over() {
                break;
            }
            let bytes = 1usize << shift;
            let rounds = ((24 << 20) / bytes).clamp(4, 15);
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..rounds {
                let streaming = StoreKind::Streaming(shapes::at(&self.shapes, bytes, self.kernels.isa));
                for (stores, times) in [StoreKind::Temporal, streaming].into_iter().zip(&mut times) {
                    let (target, source) = self.window(cache, bytes);
                    if cache == CacheState::Hot {
                        self.prepare_caches(stores, target, source, bytes);
                    }
                    // SAFETY: the window lies in the two buffers of the arena, which are mapped and do not overlap.
                    times.push(time(|| unsafe { stores.copy(self.kernels, target, source, bytes) }));
                }
                if let Some(worker) = self.worker.filter(|_| shift >= 20) {
                    let streams = cache == CacheState::Cold
                        || lower_quartile(&mut times[1]) < lower_quartile(&mut times[0]);
                    let stores = if streams { streaming } else { StoreKind::Temporal };
                    let (target, source) = self.window(cache, bytes);
                    if cache == CacheState::Hot {
                        self.prepare_caches(stores, target, source, bytes);
                    }
                    times[2]
                        // SAFETY: the window lies in the two buffers of the arena, which outlive the call and do not
                        // overlap.
                        .push(time_shared(|| unsafe { worker.share(stores, target, source, bytes) }));
                }
            }
            let [temporal, streaming, split] = &mut times;
            if bytes >= 1 << 20 {
                self.watch.point(temporal);
                self.watch.point(streaming);
                self.check_load();
            }
            copies.temporal.push((bytes as u64, lower_quartile(temporal)));
            copies.streaming.push((bytes as u64, lower_quartile(streaming)));
            if !split.is_empty() {
                // The best time counts: slower ones had no free second core, which does not apply to later copies.
                copies.split.push((bytes as u64, split.iter().copied().fold(f64::INFINITY, f64::min)));
            }
        }
        copies
    }

    /// Brings both buffers into the state that repeated copies of this kind leave, as far as they fit into a cache: stores
    /// past the cache evict the target, and the next such copy pays for that.
    fn prepare_caches(&self, stores: StoreKind, target: *mut u8, source: *const u8, bytes: usize) {
        if bytes <= 8 << 20 {
            for stores in [StoreKind::Temporal, stores] {
                // SAFETY: the window lies in the two buffers of the arena, which are mapped and do not overlap.
                unsafe { stores.copy(self.kernels, target, source, bytes) };
            }
        }
    }

    /// Samples the run queue if the worker thread is asleep.
    fn check_load(&mut self) {
        if self.worker.is_none_or(|worker| worker.awake() == 0) {
            self.watch.sample();
        }
    }

    fn measure_other_operations(&mut self, model: &mut Model) {
        let all: [(Executor, Opcode); 8] = [
            (Executor::InlineTemporal, Opcode::FILL),
            (Executor::InlineNt, Opcode::FILL),
            (Executor::InlineTemporal, Opcode::COMPARE),
            (Executor::InlineTemporal, Opcode::CRC),
            (Executor::InlineTemporal, Opcode::COPY_CRC),
            (Executor::InlineNt, Opcode::COPY_CRC),
            (Executor::InlineTemporal, Opcode::DUALCAST),
            (Executor::InlineNt, Opcode::DUALCAST),
        ];
        for cache in [CacheState::Hot, CacheState::Cold] {
            let mut points = vec![Points::new(); all.len()];
            for shift in OTHER_SHIFTS {
                if self.limit.is_over() {
                    return;
                }
                let bytes = 1usize << shift;
                let mut times = vec![Vec::new(); all.len()];
                for _ in 0..if shift > 20 { 4 } else { 6 } {
                    for (&(executor, opcode), times) in all.iter().zip(&mut times) {
                        let (target, source) = self.window(cache, bytes * 2);
                        if cache == CacheState::Hot {
                            self.prepare_caches(StoreKind::Temporal, target, source, bytes);
                            // SAFETY: both ranges belong to the window, which lies in the arena and is twice as long as
                            // `bytes`.
                            unsafe { self.run(executor, opcode, target, source, bytes) };
                        }
                        // SAFETY: the window lies in the arena and is twice as long as `bytes`.
                        times.push(time(|| unsafe { self.run(executor, opcode, target, source, bytes) }));
                    }
                }
                for (points, times) in points.iter_mut().zip(&mut times) {
                    points.push((bytes as u64, lower_quartile(times)));
                }
            }
            for ((executor, opcode), points) in all.iter().zip(&points) {
                model.push(*executor, *opcode, cache, fit(points));
            }
        }
    }

    /// Runs one of the operations that `measure_other_operations` measures.
    ///
    /// # Safety
    ///
    /// Both ranges are `2 * bytes` long, readable and writable, and do not overlap.
    unsafe fn run(&self, executor: Executor, opcode: Opcode, to: *mut u8, from: *const u8, bytes: usize) {
        let k = self.kernels;
        let streams = executor == Executor::InlineNt;
        let shape = shapes::at(&self.shapes, bytes, k.isa);
        // SAFETY: the caller promises both ranges; DUALCAST's second target is the second half of the first range.
        unsafe {
            match (opcode, streams) {
                (Opcode::FILL, false) => (k.fill)(to, 0, bytes),
                (Opcode::FILL, true) => (k.shaped.fill)(to, 0, bytes, shape),
                (Opcode::COMPARE, _) => {
                    std::hint::black_box((k.compare)(to, from, bytes));
                }
                (Opcode::COPY_CRC, false) => {
                    std::hint::black_box((k.copy_crc32c)(to, from, bytes, 0));
                }
                (Opcode::COPY_CRC, true) => {
                    std::hint::black_box((k.shaped.copy_crc32c)(to, from, bytes, 0, shape));
                }
                (Opcode::DUALCAST, false) => (k.dualcast)(to, to.add(bytes), from, bytes),
                (Opcode::DUALCAST, true) => (k.shaped.dualcast)(to, to.add(bytes), from, bytes, shape),
                _ => {
                    std::hint::black_box((k.crc32c)(from, bytes, 0));
                }
            }
        }
    }
}

/// Adds curves for strided copies, which use the copy kernels; online correction learns the difference.
fn add_strided(model: &mut Model) {
    for cache in [CacheState::Hot, CacheState::Cold] {
        for executor in [Executor::InlineTemporal, Executor::InlineNt] {
            let copy = model.curves.iter().find(|curve| {
                curve.executor == executor.name() && curve.opcode == "memmove" && curve.cache == cache.name()
            });
            if let Some(lines) = copy.map(|curve| curve.lines.clone()) {
                model.push(executor, Opcode::STRIDED_COPY, cache, lines);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cheapest_threshold;

    #[test]
    fn the_threshold_is_where_the_sweep_costs_least() {
        let sweep = |ratios: &[f64]| -> Vec<(u64, f64)> {
            ratios.iter().enumerate().map(|(i, &ratio)| (1 << i, ratio)).collect()
        };
        assert_eq!(cheapest_threshold(&sweep(&[1.3, 1.1, 0.9, 0.9, 0.9])), Some(4));
        assert_eq!(cheapest_threshold(&sweep(&[1.3, 1.1, 0.9, 1.01, 0.9])), Some(4), "one noisy size");
        assert_eq!(cheapest_threshold(&sweep(&[1.0, 1.0, 0.9, 4.0])), None);
        assert_eq!(cheapest_threshold(&sweep(&[1.0, 1.0, 1.0])), None);
        assert_eq!(cheapest_threshold(&[]), None);
    }
}
