// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that was changed: some of its calls are handed to the device's queue, and the thread goes on.
//!
//! - **Flow** a changed call ──[`Flights::add`]──▶ gathered, until there are as many as a batch ─▶ in the queue ─▶ settled. Before each step
//!   [`Flights::needed`] names the copies that have to be there first
//! - **Rule** a copy has to be there before a recorded call of its process reads or writes its target, or writes its source; before its
//!   thread wakes or starts another one, or ends; and once the thread has computed as long as [`Change::first_use`] says. A batch that is
//!   not full is submitted when one of its copies is needed, before its thread waits, and before it computes in one piece for
//!   longer than the device takes for a full one: gathering longer would leave the device idle
//!   A call that is submitted ahead ([`Change::ahead`]) goes as far back as the call of its place that is so many before it, if its thread did
//!   not wait and no recorded call wrote its source in between; its target is then a buffer of its own
//! - **Owner** the replay has the clock and the device; this file has the copies that have not settled
//! - **Not here** comparisons: their result is the call's own, which the program branches on at once

use std::collections::{BTreeMap, VecDeque};

use memlift_spec::formats::trace::Kind;

use super::timeline::{Call, Step, Thread, What};
use crate::event::Time;

/// Steps of a thread that are searched for an event that another one depends on.
pub const LOOK: usize = 256;

/// A place that calls one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// Its place in [`super::Trace::sites`]; none: not known.
    pub site: Option<u32>,
    /// The function that is called.
    pub kind: Kind,
}

impl Caller {
    /// The place that made this call.
    #[must_use]
    pub fn of(call: &Call) -> Caller {
        Caller { site: call.site, kind: call.kind }
    }
}

/// A change of the program.
#[derive(Clone, Debug)]
pub struct Change {
    /// Callers that submit, each with the size from which on it does so, bytes.
    pub callers: BTreeMap<Caller, u64>,
    /// Calls of a thread that are submitted together, at least 1.
    pub batch: usize,
    /// Time that a thread computes after a call before it uses the result or changes the source; none: until a recorded event does.
    pub first_use: Option<Time>,
    /// Number of calls of the same place by which a call is submitted ahead; 0: when it is made.
    pub ahead: usize,
}

/// Sizes from which on callers submit, by their places: found without a search.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// By one more than the site; 0: the site is not known.
    sites: Vec<Vec<(Kind, u64)>>,
}

impl Sizes {
    /// Those of a change.
    pub fn new(change: &Change) -> Sizes {
        let mut sizes = Sizes::default();
        for (caller, from) in &change.callers {
            let place = Sizes::place(caller.site);
            sizes.sites.resize(sizes.sites.len().max(place + 1), Vec::new());
            sizes.sites[place].push((caller.kind, *from));
        }
        sizes
    }

    fn place(site: Option<u32>) -> usize {
        site.map_or(0, |site| site as usize + 1)
    }

    /// The size from which on the caller of this call submits, bytes; none: it was not changed.
    pub fn of(&self, call: &Call) -> Option<u64> {
        let kinds = self.sites.get(Sizes::place(call.site))?;
        kinds.iter().find(|(kind, _)| *kind == call.kind).map(|(_, from)| *from)
    }
}

/// Time of threads that changed calls cost, by its reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Submitting, on the core.
    pub submitting: Time,
    /// Waiting for room in the device's queue.
    pub full: Time,
    /// Waiting for a result that is used after [`Change::first_use`], or for a comparison.
    pub used: Time,
    /// Waiting for bytes that a recorded call reads or writes.
    pub called: Time,
    /// Waiting before another thread is woken or started, or at the thread's end.
    pub handed: Time,
    /// Number of calls below the size from which on their caller submits.
    pub small: u64,
    /// Number of calls that write pages that were not there, and stay with the CPU.
    pub fresh: u64,
    /// Number of calls that were submitted ahead.
    pub early: u64,
}

/// Why a thread waits for copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Used,
    Called,
    Handed,
}

impl Limits {
    /// Counts a wait.
    pub(super) fn waited(&mut self, cause: Cause, time: Time) {
        let sum = match cause {
            Cause::Used => &mut self.used,
            Cause::Called => &mut self.called,
            Cause::Handed => &mut self.handed,
        };
        *sum = *sum + time;
    }
}

/// Bytes from an address on.
type Range = (u64, u64);

fn meet(one: Range, other: Range) -> bool {
    one.1 > 0
        && other.1 > 0
        && one.0 < other.0.saturating_add(other.1)
        && other.0 < one.0.saturating_add(one.1)
}

/// Returns true if `later` cannot go before `earlier` is done: it uses what that writes, or writes what that reads.
pub(super) fn depends(later: &Call, earlier: &Call) -> bool {
    if later.kind.is_work() || earlier.kind.is_work() {
        return false;
    }
    let compares = later.kind == Kind::Compare;
    let (source, second) = ((later.source, later.read), if compares { later.read } else { later.written });
    let (read, written) = ((earlier.source, earlier.read), (earlier.target, earlier.written));
    let target = (later.target, second);
    meet(source, written) || meet(target, written) || (!compares && meet(target, read))
}

/// Returns true if a call writes one of these bytes.
fn writes(call: &Call, range: Range) -> bool {
    !call.kind.is_work() && call.kind != Kind::Compare && meet((call.target, call.written), range)
}

/// Calls of a thread that are submitted ahead, with the steps before which they are, by these; `can` says of a call whether it is submitted.
pub(super) fn ahead(
    thread: &Thread,
    change: &Change,
    can: impl Fn(usize) -> bool,
) -> VecDeque<(usize, usize)> {
    let mut found = Vec::new();
    if change.ahead == 0 {
        return VecDeque::new();
    }
    for (place, step) in thread.steps.iter().enumerate() {
        let What::Call(index) = step.what else { continue };
        let index = index as usize;
        let call = &thread.calls[index];
        if !can(index) {
            continue;
        }
        let (mut from, mut passed) = (place, 0);
        for earlier in (place.saturating_sub(LOOK)..place).rev() {
            match thread.steps[earlier].what {
                What::Wait | What::Sleep | What::Await(_) => break,
                What::Call(other) => {
                    let other = &thread.calls[other as usize];
                    if writes(other, (call.source, call.read)) {
                        break;
                    }
                    if Caller::of(other) == Caller::of(call) {
                        (from, passed) = (earlier + 1, passed + 1);
                    }
                    if passed == change.ahead {
                        break;
                    }
                }
                What::Compute | What::Signal(_) => {}
            }
        }
        if from < place {
            found.push((from, index));
        }
    }
    found.sort_unstable();
    found.into()
}

/// A copy that has not settled.
#[derive(Clone, Copy, Debug)]
struct Flight {
    number: u64,
    thread: usize,
    process: u32,
    call: Call,
    /// Computing that is left until its thread uses the result; none: a recorded event tells.
    left: Option<Time>,
    /// Its place in the thread's calls while it is ahead of its thread; none: the thread has come to it.
    early: Option<usize>,
    /// It is submitted before its thread computes for longer than this.
    patience: Time,
    /// The device's number of it; none: it is gathered.
    job: Option<usize>,
}

impl Flight {
    /// Returns true if `later` cannot go before it: ahead of its call its target is a buffer that nobody uses yet.
    fn delays(&self, later: &Call) -> bool {
        match self.early {
            Some(_) => writes(later, (self.call.source, self.call.read)),
            None => depends(later, &self.call),
        }
    }
}

/// When the result of a copy is used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    /// After so much computing; none: a recorded event tells.
    After(Option<Time>),
    /// Not before the thread comes to this call.
    Early(usize),
}

/// Copies of all threads that have not settled, and the threads that wait for some.
#[derive(Debug, Default)]
pub(super) struct Flights {
    live: Vec<Flight>,
    numbers: u64,
    /// By thread: the copies that it waits for, since when, and why.
    held: BTreeMap<usize, (Vec<u64>, Time, Cause)>,
}

/// Condition of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing has to be done first.
    Nothing,
    /// The thread's gathered copies have to be submitted.
    Submit,
    /// These copies have to settle.
    Wait(Vec<u64>, Cause),
}

impl Flights {
    /// Returns true if no copy is under way.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Adds a copy, which is submitted before its thread computes for longer than `patience`; returns how many of its thread are gathered now.
    pub fn add(&mut self, (thread, process): (usize, u32), call: &Call, used: Use, patience: Time) -> usize {
        self.numbers += 1;
        let (left, early) = match used {
            Use::After(left) => (left, None),
            Use::Early(call) => (None, Some(call)),
        };
        let number = self.numbers;
        self.live.push(Flight { number, thread, process, call: *call, left, early, patience, job: None });
        self.gathered(thread).count()
    }

    /// The thread has come to a call that was submitted ahead: from now on its result is used.
    pub fn reach(&mut self, thread: usize, call: usize, first_use: Option<Time>) {
        let mut found = self.live.iter_mut().filter(|one| one.thread == thread && one.early == Some(call));
        if let Some(flight) = found.next() {
            (flight.early, flight.left) = (None, first_use);
        }
    }

    /// The calls of a thread that are gathered, in order.
    pub fn gathered(&self, thread: usize) -> impl Iterator<Item = &Call> {
        self.live.iter().filter(move |one| one.thread == thread && one.job.is_none()).map(|one| &one.call)
    }

    /// The thread's gathered copies are in the queue, as this job.
    pub fn submitted(&mut self, thread: usize, job: usize) {
        for flight in self.live.iter_mut().filter(|one| one.thread == thread && one.job.is_none()) {
            flight.job = Some(job);
        }
    }

    /// Condition of this thread's next step, which takes it `ns`; without a step, of its end.
    pub fn needed(
        &self,
        (thread, process): (usize, u32),
        calls: &[Call],
        step: Option<&Step>,
        ns: Time,
    ) -> Need {
        let of = |wanted: &dyn Fn(&Flight) -> bool| -> Vec<&Flight> {
            self.live.iter().filter(|one| wanted(one)).collect()
        };
        let mine = |one: &Flight| one.thread == thread;
        let (found, cause) = match step.map(|step| step.what) {
            Some(What::Compute) => (of(&|one| mine(one) && one.left == Some(Time::ZERO)), Cause::Used),
            Some(What::Call(index)) => {
                let call = &calls[index as usize];
                (of(&|one| one.process == process && one.delays(call)), Cause::Called)
            }
            Some(What::Signal(_)) => (of(&|one| mine(one) && one.early.is_none()), Cause::Handed),
            None => (of(&mine), Cause::Handed),
            Some(What::Wait | What::Sleep | What::Await(_)) => (Vec::new(), Cause::Handed),
        };
        let gathered = self.live.iter().find(|one| mine(one) && one.job.is_none());
        let late = |one: &Flight| match step.map(|step| step.what) {
            Some(What::Wait | What::Sleep | What::Await(_)) => true,
            Some(What::Compute) => ns > one.patience,
            _ => false,
        };
        if gathered.is_some_and(|one| !found.is_empty() || late(one)) {
            Need::Submit
        } else if found.is_empty() {
            Need::Nothing
        } else {
            Need::Wait(found.into_iter().map(|one| one.number).collect(), cause)
        }
    }

    /// Time that the thread may compute until it uses one of its copies, at most `ns`; their budgets get less by it.
    pub fn compute(&mut self, thread: usize, ns: Time) -> Time {
        let mine = || self.live.iter().filter(|one| one.thread == thread).filter_map(|one| one.left);
        let time = mine().min().map_or(ns, |left| left.min(ns));
        for flight in self.live.iter_mut().filter(|one| one.thread == thread) {
            flight.left = flight.left.map(|left| left - time);
        }
        time
    }

    /// The thread waits for these copies from now on.
    pub fn hold(&mut self, thread: usize, copies: Vec<u64>, now: Time, cause: Cause) {
        self.held.insert(thread, (copies, now, cause));
    }

    /// A job has settled: returns the threads that go on, since when each waited, and why.
    pub fn settle(&mut self, job: usize) -> Vec<(usize, Time, Cause)> {
        self.live.retain(|one| one.job != Some(job));
        let live = &self.live;
        let mut free = Vec::new();
        self.held.retain(|thread, (copies, since, cause)| {
            copies.retain(|number| live.binary_search_by_key(number, |one| one.number).is_ok());
            if copies.is_empty() {
                free.push((*thread, *since, *cause));
            }
            !copies.is_empty()
        });
        free
    }
}
