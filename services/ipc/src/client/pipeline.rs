// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pipelined calls: submit many, collect later, in whatever order the answers come.
//!
//! - **Flow** `submit` ─▶ job id … `submit` (waits when `depth` are unanswered) … ─▶ `next` ─▶ (job id, answer)
//! - **Order** a server that sleeps is woken once per batch, and always before this side waits
//! - **Owner** answers that are not collected hold their response slots; dropping the pipeline abandons them
//!
//! Rocket's pipelined mode (§IV-B): completion checks are deferred and requests are batched: the server is woken once for several,
//! and takes all that lies in the ring at once.

use super::decide::{BATCHES, FORECAST_FROM, PACE_ANSWERS};
use super::send::{Sending, Sent};
use super::{Client, Limit};
use crate::clock::end_of;
use crate::error::Error;
use crate::options::{CallOptions, Mode};
use crate::payload::{Outgoing, Payload};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A job id and the result of its call.
pub type Answer = (u64, Result<Payload, Error>);

/// Number of calls for which a sleeping server is woken once. Earlier calls of a batch reach it if it is awake anyway, with the
/// batch's last call, by [`Pipeline::flush`], or when this side waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Batch {
    /// 1, 4 or 16, but at most half the depth: whatever gave the most answers per second at that size. Large payloads: 1.
    #[default]
    Auto,
    /// That many calls; 0 counts as 1.
    Of(usize),
}

/// A batch on trial.
struct Pace {
    class: u8,
    way: usize,
    begun: Instant,
    answers: usize,
}

/// A series of calls whose answers are collected later.
pub struct Pipeline {
    client: Client,
    depth: usize,
    batch: Batch,
    pace: Option<Pace>,
    /// Calls that the server may not have noticed.
    unrung: usize,
    unanswered: Vec<(u64, Limit)>,
    answered: VecDeque<Answer>,
}

impl Pipeline {
    pub(super) fn new(client: Client, depth: usize) -> Pipeline {
        Pipeline {
            client,
            depth: depth.max(1),
            batch: Batch::Auto,
            pace: None,
            unrung: 0,
            unanswered: Vec::new(),
            answered: VecDeque::new(),
        }
    }

    /// Returns the pipeline with another batch.
    #[must_use]
    pub fn with_batch(mut self, batch: Batch) -> Pipeline {
        self.batch = batch;
        self
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
        options: impl Into<CallOptions>,
    ) -> Result<u64, Error> {
        let options = options.into();
        let limit = Limit::new(options.timeout.or(self.client.0.options.timeout));
        self.submit_within(operation, data, &options, limit, None)
    }

    /// As [`submit`](Pipeline::submit), for callers with other work in between: after `patience` without room for the call it
    /// gives [`Error::Busy`]. Try again with the same `limit`, which replaces the time limit in `options`.
    ///
    /// # Errors
    ///
    /// As [`Client::call_async`].
    pub fn submit_within<'a>(
        &mut self,
        operation: &str,
        data: impl Into<Outgoing<'a>>,
        options: &CallOptions,
        limit: Limit,
        patience: Option<Duration>,
    ) -> Result<u64, Error> {
        let room_until = limit.sooner(patience);
        if self.unanswered.len() >= self.depth {
            self.flush();
        }
        while self.unanswered.len() >= self.depth {
            if !self.wait_for_one(room_until)? {
                return Err(limit.judge(Error::Busy { outstanding: self.unanswered.len() }));
            }
        }
        let data = data.into();
        let batch = self.batch_for(data.bytes());
        let last = self.unrung + 1 >= batch;
        let sending = Sending { mode: Mode::Pipelined, deadline: limit.deadline, room_until, rings: last };
        let sent = self.client.0.send(operation, &data, options, sending);
        let Sent { id, .. } = sent.map_err(|error| limit.judge(error))?;
        self.unrung = if last { 0 } else { self.unrung + 1 };
        self.unanswered.push((id, limit));
        Ok(id)
    }

    /// Wakes the server if it may not have noticed all calls.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unrung) > 0 {
            self.client.0.wake_server();
        }
    }

    fn batch_for(&mut self, bytes: u64) -> usize {
        match self.batch {
            Batch::Of(calls) => calls,
            Batch::Auto if bytes >= FORECAST_FROM || self.depth < 4 => 1,
            Batch::Auto => {
                let client = &self.client;
                let pace = self.pace.get_or_insert_with(|| {
                    let (class, way) = client.0.decisions.with(|decisions| decisions.batch(bytes));
                    Pace { class, way, begun: Instant::now(), answers: 0 }
                });
                BATCHES[pace.way].min(self.depth / 2)
            }
        }
    }

    /// Waits for the next answer, in the order in which they come; `None`: no call is left. A call that has passed its own time
    /// limit is answered by [`Error::DeadlineExceeded`]. If no answer comes within `timeout`, the error is
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
        self.flush();
        let limit = timeout.or(self.client.0.options.timeout);
        let deadline = end_of(limit);
        match self.wait_for_one(deadline)? {
            true => Ok(self.answered.pop_front()),
            false => Err(Error::DeadlineExceeded { limit: limit.unwrap_or_default() }),
        }
    }

    /// Waits until a call is answered or has used up its time, and keeps its result; `false`: `until` came first.
    fn wait_for_one(&mut self, until: Option<Instant>) -> Result<bool, Error> {
        let ids: Vec<u64> = self.unanswered.iter().map(|&(id, _)| id).collect();
        let own = self.unanswered.iter().filter_map(|(_, limit)| limit.deadline).min();
        let first = [until, own].into_iter().flatten().min();
        if let Some(answer) = self.client.0.wait_first(&ids, first)? {
            self.add_answer(answer);
            return Ok(true);
        }
        let Some(&(id, limit)) = self.unanswered.iter().find(|(_, limit)| limit.is_over()) else {
            return Ok(false);
        };
        self.client.0.abandon(id);
        self.add_answer((id, Err(limit.exceeded())));
        Ok(true)
    }

    /// Calls without an answer.
    pub fn outstanding(&self) -> usize {
        self.unanswered.len()
    }

    fn add_answer(&mut self, answer: Answer) {
        self.unanswered.retain(|&(id, _)| id != answer.0);
        self.answered.push_back(answer);
        let Some(pace) = &mut self.pace else { return };
        pace.answers += 1;
        if pace.answers == PACE_ANSWERS {
            let ns = pace.begun.elapsed().as_nanos() as f64 / PACE_ANSWERS as f64;
            let (class, way) = (pace.class, pace.way);
            self.client.0.decisions.with(|decisions| decisions.learn_batch(class, way, ns));
            self.pace = None;
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.flush();
        for &(id, _) in &self.unanswered {
            self.client.0.abandon(id);
        }
    }
}
