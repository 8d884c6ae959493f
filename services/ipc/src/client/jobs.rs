// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls of a session: which wait, which are done, and which request slots the server still views.
//!
//! - **Order** a call is in `waiting` or in `done`, and changes from one to the other in one step. After the end of the session no call
//!   is entered any more
//! - **Owner** what a method takes out is its result: slots and answers take locks of their own when they are dropped

use super::collect::Broken;
use super::decide::Trial;
use super::job::JobState;
use super::send::RequestSlot;
use crate::error::Error;
use crate::number_map::NumberMap;
use crate::payload::Payload;
use std::sync::Arc;
use std::time::Instant;

/// Answer of a call, as it is stored: errors are rare and long.
pub(super) type Stored = Result<Payload, Box<Error>>;

/// Bytes of a name that need no memory of their own.
const SHORT: usize = 22;

/// Name of a call's operation, for the errors that name it.
pub(super) enum Name {
    Short(u8, [u8; SHORT]),
    Long(Box<str>),
}

impl Default for Name {
    fn default() -> Name {
        Name::Short(0, [0; SHORT])
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Name {
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..name.len()) {
            Some(place) => {
                place.copy_from_slice(name.as_bytes());
                Name::Short(name.len() as u8, bytes)
            }
            None => Name::Long(name.into()),
        }
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        match name {
            Name::Short(length, bytes) => String::from_utf8_lossy(&bytes[..usize::from(length)]).into_owned(),
            Name::Long(name) => name.into(),
        }
    }
}

/// A call that has no answer yet.
pub(crate) struct Waiting {
    pub(super) operation: Name,
    pub(super) slot: Option<Arc<RequestSlot>>,
    pub(super) abandoned: bool,
    pub(super) no_room: Option<Box<Error>>,
    /// The server's answer to the last query about the call; `None`: there is none yet.
    pub(super) state: Option<JobState>,
    pub(super) measured: Option<Box<Measured>>,
}

/// Measurements of a call that was sent, to be completed by its answer.
pub(super) struct Measured {
    pub(super) operation: u64,
    pub(super) bytes: u64,
    pub(super) trial: Option<Trial>,
    pub(super) copy_ns: u64,
    pub(super) sent: Instant,
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

    /// Notes what the answer will be learned with. The data was copied from `begun` until now.
    pub(super) fn measure(&mut self, operation: u64, bytes: u64, trial: Option<Trial>, begun: Instant) {
        let sent = Instant::now();
        let copy_ns = u64::try_from((sent - begun).as_nanos()).unwrap_or(u64::MAX);
        self.measured = Some(Box::new(Measured { operation, bytes, trial, copy_ns, sent }));
    }

    /// Time at which its data had been copied; `None`: the call is not measured.
    pub(super) fn sent_at(&self) -> Option<Instant> {
        self.measured.as_ref().map(|measured| measured.sent)
    }
}

/// The calls of a session.
#[derive(Default)]
pub(crate) struct Jobs {
    pub(super) waiting: NumberMap<u64, Waiting>,
    pub(super) done: NumberMap<u64, Stored>,
    /// Slots that the server still views after it has answered.
    pub(super) retained: NumberMap<u64, Arc<RequestSlot>>,
    /// True if some thread collects.
    pub(super) collecting: bool,
    /// Threads that wait for the one that collects.
    pub(super) sleeping: usize,
    /// Calls that were entered so far; the last one has this number.
    pub(super) started: u64,
    /// The session is over.
    ended: bool,
}

/// Slots and calls that the end of a session sets free. Drop it outside the lock.
#[must_use]
pub(super) struct Ended {
    _waiting: NumberMap<u64, Waiting>,
    _retained: NumberMap<u64, Arc<RequestSlot>>,
}

impl Jobs {
    /// Calls without an answer.
    pub(super) fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    /// Enters a call as unanswered and gives its number; gives the call back if the session is over, or as many as may be are unanswered.
    pub(super) fn start(&mut self, waiting: Waiting, outstanding_max: usize) -> Result<u64, Waiting> {
        if self.ended || self.outstanding() >= outstanding_max {
            return Err(waiting);
        }
        self.started += 1;
        self.waiting.insert(self.started, waiting);
        Ok(self.started)
    }

    /// Ends all calls: those that somebody waits for fail.
    pub(super) fn end(&mut self, why: &Broken) -> Ended {
        self.ended = true;
        let waiting = std::mem::take(&mut self.waiting);
        for (&id, _) in waiting.iter().filter(|(_, waiting)| !waiting.abandoned) {
            self.done.insert(id, Err(Box::new(why.error())));
        }
        Ended { _waiting: waiting, _retained: std::mem::take(&mut self.retained) }
    }

    /// Marks the call `id` as abandoned; gives its answer, if it is there.
    #[must_use]
    pub(super) fn abandon(&mut self, id: u64) -> Option<Stored> {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.abandoned = true;
        }
        self.done.remove(&id)
    }

    /// Everything that is done and was not asked for.
    pub(super) fn take_done(&mut self) -> Vec<(u64, Result<Payload, Error>)> {
        self.done.drain().map(|(id, answer)| (id, answer.map_err(|error| *error))).collect()
    }

    /// Removes a call that was not sent.
    #[must_use]
    pub(super) fn forget(&mut self, id: u64) -> (Option<Waiting>, Option<Stored>) {
        (self.waiting.remove(&id), self.done.remove(&id))
    }
}
