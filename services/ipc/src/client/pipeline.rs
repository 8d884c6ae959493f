// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pipelined calls: submit many, collect later, in whatever order the answers come.
//!
//! Flow    `submit` ─▶ job id … `submit` (waits when `depth` are unanswered) … ─▶ `next` ─▶ (job id, answer)
//! Owner   answers that are not collected hold their response slots; dropping the pipeline abandons them
//!
//! Rocket's pipelined mode (§IV-B): completion checks are deferred and requests are batched, since the server is only
//! woken when it sleeps, and takes all that lies in the ring at once.

use super::{Client, Limit};
use crate::error::Error;
use crate::payload::{Outgoing, Payload};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A job id and what became of the call.
pub type Answer = (u64, Result<Payload, Error>);

/// A series of calls whose answers are collected later.
pub struct Pipeline {
    client: Client,
    depth: usize,
    unanswered: Vec<u64>,
    answered: VecDeque<Answer>,
}

impl Pipeline {
    pub(super) fn new(client: Client, depth: usize) -> Pipeline {
        Pipeline { client, depth: depth.max(1), unanswered: Vec::new(), answered: VecDeque::new() }
    }

    /// Sends a call and gives its job id. Waits for an answer first when `depth` calls are unanswered; that answer is
    /// kept for [`next`](Pipeline::next).
    ///
    /// # Errors
    ///
    /// As [`Client::call_async`].
    pub fn submit<'a>(
        &mut self,
        operation: &str,
        data: impl Into<Outgoing<'a>>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        self.submit_within(operation, data, Limit::new(timeout.or(self.client.0.options.timeout)), None)
    }

    /// The same for callers that must look at other things in between: after `patience` without room for the call it
    /// gives [`Error::Busy`], and may be tried again with the same limit.
    ///
    /// # Errors
    ///
    /// As [`Client::call_async`].
    pub fn submit_within<'a>(
        &mut self,
        operation: &str,
        data: impl Into<Outgoing<'a>>,
        limit: Limit,
        patience: Option<Duration>,
    ) -> Result<u64, Error> {
        let room_until = limit.sooner(patience);
        while self.unanswered.len() >= self.depth {
            match self.client.0.wait_first(&self.unanswered, room_until)? {
                Some(answer) => self.keep(answer),
                None => return Err(Error::Busy { outstanding: self.unanswered.len() }),
            }
        }
        let id = self.client.0.send(operation, &data.into(), limit.deadline, room_until)?;
        self.unanswered.push(id);
        Ok(id)
    }

    /// The next answer, in the order in which they come; `None` when there are no more. After `timeout` without one:
    /// [`Error::DeadlineExceeded`], and the calls stay in the pipeline.
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`], or the end of the session. A failed call is an answer.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Answer>, Error> {
        if let Some(answer) = self.answered.pop_front() {
            return Ok(Some(answer));
        }
        if self.unanswered.is_empty() {
            return Ok(None);
        }
        let limit = timeout.or(self.client.0.options.timeout);
        let deadline = limit.map(|limit| Instant::now() + limit);
        match self.client.0.wait_first(&self.unanswered, deadline)? {
            Some(answer) => {
                self.keep(answer);
                Ok(self.answered.pop_front())
            }
            None => Err(Error::DeadlineExceeded { limit: limit.unwrap_or_default() }),
        }
    }

    /// Calls without an answer.
    pub fn outstanding(&self) -> usize {
        self.unanswered.len()
    }

    fn keep(&mut self, answer: Answer) {
        self.unanswered.retain(|&id| id != answer.0);
        self.answered.push_back(answer);
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        for &id in &self.unanswered {
            self.client.0.abandon(id);
        }
    }
}
