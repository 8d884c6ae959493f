// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers: viewed where they lie, checked, or turned into the error that they say; and room for those that do not fit.
//!
//! - **Owner** a message from the server is hostile: segment, offset, length and shape are judged here

use super::Inner;
use super::collect::Owed;
use super::jobs::{Jobs, Measured, Name};
use crate::error::{Error, RemoteFailure};
use crate::failpoint::{Step, reach};
use crate::handshake::{AddSegment, RESPONSE};
use crate::layout::{MAGIC, SEGMENTS_MAX};
use crate::message::{FLAG_CRC, FailureCode, Kind, Message};
use crate::packed::unpack;
use crate::payload::Payload;
use crate::pool;
use crate::rank::holds_none;
use memlift_ground::region::{Region, RegionOffset};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Ticks without a new view after which a response segment that nobody views is quiet.
const QUIET_TICKS: u32 = 2;

/// The response segments of a session, as the client maps them.
#[derive(Default)]
pub(super) struct Responses {
    segments: Vec<Segment>,
    next: u32,
    ended: bool,
}

struct Segment {
    number: u32,
    region: Arc<Region>,
    /// The server was told of it.
    announced: bool,
    /// Ticks since a reply was viewed in it.
    quiet: u32,
    /// The server was asked to let go of it.
    retired: bool,
}

impl Responses {
    pub(super) fn new(first: Arc<Region>) -> Responses {
        let mut responses = Responses::default();
        let added = responses.add(first);
        debug_assert!(added.is_none());
        responses
    }

    /// Adds a segment that the server has yet to be told of; gives it back if the session is over.
    fn add(&mut self, region: Arc<Region>) -> Option<Arc<Region>> {
        if self.ended {
            return Some(region);
        }
        self.segments.push(Segment { number: self.next, region, announced: false, quiet: 0, retired: false });
        self.next += 1;
        None
    }

    /// Notes that the server was told of a segment, which may be retired from now on.
    pub(super) fn announced(&mut self, number: u32) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            segment.announced = true;
        }
    }

    fn view(&mut self, number: u32) -> Option<Arc<Region>> {
        let segment = self.segments.iter_mut().find(|segment| segment.number == number)?;
        segment.quiet = 0;
        Some(Arc::clone(&segment.region))
    }

    /// Removes all segments; drop them outside the lock.
    pub(super) fn end(&mut self) -> Vec<Arc<Region>> {
        self.ended = true;
        std::mem::take(&mut self.segments).into_iter().map(|segment| segment.region).collect()
    }

    /// Bytes of all segments that are mapped.
    pub(super) fn total(&self) -> u64 {
        self.segments.iter().map(|segment| segment.region.bytes()).sum()
    }

    /// Segments that are mapped.
    pub(super) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// A tick of the clock: marks the segments as retired in which nothing is viewed any more, and gives their numbers. The first
    /// segment stays. The server may refuse: it knows of replies that are on their way.
    pub(super) fn retire_quiet(&mut self) -> Vec<u32> {
        let mut retired = Vec::new();
        // A segment whose announcement waits for room in the socket cannot be retired: the server does not know it yet.
        let may_go = |segment: &&mut Segment| segment.number != 0 && segment.announced && !segment.retired;
        for segment in self.segments.iter_mut().filter(may_go) {
            segment.quiet += 1;
            if segment.quiet > QUIET_TICKS && Arc::strong_count(&segment.region) == 1 {
                segment.retired = true;
                retired.push(segment.number);
            }
        }
        retired
    }

    /// Takes [`retire_quiet`](Responses::retire_quiet) back for a segment.
    pub(super) fn revive(&mut self, number: u32) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            segment.retired = false;
            segment.quiet = 0;
        }
    }

    /// Removes a segment that was retired.
    pub(super) fn remove(&mut self, number: u32) -> Option<Arc<Region>> {
        let at = self.segments.iter().position(|segment| segment.number == number && segment.retired)?;
        Some(self.segments.remove(at).region)
    }

    pub(super) fn has_retired(&self) -> bool {
        self.segments.iter().any(|segment| segment.retired)
    }

    pub(super) fn is_retired(&self, number: u32) -> bool {
        self.segments.iter().any(|segment| segment.number == number && segment.retired)
    }
}

/// Gives a response slot back to the server when the last view of it is gone.
struct ResponseLease {
    inner: Weak<Inner>,
    release: Message,
}

impl Drop for ResponseLease {
    fn drop(&mut self) {
        holds_none("dropping an answer");
        if let Some(inner) = self.inner.upgrade() {
            inner.release(self.release);
        }
    }
}

impl Inner {
    pub(super) fn learn(&self, measured: &Measured, message: &Message) {
        let waited = measured.sent.elapsed();
        self.decisions.with(|decisions| {
            decisions.learn_wait(measured.operation, measured.bytes, waited);
            if let Some(trial) = &measured.trial {
                decisions.learn(trial, measured.copy_ns, message.took_ns);
            }
        });
    }

    /// Returns a view of a payload in a response segment, or a copy of one that came in the message.
    pub(super) fn view(&self, message: &Message) -> Result<Payload, Error> {
        let shape = message.shape()?;
        if message.bytes == 0 {
            return Ok(Payload::empty(shape));
        }
        if let Some(bytes) = message.embedded(&shape)? {
            return Ok(Payload::embedded(shape, bytes));
        }
        let region = self.responses.with(|responses| responses.view(message.segment));
        let region =
            region.ok_or_else(|| Error::peer_fault(format!("response segment {}", message.segment)))?;
        let window = region
            .window(RegionOffset(message.offset), message.bytes)
            .map_err(|error| Error::peer_fault(error.to_string()))?;
        let pointer = window.as_ptr();
        let mut release = Message::new(Kind::Release, message.job);
        release.segment = message.segment;
        release.offset = message.offset;
        let lease = ResponseLease { inner: self.own.clone(), release };
        Ok(Payload::view(shape, message.bytes, pointer, region, lease))
    }

    /// Answers a server that has no room for a reply: with a new segment, or with word that there is none.
    pub(super) fn make_room(&self, message: &Message, owed: &mut VecDeque<Owed>) -> Result<(), Error> {
        let is_abandoned =
            |jobs: &mut Jobs| jobs.waiting.get(&message.job).is_some_and(|call| call.abandoned);
        if self.jobs.with(is_abandoned) {
            owed.push_back(Owed::Message(Message::new(Kind::NoRoom, message.job)));
            return Ok(());
        }
        match self.grow_responses(message.bytes) {
            // The server learns of it by its socket, which it looks at even when asleep.
            Ok(segment) => owed.push_back(segment),
            Err(error) => {
                let replaced = self.jobs.with(|jobs| match jobs.waiting.get_mut(&message.job) {
                    Some(waiting) => Ok(waiting.no_room.replace(Box::new(error))),
                    None => Err(error),
                });
                if replaced.is_err() {
                    return Err(Error::peer_fault("room wanted for a job that waits for nothing"));
                }
                owed.push_back(Owed::Message(Message::new(Kind::NoRoom, message.job)));
            }
        }
        Ok(())
    }

    fn grow_responses(&self, bytes: u64) -> Result<Owed, Error> {
        if bytes > self.message_bytes_max {
            return Err(Error::MessageTooLarge { bytes, limit: self.message_bytes_max });
        }
        let limit = self.options.pool_bytes_max;
        let (total, segments) = self.responses.with(|responses| (responses.total(), responses.segments()));
        let full = Error::PoolFull { wanted: bytes, used: total, limit };
        let growth = pool::growth(bytes, total, segments, limit).ok_or(full)?;
        debug_assert!(segments < SEGMENTS_MAX);
        let (region, fd) = super::response_segment(growth)?;
        reach(Step::ResponseSegmentMade);
        let bytes = region.bytes();
        let (index, unused) = self.responses.with(|responses| {
            let index = responses.next;
            (index, responses.add(Arc::new(region)))
        });
        drop(unused);
        self.row.set_pool_bytes(self.pool_bytes());
        self.gives_back_later();
        Ok(Owed::Segment(AddSegment { magic: MAGIC, direction: RESPONSE, index, bytes }, fd))
    }
}

/// Returns the payload, unpacked, if it is the one that the server sent.
pub(super) fn checked(
    message: &Message,
    operation: Name,
    payload: Payload,
    message_bytes_max: u64,
) -> Result<Payload, Error> {
    let payload = match message.is_packed() {
        true => {
            let bytes = message.payload_bytes(payload.shape());
            if bytes > message_bytes_max {
                return Err(Error::MessageTooLarge { bytes, limit: message_bytes_max });
            }
            unpack(&payload, bytes)?
        }
        false => payload,
    };
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

pub(super) fn failure(
    status: u16,
    operation: String,
    text: &Payload,
    no_room: Option<Box<Error>>,
) -> Result<Error, Error> {
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
            Some(error) => return Ok(*error),
            None => RemoteFailure::OutOfMemory { operation, message: message() },
        }
    } else if is(FailureCode::Corrupt) {
        RemoteFailure::Corrupted { operation, message: message() }
    } else if is(FailureCode::Draining) {
        RemoteFailure::Draining { operation }
    } else if is(FailureCode::BadRequest) {
        RemoteFailure::BadRequest { operation, message: message() }
    } else {
        return Err(Error::peer_fault(format!("failure code {status}")));
    }))
}
