// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job: a call whose answer is asked for later, its time limit, and what the server says about it meanwhile.
//!
//! - **Flow** `call_async` ─▶ `Job` ─▶ `is_done`, `state`, `wait`
//! - **Owner** a job that is dropped abandons its answer; the server finishes

use super::Inner;
use super::send::Expect;
use crate::clock::end_of;
use crate::error::Error;
use crate::payload::Payload;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// State of a call, as the server reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobState {
    /// It waits for a handler, behind so many others.
    Queued {
        /// Requests that will have one before it.
        ahead: u64,
    },
    /// A handler has it.
    Taken {
        /// Work done, in the handler's unit; 0: the handler does not report it.
        done: u64,
        /// All the work, in the same unit; 0: the handler does not report it.
        total: u64,
    },
    /// The answer is here (or was taken already).
    Answered,
}

/// A time limit that has begun to run.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub(super) limit: Option<Duration>,
    pub(super) deadline: Option<Instant>,
}

impl Limit {
    /// Begins now; `None`: no limit.
    pub fn new(limit: Option<Duration>) -> Limit {
        Limit { limit, deadline: end_of(limit) }
    }

    /// Returns true if it has passed.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Turns [`Error::Busy`] into [`Error::DeadlineExceeded`] if the limit has passed.
    pub(super) fn judge(&self, error: Error) -> Error {
        match error {
            Error::Busy { .. } if self.is_over() => self.exceeded(),
            error => error,
        }
    }

    /// Time that is left; `None`: no limit.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    pub(super) fn exceeded(&self) -> Error {
        Error::DeadlineExceeded { limit: self.limit.unwrap_or_default() }
    }

    pub(super) fn sooner(&self, patience: Option<Duration>) -> Option<Instant> {
        let patience = end_of(patience);
        match (self.deadline, patience) {
            (Some(deadline), Some(patience)) => Some(deadline.min(patience)),
            (deadline, patience) => deadline.or(patience),
        }
    }
}

/// A call whose answer is still to come. Dropping it abandons the answer; the server is not interrupted.
pub struct Job {
    inner: Arc<Inner>,
    id: u64,
    limit: Limit,
    expect: Expect,
    taken: bool,
}

impl Job {
    pub(super) fn new(inner: Arc<Inner>, id: u64, limit: Limit, expect: Expect) -> Job {
        Job { inner, id, limit, expect, taken: false }
    }

    /// Number of the call in its session.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns true if [`wait`](Job::wait) has given the answer, or the call's own time limit has passed.
    pub fn is_taken(&self) -> bool {
        self.taken
    }

    /// Returns true if the answer is there. Collects what has arrived, without waiting.
    pub fn is_done(&self) -> bool {
        self.inner.poll(self.id)
    }

    /// Waits for the answer, within the call's own time limit and `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Client::call`](crate::Client::call). After `timeout` alone has passed, the job can be waited for again.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Payload, Error> {
        let answer = self.wait_within(timeout)?;
        answer.ok_or(Error::DeadlineExceeded { limit: timeout.unwrap_or_default() })
    }

    /// As [`wait`](Job::wait), for callers with other work in between; `None`: `patience` has passed, and the job can be waited
    /// for again.
    ///
    /// # Errors
    ///
    /// As [`Client::call`](crate::Client::call); [`Error::DeadlineExceeded`] is always that of the call's own time limit.
    pub fn wait_within(&mut self, patience: Option<Duration>) -> Result<Option<Payload>, Error> {
        if self.taken {
            return Err(Error::Closed { what: "job, whose answer was taken," });
        }
        let patience = end_of(patience);
        let own_first = match (self.limit.deadline, patience) {
            (Some(own), Some(patience)) => own <= patience,
            (own, _) => own.is_some(),
        };
        if own_first || patience.is_none() {
            self.taken = true;
            return self.inner.wait(self.id, self.limit, self.expect).map(Some);
        }
        if !self.inner.wait_done(self.id, patience, self.expect)? {
            return Ok(None);
        }
        self.taken = true;
        self.inner.wait(self.id, self.limit, self.expect).map(Some)
    }

    /// Asks the server what has become of the call: whether it still waits for a handler, or how far that is. A leader that runs
    /// a short operation answers after it.
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`] after `timeout`, or the end of the session.
    pub fn state(&self, timeout: Option<Duration>) -> Result<JobState, Error> {
        let limit = Limit::new(timeout.or(self.inner.options.timeout));
        let state = self.inner.ask(self.id, limit.deadline).map_err(|error| limit.judge(error))?;
        state.ok_or_else(|| limit.exceeded())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.taken {
            self.inner.abandon(self.id);
        }
    }
}
