// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Placement of messages: decides for each if it goes through the cache or past it, from measurements that need no privileges.
//!
//! - **Flow** `probe` times loads of a few lines that the message needs anyway. A cached message goes through the cache. For any
//!   other, the learned cost per byte of each store is multiplied by the price of what the store does to neighbours (`contention`), and
//!   a [`Bandit`] takes the cheapest. It learns from the time that the message took.
//! - **Layout** one [`Bandit`] per (opcode, power of two of the size); costs in nanoseconds per byte.
//! - **Order** relaxed atomic words, and one lock that is only tried, never waited for: a lost update does no harm.
//! - **Probe** the calling thread measures `contention` between messages, for at most one percent of the time, and only after some MiB
//!   were transformed; an idle process measures nothing.
//! - **Not here** the caller's use of the target afterwards: a caller that reads the target next passes `Cache::Hot`.
//!
//! SmartDIMM uses one miss rate of the last-level cache to tell, for all messages, if sources are in DRAM. Here each message is
//! probed, and the cost of a dense sweep over memory of our own replaces the miss rate (`contention_percent` is the paper's threshold).

mod explain;
mod probe;

pub use explain::{MessageExplanation, adaptive_effort};

use crate::bandit::Bandit;
use crate::contention::Contention;
use crate::reason::StoreReason;
use crate::select::{Rules, Turn};
use crate::stores::Store;
use crate::{Cache, Placer};
use memlift_ground::config::{Placement, TransformConfig};
use memlift_ground::observe::{self, CacheState, DecisionRecord};
use memlift_spec::Opcode;
use probe::Probes;

/// Smaller messages are not probed: the probe would cost more than it could save.
pub const PROBE_BYTES_MIN: usize = 4096;

/// Upper bound of a footprint's weight while no contention is measured: then it only decides between stores of about equal cost.
const QUIET_WEIGHT: f64 = 0.05;
/// Factor on the cost of a store that is not affordable; it ranks behind every affordable one, since prices are at most 5.
const UNAFFORDABLE: f64 = 8.0;
/// A store is affordable if it takes at most this factor of the fastest store's time, however small its footprint is.
const OWN_TIME_MAX: f64 = 1.15;
/// Number of size classes, which are powers of two.
const CLASSES: usize = 40;
/// Number of opcodes with costs of their own.
const OPCODES: usize = 6;

/// How one message is run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StoreChoice {
    /// Way in which the message's bytes are read and written.
    pub store: Store,
    /// State of the message's bytes in the caches, as measured or as the caller said.
    pub cache: CacheState,
    /// True if the caches counted as contended.
    pub contended: bool,
    /// Reason for the store.
    pub why: StoreReason,
    /// Expected time, nanoseconds; 0 if no time was known.
    pub predicted_ns: f64,
}

impl StoreChoice {
    /// The choice for a message that is too small to be probed, or that is copied onto itself.
    pub const SMALL: StoreChoice = StoreChoice {
        store: Store::Temporal,
        cache: CacheState::Unknown,
        contended: false,
        why: StoreReason::Small,
        predicted_ns: 0.0,
    };
}

/// Properties of a message that its placement depends on.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Kind of work, as statistics count it.
    pub opcode: Opcode,
    /// Length of the source.
    pub bytes: usize,
    /// Address of the source.
    pub source: *const u8,
    /// Address of the target.
    pub target: *const u8,
    /// Capacity of the target.
    pub target_bytes: usize,
    /// The caller's knowledge about the caches.
    pub cache: Cache,
}

/// Placement of messages: decides, and learns from the times that messages took.
#[derive(Debug)]
pub struct MessagePlacer {
    settings: TransformConfig,
    probes: Probes,
    costs: Box<[Bandit<{ Store::ALL.len() }>]>,
    contention: Contention,
}

/// Returns the index of the costs of an opcode and a size.
fn slot_of(opcode: Opcode, bytes: usize) -> usize {
    let row = match opcode {
        Opcode::MEMMOVE => 0,
        Opcode::COPY_CRC => 1,
        Opcode::SEAL => 2,
        Opcode::OPEN => 3,
        Opcode::PACK => 4,
        _ => 5,
    };
    row * CLASSES + (bytes.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// Multiplies each cost by the price of its store. A store that takes much longer than the fastest ranks last, whatever its price.
fn weigh(costs: [f64; 3], prices: [f64; 3]) -> [f64; 3] {
    let affordable = costs.into_iter().fold(f64::INFINITY, f64::min) * OWN_TIME_MAX;
    std::array::from_fn(|store| {
        costs[store] * if costs[store] <= affordable { prices[store] } else { UNAFFORDABLE }
    })
}

impl MessagePlacer {
    /// Creates a placement without measurements; the first are made with the first messages.
    pub fn new(settings: &TransformConfig) -> MessagePlacer {
        MessagePlacer {
            probes: Probes::default(),
            costs: (0..OPCODES * CLASSES).map(|_| Bandit::new(&Rules::MESSAGES)).collect(),
            contention: Contention::new(f64::from(settings.contention_percent) / 100.0, settings.probe),
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

    /// Decides how one message is read and written. `copies` has the limits of the machine's calibration.
    ///
    /// # Safety
    ///
    /// The message's source is readable for `bytes` and its target for `target_bytes`.
    pub unsafe fn decide(&self, copies: &Placer, message: &Message, now_ns: u64) -> StoreChoice {
        let contended = self.contention.contended();
        let told =
            |store, cache| StoreChoice { store, cache, contended, why: StoreReason::Told, predicted_ns: 0.0 };
        let fixed = match self.settings.placement {
            Placement::Adaptive => None,
            Placement::Temporal => Some(Store::Temporal),
            Placement::Streaming => Some(Store::Streaming),
            Placement::Isolated => Some(Store::Isolated),
        };
        if let Some(store) = fixed {
            return told(store, CacheState::Unknown);
        }
        if message.bytes < PROBE_BYTES_MIN {
            return StoreChoice { contended, ..StoreChoice::SMALL };
        }
        let cached = match message.cache {
            Cache::Hot => return told(Store::Temporal, CacheState::Hot),
            Cache::Cold => false,
            // SAFETY: the caller guarantees that source and target of the message are readable for their lengths.
            Cache::Auto => unsafe {
                self.probes.cached(message, copies.hot_cycles(), self.contention.knee_bytes())
            },
        };
        if cached {
            return StoreChoice { why: StoreReason::Cached, ..told(Store::Temporal, CacheState::Hot) };
        }
        let prices = Store::ALL.map(|store| self.price(store, contended));
        let costs = &self.costs[slot_of(message.opcode, message.bytes)];
        let pick = costs.pick(now_ns, |costs| weigh(costs, prices));
        let store = Store::ALL[pick.way];
        let temporal_cost =
            || costs.known(Store::Temporal as usize).map_or(f64::INFINITY, |known| known.cost);
        let why = match (pick.turn, store) {
            (Turn::Explored, _) => StoreReason::Tried,
            (Turn::Held, _) => StoreReason::Held,
            (Turn::Cheapest, Store::Temporal) => StoreReason::TemporalFaster,
            (Turn::Cheapest, _) if pick.cost <= temporal_cost() => StoreReason::StreamingFaster,
            (Turn::Cheapest, _) => StoreReason::Contended,
        };
        let predicted_ns = pick.cost * message.bytes as f64;
        StoreChoice { store, cache: CacheState::Cold, contended, why, predicted_ns }
    }

    /// Learns from the time that a message took, and measures contention if that is due.
    pub fn learn(&self, message: &Message, choice: &StoreChoice, start_ns: u64, end_ns: u64) {
        if message.bytes < PROBE_BYTES_MIN {
            return observe::count(message.opcode, message.bytes as u64);
        }
        let took_ns = end_ns.saturating_sub(start_ns);
        if choice.cache == CacheState::Cold {
            let costs = &self.costs[slot_of(message.opcode, message.bytes)];
            costs.learn(choice.store as usize, took_ns.max(1) as f64 / message.bytes as f64);
        }
        observe::record(choice.store.executor(), message.opcode, message.bytes as u64, took_ns, true);
        observe::decide(DecisionRecord {
            time_ns: start_ns,
            opcode: message.opcode,
            executor: choice.store.executor(),
            cache_state: choice.cache,
            size: message.bytes as u64,
            predicted_ns: choice.predicted_ns as u64,
            measured_ns: took_ns,
            reason: choice.why as u16,
        });
        self.contention.note_message(message.bytes, end_ns);
    }

    /// Counts a message that ended with an error.
    #[cold]
    pub fn refused(&self, message: &Message, start_ns: u64, end_ns: u64) {
        let took_ns = end_ns.saturating_sub(start_ns);
        observe::record(Store::Temporal.executor(), message.opcode, message.bytes as u64, took_ns, false);
    }

    /// Returns the inputs of a decision about a message of this opcode and size, as they are now.
    pub fn explain(&self, opcode: Opcode, bytes: usize) -> MessageExplanation {
        explain::explain(self, opcode, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAY_NS: u64 = Rules::MESSAGES.stay_ns;

    /// Costs of the three stores, measured often enough to be known.
    fn learned(ns: [f64; 3]) -> Bandit<3> {
        let costs = Bandit::new(&Rules::MESSAGES);
        for _ in 0..Rules::MESSAGES.known_after {
            (0..3).for_each(|store| costs.learn(store, ns[store]));
        }
        costs
    }

    fn choose(costs: &Bandit<3>, now_ns: u64, prices: [f64; 3]) -> (Store, Turn) {
        let pick = costs.pick(now_ns, |costs| weigh(costs, prices));
        (Store::ALL[pick.way], pick.turn)
    }

    #[test]
    fn everything_is_tried_then_the_cheapest_is_taken() {
        let costs = Bandit::new(&Rules::MESSAGES);
        let mut tried = [0; 3];
        for number in 0..3 * Rules::MESSAGES.known_after {
            let (store, turn) = choose(&costs, 0, [1.0; 3]);
            let in_a_row = Store::ALL[(number / Rules::MESSAGES.known_after) as usize];
            assert_eq!((store, turn), (in_a_row, Turn::Explored));
            tried[store as usize] += 1;
            costs.learn(store as usize, 1000.0 + f64::from(store as u8) * 500.0);
        }
        assert_eq!(tried, [Rules::MESSAGES.known_after; 3]);
        assert_eq!(choose(&costs, 0, [1.0; 3]), (Store::Temporal, Turn::Cheapest));
    }

    #[test]
    fn a_price_on_the_footprint_turns_the_choice_only_after_the_least_stay() {
        let costs = learned([1000.0, 1100.0, 1140.0]);
        let choose = |now_ns, weight: f64| {
            choose(&costs, now_ns, [1.0, 0.5, 0.0].map(|footprint| 1.0 + weight * footprint))
        };
        assert_eq!(choose(0, 0.0).0, Store::Temporal);
        assert_eq!(choose(STAY_NS / 2, 0.5), (Store::Temporal, Turn::Held));
        assert_eq!(choose(STAY_NS * 2, 0.5), (Store::Isolated, Turn::Cheapest));
        assert_eq!(choose(STAY_NS * 2 + 1, 0.0).0, Store::Isolated, "it stays for a while");
    }

    #[test]
    fn no_footprint_is_worth_much_of_our_own_time() {
        let costs = learned([1600.0, 1000.0, 1300.0]);
        assert_eq!(choose(&costs, 0, [5.0, 3.4, 1.4]).0, Store::Streaming);
    }

    #[test]
    fn what_slows_every_store_turns_nothing_and_what_slows_one_does() {
        let costs = learned([1000.0, 1100.0, 2000.0]);
        assert_eq!(choose(&costs, 0, [1.0; 3]).0, Store::Temporal);
        (0..40).for_each(|_| costs.learn(Store::Temporal as usize, 2000.0));
        let choice = choose(&costs, STAY_NS * 2, [1.0; 3]);
        assert_eq!(choice, (Store::Temporal, Turn::Cheapest), "nobody has tried the others since");
        // The other store is measured again; its cost has not changed.
        (0..20).for_each(|_| costs.learn(Store::Streaming as usize, 1100.0));
        assert_eq!(choose(&costs, STAY_NS * 4, [1.0; 3]), (Store::Streaming, Turn::Cheapest));
    }

    #[test]
    fn a_small_difference_does_not_turn_it() {
        let costs = learned([1000.0, 3000.0, 1010.0]);
        assert_eq!(choose(&costs, 0, [1.0; 3]).0, Store::Temporal);
        (0..40).for_each(|_| costs.learn(Store::Isolated as usize, 985.0));
        assert_eq!(choose(&costs, STAY_NS * 9, [1.0; 3]), (Store::Temporal, Turn::Held));
    }

    #[test]
    fn the_reason_names_what_was_measured_and_what_was_tried() {
        let placer = MessagePlacer::new(&memlift_ground::config::Config::defaults().transform);
        let copies =
            Placer::new(crate::load(None, memlift_kernels::active().isa), memlift_kernels::active().isa);
        let bytes = [0u8; 8192];
        let message = Message {
            opcode: Opcode::SEAL,
            bytes: bytes.len(),
            source: bytes.as_ptr(),
            target: bytes.as_ptr(),
            target_bytes: bytes.len(),
            cache: Cache::Cold,
        };
        // SAFETY: both addresses are of `bytes`, which is as long as the message says.
        let decide = |message: &Message| unsafe { placer.decide(&copies, message, 1) };
        for _ in 0..3 * Rules::MESSAGES.known_after {
            let choice = decide(&message);
            assert_eq!(choice.why, StoreReason::Tried);
            let took_ns = [3000, 1000, 2000][choice.store as usize];
            placer.learn(&message, &choice, 0, took_ns);
        }
        let choice = decide(&message);
        assert_eq!((choice.store, choice.why), (Store::Streaming, StoreReason::StreamingFaster));
        assert!((choice.predicted_ns - 1000.0).abs() < 1.0, "{choice:?}");
        assert_eq!(decide(&Message { bytes: 64, ..message }).why, StoreReason::Small);
        assert_eq!(decide(&Message { cache: Cache::Hot, ..message }).why, StoreReason::Told);
    }
}
