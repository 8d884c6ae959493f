// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collecting: take answers out of the response ring, match them with their calls, wait for those still to come.
//!
//! - **Flow** ring ─▶ `accept` ─▶ `Jobs` ─▶ the thread that waits for the job
//! - **Order** one thread at a time collects for all (it holds `collecting`); the others sleep on the condition variable and
//!   one of them takes over when it leaves. It waits for answers only: what the server has no room for is owed
//! - **Owner** an abandoned job keeps its request slot until the server has answered: the server may still be reading

use super::Inner;
use super::answer::{Responses, checked, failure};
use super::job::{JobState, Limit};
use super::jobs::{Jobs, Stored, Waiting};
use super::pipeline::Answer;
use super::send::Expect;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::handshake::AddSegment;
use crate::layout::{CLIENT_PARK_AT, RESPONSE_BLOCKED_AT};
use crate::message::{FLAG_CRC, FLAG_PACKED, FLAG_RETAINED, Kind, Message, STATE_QUEUED, STATE_TAKEN};
use crate::payload::Payload;
use crate::pool::Pool;
use crate::rank::holds_none;
use crate::ring::Consumer;
use bytemuck::Zeroable;
use memlift_ground::complete::{FdParker, ParkWord, Waited, Waiter, ring};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Consumer of the response ring, its waiter, and what is owed to the server.
pub(crate) struct Collector {
    pub(super) consumer: Consumer,
    pub(super) waiter: Waiter,
    pub(super) owed: VecDeque<Owed>,
}

/// An answer to the server that it had no room for yet. The thread that collects sends it, and never waits for it.
pub(super) enum Owed {
    /// By the socket, with its descriptor.
    Segment(AddSegment, OwnedFd),
    /// By the ring.
    Message(Message),
}

/// Why a thread has ended to collect.
enum Collected {
    /// The answer that it collected for is there, and was not taken.
    Done,
    /// The session is over.
    Changed,
    /// The deadline has passed.
    Late,
}

/// The call whose answer the collecting thread waits for. Its answer does not go through the table of answers.
pub(super) struct Own {
    id: u64,
    answer: Option<Stored>,
}

impl Own {
    /// Stands for no call: none has the number 0.
    pub(super) fn none() -> Own {
        Own { id: 0, answer: None }
    }
}

/// Interval at which owed messages are tried again while the thread waits for answers.
const OWED_AGAIN: Duration = Duration::from_millis(2);

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

    pub(super) fn error(&self) -> Error {
        match self {
            Broken::Died => Error::PeerDied { peer: "server", doing: None },
            Broken::Fault(what) => Error::PeerFault { what: what.clone() },
            Broken::Closed => Error::Closed { what: "client" },
        }
    }
}

/// A thread that panics while it collects makes room for another one.
struct Panicked<'a>(&'a Inner);

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.jobs.with(|jobs| jobs.collecting = false);
            self.0.changed.notify_all();
        }
    }
}

impl Inner {
    /// Returns an error if the session cannot be used in this process.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.socket.is_ours() {
            return Err(Error::Forked { pid: self.socket.pid() });
        }
        match self.broken.get() {
            Some(broken) => Err(broken.error()),
            None => Ok(()),
        }
    }

    /// Ends the session: the socket is shut, so that the server learns of it; all unanswered calls fail, and memory that nobody
    /// views is given back.
    pub(super) fn break_off(&self, why: Broken) {
        holds_none("ending a session");
        if !self.socket.is_ours() {
            return;
        }
        let died = matches!(why, Broken::Died);
        if self.broken.set(why).is_ok() && died {
            self.row.peer_died();
        }
        let broken = self.broken.get().expect("set above or before");
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let ended = self.jobs.with(|jobs| jobs.end(broken));
        let requests = self.requests.pool.with(Pool::end);
        let responses = self.responses.with(Responses::end);
        // Their slots and mappings go here, where no lock is held.
        drop((ended, requests, responses));
        self.row.set_pool_bytes(0);
        self.changed.notify_all();
        self.requests.grown.notify_all();
        // A collector of this process may be asleep on the event.
        ParkWord::from_atomic(self.word(CLIENT_PARK_AT)).wake(|| ring(&self.own_event));
    }

    /// Waits for a call's answer.
    pub(super) fn wait(self: &Arc<Self>, id: u64, limit: Limit, expect: Expect) -> Result<Payload, Error> {
        let mut own = Own { id, answer: None };
        let done = |jobs: &Jobs| jobs.done.contains_key(&id) || !jobs.waiting.contains_key(&id);
        let is_done = self.wait_until_own(limit.deadline, expect, done, &mut own);
        if let Some(answer) = own.answer {
            return answer.map_err(|error| *error);
        }
        if is_done? {
            let answer = self.jobs.with(|jobs| jobs.done.remove(&id));
            return answer
                .map_or(Err(Error::Closed { what: "job" }), |answer| answer.map_err(|error| *error));
        }
        self.abandon(id);
        Err(limit.exceeded())
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
        let is_waiting = self.jobs.with(|jobs| match jobs.waiting.get_mut(&id) {
            Some(waiting) => {
                waiting.state = None;
                true
            }
            None => false,
        });
        if !is_waiting {
            return Ok(Some(JobState::Answered));
        }
        self.publish(&Message::new(Kind::Query, id), deadline, true)?;
        self.wait_until(deadline, Expect::Unknown, |jobs| known(jobs).is_some())?;
        Ok(self.jobs.with(|jobs| known(jobs)))
    }

    /// Waits until any of `ids` is done and takes it; `None`: the deadline came first.
    pub(super) fn wait_first(
        self: &Arc<Self>,
        ids: &[u64],
        deadline: Option<Instant>,
    ) -> Result<Option<Answer>, Error> {
        let found = |jobs: &Jobs| ids.iter().copied().find(|id| jobs.done.contains_key(id));
        self.wait_until(deadline, Expect::Unknown, |jobs| found(jobs).is_some())?;
        Ok(self.jobs.with(|jobs| {
            let id = found(jobs)?;
            jobs.done.remove(&id).map(|answer| (id, answer.map_err(|error| *error)))
        }))
    }

    /// Waits until some call is answered (by its reply, or by slots coming back); `false`: the deadline came first.
    pub(super) fn wait_any(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        let before = self.outstanding();
        self.wait_until(deadline, Expect::Unknown, |jobs| jobs.outstanding() < before)
    }

    /// Returns true if a call is done, after collecting what is there.
    pub(super) fn poll(self: &Arc<Self>, id: u64) -> bool {
        let now = Some(Instant::now());
        self.wait_done(id, now, Expect::Unknown).unwrap_or(true)
    }

    /// Abandons the call `id`: nobody will ask for its answer.
    pub(super) fn abandon(&self, id: u64) {
        // Its lease takes locks of its own.
        drop(self.jobs.with(|jobs| jobs.abandon(id)));
    }

    /// Calls without an answer.
    pub(super) fn outstanding(&self) -> usize {
        self.jobs.with(|jobs| jobs.outstanding())
    }

    pub(super) fn wait_until(
        &self,
        deadline: Option<Instant>,
        expect: Expect,
        done: impl Fn(&Jobs) -> bool,
    ) -> Result<bool, Error> {
        self.wait_until_own(deadline, expect, done, &mut Own::none())
    }

    /// As [`wait_until`](Inner::wait_until). If this thread collects the answer of its own call, `own` has it, whatever is returned.
    fn wait_until_own(
        &self,
        deadline: Option<Instant>,
        expect: Expect,
        done: impl Fn(&Jobs) -> bool,
        own: &mut Own,
    ) -> Result<bool, Error> {
        let mut jobs = self.jobs.lock();
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
                jobs = jobs.wait(&self.changed, left);
                jobs.sleeping -= 1;
                continue;
            }
            jobs.collecting = true;
            drop(jobs);
            let panicked = Panicked(self);
            let collected = self.collect(deadline, expect, &done, own);
            drop(panicked);
            jobs = self.jobs.lock();
            jobs.collecting = false;
            self.tell(&jobs);
            match collected {
                Ok(Collected::Done) => return Ok(true),
                Ok(Collected::Changed) => {}
                Ok(Collected::Late) => return Ok(done(&jobs)),
                Err(error) => {
                    drop(jobs);
                    self.break_off(Broken::fault(&error));
                    jobs = self.jobs.lock();
                    if done(&jobs) {
                        return Ok(true);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Wakes the threads that wait for the collecting one. Where there are none, the system call is saved.
    fn tell(&self, jobs: &Jobs) {
        if jobs.sleeping > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes answers until `done`.
    fn collect(
        &self,
        deadline: Option<Instant>,
        expect: Expect,
        done: &impl Fn(&Jobs) -> bool,
        own: &mut Own,
    ) -> Result<Collected, Error> {
        let mut collector = self.collector.lock();
        let before = collector.waiter.count();
        let collected = self.collect_with(&mut collector, deadline, expect, done, own);
        if collector.waiter.count() != before {
            self.waits.with(|waits| *waits = collector.waiter.stats());
        }
        collected
    }

    fn collect_with(
        &self,
        collector: &mut Collector,
        deadline: Option<Instant>,
        expect: Expect,
        done: &impl Fn(&Jobs) -> bool,
        own: &mut Own,
    ) -> Result<Collected, Error> {
        let parker =
            FdParker::new(ParkWord::from_atomic(self.word(CLIENT_PARK_AT)), &self.own_event, &self.socket);
        loop {
            if self.take_answers(collector, own)? {
                if own.answer.is_some() {
                    return Ok(Collected::Done);
                }
                let jobs = self.jobs.lock();
                if done(&jobs) {
                    return Ok(Collected::Done);
                }
                self.tell(&jobs);
            }
            if self.broken.get().is_some() {
                return Ok(Collected::Changed);
            }
            let until = match collector.owed.is_empty() {
                true => deadline,
                false => {
                    let again = Instant::now() + OWED_AGAIN;
                    Some(deadline.map_or(again, |deadline| deadline.min(again)))
                }
            };
            let Collector { consumer, waiter, .. } = collector;
            let ready = || consumer.is_ready() || self.broken.get().is_some();
            let predicted = expect.predicted_ns(self.options.wait.spin_max);
            match waiter.wait(&parker, consumer.line(), ready, predicted, until) {
                Waited::Ready => {}
                Waited::TimedOut if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                Waited::TimedOut => return Ok(Collected::Late),
                Waited::Broken(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Err(Error::PeerDied { peer: "server", doing: Some("waiting for its answer") });
                }
                Waited::Broken(source) => return Err(Error::System { doing: "waiting", source }),
            }
        }
    }

    /// Takes all messages from the response ring, and sends what is owed; gives true if there was a message.
    pub(super) fn take_answers(&self, collector: &mut Collector, own: &mut Own) -> Result<bool, Error> {
        let (mut changed, mut message) = (false, Message::zeroed());
        while collector.consumer.pop(&mut message)? {
            changed = true;
            self.accept(&message, &mut collector.owed, own)?;
        }
        if changed {
            let blocked = self.word(RESPONSE_BLOCKED_AT);
            if blocked.load(Ordering::Acquire) != 0 && blocked.swap(0, Ordering::AcqRel) != 0 {
                ring(&self.server_event);
            }
        }
        while let Some(owed) = collector.owed.front() {
            let sent = match owed {
                Owed::Segment(packet, fd) => self.announce_now(packet, fd.as_fd())?,
                Owed::Message(message) => self.publish_now(message)?,
            };
            if !sent {
                break;
            }
            if let Some(Owed::Segment(packet, _)) = collector.owed.pop_front() {
                self.responses.with(|responses| responses.announced(packet.index));
            }
        }
        Ok(changed)
    }

    fn accept(&self, message: &Message, owed: &mut VecDeque<Owed>, own: &mut Own) -> Result<(), Error> {
        let kind = message.kind()?;
        match kind {
            Kind::Reply | Kind::Failure => {
                let nobody = || {
                    let what = format!("an answer to job {}, which waits for none", message.job);
                    Error::peer_fault(what)
                };
                let failed = kind == Kind::Failure;
                // A check or a failure needs these parts of the call; most answers need nothing.
                let is_plain = !failed && message.flags & (FLAG_CRC | FLAG_PACKED) == 0;
                let known = match is_plain {
                    true => None,
                    false => {
                        let taken = self.jobs.with(|jobs| {
                            let waiting = jobs.waiting.get_mut(&message.job)?;
                            Some((std::mem::take(&mut waiting.operation), waiting.no_room.take()))
                        });
                        Some(taken.ok_or_else(nobody)?)
                    }
                };
                let payload = self.view(message)?;
                reach(Step::AnswerJudged);
                if failed {
                    self.row.error()
                } else {
                    self.row.reply(payload.bytes())
                }
                let answer = match known {
                    None => Ok(payload),
                    Some((operation, no_room)) if failed => {
                        Err(Box::new(failure(message.status, operation.into(), &payload, no_room)?))
                    }
                    Some((operation, _)) => {
                        checked(message, operation, payload, self.message_bytes_max).map_err(Box::new)
                    }
                };
                // In one step under the lock: other threads see the call as waiting or as done.
                let (waited, measured, unwanted) =
                    self.jobs.with(|jobs| match jobs.waiting.remove(&message.job) {
                        Some(Waiting { slot, abandoned, measured, .. }) => {
                            let slot = match (slot, message.flags & FLAG_RETAINED != 0) {
                                (Some(slot), true) => jobs.retained.insert(message.job, slot),
                                (slot, _) => slot,
                            };
                            let answer = if abandoned {
                                Some(answer)
                            } else if own.id == message.job {
                                // Nobody else asks for it.
                                own.answer.replace(answer)
                            } else {
                                jobs.done.insert(message.job, answer)
                            };
                            (true, measured, (slot, answer))
                        }
                        None => (false, None, (None, Some(answer))),
                    });
                reach(Step::AnswerMatched);
                // A slot and a lease take locks of their own.
                drop(unwanted);
                if !waited && is_plain {
                    return Err(nobody());
                }
                // Of other answers the call was found above: then the session was broken off meanwhile.
                if let Some(measured) = measured.filter(|_| !failed) {
                    self.learn(&measured, message);
                }
                Ok(())
            }
            Kind::Release => match self.jobs.with(|jobs| jobs.retained.remove(&message.job)) {
                Some(slot) => {
                    drop(slot);
                    reach(Step::RequestSlotFreed);
                    Ok(())
                }
                None => {
                    Err(Error::peer_fault(format!("a release of job {}, which holds nothing", message.job)))
                }
            },
            Kind::NeedRoom => self.make_room(message, owed),
            Kind::Retired => self.retired(message),
            Kind::State => {
                let state = match message.status {
                    STATE_QUEUED => JobState::Queued { ahead: message.bytes },
                    STATE_TAKEN => JobState::Taken { done: message.bytes, total: message.offset },
                    other => return Err(Error::peer_fault(format!("job state {other}"))),
                };
                self.jobs.with(|jobs| {
                    // It may have been answered, or given up, meanwhile.
                    if let Some(waiting) = jobs.waiting.get_mut(&message.job) {
                        waiting.state = Some(state);
                    }
                });
                Ok(())
            }
            Kind::Call | Kind::NoRoom | Kind::Query | Kind::Retire => {
                Err(Error::peer_fault("a client's message from a server"))
            }
        }
    }
}
