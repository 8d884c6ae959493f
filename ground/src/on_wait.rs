// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A callback that may end a wait for another process: Ctrl-C, or a task that is no longer wanted.
//!
//! - **Flow** a wait asks it some times a second ([`OnWait::ASK_EVERY`]) ─▶ false: the wait ends with an error
//! - **Not here** deadlines, which waits have beside it

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// See the module's header.
#[derive(Clone)]
pub struct OnWait(Arc<dyn Fn() -> bool + Send + Sync>);

impl OnWait {
    /// Longest time between two questions.
    pub const ASK_EVERY: Duration = Duration::from_millis(50);

    /// Makes it of a function that returns true if the wait shall go on.
    pub fn new(ask: impl Fn() -> bool + Send + Sync + 'static) -> OnWait {
        OnWait(Arc::new(ask))
    }

    /// Returns true if the wait shall go on.
    pub fn goes_on(&self) -> bool {
        self.0()
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OnWait").finish_non_exhaustive()
    }
}
