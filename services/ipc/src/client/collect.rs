// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collecting: take answers out of the response ring, match them with their calls, wait for those still to come.
//!
//! Flow    ring ─▶ `accept` ─▶ `Jobs` ─▶ whoever waits for the job
//! Order   one thread at a time collects for all (it holds `collecting`); the others sleep on the condition variable and
//!         one of them takes over when it leaves
//! Owner   an abandoned job keeps its request slot until the server has answered: the server may still be reading

use super::answer::{checked, failure};
use super::job::{JobState, Limit};
use super::jobs::{Jobs, Waiting};
use super::pipeline::Answer;
use super::send::Expect;
use super::{Inner, lock};
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::layout::{CLIENT_PARK_AT, RESPONSE_BLOCKED_AT};
use crate::message::{FLAG_RETAINED, Kind, Message, STATE_QUEUED, STATE_TAKEN};
use crate::payload::Payload;
use crate::ring::Consumer;
use memlift_engine::complete::{FdParker, ParkWord, Waited, Waiter, ring};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// The reading end and how to wait at it.
pub(crate) struct Collector {
    pub(super) consumer: Consumer,
    pub(super) waiter: Waiter,
}

/// Why a session ended.
#[derive(Clone, Debug)]
pub(crate) enum Broken {
    /// The server hung up.
    Died,
    /// The server wrote nonsense.
    Fault(String),
    /// The client was closed.
    Closed,
}

impl Broken {
    pub(super) fn fault(error: &Error) -> Broken {
        match error {
            Error::PeerFault { what } => Broken::Fault(what.clone()),
            Error::PeerDied { .. } => Broken::Died,
            other => Broken::Fault(other.to_string()),
        }
    }

    fn error(&self) -> Error {
        match self {
            Broken::Died => Error::PeerDied { peer: "server", doing: None },
            Broken::Fault(what) => Error::PeerFault { what: what.clone() },
            Broken::Closed => Error::Closed { what: "client" },
        }
    }
}

impl Inner {
    /// Whether the session can be used in this process.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.socket.is_ours() {
            return Err(Error::Forked { pid: self.socket.pid() });
        }
        match self.broken.get() {
            Some(broken) => Err(broken.error()),
            None => Ok(()),
        }
    }

    /// Ends the session: the socket is shut, so that the server learns of it; all unanswered calls fail.
    pub(super) fn break_off(&self, why: Broken) {
        if !self.socket.is_ours() {
            return;
        }
        let _ = self.broken.set(why);
        let broken = self.broken.get().expect("set above or before");
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let mut jobs = lock(&self.jobs);
        for (id, waiting) in std::mem::take(&mut jobs.waiting) {
            if !waiting.abandoned {
                jobs.done.insert(id, Err(broken.error()));
            }
        }
        jobs.retained.clear();
        drop(jobs);
        self.changed.notify_all();
        // A collector of this process may be asleep on the event.
        ParkWord::from_atomic(self.word(CLIENT_PARK_AT)).wake(|| ring(&self.own_event));
    }

    /// Waits for a call's answer.
    pub(super) fn wait(self: &Arc<Self>, id: u64, limit: Limit, expect: Expect) -> Result<Payload, Error> {
        if self.wait_done(id, limit.deadline, expect)? {
            return lock(&self.jobs).done.remove(&id).unwrap_or(Err(Error::Closed { what: "job" }));
        }
        self.abandon(id);
        Err(Error::DeadlineExceeded { limit: limit.limit.unwrap_or_default() })
    }

    /// Waits until the call `id` is done; `false`: the deadline came first.
    pub(super) fn wait_done(
        self: &Arc<Self>,
        id: u64,
        deadline: Option<Instant>,
        expect: Expect,
    ) -> Result<bool, Error> {
        self.wait_until(deadline, expect, |jobs| {
            jobs.done.contains_key(&id) || !jobs.waiting.contains_key(&id)
        })
    }

    /// Asks the server what has become of the call `id`; `None`: the deadline came first.
    pub(super) fn ask(
        self: &Arc<Self>,
        id: u64,
        deadline: Option<Instant>,
    ) -> Result<Option<JobState>, Error> {
        let known = |jobs: &Jobs| match jobs.waiting.get(&id) {
            Some(waiting) => waiting.state,
            None => Some(JobState::Answered),
        };
        match lock(&self.jobs).waiting.get_mut(&id) {
            Some(waiting) => waiting.state = None,
            None => return Ok(Some(JobState::Answered)),
        }
        self.publish(&Message::new(Kind::Query, id), deadline, true)?;
        self.wait_until(deadline, Expect::Unknown, |jobs| known(jobs).is_some())?;
        Ok(known(&lock(&self.jobs)))
    }

    /// Waits until any of `ids` is done and takes it; `None`: the deadline came first.
    pub(super) fn wait_first(
        self: &Arc<Self>,
        ids: &[u64],
        deadline: Option<Instant>,
    ) -> Result<Option<Answer>, Error> {
        let found = |jobs: &Jobs| ids.iter().copied().find(|id| jobs.done.contains_key(id));
        self.wait_until(deadline, Expect::Unknown, |jobs| found(jobs).is_some())?;
        let mut jobs = lock(&self.jobs);
        let id = found(&jobs);
        Ok(id.and_then(|id| jobs.done.remove(&id).map(|answer| (id, answer))))
    }

    /// Waits until some call is answered (by its reply, or by slots coming back); `false`: the deadline came first.
    pub(super) fn wait_any(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        let before = lock(&self.jobs).outstanding();
        self.wait_until(deadline, Expect::Unknown, |jobs| jobs.outstanding() < before)
    }

    /// Whether a call is done, after collecting what is there.
    pub(super) fn poll(self: &Arc<Self>, id: u64) -> bool {
        let now = Some(Instant::now());
        self.wait_done(id, now, Expect::Unknown).unwrap_or(true)
    }

    /// Nobody will ask for the answer of `id`.
    pub(super) fn abandon(&self, id: u64) {
        let done = {
            let mut jobs = lock(&self.jobs);
            if let Some(waiting) = jobs.waiting.get_mut(&id) {
                waiting.abandoned = true;
            }
            jobs.done.remove(&id)
        };
        // Dropped outside the lock: a payload's lease takes locks of its own.
        drop(done);
    }

    fn wait_until(
        &self,
        deadline: Option<Instant>,
        expect: Expect,
        done: impl Fn(&Jobs) -> bool,
    ) -> Result<bool, Error> {
        let mut jobs = lock(&self.jobs);
        loop {
            if done(&jobs) {
                return Ok(true);
            }
            self.check()?;
            if jobs.collecting {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return Ok(false);
                }
                jobs.sleeping += 1;
                jobs = match left {
                    None => self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        self.changed.wait_timeout(jobs, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                jobs.sleeping -= 1;
                continue;
            }
            jobs.collecting = true;
            drop(jobs);
            let collected = self.collect(deadline, expect, &done);
            jobs = lock(&self.jobs);
            jobs.collecting = false;
            self.tell(&jobs);
            match collected {
                Ok(true) => {}
                Ok(false) => return Ok(done(&jobs)),
                Err(error) => {
                    drop(jobs);
                    self.break_off(Broken::fault(&error));
                    jobs = lock(&self.jobs);
                    if done(&jobs) {
                        return Ok(true);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Wakes those who wait for the one that collects: a system call, which is saved where there is nobody.
    fn tell(&self, jobs: &Jobs) {
        if jobs.sleeping > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes answers until `done`; `false`: the deadline came first.
    fn collect(
        &self,
        deadline: Option<Instant>,
        expect: Expect,
        done: &impl Fn(&Jobs) -> bool,
    ) -> Result<bool, Error> {
        let mut collector = lock(&self.collector);
        let Collector { consumer, waiter } = &mut *collector;
        let parker =
            FdParker::new(ParkWord::from_atomic(self.word(CLIENT_PARK_AT)), &self.own_event, &self.socket);
        loop {
            let mut changed = false;
            while let Some(message) = consumer.pop()? {
                changed = true;
                self.accept(&message)?;
            }
            if changed {
                let blocked = self.word(RESPONSE_BLOCKED_AT);
                if blocked.load(Ordering::Acquire) != 0 && blocked.swap(0, Ordering::AcqRel) != 0 {
                    ring(&self.server_event);
                }
                let jobs = lock(&self.jobs);
                if done(&jobs) {
                    return Ok(true);
                }
                self.tell(&jobs);
            }
            if self.broken.get().is_some() {
                return Ok(true);
            }
            let ready = || consumer.is_ready() || self.broken.get().is_some();
            let predicted = expect.predicted_ns(self.options.wait.spin_max);
            match waiter.wait(&parker, consumer.line(), ready, predicted, deadline) {
                Waited::Ready => {}
                Waited::TimedOut => return Ok(false),
                Waited::Broken(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Err(Error::PeerDied { peer: "server", doing: Some("waiting for its answer") });
                }
                Waited::Broken(source) => return Err(Error::System { doing: "waiting", source }),
            }
        }
    }

    pub(super) fn accept(&self, message: &Message) -> Result<(), Error> {
        let kind = message.kind()?;
        match kind {
            Kind::Reply | Kind::Failure => {
                let (operation, no_room, measured) = match lock(&self.jobs).waiting.get_mut(&message.job) {
                    Some(waiting) => (
                        std::mem::take(&mut waiting.operation),
                        waiting.no_room.take(),
                        waiting.measured.take(),
                    ),
                    None => {
                        let what = format!("an answer to job {}, which waits for none", message.job);
                        return Err(Error::peer_fault(what));
                    }
                };
                let payload = self.view(message)?;
                reach(Step::AnswerJudged);
                let failed = kind == Kind::Failure;
                if failed {
                    self.row.error()
                } else {
                    self.row.reply(payload.bytes(), false)
                }
                if let Some(measured) = measured.filter(|_| !failed) {
                    self.learn(&measured, message);
                }
                let answer = match failed {
                    true => Err(failure(message.status, operation.into(), &payload, no_room)?),
                    false => checked(message, operation, payload, self.message_bytes_max),
                };
                // One step for whoever looks: waiting until now, done from now on.
                let mut jobs = lock(&self.jobs);
                let unwanted = match jobs.waiting.remove(&message.job) {
                    Some(Waiting { slot, abandoned, .. }) => {
                        if let (Some(slot), true) = (slot, message.flags & FLAG_RETAINED != 0) {
                            jobs.retained.insert(message.job, slot);
                        }
                        if abandoned { Some(answer) } else { jobs.done.insert(message.job, answer) }
                    }
                    // The session was broken off meanwhile.
                    None => Some(answer),
                };
                drop(jobs);
                reach(Step::AnswerMatched);
                // Its lease takes locks of its own.
                drop(unwanted);
                Ok(())
            }
            Kind::Release => match lock(&self.jobs).retained.remove(&message.job) {
                Some(slot) => {
                    drop(slot);
                    reach(Step::RequestSlotFreed);
                    Ok(())
                }
                None => {
                    Err(Error::peer_fault(format!("a release of job {}, which holds nothing", message.job)))
                }
            },
            Kind::NeedRoom => self.make_room(message),
            Kind::State => {
                // It may have been answered, or given up, meanwhile.
                if let Some(waiting) = lock(&self.jobs).waiting.get_mut(&message.job) {
                    waiting.state = Some(match message.status {
                        STATE_QUEUED => JobState::Queued { ahead: message.bytes },
                        STATE_TAKEN => JobState::Taken { done: message.bytes, total: message.offset },
                        other => return Err(Error::peer_fault(format!("job state {other}"))),
                    });
                }
                Ok(())
            }
            Kind::Call | Kind::NoRoom | Kind::Query => {
                Err(Error::peer_fault("a client's message from a server"))
            }
        }
    }
}
