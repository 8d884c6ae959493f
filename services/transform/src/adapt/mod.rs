// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Placement per message: through the cache or past it, decided from what is measured, without counters or privileges.
//!
//! - **Flow** message ──`residency` (a few loads of lines that it needs anyway)──▶ cached: through the cache
//!   not cached ──▶ cost per byte of each store as measured (`cost`) × price of what it does to neighbours
//!   (`contention`) ──▶ least, with hysteresis and a least stay ──▶ run ──▶ measured ──▶ `cost`
//! - **Order** relaxed words and one lock that only ever is tried: a lost update costs nothing
//! - **Probe** `contention` and `knee` are measured by the calling thread between messages, for at most one percent of
//!   the time since the last measurement, only after some MiB went through, and never while nothing does
//! - **Not here** the caller's use of the target afterwards: a caller that reads it at once says `Cache::Hot`
//!
//! SmartDIMM asks for each message if its source is in DRAM, and takes the miss rate of the last-level cache as the answer for
//! all messages. Here each message is looked at, and the cost of a dense sweep over memory of our own stands in for the miss rate
//! (`contention_percent` is the paper's threshold).

mod contention;
mod cost;
mod explain;
mod knee;
#[expect(unsafe_code, reason = "reads counters of the kernel")]
mod perf;
mod residency;
mod resctrl;
mod ring;
mod sweep;

pub use contention::Contention;
pub use explain::Explanation;

use crate::store::Store;
use contention::Watch;
use cost::Costs;
use memlift_ground::config::{Placement, TransformConfig};
use memlift_ground::observe::{self, CacheState, DecisionRecord};
use memlift_offload::Engine;
use memlift_place::Cache;
use memlift_spec::Opcode;
use residency::Residency;

/// Messages below this are not looked at: a look would cost more than it could save.
pub const GATE_BYTES: usize = 4096;

/// Upper bound of the weight of a footprint while no contention is measured: it only decides between stores that are about equal.
const QUIET_WEIGHT: f64 = 0.05;

/// Why a store was taken. The codes are those of the stats page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Why {
    /// Source or target is in cache.
    Cached = 16,
    /// Streaming was measured to be faster.
    StreamingFaster = 17,
    /// Ordinary stores were measured to be faster.
    TemporalFaster = 18,
    /// Neighbours are spared.
    Contended = 19,
    /// As before: the least stay is not over, or nothing else is clearly better.
    Held = 20,
    /// Tried to keep its measurement true.
    Tried = 21,
    /// The caller or the configuration fixed it.
    Told = 22,
    /// Too small to be looked at, or a copy onto itself, which stores nothing.
    Small = 23,
}

/// How one message is run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decision {
    /// How its bytes are read and written.
    pub store: Store,
    /// State of its bytes in the caches, as measured or told.
    pub cache: CacheState,
    /// True if the caches were contended.
    pub contended: bool,
    /// Reason for the store.
    pub why: Why,
    /// Expected time, nanoseconds; 0: nothing was known.
    pub predicted_ns: f64,
}

/// Properties of a message that its placement depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub opcode: Opcode,
    pub bytes: usize,
    pub source: *const u8,
    pub target: *const u8,
    pub target_bytes: usize,
    pub cache: Cache,
}

/// The placement: decides about messages and learns from their times.
#[derive(Debug)]
pub struct Adapt {
    settings: TransformConfig,
    residency: Residency,
    costs: Costs,
    watch: Watch,
}

impl Adapt {
    /// Measures nothing before the first message.
    pub fn new(settings: &TransformConfig) -> Adapt {
        Adapt {
            residency: Residency::default(),
            costs: Costs::default(),
            watch: Watch::new(f64::from(settings.contention_percent) / 100.0, settings.probe),
            settings: settings.clone(),
        }
    }

    /// Returns the price of a store: a factor on its cost for what it does to neighbours. Each footprint is its measured slowdown
    /// of a neighbour on the same core, relative to ordinary stores (`examples/corunner.rs`). In a contended cache the footprint
    /// costs more the smaller the budget is; in a quiet one it only decides where times are about equal.
    fn price(&self, store: Store, contended: bool) -> f64 {
        let footprint = match store {
            Store::Temporal => 1.0,
            Store::Streaming => 0.6,
            Store::Isolated => 0.1,
        };
        let budget = f64::from(self.settings.slowdown_percent.max(1)) / 100.0;
        let weight = (0.05 / budget).clamp(0.01, 4.0);
        1.0 + footprint * if contended { weight } else { weight.min(QUIET_WEIGHT) }
    }

    /// Decides how one message is read and written.
    ///
    /// # Safety
    ///
    /// Source and target of the message are readable for their bytes.
    #[expect(unsafe_code, reason = "looks at lines that the caller vouches for")]
    pub(crate) unsafe fn decide(&self, engine: &Engine, message: &Message, now_ns: u64) -> Decision {
        let contended = self.watch.contended();
        let told = |store, cache| Decision { store, cache, contended, why: Why::Told, predicted_ns: 0.0 };
        let fixed = match self.settings.placement {
            Placement::Adaptive => None,
            Placement::Temporal => Some(Store::Temporal),
            Placement::Streaming => Some(Store::Streaming),
            Placement::Isolated => Some(Store::Isolated),
        };
        if let Some(store) = fixed {
            return told(store, CacheState::Unknown);
        }
        if message.bytes < GATE_BYTES {
            return Decision { why: Why::Small, ..told(Store::Temporal, CacheState::Unknown) };
        }
        let cached = match message.cache {
            Cache::Hot => return told(Store::Temporal, CacheState::Hot),
            Cache::Cold => false,
            // SAFETY: source and target of the message are readable for their bytes, as the caller vouches.
            Cache::Auto => unsafe { self.residency.cached(engine, message, self.watch.knee_bytes()) },
        };
        if cached {
            return Decision { why: Why::Cached, ..told(Store::Temporal, CacheState::Hot) };
        }
        let choice =
            self.costs.choose(message.opcode, message.bytes, now_ns, |store| self.price(store, contended));
        Decision {
            store: choice.store,
            cache: CacheState::Cold,
            contended,
            why: choice.why,
            predicted_ns: choice.predicted_ns,
        }
    }

    /// Learns how long a message took, and lets the probe have its turn.
    pub(crate) fn learn(&self, message: &Message, decision: &Decision, start_ns: u64, end_ns: u64) {
        if message.bytes < GATE_BYTES {
            return observe::count(message.opcode, message.bytes as u64);
        }
        let took_ns = end_ns.saturating_sub(start_ns);
        if decision.cache == CacheState::Cold {
            self.costs.learn(message.opcode, message.bytes, decision.store, took_ns);
        }
        observe::record(decision.store.executor(), message.opcode, message.bytes as u64, took_ns, true);
        observe::decide(DecisionRecord {
            time_ns: start_ns,
            opcode: message.opcode,
            executor: decision.store.executor(),
            cache_state: decision.cache,
            size: message.bytes as u64,
            predicted_ns: decision.predicted_ns as u64,
            measured_ns: took_ns,
            reason: decision.why as u16,
        });
        self.watch.passed(message.bytes, end_ns);
    }

    /// Counts a message that was refused.
    #[cold]
    pub(crate) fn refused(&self, message: &Message, start_ns: u64, end_ns: u64) {
        let took_ns = end_ns.saturating_sub(start_ns);
        observe::record(Store::Temporal.executor(), message.opcode, message.bytes as u64, took_ns, false);
    }

    /// Replaces the source that measures contention, for instance by a counter of the operator's own.
    pub fn set_contention(&self, source: Box<dyn Contention>) {
        self.watch.replace(source);
    }

    /// Returns the inputs of a decision about such a message, as they are now.
    pub(crate) fn explain(&self, opcode: Opcode, bytes: usize) -> Explanation {
        explain::explain(self, opcode, bytes)
    }
}
