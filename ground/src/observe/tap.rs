// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tap: a listener that gets every completed operation, with its descriptor, its completion and its decision.
//!
//! - **Order** costs one relaxed load while no tap is set. A tap that was removed may still get an operation that was
//!   in flight. The first call finds out if `memlift record` is listening
//! - **Owner** the process has at most one tap.
//! - **Not here** writing traces: the listener does that.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memlift_spec::{Completion, Descriptor};

use super::{DecisionRecord, recorder};

/// Listens to completed operations, on the thread that completed them: it must be quick, and must not submit
/// operations.
pub trait Tap: Send + Sync {
    /// Called with each completed operation and the decision that placed it.
    fn record(&self, descriptor: &Descriptor, completion: &Completion, decision: &DecisionRecord);
}

/// No caller has checked yet if `memlift record` is listening.
const UNKNOWN: u8 = 0;
/// No tap is set.
const NONE: u8 = 1;
/// A tap is set.
const SET: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static TAP: RwLock<Option<Arc<dyn Tap>>> = RwLock::new(None);

/// Sets or removes the tap.
pub fn set_tap(tap: Option<Box<dyn Tap>>) {
    let mut place = TAP.write().unwrap_or_else(PoisonError::into_inner);
    STATE.store(if tap.is_some() { SET } else { NONE }, Ordering::Relaxed);
    *place = tap.map(Arc::from);
}

/// Returns true if a tap is set. Costs one relaxed load.
#[inline]
pub fn tapped() -> bool {
    match STATE.load(Ordering::Relaxed) {
        NONE => false,
        SET => true,
        _ => ask(),
    }
}

#[cold]
fn ask() -> bool {
    let found = recorder::find_tap();
    let mut place = TAP.write().unwrap_or_else(PoisonError::into_inner);
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        STATE.store(if found.is_some() { SET } else { NONE }, Ordering::Relaxed);
        *place = found.map(Arc::from);
    }
    STATE.load(Ordering::Relaxed) == SET
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
