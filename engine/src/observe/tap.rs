// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tap: every completed operation, as it was asked for and as it ended, to whoever listens.
//!
//! Order   one relaxed load when nobody listens. A tap that was taken away may still get an operation that was
//!         under way.
//! Owner   the process has at most one tap.
//! Not here writing traces: that is the listener's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memlift_spec::{Completion, Descriptor};

use super::DecisionRecord;

/// Listens to completed operations, on the thread that completed them: be quick, do not submit.
pub trait Tap: Send + Sync {
    /// One operation.
    fn record(&self, descriptor: &Descriptor, completion: &Completion, decision: &DecisionRecord);
}

static SET: AtomicBool = AtomicBool::new(false);
static TAP: RwLock<Option<Arc<dyn Tap>>> = RwLock::new(None);

/// Sets or removes the tap.
pub fn set_tap(tap: Option<Box<dyn Tap>>) {
    let mut place = TAP.write().unwrap_or_else(PoisonError::into_inner);
    SET.store(tap.is_some(), Ordering::Relaxed);
    *place = tap.map(Arc::from);
}

/// Whether somebody listens. One relaxed load.
#[inline]
pub fn tapped() -> bool {
    SET.load(Ordering::Relaxed)
}

/// Passes a completed operation to the tap, if there is one.
#[inline]
pub fn tap(descriptor: &Descriptor, completion: &Completion, decision: &DecisionRecord) {
    if tapped() {
        listen(descriptor, completion, decision);
    }
}

#[cold]
fn listen(descriptor: &Descriptor, completion: &Completion, decision: &DecisionRecord) {
    let tap = TAP.read().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(tap) = tap {
        tap.record(descriptor, completion, decision);
    }
}
