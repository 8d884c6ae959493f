// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The starts of a node, and how many changes each start has acknowledged. By this a node that was started with an older copy of its log
//! recognizes a client that knows more than the log.
//!
//! - **Flow** each start draws a number and logs it ([`super::writer::Writer::begin_run`]) ─▶ answers carry a [`Stamp`]: that number, and
//!   the number of changes so far ─▶ a request carries the newest stamp that its client has from the node ─▶ [`History::covers`]
//! - **Rule** a stamp is covered if its start is one of this log's, and if the start had made at least as many changes when the next
//!   start began. A copy of a log lacks the later starts, and the later changes of its last start; what the copy does next has
//!   the number of another start
//! - **Layout** the upper [`LINE_BITS`] bits of a start's number are the log's line: the same for all starts of a log and of its copies.
//!   A stamp of another line is of another memory, and is covered
//! - **Order** answers to reads carry the changes that were committed, so that a crash before the commit is no loss

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::wire::Stamp;

/// Bits of a start's number that say which log it is of.
const LINE_BITS: u32 = 24;

/// A start of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Run {
    /// Number of the start, drawn at random.
    pub number: u64,
    /// Incarnation with which the start joined a cluster; 0: none.
    pub incarnation: u64,
    /// Number of changes that had been made when it began.
    pub from: u64,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct History {
    /// All starts, oldest first.
    runs: RwLock<Vec<Run>>,
    /// Number of the last start; 0: none is known.
    current: AtomicU64,
    /// Number of changes so far.
    made: AtomicU64,
    /// Number of changes that are in the log.
    committed: AtomicU64,
}

impl History {
    /// Counts a change. Only the writer calls this.
    pub(super) fn count(&self) {
        self.made.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the log has all changes so far. Only the writer calls this.
    pub(super) fn commit(&self) {
        self.committed.store(self.made.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Adds a start, or takes a known one, of which this many changes had been made. Only the writer calls this.
    pub(super) fn take(&self, run: Run, made: u64) {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        if runs.last().is_none_or(|last| last.number != run.number) {
            runs.push(run);
        }
        drop(runs);
        self.current.store(run.number, Ordering::SeqCst);
        self.made.store(made, Ordering::SeqCst);
    }

    /// Returns a number for the next start of this line.
    pub(super) fn draw(&self) -> u64 {
        let (last, random) = (self.current.load(Ordering::SeqCst), memlift_ground::region::random());
        let line = if last == 0 { random } else { last };
        let low = u64::MAX >> LINE_BITS;
        (line & !low | memlift_ground::region::random() & low).max(1)
    }

    /// Returns all starts, and the number of changes so far.
    pub(super) fn all(&self) -> (Vec<Run>, u64) {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner).clone();
        (runs, self.made.load(Ordering::SeqCst))
    }

    /// Returns the stamp of an answer. `is_change`: the answer waits for the commit of all changes so far.
    pub(super) fn stamp(&self, is_change: bool) -> Stamp {
        let changes = if is_change { &self.made } else { &self.committed };
        Stamp { run: self.current.load(Ordering::SeqCst), changes: changes.load(Ordering::SeqCst) }
    }

    /// Returns false if a client has an answer that is not in this log: the log is an older copy, or has lost its end.
    pub(super) fn covers(&self, stamp: Stamp) -> bool {
        let current = self.current.load(Ordering::SeqCst);
        if stamp.run == current {
            return stamp.changes <= self.made.load(Ordering::SeqCst);
        }
        // Without a start of its own a log has no line.
        let is_of_another = (stamp.run ^ current) >> (u64::BITS - LINE_BITS) != 0;
        if stamp.run == 0 || current == 0 || is_of_another {
            return true;
        }
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = runs.iter().position(|run| run.number == stamp.run) else { return false };
        runs.get(at + 1).is_none_or(|next| stamp.changes <= next.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(history: &History, number: u64) {
        let made = history.stamp(true).changes;
        history.take(Run { number, incarnation: 0, from: made }, made);
    }

    #[test]
    fn a_copy_covers_only_what_it_has() {
        let history = History::default();
        assert!(history.covers(Stamp { run: 77, changes: 1 }), "of another line");
        let (first, second) = (history.draw(), history.draw());
        begin(&history, first);
        let same_line = |one: u64, other: u64| (one ^ other) >> (u64::BITS - LINE_BITS) == 0;
        let (third, fourth) = (history.draw(), history.draw());
        assert!(same_line(first, third) && same_line(third, fourth) && third != fourth && first != second);
        history.count();
        history.count();
        assert_eq!(history.stamp(false), Stamp { run: first, changes: 0 }, "not committed");
        history.commit();
        assert_eq!(history.stamp(false), Stamp { run: first, changes: 2 });
        assert!(!history.covers(Stamp { run: first, changes: 3 }));

        // The log was copied here. What follows is lost.
        let copy = || {
            let copy = History::default();
            let (runs, made) = history.all();
            runs.iter().for_each(|run| copy.take(*run, made));
            copy
        };
        let restored = copy();
        history.count();
        let lost = history.stamp(true);
        begin(&history, third);
        history.count();
        let later = history.stamp(true);
        assert!(
            history.covers(lost) && history.covers(later) && history.covers(Stamp { run: first, changes: 2 })
        );

        begin(&restored, fourth);
        for _ in 0..10 {
            restored.count();
        }
        assert!(restored.covers(Stamp { run: first, changes: 2 }) && restored.covers(restored.stamp(true)));
        assert!(!restored.covers(lost) && !restored.covers(later));
        assert!(restored.covers(Stamp::default()), "nothing is known");
    }
}
