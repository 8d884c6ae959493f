// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Placement decides for every service: the executor of an operation, the stores of a message, the device of a call, the
//! place where a walk runs.
//!
//! - **Flow** costs of the ways ──`select`──▶ the cheapest, with hysteresis and a little exploration ──▶ measured cost ──▶
//!   next decision. Each caller has its [`Rules`] and its type of reasons (`reason`)
//! - **Costs** of a copy ([`Placer`]): (opcode, size, cache state) ──`Model`──▶ predicted ns × `Correction`. Of a message
//!   ([`MessagePlacer`]), a call and a walk ([`Bandit`]): learned from those before
//! - **Model** L = ns_per_byte · size + base_ns, one line per stretch of sizes, for each (executor, opcode, cache
//!   state). From `memlift calibrate` (cached on disk), or built-in and conservative until then.
//! - **Shape** the order in which streaming copies walk memory (`shapes`); other routines start from it and learn
//!   (`refine`)
//! - **Order** decisions take no lock: corrections are single relaxed words, and a lost update does no harm
//! - **Not here** running operations. Operations below the gate's size are not placed.
//!
//! Rocket (§IV-C) derives the same two coefficients per machine with a script; here they are also corrected while the
//! program runs, and every decision can be explained (`explain`).

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "flushes buffers of its own from the caches")]
mod arena;
#[expect(unsafe_code, reason = "lowers the priority of its thread")]
mod background;
mod bandit;
mod builtin;
#[expect(unsafe_code, reason = "times kernels on buffers of its own")]
mod calibrate;
mod contention;
mod correct;
mod explain;
mod fit;
mod machine;
#[expect(unsafe_code, reason = "times single loads of memory that the caller vouches for")]
mod message;
mod model;
mod quiet;
mod reason;
mod refine;
#[expect(unsafe_code, reason = "times single loads of memory that the caller vouches for")]
mod residency;
mod select;
#[expect(unsafe_code, reason = "times kernels on calibration's buffers")]
mod shapes;
mod store;
#[expect(unsafe_code, reason = "copies between ranges that its callers vouch for")]
mod stores;

pub use bandit::{Bandit, Known, Pick};
pub use calibrate::{CalibrateError, Helpers, calibrate, calibrate_alone};
pub use explain::{Candidate, Explanation};
pub use machine::Machine;
pub use message::{
    Message, MessageExplanation, MessagePlacer, PROBE_BYTES_MIN, StoreChoice, adaptive_effort,
};
pub use model::{Calibration, Curve, Line, Model, Thresholds};
pub use quiet::Trust;
pub use reason::{CallReason, CopyReason, Reason, StoreReason, WalkReason, reason_text};
pub use select::{Rules, Turn};
pub use shapes::ShapeFrom;
pub use store::{Loaded, Origin, StoreError, default_path};

pub use background::Background;
pub use quiet::idle_cores;
pub use refine::{PIECE_BYTES, Picked, Refine};
pub use store::{default_or, is_worth_measuring, load, save};
pub use stores::{Store, StoreKind};

/// Makes the kernels use the shapes of a calibration.
pub fn apply_shapes(calibration: &Calibration) {
    shapes::apply(&calibration.shapes);
}

use correct::Correction;
use memlift_ground::observe::{CacheState, Executor};
use memlift_kernels::Isa;
use memlift_spec::Opcode;
use residency::Residency;
use select::{Past, select};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Smallest size that is placed, in bytes: from here on, reading the clock costs less than one percent of the work.
pub const GATE_BYTES_MIN: usize = 512 * 1024;
/// A split also takes another core's time, so it is only chosen if it looks better than one core by this factor.
const SPLIT_COST: f64 = 1.2;
/// Executors that a synchronous call chooses from.
const EXECUTORS: [Executor; 3] = [Executor::InlineTemporal, Executor::InlineNt, Executor::Split];

/// Returns the factor by which a predicted time is multiplied before executors are compared.
fn price(executor: Executor) -> f64 {
    if executor == Executor::Split { SPLIT_COST } else { 1.0 }
}

/// The caller's knowledge about the cache state of its buffers, and about the next reader of the target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Cache {
    /// Determine it: by size, and for large buffers by timing a few loads.
    #[default]
    Auto,
    /// The buffers are in the cache, or the target will be read immediately.
    Hot,
    /// The buffers are not in the cache, and the target will not be read soon.
    Cold,
}

/// Chooses an executor for each operation.
#[derive(Debug)]
pub struct Placer {
    /// Instruction set of the kernels whose executors are compared.
    isa: Isa,
    loaded: RwLock<Loaded>,
    /// Copies of the numbers that every decision reads, so that decisions take no lock.
    fast: Fast,
    correction: Correction,
    /// Index in [`EXECUTORS`] of the one in use per (opcode, cache state, size class), plus one; 0: none yet.
    incumbents: Box<[AtomicU32]>,
    decisions: AtomicU32,
}

#[derive(Debug)]
struct Fast {
    gate_bytes: AtomicUsize,
    cache_bytes: AtomicUsize,
    hot_cycles: AtomicU32,
    model: model::Table,
}

/// Decision for one operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// Executor that runs the operation.
    pub executor: Executor,
    /// Cache state that was sampled or assumed.
    pub cache: CacheState,
    /// Predicted time, nanoseconds.
    pub predicted_ns: f64,
    /// Reason of the choice.
    pub why: Reason,
}

impl Placer {
    /// Makes a placer that decides by `loaded` for the kernels of `isa`.
    pub fn new(loaded: Loaded, isa: Isa) -> Placer {
        let placer = Placer {
            isa,
            fast: Fast {
                gate_bytes: AtomicUsize::new(GATE_BYTES_MIN),
                cache_bytes: AtomicUsize::new(0),
                hot_cycles: AtomicU32::new(0),
                model: model::Table::default(),
            },
            correction: Correction::default(),
            incumbents: (0..model::OPCODES * 2 * correct::CLASSES).map(|_| AtomicU32::new(0)).collect(),
            decisions: AtomicU32::new(0),
            loaded: RwLock::new(loaded.clone()),
        };
        placer.replace(loaded);
        placer
    }

    /// Decides by another calibration from now on; corrections start again from 1.
    pub fn replace(&self, loaded: Loaded) {
        let thresholds = &loaded.calibration.thresholds;
        let gate = GATE_BYTES_MIN.max(thresholds.gate_bytes as usize);
        self.fast.gate_bytes.store(gate, Ordering::Relaxed);
        self.fast.cache_bytes.store(thresholds.cache_bytes as usize, Ordering::Relaxed);
        self.fast.hot_cycles.store(thresholds.hot_cycles, Ordering::Relaxed);
        self.fast.model.fill(&loaded.calibration.model);
        self.correction.reset();
        self.incumbents.iter().for_each(|incumbent| incumbent.store(0, Ordering::Relaxed));
        *self.loaded.write().unwrap_or_else(std::sync::PoisonError::into_inner) = loaded;
    }

    /// Returns the calibration in use and its origin.
    pub fn loaded(&self) -> Loaded {
        self.loaded.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Returns the smallest size that is decided about.
    pub fn gate_bytes(&self) -> usize {
        self.fast.gate_bytes.load(Ordering::Relaxed)
    }

    /// Returns the cache state given by `hint` or, without a hint, by a sample of the buffers.
    ///
    /// # Safety
    ///
    /// `source` and `target` are readable for `bytes`.
    #[expect(unsafe_code, reason = "hands raw buffers to the sampler")]
    pub unsafe fn cache_state(
        &self,
        hint: Cache,
        target: *const u8,
        source: *const u8,
        bytes: usize,
    ) -> CacheState {
        match hint {
            Cache::Hot => CacheState::Hot,
            Cache::Cold => CacheState::Cold,
            Cache::Auto => {
                let cycles = self.fast.hot_cycles.load(Ordering::Relaxed);
                // SAFETY: the caller promises that both buffers are readable for `bytes`.
                match unsafe { Residency::sample(target, source, bytes, cycles) } {
                    Residency::Hot => CacheState::Hot,
                    Residency::Cold => CacheState::Cold,
                    Residency::Unknown => self.guess(bytes),
                }
            }
        }
    }

    /// Returns the most cycles, timing included, of a load that counts as cached; 0: calibration could not tell.
    pub fn hot_cycles(&self) -> u32 {
        self.fast.hot_cycles.load(Ordering::Relaxed)
    }

    /// Guesses the cache state without a sample: a buffer much smaller than the cache counts as cached.
    fn guess(&self, bytes: usize) -> CacheState {
        let cache = self.fast.cache_bytes.load(Ordering::Relaxed);
        if bytes.saturating_mul(4) <= cache { CacheState::Hot } else { CacheState::Cold }
    }

    /// Returns the predicted nanoseconds, corrected by later measurements; `None`: the executor was not calibrated
    /// for this operation.
    pub fn predict_ns(
        &self,
        executor: Executor,
        opcode: Opcode,
        bytes: usize,
        cache: CacheState,
    ) -> Option<f64> {
        let line = self.fast.model.line(executor, opcode, cache, bytes)?;
        Some(line.predict_ns(bytes) * self.correction.factor(executor, opcode, cache, bytes))
    }

    /// Chooses the executor for an operation whose cache state is known. `allowed` returns true for an executor that
    /// is available now.
    pub fn choose(
        &self,
        opcode: Opcode,
        bytes: usize,
        cache: CacheState,
        allowed: impl Fn(Executor) -> bool,
    ) -> Choice {
        let rules = &Rules::COPIES;
        let mut costs = [f64::INFINITY; EXECUTORS.len()];
        let mut least = f64::INFINITY;
        for (cost, executor) in costs.iter_mut().zip(EXECUTORS) {
            let Some(predicted) = self.predict_ns(executor, opcode, bytes, cache) else { continue };
            let predicted = predicted * price(executor);
            // `allowed` may make a system call, so it is only called for executors that could be chosen.
            if predicted < least * rules.explore_within && allowed(executor) {
                *cost = predicted;
                least = least.min(predicted);
            }
        }
        let slot = &self.incumbents[correct::slot_of(opcode, cache, bytes)];
        let incumbent = slot.load(Ordering::Relaxed);
        let past = Past {
            decisions: self.decisions.fetch_add(1, Ordering::Relaxed),
            in_use: incumbent.checked_sub(1).map(|way| way as usize),
            may_switch: true,
        };
        let (way, why) = match select(rules, &costs, past, |_| 0) {
            Some((way, Turn::Cheapest)) => {
                slot.store(way as u32 + 1, Ordering::Relaxed);
                (way, CopyReason::Fastest)
            }
            Some((way, Turn::Held)) => (way, CopyReason::Incumbent),
            Some((way, Turn::Explored)) => (way, CopyReason::Explored),
            None => {
                return Choice {
                    executor: EXECUTORS[0],
                    cache,
                    predicted_ns: 0.0,
                    why: CopyReason::Only.into(),
                };
            }
        };
        let executor = EXECUTORS[way];
        Choice { executor, cache, predicted_ns: costs[way] / price(executor), why: why.into() }
    }

    /// Updates the correction with the time that a chosen operation took.
    pub fn learn(&self, choice: &Choice, opcode: Opcode, bytes: usize, measured_ns: f64) {
        let line = self.fast.model.line(choice.executor, opcode, choice.cache, bytes);
        if let Some(line) = line {
            let ratio = measured_ns / line.predict_ns(bytes).max(1.0);
            self.correction.learn(choice.executor, opcode, choice.cache, bytes, ratio);
        }
    }

    /// Returns everything about a decision: each executor's prediction with its coefficients, the choice and its
    /// reason.
    pub fn explain(&self, opcode: Opcode, bytes: usize, cache: CacheState) -> Explanation {
        explain::explain(self, opcode, bytes, cache)
    }
}
