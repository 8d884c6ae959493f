// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sessions with other processes: peers that die, stop, lie, wait, or live in a container.
//!
//! - **Goal** the survivor gets a clear error, learns of it by the robust word or the hang-up, and is left with nothing of the other's
//! - **Method** this program again, as a child with a role ([`peer`]); it ends at a failpoint, or is ended by a signal
//! - **Order** one test at a time: they count the descriptors and mappings of this process
#![deny(unsafe_code)]

mod boxes;
mod deaths;
mod kills;
mod lies;
#[expect(unsafe_code, reason = "a child becomes another user")]
mod peer;
mod shared;
mod storms;
mod waits;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by each test for as long as it runs.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where children begin. Without a role it is no test and does nothing.
#[test]
fn child() {
    peer::play_role();
}
