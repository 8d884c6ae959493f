// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dispatcher: owns all request rings; the thread that leads takes what arrives, and sleeps when nothing does.
//!
//! - **Flow** busy sessions are polled; the others have announced that nobody polls them, so their clients ring. epoll ─▶ new
//!   connections, greetings, new segments, hang-ups, rings of quiet sessions
//! - **Order** a session is quiet only after its park word says so; before sleeping, all busy ones are looked at once more
//! - **Owner** consumers of the request rings live here and nowhere else

use super::group::Turns;
use super::listen::Listener;
use super::reply::{Request, RequestLease, Responder};
use super::session::{Session, Views};
use super::{Shared, Task};
use crate::credentials::Peer;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::fork::SessionSocket;
use crate::handshake::{self, AddSegment, GROUP_VERSION, Hello, Join, Joined, Received, Welcome};
use crate::layout::{MAGIC, OUTSTANDING_MAX};
use crate::message::{CALL_FLAGS, FailureCode, Kind, Message};
use crate::number_map::NumberMap;
use crate::payload::Payload;
use crate::ring::Consumer;
use bytemuck::Zeroable;
use memlift_ground::complete::{Parker, Waited, Waiter};
use memlift_ground::region::RegionOffset;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::RecvFlags;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST: u64 = 2;

/// Messages taken from one session before the next one has its turn.
const TURN: usize = 16;
/// Rounds over the busy sessions between two looks at epoll.
const ROUNDS: u32 = 32;
/// Sleeps without a message after which a session counts as quiet.
const PATIENCE: u32 = 16;
/// Expected time from a client's ring to its message, nanoseconds.
const SOON_NS: u64 = 50_000;
/// Time between two looks at a connection that another server of the address is to accept.
const LOOK: Duration = Duration::from_millis(1);
/// Connections that may be heard, before they greet, by a server that has as many sessions as it may: a server that wants to join is not turned
/// away with the clients.
const CALLERS_MAX: usize = 64;

struct Entry {
    session: Arc<Session>,
    consumer: Consumer,
    idle: u32,
}

/// A connection that has not greeted yet.
struct Caller {
    socket: SessionSocket,
    peer: Peer,
}

pub(super) struct Dispatcher {
    shared: Arc<Shared>,
    /// None: the server drains.
    listener: Option<Listener>,
    epoll: OwnedFd,
    callers: NumberMap<u64, Caller>,
    sessions: NumberMap<u64, Entry>,
    busy: Vec<u64>,
    next: u64,
    waiter: Waiter,
    /// True if a client rang and its message was not there yet.
    expecting: bool,
    /// A long operation that the leader is to run after it has handed the lead on.
    long: Option<Task>,
    turns: Turns,
    /// Time of the next look at a connection that another server of the address is to accept; until then the listener is not watched.
    look_again: Option<Instant>,
}

/// Sleeps in epoll, while the park words of all busy sessions say so.
struct EpollParker<'a> {
    epoll: &'a OwnedFd,
    sessions: Vec<&'a Session>,
    events: RefCell<Vec<epoll::Event>>,
}

impl Parker for EpollParker<'_> {
    fn prepare(&self) {
        self.sessions.iter().for_each(|session| session.park_word().prepare());
        reach(Step::ParkAnnounced);
    }

    fn park(&self, until: Option<Instant>) -> io::Result<()> {
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            rustix::time::Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        poll_events(self.epoll, &mut self.events.borrow_mut(), timeout.as_ref())
    }

    fn finish(&self) {
        self.sessions.iter().for_each(|session| session.park_word().finish());
    }
}

fn poll_events(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<&rustix::time::Timespec>,
) -> io::Result<()> {
    events.clear();
    events.reserve(64);
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Dispatcher {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Dispatcher, Error> {
        let listener = crate::client::lock(&shared.listener).take();
        let listener =
            listener.ok_or(Error::Closed { what: "server (or its dispatcher runs already), so it" })?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(Error::system("epoll_create"))?;
        let dispatcher = Dispatcher {
            listener: Some(listener),
            epoll,
            callers: NumberMap::default(),
            sessions: NumberMap::default(),
            busy: Vec::new(),
            next: FIRST,
            waiter: Waiter::new(shared.options.wait),
            expecting: false,
            long: None,
            turns: Turns::default(),
            look_again: None,
            shared,
        };
        if let Some(listener) = &dispatcher.listener {
            dispatcher.watch(listener, LISTENER)?;
        }
        dispatcher.watch(&dispatcher.shared.stop_event, STOP)?;
        dispatcher.publish_standing();
        Ok(dispatcher)
    }

    fn watch(&self, fd: &impl AsFd, data: u64) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, EventData::new_u64(data), EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))
    }

    /// Takes what arrives until there is a long operation to run, which it gives; `None`: the server was stopped.
    pub(super) fn lead(&mut self) -> Result<Option<Task>, Error> {
        let mut events = Vec::new();
        let mut rounds = 0;
        while !self.shared.is_stopped() {
            let progressed = self.serve_busy();
            if let Some(task) = self.long.take() {
                return Ok(Some(task));
            }
            rounds += 1;
            if progressed && rounds < ROUNDS {
                continue;
            }
            rounds = 0;
            if progressed {
                let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
                poll_events(&self.epoll, &mut events, Some(&now))
                    .map_err(|source| Error::System { doing: "epoll_wait", source })?;
            } else {
                events = self.sleep()?;
            }
            for event in &events {
                self.handle(event.data.u64());
            }
            if self.look_again.is_some_and(|at| Instant::now() >= at) {
                self.accept_connections();
            }
        }
        Ok(None)
    }

    /// Waits for a message of a busy session, or for an event.
    fn sleep(&mut self) -> Result<Vec<epoll::Event>, Error> {
        self.quieten();
        let busy: Vec<&Entry> = self.busy.iter().filter_map(|key| self.sessions.get(key)).collect();
        let line = match busy.as_slice() {
            [only] => only.consumer.line(),
            _ => std::ptr::null(),
        };
        let parker = EpollParker {
            epoll: &self.epoll,
            sessions: busy.iter().map(|entry| &*entry.session).collect(),
            events: RefCell::default(),
        };
        // Clients ring while they still copy (see the client's `send`).
        let soon = std::mem::take(&mut self.expecting).then_some(SOON_NS);
        let shared = &self.shared;
        let waited = self.waiter.wait(
            &parker,
            line,
            || {
                busy.iter().any(|entry| entry.consumer.is_ready())
                    || !parker.events.borrow().is_empty()
                    || shared.is_stopped()
            },
            soon,
            self.look_again,
        );
        match waited {
            Waited::Ready | Waited::TimedOut => Ok(parker.events.into_inner()),
            Waited::Broken(source) => Err(Error::System { doing: "epoll_wait", source }),
        }
    }

    /// Stops polling sessions that have been idle for a while.
    fn quieten(&mut self) {
        let sessions = &mut self.sessions;
        self.busy.retain(|key| {
            let Some(entry) = sessions.get_mut(key) else { return false };
            entry.idle += 1;
            if entry.idle <= PATIENCE {
                return true;
            }
            entry.session.park_word().prepare();
            if entry.consumer.is_ready() {
                entry.session.park_word().finish();
                return true;
            }
            false
        });
    }

    /// Takes messages of all busy sessions; gives whether there were any.
    fn serve_busy(&mut self) -> bool {
        let mut progressed = false;
        let mut at = 0;
        while let Some(&key) = self.busy.get(at).filter(|_| self.long.is_none()) {
            at += 1;
            match self.serve(key) {
                Ok(taken) => progressed |= taken > 0,
                Err(error) => {
                    self.fault(key, &error);
                    at -= 1;
                }
            }
        }
        progressed
    }

    fn serve(&mut self, key: u64) -> Result<usize, Error> {
        let (mut taken, mut message) = (0, Message::zeroed());
        while taken < TURN && self.long.is_none() {
            let Some(entry) = self.sessions.get_mut(&key) else { break };
            if !entry.consumer.pop(&mut message)? {
                break;
            }
            entry.idle = 0;
            taken += 1;
            let session = Arc::clone(&entry.session);
            self.accept(&session, &message)?;
        }
        Ok(taken)
    }

    fn accept(&mut self, session: &Arc<Session>, message: &Message) -> Result<(), Error> {
        match message.kind()? {
            Kind::Call => self.call(session, message),
            Kind::Release => session.released(message.segment, message.offset),
            Kind::NoRoom => session.no_room(message.job),
            Kind::Query => session.tell(self.shared.state_of(session, message.job)),
            Kind::Retire => {
                // Its announcement may still lie in the socket.
                hear_all(session)?;
                session.retire(message.status, message.segment)
            }
            Kind::Reply | Kind::Failure | Kind::NeedRoom | Kind::State | Kind::Retired => {
                Err(Error::peer_fault("a server's message from a client"))
            }
        }
    }

    fn call(&mut self, session: &Arc<Session>, message: &Message) -> Result<(), Error> {
        let options = &self.shared.options;
        if session.unanswered.load(Ordering::Relaxed) >= options.outstanding_max {
            return Err(Error::peer_fault("more unanswered calls than were granted"));
        }
        if message.flags & !CALL_FLAGS != 0 {
            return Err(Error::peer_fault(format!("call flags {:#04x}", message.flags)));
        }
        let (payload, views) = view(session, message)?;
        reach(Step::CallViewed);
        session.row.call(message.bytes);
        let bytes_max = options.message_bytes_max;
        let responder = Responder::new(Arc::clone(session), message, Arc::clone(&views), bytes_max);
        let bytes = message.bytes.max(message.payload_bytes(payload.shape()));
        if bytes > bytes_max {
            drop(payload);
            responder.fail_as(
                FailureCode::BadRequest,
                &format!("{bytes} bytes are over the limit of {bytes_max}"),
            );
            return Ok(());
        }
        match self.shared.operation(message.operation) {
            Ok(operation) => {
                let name = operation.shared_name();
                let request = Request::new(payload, name, message, session.peer_uid, views);
                self.long = self.shared.take(Task { operation, request, responder });
            }
            Err(known) => {
                drop(payload);
                match self.shared.draining.load(Ordering::Acquire) {
                    true => responder.fail_as(FailureCode::Draining, ""),
                    false => responder.fail_as(FailureCode::UnknownOperation, &known),
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, data: u64) {
        match data {
            LISTENER => self.accept_connections(),
            STOP => {
                let _ = rustix::io::read(&self.shared.stop_event, &mut [0u8; 8]);
                self.publish_standing();
                if self.shared.draining.load(Ordering::Acquire)
                    && let Some(listener) = self.listener.take()
                {
                    let _ = epoll::delete(&self.epoll, &listener);
                }
            }
            _ => {
                let key = data & !1;
                let result = match (data & 1, self.callers.contains_key(&key)) {
                    (0, true) => self.greet(key),
                    (0, false) => self.hear(key),
                    _ => self.rung(key),
                };
                if let Err(error) = result {
                    self.fault(key, &error);
                }
            }
        }
    }

    fn accept_connections(&mut self) {
        if !self.has_turn() {
            return;
        }
        // A descriptor shortage must not make this loop spin: the listener stays readable and is looked at again.
        while let Some(listener) = &self.listener
            && let Ok(Some(socket)) = listener.accept()
        {
            reach(Step::Accepted);
            let Ok(peer) = Peer::of(&socket) else { continue };
            let socket = SessionSocket::new(socket);
            let sessions = match listener.group() {
                Some(_) if self.callers.len() < CALLERS_MAX => 0,
                _ => self.sessions.len() + self.callers.len(),
            };
            if let Some(reason) = peer.refusal(&self.shared.options, sessions) {
                self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                let _ = handshake::send(&socket, &Welcome::refused(&reason), &[]);
                continue;
            }
            self.next += 2;
            let key = self.next;
            if self.watch(&socket, key).is_ok() {
                self.callers.insert(key, Caller { socket, peer });
            }
            if let Some(group) = self.listener.as_ref().and_then(Listener::group) {
                group.accepted();
            }
            if !self.has_turn() {
                return;
            }
        }
    }

    /// Returns true if this server accepts the connections that wait. False: another server of the address is to, and the listener is
    /// looked at again soon.
    fn has_turn(&mut self) -> bool {
        self.publish_standing();
        let Some(listener) = &self.listener else {
            self.look_again = None;
            return false;
        };
        let Some(group) = listener.group() else { return true };
        let now = Instant::now();
        let waits = listener.has_caller();
        let is_ours = waits && self.turns.is_ours(group, now);
        let look_again = (waits && !is_ours).then(|| now + LOOK);
        if !waits {
            self.turns.rest();
        }
        if look_again.is_some() != self.look_again.is_some() {
            let flags = if look_again.is_some() { EventFlags::empty() } else { EventFlags::IN };
            let _ = epoll::modify(&self.epoll, listener, EventData::new_u64(LISTENER), flags);
        }
        self.look_again = look_again;
        is_ours
    }

    /// Tells the other servers of the address how this one stands.
    fn publish_standing(&self) {
        if let Some(group) = self.listener.as_ref().and_then(Listener::group) {
            group.publish(self.shared.standing(self.sessions.len() + self.callers.len()));
        }
    }

    /// Gives a server that wants to join the listening socket and the table, if it is one of our user and the address is shared.
    fn admit(&self, caller: &Caller, join: &Join) {
        // While this server drains the successor tries again, and finds another member, or nobody.
        let Some(listener) = &self.listener else { return };
        let reason = match (listener.group(), join.version) {
            _ if caller.peer.uid != rustix::process::getuid().as_raw() => "it is of another user",
            (None, _) => "the server shares its address with nobody",
            (Some(group), GROUP_VERSION) => {
                let Some(table) = group.table() else { return };
                let joined = Joined { magic: MAGIC, version: GROUP_VERSION, reserved: 0 };
                let _ = handshake::send_now(&caller.socket, &joined, &[listener.as_fd(), table]);
                return;
            }
            _ => "the servers there are of another release: use one release for all",
        };
        self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        let _ = handshake::send_now(&caller.socket, &Welcome::refused(reason), &[]);
    }

    /// Reads the first packet of a connection, which is its greeting.
    fn greet(&mut self, key: u64) -> Result<(), Error> {
        let Some(caller) = self.callers.get(&key) else { return Ok(()) };
        let (packet, length, descriptors) =
            match handshake::receive::<256>(&caller.socket, RecvFlags::DONTWAIT)? {
                Received::Packet(packet, length, descriptors) => (packet, length, descriptors),
                Received::Nothing => return Ok(()),
                Received::HangUp => {
                    self.callers.remove(&key);
                    return Ok(());
                }
            };
        if let Some(reason) = handshake::of_other_major(&packet[..length]) {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            let _ = handshake::send(&caller.socket, &Welcome::refused(&reason), &[]);
            self.callers.remove(&key);
            return Ok(());
        }
        if length == size_of::<Join>() {
            let join: Join = handshake::parse(&packet[..length])?;
            if let Some(caller) = self.callers.remove(&key) {
                self.admit(&caller, &join);
            }
            self.publish_standing();
            return Ok(());
        }
        let hello: Hello = handshake::parse(&packet[..length])?;
        let Some(Caller { socket, peer }) = self.callers.remove(&key) else { return Ok(()) };
        if let Some(reason) = peer.refusal(&self.shared.options, self.sessions.len()) {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            let _ = handshake::send(&socket, &Welcome::refused(&reason), &[]);
            return Ok(());
        }
        let socket = Arc::new(socket);
        let address = self.shared.address.to_string();
        let limit = self.shared.options.pool_bytes_max;
        let opened = Session::open(Arc::clone(&socket), peer, &address, &hello, descriptors, limit);
        let (session, consumer) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                let _ = handshake::send(&socket, &Welcome::refused(&error.to_string()), &[]);
                return Ok(());
            }
        };
        reach(Step::SessionOpened);
        let options = &self.shared.options;
        let outstanding_max = options.outstanding_max.min(OUTSTANDING_MAX as u32);
        let welcome = Welcome::granted(session.protocol, options.message_bytes_max, outstanding_max);
        self.watch(&session.event, key | 1)?;
        session.park_word().prepare();
        // Before the welcome: a client's first look at the load finds it.
        let session = Arc::new(session);
        self.shared.counters.sessions.fetch_add(1, Ordering::Relaxed);
        let watcher = Arc::downgrade(&session);
        self.shared.watchers.with(|watchers| watchers.push(watcher));
        self.shared.publish_queue();
        if handshake::send(&session.socket, &welcome, &[]).is_ok() {
            reach(Step::WelcomeSent);
            self.sessions.insert(key, Entry { session, consumer, idle: 0 });
        } else {
            self.shared.counters.sessions.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads the packets, or the hang-up, of an open session.
    fn hear(&mut self, key: u64) -> Result<(), Error> {
        let Some(entry) = self.sessions.get(&key) else { return Ok(()) };
        let session = Arc::clone(&entry.session);
        if hear_all(&session)? {
            return Ok(());
        }
        self.remove(key);
        Ok(())
    }

    /// The client of a quiet session rang.
    fn rung(&mut self, key: u64) -> Result<(), Error> {
        let Some(entry) = self.sessions.get_mut(&key) else { return Ok(()) };
        let _ = rustix::io::read(&entry.session.event, &mut [0u8; 8]);
        entry.idle = 0;
        entry.session.flush();
        if !self.busy.contains(&key) {
            entry.session.park_word().finish();
            self.busy.push(key);
        }
        self.expecting |= !entry.consumer.is_ready();
        Ok(())
    }

    fn fault(&mut self, key: u64, error: &Error) {
        if matches!(error, Error::PeerFault { .. } | Error::Memory(_)) {
            self.shared.counters.faults.fetch_add(1, Ordering::Relaxed);
        }
        self.callers.remove(&key);
        self.remove(key);
    }

    fn remove(&mut self, key: u64) {
        self.busy.retain(|&busy| busy != key);
        if let Some(entry) = self.sessions.remove(&key) {
            self.shared.counters.sessions.fetch_sub(1, Ordering::Relaxed);
            // Requests in flight keep the session's memory; its descriptors must leave epoll now.
            let _ = epoll::delete(&self.epoll, &entry.session.socket);
            let _ = epoll::delete(&self.epoll, &entry.session.event);
            entry.session.close();
            self.shared.ends.note(entry.session.number);
        }
        self.publish_standing();
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.sessions.values().for_each(|entry| entry.session.close());
        // Now, and not before: those who are told drop what they hold, and no client shall hear of that instead of the hang-up.
        self.shared.ends.stop();
    }
}

/// Takes all packets of a session's socket; `false`: the client hung up.
fn hear_all(session: &Session) -> Result<bool, Error> {
    loop {
        match handshake::receive::<256>(&session.socket, RecvFlags::DONTWAIT)? {
            Received::Packet(packet, length, descriptors) => {
                let segment: AddSegment = handshake::parse(&packet[..length])?;
                session.add_segment(&segment, descriptors)?;
            }
            Received::Nothing => return Ok(true),
            Received::HangUp => return Ok(false),
        }
    }
}

/// Returns a request's bytes where they lie, after a check of shape, segment and bounds; or a copy of what came in the message.
fn view(session: &Arc<Session>, message: &Message) -> Result<(Payload, Arc<Views>), Error> {
    let shape = message.shape()?;
    let embedded = message.embedded(&shape)?;
    if message.bytes == 0 {
        return Ok((Payload::empty(shape), Arc::new(Views::none())));
    }
    if let Some(bytes) = embedded {
        return Ok((Payload::embedded(shape, bytes), Arc::new(Views::none())));
    }
    let region = match session.request_segment(message.segment) {
        Some(region) => region,
        None => {
            // The client announced it on the socket before it sent this message.
            hear_all(session)?;
            session
                .request_segment(message.segment)
                .ok_or_else(|| Error::peer_fault(format!("request segment {}", message.segment)))?
        }
    };
    let window = region
        .window(RegionOffset(message.offset), message.bytes)
        .map_err(|error| Error::peer_fault(error.to_string()))?;
    let pointer = window.as_ptr();
    let views = Arc::new(Views::default());
    let lease = RequestLease { session: Arc::clone(session), job: message.job, views: Arc::clone(&views) };
    Ok((Payload::view(shape, message.bytes, pointer, region, lease), views))
}
