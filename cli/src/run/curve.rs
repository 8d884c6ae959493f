// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of a job under budgets that were not tried, from one run under a budget that was too small: a miss-ratio curve.
//!
//! - **Flow** the pager notes for each page that comes back how much memory came in since the page had left (its absence) ─▶
//!   with so much more memory the page would still have been there ─▶ [`Curve::cost`]: the returns that remain, each as
//!   expensive as in this run
//! - **Layout** returns by classes of absence ([`memlift::zmem::block::longest_absence`]), as multiples of the run's budget
//! - **Order** a page that stays does not need its compressed copy, so a byte more of present pages takes less than a byte more
//!   of budget
//! - **Not here** budgets below that of the run: nothing is known about pages that were present

use memlift::zmem::block::{ABSENCES, longest_absence};

/// Costs at and above which a curve gives no number: the run hardly computed.
const MOST_COST: f64 = 20.0;

/// The cost of other budgets, as one run shows it.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Budget of the run, bytes.
    budget: f64,
    /// Memory that the job needs without a budget, bytes.
    need: f64,
    /// Budget that one more byte of present pages takes.
    price: f64,
    /// Pages that came back, by the class of their absence.
    returns: [u64; ABSENCES],
    /// Time that the run lost, and the rest of its time, seconds.
    lost_s: f64,
    rest_s: f64,
}

/// The numbers of one run that a curve is made of.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Budget that the run had, bytes.
    pub budget: u64,
    /// Memory that the job needs without a budget, bytes.
    pub need: u64,
    /// Most bytes that were away at one moment, and the bytes of the store at that moment.
    pub away: u64,
    /// Bytes of the store at that moment.
    pub store: u64,
    /// Pages that came back, by the class of their absence.
    pub returns: [u64; ABSENCES],
    /// Time that went into bringing memory back, seconds.
    pub lost_s: f64,
    /// The rest of the time, seconds.
    pub rest_s: f64,
}

impl Curve {
    /// Makes the curve of a run; `None` if no page came back in it.
    pub fn of(run: &Run) -> Option<Curve> {
        let some = run.returns.iter().any(|pages| *pages > 0) && run.away > 0 && run.budget > 0;
        some.then(|| Curve {
            budget: run.budget as f64,
            need: run.need.max(run.budget) as f64,
            price: 1.0 - (run.store as f64 / run.away as f64).min(0.95),
            returns: run.returns,
            lost_s: run.lost_s,
            rest_s: run.rest_s.max((run.lost_s + run.rest_s) / (1.0 + MOST_COST)).max(1e-6),
        })
    }

    /// Returns the share of the returns that a budget leaves, 0 to 1.
    fn left(&self, budget: f64) -> f64 {
        if budget >= self.need {
            return 0.0;
        }
        let more = (budget - self.budget).max(0.0) / self.price / self.budget;
        // Whoever keeps all pages has none that comes back, however long it was away.
        let all = (self.need - self.budget) / self.price / self.budget;
        let (mut left, mut sum, mut from) = (0.0, 0.0, 0.0f64);
        for (class, pages) in self.returns.iter().enumerate() {
            let to = longest_absence(class).min(all.max(from));
            let beyond =
                if to > from { ((to - more) / (to - from)).clamp(0.0, 1.0) } else { f64::from(more < to) };
            left += *pages as f64 * beyond;
            sum += *pages as f64;
            from = to;
        }
        left / sum
    }

    /// Returns the time that a budget costs, as a share of the time without it; `None` for a budget below that of the run, or if
    /// the run hardly computed.
    pub fn cost(&self, budget: u64) -> Option<f64> {
        let cost = self.lost_s * self.left(budget as f64) / self.rest_s;
        (budget as f64 >= self.budget && cost < MOST_COST).then_some(cost)
    }

    /// Returns the smallest budget from that of the run on that costs at most this, bytes.
    pub fn budget_for(&self, cost: f64) -> u64 {
        let (mut low, mut high) = (self.budget as u64, self.need.ceil() as u64);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.cost(middle).is_some_and(|at| at <= cost) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Returns the budgets and costs that a drawing shows: 26 budgets from that of the run to the job's need.
    pub fn points(&self) -> Vec<(u64, Option<f64>)> {
        const PARTS: u32 = 25;
        let budget = |part| self.budget + (self.need - self.budget) * f64::from(part) / f64::from(PARTS);
        (0..=PARTS).map(|part| budget(part) as u64).map(|budget| (budget, self.cost(budget))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn run() -> Run {
        let mut returns = [0; ABSENCES];
        // 900 pages were away for less than 1/16 of the budget, 100 for three to four sixteenths.
        (returns[0], returns[3]) = (900, 100);
        Run {
            budget: 100 * MIB,
            need: 150 * MIB,
            away: 75 * MIB,
            store: 25 * MIB,
            returns,
            lost_s: 10.0,
            rest_s: 10.0,
        }
    }

    #[test]
    fn more_memory_saves_the_returns_of_short_absences_first() {
        let curve = Curve::of(&run()).expect("pages came back");
        assert_eq!(curve.cost(100 * MIB), Some(1.0));
        // A sixteenth more of present pages takes two thirds of it more of budget.
        let sixteenth = 100.0 * MIB as f64 / 16.0 * (2.0 / 3.0);
        let at = |sixteenths: f64| curve.cost(100 * MIB + (sixteenth * sixteenths) as u64).expect("a cost");
        assert!((at(0.5) - 0.55).abs() < 0.01, "{}", at(0.5));
        assert!((at(1.0) - 0.1).abs() < 0.01 && (at(3.0) - 0.1).abs() < 0.01, "{} {}", at(1.0), at(3.0));
        assert!(at(4.0) < 0.001, "{}", at(4.0));
        assert_eq!(curve.cost(150 * MIB), Some(0.0));
        assert_eq!(curve.cost(99 * MIB), None, "nothing is known about less");
        let budget = curve.budget_for(0.3);
        assert!((curve.cost(budget).expect("a cost") - 0.3).abs() < 0.01, "{budget}");
        let points = curve.points();
        assert!(points.len() == 26 && points.is_sorted_by(|one, other| one.1 >= other.1), "{points:?}");
    }

    #[test]
    fn what_was_away_longest_comes_back_until_all_fits() {
        let mut returns = [0; ABSENCES];
        returns[ABSENCES - 1] = 50;
        let curve = Curve::of(&Run { returns, ..run() }).expect("pages came back");
        assert!(curve.cost(149 * MIB).is_some_and(|cost| cost > 0.0), "{curve:?}");
        assert_eq!(curve.budget_for(0.0), 150 * MIB);
        // A run that did nothing but bring memory back says nothing about its own cost.
        let curve = Curve::of(&Run { rest_s: 0.0, ..run() }).expect("pages came back");
        assert_eq!(curve.cost(100 * MIB), None);
        assert!(Curve::of(&Run { returns: [0; ABSENCES], ..run() }).is_none());
    }
}
