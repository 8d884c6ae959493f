// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rule of every decision: the cheapest way is taken, with hysteresis, and from time to time another one is tried.
//!
//! - **Flow** costs of all ways ─▶ [`select`] ─▶ one way and the [`Turn`] that chose it. [`Placer`](super::Placer) calls it with
//!   predicted costs, [`Bandit`](super::Bandit) with learned ones
//! - **Order** the way in use stays until another costs less than [`Rules::switch_below`] of it. One decision in
//!   [`Rules::explore_every`] tries another way: of those that cost at most [`Rules::explore_within`] of the cheapest, the one that was
//!   tried the longest time ago
//! - **Not here** the meaning of the ways and the unit of their costs: the caller defines both. No clock, no state

/// Parameters of the rule for one kind of decisions.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Number of costs after which a way counts as known.
    pub known_after: u32,
    /// One decision in this many tries a way that is not known yet.
    pub try_every: u32,
    /// One decision in this many tries another known way, if it is not much worse than the best.
    pub explore_every: u32,
    /// Largest cost of a tried way, relative to the cheapest.
    pub explore_within: f64,
    /// One exploration in this many tries a way whatever its cost, in case the cost has changed.
    pub explore_any_every: u32,
    /// Largest cost of another way, relative to the one in use, at which it replaces that one.
    pub switch_below: f64,
    /// Shortest time between two switches, nanoseconds.
    pub stay_ns: u64,
    /// Weight of a new cost in the moving average.
    pub weight: f64,
    /// True if the first costs of a way include warming up, so that the lowest of them counts and not their mean.
    pub warms_up: bool,
    /// True if all ways become slower together, so that a change of the way in use also changes the averages of the others.
    pub drifts: bool,
}

impl Rules {
    /// Copies, whose costs a model predicts.
    pub(crate) const COPIES: Rules = Rules {
        known_after: 0,
        try_every: 1,
        explore_every: 64,
        explore_within: 1.3,
        explore_any_every: u32::MAX,
        switch_below: 0.94,
        stay_ns: 0,
        weight: 1.0 / 8.0,
        warms_up: false,
        drifts: false,
    };

    /// Calls and shapes: the way to begin with is good, so others are tried seldom. A way's effect on the next reader of the bytes
    /// cannot be predicted, so it is learned.
    pub const CALLS: Rules =
        Rules { known_after: 3, try_every: 16, explore_any_every: 8, weight: 1.0 / 32.0, ..Rules::COPIES };

    /// Messages: nothing is known at first, and the speed of memory changes over time for all stores alike.
    pub(crate) const MESSAGES: Rules = Rules {
        known_after: 4,
        explore_within: 1.25,
        explore_any_every: 16,
        switch_below: 0.97,
        stay_ns: 20_000_000,
        warms_up: true,
        drifts: true,
        ..Rules::COPIES
    };

    /// Walks: a network's costs change, so one exploration tries any way.
    pub const WALKS: Rules =
        Rules { known_after: 1, explore_any_every: 1, switch_below: 1.0, ..Rules::COPIES };
}

/// Cause of a selection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The way is the cheapest.
    Cheapest,
    /// The way was in use, and no other is cheaper by enough, or a switch would be too early.
    Held,
    /// The way is tried to learn its cost.
    Explored,
}

/// State of a decision beside the costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    /// Number of decisions made before.
    pub decisions: u32,
    /// The way in use.
    pub in_use: Option<usize>,
    /// False if the way in use was chosen too recently to be replaced.
    pub may_switch: bool,
}

/// Selects a way by costs, of which an infinite one excludes its way; `None` if all are infinite. `tried_at` returns a number that
/// is larger the later a way was tried.
pub(crate) fn select<const N: usize>(
    rules: &Rules,
    costs: &[f64; N],
    past: Past,
    tried_at: impl Fn(usize) -> u32,
) -> Option<(usize, Turn)> {
    let possible = || (0..N).filter(|&way| costs[way] < f64::INFINITY);
    let best = possible().min_by(|&a, &b| costs[a].total_cmp(&costs[b]))?;
    let held = past.in_use.filter(|&held| {
        held != best
            && costs[held] < f64::INFINITY
            && (!past.may_switch || costs[best] > costs[held] * rules.switch_below)
    });
    let chosen = held.map_or((best, Turn::Cheapest), |held| (held, Turn::Held));
    if past.decisions % rules.explore_every == rules.explore_every - 1 {
        let explorations = past.decisions / rules.explore_every;
        let any = explorations % rules.explore_any_every == rules.explore_any_every - 1;
        let limit = costs[best] * rules.explore_within;
        let others = possible().filter(|&way| way != chosen.0 && (any || costs[way] <= limit));
        let other = others.min_by(|&a, &b| tried_at(a).cmp(&tried_at(b)).then(costs[a].total_cmp(&costs[b])));
        if let Some(other) = other {
            return Some((other, Turn::Explored));
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_FIRST: Past = Past { decisions: 0, in_use: None, may_switch: true };

    fn choose(costs: [f64; 3], past: Past) -> Option<(usize, Turn)> {
        select(&Rules::COPIES, &costs, past, |_| 0)
    }

    #[test]
    fn the_cheapest_is_taken_and_the_one_in_use_stays_while_it_is_nearly_as_good() {
        let uses = |way| Past { in_use: Some(way), ..AT_FIRST };
        assert_eq!(choose([3.0, 1.0, 2.0], AT_FIRST), Some((1, Turn::Cheapest)));
        assert_eq!(choose([1.05, 1.0, 2.0], uses(0)), Some((0, Turn::Held)));
        assert_eq!(choose([1.07, 1.0, 2.0], uses(0)), Some((1, Turn::Cheapest)));
        let early = Past { may_switch: false, ..uses(0) };
        assert_eq!(choose([9.0, 1.0, 2.0], early), Some((0, Turn::Held)));
        assert_eq!(choose([f64::INFINITY, 1.0, 2.0], early), Some((1, Turn::Cheapest)), "it is not there");
        assert_eq!(choose([f64::INFINITY; 3], uses(0)), None);
    }

    #[test]
    fn one_in_so_many_tries_the_one_that_was_tried_longest_ago_unless_it_is_much_worse() {
        let due = Past { decisions: Rules::COPIES.explore_every - 1, ..AT_FIRST };
        assert_eq!(choose([1.0, 1.2, 1.1], due), Some((2, Turn::Explored)), "the next best");
        assert_eq!(choose([1.0, 1.4, 1.5], due), Some((0, Turn::Cheapest)), "both are much worse");
        let by_time = select(&Rules::COPIES, &[1.0, 1.2, 1.1], due, |way| [0, 5, 9][way]);
        assert_eq!(by_time, Some((1, Turn::Explored)));
        let rules = Rules { explore_any_every: 1, ..Rules::COPIES };
        assert_eq!(select(&rules, &[1.0, 9.0, 8.0], due, |_| 0), Some((2, Turn::Explored)));
    }
}
