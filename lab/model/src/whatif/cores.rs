// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recorded run on another number of cores.
//!
//! - **Flow** a thread that has something to compute, or a call, waits for a core ─▶ it has the core for a slice, or until it waits ─▶ the next
//!   in the queue has it ─▶ [`on_cores`]: the time of the whole run
//! - **Method** each piece takes the CPU time that it took; time in which a thread could run and had no core in the recording is left out, since
//!   the queue makes its own. Waits are as in a replay: a thread goes on as long after the event that it waits for as it did, and waits for a
//!   time or for nobody of the program last as long as they did
//! - **Order** threads have cores in the order in which they ask for one; all cores are alike, and changing threads costs nothing
//! - **Not here** what cores share: caches, memory, a clock that falls when many are busy

use std::collections::VecDeque;

use super::replay::{busy, working_until};
use super::timeline::{Step, Trace, What};
use crate::event::{Calendar, Time};

/// A thread has a core for so long while others wait for one: Linux gives 3 ms on two cores.
const SLICE: Time = Time::from_ns(3_000_000);

#[derive(Clone, Copy)]
enum Event {
    /// The thread comes to its next step.
    Comes(usize),
    /// The thread has had its core for so long.
    Had(usize, Time),
}

struct Run<'a> {
    trace: &'a Trace,
    calendar: Calendar<Event>,
    free: usize,
    /// Threads that wait for a core.
    queue: VecDeque<usize>,
    next: Vec<usize>,
    /// Rest of the step of each thread.
    left: Vec<Time>,
    /// How long each thread has had its core.
    slice: Vec<Time>,
    /// For each thread how many steps it has until only idle ones are left.
    busy: Vec<usize>,
    happened: Vec<Option<Time>>,
    awaiting: Vec<Option<(usize, Time)>>,
    end: Time,
}

/// Returns how long the recorded run takes on so many cores, at least one.
#[must_use]
pub fn on_cores(trace: &Trace, cores: usize) -> Time {
    let threads = trace.threads.len();
    let mut run = Run {
        trace,
        calendar: Calendar::new(),
        free: cores.max(1),
        queue: VecDeque::new(),
        next: vec![0; threads],
        left: vec![Time::ZERO; threads],
        slice: vec![Time::ZERO; threads],
        busy: trace.threads.iter().map(busy).collect(),
        happened: vec![None; trace.events],
        awaiting: vec![None; trace.events],
        end: Time::ZERO,
    };
    for (index, thread) in trace.threads.iter().enumerate() {
        // One that was started begins with awaiting that.
        let begin_ns = if thread.parent.is_none() { thread.begin_ns } else { 0 };
        run.calendar.at(Time::from_ns(begin_ns), Event::Comes(index));
    }
    run.all();
    let recorded = trace.threads.iter().map(working_until).max().unwrap_or(0);
    run.end + Time::from_ns(trace.wall_ns.saturating_sub(recorded))
}

impl Run<'_> {
    fn all(&mut self) {
        loop {
            while let Some(event) = self.calendar.pop() {
                match event {
                    Event::Comes(thread) => {
                        if self.comes(thread) {
                            self.queue.push_back(thread);
                        }
                    }
                    Event::Had(thread, time) => self.had(thread, time),
                }
                self.dispatch();
            }
            // Threads that await each other go on with the first of them: the trace was guessed wrong, or damaged.
            let stuck = self.awaiting.iter().position(Option::is_some);
            let Some(event) = stuck else { return };
            self.happen(event);
        }
    }

    /// Cores that are free go to those who wait for one.
    fn dispatch(&mut self) {
        while self.free > 0
            && let Some(thread) = self.queue.pop_front()
        {
            self.free -= 1;
            self.slice[thread] = Time::ZERO;
            self.goes_on(thread);
        }
    }

    /// The thread has a core, until its step is over or its slice is.
    fn goes_on(&mut self, thread: usize) {
        let time = self.left[thread].min(SLICE - self.slice[thread]);
        self.calendar.after(time, Event::Had(thread, time));
    }

    fn had(&mut self, thread: usize, time: Time) {
        self.left[thread] = self.left[thread] - time;
        self.slice[thread] = self.slice[thread] + time;
        if self.left[thread] == Time::ZERO {
            self.next[thread] += 1;
            if !self.comes(thread) {
                self.free += 1;
                return;
            }
        }
        if self.slice[thread] < SLICE {
            return self.goes_on(thread);
        }
        if self.queue.is_empty() {
            self.slice[thread] = Time::ZERO;
            return self.goes_on(thread);
        }
        self.free += 1;
        self.queue.push_back(thread);
    }

    /// The thread is at its next step. True: it needs a core for it.
    fn comes(&mut self, thread: usize) -> bool {
        let steps = &self.trace.threads[thread].steps;
        loop {
            let next = self.next[thread];
            if next <= self.busy[thread] {
                self.end = self.end.max(self.calendar.now());
            }
            let Some(Step { ns, cpu_ns, what, .. }) = steps.get(next) else { return false };
            let ns = Time::from_ns(*ns);
            match what {
                What::Compute | What::Call(_) if *cpu_ns > 0 => {
                    self.left[thread] = Time::from_ns(*cpu_ns);
                    return true;
                }
                What::Compute | What::Call(_) => self.next[thread] += 1,
                What::Signal(event) => {
                    self.next[thread] += 1;
                    self.happen(*event as usize);
                }
                What::Wait | What::Sleep => {
                    self.next[thread] += 1;
                    self.calendar.after(ns, Event::Comes(thread));
                    return false;
                }
                What::Await(event) => {
                    self.next[thread] += 1;
                    let event = *event as usize;
                    match self.happened[event] {
                        Some(at) => self.calendar.at(at + ns, Event::Comes(thread)),
                        None => self.awaiting[event] = Some((thread, ns)),
                    }
                    return false;
                }
            }
        }
    }

    fn happen(&mut self, event: usize) {
        self.happened[event] = Some(self.calendar.now());
        if let Some((thread, after)) = self.awaiting[event].take() {
            self.calendar.after(after, Event::Comes(thread));
        }
    }
}

#[cfg(test)]
mod tests {
    use memlift_spec::formats::trace::{Kind, Record};

    use super::super::tests::{call, file, mark, waited};
    use super::super::{Cpu, Device, Timing, replay};
    use super::*;

    const MS: u64 = 1_000_000;

    /// A thread that starts two others, which compute for 8 and 6 ms, and then waits for the first one's end.
    fn three() -> Trace {
        let first = [
            mark(Kind::Mark, 0, 0, 0),
            mark(Kind::Mark, MS, MS, 0),
            waited(MS, 8 * MS, 2, 9 * MS),
            mark(Kind::Mark, 9 * MS, MS, 0),
            mark(Kind::End, 10 * MS, 2 * MS, 0),
        ];
        let second = [
            mark(Kind::Mark, MS, 0, 0),
            call(Kind::Copy, 3 * MS, 2 * MS, 2 << 20),
            mark(Kind::End, 9 * MS, 8 * MS, 0),
        ];
        let third = [mark(Kind::Mark, MS, 0, 0), mark(Kind::End, 7 * MS, 6 * MS, 0)];
        Trace::read(&file(&[(1, 0, 1, 0, &first), (1, 0, 2, 0, &second), (1, 0, 3, 0, &third)], 10 * MS))
            .unwrap()
    }

    #[test]
    fn one_core_does_all_one_after_the_other_and_enough_cores_take_the_recorded_time() {
        let trace = three();
        for cores in [2, 3, 64] {
            assert_eq!(on_cores(&trace, cores), Time::from_ns(10 * MS), "{cores} cores");
        }
        // 1 ms, then 8 and 6 ms in slices of 3: the shorter one is over at 13, the other one at 15; 1 ms after it.
        assert_eq!(on_cores(&trace, 1), Time::from_ns(16 * MS));
        assert_eq!(on_cores(&trace, 0), on_cores(&trace, 1));
    }

    #[test]
    fn time_without_a_core_in_the_recording_is_made_anew() {
        let displaced = |at, cpu| Record { words: [at, cpu, 0, 0, 0, 1, 0], ..mark(Kind::Mark, 0, 0, 0) };
        // Two threads on one core: each has half of it.
        let thread = [displaced(0, 0), call(Kind::Copy, 2 * MS, 6 * MS, 1 << 20), displaced(8 * MS, 4 * MS)];
        let trace = Trace::read(&file(&[(1, 0, 1, 0, &thread), (2, 0, 2, 0, &thread)], 8 * MS)).unwrap();
        assert_eq!(on_cores(&trace, 1), Time::from_ns(8 * MS));
        assert_eq!(on_cores(&trace, 2), Time::from_ns(4 * MS));
        let cpu = Cpu::default();
        assert_eq!(replay(&trace, &cpu, Timing::Recorded, &Device::Cpu, 0).wall, Time::from_ns(8 * MS));
    }

    /// Two that wait for each other, as a damaged trace may say: the run has an end.
    #[test]
    fn a_circle_of_waits_has_an_end() {
        let waits = |waker: u64| {
            [mark(Kind::Mark, 0, 0, 0), waited(MS, 3 * MS, waker, 3 * MS), mark(Kind::End, 5 * MS, 2 * MS, 0)]
        };
        let trace = Trace::read(&file(&[(1, 0, 1, 0, &waits(2)), (1, 0, 2, 0, &waits(1))], 5 * MS)).unwrap();
        assert!(on_cores(&trace, 1) >= Time::from_ns(4 * MS));
    }
}
