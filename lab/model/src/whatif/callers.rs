// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sums up each place that calls: how much it moves, how long it takes, and how soon something needs its result.
//!
//! - **Flow** [`callers`]: one [`Summary`] per place and function, the most CPU time first · [`Summary::break_even`] the size from which on
//!   submitting costs less than the call did · [`needed`] the first recorded event after each call that depends on it
//! - **Rule** an event that depends on a call is a call of the same thread that uses its bytes, the wake or start of another thread, or
//!   the thread's end. Where none comes within [`LOOK`] steps, the time up to there is a lower bound
//! - **Not here** what is computed between calls: a trace does not say which bytes it touches

use std::collections::BTreeMap;

use super::change::{Caller, LOOK, depends};
use super::device::Device;
use super::timeline::{Call, Thread, Trace, What};
use crate::event::Time;

/// First event that depends on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dependent {
    /// A call that uses its bytes, from this place.
    Call(Caller),
    /// Another thread is woken or started.
    Wake,
    /// The thread ends.
    End,
    /// None within [`LOOK`] steps.
    Unseen,
}

/// All calls from one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The place, and the function that it calls.
    pub caller: Caller,
    /// Number of calls.
    pub calls: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// CPU time in them, nanoseconds.
    pub cpu_ns: u64,
    /// Wall time in them, summed over threads, nanoseconds.
    pub wall_ns: u64,
    /// By class of size, a power of two: number of calls, and CPU time in them, nanoseconds.
    sizes: BTreeMap<u32, (u64, u64)>,
}

/// How soon something needs the results of a place's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Median time from a call's end to the first event that depends on it, nanoseconds; where none was found, to where the search ended.
    pub after_ns: u64,
    /// The most frequent such event.
    pub by: Dependent,
    /// Number of calls with that event.
    pub calls: u64,
}

/// Summaries of all places whose calls `device` can take, the most CPU time first.
#[must_use]
pub fn callers(trace: &Trace, device: &Device) -> Vec<Summary> {
    let mut found: BTreeMap<Caller, Summary> = BTreeMap::new();
    for call in trace.calls().filter(|call| device.takes(call)) {
        let caller = Caller::of(call);
        let summary = found.entry(caller).or_insert_with(|| Summary {
            caller,
            calls: 0,
            bytes: 0,
            cpu_ns: 0,
            wall_ns: 0,
            sizes: BTreeMap::new(),
        });
        summary.add(call);
    }
    let mut found: Vec<Summary> = found.into_values().collect();
    found.sort_by_key(|summary| std::cmp::Reverse(summary.cpu_ns));
    found
}

impl Summary {
    fn add(&mut self, call: &Call) {
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(call.bytes());
        self.cpu_ns = self.cpu_ns.saturating_add(call.cpu_ns);
        self.wall_ns = self.wall_ns.saturating_add(call.wall_ns);
        let size = self.sizes.entry(call.bytes().max(1).ilog2()).or_default();
        *size = (size.0 + 1, size.1.saturating_add(call.cpu_ns));
    }

    /// The power of two, bytes, from which on calls took longer, all together, than the core needs for a submission of `submit`. None:
    /// no size did.
    #[must_use]
    pub fn break_even(&self, submit: Time) -> Option<u64> {
        let (mut sum, mut best) = (0.0, (0.0, None));
        for (shift, (calls, cpu_ns)) in self.sizes.iter().rev() {
            sum += *cpu_ns as f64 - *calls as f64 * submit.as_ps() as f64 / 1e3;
            if sum > best.0 {
                best = (sum, Some(1u64 << shift));
            }
        }
        best.1
    }
}

/// How soon results of this place's calls are needed; none: it made no call.
#[must_use]
pub fn needed(trace: &Trace, caller: Caller) -> Option<Needed> {
    let mut times = Vec::new();
    let mut events: BTreeMap<Dependent, u64> = BTreeMap::new();
    for thread in &trace.threads {
        for (place, step) in thread.steps.iter().enumerate() {
            if let What::Call(index) = step.what
                && let call = &thread.calls[index as usize]
                && Caller::of(call) == caller
            {
                let (at_ns, by) = first(thread, place, call);
                times.push(at_ns.saturating_sub(step.at_ns.saturating_add(step.ns)));
                *events.entry(by).or_default() += 1;
            }
        }
    }
    let (by, calls) = events.into_iter().max_by_key(|(_, calls)| *calls)?;
    let middle = times.len() / 2;
    let after_ns = *times.select_nth_unstable(middle).1;
    Some(Needed { after_ns, by, calls })
}

/// The first event after a step that depends on its call, and its time, nanoseconds since the trace's start.
fn first(thread: &Thread, place: usize, call: &Call) -> (u64, Dependent) {
    let mut at_ns = thread.end_ns;
    for step in thread.steps[place + 1..].iter().take(LOOK) {
        at_ns = step.at_ns;
        match step.what {
            What::Call(index) if depends(&thread.calls[index as usize], call) => {
                return (at_ns, Dependent::Call(Caller::of(&thread.calls[index as usize])));
            }
            What::Signal(_) => return (at_ns, Dependent::Wake),
            _ => {}
        }
    }
    if place + 1 + LOOK < thread.steps.len() {
        (at_ns, Dependent::Unseen)
    } else {
        (thread.end_ns, Dependent::End)
    }
}
