// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers: viewed where they lie, checked, or turned into the error that they say; and room for those that do not fit.
//!
//! Owner   a message from the server is hostile: segment, offset, length and shape are judged here

use super::jobs::Measured;
use super::{Inner, lock};
use crate::error::{Error, RemoteFailure};
use crate::failpoint::{Step, reach};
use crate::handshake::RESPONSE;
use crate::layout::SEGMENTS_MAX;
use crate::message::{FLAG_CRC, FailureCode, Kind, Message};
use crate::packed::unpack;
use crate::payload::Payload;
use crate::pool::Pool;
use memlift_engine::region::RegionOffset;
use std::sync::{Arc, PoisonError, Weak};

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
    pub(super) fn learn(&self, measured: &Measured, message: &Message) {
        let mut decisions = lock(&self.decisions);
        decisions.learn_wait(measured.operation, measured.bytes, measured.sent.elapsed());
        if let Some(trial) = &measured.trial {
            decisions.learn(trial, measured.copy_ns, message.took_ns);
        }
    }

    /// A view of a payload in a response segment, or a copy of one that came in the message.
    pub(super) fn view(&self, message: &Message) -> Result<Payload, Error> {
        let shape = message.shape()?;
        if message.bytes == 0 {
            return Ok(Payload::empty(shape));
        }
        if let Some(bytes) = message.embedded(&shape)? {
            return Ok(Payload::embedded(shape, bytes));
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
    pub(super) fn make_room(&self, message: &Message) -> Result<(), Error> {
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

/// The payload, unpacked, if it is what the server sent.
pub(super) fn checked(
    message: &Message,
    operation: Box<str>,
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
    no_room: Option<Error>,
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
