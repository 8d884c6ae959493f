// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of a client and their answers: walks, their ends, and the sum of a run.
//!
//! - **Order** answers are in the order of the jobs
//! - **Not here** how a walk comes to its end (`rack`, `accelerator`)

use super::program::{Program, Verdict};
use crate::event::Time;
use std::sync::Arc;

/// One request of a client.
#[derive(Clone, Debug)]
pub struct Job {
    /// Program that each step runs.
    pub program: Arc<Program>,
    /// Address of the first node.
    pub start: u64,
    /// The first bytes of the scratchpad; the rest is 0.
    pub scratch: Vec<u8>,
    /// An object to send along: where in the scratchpad its address is, and how many bytes it has.
    pub object: Option<(usize, usize)>,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program said so.
    Done,
    /// The program found nothing.
    Missing,
    /// A change was made; what was there before.
    Applied(u64),
    /// A compare-and-swap found something else.
    Differs(u64),
    /// No node has this address.
    Nowhere(u64),
    /// This address may not be used so.
    Forbidden(u64),
    /// More iterations than allowed.
    Budget,
    /// Started again too often.
    Contended,
    /// The program broke a rule.
    Fault(Verdict),
}

/// Answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it ended.
    pub outcome: Outcome,
    /// Contents of the scratchpad at the end.
    pub scratch: Vec<u8>,
    /// The emitted bytes.
    pub result: Vec<u8>,
    /// The object asked for, if the walk was done.
    pub object: Vec<u8>,
    /// Time at which the client sent the request.
    pub issued: Time,
    /// Time at which the client had the answer.
    pub done: Time,
    /// Steps that the walk took.
    pub iterations: u64,
    /// Times it went from one node to another.
    pub crossings: u64,
}

/// Time spent in each part, over all walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// In network stacks, and passes through one.
    pub network: (Time, u64),
    /// Between pipelines, and passes.
    pub scheduler: (Time, u64),
    /// In memory pipelines, waiting for one aside, and fetches.
    pub memory: (Time, u64),
    /// In logic pipelines, waiting for one aside, and steps.
    pub logic: (Time, u64),
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the jobs.
    pub answers: Vec<Answer>,
    /// Events that happened.
    pub events: u64,
    /// Where the time went.
    pub spent: Spent,
}

impl Report {
    /// Requests per second in the middle of the run, where all clients are busy: from a tenth to nine tenths of the answers.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        let mut done: Vec<Time> = self.answers.iter().map(|answer| answer.done).collect();
        done.sort_unstable();
        let (first, last) = (done.len() / 10, done.len() * 9 / 10);
        match (done.get(first), done.get(last)) {
            (Some(&from), Some(&to)) if to > from => {
                (last - first) as f64 * 1e12 / (to - from).as_ps() as f64
            }
            _ => 0.0,
        }
    }

    /// Mean time from a client's wish to its answer, in microseconds.
    #[must_use]
    pub fn latency_us(&self) -> f64 {
        let sum: u64 = self.answers.iter().map(|answer| (answer.done - answer.issued).as_ps()).sum();
        sum as f64 / 1e6 / self.answers.len().max(1) as f64
    }
}
