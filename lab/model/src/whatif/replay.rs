// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recorded run once more: every thread's steps on one calendar, with calls as long as whoever takes them needs.
//!
//! - **Flow** a thread's event ─▶ its next step: computing and waiting take as long as they did; a call takes what the CPU or the
//!   device says; who awaits another thread's event goes on as long after it as then ─▶ [`Outcome`]
//!   A changed program ([`replay_changed`]) submits some calls and goes on; `change` says before which steps their results have to be there
//! - **Order** picoseconds; equal inputs give equal outcomes everywhere
//! - **Traffic** of calls only: lines that were not in the last-level cache, and the write-backs of what was written. A core reads what it
//!   overwrites before (no streaming stores are assumed); a device does not

use super::change::{self, Cause, Change, Flights, Limits, Need, Sizes, Use};
use super::cpu::{Cpu, Shadow};
use super::device::{Device, Engine, Placed};
use super::load::{Limit, LoadOutcome, saturated};
use super::timeline::{Call, Step, Thread, Trace, What, part};
use crate::dsa::numbered::Numbered;
use crate::event::{Calendar, Time};
use memlift_spec::formats::trace::Kind;
use std::collections::{HashSet, VecDeque};

/// Time and traffic of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Wall time from start to end.
    pub wall: Time,
    /// CPU time spent computing and in calls.
    pub cpu: Time,
    /// CPU time spent in calls.
    pub calls: Time,
    /// CPU time that threads waited for the device, in UMWAIT or spinning: nobody else had the core.
    pub waiting: Time,
    /// CPU time, waiting for the device included, of the thread that has the most of it.
    pub busiest: Time,
    /// Calls that the device took.
    pub offloaded: u64,
    /// Bytes of those calls.
    pub offloaded_bytes: u64,
    /// Bytes that calls read from memory.
    pub read_bytes: u64,
    /// Bytes that calls wrote to memory.
    pub written_bytes: u64,
    /// Cost of changed calls, by its reason; nothing where the program was not changed.
    pub limits: Limits,
    /// Time that the device was busy; 0 if it took nothing, or the model has no limit of it.
    pub device: Time,
    /// The part of it between the first request and the last answer, where the trace has a load.
    pub load: LoadOutcome,
}

impl Outcome {
    /// The time that all this work takes where its input never keeps it waiting, and what limits it: the thread that has most to do, all on
    /// so many cores, or the device.
    #[must_use]
    pub fn saturated(&self, cores: u64) -> (Time, Limit) {
        saturated([self.busiest, self.cpu + self.waiting, self.device], cores)
    }

    /// Lines that were not there are read; what is written goes to memory sooner or later, unless it was there: then it is
    /// written back once for all who wrote it.
    fn traffic(&mut self, call: &Call, source: u64, target: u64, core: bool) {
        if call.kind.is_work() {
            // Nothing is known of what was in the cache.
            self.read_bytes = self.read_bytes.saturating_add(call.read);
            self.written_bytes = self.written_bytes.saturating_add(call.written);
            return;
        }
        let second = if call.kind == Kind::Compare { call.read } else { call.written };
        let missed = second.saturating_sub(target);
        let fetched = if core || call.written == 0 { missed } else { 0 };
        let read = call.read.saturating_sub(source).saturating_add(fetched);
        self.read_bytes = self.read_bytes.saturating_add(read);
        let written = if call.written == 0 { 0 } else { missed };
        self.written_bytes = self.written_bytes.saturating_add(written);
    }
}

/// How calls are timed that stay with the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// As they were recorded.
    Recorded,
    /// As the model of the CPU says.
    Modelled,
}

#[derive(Clone, Copy)]
enum Event {
    Thread(usize),
    /// A thread's call reaches the device's queue.
    Submitted(usize, Entry),
    Engine(usize),
}

/// Entry of a thread in the device's queue.
#[derive(Clone, Copy)]
enum Entry {
    /// A call, which the thread waits for.
    Call(usize),
    /// The calls that it has gathered; it goes on.
    Gathered,
}

struct Run<'a> {
    trace: &'a Trace,
    cpu: &'a Cpu,
    timing: Timing,
    from_bytes: u64,
    engine: Engine,
    calendar: Calendar<Event>,
    /// None: nobody asks for traffic, nor for a modelled CPU.
    shadow: Option<Shadow>,
    next: Vec<usize>,
    /// Time of each event, once it was.
    happened: Vec<Option<Time>>,
    /// For each event who awaits it, and how long after it that thread goes on.
    awaiting: Vec<Option<(usize, Time)>>,
    /// For each thread how many steps it has until only idle ones are left.
    busy: Vec<usize>,
    /// Threads that wait for a device submission and since when, by its number; none: nobody waits for it alone. The CPU time of
    /// submitting is counted at once.
    waiting: Numbered<Option<(usize, Time)>>,
    /// Threads that found the device's queue full, since when.
    full: VecDeque<(usize, Entry, Time)>,
    change: Option<&'a Change>,
    /// The sizes of `change`.
    sizes: Sizes,
    /// Calls that enter the queue now.
    entering: Vec<Call>,
    flights: Flights,
    /// For each thread the calls that it submits ahead, with the steps before which it does so.
    ahead: Vec<VecDeque<(usize, usize)>>,
    /// Threads and calls that were submitted ahead and are not reached.
    early: HashSet<(usize, usize)>,
    /// For each thread what is left of the computing that it is in: time, CPU time.
    left: Vec<Option<(Time, Time)>>,
    /// For each thread the time without a core that is still to come in the call that it has submitted.
    away: Vec<Time>,
    /// CPU time of each thread, waiting for the device included.
    held: Vec<Time>,
    /// The same between the first request and the last answer; empty without a load.
    serving: Vec<Time>,
    /// For each thread, true if its step lies there.
    within: Vec<bool>,
    /// Time of the first request and the last answer.
    span: Option<(Time, Time)>,
    end: Time,
    outcome: Outcome,
}

/// Runs a trace with a device for calls from `from_bytes` on; the others are timed as `timing` says.
#[must_use]
pub fn replay(trace: &Trace, cpu: &Cpu, timing: Timing, device: &Device, from_bytes: u64) -> Outcome {
    Run::new(trace, cpu, timing, device, from_bytes, None).run()
}

/// Runs a trace of a program that was changed: the calls of `change` are given to the device's queue, and the thread goes on. All other
/// calls stay with the CPU, as long as they were. Of a device without a queue it is the run without one. Traffic is not counted.
#[must_use]
pub fn replay_changed(trace: &Trace, cpu: &Cpu, device: &Device, change: &Change) -> Outcome {
    Run::new(trace, cpu, Timing::Recorded, device, 0, Some(change)).run()
}

/// Steps of a thread until it waits for what never came: the program ended without it, and does so sooner or later.
pub(super) fn busy(thread: &Thread) -> usize {
    let idle = thread.steps.iter().rev().take_while(|step| !thread.ended && step.what == What::Wait).count();
    thread.steps.len() - idle
}

/// Returns the time of a thread's last work in the recording, nanoseconds since the trace's start.
pub(super) fn working_until(thread: &Thread) -> u64 {
    thread.steps.get(busy(thread)).map_or(thread.end_ns, |wait| wait.at_ns)
}

impl<'a> Run<'a> {
    fn new(
        trace: &'a Trace,
        cpu: &'a Cpu,
        timing: Timing,
        device: &Device,
        from_bytes: u64,
        change: Option<&'a Change>,
    ) -> Run<'a> {
        let threads = trace.threads.len();
        Run {
            trace,
            cpu,
            timing,
            from_bytes,
            engine: device.engine(change.map_or(1, |change| change.batch)),
            calendar: Calendar::new(),
            shadow: change.is_none().then(|| Shadow::new(cpu.cache_bytes, timing == Timing::Modelled)),
            next: vec![0; threads],
            happened: vec![None; trace.events],
            awaiting: vec![None; trace.events],
            busy: trace.threads.iter().map(busy).collect(),
            waiting: Numbered::default(),
            full: VecDeque::new(),
            change,
            sizes: change.map(Sizes::new).unwrap_or_default(),
            entering: Vec::new(),
            flights: Flights::default(),
            ahead: vec![VecDeque::new(); threads],
            early: HashSet::new(),
            left: vec![None; threads],
            away: vec![Time::ZERO; threads],
            held: vec![Time::ZERO; threads],
            serving: vec![Time::ZERO; if trace.load.is_some() { threads } else { 0 }],
            within: vec![false; threads],
            span: None,
            end: Time::ZERO,
            outcome: Outcome::default(),
        }
    }

    fn run(mut self) -> Outcome {
        let trace = self.trace;
        for (index, thread) in trace.threads.iter().enumerate() {
            if let Some(change) = self.change {
                let can = |call: usize| self.submits(&thread.calls[call], thread.fresh[call]);
                self.ahead[index] = change::ahead(thread, change, can);
            }
            // One that was started begins with awaiting that.
            let begin_ns = if thread.parent.is_none() { thread.begin_ns } else { 0 };
            self.calendar.at(Time::from_ns(begin_ns), Event::Thread(index));
        }
        self.all();
        let recorded = trace.threads.iter().map(working_until).max().unwrap_or(0);
        // Time after the last record.
        self.outcome.wall = self.end + Time::from_ns(trace.wall_ns.saturating_sub(recorded));
        let seen = trace.threads.iter().fold(0u64, |sum, thread| sum.saturating_add(thread.cpu_ns));
        self.outcome.cpu = self.outcome.cpu + Time::from_ns(trace.cpu_ns.saturating_sub(seen));
        self.outcome.busiest = self.held.iter().copied().max().unwrap_or(Time::ZERO);
        self.outcome.load.busiest = self.serving.iter().copied().max().unwrap_or(Time::ZERO);
        self.outcome.load.cpu = self.serving.iter().fold(Time::ZERO, |sum, time| sum + *time);
        self.outcome.load.span = match &trace.load {
            Some(load) if load.is_given() => self.outcome.wall,
            _ => self.span.map_or(Time::ZERO, |(first, last)| last - first),
        };
        self.outcome
    }

    fn all(&mut self) {
        loop {
            while let Some(event) = self.calendar.pop() {
                match event {
                    Event::Thread(thread) => self.step(thread),
                    Event::Submitted(thread, entry) => self.enter(thread, entry, self.calendar.now()),
                    Event::Engine(engine) => {
                        if let Some(done) = self.engine.happen(engine, &mut self.calendar, Event::Engine) {
                            self.settled(done);
                        }
                        if let Some((thread, entry, since)) = self.full.pop_front() {
                            self.enter(thread, entry, since);
                        }
                    }
                }
            }
            // Threads that await each other go on with the first of them: the trace was guessed wrong, or damaged.
            let stuck = self.awaiting.iter().position(Option::is_some);
            let Some(event) = stuck else { return };
            self.happen(event);
        }
    }

    /// A submission is done: who waited for it or for the last of several goes on.
    fn settled(&mut self, job: usize) {
        let waited = self.waiting.take(job).flatten().map(|(thread, since)| (thread, since, Cause::Used));
        let now = self.calendar.now();
        for (thread, since, cause) in waited.into_iter().chain(self.flights.settle(job)) {
            let wake = self.engine.wake();
            self.waits(thread, now - since);
            if self.change.is_some() {
                self.outcome.limits.waited(cause, now - since + wake);
            }
            self.works(thread, wake);
            let away = std::mem::take(&mut self.away[thread]);
            self.calendar.after(wake + away, Event::Thread(thread));
        }
    }

    /// The thread had the core and waited.
    fn waits(&mut self, thread: usize, time: Time) {
        self.outcome.waiting = self.outcome.waiting + time;
        self.holds(thread, time);
    }

    /// The thread had the core.
    fn holds(&mut self, thread: usize, time: Time) {
        self.held[thread] = self.held[thread] + time;
        if self.within[thread] {
            self.serving[thread] = self.serving[thread] + time;
        }
    }

    /// The device is busy for a thread.
    fn occupies(&mut self, thread: usize, time: Time) {
        self.outcome.device = self.outcome.device + time;
        if self.within[thread] {
            self.outcome.load.device = self.outcome.load.device + time;
        }
    }

    /// The thread comes to this step: has the first request come, was the last answered by what it did before?
    fn comes_to(&mut self, thread: usize, next: usize) {
        let Some(load) = &self.trace.load else { return };
        let Thread { process, steps, .. } = &self.trace.threads[thread];
        let busy = |step: &Step| matches!(step.what, What::Compute | What::Call(_));
        let (now, step) = (self.calendar.now(), steps.get(next));
        let before = next.checked_sub(1).and_then(|before| steps.get(before));
        if self.within[thread] && before.is_some_and(busy) {
            self.span = self.span.map(|(first, last)| (first, last.max(now)));
        }
        self.within[thread] = load.counts(*process) && step.is_some_and(|step| load.holds(step.at_ns));
        if self.within[thread] && step.is_some_and(busy) {
            let (first, last) = self.span.unwrap_or((now, now));
            self.span = Some((first.min(now), last));
        }
    }

    /// Returns true if the thread waits for copies before this step, or submits some; it comes back to the step.
    fn held_up(&mut self, thread: usize, step: Option<&Step>) -> bool {
        if self.flights.is_empty() {
            return false;
        }
        let Thread { process, calls, .. } = &self.trace.threads[thread];
        let rest = self.left[thread].map_or(Time::from_ns(step.map_or(0, |step| step.ns)), |(ns, _)| ns);
        match self.flights.needed((thread, *process), calls, step, rest) {
            Need::Nothing => false,
            Need::Submit => {
                self.submit(thread, Entry::Gathered);
                true
            }
            Need::Wait(copies, cause) => {
                self.flights.hold(thread, copies, self.calendar.now(), cause);
                true
            }
        }
    }

    /// The core submits what reaches the queue then.
    fn submit(&mut self, thread: usize, entry: Entry) {
        let submit = self.engine.submit();
        self.works(thread, submit);
        self.outcome.calls = self.outcome.calls + submit;
        if self.change.is_some() {
            self.outcome.limits.submitting = self.outcome.limits.submitting + submit;
        }
        self.calendar.after(submit, Event::Submitted(thread, entry));
    }

    /// The thread comes to its next step after this time; true: it is there, since nothing else happens until then.
    fn comes_after(&mut self, thread: usize, time: Time) -> bool {
        let skipped = self.calendar.skip(time);
        if !skipped {
            self.calendar.after(time, Event::Thread(thread));
        }
        skipped
    }

    /// Computes until the step ends, or until the thread uses a copy that is under way. True: the thread is there.
    fn compute(&mut self, thread: usize, step: &Step) -> bool {
        let (ns, cpu) =
            self.left[thread].take().unwrap_or((Time::from_ns(step.ns), Time::from_ns(step.cpu_ns)));
        let now = if self.flights.is_empty() { ns } else { self.flights.compute(thread, ns) };
        let mut on_core = cpu;
        if now < ns {
            on_core = Time::from_ps(part(cpu.as_ps(), now.as_ps(), ns.as_ps()));
            self.left[thread] = Some((ns - now, cpu - on_core));
            self.next[thread] -= 1;
        }
        self.works(thread, on_core);
        self.comes_after(thread, now)
    }

    fn step(&mut self, thread: usize) {
        let steps = &self.trace.threads[thread].steps;
        loop {
            let next = self.next[thread];
            if next <= self.busy[thread] {
                self.end = self.end.max(self.calendar.now());
            }
            self.comes_to(thread, next);
            if let Some((_, call)) = self.ahead[thread].pop_front_if(|(place, _)| *place <= next) {
                self.early.insert((thread, call));
                self.outcome.limits.early += 1;
                return self.gather(thread, call, Use::Early(call));
            }
            let step = steps.get(next);
            if self.held_up(thread, step) {
                return;
            }
            let Some(step) = step else { return };
            self.next[thread] += 1;
            let ns = Time::from_ns(step.ns);
            match step.what {
                What::Compute if self.compute(thread, step) => {}
                What::Compute => return,
                What::Wait | What::Sleep => return self.calendar.after(ns, Event::Thread(thread)),
                What::Signal(event) => self.happen(event as usize),
                What::Await(event) => match self.happened[event as usize] {
                    Some(at) => {
                        let over = (at + ns).max(self.calendar.now());
                        return self.calendar.at(over, Event::Thread(thread));
                    }
                    None => {
                        self.awaiting[event as usize] = Some((thread, ns));
                        return;
                    }
                },
                What::Call(call) if self.call(thread, call as usize, step) => {}
                What::Call(_) => return,
            }
        }
    }

    fn works(&mut self, thread: usize, time: Time) {
        self.outcome.cpu = self.outcome.cpu + time;
        self.holds(thread, time);
    }

    fn happen(&mut self, event: usize) {
        self.happened[event] = Some(self.calendar.now());
        if let Some((thread, after)) = self.awaiting[event].take() {
            self.calendar.after(after, Event::Thread(thread));
        }
    }

    /// Begins a call. True: it is over, and the thread is at its next step.
    fn call(&mut self, thread: usize, index: usize, step: &Step) -> bool {
        let (call, fresh) =
            (&self.trace.threads[thread].calls[index], self.trace.threads[thread].fresh[index]);
        let placed = match self.change {
            Some(_) => self.changed(call, fresh),
            None if call.bytes() >= self.from_bytes => self.engine.place(call, fresh),
            None => Placed::Cpu,
        };
        // Time that the thread was without a core in it stays so, unless a program that was not changed waits for the device anyway.
        let away = Time::from_ns(step.ns - step.cpu_ns);
        match placed {
            Placed::Cpu => {
                let mut ns = step.cpu_ns;
                if let Some(shadow) = &mut self.shadow {
                    let residency = shadow.call(call);
                    if self.timing == Timing::Modelled {
                        ns = self.cpu.cost_ns(call, &residency, fresh);
                    }
                    self.outcome.traffic(call, residency.source, residency.target, true);
                }
                let time = Time::from_ns(ns);
                self.works(thread, time);
                self.outcome.calls = self.outcome.calls + time;
                return self.comes_after(thread, time + away);
            }
            Placed::Queue => match self.change {
                None => self.submit(thread, Entry::Call(index)),
                Some(change) => {
                    self.away[thread] = away;
                    if call.kind == Kind::Compare {
                        self.submit(thread, Entry::Call(index));
                    } else if !self.early.is_empty() && self.early.remove(&(thread, index)) {
                        self.flights.reach(thread, index, change.first_use);
                        self.goes_on(thread);
                    } else {
                        self.gather(thread, index, Use::After(change.first_use));
                    }
                }
            },
            Placed::Work => {
                let now = self.calendar.now();
                let (done, core, busy) = self.engine.work(call, now);
                self.occupies(thread, busy);
                self.count(call);
                // The bytes are the same, whoever moves them.
                self.outcome.traffic(call, 0, 0, true);
                self.works(thread, core);
                self.outcome.calls = self.outcome.calls + core;
                self.calendar.at(done, Event::Thread(thread));
            }
            Placed::Near => {
                let source = self.shadow.as_mut().map_or(0, |shadow| shadow.device(call).source);
                let now = self.calendar.now();
                let (done, busy) = self.engine.copy(call, 2 * source >= call.read, now);
                let time = done - now + Time::from_ns((f64::from(fresh) * self.cpu.fault.ns) as u64);
                self.occupies(thread, busy);
                // Dirty lines in the cache are written back before the device can see them.
                self.count(call);
                self.outcome.read_bytes += call.read;
                self.outcome.written_bytes += source.min(call.read) + call.written;
                self.works(thread, time);
                self.outcome.calls = self.outcome.calls + time;
                self.calendar.after(time + away, Event::Thread(thread));
            }
        }
        false
    }

    /// Returns true if a changed program submits this call and goes on.
    fn submits(&self, call: &Call, fresh: u32) -> bool {
        self.sizes.of(call).is_some_and(|from| call.bytes() >= from)
            && call.kind != Kind::Compare
            && matches!(self.engine.place(call, fresh), Placed::Queue)
    }

    /// Adds a call to those that the thread has gathered, and submits them if there are enough.
    fn gather(&mut self, thread: usize, index: usize, used: Use) {
        let Some(change) = self.change else { return };
        let Thread { process, calls, .. } = &self.trace.threads[thread];
        let patience = self.engine.batch_time(&calls[index], change.batch);
        if self.flights.add((thread, *process), &calls[index], used, patience) >= change.batch {
            self.submit(thread, Entry::Gathered);
        } else {
            self.goes_on(thread);
        }
    }

    /// Places a call of a changed program.
    fn changed(&mut self, call: &Call, fresh: u32) -> Placed {
        let Some(from) = self.sizes.of(call) else { return Placed::Cpu };
        if call.bytes() < from {
            self.outcome.limits.small += 1;
            return Placed::Cpu;
        }
        let placed = self.engine.place(call, fresh);
        self.outcome.limits.fresh += u64::from(fresh > 0 && matches!(placed, Placed::Cpu));
        placed
    }

    fn count(&mut self, call: &Call) {
        self.outcome.offloaded += 1;
        self.outcome.offloaded_bytes = self.outcome.offloaded_bytes.saturating_add(call.bytes());
    }

    /// Into the queue, which the thread has tried to enter since then.
    fn enter(&mut self, thread: usize, entry: Entry, since: Time) {
        let mut calls = std::mem::take(&mut self.entering);
        calls.clear();
        match entry {
            Entry::Call(index) => calls.push(self.trace.threads[thread].calls[index]),
            Entry::Gathered => calls.extend(self.flights.gathered(thread).copied()),
        }
        let entered = self.engine.enter(&calls, &mut self.calendar, Event::Engine);
        if entered.is_some() {
            self.occupies(thread, self.engine.occupied(&calls));
            for call in &calls {
                self.count(call);
                if let Some(shadow) = &mut self.shadow {
                    let residency = shadow.device(call);
                    self.outcome.traffic(call, residency.source, residency.target, false);
                }
            }
        }
        self.entering = calls;
        let Some(job) = entered else { return self.full.push_back((thread, entry, since)) };
        let now = self.calendar.now();
        match entry {
            Entry::Call(_) => self.wait_for(job, Some((thread, since))),
            Entry::Gathered => {
                self.waits(thread, now - since);
                self.outcome.limits.full = self.outcome.limits.full + (now - since);
                self.wait_for(job, None);
                self.flights.submitted(thread, job);
                self.goes_on(thread);
            }
        }
    }

    /// A submission has a thread that waits for it alone, or none.
    fn wait_for(&mut self, job: usize, waiting: Option<(usize, Time)>) {
        let number = self.waiting.push(waiting);
        debug_assert_eq!(job, number, "submissions are numbered in their order");
    }

    /// The thread has submitted; it is without a core as long as it was in the call.
    fn goes_on(&mut self, thread: usize) {
        let away = std::mem::take(&mut self.away[thread]);
        self.calendar.after(away, Event::Thread(thread));
    }
}
