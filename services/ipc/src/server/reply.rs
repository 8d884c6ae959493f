// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a handler gets and gives: the request it views, and the responder that answers it.
//!
//! Flow    `Request` ─▶ handler ─▶ `Responder::stage` (copy) ─▶ drop the request ─▶ `Responder::commit` (send)
//! Owner   a request's bytes stay leased while any clone of its payload lives, also after the reply: the client is told
//!         later that they are free

use super::session::{Session, Stage, Views};
use crate::message::{FailureCode, Kind, Message, Shape, Tensor};
use crate::payload::{Outgoing, Payload};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A request, viewed where the client put it. The client can still change the bytes: do not judge them twice.
#[derive(Debug)]
pub struct Request {
    payload: Payload,
    operation: Arc<str>,
    deadline_ns: u64,
    peer_uid: u32,
}

impl Request {
    pub(super) fn new(payload: Payload, operation: Arc<str>, deadline_ns: u64, peer_uid: u32) -> Request {
        Request { payload, operation, deadline_ns, peer_uid }
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

    pub(super) fn is_late(&self) -> bool {
        if self.deadline_ns == 0 {
            return false;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 > self.deadline_ns
    }
}

impl Deref for Request {
    type Target = Payload;

    fn deref(&self) -> &Payload {
        &self.payload
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
    answered: bool,
}

/// A reply whose bytes are in place but that has not been sent.
pub struct Staged(Stage);

impl Responder {
    pub(super) fn new(
        session: Arc<Session>,
        job: u64,
        views: Arc<Views>,
        message_bytes_max: u64,
    ) -> Responder {
        session.unanswered.fetch_add(1, Ordering::Relaxed);
        Responder { session, job, views, message_bytes_max, answered: false }
    }

    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    /// Whether the client is gone, so that an answer would reach nobody.
    pub fn is_pointless(&self) -> bool {
        self.session.is_dead()
    }

    /// Copies the reply to where the client will see it. Its source, and the request, may be dropped after this.
    pub fn stage(&self, outgoing: &Outgoing<'_>) -> Staged {
        Staged(self.session.stage(outgoing, self.message_bytes_max))
    }

    /// Sends a staged reply. Drop the request before, unless you mean to keep viewing it.
    pub fn commit(mut self, staged: Staged) {
        self.session.row.reply(staged.0.bytes(), true);
        self.answer(Message::new(Kind::Reply, self.job), staged.0);
    }

    /// Fails the call with a text for the client.
    pub fn fail(self, message: &str) {
        self.fail_as(FailureCode::Handler, message);
    }

    pub(super) fn fail_late(self) {
        self.fail_as(FailureCode::Deadline, "");
    }

    pub(super) fn fail_as(mut self, code: FailureCode, text: &str) {
        self.send_failure(code, text);
    }

    fn send_failure(&mut self, code: FailureCode, text: &str) {
        self.session.row.error();
        let stage = self.session.stage(&Outgoing::from(text.as_bytes()), u64::MAX);
        let mut message = Message::new(Kind::Failure, self.job);
        message.status = code as u16;
        self.answer(message, stage);
    }

    fn answer(&mut self, message: Message, stage: Stage) {
        self.answered = true;
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
    /// An empty answer.
    pub fn none() -> Reply {
        Reply { shape: Shape::None, data: Vec::new() }
    }

    /// Bytes.
    pub fn bytes(data: impl Into<Vec<u8>>) -> Reply {
        Reply { shape: Shape::Bytes, data: data.into() }
    }

    /// A C-contiguous array.
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
