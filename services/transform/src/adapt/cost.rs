// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures what each store costs for messages that are not in cache, and chooses the cheapest store.
//!
//! - **Layout** per (opcode, power of two of the size): the average cost of each of the three stores in femtoseconds per byte (0: never
//!   tried), the incumbent (the store chosen last), and the time since when it is the incumbent.
//! - **Order** each store is tried [`TRIES`] times first. After that the store with the lowest cost × price is chosen, unless the
//!   incumbent was chosen less than `STAY_NS` ago or the new store costs more than `SWITCH_BELOW` of the incumbent. One message in
//!   `TRY_EVERY` goes to the second-cheapest store if that costs less than `TRY_WITHIN` of the cheapest; one in `TRY_ALL_EVERY` goes to
//!   the second or third in turn, whatever it costs.
//! - **Limits** a sample counts as at most twice and at least half of the average, so one preempted message cannot move the average far.
//! - **Drift** the speed of memory changes over time for all stores alike, but only the incumbent is measured all the time. So when the
//!   incumbent's average changes, the averages of the others are scaled by the same factor. Otherwise each slow phase would look like a
//!   reason to change the store.

use super::PlacementReason;
use crate::store::Store;
use memlift_spec::Opcode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const CLASSES: usize = 40;
const OPCODES: usize = 6;
const STAY_NS: u64 = 20_000_000;
const SWITCH_BELOW: f64 = 0.97;
const TRY_EVERY: u32 = 64;
const TRY_ALL_EVERY: u32 = 1024;
const TRY_WITHIN: f64 = 1.25;
const TRIES: u32 = 4;
/// Factor on the cost of a store that is not affordable; it ranks behind every affordable one, since prices are at most 5.
const UNAFFORDABLE: f64 = 8.0;
/// A store is affordable if it takes at most this factor of the fastest store's time, however small its footprint is.
const OWN_TIME_MAX: f64 = 1.15;

#[derive(Debug, Default)]
struct Slot {
    /// Average cost of each store, femtoseconds per byte.
    fs: [AtomicU32; 3],
    tries: [AtomicU32; 3],
    /// Index of the store chosen last, plus one; 0 if none was chosen yet.
    incumbent: AtomicU32,
    since_ns: AtomicU64,
    count: AtomicU32,
}

#[derive(Debug)]
pub(super) struct Costs {
    slots: Box<[Slot]>,
}

/// A chosen store, the reason, and the expected time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub store: Store,
    pub why: PlacementReason,
    pub predicted_ns: f64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs { slots: (0..OPCODES * CLASSES).map(|_| Slot::default()).collect() }
    }
}

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

impl Costs {
    pub fn choose(&self, opcode: Opcode, bytes: usize, now_ns: u64, price: impl Fn(Store) -> f64) -> Choice {
        let slot = &self.slots[slot_of(opcode, bytes)];
        let cost = |store: Store| f64::from(slot.fs[store as usize].load(Ordering::Relaxed));
        let choice = |store, why| Choice { store, why, predicted_ns: cost(store) * bytes as f64 * 1e-6 };
        let untried = |store: &Store| slot.tries[*store as usize].load(Ordering::Relaxed) < TRIES;
        if let Some(store) = Store::ALL.into_iter().find(untried) {
            return choice(store, PlacementReason::Tried);
        }
        let fastest = Store::ALL.into_iter().map(cost).fold(f64::INFINITY, f64::min);
        let mut ranked = Store::ALL.map(|store| {
            let affordable = cost(store) <= fastest * OWN_TIME_MAX;
            (store, if affordable { cost(store) * price(store) } else { cost(store) * UNAFFORDABLE })
        });
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
        let [best, second, third] = ranked;
        let count = slot.count.fetch_add(1, Ordering::Relaxed);
        if count % TRY_EVERY == TRY_EVERY - 1 {
            if count % TRY_ALL_EVERY == TRY_ALL_EVERY - 1 {
                let other = if (count / TRY_ALL_EVERY).is_multiple_of(2) { third } else { second };
                return choice(other.0, PlacementReason::Tried);
            }
            if second.1 < best.1 * TRY_WITHIN {
                return choice(second.0, PlacementReason::Tried);
            }
        }
        let incumbent = slot.incumbent.load(Ordering::Relaxed);
        if let Some(&held) = ranked.iter().find(|(store, _)| *store as u32 + 1 == incumbent)
            && held.0 != best.0
        {
            let stayed_ns = now_ns.saturating_sub(slot.since_ns.load(Ordering::Relaxed));
            if stayed_ns < STAY_NS || best.1 > held.1 * SWITCH_BELOW {
                return choice(held.0, PlacementReason::Held);
            }
        }
        if incumbent != best.0 as u32 + 1 {
            slot.incumbent.store(best.0 as u32 + 1, Ordering::Relaxed);
            slot.since_ns.store(now_ns, Ordering::Relaxed);
        }
        let why = match best.0 {
            Store::Temporal => PlacementReason::TemporalFaster,
            store if cost(store) <= cost(Store::Temporal) => PlacementReason::StreamingFaster,
            _ => PlacementReason::Contended,
        };
        choice(best.0, why)
    }

    pub fn learn(&self, opcode: Opcode, bytes: usize, store: Store, took_ns: u64) {
        let slot = &self.slots[slot_of(opcode, bytes)];
        let sample = (took_ns as f64 * 1e6 / bytes.max(1) as f64).clamp(1.0, 4e9);
        let place = &slot.fs[store as usize];
        let old = f64::from(place.load(Ordering::Relaxed));
        let tries = slot.tries[store as usize].load(Ordering::Relaxed);
        // The first messages meet page faults and cold code, so the lowest of their samples counts.
        let new = if old == 0.0 {
            sample
        } else if tries < TRIES {
            old.min(sample)
        } else {
            old + (sample.clamp(old / 2.0, old * 2.0) - old) / 8.0
        };
        place.store(new.max(1.0) as u32, Ordering::Relaxed);
        if slot.incumbent.load(Ordering::Relaxed) == store as u32 + 1 && old > 0.0 {
            for other in Store::ALL.into_iter().filter(|&other| other != store) {
                let place = &slot.fs[other as usize];
                let moved = f64::from(place.load(Ordering::Relaxed)) * new / old;
                place.store(moved.clamp(1.0, 4e9).round() as u32, Ordering::Relaxed);
            }
        }
        if tries < TRIES {
            slot.tries[store as usize].store(tries + 1, Ordering::Relaxed);
        }
    }

    /// Returns the measured cost of each store in femtoseconds per byte; 0 if it was not tried.
    pub fn measured(&self, opcode: Opcode, bytes: usize) -> [(Store, u32); 3] {
        let slot = &self.slots[slot_of(opcode, bytes)];
        Store::ALL.map(|store| (store, slot.fs[store as usize].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: (Opcode, usize) = (Opcode::SEAL, 65536);

    fn learnt(ns: [u64; 3]) -> Costs {
        let costs = Costs::default();
        for _ in 0..4 {
            Store::ALL.into_iter().zip(ns).for_each(|(store, ns)| costs.learn(AT.0, AT.1, store, ns));
        }
        costs
    }

    #[test]
    fn everything_is_tried_then_the_cheapest_is_taken() {
        let costs = Costs::default();
        let mut tried = [0; 3];
        for _ in 0..3 * TRIES {
            let choice = costs.choose(AT.0, AT.1, 0, |_| 1.0);
            assert_eq!(choice.why, PlacementReason::Tried);
            tried[choice.store as usize] += 1;
            costs.learn(AT.0, AT.1, choice.store, 1000 + choice.store as u64 * 500);
        }
        assert_eq!(tried, [TRIES; 3]);
        let choice = costs.choose(AT.0, AT.1, 0, |_| 1.0);
        assert_eq!((choice.store, choice.why), (Store::Temporal, PlacementReason::TemporalFaster));
    }

    #[test]
    fn a_price_on_the_footprint_turns_the_choice_only_after_the_least_stay() {
        let costs = learnt([1000, 1100, 1140]);
        let choose = |now_ns, weight: f64| {
            costs.choose(AT.0, AT.1, now_ns, |store| 1.0 + weight * [1.0, 0.5, 0.0][store as usize])
        };
        assert_eq!(choose(0, 0.0).store, Store::Temporal);
        let held = choose(STAY_NS / 2, 0.5);
        assert_eq!((held.store, held.why), (Store::Temporal, PlacementReason::Held));
        let turned = choose(STAY_NS * 2, 0.5);
        assert_eq!((turned.store, turned.why), (Store::Isolated, PlacementReason::Contended));
        assert_eq!(choose(STAY_NS * 2 + 1, 0.0).store, Store::Isolated, "it stays for a while");
    }

    #[test]
    fn no_footprint_is_worth_much_of_our_own_time() {
        let costs = learnt([1600, 1000, 1300]);
        let choice = costs.choose(AT.0, AT.1, 0, |store| 1.0 + 4.0 * [1.0, 0.6, 0.1][store as usize]);
        assert_eq!(choice.store, Store::Streaming);
    }

    #[test]
    fn what_slows_every_store_turns_nothing_and_what_slows_one_does() {
        let costs = learnt([1000, 1100, 2000]);
        assert_eq!(costs.choose(AT.0, AT.1, 0, |_| 1.0).store, Store::Temporal);
        (0..40).for_each(|_| costs.learn(AT.0, AT.1, Store::Temporal, 2000));
        let choice = costs.choose(AT.0, AT.1, STAY_NS * 2, |_| 1.0);
        assert_eq!(
            (choice.store, choice.why),
            (Store::Temporal, PlacementReason::TemporalFaster),
            "nobody has tried the others since"
        );
        // The other store is measured again; its cost has not changed.
        (0..20).for_each(|_| costs.learn(AT.0, AT.1, Store::Streaming, 1100));
        let choice = costs.choose(AT.0, AT.1, STAY_NS * 4, |_| 1.0);
        assert_eq!((choice.store, choice.why), (Store::Streaming, PlacementReason::StreamingFaster));
    }

    #[test]
    fn a_small_difference_does_not_turn_it() {
        let costs = learnt([1000, 3000, 1010]);
        assert_eq!(costs.choose(AT.0, AT.1, 0, |_| 1.0).store, Store::Temporal);
        for _ in 0..40 {
            costs.learn(AT.0, AT.1, Store::Isolated, 985);
        }
        let choice = costs.choose(AT.0, AT.1, STAY_NS * 9, |_| 1.0);
        assert_eq!((choice.store, choice.why), (Store::Temporal, PlacementReason::Held));
    }
}
