// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses between a few ways to do the same thing, by their recent costs: a multi-armed bandit with hysteresis.
//!
//! - **Flow** `pick` ─▶ the caller works in that way ─▶ `learn` its cost ─▶ the next `pick`
//! - **Order** the first way is used until another is known to be clearly cheaper. One pick in [`TRY_EVERY`] tries a way that is
//!   not known yet; once all are known, one in [`Bandit::EXPLORE_EVERY`] tries another one
//! - **Limits** at most one pick in [`TRY_EVERY`] explores, from the first pick on
//! - **Not here** the meaning of the ways and the unit of costs: the caller defines both. No locks, no clock.
//!
//! The cost model ([`Placer`](super::Placer)) predicts the cost of a copy for its caller; a bandit learns what cannot be
//! predicted: the effect of the copy on the next reader of the bytes.

use super::{EXPLORE_EVERY, EXPLORE_WITHIN, SWITCH_BELOW};

/// One pick in this many tries a way about which too little is known.
pub const TRY_EVERY: u64 = 16;
/// Number of costs after which a way counts as known.
const KNOWN: u32 = 3;
/// One exploration in this many tries a way that looks much worse, in case its cost has changed.
const REHABILITATE_EVERY: u64 = 8;
/// Weight of a new cost in the moving average.
const WEIGHT: f64 = 1.0 / 32.0;

/// Measurements of one way.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    cost: f64,
    samples: u32,
    tried_at: u64,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pick {
    /// Index of the way.
    pub way: usize,
    /// True if the way is tried to learn its cost, not because it is the best.
    pub explores: bool,
}

/// Chooses between `N` ways.
#[derive(Clone, Debug)]
pub struct Bandit<const N: usize> {
    ways: [Way; N],
    allowed: [bool; N],
    in_use: usize,
    picks: u64,
    explorations: u64,
    switches: u64,
}

impl<const N: usize> Bandit<N> {
    /// One pick in this many tries a known way that is not much worse than the best.
    pub const EXPLORE_EVERY: u64 = EXPLORE_EVERY as u64;

    /// Makes a choice between the `allowed` ways that begins with `first`.
    ///
    /// # Panics
    ///
    /// If `first` is not allowed.
    pub fn new(allowed: [bool; N], first: usize) -> Bandit<N> {
        assert!(allowed[first], "the first way must be allowed");
        Bandit { ways: [Way::default(); N], allowed, in_use: first, picks: 0, explorations: 0, switches: 0 }
    }

    /// Picks the way for this call.
    pub fn pick(&mut self) -> Pick {
        self.picks += 1;
        let explored = self.explore();
        self.explorations += u64::from(explored.is_some());
        let way = explored.unwrap_or(self.in_use);
        self.ways[way].tried_at = self.picks;
        Pick { way, explores: explored.is_some() }
    }

    fn explore(&self) -> Option<usize> {
        let others = || (0..N).filter(|&way| self.allowed[way] && way != self.in_use);
        let unknown = others().filter(|&way| self.ways[way].samples < KNOWN);
        if let Some(way) = unknown.min_by_key(|&way| self.ways[way].tried_at) {
            return self.picks.is_multiple_of(TRY_EVERY).then_some(way);
        }
        if !self.picks.is_multiple_of(Self::EXPLORE_EVERY) {
            return None;
        }
        let any = (self.picks / Self::EXPLORE_EVERY).is_multiple_of(REHABILITATE_EVERY);
        let limit = self.ways[self.in_use].cost * EXPLORE_WITHIN;
        others().filter(|&way| any || self.ways[way].cost <= limit).min_by_key(|&way| self.ways[way].tried_at)
    }

    /// Adds a measured cost of a way. Costs that are not a number, or not above zero, are ignored.
    pub fn learn(&mut self, way: usize, cost: f64) {
        if !(cost.is_finite() && cost > 0.0) {
            return;
        }
        let known = &mut self.ways[way];
        known.samples = known.samples.saturating_add(1);
        if known.samples == 1 {
            known.cost = cost;
        } else {
            // A cost far off the average is mostly due to a preemption, so it moves the average by a bounded
            // step.
            let weight = WEIGHT.max(1.0 / f64::from(known.samples));
            known.cost += (cost.clamp(known.cost / 2.0, known.cost * 2.0) - known.cost) * weight;
        }
        let best = (0..N)
            .filter(|&way| self.allowed[way] && self.ways[way].samples >= KNOWN)
            .min_by(|&a, &b| self.ways[a].cost.total_cmp(&self.ways[b].cost));
        if let Some(best) = best
            && self.ways[self.in_use].samples >= KNOWN
            && self.ways[best].cost < self.ways[self.in_use].cost * SWITCH_BELOW
        {
            self.in_use = best;
            self.switches += 1;
        }
    }

    /// Returns the way in use.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Returns cost and number of samples of a way; `None` if it was never measured.
    pub fn known(&self, way: usize) -> Option<Known> {
        let Way { cost, samples, .. } = self.ways[way];
        (samples > 0).then_some(Known { cost, samples })
    }

    /// Returns the number of picks.
    pub fn picks(&self) -> u64 {
        self.picks
    }

    /// Returns the number of picks that explored.
    pub fn explorations(&self) -> u64 {
        self.explorations
    }

    /// Returns how often the way in use has changed.
    pub fn switches(&self) -> u64 {
        self.switches
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
    fn play(bandit: &mut Bandit<4>, costs: [f64; 4], rounds: u64, noise: &mut Noise) -> f64 {
        let round = |_| {
            let pick = bandit.pick();
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
                let mut bandit = Bandit::new([true; 4], 0);
                let mut noise = Noise(seed);
                play(&mut bandit, costs, 1_000, &mut noise);
                let total = play(&mut bandit, costs, 10_000, &mut noise);
                let best = costs.into_iter().fold(f64::MAX, f64::min);
                assert!(total <= best * 10_000.0 * 1.06, "seed {seed}, {costs:?}: {total}");
                assert!(bandit.explorations() * TRY_EVERY <= bandit.picks());
            }
        }
    }

    #[test]
    fn what_is_nearly_as_good_does_not_take_turns() {
        for seed in 0..20 {
            let mut bandit = Bandit::new([true; 4], 1);
            play(&mut bandit, [1.0, 1.0, 1.02, 0.99], 20_000, &mut Noise(seed));
            assert!(bandit.switches() <= 20, "seed {seed}: {}", bandit.switches());
        }
    }

    #[test]
    fn it_notices_that_times_have_changed() {
        for seed in 0..20 {
            let mut bandit = Bandit::new([true; 4], 0);
            let mut noise = Noise(seed);
            play(&mut bandit, [1.0, 2.0, 2.0, 2.0], 5_000, &mut noise);
            assert_eq!(bandit.in_use(), 0);
            // The cost of the way in use is measured at every pick; one that looked worse is tried again
            // within a few explorations.
            play(&mut bandit, [3.0, 2.0, 0.5, 2.0], 10_000, &mut noise);
            assert_eq!(bandit.in_use(), 2, "seed {seed}");
        }
    }

    #[test]
    fn what_is_not_allowed_is_never_picked_and_nonsense_not_believed() {
        let mut bandit = Bandit::new([false, true, false, true], 1);
        for round in 0..10_000 {
            let Pick { way, .. } = bandit.pick();
            assert!(way == 1 || way == 3);
            bandit.learn(way, [f64::NAN, 0.0, -1.0, f64::INFINITY][round % 4]);
        }
        assert_eq!((bandit.in_use(), bandit.known(1)), (1, None));
    }
}
