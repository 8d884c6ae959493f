// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads of a trace, what they did, and the events between them: who started whom, and who ended whose wait.
//!
//! - **Flow** threads with their steps (`read`) ─▶ parents ─▶ events ─▶ a signal in the steps of the thread that caused an event, and an await in
//!   those of the thread that waited for it
//! - **Method** a thread goes on as long after an event as it did then, wherever the event lies now. Who ended a wait is recorded. A wait
//!   without a record that ends within 2 ms of the end of a thread that this one started is taken to be for that end
//! - **Rule** times are hostile: no order of them keeps this from its end
//! - **Not here** records (`read`), steps between two marks (`interval`)

use std::collections::BTreeMap;

use super::load::{Load, Served};
use super::site::Site;
use memlift_spec::formats::trace::{Chunk, Kind};

/// A wait that ends this close to another thread's end was for it, nanoseconds: marks are a millisecond apart.
const JOIN_NS: u64 = 2_000_000;

/// A call that a device could have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function that was called.
    pub kind: Kind,
    /// The place that called it, in [`Trace::sites`]; none: not known.
    pub site: Option<u32>,
    /// For memlift's own operations the opcode, for its services' work what [`Kind`] says.
    pub parameter: u32,
    /// Wall time of the call, nanoseconds.
    pub wall_ns: u64,
    /// CPU time within it, nanoseconds.
    pub cpu_ns: u64,
    /// Address of what was read.
    pub source: u64,
    /// Address of what was written.
    pub target: u64,
    /// Bytes that it read.
    pub read: u64,
    /// Bytes that it wrote.
    pub written: u64,
    /// Page faults in it, where they were counted.
    pub faults: Option<u32>,
    /// Number of parts, for a service's own work.
    pub parts: u32,
}

/// Traces have millions of calls.
const _: () = assert!(size_of::<Call>() == 80);

impl Call {
    /// The size by which it is placed, bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.read.max(self.written)
    }
}

/// The next action of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Something that is not in the trace.
    Compute,
    /// Nothing: it had no core, and has no record of what it waited for.
    Wait,
    /// A call, by its place in [`Thread::calls`].
    Call(u32),
    /// Nothing: it waited for a time, or for somebody outside of the program.
    Sleep,
    /// It lets an event happen, which is another thread's [`What::Await`].
    Signal(u32),
    /// It waits until so long (the step's `ns`) after an event.
    Await(u32),
}

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Start of the step, nanoseconds since the trace's start.
    pub at_ns: u64,
    /// Length of the step; for [`What::Await`] the time from the event to the step's end. Nanoseconds.
    pub ns: u64,
    /// CPU time within it, nanoseconds.
    pub cpu_ns: u64,
    /// Action of the step.
    pub what: What,
}

/// A call has two steps, itself and the computing before it.
const _: () = assert!(size_of::<Step>() == 32);

/// The end of a wait, by another thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waker {
    /// Number of that thread in the trace.
    pub thread: u32,
    /// Time at which it did so, nanoseconds since the trace's start.
    pub at_ns: u64,
    /// End of the wait, nanoseconds since the trace's start.
    pub over_ns: u64,
}

/// A thread of the trace.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Number of its process in the trace.
    pub process: u32,
    /// Process id, as the kernel had it.
    pub pid: u32,
    /// The thread that it waits for to begin; none: it begins when it began.
    pub parent: Option<usize>,
    /// First time that is known of it, nanoseconds since the trace's start.
    pub begin_ns: u64,
    /// Last time that is known of it, nanoseconds since the trace's start.
    pub end_ns: u64,
    /// CPU time up to its last mark, nanoseconds.
    pub cpu_ns: u64,
    /// Minor and major page faults up to then.
    pub faults: (u64, u64),
    /// True if its end is in the trace.
    pub ended: bool,
    /// Time in which it could have run and had no core, nanoseconds.
    pub displaced_ns: u64,
    /// Requests that it has answered.
    pub served: Served,
    /// Actions of the thread, in order.
    pub steps: Vec<Step>,
    /// The thread that started it, where that is in the trace.
    pub(super) started_by: Option<Waker>,
    /// For each of its recorded waits, by the number in [`What::Await`] until events are known: the thread that ended it; none: nobody of the
    /// program did.
    pub(super) wakers: Vec<Option<Waker>>,
    /// Calls of the thread, in order.
    pub calls: Vec<Call>,
    /// For each call, the number of pages of its target that it may have touched first; `None` without page faults.
    pub fresh: Vec<u32>,
}

impl Thread {
    /// Takes over from a thread that exec replaced, which ended at `end_ns` after `cpu_ns` of CPU time.
    fn goes_on(&mut self, end_ns: u64, cpu_ns: u64) {
        self.cpu_ns = self.cpu_ns.saturating_sub(cpu_ns);
        let early = end_ns.saturating_sub(self.begin_ns);
        if let Some(step) = self.steps.first_mut().filter(|step| step.what == What::Compute) {
            let cut = early.min(step.ns);
            (step.at_ns, step.ns) = (step.at_ns + cut, step.ns - cut);
            step.cpu_ns = step.cpu_ns.saturating_sub(cpu_ns).min(step.ns);
            self.begin_ns += cut;
        }
    }
}

/// Calls that were only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of calls.
    pub calls: u64,
    /// Bytes of these calls.
    pub bytes: u64,
}

/// Time of all threads in which they had no core, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// They waited for a thread of the program, which is known.
    pub explained_ns: u64,
    /// They waited for a time, or for somebody outside of the program.
    pub outside_ns: u64,
    /// They could have run, and had no core.
    pub displaced_ns: u64,
    /// They waited in a way that has no record.
    pub unexplained_ns: u64,
}

impl Waits {
    /// All of it, nanoseconds.
    #[must_use]
    pub fn all_ns(&self) -> u64 {
        [self.outside_ns, self.displaced_ns, self.unexplained_ns]
            .into_iter()
            .fold(self.explained_ns, u64::saturating_add)
    }
}

/// A trace that passed.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The command line.
    pub command: String,
    /// The CPU that it ran on.
    pub cpu: String,
    /// CPUs that it could use.
    pub cores: u64,
    /// Calls of the memcpy family below this were counted only, bytes.
    pub threshold: u64,
    /// Time at which it began, nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// True if the program's end is in the trace.
    pub finished: bool,
    /// From start to end, nanoseconds; where the end is not there, to the last record.
    pub wall_ns: u64,
    /// CPU time of all its processes, nanoseconds.
    pub cpu_ns: u64,
    /// The part of it that processes without a record have used: the recorder was not loaded into them. Nanoseconds; known once the program
    /// has ended.
    pub unrecorded_ns: u64,
    /// Records that found no room.
    pub dropped: u64,
    /// Cost of recording a call, nanoseconds.
    pub record_ns: f64,
    /// Cost of counting a call, nanoseconds.
    pub count_ns: f64,
    /// Number of processes.
    pub processes: u32,
    /// Threads, in order of their numbers.
    pub threads: Vec<Thread>,
    /// Number of events.
    pub events: usize,
    /// How much of its time without a core is explained.
    pub waits: Waits,
    /// Calls that were only counted, by kind.
    pub counted: BTreeMap<Kind, Counted>,
    /// Places that calls came from, each once.
    pub sites: Vec<Site>,
    /// Load of a server; none: it answered no request that was recorded.
    pub load: Option<Load>,
}

impl Trace {
    /// Finds each thread's parent.
    fn find_parents(&mut self, heads: &[Chunk]) {
        // A process begins with the thread that has its id, whichever made the first record.
        let mut first_of: BTreeMap<u32, usize> = BTreeMap::new();
        for (index, head) in heads.iter().enumerate() {
            let first = first_of.entry(head.process).or_insert(index);
            if head.tid == head.pid && heads[*first].tid != head.pid {
                *first = index;
            }
        }
        let mut of_pid: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, head) in heads.iter().enumerate() {
            let first = first_of[&head.process];
            let of = |pid: u32| of_pid.get(&pid).map_or(&[][..], Vec::as_slice);
            let another = |other: &&usize| heads[**other].process != head.process;
            let parent = if index != first {
                Some(first)
            } else {
                // After exec, the CPU time of the first thread is that of the old one, too.
                if let Some(old) = of(head.pid).iter().rfind(another) {
                    let (end_ns, cpu_ns) = (self.threads[*old].end_ns, self.threads[*old].cpu_ns);
                    self.threads[index].goes_on(end_ns, cpu_ns);
                }
                // A process that exec has made new has its own id; one that was started has its parent's.
                let begin = self.threads[index].begin_ns;
                let older = |pid: u32| {
                    let mut others = of(pid).iter().filter(another);
                    others.rfind(|other| self.threads[**other].begin_ns <= begin).copied()
                };
                if head.parent != 0 {
                    first_of.get(&head.parent).copied()
                } else {
                    older(head.pid)
                        .or_else(|| older(head.parent_pid))
                        .map(|other| first_of[&heads[other].process])
                }
            };
            let begin = self.threads[index].begin_ns;
            self.threads[index].parent =
                parent.filter(|parent| *parent != index && self.threads[*parent].begin_ns <= begin);
            of_pid.entry(head.pid).or_default().push(index);
        }
    }

    /// Makes events of starts and of the ends of waits.
    pub(super) fn relate(&mut self, heads: &[Chunk]) {
        self.find_parents(heads);
        let number: BTreeMap<u32, usize> =
            heads.iter().zip(0..).map(|(head, index)| (head.thread, index)).collect();
        let mut edges = Vec::new();
        let mut starts = vec![None; self.threads.len()];
        for (index, thread) in self.threads.iter_mut().enumerate() {
            let mut at_ns = thread.begin_ns;
            if let Some(waker) = thread.started_by
                && let Some(starter) = number.get(&waker.thread).filter(|starter| **starter != index)
            {
                thread.parent = Some(*starter);
                at_ns = waker.at_ns.min(at_ns);
            }
            if let Some(parent) = thread.parent {
                starts[index] = Some(edges.len());
                edges.push(Edge { waker: parent, at_ns, over_ns: thread.begin_ns, placed_ns: 0 });
            }
        }
        self.guess_joins(heads);
        let mut wakes: Vec<Vec<Option<usize>>> = Vec::with_capacity(self.threads.len());
        for (index, thread) in self.threads.iter().enumerate() {
            let mut event = |waker: &Waker| {
                let other = number.get(&waker.thread)?;
                if *other == index || waker.at_ns > waker.over_ns {
                    return None;
                }
                edges.push(Edge { waker: *other, at_ns: waker.at_ns, over_ns: waker.over_ns, placed_ns: 0 });
                Some(edges.len() - 1)
            };
            wakes.push(thread.wakers.iter().map(|waker| event(waker.as_ref()?)).collect());
        }
        let mut signals = vec![Vec::new(); self.threads.len()];
        for (event, edge) in edges.iter().enumerate() {
            signals[edge.waker].push(event);
        }
        for (thread, signals) in self.threads.iter_mut().zip(signals) {
            thread.signal(signals, &mut edges);
        }
        for ((thread, start), wakes) in self.threads.iter_mut().zip(starts).zip(wakes) {
            self.waits.displaced_ns = self.waits.displaced_ns.saturating_add(thread.displaced_ns);
            for step in &mut thread.steps {
                let of = match step.what {
                    What::Wait => &mut self.waits.unexplained_ns,
                    What::Sleep => &mut self.waits.outside_ns,
                    What::Await(waker) => match wakes[waker as usize].map(|event| (event, &edges[event])) {
                        Some((event, edge)) if edge.placed_ns <= edge.over_ns => {
                            self.waits.explained_ns = self.waits.explained_ns.saturating_add(step.ns);
                            (step.ns, step.what) = (edge.over_ns - edge.placed_ns, What::Await(event as u32));
                            continue;
                        }
                        _ => {
                            step.what = What::Sleep;
                            &mut self.waits.outside_ns
                        }
                    },
                    What::Compute | What::Call(_) | What::Signal(_) => continue,
                };
                *of = of.saturating_add(step.ns);
            }
            if let Some(event) = start {
                let Edge { placed_ns, over_ns, .. } = edges[event];
                let ns = over_ns.saturating_sub(placed_ns);
                thread
                    .steps
                    .insert(0, Step { at_ns: over_ns - ns, ns, cpu_ns: 0, what: What::Await(event as u32) });
            }
        }
        self.events = edges.len();
    }

    /// Waits without a record that end with a thread that this one started were for its end.
    fn guess_joins(&mut self, heads: &[Chunk]) {
        for (child, head) in heads.iter().enumerate() {
            let Thread { begin_ns: begin, end_ns: end, ended, parent, .. } = self.threads[child];
            let Some(parent) = parent.filter(|_| ended) else { continue };
            let Thread { steps, wakers, .. } = &mut self.threads[parent];
            let over = |step: &Step| step.at_ns.saturating_add(step.ns);
            let first = steps.partition_point(|step| over(step) < end.saturating_sub(JOIN_NS));
            let near = steps[first..].iter_mut().take_while(|step| step.at_ns <= end);
            let mut waits = near.filter(|step| step.what == What::Wait && step.at_ns >= begin);
            if let Some(step) = waits.find(|step| over(step).abs_diff(end) <= JOIN_NS) {
                let at_ns = end.min(over(step));
                wakers.push(Some(Waker { thread: head.thread, at_ns, over_ns: over(step) }));
                step.what = What::Await(wakers.len() as u32 - 1);
            }
        }
    }

    /// Returns the calls of all threads.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.threads.iter().flat_map(|thread| &thread.calls)
    }

    /// CPU time in calls, nanoseconds.
    #[must_use]
    pub fn calls_ns(&self) -> u64 {
        self.calls().fold(0, |sum, call| sum.saturating_add(call.cpu_ns))
    }

    /// Cost of recording, nanoseconds: a record for each call and mark, a count for each other call.
    #[must_use]
    pub fn overhead_ns(&self) -> f64 {
        let counted: f64 = self.counted.values().map(|counted| counted.calls as f64).sum();
        self.calls().count() as f64 * self.record_ns + counted * self.count_ns
    }
}

/// One thread's start or end of a wait by another.
#[derive(Clone, Copy)]
struct Edge {
    waker: usize,
    /// Time at which it did so.
    at_ns: u64,
    /// Time at which the other one went on.
    over_ns: u64,
    /// Time of the signal's place in the waker's steps.
    placed_ns: u64,
}

impl Thread {
    /// Cuts the computing of this time in two.
    pub(super) fn cut(&mut self, at_ns: u64) {
        let place = self.steps.partition_point(|step| step.at_ns < at_ns);
        let Some(step) = place.checked_sub(1).and_then(|before| self.steps.get_mut(before)) else { return };
        // Times of a damaged trace may be in any order.
        let ns = at_ns.saturating_sub(step.at_ns);
        if step.what != What::Compute || ns == 0 || ns >= step.ns {
            return;
        }
        let cpu_ns = part(step.cpu_ns, ns, step.ns);
        let rest = Step { at_ns, ns: step.ns - ns, cpu_ns: step.cpu_ns - cpu_ns, what: What::Compute };
        (step.ns, step.cpu_ns) = (ns, cpu_ns);
        self.steps.insert(place, rest);
    }

    /// Puts signals where they belong in the steps. Computing and waiting are cut in two for it; what cannot be is done later than the
    /// signal.
    fn signal(&mut self, mut signals: Vec<usize>, edges: &mut [Edge]) {
        if signals.is_empty() {
            return;
        }
        signals.sort_unstable_by_key(|event| (edges[*event].at_ns, *event));
        let mut signals = signals
            .into_iter()
            .map(|event| (event, edges[event].at_ns))
            .collect::<Vec<_>>()
            .into_iter()
            .peekable();
        let mut placed = Vec::with_capacity(self.steps.len() + 2 * signals.len());
        let mut put = |placed: &mut Vec<Step>, event: usize, at_ns| {
            edges[event].placed_ns = at_ns;
            placed.push(Step { at_ns, ns: 0, cpu_ns: 0, what: What::Signal(event as u32) });
        };
        let mut over = self.begin_ns;
        for mut step in std::mem::take(&mut self.steps) {
            let end = step.at_ns.saturating_add(step.ns);
            while let Some((event, at_ns)) = signals.next_if(|(_, at_ns)| *at_ns < end) {
                if matches!(step.what, What::Compute | What::Wait) && at_ns > step.at_ns {
                    let ns = at_ns - step.at_ns;
                    let cpu_ns = part(step.cpu_ns, ns, step.ns);
                    placed.push(Step { ns, cpu_ns, ..step });
                    step = Step { at_ns, ns: step.ns - ns, cpu_ns: step.cpu_ns - cpu_ns, ..step };
                }
                put(&mut placed, event, step.at_ns);
            }
            over = over.max(end);
            placed.push(step);
        }
        // After its last record nothing is known of a thread: what it still did is as long after that.
        for (event, _) in signals {
            put(&mut placed, event, over);
        }
        self.steps = placed;
    }
}

/// Returns `of` times `some` over `all`, which is not 0.
pub(super) fn part(of: u64, some: u64, all: u64) -> u64 {
    if let Some(product) = of.checked_mul(some) {
        return product / all;
    }
    (u128::from(of) * u128::from(some) / u128::from(all)) as u64
}
