// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locking a mutex whose holders leave the guarded value whole, whatever happens.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic elsewhere: every holder leaves the guarded value whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
