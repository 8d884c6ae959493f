// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrays that have views now, so that nobody changes or frees them meanwhile.
//!
//! - **Flow** a view is made: [`Pins::add`] ── an array is replaced: pinned? then it goes to the pool's limbo, else it is freed ──
//!   the last view is gone: [`Pins::remove`] ─▶ [`Pins::waiting`] ─▶ freed before the next transaction
//! - **Order** `add` under a read lock of the pool or in a transaction, `contains` in a transaction: so a pin is seen or comes too late
//! - **Owner** limbo is in the file, so that a crash loses no memory: opening the pool empties it

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    views: HashMap<u64, usize>,
    waiting: Vec<u64>,
}

/// See the module's header.
#[derive(Default)]
pub struct Pins {
    state: Mutex<State>,
}

impl Pins {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One view more.
    pub fn add(&self, object: u64) {
        *self.state().views.entry(object).or_default() += 1;
    }

    /// One view less.
    pub fn remove(&self, object: u64) {
        let mut state = self.state();
        let left = state.views.get_mut(&object).map_or(0, |views| {
            *views -= 1;
            *views
        });
        if left == 0 {
            state.views.remove(&object);
            state.waiting.push(object);
        }
    }

    /// Returns true if somebody looks at it.
    pub fn contains(&self, object: u64) -> bool {
        self.state().views.contains_key(&object)
    }

    /// How many views there are.
    pub fn views(&self) -> usize {
        self.state().views.values().sum()
    }

    /// Arrays that nobody looks at any more; they may be in limbo.
    pub fn waiting(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().waiting)
    }
}
