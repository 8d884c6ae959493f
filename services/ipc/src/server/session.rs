// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One client's session, as the server holds it.
//!
//! - **Flow** handler ─▶ `stage` (slot in the response pool, copy) ─▶ `commit` (message, wake the client)
//! - **Order** reply and release of one request are pushed under one lock, so the client never sees a release before the
//!   reply that told it of the view
//! - **Owner** the response pool's allocation state is ours; a slot is the client's from its reply to its release
#![expect(unsafe_code, reason = "copies replies into memory shared with the client")]

use super::Counters;
use crate::credentials::Peer;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::fork::SessionSocket;
use crate::handshake::{self, AddSegment, Hello, REQUEST, RESPONSE};
use crate::layout::{
    BUSY_HANDLERS_AT, CLIENT_PARK_AT, CLIENT_ROBUST_AT, CONTROL_BYTES, ENTRIES_AT, HANDLERS_AT, MAGIC,
    MAGIC_AT, OVERFLOW_MAX, QUEUED_AT, RESPONSE_BLOCKED_AT, RING_ENTRIES, SEGMENTS_MAX, SERVER_PARK_AT,
    SERVER_ROBUST_AT, SESSIONS_AT, VERSION_AT,
};
use crate::message::{FLAG_RETAINED, FailureCode, Kind, Message, Shape};
use crate::number_map::NumberMap;
use crate::payload::Outgoing;
use crate::pool::{NoSuchSegment, Pool, Slot};
use crate::rank::{Guard, Lock, Rank, holds_none};
use crate::ring::{Consumer, Producer, REQUESTS, RESPONSES};
use crate::robust::Robust;
use crate::row::SessionRow;
use crate::transfer::Transfer;
use memlift_ground::complete::{ParkWord, ring};
use memlift_ground::region::{Access, Region, RegionOffset, RegionOptions};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Sessions of this process so far.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Session {
    /// Number that no other session of this process has.
    pub(super) number: u64,
    /// Version of the protocol that both sides speak.
    pub(super) protocol: u32,
    /// User that the client runs as.
    pub(super) peer_uid: u32,
    pub(super) socket: Arc<SessionSocket>,
    pub(super) event: OwnedFd,
    client_event: OwnedFd,
    control: Arc<Region>,
    requests: Lock<Requests>,
    reply: Lock<ReplySide>,
    dead: AtomicBool,
    pub(super) unanswered: AtomicU32,
    pool_bytes_max: u64,
    _robust: Option<Robust>,
    pub(super) row: SessionRow,
}

/// The request segments of a session, by number, and the number that comes next.
struct Requests {
    segments: Vec<(u32, Arc<Region>)>,
    next: u32,
}

impl Requests {
    fn total(&self) -> u64 {
        self.segments.iter().map(|(_, region)| region.bytes()).sum()
    }
}

struct ReplySide {
    producer: Producer,
    pool: Pool,
    /// Slots that the client views, by place.
    lent: NumberMap<(u32, u64), Slot>,
    /// Messages for which the ring had no room.
    overflow: VecDeque<Message>,
    /// Replies for which the pool has no room yet.
    roomless: VecDeque<Roomless>,
    /// The job for whose reply the client was asked for room, until it has answered by a segment or by a refusal.
    asked: Option<u64>,
}

/// A reply that waits for a larger pool.
struct Roomless {
    message: Message,
    shape: Shape,
    bytes: Vec<u8>,
    views: Arc<Views>,
}

/// State of a request: its view dropped, its reply sent (both changed under the reply lock), and its handler's progress.
#[derive(Default, Debug)]
pub(super) struct Views {
    dropped: AtomicBool,
    answered: AtomicBool,
    /// Work done of `total`, as the handler reports it.
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
}

impl Views {
    /// Makes the state of a request that holds no slot of its client's.
    pub(super) fn none() -> Views {
        Views { dropped: true.into(), ..Views::default() }
    }
}

/// A reply whose bytes are in place, or set aside until there is room for them.
pub(super) enum Stage {
    /// In the message that it will be sent with (or empty).
    Embedded(Message),
    /// In the pool.
    Placed(Shape, Slot),
    /// On the heap.
    Aside(Shape, Vec<u8>),
    /// Nowhere: the reply is too large, as the text says.
    Refused(String),
}

impl Stage {
    /// Bytes of the reply.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Stage::Embedded(message) => message.bytes,
            Stage::Placed(_, slot) => slot.bytes,
            Stage::Aside(_, bytes) => bytes.len() as u64,
            Stage::Refused(_) => 0,
        }
    }
}

impl Session {
    /// Checks a greeting and its descriptors, and maps the segments that they bring.
    pub(super) fn open(
        socket: Arc<SessionSocket>,
        peer: Peer,
        address: &str,
        hello: &Hello,
        descriptors: Vec<OwnedFd>,
        pool_bytes_max: u64,
    ) -> Result<(Session, Consumer), Error> {
        let protocol = hello.agree()?;
        let [control, event, client_event, request, response] = handshake::expect(descriptors)?;
        if hello.control_bytes != CONTROL_BYTES {
            return Err(Error::peer_fault(format!("a control segment of {} bytes", hello.control_bytes)));
        }
        let mut control =
            Region::from_fd_with(control, Access::ReadWrite, CONTROL_BYTES, &RegionOptions::default())?;
        let mut robust = control.as_fd().and_then(|fd| Robust::enter(fd, SERVER_ROBUST_AT));
        // The mapping needs no descriptor, so a session has only three.
        drop(control.take_fd());
        let mut header = [0; 16];
        control.window(RegionOffset(0), 16)?.read_into(&mut header)?;
        let says = |at: u64, bytes: &[u8]| header[at as usize..at as usize + bytes.len()] == *bytes;
        if !says(MAGIC_AT, &MAGIC.to_le_bytes())
            || !says(VERSION_AT, &hello.oldest.to_le_bytes())
            || !says(ENTRIES_AT, &RING_ENTRIES.to_le_bytes())
        {
            return Err(Error::peer_fault("a control segment with a wrong header"));
        }
        let control = Arc::new(control);
        let event = non_blocking(event)?;
        let client_event = non_blocking(client_event)?;
        let mut pool = Pool::new(pool_bytes_max);
        let requests = map_segment(request, hello.request_bytes, Access::ReadOnly, pool_bytes_max)?;
        let responses = map_segment(response, hello.response_bytes, Access::ReadWrite, pool_bytes_max)?;
        let added = pool.add(responses);
        debug_assert!(added.is_none());
        let row = SessionRow::server(address, peer.pid);
        row.set_pool_bytes(requests.bytes() + pool.total());
        let consumer = Consumer::new(Arc::clone(&control), REQUESTS)?;
        if let Some(robust) = &mut robust {
            robust.watch(&control, CLIENT_ROBUST_AT, &socket);
        }
        let session = Session {
            number: SESSIONS.fetch_add(1, Ordering::Relaxed),
            protocol,
            peer_uid: peer.uid,
            socket,
            event,
            client_event,
            reply: Lock::new(
                Rank::Reply,
                ReplySide {
                    producer: Producer::new(Arc::clone(&control), RESPONSES)?,
                    pool,
                    lent: NumberMap::default(),
                    overflow: VecDeque::new(),
                    roomless: VecDeque::new(),
                    asked: None,
                },
            ),
            control,
            requests: Lock::new(Rank::Requests, Requests { segments: vec![(0, requests)], next: 1 }),
            dead: AtomicBool::new(false),
            unanswered: AtomicU32::new(0),
            pool_bytes_max,
            _robust: robust,
            row,
        };
        Ok((session, consumer))
    }

    /// A further segment of the client.
    pub(super) fn add_segment(&self, packet: &AddSegment, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        let [fd] = handshake::expect(descriptors)?;
        let judge = |next: u32, segments: usize, total: u64| {
            if segments >= SEGMENTS_MAX || packet.index != next {
                return Err(Error::peer_fault(format!("segment number {} in place of {next}", packet.index)));
            }
            Ok(self.pool_bytes_max.saturating_sub(total))
        };
        // Only one thread at a time reads a session's socket, so what was checked holds until the segment is mapped.
        match packet.direction {
            REQUEST => {
                let (next, segments, total) =
                    self.requests.with(|requests| (requests.next, requests.segments.len(), requests.total()));
                let region = map_segment(fd, packet.bytes, Access::ReadOnly, judge(next, segments, total)?)?;
                self.requests.with(|requests| {
                    requests.segments.push((next, region));
                    requests.next += 1;
                });
                reach(Step::SegmentMapped);
            }
            RESPONSE => {
                let (next, segments, total) =
                    self.reply.with(|side| (side.pool.next(), side.pool.segments(), side.pool.total()));
                let region = map_segment(fd, packet.bytes, Access::ReadWrite, judge(next, segments, total)?)?;
                let unused = self.reply.with(|side| {
                    side.asked = None;
                    side.pool.add(region)
                });
                drop(unused);
                reach(Step::SegmentMapped);
                self.place_roomless()?;
            }
            other => return Err(Error::peer_fault(format!("a segment for direction {other}"))),
        }
        self.row.set_pool_bytes(self.pool_bytes());
        Ok(())
    }

    /// Unmaps a segment that the client does not use any more and answers so, or answers that a reply still lies in it.
    pub(super) fn retire(&self, direction: u16, number: u32) -> Result<(), Error> {
        let no_such =
            || Error::peer_fault(format!("segment {number} of direction {direction} cannot be retired"));
        let mut answer = Message::new(Kind::Retired, 0);
        answer.status = direction;
        answer.segment = number;
        let region = match u32::from(direction) {
            // A request that is viewed in it keeps it mapped.
            REQUEST => Some(
                self.requests
                    .with(|requests| {
                        let found = requests.segments.iter().position(|&(own, _)| own == number && own != 0);
                        found.map(|at| requests.segments.remove(at).1)
                    })
                    .ok_or_else(no_such)?,
            ),
            RESPONSE => {
                self.reply.with(|side| side.pool.remove(number)).map_err(|NoSuchSegment| no_such())?
            }
            _ => return Err(no_such()),
        };
        answer.bytes = u64::from(region.is_some());
        drop(region);
        reach(Step::SegmentLetGo);
        self.row.set_pool_bytes(self.pool_bytes());
        self.tell(answer)
    }

    /// Bytes that both pools have mapped.
    fn pool_bytes(&self) -> u64 {
        self.requests.with(|requests| requests.total()) + self.reply.with(|side| side.pool.total())
    }

    /// The request segment of that number, if it is there.
    pub(super) fn request_segment(&self, number: u32) -> Option<Arc<Region>> {
        self.requests.with(|requests| {
            let found = requests.segments.iter().find(|&&(own, _)| own == number);
            found.map(|(_, region)| Arc::clone(region))
        })
    }

    pub(super) fn park_word(&self) -> &ParkWord {
        ParkWord::from_atomic(self.word(SERVER_PARK_AT))
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        self.control.layout(RegionOffset(offset)).expect("the control segment has its full length")
    }

    /// Returns true if the client is gone.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Ends the session: the client sees a hang-up, replies go nowhere.
    pub(super) fn close(&self) {
        if !self.dead.swap(true, Ordering::Relaxed) && self.socket.is_ours() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
        drop(self.reply.with(|side| std::mem::take(&mut side.roomless)));
    }

    /// Tells the client how busy the server is.
    pub(super) fn publish_concurrency(&self, counters: &Counters) {
        let busy = counters.busy.load(Ordering::Relaxed) as u32;
        let sessions = counters.sessions.load(Ordering::Relaxed) as u32;
        self.word(BUSY_HANDLERS_AT).store(busy, Ordering::Relaxed);
        self.word(SESSIONS_AT).store(sessions, Ordering::Relaxed);
    }

    /// Tells the client how many handlers there are and how many requests wait for one.
    pub(super) fn publish_queue(&self, handlers: usize, queued: usize) {
        self.word(HANDLERS_AT).store(handlers as u32, Ordering::Relaxed);
        self.word(QUEUED_AT).store(queued as u32, Ordering::Relaxed);
    }

    /// Sends a message that answers no call: the state of a job, or of a segment.
    pub(super) fn tell(&self, message: Message) -> Result<(), Error> {
        let mut side = self.reply.lock();
        if side.overflow.len() >= OVERFLOW_MAX {
            return Err(Error::peer_fault("questions without end"));
        }
        side.push(message);
        self.settle(side);
        Ok(())
    }

    /// Puts a reply's bytes where the client can see them.
    pub(super) fn stage(
        &self,
        outgoing: &Outgoing<'_>,
        transfer: Transfer,
        message_bytes_max: u64,
    ) -> (Stage, Option<u32>) {
        let bytes = outgoing.bytes();
        if bytes > message_bytes_max {
            let refused = Stage::Refused(format!(
                "the reply has {bytes} bytes, over the server's limit of {message_bytes_max}: raise ipc.message_bytes_max"
            ));
            return (refused, None);
        }
        let mut message = Message::new(Kind::Reply, 0);
        if bytes == 0 {
            message.describe(&outgoing.shape, 0, 0, 0);
            return (Stage::Embedded(message), transfer.crc.then_some(0));
        }
        if let Some(crc) = outgoing.embed(&mut message, transfer.crc) {
            return (Stage::Embedded(message), crc);
        }
        self.place(outgoing, transfer)
    }

    /// As [`stage`](Session::stage), for bytes that do not fit into a message.
    pub(super) fn place(&self, outgoing: &Outgoing<'_>, transfer: Transfer) -> (Stage, Option<u32>) {
        let bytes = outgoing.bytes();
        match self.reply.with(|side| side.pool.allocate(bytes)) {
            Some((slot, region)) => {
                let target = region.base().cast_mut().wrapping_add(slot.offset as usize);
                reach(Step::ResponseSlotTaken);
                // SAFETY: the slot lies in a writable segment of ours, is `bytes` long, and is not lent to anybody yet.
                let crc = unsafe { outgoing.copy_here(target, transfer) };
                reach(Step::ResponseFilled);
                (Stage::Placed(outgoing.shape.clone(), slot), crc)
            }
            None => {
                let mut aside = vec![0; bytes as usize];
                // SAFETY: the vector is `bytes` long and new.
                let crc = unsafe { outgoing.copy_here(aside.as_mut_ptr(), transfer) };
                (Stage::Aside(outgoing.shape.clone(), aside), crc)
            }
        }
    }

    /// Sends a staged reply or failure.
    pub(super) fn commit(&self, mut message: Message, stage: Stage, views: &Arc<Views>) {
        if self.is_dead() {
            return;
        }
        let mut side = self.reply.lock();
        match stage {
            Stage::Embedded(described) => side.answer(message.with_payload_of(&described), views),
            Stage::Placed(shape, slot) => {
                side.lend(&mut message, &shape, slot);
                side.answer(message, views);
            }
            Stage::Aside(shape, bytes) => {
                side.roomless.push_back(Roomless { message, shape, bytes, views: Arc::clone(views) });
                side.ask_for_room();
            }
            Stage::Refused(text) => {
                message.kind = Kind::Failure as u8;
                message.flags = 0;
                message.status = FailureCode::OutOfMemory as u16;
                side.say(&mut message, &text);
                side.answer(message, views);
            }
        }
        self.settle(side);
    }

    /// Notes that the last view of a request is gone, and sends its release if its reply is out.
    pub(super) fn request_dropped(&self, job: u64, views: &Views) {
        holds_none("dropping a request");
        let mut side = self.reply.lock();
        views.dropped.store(true, Ordering::Relaxed);
        if views.answered.load(Ordering::Relaxed) && !self.is_dead() {
            side.push(Message::new(Kind::Release, job));
            reach(Step::RequestReleased);
            self.settle(side);
        }
    }

    /// Takes back a response slot that the client released.
    pub(super) fn released(&self, segment: u32, offset: u64) -> Result<(), Error> {
        let has_roomless = self.reply.with(|side| {
            let slot = side.lent.remove(&(segment, offset));
            let slot = slot.ok_or_else(|| Error::peer_fault("a release of a slot that was not lent"))?;
            side.pool.free(slot);
            Ok::<bool, Error>(!side.roomless.is_empty())
        })?;
        reach(Step::ResponseSlotFreed);
        match has_roomless {
            true => self.place_roomless(),
            false => Ok(()),
        }
    }

    /// Fails the reply for which the client has no room.
    pub(super) fn no_room(&self, job: u64) -> Result<(), Error> {
        let mut side = self.reply.lock();
        if side.asked == Some(job) {
            side.asked = None;
        }
        let at = side.roomless.iter().position(|reply| reply.message.job == job);
        let Some(mut reply) = at.and_then(|at| side.roomless.remove(at)) else {
            // A slot was released meanwhile, and the reply has been placed. Others may wait.
            side.ask_for_room();
            self.settle(side);
            return Ok(());
        };
        reply.message.kind = Kind::Failure as u8;
        reply.message.flags = 0;
        reply.message.status = FailureCode::OutOfMemory as u16;
        side.say(&mut reply.message, "the client's response pool cannot grow");
        side.answer(reply.message, &reply.views);
        side.ask_for_room();
        self.settle(side);
        drop(reply);
        Ok(())
    }

    /// Places the replies for which there is room now.
    fn place_roomless(&self) -> Result<(), Error> {
        loop {
            let mut side = self.reply.lock();
            let Some(bytes) = side.roomless.front().map(|reply| reply.bytes.len() as u64) else {
                return Ok(());
            };
            let Some((slot, region)) = side.pool.allocate(bytes) else {
                side.ask_for_room();
                self.settle(side);
                return Ok(());
            };
            let Some(mut reply) = side.roomless.pop_front() else { return Ok(()) };
            drop(side);
            reach(Step::LateSlotTaken);
            region.window(RegionOffset(slot.offset), bytes)?.write_from(&reply.bytes)?;
            let mut side = self.reply.lock();
            side.lend(&mut reply.message, &reply.shape, slot);
            side.answer(reply.message, &reply.views);
            self.settle(side);
        }
    }

    /// Sends what the ring had no room for; the dispatcher calls it whenever it looks at the session.
    pub(super) fn flush(&self) {
        let side = self.reply.lock();
        if !side.overflow.is_empty() {
            self.settle(side);
        }
    }

    /// Pushes the overflow, says if some is left, and wakes the client.
    fn settle(&self, mut side: Guard<'_, ReplySide>) {
        while let Some(message) = side.overflow.front().copied() {
            match side.producer.push(&message) {
                Ok(true) => {
                    side.overflow.pop_front();
                }
                Ok(false) => {
                    self.word(RESPONSE_BLOCKED_AT).store(1, Ordering::Release);
                    break;
                }
                Err(_) => {
                    drop(side);
                    self.close();
                    return;
                }
            }
        }
        drop(side);
        ParkWord::from_atomic(self.word(CLIENT_PARK_AT)).wake(|| ring(&self.client_event));
        reach(Step::PeerRung);
    }
}

impl ReplySide {
    /// Says in the message where its payload lies; the slot is the client's from now on.
    fn lend(&mut self, message: &mut Message, shape: &Shape, slot: Slot) {
        message.describe(shape, slot.segment, slot.offset, slot.bytes);
        self.lent.insert((slot.segment, slot.offset), slot);
    }

    /// Asks the client for room for the first reply that waits for it. One question at a time: each is answered by a segment or by a
    /// refusal, and several replies may fit into one segment.
    fn ask_for_room(&mut self) {
        let (None, Some(first)) = (self.asked, self.roomless.front()) else { return };
        let mut wanted = Message::new(Kind::NeedRoom, first.message.job);
        wanted.bytes = first.bytes.len() as u64;
        self.asked = Some(first.message.job);
        self.push(wanted);
        reach(Step::RoomWanted);
    }

    /// Sends (later, if the ring is full) the answer to a call.
    fn answer(&mut self, mut message: Message, views: &Views) {
        views.answered.store(true, Ordering::Relaxed);
        if !views.dropped.load(Ordering::Relaxed) {
            message.flags |= FLAG_RETAINED;
        }
        self.push(message);
        reach(Step::AnswerQueued);
    }

    /// Queues a message behind those that wait already.
    fn push(&mut self, message: Message) {
        self.overflow.push_back(message);
    }

    /// Puts a text into the message or the pool, or none if there is no room even for that.
    fn say(&mut self, message: &mut Message, text: &str) {
        if let Some(place) = message.embed(&Shape::Bytes, text.len() as u64) {
            return place.copy_from_slice(text.as_bytes());
        }
        let Some((slot, region)) = self.pool.allocate(text.len() as u64) else { return };
        let written = region
            .window(RegionOffset(slot.offset), slot.bytes)
            .and_then(|window| window.write_from(text.as_bytes()));
        match written {
            Ok(()) => self.lend(message, &Shape::Bytes, slot),
            Err(_) => self.pool.free(slot),
        }
    }
}

/// Maps a payload segment of the client. Its pages are mapped ahead only if the client has touched them all: pages that we
/// touch first are charged to us.
fn map_segment(fd: OwnedFd, bytes: u64, access: Access, room: u64) -> Result<Arc<Region>, Error> {
    if bytes == 0 || bytes > room {
        return Err(Error::peer_fault(format!("a segment of {bytes} bytes where {room} are allowed")));
    }
    let stat = rustix::fs::fstat(&fd).map_err(Error::system("fstat"))?;
    let touched = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) >= bytes;
    let options = RegionOptions { prefault: touched, ..RegionOptions::default() };
    holds_none("mapping memory");
    let mut region = Region::from_fd_with(fd, access, bytes, &options)?;
    drop(region.take_fd());
    Ok(Arc::new(region))
}

fn non_blocking(fd: OwnedFd) -> Result<OwnedFd, Error> {
    let flags = rustix::fs::fcntl_getfl(fd.as_fd()).map_err(Error::system("fcntl"))?;
    rustix::fs::fcntl_setfl(fd.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)
        .map_err(Error::system("fcntl"))?;
    Ok(fd)
}
