// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words through which processes wait for the watcher's looks (its measurements of the job), so that a process cannot
//! fill memory faster than a delayed watcher measures it.
//!
//! - **Flow** a process near the end of the budget ─▶ [`wait_for_one`]: if the look is overdue, asks for it and waits ─▶ the
//!   watcher, which sleeps in [`sleep`], looks ─▶ [`announce_measurement`]
//! - **Order** the block is told the measurement before the look counts as done, so that a process that waited charges
//!   against it
//! - **Owner** a watcher that does not look for [`PATIENCE`] is given up: until its next look, no process waits for it
//! - **Not here** the measurement itself ([`crate::watch`])

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::atomic::{futex_wait, futex_wake};
use super::ledger::{Ledger, NEVER};
use crate::lock::now_ms;

/// Longest wait for a look.
const PATIENCE: Duration = Duration::from_secs(1);
/// Allowance for the length of a look and a late scheduler, before the look is overdue.
const SLACK: Duration = Duration::from_millis(5);

/// Announces that a watcher is about to look; processes wait for this first look.
pub fn announce_watcher(ledger: &Ledger) {
    ledger.overdue_ms.store(0, Ordering::Release);
}

/// Returns true if there is a watcher that looks.
pub(super) fn has_watcher(ledger: &Ledger) -> bool {
    ledger.overdue_ms.load(Ordering::Acquire) != NEVER
}

/// Announces that a look ended, and that the next one comes within `next`.
pub fn announce_measurement(ledger: &Ledger, next: Duration) {
    let within = u64::try_from((next + SLACK).as_millis()).unwrap_or(NEVER / 2);
    ledger.overdue_ms.store(now_ms().saturating_add(within), Ordering::Release);
    ledger.looks.fetch_add(1, Ordering::Release);
    futex_wake(&ledger.looks, i32::MAX, true);
}

/// Asks the watcher to look now.
pub fn ask(ledger: &Ledger) {
    ledger.ask.fetch_add(1, Ordering::Release);
    futex_wake(&ledger.ask, i32::MAX, true);
}

/// Returns the number of times that a look was asked for.
pub fn asked(ledger: &Ledger) -> u32 {
    ledger.ask.load(Ordering::Acquire)
}

/// Sleeps until `time` is over, or until a look is asked for after `asked` was read; called by the watcher.
pub fn sleep(ledger: &Ledger, asked: u32, time: Duration) {
    futex_wait(&ledger.ask, asked, true, Some(time));
}

/// Makes the next look overdue, if there is a watcher, because something happened that the last look could not foresee.
pub(super) fn hasten(ledger: &Ledger) {
    let soon = |overdue: u64| (overdue != NEVER).then_some(0);
    if ledger.overdue_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, soon).is_ok() {
        ask(ledger);
    }
}

/// Waits for the next look if it is overdue.
pub(super) fn wait_for_one(ledger: &Ledger) {
    let overdue = ledger.overdue_ms.load(Ordering::Acquire);
    if overdue == NEVER || now_ms() < overdue {
        return;
    }
    let (looks, began) = (ledger.looks.load(Ordering::Acquire), Instant::now());
    if ledger.overdue_ms.load(Ordering::Acquire) != overdue {
        return;
    }
    ask(ledger);
    while ledger.looks.load(Ordering::Acquire) == looks {
        let Some(rest) = PATIENCE.checked_sub(began.elapsed()) else {
            let _ = ledger.overdue_ms.compare_exchange(overdue, NEVER, Ordering::AcqRel, Ordering::Acquire);
            return;
        };
        futex_wait(&ledger.looks, looks, true, Some(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Ledger {
        let ledger = Ledger::default();
        ledger.clear();
        ledger
    }

    #[test]
    fn who_is_near_the_end_waits_for_a_look_that_is_overdue() {
        let ledger = watched();
        announce_watcher(&ledger);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // This is the watcher, which is late.
                std::thread::sleep(Duration::from_millis(50));
                ledger.outside.store(7, Ordering::Release);
                announce_measurement(&ledger, Duration::from_secs(1000));
            });
            wait_for_one(&ledger);
            assert_eq!(ledger.outside(), 7, "it went on before the look");
        });
        // Nothing is overdue now, so this must return; nothing would end a wait.
        wait_for_one(&ledger);
        assert_eq!(ledger.looks.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_watcher_that_does_not_look_is_given_up_until_it_does() {
        let ledger = watched();
        hasten(&ledger);
        wait_for_one(&ledger);
        assert_eq!(asked(&ledger), 0, "nobody looks here");
        announce_measurement(&ledger, Duration::ZERO);
        hasten(&ledger);
        wait_for_one(&ledger);
        let before = asked(&ledger);
        wait_for_one(&ledger);
        hasten(&ledger);
        assert_eq!(asked(&ledger), before, "who gave up does not ask again");
        announce_measurement(&ledger, Duration::ZERO);
        assert!(ledger.overdue_ms.load(Ordering::Relaxed) != NEVER);
    }

    #[test]
    fn a_watcher_that_was_asked_meanwhile_does_not_sleep() {
        let ledger = watched();
        let before = asked(&ledger);
        ask(&ledger);
        // Nothing would end this sleep, so it must return immediately.
        sleep(&ledger, before, Duration::from_secs(1000));
    }
}
