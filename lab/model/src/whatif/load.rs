// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load of a recorded server: its requests, when they came, and which processes answered them.
//!
//! - **Flow** records of threads ─▶ [`Served`] of each ─▶ [`Load`]: all of them ─▶ [`super::replay()`] measures the time between the first request
//!   and the last answer, and what cores and device did in it ─▶ [`LoadOutcome`]
//! - **Rule** a request is what the recorder counted (`memlift_spec::formats::trace::Kind::Served`), or the user gives their number; then the whole run of
//!   all processes counts
//! - **Order** the clients stay as they were recorded, so a device changes the rate at the recorded load only as far as they waited for
//!   answers; saturation assumes that there is always a request to answer
//! - **Not here** requests one by one: a trace has their number

use std::collections::BTreeSet;

use crate::event::Time;

/// Requests that a thread has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of requests.
    pub requests: u64,
    /// Bytes read from connections.
    pub read: u64,
    /// Bytes written to connections.
    pub written: u64,
    /// Time at which the first request was read, nanoseconds since the trace's start.
    pub first_ns: u64,
    /// Time at which the last request was answered.
    pub last_ns: u64,
    /// Time between reading and answering, summed, nanoseconds.
    pub inside_ns: u64,
}

impl Served {
    /// Adds the words of a record.
    pub(super) fn add(&mut self, words: &[u64; 7]) {
        let [_, requests, read, written, first_ns, last_ns, inside_ns] = *words;
        self.merge(&Served { requests, read, written, first_ns, last_ns, inside_ns });
    }

    fn merge(&mut self, other: &Served) {
        if other.requests == 0 {
            return;
        }
        let first_ns = if self.requests == 0 { other.first_ns } else { self.first_ns.min(other.first_ns) };
        *self = Served {
            requests: self.requests.saturating_add(other.requests),
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
            first_ns,
            last_ns: self.last_ns.max(other.last_ns),
            inside_ns: self.inside_ns.saturating_add(other.inside_ns),
        };
    }
}

/// The load of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Requests that were answered; of a given number of requests the bytes are 0, and the times are those of the whole run.
    pub served: Served,
    /// Processes that answered; `None`: all count.
    pub processes: Option<BTreeSet<u32>>,
}

impl Load {
    /// The requests that were recorded, by the process of each thread; `None`: there is none, or all came at one instant.
    pub(super) fn recorded<'a>(threads: impl Iterator<Item = (u32, &'a Served)>) -> Option<Load> {
        let (mut served, mut processes) = (Served::default(), BTreeSet::new());
        for (process, of_thread) in threads.filter(|(_, served)| served.requests > 0) {
            served.merge(of_thread);
            processes.insert(process);
        }
        (served.last_ns > served.first_ns).then_some(Load { served, processes: Some(processes) })
    }

    /// So many requests in all of a run of `wall_ns`.
    #[must_use]
    pub fn given(requests: u64, wall_ns: u64) -> Load {
        let served = Served { requests, last_ns: wall_ns.saturating_add(1), ..Served::default() };
        Load { served, processes: None }
    }

    /// Returns true if the user gave the number.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.processes.is_none()
    }

    /// Returns true if this process answered requests.
    pub(super) fn counts(&self, process: u32) -> bool {
        self.processes.as_ref().is_none_or(|processes| processes.contains(&process))
    }

    /// Returns true if this time lies between the first request and the last answer, nanoseconds since the trace's start.
    pub(super) fn holds(&self, at_ns: u64) -> bool {
        (self.served.first_ns..self.served.last_ns).contains(&at_ns)
    }
}

/// A run between its first request and its last answer. Times of processes that answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOutcome {
    /// From the first request to the last answer.
    pub span: Time,
    /// CPU time of all threads, waiting for the device included.
    pub cpu: Time,
    /// The same of the thread that has the most.
    pub busiest: Time,
    /// Time that the device was busy; 0 if it takes none of the work, or the model has no limit of it.
    pub device: Time,
}

/// The limit of a program that always has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The thread that has the most to do, which one core runs.
    Thread,
    /// All cores together.
    Cores,
    /// The device, which all threads share.
    Device,
}

/// The least time for work that its input never keeps waiting, and what limits it: the busiest thread, all on so many cores, or the device.
pub(super) fn saturated([busiest, all, device]: [Time; 3], cores: u64) -> (Time, Limit) {
    let shared = Time::from_ps(all.as_ps() / cores.max(1));
    [(busiest, Limit::Thread), (shared, Limit::Cores), (device, Limit::Device)]
        .into_iter()
        .rev()
        .max_by_key(|(time, _)| *time)
        .unwrap_or((busiest, Limit::Thread))
}

impl LoadOutcome {
    /// See [`super::Outcome::saturated`].
    #[must_use]
    pub fn saturated(&self, cores: u64) -> (Time, Limit) {
        saturated([self.busiest, self.cpu, self.device], cores)
    }
}

/// Requests per second; `None`: they take no time.
#[must_use]
pub fn rate(requests: u64, time: Time) -> Option<f64> {
    (time > Time::ZERO).then(|| requests as f64 * 1e12 / time.as_ps() as f64)
}
