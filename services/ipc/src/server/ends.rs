// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends of sessions, for those who hold something for a client between two of its calls.
//!
//! - **Flow** the dispatcher removes a session ─▶ `note` ─▶ a thread in `wait` returns its number
//! - **Order** nothing is noted before `watch`: a server that holds nothing collects no numbers
//! - **Not here** why a session ended

use crate::client::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
pub(super) struct Ends {
    watched: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Sessions that have ended and were not told yet.
    ended: Vec<u64>,
    stopped: bool,
}

impl Ends {
    pub(super) fn watch(&self) {
        self.watched.store(true, Ordering::Release);
    }

    pub(super) fn note(&self, session: u64) {
        if self.watched.load(Ordering::Acquire) {
            lock(&self.state).ended.push(session);
            self.changed.notify_all();
        }
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_all();
    }

    /// Waits for the numbers of sessions that have ended; `None`: the server was stopped.
    pub(super) fn wait(&self) -> Option<Vec<u64>> {
        let waits = |state: &mut State| state.ended.is_empty() && !state.stopped;
        let state = self.changed.wait_while(lock(&self.state), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        (!state.stopped).then(|| std::mem::take(&mut state.ended))
    }
}
