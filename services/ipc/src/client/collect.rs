// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collecting: take answers out of the response ring, match them with their calls, wait for those still to come.
//!
//! Flow    ring ─▶ `accept` ─▶ `Jobs` ─▶ whoever waits for the job
//! Order   one thread at a time collects for all (it holds `collecting`); the others sleep on the condition variable and
//!         one of them takes over when it leaves
//! Owner   an abandoned job keeps its request slot until the server has answered: the server may still be reading

use super::decide::Trial;
use super::pipeline::Answer;
use super::send::{Expect, RequestSlot};
use super::{Inner, lock};
use crate::error::{Error, RemoteFailure};
use crate::failpoint::{Step, reach};
use crate::handshake::RESPONSE;
use crate::layout::{CLIENT_PARK_AT, RESPONSE_BLOCKED_AT, SEGMENTS_MAX};
use crate::message::{FLAG_CRC, FLAG_RETAINED, FailureCode, Kind, Message, STATE_QUEUED, STATE_TAKEN};
use crate::number_map::NumberMap;
use crate::payload::Payload;
use crate::pool::Pool;
use crate::ring::Consumer;
use memlift_engine::complete::{FdParker, ParkWord, Waited, Waiter, ring};
use memlift_engine::region::RegionOffset;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

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

/// A call that has no answer yet.
pub(crate) struct Waiting {
    operation: Box<str>,
    pub(super) slot: Option<Arc<RequestSlot>>,
    abandoned: bool,
    no_room: Option<Error>,
    /// What the server said when it was asked about it.
    state: Option<JobState>,
    measured: Option<Box<Measured>>,
}

/// What is learned from a call's answer.
struct Measured {
    operation: u64,
    bytes: u64,
    trial: Option<Trial>,
    copy_ns: u64,
    sent: Instant,
}

impl Waiting {
    pub(super) fn new(operation: &str) -> Waiting {
        Waiting {
            operation: operation.into(),
            slot: None,
            abandoned: false,
            no_room: None,
            state: None,
            measured: None,
        }
    }

    /// Learns from the call, whose data was copied since `begun`.
    pub(super) fn measure(&mut self, operation: u64, bytes: u64, trial: Option<Trial>, begun: Instant) {
        let sent = Instant::now();
        let copy_ns = u64::try_from((sent - begun).as_nanos()).unwrap_or(u64::MAX);
        self.measured = Some(Box::new(Measured { operation, bytes, trial, copy_ns, sent }));
    }

    /// When it was sent, if that is kept.
    pub(super) fn sent_at(&self) -> Option<Instant> {
        self.measured.as_ref().map(|measured| measured.sent)
    }
}

/// What has become of a call, as the server says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobState {
    /// It waits for a handler, behind so many others.
    Queued {
        /// Requests that will have one before it.
        ahead: u64,
    },
    /// A handler has it.
    Taken {
        /// What is done, in the handler's unit; 0 if it says nothing.
        done: u64,
        /// Of so much; 0 if it says nothing.
        total: u64,
    },
    /// The answer is here (or was taken already).
    Answered,
}

/// The calls of a session.
#[derive(Default)]
pub(crate) struct Jobs {
    waiting: NumberMap<u64, Waiting>,
    done: NumberMap<u64, Result<Payload, Error>>,
    /// Slots that the server still views after it has answered.
    retained: NumberMap<u64, Arc<RequestSlot>>,
    /// Whether some thread collects.
    collecting: bool,
}

impl Jobs {
    /// Calls without an answer.
    pub(super) fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn start(&mut self, id: u64, waiting: Waiting) {
        self.waiting.insert(id, waiting);
    }

    /// Everything that is done and was not asked for.
    pub(super) fn take_done(&mut self) -> Vec<(u64, Result<Payload, Error>)> {
        self.done.drain().collect()
    }

    pub(super) fn forget(&mut self, id: u64) {
        self.waiting.remove(&id);
        self.done.remove(&id);
    }
}

/// Gives a response slot back to the server when the last view of it is gone.
struct ResponseLease {
    inner: Weak<Inner>,
    release: Message,
}

impl Drop for ResponseLease {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.release(self.release);
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
    pub(super) fn wait(
        self: &Arc<Self>,
        id: u64,
        deadline: Option<Instant>,
        limit: Option<Duration>,
        expect: Expect,
    ) -> Result<Payload, Error> {
        if self.wait_done(id, deadline, expect)? {
            return lock(&self.jobs).done.remove(&id).unwrap_or(Err(Error::Closed { what: "job" }));
        }
        self.abandon(id);
        Err(Error::DeadlineExceeded { limit: limit.unwrap_or_default() })
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
                jobs = match deadline {
                    None => self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                    Some(deadline) => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            return Ok(false);
                        }
                        self.changed.wait_timeout(jobs, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            jobs.collecting = true;
            drop(jobs);
            let collected = self.collect(deadline, expect, &done);
            jobs = lock(&self.jobs);
            jobs.collecting = false;
            self.changed.notify_all();
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
                if done(&lock(&self.jobs)) {
                    return Ok(true);
                }
                self.changed.notify_all();
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
                    false => checked(message, operation, payload),
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

    fn learn(&self, measured: &Measured, message: &Message) {
        let mut decisions = lock(&self.decisions);
        decisions.learn_wait(measured.operation, measured.bytes, measured.sent.elapsed());
        if let Some(trial) = &measured.trial {
            decisions.learn(trial, measured.copy_ns, message.took_ns);
        }
    }

    /// A view of a payload in a response segment.
    fn view(&self, message: &Message) -> Result<Payload, Error> {
        let shape = message.shape()?;
        if message.bytes == 0 {
            return Ok(Payload::empty(shape));
        }
        let region = {
            let segments = self.responses.read().unwrap_or_else(PoisonError::into_inner);
            segments.get(message.segment as usize).cloned()
        };
        let region =
            region.ok_or_else(|| Error::peer_fault(format!("response segment {}", message.segment)))?;
        let window = region
            .window(RegionOffset(message.offset), message.bytes)
            .map_err(|error| Error::peer_fault(error.to_string()))?;
        let pointer = window.as_ptr();
        let mut release = Message::new(Kind::Release, message.job);
        release.segment = message.segment;
        release.offset = message.offset;
        let lease = Arc::new(ResponseLease { inner: self.own.clone(), release });
        Ok(Payload::view(shape, message.bytes, pointer, region, lease))
    }

    /// The server has no room for an answer: give it a segment, or say that there is none.
    fn make_room(&self, message: &Message) -> Result<(), Error> {
        let made = self.grow_responses(message.bytes);
        if let Err(error) = made {
            match lock(&self.jobs).waiting.get_mut(&message.job) {
                Some(waiting) => waiting.no_room = Some(error),
                None => return Err(Error::peer_fault("room wanted for a job that waits for nothing")),
            }
            return self.publish(&Message::new(Kind::NoRoom, message.job), None, true);
        }
        // The server learns of it by its socket, which it looks at even when asleep.
        Ok(())
    }

    fn grow_responses(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.message_bytes_max {
            return Err(Error::MessageTooLarge { bytes, limit: self.message_bytes_max });
        }
        let total: u64 = {
            let segments = self.responses.read().unwrap_or_else(PoisonError::into_inner);
            if segments.len() >= SEGMENTS_MAX {
                return Err(Error::PoolFull { wanted: bytes, used: 0, limit: self.options.pool_bytes_max });
            }
            segments.iter().map(|segment| segment.bytes()).sum()
        };
        let limit = self.options.pool_bytes_max;
        let full = Error::PoolFull { wanted: bytes, used: total, limit };
        let growth = Pool::new(limit.saturating_sub(total)).growth(bytes).ok_or(full)?;
        let region = Arc::new(super::response_segment(growth)?);
        reach(Step::ResponseSegmentMade);
        let index = {
            let mut segments = self.responses.write().unwrap_or_else(PoisonError::into_inner);
            segments.push(Arc::clone(&region));
            segments.len() as u32 - 1
        };
        self.announce(RESPONSE, index, &region)
    }
}

/// The payload, if it is what the server sent.
fn checked(message: &Message, operation: Box<str>, payload: Payload) -> Result<Payload, Error> {
    if message.flags & FLAG_CRC == 0 {
        return Ok(payload);
    }
    let arrived = payload.crc32c();
    if arrived == message.crc {
        return Ok(payload);
    }
    Err(Error::Corrupted {
        what: "reply",
        operation: operation.into(),
        bytes: payload.bytes(),
        sent: message.crc,
        arrived,
    })
}

fn failure(status: u16, operation: String, text: &Payload, no_room: Option<Error>) -> Result<Error, Error> {
    let message = || String::from_utf8_lossy(&text.to_vec()).into_owned();
    let is = |code: FailureCode| status == code as u16;
    Ok(Error::Remote(if is(FailureCode::Handler) {
        RemoteFailure::Handler { operation, message: message() }
    } else if is(FailureCode::UnknownOperation) {
        RemoteFailure::UnknownOperation { operation, known: message() }
    } else if is(FailureCode::Deadline) {
        RemoteFailure::Deadline { operation }
    } else if is(FailureCode::OutOfMemory) {
        match no_room {
            Some(error) => return Ok(error),
            None => RemoteFailure::OutOfMemory { operation, message: message() },
        }
    } else if is(FailureCode::Corrupt) {
        RemoteFailure::Corrupted { operation, message: message() }
    } else if is(FailureCode::BadRequest) {
        RemoteFailure::BadRequest { operation, message: message() }
    } else {
        return Err(Error::peer_fault(format!("failure code {status}")));
    }))
}
