// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lane that commits share, with the state of the groups that make it durable.
//!
//! - **Order** nobody is woken in vain: two conditions serve the groups in turns, so that members of the next group sleep on
//! - **Not here** leading and joining a group: `group`

use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::lane::Lane;
use crate::medium::Counters;

/// The lane that commits share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub lane: Lane<()>,
    pub state: Mutex<SharedState>,
    /// Wakes a group that is durable, or one member that is to lead; group `g` sleeps at index `g % 2`.
    pub done: [Condvar; 2],
    /// Wakes the leader: as many have joined as it waits for.
    pub company: Condvar,
    /// Bytes appended and not durable; 0 lets a Sync commit pass without looking.
    pub unflushed: AtomicU64,
}

/// State that the shared lane's lock guards.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub counters: Counters,
    /// Records before this are in the mirror.
    pub appended: u64,
    /// Records before this are durable.
    pub durable: u64,
    /// Records before this are durable, or a leader is making them so.
    pub closed: u64,
    /// True while a leader makes records durable, or waits for company.
    pub led: bool,
    pub gathers: bool,
    /// Number of the group that collects.
    pub group: u64,
    /// Commits that joined this group so far.
    pub joined: u32,
    /// Members that a leader waits for: as many as the last group had.
    pub wanted: u32,
    /// Threads asleep for a group: `group % 2` is the index.
    pub asleep: [u32; 2],
}

impl Shared {
    pub fn new(lane: Lane<()>, position: u64) -> Shared {
        let state = SharedState {
            counters: Counters::default(),
            appended: position,
            durable: position,
            closed: position,
            led: false,
            gathers: false,
            group: 0,
            joined: 0,
            wanted: 0,
            asleep: [0; 2],
        };
        Shared {
            lane,
            state: Mutex::new(state),
            done: Default::default(),
            company: Condvar::new(),
            unflushed: AtomicU64::new(0),
        }
    }

    /// Records before this position are durable.
    pub fn durable(&self) -> u64 {
        self.lane.tail()
    }

    /// Sleeps until the group may be durable.
    pub fn sleep<'a>(
        &self,
        mut state: MutexGuard<'a, SharedState>,
        group: u64,
    ) -> MutexGuard<'a, SharedState> {
        let turn = (group % 2) as usize;
        state.asleep[turn] += 1;
        let mut state = self.done[turn].wait(state).unwrap_or_else(PoisonError::into_inner);
        state.asleep[turn] -= 1;
        state
    }

    /// Waits until as many have joined as the last group had.
    pub fn gather<'a>(
        &self,
        mut state: MutexGuard<'a, SharedState>,
        wait: Duration,
    ) -> MutexGuard<'a, SharedState> {
        let until = Instant::now() + wait;
        state.gathers = true;
        while state.joined < state.wanted {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.company.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.gathers = false;
        state
    }

    /// Wakes the threads that sleep, and only if there are any: each call is a system call.
    pub fn wake_all(&self, turns: impl IntoIterator<Item = u64>, asleep: [u32; 2]) {
        for turn in turns {
            if asleep[(turn % 2) as usize] > 0 {
                self.done[(turn % 2) as usize].notify_all();
            }
        }
    }
}
