// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recorded run once more: every thread's steps on one calendar, with calls as long as whoever takes them needs.
//!
//! - **Flow** a thread's event ─▶ its next step: computing and waiting take as long as they did; a call takes what the CPU or the
//!   device says; who awaits another thread's event goes on as long after it as then ─▶ [`Outcome`]
//! - **Order** picoseconds; equal inputs give equal outcomes everywhere
//! - **Traffic** of calls only: lines that were not in the last-level cache, and the write-backs of what was written. A core reads what it
//!   overwrites before (no streaming stores are assumed); a device does not

use super::cpu::{Cpu, Shadow};
use super::device::{Device, Engine, Placed};
use super::timeline::{Call, Step, Thread, Trace, What};
use crate::event::{Calendar, Time};

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
}

impl Outcome {
    /// The time that all this work takes where its input never keeps it waiting: that of the thread that has most to do, or of all on so
    /// many cores.
    #[must_use]
    pub fn saturated(&self, cores: u64) -> Time {
        self.busiest.max(Time::from_ps((self.cpu + self.waiting).as_ps() / cores.max(1)))
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
    Submitted(usize, usize),
    Engine(usize),
}

struct Run<'a> {
    trace: &'a Trace,
    cpu: &'a Cpu,
    timing: Timing,
    from_bytes: u64,
    engine: Engine,
    calendar: Calendar<Event>,
    shadow: Shadow,
    next: Vec<usize>,
    /// Time of each event, once it was.
    happened: Vec<Option<Time>>,
    /// For each event who awaits it, and how long after it that thread goes on.
    awaiting: Vec<Option<(usize, Time)>>,
    /// For each thread how many steps it has until only idle ones are left.
    busy: Vec<usize>,
    /// Threads of device submissions, by their number; their call's share of CPU time is counted at once.
    waiting: Vec<(usize, Time)>,
    /// Threads that found the device's queue full, with their calls.
    full: std::collections::VecDeque<(usize, usize)>,
    /// CPU time of each thread, waiting for the device included.
    held: Vec<Time>,
    end: Time,
    outcome: Outcome,
}

/// Runs a trace with a device for calls from `from_bytes` on; the others are timed as `timing` says.
#[must_use]
pub fn replay(trace: &Trace, cpu: &Cpu, timing: Timing, device: &Device, from_bytes: u64) -> Outcome {
    let threads = trace.threads.len();
    let mut run = Run {
        trace,
        cpu,
        timing,
        from_bytes,
        engine: device.engine(),
        calendar: Calendar::new(),
        shadow: Shadow::new(cpu.cache_bytes, (timing == Timing::Modelled).then(|| trace.calls().count())),
        next: vec![0; threads],
        happened: vec![None; trace.events],
        awaiting: vec![None; trace.events],
        busy: trace.threads.iter().map(busy).collect(),
        waiting: Vec::new(),
        full: std::collections::VecDeque::new(),
        held: vec![Time::ZERO; threads],
        end: Time::ZERO,
        outcome: Outcome::default(),
    };
    for (index, thread) in trace.threads.iter().enumerate() {
        // One that was started begins with awaiting that.
        let begin_ns = if thread.parent.is_none() { thread.begin_ns } else { 0 };
        run.calendar.at(Time::from_ns(begin_ns), Event::Thread(index));
    }
    run.all();
    let recorded = trace.threads.iter().map(working_until).max().unwrap_or(0);
    // Time after the last record.
    run.outcome.wall = run.end + Time::from_ns(trace.wall_ns.saturating_sub(recorded));
    let seen = trace.threads.iter().fold(0u64, |sum, thread| sum.saturating_add(thread.cpu_ns));
    run.outcome.cpu = run.outcome.cpu + Time::from_ns(trace.cpu_ns.saturating_sub(seen));
    run.outcome.busiest = run.held.iter().copied().max().unwrap_or(Time::ZERO);
    run.outcome
}

/// Steps of a thread until it waits for what never came: the program ended without it, and does so sooner or later.
fn busy(thread: &Thread) -> usize {
    let idle = thread.steps.iter().rev().take_while(|step| !thread.ended && step.what == What::Wait).count();
    thread.steps.len() - idle
}

/// Returns the time of a thread's last work in the recording, nanoseconds since the trace's start.
fn working_until(thread: &Thread) -> u64 {
    thread.steps.get(busy(thread)).map_or(thread.end_ns, |wait| wait.at_ns)
}

impl Run<'_> {
    fn all(&mut self) {
        loop {
            while let Some(event) = self.calendar.pop() {
                match event {
                    Event::Thread(thread) => self.step(thread),
                    Event::Submitted(thread, call) => self.offload(thread, call),
                    Event::Engine(engine) => {
                        let now = self.calendar.now();
                        if let Some(done) = self.engine.happen(engine, &mut self.calendar, Event::Engine) {
                            let (thread, since) = self.waiting[done];
                            let wake = self.engine.wake();
                            self.outcome.waiting = self.outcome.waiting + (now - since);
                            self.held[thread] = self.held[thread] + (now - since);
                            self.works(thread, wake);
                            self.calendar.after(wake, Event::Thread(thread));
                        }
                        if let Some((thread, call)) = self.full.pop_front() {
                            self.offload(thread, call);
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

    fn step(&mut self, thread: usize) {
        let steps = &self.trace.threads[thread].steps;
        if self.next[thread] <= self.busy[thread] {
            self.end = self.end.max(self.calendar.now());
        }
        while let Some(step) = steps.get(self.next[thread]) {
            self.next[thread] += 1;
            let ns = Time::from_ns(step.ns);
            match step.what {
                What::Compute => {
                    self.works(thread, Time::from_ns(step.cpu_ns));
                    return self.calendar.after(ns, Event::Thread(thread));
                }
                What::Wait | What::Sleep => return self.calendar.after(ns, Event::Thread(thread)),
                What::Signal(event) => self.happen(event),
                What::Await(event) => match self.happened[event] {
                    Some(at) => {
                        let over = (at + ns).max(self.calendar.now());
                        return self.calendar.at(over, Event::Thread(thread));
                    }
                    None => {
                        self.awaiting[event] = Some((thread, ns));
                        return;
                    }
                },
                What::Call(call) => return self.call(thread, call, step),
            }
        }
    }

    fn works(&mut self, thread: usize, time: Time) {
        self.outcome.cpu = self.outcome.cpu + time;
        self.held[thread] = self.held[thread] + time;
    }

    fn happen(&mut self, event: usize) {
        self.happened[event] = Some(self.calendar.now());
        if let Some((thread, after)) = self.awaiting[event].take() {
            self.calendar.after(after, Event::Thread(thread));
        }
    }

    fn call(&mut self, thread: usize, index: usize, step: &Step) {
        let (call, fresh) =
            (&self.trace.threads[thread].calls[index], self.trace.threads[thread].fresh[index]);
        let placed =
            if call.bytes() >= self.from_bytes { self.engine.place(call, fresh) } else { Placed::Cpu };
        // Time that the thread was without a core in it stays so, unless it waits for the device anyway.
        let away = Time::from_ns(step.ns - step.cpu_ns);
        match placed {
            Placed::Cpu => {
                let residency = self.shadow.call(call);
                let ns = match self.timing {
                    Timing::Recorded => step.cpu_ns,
                    Timing::Modelled => self.cpu.cost_ns(call, &residency, fresh),
                };
                let time = Time::from_ns(ns);
                self.traffic(call, residency.source, residency.target, true);
                self.works(thread, time);
                self.outcome.calls = self.outcome.calls + time;
                self.calendar.after(time + away, Event::Thread(thread));
            }
            Placed::Queue => {
                let submit = self.engine.submit();
                self.works(thread, submit);
                self.outcome.calls = self.outcome.calls + submit;
                self.calendar.after(submit, Event::Submitted(thread, index));
            }
            Placed::Work => {
                let now = self.calendar.now();
                let (done, core) = self.engine.work(call, now);
                self.count(call);
                // The bytes are the same, whoever moves them.
                self.traffic(call, 0, 0, true);
                self.works(thread, core);
                self.outcome.calls = self.outcome.calls + core;
                self.calendar.at(done, Event::Thread(thread));
            }
            Placed::Near => {
                let residency = self.shadow.device(call);
                let now = self.calendar.now();
                let done = self.engine.copy(call, 2 * residency.source >= call.read, now);
                let time = done - now + Time::from_ns((f64::from(fresh) * self.cpu.fault.ns) as u64);
                // Dirty lines in the cache are written back before the device can see them.
                self.count(call);
                self.outcome.read_bytes += call.read;
                self.outcome.written_bytes += residency.source.min(call.read) + call.written;
                self.works(thread, time);
                self.outcome.calls = self.outcome.calls + time;
                self.calendar.after(time + away, Event::Thread(thread));
            }
        }
    }

    fn count(&mut self, call: &Call) {
        self.outcome.offloaded += 1;
        self.outcome.offloaded_bytes = self.outcome.offloaded_bytes.saturating_add(call.bytes());
    }

    /// Lines that were not there are read; what is written goes to memory sooner or later, unless it was there: then it is
    /// written back once for all who wrote it.
    fn traffic(&mut self, call: &Call, source: u64, target: u64, core: bool) {
        if call.kind.is_work() {
            // Nothing is known of what was in the cache.
            self.outcome.read_bytes = self.outcome.read_bytes.saturating_add(call.read);
            self.outcome.written_bytes = self.outcome.written_bytes.saturating_add(call.written);
            return;
        }
        let second = if call.kind == memlift_spec::trace::Kind::Compare { call.read } else { call.written };
        let missed = second.saturating_sub(target);
        let fetched = if core || call.written == 0 { missed } else { 0 };
        let read = call.read.saturating_sub(source).saturating_add(fetched);
        self.outcome.read_bytes = self.outcome.read_bytes.saturating_add(read);
        let written = if call.written == 0 { 0 } else { missed };
        self.outcome.written_bytes = self.outcome.written_bytes.saturating_add(written);
    }

    fn offload(&mut self, thread: usize, index: usize) {
        let call = &self.trace.threads[thread].calls[index];
        match self.engine.enter(call, &mut self.calendar, Event::Engine) {
            Some(job) => {
                let residency = self.shadow.device(call);
                self.count(call);
                self.traffic(call, residency.source, residency.target, false);
                debug_assert_eq!(job, self.waiting.len(), "submissions are numbered in their order");
                self.waiting.push((thread, self.calendar.now()));
            }
            None => self.full.push_back((thread, index)),
        }
    }
}
