// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks of a session. Each has a rank; a thread takes them in rising order only.
//!
//! - **Flow** `lock.with(|state| …)` for one step; `lock.lock()` where a condition variable or a loop needs the guard
//! - **Order** [`Rank`] lists the locks from first to last. In debug builds a thread that takes a lock whose rank is not above all
//!   ranks that it holds panics, so every test run checks the order
//! - **Owner** [`holds_none`] stands where a thread sends, waits, maps memory or drops what has a `Drop` of its own: nothing of this
//!   happens under a lock, so none of it can wait for that lock again
//! - **Not here** release builds: a [`Lock`] is a `Mutex` there, and the checks are empty

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ranks, in the order in which locks may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Rank {
    /// Reading end of the response ring. The one lock that is held over a wait: that of the thread that collects for all.
    Collector,
    /// Writing end of the request ring.
    Producer,
    /// Releases that are due.
    Releases,
    /// Calls that are unanswered or not taken.
    Jobs,
    /// The right to make the request pool larger.
    Growing,
    /// Loans by place.
    Loans,
    /// Request pool of a client.
    Pool,
    /// Response segments of a client.
    Responses,
    /// Decisions of a client.
    Decisions,
    /// Cost of a client's waits.
    Waits,
    /// Sessions of this process that have memory to give back.
    Grown,
    /// Requests that wait for a handler.
    Queue,
    /// Sessions whose clients want to know how busy the server is.
    Watchers,
    /// Request segments of a session, at the server.
    Requests,
    /// Reply side of a session, at the server.
    Reply,
    /// Sessions of this process with arenas.
    ArenaSessions,
    /// Question of a subscriber that is open.
    ArenaAsked,
    /// Views of a session with an arena.
    ArenaLeases,
    /// Books of an arena.
    Arena,
    /// Threads of this process that own robust words.
    Keepers,
    /// Sessions of one of these threads.
    Keeper,
}

/// A mutex with a rank. It recovers from poisoning: every critical section of this crate leaves its data whole at each step.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> Lock<T> {
    pub const fn new(rank: Rank, state: T) -> Lock<T> {
        Lock { rank, mutex: Mutex::new(state) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let held = Held::take(self.rank);
        Guard { inner: self.mutex.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// The lock, if nobody holds it. May be tried out of order, since it does not wait.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.mutex.try_lock() {
            Ok(inner) => Some(Guard { inner, held: Held::tried(self.rank) }),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => {
                Some(Guard { inner: poisoned.into_inner(), held: Held::tried(self.rank) })
            }
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Runs `step` under the lock. What `step` takes out of the state is its result, and is dropped by the caller after the
    /// lock is free.
    pub fn with<R>(&self, step: impl FnOnce(&mut T) -> R) -> R {
        step(&mut self.lock())
    }
}

/// A lock that is held.
#[must_use]
pub(crate) struct Guard<'a, T> {
    inner: MutexGuard<'a, T>,
    held: Held,
}

impl<'a, T> Guard<'a, T> {
    /// Releases the lock, waits for `changed` (at most `left`) and takes the lock again.
    pub fn wait(self, changed: &Condvar, left: Option<Duration>) -> Guard<'a, T> {
        let Guard { inner, held } = self;
        held.is_alone("waits for a condition variable");
        let inner = match left {
            None => changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(left) => changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0,
        };
        Guard { inner, held }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

use checks::Held;
pub(crate) use checks::holds_none;

#[cfg(debug_assertions)]
mod checks {
    use super::Rank;
    use std::cell::Cell;

    thread_local! {
        /// Ranks that this thread holds, one bit each.
        static RANKS: Cell<u32> = const { Cell::new(0) };
    }

    /// A rank that this thread holds until the value is dropped.
    pub(super) struct Held(Rank);

    impl Held {
        pub(super) fn take(rank: Rank) -> Held {
            let ranks = RANKS.get();
            assert!(
                ranks >> rank as u32 == 0 || std::thread::panicking(),
                "lock order: {rank:?} is taken under {:?}",
                names(ranks)
            );
            Held::tried(rank)
        }

        /// Of a lock that was not waited for.
        pub(super) fn tried(rank: Rank) -> Held {
            RANKS.set(RANKS.get() | 1 << rank as u32);
            Held(rank)
        }

        pub(super) fn is_alone(&self, doing: &str) {
            let others = RANKS.get() & !(1 << self.0 as u32);
            assert!(others == 0 || std::thread::panicking(), "{doing} under {:?}", names(others));
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            RANKS.set(RANKS.get() & !(1 << self.0 as u32));
        }
    }

    fn names(ranks: u32) -> Vec<Rank> {
        use Rank::{
            Collector, Decisions, Growing, Grown, Jobs, Keeper, Keepers, Loans, Pool, Producer, Queue,
            Releases, Reply, Requests, Responses, Waits, Watchers,
        };
        let all = [
            Collector, Producer, Releases, Jobs, Growing, Loans, Pool, Responses, Decisions, Waits, Grown,
            Queue, Watchers, Requests, Reply, Keepers, Keeper,
        ];
        all.into_iter().filter(|&rank| ranks & 1 << rank as u32 != 0).collect()
    }

    /// Panics if this thread holds a lock other than the collector's. `doing` says what must not happen under one.
    pub(crate) fn holds_none(doing: &str) {
        let ranks = RANKS.get() & !(1 << Rank::Collector as u32);
        assert!(ranks == 0 || std::thread::panicking(), "{doing} under {:?}", names(ranks));
    }
}

#[cfg(not(debug_assertions))]
mod checks {
    use super::Rank;

    pub(super) struct Held;

    impl Held {
        #[inline(always)]
        pub(super) fn take(_: Rank) -> Held {
            Held
        }

        #[inline(always)]
        pub(super) fn tried(_: Rank) -> Held {
            Held
        }

        #[inline(always)]
        pub(super) fn is_alone(&self, _: &str) {}
    }

    /// Checks nothing in release builds.
    #[inline(always)]
    pub(crate) fn holds_none(_: &str) {}
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn panics(run: impl FnOnce()) -> String {
        let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
        payload.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn locks_are_taken_in_rising_order_only() {
        let (jobs, pool) = (Lock::new(Rank::Jobs, ()), Lock::new(Rank::Pool, ()));
        jobs.with(|()| pool.with(|()| ()));
        let said = panics(|| pool.with(|()| jobs.with(|()| ())));
        assert_eq!(said, "lock order: Jobs is taken under [Pool]");
        let again = panics(|| jobs.with(|()| drop(Lock::new(Rank::Jobs, ()).lock())));
        assert_eq!(again, "lock order: Jobs is taken under [Jobs]");
        // A guard lets go in a panic.
        jobs.with(|()| pool.with(|()| ()));
    }

    #[test]
    fn nothing_waits_or_sends_under_a_lock() {
        let (collector, jobs) = (Lock::new(Rank::Collector, ()), Lock::new(Rank::Jobs, ()));
        holds_none("sending");
        collector.with(|()| holds_none("sending"));
        assert_eq!(panics(|| jobs.with(|()| holds_none("sending"))), "sending under [Jobs]");
        let changed = Condvar::new();
        drop(jobs.lock().wait(&changed, Some(Duration::ZERO)));
        let said = panics(|| {
            let producer = Lock::new(Rank::Producer, ());
            let _producer = producer.lock();
            drop(jobs.lock().wait(&changed, Some(Duration::ZERO)));
        });
        assert_eq!(said, "waits for a condition variable under [Producer]");
    }
}
