// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the views of each array, so that an array with views is neither changed nor freed.
//!
//! - **Flow** creating a view calls [`Pins::add`]. If a pinned array is replaced, it is moved to the pool's limbo; one without views is
//!   freed. When the last view is gone ([`Pins::remove`]), the array is listed by [`Pins::waiting`] and freed before the next
//!   transaction.
//! - **Order** `add` is called under a read lock of the pool or in a transaction, and `contains` in a transaction: so a pin is either
//!   seen, or is added after the transaction, to the new object.
//! - **Owner** limbo is stored in the file, so a crash loses no memory: opening the pool empties it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    views: HashMap<u64, usize>,
    waiting: Vec<u64>,
}

/// Counts of views per array.
#[derive(Default)]
pub struct Pins {
    state: Mutex<State>,
}

impl Pins {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a view of an object.
    pub fn add(&self, object: u64) {
        *self.state().views.entry(object).or_default() += 1;
    }

    /// Removes a view of an object.
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

    /// Returns true if the object has a view.
    pub fn contains(&self, object: u64) -> bool {
        self.state().views.contains_key(&object)
    }

    /// Returns the number of all views.
    pub fn views(&self) -> usize {
        self.state().views.values().sum()
    }

    /// Returns and forgets the arrays whose last view is gone; they may be in limbo.
    pub fn waiting(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().waiting)
    }
}
