// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides how long a waiter may spin before it sleeps; it learns this from the durations of earlier waits.
//!
//! - **Flow** each wait ends ──duration──▶ moving average and deviation ──▶ budget of the next wait
//! - **Why** spinning pays only if the awaited event is about as near as the cost of a sleep and wake-up (10–50 µs). Fixed spin
//!   times burn whole cores in serving stacks; see vLLM's RFC 52916.
//!
//! | average wait | what the next wait does |
//! |---|---|
//! | ≤ spin limit | spins up to twice the average, at most the limit |
//! | above, steady, prediction on | sleeps until shortly before the average, then spins, then sleeps |
//! | above | sleeps at once; every 256th wait spins, to notice that times have changed |
//! | ≤ spin limit, between long spells of other work | sleeps at once: the cap on CPU time, see below |
//! | one core only | always sleeps at once |
//! | others want the core | the next waits sleep at once: 8, and twice as many each further time |
//!
//! Two signs show that other threads want the core. Either a spin was off the core for [`LOST_NS`] or more. Or spins of the
//! full length repeatedly end without success: the awaited thread may need this very core, and if it does not, such spins do
//! not pay anyway. A shorter spin that fails only shows that the average was too low, and the wait then corrects the average.
//!
//! One long wait between bursts must not make the waits of the next burst sleep: a wait counts for at most [`OUTLIER_LIMIT`] spin
//! limits, or twice the average.
//!
//! The cap: if a waiter works between two waits for more than [`SPARSE`] times the length of a wait, a spin saves one wake-up
//! but costs the whole wait. Such a waiter (at 1,000 calls a second, say) sleeps, unless its waits are so rare that spinning
//! through them takes less than 1/[`RARE`] of a core. If they are that rare, it may even spin twice as long, because the other
//! side has to wake up first.

use crate::config::{Config, SPIN_US_MAX, Wait};
use std::time::Duration;

/// Limits within which a waiter may spin, and the way it chooses within them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitPolicy {
    /// Longest spin of one wait. Zero: always sleep at once.
    pub spin_max: Duration,
    /// Spin the whole `spin_max` every time instead of learning.
    pub fixed: bool,
    /// Learns the spin time, up to 100 µs, the default of `engine.spin_us_max`.
    pub predict: bool,
}

impl WaitPolicy {
    /// Always spins for up to a second before it sleeps: the lowest latency, at the cost of a core. It yields now and then
    /// to threads that want the core.
    pub const AUTO: WaitPolicy =
        WaitPolicy { spin_max: Duration::from_micros(SPIN_US_MAX), fixed: false, predict: false };
    /// Sleeps at once and never spins.
    pub const BLOCK: WaitPolicy = WaitPolicy { spin_max: Duration::ZERO, fixed: false, predict: false };
    /// Spins for up to a second before it sleeps, always: lowest latency, one core burnt. Others that want the core get it in between.
    pub const SPIN: WaitPolicy = WaitPolicy { spin_max: Duration::from_secs(1), fixed: true, predict: false };

    /// Returns the policy that `memlift.toml` and `MEMLIFT_*` ask for.
    pub fn from_config(config: &Config) -> WaitPolicy {
        let spin_max = Duration::from_micros(config.engine.spin_us_max);
        match config.engine.wait {
            Wait::Auto => WaitPolicy { spin_max, ..WaitPolicy::AUTO },
            Wait::Block => WaitPolicy::BLOCK,
            Wait::Spin => WaitPolicy::SPIN,
        }
    }

    /// Returns the same policy with predicted sleep.
    #[must_use]
    pub const fn predicting(mut self) -> WaitPolicy {
        self.predict = true;
        self
    }
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self::AUTO
    }
}

/// Plan of one wait: how long it sleeps, then how long it spins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// Sleep this long first (interruptible).
    pub sleep_ns: u64,
    /// Then spin up to this long.
    pub spin_ns: u64,
}

/// Moving average of wait times and the budget that follows from it. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    policy: WaitPolicy,
    cores: usize,
    average_ns: u64,
    deviation_ns: u64,
    /// Moving average of the time between two waits.
    between_ns: u64,
    oversleep_ns: u64,
    waits: u64,
    /// Number of next waits that must not spin, because a spin lost its core or several failed.
    yielding: u32,
    /// Value that `yielding` gets after the next such spin.
    penalty: u32,
    /// Number of consecutive spins that found nothing.
    in_vain: u32,
}

/// A shorter timed sleep is not worth a system call and the timer's slack.
const SLEEP_MIN_NS: u64 = 150_000;
/// Assumed lateness of a timed sleep until one was measured: timer slack (50 µs), and the time to get back on the core.
const OVERSLEEP_NS: u64 = 70_000;
/// Limit of the lateness that counts: a sleep that ended even later was delayed by something else.
const OVERSLEEP_NS_MAX: u64 = 400_000;
/// If two clock reads of a spin are this far apart, the scheduler has given the core to another thread in between.
pub(super) const LOST_NS: u64 = 500_000;
/// After this many consecutive failed spins of full length, the waiter stops spinning for a while.
const FAILED_SPINS_MAX: u32 = 3;
/// A waiter spins if the time between its waits is at most this many times its average wait.
const SPARSE: u64 = 4;
/// It also spins if the time between its waits is at least this many times its spin limit.
const RARE: u64 = 200;
/// Limit of one wait's weight, in spin limits, unless the average is longer.
const OUTLIER_LIMIT: u64 = 3;
/// One wait in this many spins even if the average says that spinning does not pay.
const EXPLORE_EVERY: u64 = 256;
/// Number of waits without spinning after a spin has lost its core: the first time, and at most.
const PENALTY: u32 = 8;
const PENALTY_MAX: u32 = 1024;

impl Budget {
    /// Makes a budget that starts with spinning (the first waits of a session are usually short).
    pub fn new(policy: WaitPolicy, cores: usize) -> Budget {
        Budget {
            policy,
            cores,
            average_ns: 0,
            deviation_ns: 0,
            between_ns: 0,
            oversleep_ns: OVERSLEEP_NS,
            waits: 0,
            yielding: 0,
            penalty: PENALTY,
            in_vain: 0,
        }
    }

    fn limit_ns(&self) -> u64 {
        u64::try_from(self.policy.spin_max.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn plan(&self, predicted_ns: Option<u64>) -> Plan {
        let limit = self.limit_ns();
        if self.cores <= 1 || limit == 0 {
            return Plan { sleep_ns: 0, spin_ns: 0 };
        }
        if self.policy.fixed {
            return Plan { sleep_ns: 0, spin_ns: limit };
        }
        if self.yielding > 0 {
            return Plan { sleep_ns: 0, spin_ns: 0 };
        }
        let expected = predicted_ns.unwrap_or(self.average_ns);
        let limit = if self.between_ns >= RARE * 2 * limit { 2 * limit } else { limit };
        // With prediction, a wait too short for a partial sleep is spun through.
        let limit = if self.policy.predict { limit.max(SLEEP_MIN_NS) } else { limit };
        if expected <= limit {
            if self.between_ns > SPARSE * expected && self.between_ns < RARE * limit {
                return Plan { sleep_ns: 0, spin_ns: 0 };
            }
            return Plan { sleep_ns: 0, spin_ns: (expected * 2 + 2_000).min(limit) };
        }
        // Waking early by the deviation costs at most a thirtieth of the wait in spinning.
        let steady = self.deviation_ns < limit.max(expected / 32);
        if self.policy.predict && self.waits >= 4 && steady && expected >= SLEEP_MIN_NS {
            let early = self.oversleep_ns + self.deviation_ns;
            return Plan { sleep_ns: expected.saturating_sub(early), spin_ns: limit + early };
        }
        let explore = self.waits % EXPLORE_EVERY == EXPLORE_EVERY - 1;
        Plan { sleep_ns: 0, spin_ns: if explore { limit } else { 0 } }
    }

    /// Updates the average with the time that the waiter worked before this wait.
    pub(super) fn worked(&mut self, ns: u64) {
        // Capped, so that one idle second affects only the next few waits.
        let ns = ns.min(RARE.saturating_mul(self.limit_ns()).saturating_mul(4));
        self.between_ns = self.between_ns - self.between_ns / 4 + ns / 4;
    }

    /// Updates the average lateness of timed sleeps.
    pub(super) fn overslept(&mut self, late_ns: u64) {
        let late = late_ns.min(OVERSLEEP_NS_MAX);
        self.oversleep_ns = self.oversleep_ns - self.oversleep_ns / 4 + late / 4;
    }

    /// Notes that a spin has lost its core to another thread: further spins would delay that thread and this one.
    pub(super) fn lost_core(&mut self) {
        self.in_vain = 0;
        self.yielding = self.penalty;
        self.penalty = (self.penalty * 2).min(PENALTY_MAX);
    }

    /// Notes that a spin has used up its time without success.
    pub(super) fn spun_in_vain(&mut self, spin_ns: u64) {
        if spin_ns < self.limit_ns() {
            return;
        }
        self.in_vain += 1;
        if self.in_vain >= FAILED_SPINS_MAX {
            self.lost_core();
        }
    }

    /// Notes that a spin kept its core and succeeded.
    pub(super) fn spun_well(&mut self) {
        self.in_vain = 0;
        if self.waits.is_multiple_of(64) {
            self.penalty = (self.penalty / 2).max(PENALTY);
        }
    }

    pub(super) fn learn(&mut self, waited_ns: u64) {
        if self.yielding > 0 {
            // The length of a sleep does not show how long a spin would have taken.
            self.yielding -= 1;
            return;
        }
        // One very long idle period must not outweigh the burst that follows it.
        let most = self.limit_ns().saturating_mul(OUTLIER_LIMIT).max(2 * self.average_ns).min(50_000_000);
        self.waits += 1;
        let waited = waited_ns.min(if self.waits == 1 { 50_000_000 } else { most });
        if self.waits == 1 {
            self.average_ns = waited;
            self.deviation_ns = waited / 2;
            return;
        }
        let error = waited.abs_diff(self.average_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error / 4;
        self.average_ns = self.average_ns - self.average_ns / 4 + waited / 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taught(policy: WaitPolicy, cores: usize, waits: &[u64]) -> Budget {
        let mut budget = Budget::new(policy, cores);
        waits.iter().for_each(|&ns| budget.learn(ns));
        budget
    }

    #[test]
    fn short_waits_spin_about_twice_as_long() {
        let plan = taught(WaitPolicy::AUTO, 2, &[5_000; 16]).plan(None);
        assert_eq!(plan.sleep_ns, 0);
        assert!((8_000..=20_000).contains(&plan.spin_ns), "{plan:?}");
    }

    #[test]
    fn long_waits_sleep_at_once() {
        assert_eq!(
            taught(WaitPolicy::AUTO, 2, &[1_000_000; 16]).plan(None),
            Plan { sleep_ns: 0, spin_ns: 0 }
        );
    }

    #[test]
    fn long_steady_waits_are_predicted() {
        let plan = taught(WaitPolicy::AUTO.predicting(), 2, &[2_000_000; 16]).plan(None);
        assert!(plan.sleep_ns > 1_800_000 && plan.sleep_ns < 2_000_000, "{plan:?}");
        assert!(plan.spin_ns >= 50_000);
    }

    #[test]
    fn who_lost_the_core_sleeps_for_a_while_and_longer_each_time() {
        let mut budget = taught(WaitPolicy::AUTO, 2, &[5_000; 16]);
        let mut slept = Vec::new();
        for _ in 0..3 {
            budget.lost_core();
            let mut waits = 0;
            while budget.plan(None).spin_ns == 0 {
                budget.learn(60_000);
                waits += 1;
            }
            slept.push(waits);
        }
        assert_eq!(slept, [8, 16, 32]);
        assert_eq!(budget.average_ns, 5_000, "sleeping taught it nothing about spinning");
    }

    #[test]
    fn spinning_is_for_those_who_wait_most_of_the_time_or_hardly_ever() {
        let spins_with = |wait_ns, work_ns| {
            let mut budget = taught(WaitPolicy::AUTO, 2, &[wait_ns; 16]);
            (0..32).for_each(|_| budget.worked(work_ns));
            budget.plan(None).spin_ns > 0
        };
        for wait_ns in [10_000, 50_000, 90_000] {
            assert!(spins_with(wait_ns, 2_000), "call after call, {wait_ns}");
            assert!(!spins_with(wait_ns, 1_000_000 - wait_ns), "a thousand calls a second, {wait_ns}");
            assert!(!spins_with(wait_ns, 10_000_000), "a hundred calls a second, {wait_ns}");
            assert!(spins_with(wait_ns, 1_000_000_000), "a call a second, {wait_ns}");
        }
    }

    #[test]
    fn one_core_never_spins() {
        assert_eq!(taught(WaitPolicy::SPIN, 1, &[100; 16]).plan(None), Plan { sleep_ns: 0, spin_ns: 0 });
    }

    #[test]
    fn one_idle_second_between_bursts_changes_nothing() {
        let mut budget = taught(WaitPolicy::AUTO, 2, &[1_000; 16]);
        budget.learn(1_000_000_000);
        assert!(budget.plan(None).spin_ns > 0, "{budget:?}");
        // But waits that are always long are slept through.
        (0..8).for_each(|_| budget.learn(1_000_000));
        assert_eq!(budget.plan(None).spin_ns, 0, "{budget:?}");
        (0..64).for_each(|_| budget.learn(1_000_000));
        assert!(budget.average_ns > 900_000, "{budget:?}");
    }

    #[test]
    fn short_spins_in_vain_are_no_sign_of_a_core_that_others_want() {
        let mut budget = taught(WaitPolicy::AUTO, 2, &[1_000; 16]);
        let short = budget.plan(None).spin_ns;
        (0..10).for_each(|_| budget.spun_in_vain(short));
        assert!(budget.plan(None).spin_ns > 0);
        (0..FAILED_SPINS_MAX).for_each(|_| budget.spun_in_vain(100_000));
        assert_eq!(budget.plan(None).spin_ns, 0);
    }

    #[test]
    fn rare_waits_may_spin_until_the_other_side_has_woken() {
        let mut budget = taught(WaitPolicy::AUTO, 2, &[150_000; 16]);
        assert_eq!(budget.plan(None).spin_ns, 0);
        (0..4).for_each(|_| budget.worked(1_000_000_000));
        assert_eq!(budget.plan(None).spin_ns, 200_000);
        (0..4).for_each(|_| budget.worked(1_000));
        assert_eq!(budget.plan(None).spin_ns, 0, "a burst");
    }

    #[test]
    fn a_burst_after_idle_is_noticed_soon() {
        let mut budget = taught(WaitPolicy::AUTO, 2, &[3_000_000_000]);
        let mut waits = 0;
        while budget.plan(None).spin_ns == 0 {
            budget.learn(10_000);
            waits += 1;
        }
        assert!(waits <= 32, "{waits} waits until it spun again");
    }
}
