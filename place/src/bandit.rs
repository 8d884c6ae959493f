// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses between a few ways to do the same thing, by their recent costs: a multi-armed bandit with hysteresis.
//!
//! - **Flow** `pick` ─▶ the caller works in that way ─▶ `learn` its cost ─▶ the next `pick`
//! - **Order** by the rules of [`select`]: the first way is used until another is known to be clearly cheaper. One pick in
//!   [`Rules::try_every`] tries a way that is not known yet; once all are known, one in [`Rules::explore_every`] tries another one.
//!   All words are relaxed: an update that is lost to another thread does no harm
//! - **Not here** the meaning of the ways and the unit of costs: the caller defines both. No locks, no clock
//!
//! The cost model ([`Placer`](super::Placer)) predicts the cost of a copy for its caller; a bandit learns what cannot be
//! predicted: the effect of the copy on the next reader of the bytes.

use super::select::{Past, Rules, Turn, select};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Measurements of one way.
#[derive(Debug, Default)]
struct Way {
    /// Moving average of the costs, as the bits of an f32.
    cost: AtomicU32,
    samples: AtomicU32,
    /// Number of the last pick of this way, plus one.
    tried_at: AtomicU32,
}

impl Way {
    fn cost(&self) -> f64 {
        f64::from(f32::from_bits(self.cost.load(Relaxed)))
    }

    fn set_cost(&self, cost: f64) {
        self.cost.store((cost as f32).clamp(f32::MIN_POSITIVE, f32::MAX).to_bits(), Relaxed);
    }
}

/// Measurements of one way, for reports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Known {
    /// Moving average of the way's cost, in the caller's unit.
    pub cost: f64,
    /// Number of measurements of the way.
    pub samples: u32,
}

/// The way that one call takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pick {
    /// Index of the way.
    pub way: usize,
    /// Cause of the choice.
    pub turn: Turn,
    /// Average cost of the way so far; 0 if it was never measured.
    pub cost: f64,
}

impl Pick {
    /// Returns true if the way is tried to learn its cost, not because it is the best.
    pub fn explores(&self) -> bool {
        self.turn == Turn::Explored
    }
}

/// Chooses between `N` ways.
#[derive(Debug)]
pub struct Bandit<const N: usize> {
    rules: &'static Rules,
    ways: [Way; N],
    /// Index of the way in use, plus one; 0: none yet.
    in_use: AtomicU32,
    picks: AtomicU32,
    explorations: AtomicU32,
    switches: AtomicU32,
    /// Time of the last switch.
    since_ns: AtomicU64,
}

impl<const N: usize> Bandit<N> {
    /// Makes a choice by these rules that uses no way yet: each is tried first.
    pub fn new(rules: &'static Rules) -> Bandit<N> {
        Bandit {
            rules,
            ways: [const {
                Way { cost: AtomicU32::new(0), samples: AtomicU32::new(0), tried_at: AtomicU32::new(0) }
            }; N],
            in_use: AtomicU32::new(0),
            picks: AtomicU32::new(0),
            explorations: AtomicU32::new(0),
            switches: AtomicU32::new(0),
            since_ns: AtomicU64::new(0),
        }
    }

    /// Makes a choice by these rules that begins with `first`.
    pub fn starting_with(first: usize, rules: &'static Rules) -> Bandit<N> {
        let bandit = Bandit::new(rules);
        bandit.in_use.store(first as u32 + 1, Relaxed);
        bandit
    }

    /// Picks the way for this call. `weigh` turns the learned costs into the costs that are compared, and makes those of ways that
    /// cannot be taken infinite. At least one way must be left.
    pub fn pick(&self, now_ns: u64, weigh: impl FnOnce([f64; N]) -> [f64; N]) -> Pick {
        let decisions = self.picks.fetch_add(1, Relaxed);
        let costs = weigh(std::array::from_fn(|way| self.ways[way].cost()));
        let in_use = self.in_use();
        let (way, turn) = self.choose(decisions, now_ns, costs, in_use);
        if turn == Turn::Explored {
            self.explorations.fetch_add(1, Relaxed);
        } else if in_use != Some(way) {
            self.in_use.store(way as u32 + 1, Relaxed);
            self.since_ns.store(now_ns, Relaxed);
            self.switches.fetch_add(u32::from(in_use.is_some()), Relaxed);
        }
        self.ways[way].tried_at.store(decisions.wrapping_add(1), Relaxed);
        Pick { way, turn, cost: self.ways[way].cost() }
    }

    /// Picks one of the `allowed` ways.
    pub fn pick_of(&self, allowed: &[bool; N]) -> Pick {
        self.pick(0, |costs| std::array::from_fn(|way| if allowed[way] { costs[way] } else { f64::INFINITY }))
    }

    fn choose(
        &self,
        decisions: u32,
        now_ns: u64,
        mut costs: [f64; N],
        in_use: Option<usize>,
    ) -> (usize, Turn) {
        let rules = self.rules;
        let unknown = |way: usize| self.ways[way].samples.load(Relaxed) < rules.known_after;
        let tried_at = |way: usize| self.ways[way].tried_at.load(Relaxed);
        // The way in use is measured by every pick.
        let mut others =
            (0..N).filter(|&way| costs[way] < f64::INFINITY && in_use != Some(way) && unknown(way));
        // A way that warms up is tried several times in a row: alone among others it pays for what they left in the caches.
        let untried = if rules.warms_up { others.next() } else { others.min_by_key(|&way| tried_at(way)) };
        if let Some(way) = untried
            && decisions % rules.try_every == rules.try_every - 1
        {
            return (way, Turn::Explored);
        }
        if let Some(way) = in_use.filter(|&way| unknown(way) && costs[way] < f64::INFINITY) {
            return (way, Turn::Held);
        }
        (0..N).filter(|&way| unknown(way)).for_each(|way| costs[way] = f64::INFINITY);
        let stayed_ns = now_ns.saturating_sub(self.since_ns.load(Relaxed));
        let past = Past {
            // No known way is explored before all are known.
            decisions: if untried.is_some() { 0 } else { decisions },
            in_use,
            may_switch: stayed_ns >= rules.stay_ns,
        };
        let selected = select(rules, &costs, past, tried_at);
        selected.or_else(|| Some((untried?, Turn::Explored))).unwrap_or((0, Turn::Held))
    }

    /// Adds a measured cost of a way. Costs that are not a number, or not above zero, are ignored.
    pub fn learn(&self, way: usize, cost: f64) {
        if !(cost.is_finite() && cost > 0.0) {
            return;
        }
        let (rules, known) = (self.rules, &self.ways[way]);
        let samples = known.samples.load(Relaxed);
        known.samples.store(samples.saturating_add(1), Relaxed);
        let old = known.cost();
        let new = if samples == 0 {
            cost
        } else if rules.warms_up && samples < rules.known_after {
            old.min(cost)
        } else {
            // A cost far off the average is mostly due to a preemption, so it moves the average by a bounded step.
            let weight = if rules.warms_up {
                rules.weight
            } else {
                rules.weight.max(1.0 / (f64::from(samples) + 1.0))
            };
            old + (cost.clamp(old / 2.0, old * 2.0) - old) * weight
        };
        known.set_cost(new);
        if rules.drifts && samples > 0 && self.in_use() == Some(way) {
            for other in (0..N).filter(|&other| other != way) {
                let other = &self.ways[other];
                other.set_cost(other.cost() * new / old);
            }
        }
    }

    /// Returns the way in use; `None` if none was chosen yet.
    pub fn in_use(&self) -> Option<usize> {
        self.in_use.load(Relaxed).checked_sub(1).map(|way| way as usize)
    }

    /// Returns cost and number of samples of a way; `None` if it was never measured.
    pub fn known(&self, way: usize) -> Option<Known> {
        let samples = self.ways[way].samples.load(Relaxed);
        (samples > 0).then(|| Known { cost: self.ways[way].cost(), samples })
    }

    /// Returns the number of picks.
    pub fn picks(&self) -> u64 {
        self.picks.load(Relaxed).into()
    }

    /// Returns the number of picks that explored.
    pub fn explorations(&self) -> u64 {
        self.explorations.load(Relaxed).into()
    }

    /// Returns how often the way in use has changed.
    pub fn switches(&self) -> u64 {
        self.switches.load(Relaxed).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random costs with noise of ±20 %; one in a hundred is ten times as high, like that of a preempted
    /// copy.
    struct Noise(u64);

    impl Noise {
        fn of(&mut self, cost: f64) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noisy = cost * (0.8 + 0.4 * (self.0 >> 40) as f64 / (1u64 << 24) as f64);
            if self.0 >> 33 & 127 == 0 { noisy * 10.0 } else { noisy }
        }
    }

    /// Plays `rounds` rounds and returns the sum of the true costs.
    fn play(bandit: &Bandit<4>, costs: [f64; 4], rounds: u64, noise: &mut Noise) -> f64 {
        let round = |_| {
            let pick = bandit.pick_of(&[true; 4]);
            bandit.learn(pick.way, noise.of(costs[pick.way]));
            costs[pick.way]
        };
        (0..rounds).map(round).sum()
    }

    #[test]
    fn it_costs_as_little_as_the_best_fixed_choice() {
        for seed in 0..20 {
            for costs in
                [[1.0, 2.0, 4.0, 8.0], [3.0, 1.0, 1.5, 2.0], [5.0, 4.0, 3.0, 1.0], [2.0, 2.0, 1.6, 9.0]]
            {
                let bandit = Bandit::starting_with(0, &Rules::CALLS);
                let mut noise = Noise(seed);
                play(&bandit, costs, 1_000, &mut noise);
                let total = play(&bandit, costs, 10_000, &mut noise);
                let best = costs.into_iter().fold(f64::MAX, f64::min);
                assert!(total <= best * 10_000.0 * 1.06, "seed {seed}, {costs:?}: {total}");
                assert!(bandit.explorations() * u64::from(Rules::CALLS.try_every) <= bandit.picks());
            }
        }
    }

    #[test]
    fn what_is_nearly_as_good_does_not_take_turns() {
        for seed in 0..20 {
            let bandit = Bandit::starting_with(1, &Rules::CALLS);
            play(&bandit, [1.0, 1.0, 1.02, 0.99], 20_000, &mut Noise(seed));
            assert!(bandit.switches() <= 20, "seed {seed}: {}", bandit.switches());
        }
    }

    #[test]
    fn it_notices_that_times_have_changed() {
        for seed in 0..20 {
            let bandit = Bandit::starting_with(0, &Rules::CALLS);
            let mut noise = Noise(seed);
            play(&bandit, [1.0, 2.0, 2.0, 2.0], 5_000, &mut noise);
            assert_eq!(bandit.in_use(), Some(0));
            // The cost of the way in use is measured at every pick; one that looked worse is tried again
            // within a few explorations.
            play(&bandit, [3.0, 2.0, 0.5, 2.0], 10_000, &mut noise);
            assert_eq!(bandit.in_use(), Some(2), "seed {seed}");
        }
    }

    #[test]
    fn what_is_not_allowed_is_never_picked_and_nonsense_not_believed() {
        let bandit = Bandit::<4>::starting_with(1, &Rules::CALLS);
        for round in 0..10_000 {
            let Pick { way, .. } = bandit.pick_of(&[false, true, false, true]);
            assert!(way == 1 || way == 3);
            bandit.learn(way, [f64::NAN, 0.0, -1.0, f64::INFINITY][round % 4]);
        }
        assert_eq!((bandit.in_use(), bandit.known(1)), (Some(1), None));
    }
}
