// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the turn and the overflow in every interleaving of a few threads, with a death at every step of one of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::control::ControlBlock;
use super::interleave::{Bounds, Case, Outcome, explore};
use super::ledger::{GRACE_BYTES, Ledger, OnOverflow};
use super::overflow::{self, Verdict};
use super::shared::Shared;
use super::slot::LIVE;
use super::turn::{self, Turn};

/// An atomic of the test itself; its accesses are not points of the schedule.
type Plain = std::sync::atomic::AtomicU32;

/// A pid that no process has.
const NOBODY: u32 = i32::MAX as u32;

fn ring(members: &[(usize, usize)]) -> Arc<Shared> {
    let shared = Shared::create().expect("a registry");
    for (block, slot) in members {
        let record = shared.slot(*slot);
        record.pid.store(std::process::id(), Ordering::Relaxed);
        record.block.store(*block as u32, Ordering::Relaxed);
        record.state.store(LIVE, Ordering::Relaxed);
    }
    Arc::new(shared)
}

/// Returns the body of a ring member that takes its turn `visits` times. It counts itself in `holders` while it has the turn.
fn member(
    shared: &Arc<Shared>,
    block: usize,
    slot: usize,
    visits: usize,
    holders: &Arc<Plain>,
) -> Box<dyn FnOnce() + Send> {
    let (shared, holders) = (shared.clone(), holders.clone());
    Box::new(move || {
        turn::join(&shared, block, slot);
        for _ in 0..visits {
            let visit = turn::wait(&shared, block, slot).expect("it is in the ring");
            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two have the turn");
            super::interleave::step();
            holders.fetch_sub(1, Ordering::SeqCst);
            drop(visit);
        }
        turn::leave(&shared, block, slot);
    })
}

fn nobody_is_left(shared: &Shared) {
    let words = shared.header().ring.iter().map(|word| word.load(Ordering::SeqCst));
    assert_eq!(words.sum::<u64>(), 0, "blocks are left in the ring");
    let turn = Turn::from_word(shared.header().turn.load(Ordering::SeqCst));
    if let Some(slot) = turn.slot {
        assert!(!turn::wants(shared, usize::from(turn.block), usize::from(slot)), "{turn:?}");
    }
}

fn turns(members: &'static [(usize, usize)], visits: usize, preemptions: usize) {
    let explored = explore(Bounds { preemptions, victim: None }, || {
        let (shared, holders) = (ring(members), Arc::new(Plain::new(0)));
        let threads =
            members.iter().map(|(block, slot)| member(&shared, *block, *slot, visits, &holders)).collect();
        let check = Box::new(move |outcome: Outcome| {
            assert_eq!(outcome.timeouts, 0, "a turn was lost: only time brought it back");
            nobody_is_left(&shared);
        });
        Case { threads, on_death: Box::new(|| {}), check }
    });
    assert!(explored.schedules > 100 && explored.with_timeouts == 0, "{explored:?}");
}

const ONE_BLOCK: &[(usize, usize)] = &[(1, 10), (1, 11)];
const TWO_BLOCKS: &[(usize, usize)] = &[(1, 10), (2, 11)];
const THREE: &[(usize, usize)] = &[(1, 10), (1, 11), (2, 12)];

#[test]
fn a_turn_is_never_lost_and_never_held_by_two() {
    turns(ONE_BLOCK, 2, 1);
    turns(TWO_BLOCKS, 2, 1);
}

#[test]
#[ignore = "soak"]
fn soak_a_turn_is_never_lost_and_never_held_by_two() {
    turns(ONE_BLOCK, 1, 2);
    turns(TWO_BLOCKS, 1, 2);
    turns(THREE, 1, 1);
}

#[test]
fn whoever_dies_wherever_it_is_the_others_get_their_turn() {
    const DEAD: usize = 10;
    let explored = explore(Bounds { preemptions: 1, victim: Some(0) }, || {
        let shared = ring(&[(1, DEAD), (1, 11)]);
        let (of_the_dead, of_others) = (Arc::new(Plain::new(0)), Arc::new(Plain::new(0)));
        let threads = vec![member(&shared, 1, DEAD, 1, &of_the_dead), member(&shared, 1, 11, 2, &of_others)];
        let told = shared.clone();
        let on_death = Box::new(move || told.slot(DEAD).pid.store(NOBODY, Ordering::Relaxed));
        let check = Box::new(move |outcome: Outcome| {
            assert!(outcome.died || outcome.timeouts == 0, "a turn was lost");
            assert!(!turn::wants(&shared, 1, 11), "it had its visits and left");
        });
        Case { threads, on_death, check }
    });
    assert!(explored.with_death > 100 && explored.with_timeouts > 0, "{explored:?}");
}

/// A block, its ledger, and the implicit block that lends the grace.
#[derive(Default)]
struct Job {
    block: ControlBlock,
    ledger: Ledger,
    implicit: ControlBlock,
}

impl Job {
    fn new(total: i64) -> Arc<Job> {
        let job = Job::default();
        let _ = job.block.set_total(total);
        job.ledger.on_overflow.store(OnOverflow::Pause { limit_s: 60 }.word(), Ordering::Relaxed);
        Arc::new(job)
    }

    fn charge(&self, bytes: i64) {
        overflow::after_charge(&self.block, &self.ledger, &self.implicit, self.block.add(-bytes));
    }

    fn uncharge(&self, bytes: i64) {
        overflow::after_increase(&self.block, &self.ledger, &self.implicit, self.block.add(bytes));
    }

    /// Charges like a process that found nothing to evict, and waits while the job is paused.
    fn charge_and_wait(&self, bytes: i64) {
        self.charge(bytes);
        while overflow::verdict(&self.block, &self.ledger, 1) != Verdict::Spill {}
    }

    /// Asserts the invariants that hold while no process works and `used` bytes are charged.
    fn is_whole(&self, used: i64) {
        let (unused, borrowed) = (self.block.unused(), self.ledger.borrowed());
        assert_eq!(unused, self.block.total() - used + borrowed, "the sum");
        assert_eq!(self.implicit.unused(), -borrowed, "lent by all");
        assert!(borrowed == 0 || borrowed == GRACE_BYTES, "{borrowed}");
        // The next request must succeed as well: with room left, no earlier event may make the job stop for one byte more.
        if unused > 0 {
            self.uncharge(0);
            assert_eq!(overflow::verdict(&self.block, &self.ledger, 1), Verdict::Spill);
        }
    }
}

fn overflows(preemptions: usize, total: i64, used: i64, bodies: &'static [fn(&Job)]) -> usize {
    let explored = explore(Bounds { preemptions, victim: None }, || {
        let job = Job::new(total);
        let threads = bodies.iter().map(|body| {
            let job = job.clone();
            Box::new(move || body(&job)) as Box<dyn FnOnce() + Send>
        });
        let threads = threads.collect();
        let check = Box::new(move |outcome: Outcome| {
            assert_eq!(outcome.timeouts, 0, "room came and nobody was told");
            job.is_whole(used);
        });
        Case { threads, on_death: Box::new(|| {}), check }
    });
    explored.schedules
}

const MIB: i64 = 1 << 20;

#[test]
fn the_grace_is_lent_once_whoever_flips_first() {
    let schedules =
        overflows(3, 100 * MIB, 104 * MIB, &[|job| job.charge(52 * MIB), |job| job.charge(52 * MIB)]);
    assert!(schedules > 10);
    overflows(
        3,
        100 * MIB,
        105 * MIB,
        &[|job| job.charge(101 * MIB), |job| job.charge(2 * MIB), |job| job.charge(2 * MIB)],
    );
}

#[test]
fn the_grace_is_given_back_once_while_others_flip() {
    let schedules = overflows(
        3,
        100 * MIB,
        60 * MIB,
        &[
            |job| {
                job.charge(105 * MIB);
                job.uncharge(60 * MIB);
            },
            |job| {
                job.charge(30 * MIB);
                job.uncharge(15 * MIB);
            },
        ],
    );
    assert!(schedules > 100);
}

#[test]
fn who_is_paused_is_told_when_room_comes() {
    let schedules = overflows(
        3,
        100 * MIB,
        65 * MIB,
        &[|job| job.charge_and_wait(115 * MIB), |job| job.uncharge(20 * MIB), |job| job.uncharge(30 * MIB)],
    );
    assert!(schedules > 100);
}

#[test]
fn what_the_watcher_takes_is_no_event_until_the_shortage_lasts() {
    let schedules = overflows(
        3,
        100 * MIB,
        103 * MIB,
        &[
            |job| {
                overflow::after_tolerated_decrease(&job.block, &job.ledger, job.block.add(-101 * MIB));
                overflow::after_lasting_shortage(&job.block, &job.ledger, &job.implicit);
            },
            |job| job.charge(2 * MIB),
        ],
    );
    assert!(schedules > 10);
}
