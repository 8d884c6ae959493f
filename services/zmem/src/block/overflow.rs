// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compressed-memory fault: `unused` falling below zero raises one event; the job gets a grace first, and is paused or
//! ended after the next event.
//!
//! ```text
//! calm ──flip──▶ grace: 10 MiB is lent, the coldest spilled ──flip──▶ over: pause (time limit) or fail, exit code 75
//!   ▲              │    ▲                                              │
//!   └─ unused > 2× grace: the grace is taken back                      └─ unused ≥ 0 again: back to grace
//! ```
//!
//! - **Flow** every change of `unused` comes here as a [`Step`] ─▶ [`after_charge`], [`after_tolerated_decrease`] or
//!   [`after_increase`]; a process that found no room asks [`verdict`]
//! - **Order** an event is counted once, by the change that made `unused` negative. A change larger than the grace leads to
//!   `over` directly. Memory that the watcher or a smaller budget takes is an event only if compression does not make up for
//!   it: [`after_tolerated_decrease`]
//! - **Owner** the grace is lent by the implicit block. The process that begins the pause, or that ends, writes the line on
//!   standard error; while the pause lasts, one of the waiting processes writes a line every five seconds
//! - **Not here** spilling (the pager); the message of the supervisor when the memory outside the arenas alone exceeds the
//!   budget

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::atomic::{futex_wait, futex_wake};
use super::control::{ControlBlock, Step};
use super::ledger::{GRACE_BYTES, Ledger, OnOverflow};
use super::looks;
use crate::line::Line;
use crate::lock::now_ms;

/// Exit code of a job that did not fit, even compressed and spilled (`EX_TEMPFAIL`).
pub const OVERFLOW_EXIT_CODE: i32 = 75;

const CALM: u32 = 0;
const GRACE: u32 = 1;
const OVER: u32 = 2;

/// Longest wait of a paused process between two checks for room.
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two lines about a pause.
const SAY_EVERY_MS: u64 = 5000;

/// The next step of a process that found no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// Spill the coldest pages and go on.
    Spill,
    /// The job is paused, and the process has waited a little. It spills pages, goes on only if there is room, and asks again
    /// otherwise.
    Wait,
    /// End the process with this exit code. The reason was already written to standard error.
    Fail(i32),
}

/// Called after a charge by a process that found nothing more to evict, or for which there was room.
pub(super) fn after_charge(block: &ControlBlock, ledger: &Ledger, implicit: &ControlBlock, step: Step) {
    demand(block, ledger, step);
    // If `unused` was below zero before (because of the watcher or a smaller budget) and the grace is not lent yet, this
    // charge is the event.
    if step.flips_negative() {
        flipped(block, ledger, implicit, step.after);
    } else if step.after < 0 && ledger.overflow.load(Ordering::Acquire) == CALM {
        lend(block, ledger, implicit, step.after);
    }
}

/// Called after a decrease that is no event by itself: memory that the watcher or a smaller budget takes, or that a process
/// charges ahead. Compression is asked to make up for it first. It becomes an event if that does not help
/// ([`after_lasting_shortage`]), or if a process must charge nevertheless.
pub(super) fn after_tolerated_decrease(block: &ControlBlock, ledger: &Ledger, step: Step) {
    demand(block, ledger, step);
    if step.after < 0 {
        note_least(ledger, step.after);
        activate(ledger);
    }
}

/// Called when `unused` has been below zero for a while and does not rise: that is an event.
pub(super) fn after_lasting_shortage(block: &ControlBlock, ledger: &Ledger, implicit: &ControlBlock) {
    let unused = block.unused();
    if unused < 0 && ledger.overflow.load(Ordering::Acquire) != OVER {
        flipped(block, ledger, implicit, unused);
    }
}

/// Wakes the evictors, which compress ahead of need.
fn demand(block: &ControlBlock, ledger: &Ledger, step: Step) {
    if step.falls_below(block.unused_objective().saturating_add(ledger.reserved_bytes())) {
        wake_demand(ledger);
    }
}

pub(super) fn wake_demand(ledger: &Ledger) {
    ledger.demand.fetch_add(1, Ordering::Release);
    futex_wake(&ledger.demand, i32::MAX, true);
}

/// Handles an event: the first lends the grace; the second stops the job until there is room.
#[cold]
fn flipped(block: &ControlBlock, ledger: &Ledger, implicit: &ControlBlock, after: i64) {
    if !lend(block, ledger, implicit, after) {
        ledger.events.fetch_add(1, Ordering::Relaxed);
        note_least(ledger, after);
        ledger.overflow.store(OVER, Ordering::Release);
    }
}

/// Handles the first event: lends the grace. Returns false if the grace is lent already.
#[cold]
fn lend(block: &ControlBlock, ledger: &Ledger, implicit: &ControlBlock, after: i64) -> bool {
    if ledger.overflow.compare_exchange(CALM, GRACE, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    ledger.events.fetch_add(1, Ordering::Relaxed);
    note_least(ledger, after);
    activate(ledger);
    ledger.borrowed.fetch_add(GRACE_BYTES, Ordering::AcqRel);
    let _ = implicit.add(-GRACE_BYTES);
    // If `unused` is below zero even with the grace, no second change can cross zero, so the job goes to `over` now.
    if block.add(GRACE_BYTES).after < 0 {
        ledger.overflow.store(OVER, Ordering::Release);
    }
    true
}

/// Notes the smallest value of `unused`, without the grace.
pub(super) fn note_least(ledger: &Ledger, unused: i64) {
    let own = unused.wrapping_sub(ledger.borrowed());
    ledger.least_unused.fetch_min(own, Ordering::Relaxed);
}

/// Tells every process of the job to be active.
pub(super) fn activate(ledger: &Ledger) {
    if ledger.active.swap(1, Ordering::AcqRel) == 0 {
        futex_wake(&ledger.active, i32::MAX, true);
        looks::hasten(ledger);
    }
}

/// Called after an increase of `unused`.
pub(super) fn after_increase(block: &ControlBlock, ledger: &Ledger, implicit: &ControlBlock, step: Step) {
    if ledger.overflow.load(Ordering::Acquire) != CALM {
        recovered(block, ledger, implicit, step);
    }
}

#[cold]
fn recovered(block: &ControlBlock, ledger: &Ledger, implicit: &ControlBlock, step: Step) {
    if step.after >= 0
        && ledger.overflow.compare_exchange(OVER, GRACE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    {
        // The grace was taken back while the job went to `over`.
        if ledger.borrowed() == 0 {
            let _ = ledger.overflow.compare_exchange(GRACE, CALM, Ordering::AcqRel, Ordering::Acquire);
        }
        ledger.paused_since_ms.store(0, Ordering::Relaxed);
        ledger.relief.fetch_add(1, Ordering::Release);
        futex_wake(&ledger.relief, i32::MAX, true);
    }
    if step.after > 2 * GRACE_BYTES {
        let borrowed = ledger.borrowed.swap(0, Ordering::AcqRel);
        if borrowed > 0 {
            let _ = block.add(-borrowed);
            let _ = implicit.add(borrowed);
            // This fails only if the job went to `over` meanwhile; the next increase then brings it back.
            let _ = ledger.overflow.compare_exchange(GRACE, CALM, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}

/// Decides the next step of a process that lacks `by` bytes and cannot compress more.
pub(super) fn verdict(block: &ControlBlock, ledger: &Ledger, by: usize) -> Verdict {
    if ledger.overflow.load(Ordering::Acquire) != OVER || block.unused() >= 0 {
        return Verdict::Spill;
    }
    let OnOverflow::Pause { limit_s } = OnOverflow::from_word(ledger.on_overflow.load(Ordering::Relaxed))
    else {
        say(block, ledger, by, format_args!("the job ends (--on-overflow fail)"));
        return Verdict::Fail(OVERFLOW_EXIT_CODE);
    };
    let now = now_ms();
    match ledger.paused_since_ms.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            ledger.said_ms.store(now, Ordering::Relaxed);
            say(
                block,
                ledger,
                by,
                format_args!("the job is paused until there is room, {limit_s} s at most"),
            );
        }
        Err(since) if now.saturating_sub(since) >= u64::from(limit_s) * 1000 => {
            say(block, ledger, by, format_args!("no room came in {limit_s} s, the job ends"));
            return Verdict::Fail(OVERFLOW_EXIT_CODE);
        }
        Err(since) => {
            let said = ledger.said_ms.load(Ordering::Relaxed);
            let due = now.saturating_sub(said) >= SAY_EVERY_MS;
            let exchanged =
                || ledger.said_ms.compare_exchange(said, now, Ordering::Relaxed, Ordering::Relaxed);
            if due && exchanged().is_ok() {
                let paused_s = now.saturating_sub(since) / 1000;
                say(block, ledger, by, format_args!("paused for {paused_s} s, {limit_s} s at most"));
            }
        }
    }
    let relief = ledger.relief.load(Ordering::Acquire);
    if block.unused() < 0 {
        ledger.waiting.fetch_add(1, Ordering::Relaxed);
        futex_wait(&ledger.relief, relief, true, Some(PAUSE));
        ledger.waiting.fetch_sub(1, Ordering::Relaxed);
    }
    Verdict::Wait
}

/// Notes that a thread lacks room, unless one did so before.
pub(super) fn note_shortage(ledger: &Ledger) {
    let _ = ledger.short_since_ms.compare_exchange(0, now_ms().max(1), Ordering::Relaxed, Ordering::Relaxed);
}

/// Writes one line to standard error without taking memory from the heap, because this runs in fault handlers.
fn say(block: &ControlBlock, ledger: &Ledger, by: usize, what: std::fmt::Arguments<'_>) {
    #[cfg(test)]
    if super::interleave::is_explored() {
        return;
    }
    let mib = |bytes: i64| bytes.max(0) as u64 / (1 << 20);
    let total = block.total();
    let needed = mib(ledger.needed_bytes(total, block.unused()).max(total + by as i64) - 1) + 1;
    let mut line = Line::new();
    let _ = writeln!(
        line,
        "memlift: no room: compressed and spilled as far as it goes, this job needs {} KiB more than its budget of {} MiB: \
         {what}; for what it holds now it needs --memory {needed}M, or --spill to a folder with room",
        by / 1024 + 1,
        mib(total),
    );
    line.write();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(total: i64) -> (ControlBlock, Ledger) {
        let (block, ledger) = (ControlBlock::default(), Ledger::default());
        let _ = block.set_total(total);
        (block, ledger)
    }

    fn charge(block: &ControlBlock, ledger: &Ledger, bytes: i64) {
        let (step, implicit) = (block.add(-bytes), ControlBlock::default());
        if bytes >= 0 {
            after_charge(block, ledger, &implicit, step)
        } else {
            after_increase(block, ledger, &implicit, step)
        }
    }

    #[test]
    fn the_first_flip_borrows_the_second_stops_and_room_brings_it_back() {
        let (block, ledger) = block(100 << 20);
        ledger.on_overflow.store(OnOverflow::Fail.word(), Ordering::Relaxed);
        charge(&block, &ledger, 99 << 20);
        assert!(!ledger.active() && ledger.events() == 0);
        charge(&block, &ledger, 2 << 20);
        assert_eq!((block.unused(), ledger.borrowed(), ledger.events()), (9 << 20, GRACE_BYTES, 1));
        assert!(ledger.active());
        assert_eq!(verdict(&block, &ledger, 4096), Verdict::Spill);
        charge(&block, &ledger, 10 << 20);
        assert_eq!((block.unused(), ledger.borrowed(), ledger.events()), (-(1 << 20), GRACE_BYTES, 2));
        assert_eq!(verdict(&block, &ledger, 1 << 20), Verdict::Fail(OVERFLOW_EXIT_CODE));
        charge(&block, &ledger, -(2 << 20));
        assert_eq!(verdict(&block, &ledger, 4096), Verdict::Spill, "there is room again");
        charge(&block, &ledger, -(20 << 20));
        assert_eq!(
            (block.unused(), ledger.borrowed()),
            (11 << 20, 0),
            "the grace is taken back above twice itself"
        );
        charge(&block, &ledger, 12 << 20);
        assert_eq!((ledger.borrowed(), ledger.events()), (GRACE_BYTES, 3), "it starts anew");
    }

    #[test]
    fn a_change_larger_than_the_grace_is_over_at_once_and_a_pause_ends_by_its_limit() {
        let (block, ledger) = block(1 << 20);
        ledger.on_overflow.store(OnOverflow::Pause { limit_s: 0 }.word(), Ordering::Relaxed);
        charge(&block, &ledger, 100 << 20);
        assert_eq!(verdict(&block, &ledger, 1), Verdict::Wait);
        assert_eq!(verdict(&block, &ledger, 1), Verdict::Fail(OVERFLOW_EXIT_CODE));
        assert_eq!(ledger.least_unused.load(Ordering::Relaxed), -(99 << 20));
    }
}
