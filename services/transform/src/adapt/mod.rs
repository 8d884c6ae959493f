// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Placement: decides for each message if it goes through the cache or past it, from measurements that need no privileges.
//!
//! - **Flow** `residency` times loads of a few lines that the message needs anyway. A cached message goes through the cache. For any
//!   other, the cost per byte of each store (`cost`) is multiplied by the price of what the store does to neighbours (`contention`), and
//!   the cheapest is taken, with hysteresis and a shortest time between changes. The time that the message took is given back to `cost`.
//! - **Order** relaxed atomic words, and one lock that is only tried, never waited for: a lost update does no harm.
//! - **Probe** the calling thread measures `contention` and `knee` between messages, for at most one percent of the time, and only after
//!   some MiB were transformed; an idle process measures nothing.
//! - **Not here** the caller's use of the target afterwards: a caller that reads the target next passes `Cache::Hot`.
//!
//! SmartDIMM uses one miss rate of the last-level cache to tell, for all messages, if sources are in DRAM. Here each message is
//! probed, and the cost of a dense sweep over memory of our own replaces the miss rate (`contention_percent` is the paper's threshold).

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

/// Smaller messages are not probed: the probe would cost more than it could save.
pub const PROBE_BYTES_MIN: usize = 4096;

/// Upper bound of a footprint's weight while no contention is measured: then it only decides between stores of about equal cost.
const QUIET_WEIGHT: f64 = 0.05;

/// Reason for the choice of a store. The codes are those of the stats page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum PlacementReason {
    /// Source or target is in cache.
    Cached = 16,
    /// A streaming or isolated store was measured to be at least as fast as ordinary stores.
    StreamingFaster = 17,
    /// Ordinary stores were measured to be faster.
    TemporalFaster = 18,
    /// Ordinary stores are as fast or faster, but the neighbours are to be spared.
    Contended = 19,
    /// The previous store stays: it was chosen too recently, or no other is clearly better.
    Held = 20,
    /// The store was tried to refresh its measurement.
    Tried = 21,
    /// The caller or the configuration chose the store.
    Told = 22,
    /// The message is too small to be probed, or it is a copy onto itself, which stores nothing.
    Small = 23,
}

/// How one message is run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decision {
    /// Way in which the message's bytes are read and written.
    pub store: Store,
    /// State of the message's bytes in the caches, as measured or as the caller said.
    pub cache: CacheState,
    /// True if the caches counted as contended.
    pub contended: bool,
    /// Reason for the store.
    pub why: PlacementReason,
    /// Expected time, nanoseconds; 0 if no time was known.
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

/// Placement of messages: decides, and learns from the times that messages took.
#[derive(Debug)]
pub struct Adapt {
    settings: TransformConfig,
    residency: Residency,
    costs: Costs,
    watch: Watch,
}

impl Adapt {
    /// Creates a placement without measurements; the first are made with the first messages.
    pub fn new(settings: &TransformConfig) -> Adapt {
        Adapt {
            residency: Residency::default(),
            costs: Costs::default(),
            watch: Watch::new(f64::from(settings.contention_percent) / 100.0, settings.probe),
            settings: settings.clone(),
        }
    }

    /// Returns the price of a store: a factor on its cost for what the store does to neighbours. The footprint of a store is the
    /// measured slowdown of a neighbour on the same core, relative to ordinary stores (`examples/corunner.rs`). In a contended
    /// cache the footprint weighs more the smaller the budget is; otherwise it only decides between stores of about equal time.
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
    /// The message's source is readable for `bytes` and its target for `target_bytes`.
    #[expect(unsafe_code, reason = "looks at lines that the caller vouches for")]
    pub(crate) unsafe fn decide(&self, engine: &Engine, message: &Message, now_ns: u64) -> Decision {
        let contended = self.watch.contended();
        let without_prediction = |store, cache| Decision {
            store,
            cache,
            contended,
            why: PlacementReason::Told,
            predicted_ns: 0.0,
        };
        let fixed = match self.settings.placement {
            Placement::Adaptive => None,
            Placement::Temporal => Some(Store::Temporal),
            Placement::Streaming => Some(Store::Streaming),
            Placement::Isolated => Some(Store::Isolated),
        };
        if let Some(store) = fixed {
            return without_prediction(store, CacheState::Unknown);
        }
        if message.bytes < PROBE_BYTES_MIN {
            return Decision {
                why: PlacementReason::Small,
                ..without_prediction(Store::Temporal, CacheState::Unknown)
            };
        }
        let cached = match message.cache {
            Cache::Hot => return without_prediction(Store::Temporal, CacheState::Hot),
            Cache::Cold => false,
            // SAFETY: the caller guarantees that source and target of the message are readable for their lengths.
            Cache::Auto => unsafe { self.residency.cached(engine, message, self.watch.knee_bytes()) },
        };
        if cached {
            return Decision {
                why: PlacementReason::Cached,
                ..without_prediction(Store::Temporal, CacheState::Hot)
            };
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

    /// Learns from the time that a message took, and measures contention if that is due.
    pub(crate) fn learn(&self, message: &Message, decision: &Decision, start_ns: u64, end_ns: u64) {
        if message.bytes < PROBE_BYTES_MIN {
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
        self.watch.note_message(message.bytes, end_ns);
    }

    /// Counts a message that ended with an error.
    #[cold]
    pub(crate) fn refused(&self, message: &Message, start_ns: u64, end_ns: u64) {
        let took_ns = end_ns.saturating_sub(start_ns);
        observe::record(Store::Temporal.executor(), message.opcode, message.bytes as u64, took_ns, false);
    }

    /// Returns the inputs of a decision about a message of this opcode and size, as they are now.
    pub(crate) fn explain(&self, opcode: Opcode, bytes: usize) -> Explanation {
        explain::explain(self, opcode, bytes)
    }
}
