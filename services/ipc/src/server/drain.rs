// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health of a server, and its orderly end.
//!
//! - **Flow** `begin_drain`: the address is given up, operations are taken away ─▶ calls that come are refused by name, those that run
//!   or wait are answered ─▶ `drained` ─▶ `stop`
//! - **Order** operations that end what was begun ([`Behaviour::outlasts_drain`]) stay until the stop

use super::group::Load;
use super::session::Session;
use super::{Behaviour, Pace, Server, Shared};
use crate::error::Error;
use crate::health::{Health, HealthState, PING};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time between two looks at what is unanswered.
const LOOK: Duration = Duration::from_millis(2);
/// Time for answers that are counted as given, and that a thread is still about to push.
const PUSHED: Duration = Duration::from_millis(50);
/// References to a session that nobody answers: the dispatcher's and the one that looks.
const QUIET: usize = 2;

impl Server {
    /// Sets if the server says that it is ready for calls ([`Client::ping`](crate::Client::ping)). It takes calls in any case.
    pub fn set_ready(&self, ready: bool) {
        self.shared.ready.store(ready, Ordering::Release);
        // The dispatcher tells the other servers of the address.
        memlift_ground::complete::ring(&self.shared.stop_event);
    }

    /// Begins the server's end: gives its address up, for a successor, and refuses new calls
    /// ([`RemoteFailure::Draining`](crate::RemoteFailure)). Calls that run or wait for a handler are answered.
    pub fn begin_drain(&self) {
        let shared = &self.shared;
        shared.draining.store(true, Ordering::Release);
        let mut operations = shared.operations.write().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<_> =
            operations.extract_if(|_, operation| !operation.behaviour.outlasts_drain).collect();
        drop(operations);
        // The handlers may hold anything, so they are dropped where no lock is held.
        drop(taken);
        drop(crate::client::lock(&shared.listener).take());
        // The dispatcher gives the address up.
        memlift_ground::complete::ring(&shared.stop_event);
    }

    /// Waits until all calls are answered, for at most `timeout`; returns false if some are not.
    pub fn drained(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        let mut answered_since = None;
        loop {
            let sessions = self.shared.live_sessions();
            let answered = sessions.iter().all(|session| session.unanswered.load(Ordering::Acquire) == 0);
            if answered {
                // A request that a handler keeps holds its session, too, so this has an end.
                let since = *answered_since.get_or_insert_with(Instant::now);
                let pushed = sessions.iter().all(|session| Arc::strong_count(session) <= QUIET);
                if pushed || since.elapsed() >= PUSHED {
                    return true;
                }
            } else {
                answered_since = None;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return answered;
            }
            drop(sessions);
            std::thread::sleep(LOOK.min(left));
        }
    }

    /// Ends in order: begins the drain, waits for open calls for at most `timeout`, and stops. Returns false if some calls were not
    /// answered by then. Not for handlers, whose own call is open.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.begin_drain();
        let drained = self.drained(timeout);
        self.stop();
        drained
    }

    pub(super) fn register_ping(&self) -> Result<(), Error> {
        let weak = Arc::downgrade(&self.shared);
        let behaviour = Behaviour { pace: Pace::Short, outlasts_drain: true };
        self.register_with(PING, behaviour, move |request, responder| {
            drop(request);
            let Some(shared) = weak.upgrade() else { return };
            responder.answer_bytes(&shared.health().to_bytes());
        })
    }
}

impl Shared {
    fn live_sessions(&self) -> Vec<Arc<Session>> {
        let sessions: Vec<_> =
            self.watchers.with(|watchers| watchers.iter().filter_map(Weak::upgrade).collect());
        sessions.into_iter().filter(|session| !session.is_dead()).collect()
    }

    /// Load of this server, with so many sessions, for the others that share its address.
    pub(super) fn standing(&self, sessions: usize) -> Load {
        Load {
            ready: self.ready.load(Ordering::Acquire),
            full: sessions >= self.options.sessions_max,
            sessions,
            calls: self.counters.busy.load(Ordering::Relaxed) + self.queue.with(|queue| queue.tasks.len()),
        }
    }

    fn health(&self) -> Health {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Health {
            state: match (self.draining.load(Ordering::Acquire), self.ready.load(Ordering::Acquire)) {
                (true, _) => HealthState::Draining,
                (false, true) => HealthState::Ready,
                (false, false) => HealthState::NotReady,
            },
            sessions: count(self.counters.sessions.load(Ordering::Relaxed)),
            // This answer's own handler is not counted.
            busy_handlers: count(self.counters.busy.load(Ordering::Relaxed).saturating_sub(1)),
            queued: count(self.queue.with(|queue| queue.tasks.len())),
        }
    }
}
