// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two ends of a handler: the request that it views, and the responder that answers it.
//!
//! - **Flow** `Request` ─▶ handler ─▶ `Responder::stage` (copy) ─▶ drop the request ─▶ `Responder::commit` (send)
//! - **Owner** a request's bytes stay leased while any clone of its payload lives, also after the reply: the client is told
//!   later that they are free

use super::Trust;
use super::run::Running;
use super::session::{Session, Stage, Views};
use crate::clock::monotonic_ns;
use crate::error::Error;
use crate::layout::SERVICES_SINCE;
use crate::message::{
    FLAG_CACHED, FLAG_CRC, FLAG_PACK, FLAG_TIMED, FLAG_UNCACHED, FailureCode, Kind, Message, Shape, Tensor,
};
use crate::packed::{pack, unpack};
use crate::payload::{Outgoing, Payload};
use crate::transfer::{How, Transfer};
use memlift_ground::observe::Executor;
use memlift_place::{Cache, CallReason};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A request, viewed where the client put it. The client can still change the bytes: do not judge them twice, or serve with
/// [`Trust::Copy`](super::Trust::Copy).
#[derive(Debug)]
pub struct Request {
    payload: Payload,
    operation: Arc<str>,
    deadline_ns: u64,
    peer_uid: u32,
    views: Arc<Views>,
    /// CRC-32C that the payload had when it was sent, if the client said so.
    crc: Option<u32>,
    /// Bytes of the payload, if it lies there packed.
    packed: Option<u64>,
}

impl Request {
    pub(super) fn new(
        payload: Payload,
        operation: Arc<str>,
        message: &Message,
        peer_uid: u32,
        views: Arc<Views>,
    ) -> Request {
        let crc = (message.flags & FLAG_CRC != 0).then_some(message.crc);
        let packed = message.is_packed().then(|| message.payload_bytes(payload.shape()));
        Request { payload, operation, deadline_ns: message.deadline_ns, peer_uid, views, crc, packed }
    }

    /// Returns the handle with which the handler reports its progress.
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.views))
    }

    /// Returns both CRC-32C values in words, if the payload differs from the one that was sent.
    pub(super) fn is_corrupt(&self) -> Option<String> {
        let sent = self.crc?;
        let arrived = self.payload.crc32c();
        let bytes = self.payload.bytes();
        (arrived != sent)
            .then(|| format!("CRC-32C {arrived:#010x} of {bytes} bytes, {sent:#010x} when they left"))
    }

    /// Name of the operation.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The data; a clone keeps its slot leased.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// CLOCK_MONOTONIC nanoseconds after which the client no longer waits; 0: never.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// User that the client runs as, as the kernel said when it connected.
    pub fn peer_uid(&self) -> u32 {
        self.peer_uid
    }

    /// Returns the request as a handler gets it: unpacked, and with [`Trust::Copy`] in memory that the client cannot change.
    pub(super) fn received(mut self, trust: Trust) -> Result<Request, Error> {
        self.payload = match (self.packed, trust) {
            (Some(bytes), _) => unpack(&self.payload, bytes)?,
            (None, Trust::Copy) => self.payload.to_private()?,
            (None, Trust::View) => return Ok(self),
        };
        Ok(self)
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline_ns != 0 && monotonic_ns(now) > self.deadline_ns
    }
}

impl Deref for Request {
    type Target = Payload;

    fn deref(&self) -> &Payload {
        &self.payload
    }
}

/// Progress of a handler, for clients that ask about its call ([`Job::state`](crate::Job::state)).
#[derive(Clone, Debug)]
pub struct Progress(Arc<Views>);

impl Progress {
    /// Reports that `done` of `total` is done, in a unit of the handler's choice. It costs two stores; call it as often as you
    /// like.
    pub fn report(&self, done: u64, total: u64) {
        self.0.total.store(total, Ordering::Relaxed);
        self.0.done.store(done, Ordering::Relaxed);
    }
}

/// Gives a request's slot back when the last view of it is gone.
pub(super) struct RequestLease {
    pub(super) session: Arc<Session>,
    pub(super) job: u64,
    pub(super) views: Arc<Views>,
}

impl Drop for RequestLease {
    fn drop(&mut self) {
        self.session.request_dropped(self.job, &self.views);
    }
}

/// Answers one call, from any thread. Dropped without an answer, it fails the call.
pub struct Responder {
    session: Arc<Session>,
    job: u64,
    views: Arc<Views>,
    message_bytes_max: u64,
    /// The call's, see [`crate::message`].
    flags: u8,
    started: Option<Instant>,
    answered: bool,
}

/// A reply whose bytes are in place but that has not been sent.
pub struct Staged {
    stage: Stage,
    crc: Option<u32>,
    /// Bytes of the reply, if it lies there packed.
    packed: Option<u64>,
}

impl Responder {
    pub(super) fn new(
        session: Arc<Session>,
        message: &Message,
        views: Arc<Views>,
        message_bytes_max: u64,
    ) -> Responder {
        session.unanswered.fetch_add(1, Ordering::Relaxed);
        let Message { job, flags, .. } = *message;
        Responder { session, job, views, message_bytes_max, flags, started: None, answered: false }
    }

    /// Notes that a thread began with the call at `now`, if the client wants to know its time.
    pub(super) fn start(&mut self, now: Instant) {
        self.started = (self.flags & FLAG_TIMED != 0).then_some(now);
    }

    /// Returns true if it answers that job of that session.
    pub(super) fn is_for(&self, session: &Arc<Session>, job: u64) -> bool {
        self.job == job && Arc::ptr_eq(&self.session, session)
    }

    /// Returns the call's entry for the list of running operations.
    pub(super) fn running(&self) -> Running {
        Running { session: Arc::clone(&self.session), job: self.job, views: Arc::clone(&self.views) }
    }

    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    /// Number of the client's session; no other session of this process has it.
    pub fn session_number(&self) -> u64 {
        self.session.number
    }

    /// Returns true if the client is gone, so that an answer would reach nobody.
    pub fn is_pointless(&self) -> bool {
        self.session.is_dead()
    }

    /// Copies the reply to where the client will see it. Its source, and the request, may be dropped after this.
    pub fn stage(&self, outgoing: &Outgoing<'_>) -> Staged {
        let told =
            |streams| How::Told { by: Executor::InlineTemporal, streams, why: CallReason::Reply.into() };
        let how = match self.flags & (FLAG_CACHED | FLAG_UNCACHED) {
            FLAG_CACHED => told(false),
            FLAG_UNCACHED => told(true),
            _ => How::Placed(Cache::Auto),
        };
        let crc = self.flags & FLAG_CRC != 0;
        let packs = self.flags & FLAG_PACK != 0 && outgoing.bytes() <= self.message_bytes_max;
        if let Some(packed) = packs.then(|| pack(outgoing, crc)).flatten() {
            let transfer = Transfer { how, crc: false };
            let (stage, _) = self.session.place(&packed.outgoing(outgoing), transfer);
            return Staged { stage, crc: packed.crc, packed: Some(outgoing.bytes()) };
        }
        let (stage, crc) = self.session.stage(outgoing, Transfer { how, crc }, self.message_bytes_max);
        Staged { stage, crc, packed: None }
    }

    /// Sends a staged reply. Drop the request before, unless you mean to keep viewing it.
    pub fn commit(mut self, staged: Staged) {
        let Staged { stage, crc, packed } = staged;
        self.session.row.reply(stage.bytes());
        let mut message = Message::new(Kind::Reply, self.job);
        if let Some(crc) = crc {
            message.flags = FLAG_CRC;
            message.crc = crc;
        }
        if let Some(bytes) = packed {
            message.describe_packed(bytes);
        }
        self.answer(message, stage);
    }

    /// Fails the call with a text for the client.
    pub fn fail(self, message: &str) {
        self.fail_as(FailureCode::Handler, message);
    }

    /// Answers with bytes.
    pub(super) fn answer_bytes(self, bytes: &[u8]) {
        let staged = self.stage(&Outgoing::from(bytes));
        self.commit(staged);
    }

    /// Fails the call as one of an operation that the server does not have; `known` names those that it has.
    pub fn fail_unknown(self, known: &str) {
        self.fail_as(FailureCode::UnknownOperation, known);
    }

    pub(super) fn fail_late(self) {
        self.fail_as(FailureCode::Deadline, "");
    }

    pub(super) fn fail_as(mut self, code: FailureCode, text: &str) {
        self.send_failure(code, text);
    }

    fn send_failure(&mut self, code: FailureCode, text: &str) {
        let (code, text) = match code {
            // A client of that version takes a code that it does not know for a broken protocol.
            FailureCode::Draining if self.session.protocol < SERVICES_SINCE => {
                (FailureCode::Handler, "the server ends and has not begun this call: call its successor")
            }
            code => (code, text),
        };
        self.session.row.error();
        let (stage, _) = self.session.stage(&Outgoing::from(text.as_bytes()), Transfer::PLAIN, u64::MAX);
        let mut message = Message::new(Kind::Failure, self.job);
        message.status = code as u16;
        self.answer(message, stage);
    }

    fn answer(&mut self, mut message: Message, stage: Stage) {
        self.answered = true;
        if let Some(started) = self.started {
            message.took_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        self.session.unanswered.fetch_sub(1, Ordering::Relaxed);
        self.session.commit(message, stage, &self.views);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let why =
                if std::thread::panicking() { "the handler panicked" } else { "the handler gave no answer" };
            self.send_failure(FailureCode::Handler, why);
        }
    }
}

/// A reply that owns its data.
#[derive(Clone, Debug)]
pub struct Reply {
    shape: Shape,
    data: Vec<u8>,
}

impl Reply {
    /// Makes an empty reply.
    pub fn none() -> Reply {
        Reply { shape: Shape::None, data: Vec::new() }
    }

    /// Makes a reply of plain bytes.
    pub fn bytes(data: impl Into<Vec<u8>>) -> Reply {
        Reply { shape: Shape::Bytes, data: data.into() }
    }

    /// Makes a reply of a C-contiguous array.
    ///
    /// # Errors
    ///
    /// A text for the client, if the shape and the data do not agree.
    pub fn tensor(tensor: Tensor, data: impl Into<Vec<u8>>) -> Result<Reply, String> {
        let data = data.into();
        Outgoing::tensor(tensor, &data).map_err(|error| error.to_string())?;
        Ok(Reply { shape: Shape::Tensor(tensor), data })
    }

    pub(super) fn outgoing(&self) -> Outgoing<'_> {
        match &self.shape {
            Shape::None => Outgoing::none(),
            Shape::Bytes | Shape::Value => Outgoing::from(self.data.as_slice()),
            Shape::Tensor(tensor) => {
                Outgoing::tensor(*tensor, &self.data).expect("checked when the reply was made")
            }
        }
    }
}
