// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting until the replica in an object store has what was committed, and how far it is.
//!
//! - **Flow** a commit is durable in the file ─▶ it waits for its place in the order ─▶ the replicator ships without waiting for its interval
//!   ─▶ says up to which transaction the replica is ─▶ wakes all who waited for that
//! - **Rule** a wait has an end: after [`crate::Options::replica_wait`], or when the replicator has ended, the caller gets an error. The
//!   transaction stays: it is in the pool's file, and in the replica as soon as that goes on
//! - **Not here** the replicator: `replicate`

#[cfg(feature = "replicate")]
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, Result};
#[cfg(feature = "replicate")]
use crate::replica_row::ReplicaRow;

/// How far a replica is, and what was sent to it since this process began to write it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaStatus {
    /// The last segment that this process completed; 0: none yet.
    pub segment: u64,
    /// Transactions up to this one, by the pool's order, are in the replica.
    pub sequence: u64,
    /// The last transaction that was committed; None: another process's, or the pool is closed.
    pub committed: Option<u64>,
    /// The moment up to which everything that was committed is in the replica; None: nothing was sent yet.
    pub complete_until: Option<SystemTime>,
    /// Age of that moment.
    pub lag: Option<Duration>,
    /// Segments, and those of them that are snapshots.
    pub segments: u64,
    /// Those of them that have all pages in use.
    pub snapshots: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// The segment under way: pages that are sent, of those that were to be sent when it began.
    pub under_way: Option<(u64, u64)>,
    /// Reason that nothing was sent lately, or that nothing will be.
    pub trouble: Option<String>,
    /// True if nothing will be sent any more.
    pub ended: bool,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Replicated {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Transactions up to this one are in the replica.
    has: u64,
    /// Somebody waits for the transactions up to this one.
    wanted: u64,
    /// Reason that nothing was shipped lately.
    failing: Option<String>,
    /// Reason that nothing will be shipped any more.
    ended: Option<String>,
    /// Everything that was committed before is in the replica.
    complete: Option<(SystemTime, Instant)>,
    /// Segments and bytes that were sent; the other fields are made when somebody asks.
    sent: ReplicaStatus,
    /// The replicator is to end.
    #[cfg(feature = "replicate")]
    stop: bool,
    /// Its line in `memlift top`, until it is asked to end.
    #[cfg(feature = "replicate")]
    row: Option<ReplicaRow>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replicated {
    /// Waits until transactions up to a sequence are in the replica.
    pub fn wait(&self, sequence: u64, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        while state.has < sequence {
            if let Some(why) = &state.ended {
                return Err(Error::NotReplicated { why: why.clone() });
            }
            if state.wanted < sequence {
                state.wanted = sequence;
                self.changed.notify_all();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited = || format!("it did not come within {} s", patience.as_secs_f32());
                return Err(Error::NotReplicated { why: state.failing.clone().unwrap_or_else(waited) });
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// How far it is.
    pub fn status(&self) -> ReplicaStatus {
        let state = lock(&self.state);
        ReplicaStatus {
            sequence: state.has,
            complete_until: state.complete.map(|(time, _)| time),
            lag: state.complete.map(|(_, since)| since.elapsed()),
            trouble: state.ended.clone().or_else(|| state.failing.clone()),
            ended: state.ended.is_some(),
            ..state.sent.clone()
        }
    }
}

#[cfg(feature = "replicate")]
impl Replicated {
    /// A replica of the pool in this file, which is seen in `memlift top` and `memlift metrics`.
    pub fn of(pool: &Path) -> Replicated {
        let state = State { row: Some(ReplicaRow::open(pool)), ..State::default() };
        Replicated { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sleeps until `until`, or until somebody waits. False: the replicator is to end.
    pub fn next(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.stop || left.is_zero() || (state.wanted > state.has && state.failing.is_none()) {
                return !state.stop;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Transactions up to a sequence are in the replica: all that were committed before `complete`.
    pub fn has(&self, sequence: u64, complete: (SystemTime, Instant)) {
        let mut state = lock(&self.state);
        (state.has, state.failing, state.complete) = (sequence, None, Some(complete));
        state.row.iter().for_each(|row| row.complete(complete.0));
        self.changed.notify_all();
    }

    /// Counts a segment that is complete.
    pub fn sent(&self, segment: u64, snapshot: bool) {
        let mut state = lock(&self.state);
        state.row.iter().for_each(ReplicaRow::sent);
        let sent = &mut state.sent;
        (sent.segment, sent.segments, sent.under_way) = (segment, sent.segments + 1, None);
        sent.snapshots += u64::from(snapshot);
    }

    /// Counts an object that was uploaded.
    pub fn uploaded(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.row.iter().for_each(|row| row.uploaded(bytes));
        state.sent.bytes += bytes;
    }

    /// Says how far the segment under way is; None: there is none.
    pub fn under_way(&self, pages: Option<(u64, u64)>) {
        lock(&self.state).sent.under_way = pages;
    }

    /// Nothing could be shipped; it is tried again.
    pub fn fails(&self, why: &Error) {
        let mut state = lock(&self.state);
        state.row.iter().for_each(ReplicaRow::failing);
        state.failing = Some(why.to_string());
    }

    /// Reason that nothing was shipped lately, or that nothing will be.
    pub fn trouble(&self) -> Option<String> {
        let state = lock(&self.state);
        state.ended.clone().or_else(|| state.failing.clone())
    }

    /// Reason that nothing will be shipped any more.
    pub fn ended(&self) -> Option<String> {
        lock(&self.state).ended.clone()
    }

    /// Nothing will be shipped any more.
    pub fn end(&self, why: String) {
        let mut state = lock(&self.state);
        state.row.iter().for_each(ReplicaRow::failing);
        state.ended.get_or_insert(why);
        drop(state);
        self.changed.notify_all();
    }

    /// Asks the replicator to end.
    pub fn stop(&self) {
        let mut state = lock(&self.state);
        (state.stop, state.row) = (true, None);
        drop(state);
        self.changed.notify_all();
    }
}
