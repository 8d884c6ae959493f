// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decisions: each setting that a call leaves at `Auto` is chosen by the measured cost of earlier calls; `explain` gives the
//! reasons.
//!
//! - **Flow** `begin` (operation, mode, size class, what the caller fixed) ─▶ a way ─▶ copy, handler, reply ─▶ `learn`
//! - **Cost** of a call: nanoseconds to copy the request, plus nanoseconds at the server from the handler's start to the reply.
//!   So it counts what the copy does to its reader, and no waiting of one side for the other. In a pipeline's batch: time per
//!   answer.
//! - **Ways** 0 as the engine's cost model places it · 1 inline, on · 2 inline, off · 3 worker, on · 4 worker, off · 5 DSA, on · 6 DSA, off
//! - **Order** below [`GATE_BYTES_MIN`] no way is tried or learned; answer times are forecast from `FORECAST_FROM` on
//! - **Owner** one per session; [`Bandit`] learns with hysteresis, and explores at most one call in 16, about one in 64 in the long
//!   run
//!
//! Rocket (arXiv 2601.06331, §V) leaves device, cache injection and batching to its user, and names self-tuning as future work.

use crate::error::Error;
use crate::message::{FLAG_CACHED, FLAG_TIMED, FLAG_UNCACHED, operation_hash};
use crate::options::{CachePolicy, CallOptions, Device, Mode};
use crate::transfer::How;
use memlift_ground::observe::CacheState;
use memlift_offload::Engine;
use memlift_place::{Bandit, Cache, CallReason, GATE_BYTES_MIN, Pick, Rules, Turn};
use memlift_spec::Opcode;
use std::collections::HashMap;
use std::time::Duration;

/// Device and cache policy of each way, by the way's number.
const WAYS: [(Device, CachePolicy); 7] = [
    (Device::Auto, CachePolicy::Auto),
    (Device::Inline, CachePolicy::On),
    (Device::Inline, CachePolicy::Off),
    (Device::Worker, CachePolicy::On),
    (Device::Worker, CachePolicy::Off),
    (Device::Dsa, CachePolicy::On),
    (Device::Dsa, CachePolicy::Off),
];
/// Batch sizes that a pipeline chooses from: calls per wake-up of the server.
pub(super) const BATCHES: [usize; 3] = [1, 4, 16];
/// Answers over which a pipeline measures its time per answer.
pub(super) const PACE_ANSWERS: usize = 32;
/// Smallest payload whose answer time is forecast, per operation, bytes.
pub(super) const FORECAST_FROM: u64 = 64 << 10;
/// Most keys, and most operations, that are learned about. Calls beyond them take the first way and are not measured.
const KEYS_MAX: usize = 256;

/// Properties that calls have in common when one decision covers them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    operation: u64,
    mode: u8,
    /// Power of two of the size.
    class: u8,
    fixed: (Device, CachePolicy),
}

impl Key {
    fn new(operation: u64, mode: Mode, bytes: u64, options: &CallOptions) -> Key {
        let class = bytes.max(1).ilog2() as u8;
        Key { operation, mode: mode as u8, class, fixed: (options.device, options.cache) }
    }

    /// Marks the ways that respect what the caller fixed, and gives the one to begin with.
    fn ways(self, cached: bool) -> ([bool; WAYS.len()], usize) {
        let (device, cache) = self.fixed;
        let there = |device: Device| device.check().is_ok();
        let (worker, dsa) = (there(Device::Worker), there(Device::Dsa));
        let allowed = WAYS.map(|way| match way {
            (Device::Auto, _) => device == Device::Auto && cache == CachePolicy::Auto,
            (Device::Worker, _) if !worker => false,
            (Device::Dsa, _) if !dsa => false,
            (by, stays) => {
                (device == Device::Auto || device == by) && (cache == CachePolicy::Auto || cache == stays)
            }
        });
        let first = (0..WAYS.len()).find(|&way| {
            let fits = WAYS[way].1 == if cached { CachePolicy::On } else { CachePolicy::Off };
            allowed[way] && (way == 0 || fits)
        });
        (allowed, first.or_else(|| allowed.iter().position(|&allowed| allowed)).unwrap_or(0))
    }
}

/// A call whose cost will be learned.
#[derive(Debug)]
pub(super) struct Trial {
    key: Key,
    way: usize,
    bytes: u64,
}

/// How a call is to be made.
#[derive(Debug)]
pub(super) struct Plan {
    pub how: How,
    /// Flags of the call's message: how the server copies the reply, and whether it reports its time.
    pub flags: u8,
    pub trial: Option<Trial>,
}

impl Plan {
    /// The engine's cost model places the copy, and nothing is measured.
    pub const PLAIN: Plan = Plan { how: How::Placed(Cache::Auto), flags: 0, trial: None };

    fn told(device: Device, cache: CachePolicy, why: CallReason) -> Plan {
        let streams = cache == CachePolicy::Off;
        Plan {
            how: How::Told { by: device.executor(), streams, why: why.into() },
            flags: if streams { FLAG_UNCACHED } else { FLAG_CACHED },
            trial: None,
        }
    }

    fn of(way: usize, cached: bool, why: CallReason) -> Plan {
        let (device, cache) = WAYS[way];
        if device != Device::Auto {
            return Plan::told(device, cache, why);
        }
        let (known, flags) = if cached { (Cache::Auto, 0) } else { (Cache::Cold, FLAG_UNCACHED) };
        let how = match why {
            CallReason::Explored => How::Tried(known, why.into()),
            _ => How::Placed(known),
        };
        Plan { how, flags, trial: None }
    }
}

/// Regression line of an operation's answer time over its size, as moving averages: L = a · bytes + b.
#[derive(Clone, Copy, Debug, Default)]
struct Forecast {
    samples: u32,
    bytes: f64,
    ns: f64,
    covariance: f64,
    variance: f64,
}

impl Forecast {
    fn learn(&mut self, bytes: f64, ns: f64) {
        self.samples = self.samples.saturating_add(1);
        let weight = (1.0 / f64::from(self.samples)).max(1.0 / 16.0);
        // A wait far off the line is mostly a preemption, or a queue: it moves the line by a bounded step.
        let ns = if self.samples > 4 { ns.min(self.at(bytes) * 2.0) } else { ns };
        let (off_bytes, off_ns) = (bytes - self.bytes, ns - self.ns);
        self.bytes += off_bytes * weight;
        self.ns += off_ns * weight;
        self.covariance = (1.0 - weight) * (self.covariance + weight * off_bytes * off_ns);
        self.variance = (1.0 - weight) * (self.variance + weight * off_bytes * off_bytes);
    }

    fn at(&self, bytes: f64) -> f64 {
        // Sizes that hardly differ give no usable slope.
        let slope = if self.variance > self.bytes { self.covariance / self.variance } else { 0.0 };
        (self.ns + slope.max(0.0) * (bytes - self.bytes)).max(0.0)
    }
}

/// Costs and forecasts that a session has learned.
#[derive(Default, Debug)]
pub(super) struct Decisions {
    ways: HashMap<Key, Bandit<{ WAYS.len() }>>,
    batches: HashMap<u8, Bandit<{ BATCHES.len() }>>,
    forecasts: HashMap<u64, Forecast>,
}

impl Decisions {
    /// Plans a call that is at least [`GATE_BYTES_MIN`] long, or of which the caller has fixed something. `cached`: the cache
    /// policy to begin with is `On`.
    pub fn begin(
        &mut self,
        operation: u64,
        mode: Mode,
        bytes: u64,
        options: &CallOptions,
        cached: bool,
    ) -> Result<Plan, Error> {
        options.device.check()?;
        if options.leave_nothing() || bytes < GATE_BYTES_MIN as u64 {
            let cache = match options.cache {
                CachePolicy::Auto if cached => CachePolicy::On,
                CachePolicy::Auto => CachePolicy::Off,
                cache => cache,
            };
            let why = if options.leave_nothing() { CallReason::Requested } else { CallReason::Small };
            return Ok(Plan::told(options.device, cache, why));
        }
        let key = Key::new(operation, mode, bytes, options);
        let full = self.ways.len() >= KEYS_MAX && !self.ways.contains_key(&key);
        let (allowed, first) = key.ways(cached);
        if full {
            return Ok(Plan::of(first, cached, CallReason::First));
        }
        let bandit = self.ways.entry(key).or_insert_with(|| Bandit::starting_with(first, &Rules::CALLS));
        let Pick { way, turn, .. } = bandit.pick_of(&allowed);
        let why = if turn == Turn::Explored { CallReason::Explored } else { reason(bandit) };
        let mut plan = Plan::of(way, cached, why);
        plan.flags |= FLAG_TIMED;
        plan.trial = Some(Trial { key, way, bytes });
        Ok(plan)
    }

    /// Learns the cost of a call. A server that reports wrong times spoils only its own clients' choices.
    pub fn learn(&mut self, trial: &Trial, copy_ns: u64, took_ns: u64) {
        if let Some(bandit) = self.ways.get_mut(&trial.key) {
            bandit.learn(trial.way, copy_ns.saturating_add(took_ns) as f64 / trial.bytes as f64);
        }
    }

    /// Chooses how many calls a pipeline rings for at once; gives the size class and the index into [`BATCHES`].
    pub fn batch(&mut self, bytes: u64) -> (u8, usize) {
        let class = bytes.max(1).ilog2() as u8;
        let bandit = self.batches.entry(class).or_insert_with(|| Bandit::starting_with(0, &Rules::CALLS));
        (class, bandit.pick_of(&[true; BATCHES.len()]).way)
    }

    /// Learns the time per answer of a batch size.
    pub fn learn_batch(&mut self, class: u8, way: usize, ns_per_answer: f64) {
        if let Some(bandit) = self.batches.get_mut(&class) {
            bandit.learn(way, ns_per_answer);
        }
    }

    /// Returns the expected answer time of a call of that size; `None`: fewer than four answers were measured.
    pub fn forecast(&self, operation: u64, bytes: u64) -> Option<Duration> {
        let forecast = self.forecasts.get(&operation).filter(|forecast| forecast.samples >= 4)?;
        Some(Duration::from_nanos(forecast.at(bytes as f64) as u64))
    }

    /// Learns how long the answer to such a call took.
    pub fn learn_wait(&mut self, operation: u64, bytes: u64, waited: Duration) {
        if self.forecasts.len() < KEYS_MAX || self.forecasts.contains_key(&operation) {
            self.forecasts.entry(operation).or_default().learn(bytes as f64, waited.as_nanos() as f64);
        }
    }

    /// Explains why calls like this one are made as they are.
    pub fn explain(
        &self,
        operation: &str,
        mode: Mode,
        bytes: u64,
        options: &CallOptions,
        cached: bool,
    ) -> Explanation {
        let key = Key::new(operation_hash(operation), mode, bytes, options);
        let (allowed, first) = key.ways(cached);
        let bandit = self.ways.get(&key);
        let in_use = bandit.and_then(Bandit::in_use).unwrap_or(first);
        let (device, cache) = WAYS[in_use];
        let fixed = options.leave_nothing();
        let known = |way| bandit.and_then(|bandit| bandit.known(way));
        let candidates = (0..WAYS.len()).filter(|&way| allowed[way]).map(|way| {
            let (device, cache) = WAYS[way];
            let (ns_per_byte, samples) =
                known(way).map_or((None, 0), |known| (Some(known.cost), known.samples));
            Candidate { device, cache, ns_per_byte, samples }
        });
        let why = match bandit {
            _ if fixed => CallReason::Requested,
            _ if bytes < GATE_BYTES_MIN as u64 => CallReason::Small,
            None => CallReason::First,
            Some(bandit) => reason(bandit),
        };
        let forecast = self.forecast(key.operation, bytes);
        let batch = self.batches.get(&key.class);
        Explanation {
            operation: operation.to_owned(),
            bytes,
            mode,
            device: if fixed { options.device } else { device },
            cache: if fixed { options.cache } else { cache },
            reason: why.text().to_owned(),
            candidates: candidates.collect(),
            decisions: bandit.map_or(0, Bandit::picks),
            explorations: bandit.map_or(0, Bandit::explorations),
            batch: BATCHES[batch.and_then(Bandit::in_use).unwrap_or(0)],
            expected_ns: forecast.map(|expected| u64::try_from(expected.as_nanos()).unwrap_or(u64::MAX)),
            placement: Engine::global().explain(Opcode::MEMMOVE, bytes as usize, CacheState::Unknown),
        }
    }
}

/// Returns the reason for the way in use.
fn reason<const N: usize>(bandit: &Bandit<N>) -> CallReason {
    if bandit.switches() == 0 { CallReason::Begun } else { CallReason::Cheapest }
}

/// One way to make a call, with its measured cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Device that copies; `Auto`: the engine's cost model names it.
    pub device: Device,
    /// Cache policy of the copies; `Auto`: the engine's cost model sets it.
    pub cache: CachePolicy,
    /// Recent cost of copying the request, the handler and copying the reply, nanoseconds per byte of request; `None`: not tried.
    pub ns_per_byte: Option<f64>,
    /// How often it was measured.
    pub samples: u32,
}

/// A decision with everything it was made from.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The operation's name.
    pub operation: String,
    /// Size of the request, bytes.
    pub bytes: u64,
    /// Mode in which it is called.
    pub mode: Mode,
    /// Device that copies such requests now.
    pub device: Device,
    /// Cache policy of such calls' copies now.
    pub cache: CachePolicy,
    /// Reason of this choice, in words.
    pub reason: String,
    /// All ways that the options leave open.
    pub candidates: Vec<Candidate>,
    /// Calls decided about so far.
    pub decisions: u64,
    /// How many of them tried another way, to measure its cost.
    pub explorations: u64,
    /// Batch size of a pipeline that leaves it open: calls per wake-up of the server.
    pub batch: usize,
    /// Expected time from sending the call to its answer (L = a · bytes + b), nanoseconds; `None`: not known.
    pub expected_ns: Option<u64>,
    /// Decision of the engine's cost model about the copy alone.
    pub placement: memlift_place::Explanation,
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift_ground::observe::Executor;

    #[test]
    fn a_line_through_sizes_and_times_is_found_and_follows() {
        let mut forecast = Forecast::default();
        for round in 0..200u32 {
            let bytes = f64::from(1 << (16 + round % 5));
            forecast.learn(bytes, 20_000.0 + bytes * 0.5);
        }
        for bytes in [65_536.0, 500_000.0, 1_048_576.0] {
            let expected = 20_000.0 + bytes * 0.5;
            assert!(
                (forecast.at(bytes) - expected).abs() < expected * 0.05,
                "{bytes}: {}",
                forecast.at(bytes)
            );
        }
        (0..200).for_each(|_| forecast.learn(1_048_576.0, 300_000.0));
        assert!((forecast.at(1_048_576.0) - 300_000.0).abs() < 10_000.0);
    }

    #[test]
    fn what_the_caller_fixes_stays_fixed() {
        let mut decisions = Decisions::default();
        let bytes = GATE_BYTES_MIN as u64 * 2;
        for cache in [CachePolicy::On, CachePolicy::Off] {
            let options = CallOptions { cache, device: Device::Inline, ..CallOptions::default() };
            let plan = decisions.begin(1, Mode::Sync, bytes, &options, true).unwrap();
            assert_eq!(
                plan.how,
                How::Told {
                    by: Executor::InlineTemporal,
                    streams: cache == CachePolicy::Off,
                    why: CallReason::Requested.into()
                }
            );
            assert!(plan.trial.is_none());
            let open = CallOptions { device: Device::Auto, ..options };
            for _ in 0..1_000 {
                let plan = decisions.begin(1, Mode::Sync, bytes, &open, true).unwrap();
                assert!(
                    matches!(plan.how, How::Told { streams, .. } if streams == (cache == CachePolicy::Off))
                );
            }
        }
        let dsa = CallOptions { device: Device::Dsa, ..CallOptions::default() };
        assert!(matches!(
            decisions.begin(1, Mode::Sync, bytes, &dsa, true),
            Err(Error::DeviceUnavailable { device: "dsa", .. })
        ));
    }

    #[test]
    fn the_cheapest_way_wins_in_each_mode_and_says_so() {
        let bytes = GATE_BYTES_MIN as u64 * 2;
        let options = CallOptions::default();
        let mut decisions = Decisions::default();
        for (mode, best) in [(Mode::Sync, 1), (Mode::Pipelined, 2)] {
            for _ in 0..2_000 {
                let plan = decisions.begin(operation_hash("x"), mode, bytes, &options, true).unwrap();
                let trial = plan.trial.expect("measured");
                decisions.learn(&trial, bytes, if trial.way == best { 0 } else { bytes });
            }
            let said = decisions.explain("x", mode, bytes, &options, true);
            assert_eq!((said.device, said.cache), WAYS[best]);
            assert_eq!(said.reason, "measured to be the cheapest, copy and handler together");
            assert!(said.explorations * 16 <= said.decisions && said.decisions == 2_000);
        }
    }

    #[test]
    fn a_trial_is_named_so_and_so_is_what_the_caller_fixed() {
        let (bytes, options) = (GATE_BYTES_MIN as u64 * 2, CallOptions::default());
        let mut decisions = Decisions::default();
        let mut tried = 0;
        for _ in 0..500 {
            let plan = decisions.begin(1, Mode::Sync, bytes, &options, true).unwrap();
            let trial = plan.trial.expect("measured");
            let explored = match plan.how {
                How::Told { why, .. } | How::Tried(_, why) => why == CallReason::Explored,
                How::Placed(_) => false,
            };
            tried += u64::from(explored);
            assert!(explored || trial.way == 0, "nothing else is better than the way to begin with");
            decisions.learn(&trial, bytes, bytes);
        }
        let key = Key::new(1, Mode::Sync, bytes, &options);
        assert_eq!(tried, decisions.ways[&key].explorations());
        assert!(tried > 0);
        let fixed = CallOptions { device: Device::Inline, cache: CachePolicy::On, ..options };
        let plan = decisions.begin(1, Mode::Sync, bytes, &fixed, true).unwrap();
        assert!(matches!(plan.how, How::Told { why, .. } if why == CallReason::Requested));
    }
}
