// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Running operations: short ones at once, long ones on handlers, the rest in a queue that can be asked about.
//!
//! - **Flow** `take` ─▶ run here, or given back to be run by this thread, or queued ─▶ `run_long` runs it and those behind it
//! - **Order** a request that is late, or not what was sent, does not reach its handler
//! - **Owner** the queue's lock is held for looking at it, never while something runs

use super::session::{Session, Views};
use super::{KNOWN_RUNS, Pace, Shared, Task};
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::message::{FailureCode, Kind, Message, STATE_QUEUED, STATE_TAKEN};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

#[derive(Default)]
pub(super) struct Queue {
    pub(super) tasks: VecDeque<Task>,
    /// Long operations that run now.
    running: Vec<Running>,
}

/// A long operation that runs.
pub(super) struct Running {
    pub(super) session: Arc<Session>,
    pub(super) job: u64,
    pub(super) views: Arc<Views>,
}

impl Shared {
    /// Runs a request here if its operation is short. A long one is given back to be run by this thread, when it has
    /// handed the lead on, or is queued if as many run as may.
    pub(super) fn take(&self, task: Task) -> Option<Task> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let limit = self.options.inline_limit.as_nanos();
        let known = task.operation.runs.load(Ordering::Relaxed) >= KNOWN_RUNS;
        let short = known && u128::from(task.operation.average_ns.load(Ordering::Relaxed)) < limit;
        if short || self.options.handlers == 0 {
            self.run(task, false);
            return None;
        }
        let mut queue = self.queue.lock();
        if queue.running.len() >= self.options.handlers {
            queue.tasks.push_back(task);
            drop(queue);
            self.publish_queue();
            return None;
        }
        queue.running.push(task.responder.running());
        Some(task)
    }

    /// Returns the message that tells the state of a job. This is the query side of Rocket's server (§IV-C): the client asks,
    /// instead of polling result flags.
    pub(super) fn state_of(&self, session: &Arc<Session>, job: u64) -> Message {
        let queue = self.queue.lock();
        let mut message = Message::new(Kind::State, job);
        if let Some(ahead) = queue.tasks.iter().position(|task| task.responder.is_for(session, job)) {
            message.status = STATE_QUEUED;
            message.bytes = ahead as u64;
            return message;
        }
        message.status = STATE_TAKEN;
        let mut running = queue.running.iter();
        if let Some(running) = running.find(|task| task.job == job && Arc::ptr_eq(&task.session, session)) {
            message.bytes = running.views.done.load(Ordering::Relaxed);
            message.offset = running.views.total.load(Ordering::Relaxed);
        }
        message
    }

    /// Tells all clients how many handlers work and how many requests wait for one.
    pub(super) fn publish_queue(&self) {
        let queued = self.queue.with(|queue| queue.tasks.len());
        let sessions: Vec<Arc<Session>> = self.watchers.with(|watchers| {
            watchers.retain(|session| session.strong_count() > 0);
            watchers.iter().filter_map(Weak::upgrade).collect()
        });
        // No lock is held here, so the last reference to a session may be dropped.
        for session in sessions.iter().filter(|session| !session.is_dead()) {
            session.publish_concurrency(&self.counters);
            session.publish_queue(self.options.handlers, queued);
        }
    }

    /// Runs a long task, and those that queued up behind it.
    pub(super) fn run_long(&self, task: Task) {
        let mut next = Some(task);
        while let Some(task) = next {
            let Running { session, job, .. } = task.responder.running();
            self.run(task, true);
            let ended;
            (ended, next) = self.queue.with(|queue| {
                let mut own = queue.running.iter();
                let own = own.position(|task| task.job == job && Arc::ptr_eq(&task.session, &session));
                let ended = own.map(|at| queue.running.swap_remove(at));
                let next = match self.is_stopped() {
                    true => None,
                    false => queue.tasks.pop_front(),
                };
                queue.running.extend(next.iter().map(|task| task.responder.running()));
                (ended, next)
            });
            drop(ended);
            self.publish_queue();
        }
    }

    fn run(&self, task: Task, long: bool) {
        let Task { operation, request, mut responder } = task;
        if responder.is_pointless() {
            return;
        }
        let start = Instant::now();
        if request.is_late(start) {
            drop(request);
            responder.fail_late();
            return;
        }
        let request = match request.received(self.options.trust) {
            Ok(request) => request,
            Err(error) => {
                let code = match error {
                    Error::PeerFault { .. } => FailureCode::BadRequest,
                    _ => FailureCode::OutOfMemory,
                };
                return responder.fail_as(code, &error.to_string());
            }
        };
        if let Some(text) = request.is_corrupt() {
            drop(request);
            responder.fail_as(FailureCode::Corrupt, &text);
            return;
        }
        self.counters.busy.fetch_add(1, Ordering::Relaxed);
        responder.start(start);
        let session = responder.session();
        match long {
            true => self.publish_queue(),
            false => session.publish_concurrency(&self.counters),
        }
        // A panic drops the responder, which fails the call; there is nothing more to do about it.
        reach(Step::HandlerEntered);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (operation.handler)(request, responder);
        }));
        reach(Step::HandlerLeft);
        self.counters.busy.fetch_sub(1, Ordering::Relaxed);
        session.publish_concurrency(&self.counters);
        if operation.behaviour.pace != Pace::Measured {
            return;
        }
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // A lost update between two threads costs one sample of an average.
        let average = operation.average_ns.load(Ordering::Relaxed);
        let runs = operation.runs.fetch_add(1, Ordering::Relaxed);
        let next = if runs == 0 { ns } else { average - average / 4 + ns / 4 };
        operation.average_ns.store(next, Ordering::Relaxed);
    }
}
