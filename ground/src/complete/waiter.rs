// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The waiter: predicted sleep, spin within a budget, then park. Each place that waits has its own.
//!
//! - **Flow** `wait(parker, ready, …)` ─▶ `Plan` from the budget ─▶ sleep, spin or park ─▶ the budget learns the wait's
//!   duration
//! - **Order** `ready` must load the awaited state with Acquire; `ParkWord` defines the handshake with the producer
//! - **Owner** one thread at a time uses a waiter and its word

use super::budget::{Budget, LOST_NS, WaitPolicy};
use super::park::Parker;
use super::pause::HardwareWait;
use crate::observe;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// End of a wait.
#[derive(Debug)]
#[must_use]
pub enum Waited {
    /// `ready` returned true.
    Ready,
    /// The deadline passed.
    TimedOut,
    /// Parking failed: the peer hung up, or the kernel refused.
    Broken(std::io::Error),
}

/// Counts and times of a waiter's waits so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WaiterStats {
    /// Waits whose condition was true immediately.
    pub ready: u64,
    /// Waits whose condition was not true immediately.
    pub waits: u64,
    /// Waits that ended while spinning.
    pub spun: u64,
    /// Times the thread slept.
    pub parks: u64,
    /// Nanoseconds spent spinning.
    pub spin_ns: u64,
    /// Turns of the spin loop, rounded to the 16 turns between two reads of the clock.
    pub turns: u64,
    /// Nanoseconds of waits that slept, without their time of spinning.
    pub park_ns: u64,
}

/// Waits for one condition after another, and learns from the times.
#[derive(Debug)]
pub struct Waiter {
    budget: Budget,
    hardware: HardwareWait,
    stats: WaiterStats,
    /// The part of `stats` that was already added to the process's counters.
    published: WaiterStats,
    /// Time at which the last wait ended.
    ended: Option<Instant>,
    /// True if the last spin ended because the other side ran on this core.
    shares_core: bool,
}

/// Number of waits without a sleep after which the process's counters are updated.
const PUBLISH: u64 = 64;
/// Turns of the spin loop between two reads of the clock.
const TURNS: u32 = 16;
/// After this time a spin yields in each turn, because the awaited thread may have been woken on this very core. While both
/// are runnable here, the scheduler moves one of them to an idle core; if they slept alternately, they would stay on one
/// core.
const YIELD_AFTER: Duration = Duration::from_micros(5);
/// Shortest duration of a yield that has let another thread run.
const OTHERS_RAN: Duration = Duration::from_micros(1);

impl Waiter {
    /// Makes a waiter that has learned nothing yet.
    pub fn new(policy: WaitPolicy) -> Waiter {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Waiter {
            budget: Budget::new(policy, cores),
            hardware: HardwareWait::detect(),
            stats: WaiterStats::default(),
            published: WaiterStats::default(),
            ended: None,
            shares_core: false,
        }
    }

    /// Returns counts and times of all waits so far.
    pub fn stats(&self) -> WaiterStats {
        self.stats
    }

    /// Returns a number that changes with every wait.
    pub fn count(&self) -> u64 {
        self.stats.ready + self.stats.waits
    }

    /// Waits until `ready` returns true or `deadline` passes; finally sleeps by `parker`. `predicted_ns` is the cost model's
    /// prediction of the wait, if there is one. `line` is the cache line whose change makes `ready` true, for CPUs that can
    /// monitor one (null: none).
    pub fn wait(
        &mut self,
        parker: &dyn Parker,
        line: *const u8,
        mut ready: impl FnMut() -> bool,
        predicted_ns: Option<u64>,
        deadline: Option<Instant>,
    ) -> Waited {
        if ready() {
            self.stats.ready += 1;
            return Waited::Ready;
        }
        let start = Instant::now();
        if let Some(ended) = self.ended {
            self.budget.worked(nanoseconds(start.duration_since(ended)));
        }
        let (parks, spin_ns) = (self.stats.parks, self.stats.spin_ns);
        let (waited, ended) = self.wait_as_planned(parker, line, ready, predicted_ns, deadline, start);
        self.ended = Some(ended);
        self.stats.waits += 1;
        if self.stats.parks > parks {
            let spun = self.stats.spin_ns - spin_ns;
            self.stats.park_ns += nanoseconds(ended.duration_since(start)).saturating_sub(spun);
        }
        // After a sleep the update costs comparatively nothing; waits that only spun are in a hurry and rarely update.
        if self.stats.parks > parks || self.stats.waits.is_multiple_of(PUBLISH) {
            self.publish();
        }
        waited
    }

    /// Adds the new part of the statistics to the process's counters.
    fn publish(&mut self) {
        let counters = observe::waiting();
        let (now, then) = (&self.stats, &self.published);
        let turns = now.turns - then.turns;
        for (counter, more) in [
            (&counters.waits, now.waits - then.waits),
            (&counters.spin_hits, now.spun - then.spun),
            (&counters.spins, turns),
            (&counters.hardware_waits, if self.hardware == HardwareWait::Pause { 0 } else { turns }),
            (&counters.parks, now.parks - then.parks),
            (&counters.spin_ns, now.spin_ns - then.spin_ns),
            (&counters.park_ns, now.park_ns - then.park_ns),
        ] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
        counters.spin_budget_ns.store(self.budget.plan(None).spin_ns, Ordering::Relaxed);
        self.published = self.stats;
    }

    /// Waits as the budget plans. Also returns when the wait ended, so that the clock is read only once between an answer
    /// and the thread that waits for it.
    fn wait_as_planned(
        &mut self,
        parker: &dyn Parker,
        line: *const u8,
        mut ready: impl FnMut() -> bool,
        predicted_ns: Option<u64>,
        deadline: Option<Instant>,
        start: Instant,
    ) -> (Waited, Instant) {
        let plan = self.budget.plan(predicted_ns);
        let mut now = start;
        if plan.sleep_ns > 0 {
            let until = start + Duration::from_nanos(plan.sleep_ns);
            let until = deadline.map_or(until, |deadline| until.min(deadline));
            if let Some(waited) = self.park(parker, &mut ready, Some(until)) {
                return self.learned(start, Instant::now(), waited);
            }
            now = Instant::now();
            if let Some(late) = now.checked_duration_since(until) {
                self.budget.overslept(nanoseconds(late));
            }
        }
        if plan.spin_ns > 0 {
            let (found, ended) = self.spin(line, &mut ready, now, plan.spin_ns, deadline);
            if found {
                self.stats.spun += 1;
                return self.learned(start, ended, Waited::Ready);
            }
        }
        loop {
            let parked = self.park(parker, &mut ready, deadline);
            now = Instant::now();
            if let Some(waited) = parked {
                return self.learned(start, now, waited);
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return (Waited::TimedOut, now);
            }
        }
    }

    fn learned(&mut self, start: Instant, ended: Instant, waited: Waited) -> (Waited, Instant) {
        if matches!(waited, Waited::Ready) {
            self.budget.learn(nanoseconds(ended.duration_since(start)));
        }
        (waited, ended)
    }

    /// Spins from `start` on. Returns true if `ready` did, and the time at which the spin ended.
    fn spin(
        &mut self,
        line: *const u8,
        ready: &mut impl FnMut() -> bool,
        start: Instant,
        spin_ns: u64,
        deadline: Option<Instant>,
    ) -> (bool, Instant) {
        let mut until = start + Duration::from_nanos(spin_ns);
        if let Some(deadline) = deadline {
            until = until.min(deadline);
        }
        let (mut last, mut lost) = (start, false);
        let found = loop {
            let mut found = false;
            // If the other side runs on this core, frequent checks only keep it from running.
            for _ in 0..if self.shares_core { 1 } else { TURNS } {
                if ready() {
                    found = true;
                    break;
                }
                self.hardware.pause_on_line(line, &mut *ready);
            }
            self.stats.turns += u64::from(TURNS);
            let mut now = Instant::now();
            if !found && (self.shares_core || now.duration_since(start) >= YIELD_AFTER) {
                std::thread::yield_now();
                let back = Instant::now();
                found = ready();
                self.shares_core = found && back.duration_since(now) >= OTHERS_RAN;
                now = back;
            }
            lost |= now.duration_since(last).as_nanos() >= u128::from(LOST_NS);
            last = now;
            if found || now >= until {
                break found;
            }
        };
        match (lost, found) {
            (true, _) => self.budget.lost_core(),
            (false, true) => self.budget.spun_well(),
            (false, false) => self.budget.spun_in_vain(spin_ns),
        }
        self.stats.spin_ns += nanoseconds(last.duration_since(start));
        (found, last)
    }

    /// Sleeps once. Returns `None` if it was woken, or `until` passed, while `ready` is false.
    fn park(
        &mut self,
        parker: &dyn Parker,
        ready: &mut impl FnMut() -> bool,
        until: Option<Instant>,
    ) -> Option<Waited> {
        parker.prepare();
        if ready() {
            parker.finish();
            return Some(Waited::Ready);
        }
        self.stats.parks += 1;
        let parked = parker.park(until);
        parker.finish();
        // `ready` is checked before the result: an answer that came together with the hang-up still counts.
        if ready() {
            return Some(Waited::Ready);
        }
        parked.err().map(Waited::Broken)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.stats != self.published {
            self.publish();
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{FutexParker, ParkWord};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    fn ping(policy: WaitPolicy, gap: Duration, rounds: u64) -> WaiterStats {
        let shared = Arc::new((ParkWord::new(), AtomicU64::new(0)));
        let producer = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for _ in 0..rounds {
                    std::thread::sleep(gap);
                    shared.1.fetch_add(1, Ordering::Release);
                    FutexParker::new(&shared.0, false).wake();
                }
            })
        };
        let parker = FutexParker::new(&shared.0, false);
        let mut waiter = Waiter::new(policy);
        for round in 1..=rounds {
            let ready = || shared.1.load(Ordering::Acquire) >= round;
            let waited = waiter.wait(&parker, std::ptr::null(), ready, None, None);
            assert!(matches!(waited, Waited::Ready));
        }
        producer.join().unwrap();
        waiter.stats()
    }

    #[test]
    fn every_wake_up_arrives_whatever_the_policy() {
        for policy in [WaitPolicy::AUTO, WaitPolicy::AUTO.predicting(), WaitPolicy::BLOCK, WaitPolicy::SPIN] {
            ping(policy, Duration::ZERO, 500);
            ping(policy, Duration::from_micros(300), 50);
        }
    }

    #[test]
    fn blocking_never_spins() {
        assert_eq!(ping(WaitPolicy::BLOCK, Duration::from_micros(100), 50).spin_ns, 0);
    }

    #[test]
    fn a_deadline_ends_the_wait() {
        let mut waiter = Waiter::new(WaitPolicy::AUTO);
        let word = ParkWord::new();
        let start = Instant::now();
        let until = Some(start + Duration::from_millis(20));
        let waited = waiter.wait(&FutexParker::new(&word, false), std::ptr::null(), || false, None, until);
        assert!(matches!(waited, Waited::TimedOut));
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
