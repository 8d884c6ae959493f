// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: opens a session, sends calls, collects answers.
//!
//! - **Flow** `call` / `call_async` / `Pipeline::submit` ─▶ [`send`] ─▶ rings ─▶ [`collect`] ─▶ `Payload`
//! - **Owner** a `Client` is a handle; clones share the session, which ends with the last of them. Payloads outlive it.
//! - **Not here** what the server does. Any number of threads may use one client: one of them collects, the others wait
//!   for it.

mod answer;
mod arrive;
mod collect;
mod decide;
mod future;
mod job;
mod jobs;
mod outbox;
mod pipeline;
#[expect(unsafe_code, reason = "copies arrays into slots of the request pool")]
mod send;
mod shrink;
mod watch;

pub use decide::{Candidate, Explanation};
#[cfg(feature = "tokio")]
pub use future::Tokio;
pub use future::{AsyncClient, Readiness};
pub use job::{Job, JobState, Limit};
pub use pipeline::{Answer, Batch, Pipeline};
pub use send::Loan;
pub use watch::{Answered, Watch};

use crate::address::Address;
use crate::credentials::Peer;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::fork::SessionSocket;
use crate::handshake::{self, Hello, Opening, Patience, Received, Welcome};
use crate::health::{Health, PING};
use crate::layout::{
    CLIENT_ROBUST_AT, CONTROL_BYTES, ENTRIES_AT, MAGIC, MAGIC_AT, NEWEST, OLDEST, OUTSTANDING_MAX,
    RING_ENTRIES, SERVER_ROBUST_AT, SERVICES_SINCE, VERSION_AT,
};
use crate::options::{CallOptions, Mode};
use crate::payload::{Outgoing, Payload};
use crate::pool::Pool;
use crate::rank::{Lock, Rank, holds_none};
use crate::ring::{Consumer, Producer, REQUESTS, RESPONSES};
use crate::robust::Robust;
use crate::row::SessionRow;
use answer::Responses;
use collect::{Broken, Collector};
use decide::Decisions;
use jobs::Jobs;
use memlift_ground::complete::{WaitPolicy, Waiter, WaiterStats};
use memlift_ground::config::Config;
use memlift_ground::on_wait::OnWait;
use memlift_ground::region::{Region, RegionError, RegionOffset, RegionOptions};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use send::{RequestPool, Sending, Sent};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Memory for requests, mapped and prefaulted when the session opens. The pool grows with what is sent, and shrinks to this
    /// again when that was not used for a few seconds.
    pub request_pool_bytes: u64,
    /// Memory for replies, likewise.
    pub response_pool_bytes: u64,
    /// How far either pool may grow.
    pub pool_bytes_max: u64,
    /// Unanswered calls at most; the server may grant fewer.
    pub outstanding_max: usize,
    /// Longest message, bytes; the server may grant less.
    pub message_bytes_max: u64,
    /// Time limit of calls that name none.
    pub timeout: Option<Duration>,
    /// How to wait for answers.
    pub wait: WaitPolicy,
    /// Longest wait for a server that is not there yet; `None`: opening the session fails at once. It bounds opening as a whole, also
    /// where the server is stopped.
    pub server_wait: Option<Duration>,
    /// Folder for bare names; `None`: the abstract namespace.
    pub socket_dir: Option<std::path::PathBuf>,
    /// Callback that may end the opening of the session.
    pub on_wait: Option<OnWait>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            request_pool_bytes: 64 << 10,
            response_pool_bytes: 64 << 10,
            pool_bytes_max: 16 << 30,
            outstanding_max: 64,
            message_bytes_max: 4 << 30,
            timeout: None,
            wait: WaitPolicy::AUTO.predicting(),
            server_wait: None,
            socket_dir: None,
            on_wait: None,
        }
    }
}

impl ClientOptions {
    /// Takes the options from `memlift.toml` and `MEMLIFT_*`.
    pub fn from_config(config: &Config) -> ClientOptions {
        let ipc = &config.ipc;
        ClientOptions {
            request_pool_bytes: ipc.request_pool_bytes,
            response_pool_bytes: ipc.response_pool_bytes,
            pool_bytes_max: ipc.pool_bytes_max,
            outstanding_max: ipc.outstanding_max as usize,
            message_bytes_max: ipc.message_bytes_max,
            timeout: ipc.timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            wait: WaitPolicy::from_config(config).predicting(),
            server_wait: None,
            socket_dir: ipc.socket_dir.clone(),
            on_wait: None,
        }
    }
}

/// A session with a server.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// This session, for leases that must not keep it open.
    own: Weak<Inner>,
    /// Version of the protocol that both sides speak.
    protocol: u32,
    address: Address,
    options: ClientOptions,
    message_bytes_max: u64,
    outstanding_max: usize,
    socket: Arc<SessionSocket>,
    server_event: OwnedFd,
    own_event: OwnedFd,
    control: Arc<Region>,
    producer: Lock<Producer>,
    requests: Arc<RequestPool>,
    loans: Lock<send::Loans>,
    responses: Lock<Responses>,
    jobs: Lock<Jobs>,
    decisions: Lock<Decisions>,
    changed: Condvar,
    collector: Lock<Collector>,
    /// Cost of waiting, as the thread that collected last left it.
    waits: Lock<WaiterStats>,
    releases: Lock<Vec<crate::message::Message>>,
    broken: OnceLock<Broken>,
    /// True while the process's janitor holds this session.
    has_janitor: AtomicBool,
    /// True once an event loop collects the answers.
    watched: AtomicBool,
    _robust: Option<Robust>,
    row: SessionRow,
}

/// Counters and pool sizes of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClientStats {
    /// Calls sent so far.
    pub calls: u64,
    /// Calls that have no answer yet.
    pub outstanding: usize,
    /// Bytes mapped for requests.
    pub request_pool_bytes: u64,
    /// Of those, in use by loans and unanswered calls.
    pub request_used_bytes: u64,
    /// Bytes mapped for replies.
    pub response_pool_bytes: u64,
    /// Waits that found the answer there.
    pub waits_ready: u64,
    /// Waits that ended while spinning.
    pub waits_spun: u64,
    /// Times a thread slept.
    pub parks: u64,
    /// Nanoseconds spent spinning.
    pub spin_ns: u64,
    /// Handlers at work in the server, as it says.
    pub server_busy_handlers: u32,
    /// Sessions of the server, as it says.
    pub server_sessions: u32,
}

/// How busy a server is, as it says in the memory that it shares with the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServerLoad {
    /// Sessions that are open at the server.
    pub sessions: u32,
    /// Long operations that may run at once.
    pub handlers: u32,
    /// Operations that run now.
    pub busy_handlers: u32,
    /// Requests that wait for a handler.
    pub queued: u32,
}

/// Locks a mutex, poisoned or not: every critical section of this crate leaves its data whole at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Opens a session with the server at `address` (a name, or a path with a `/`).
    ///
    /// # Errors
    ///
    /// [`Error::ServerUnavailable`], [`Error::Refused`], [`Error::BadAddress`], [`Error::DeadlineExceeded`] when a server that
    /// is stopped has not answered within `options.timeout`, or [`Error::Memory`] when the pools would not fit into what the
    /// memory cgroup leaves.
    pub fn connect(address: &str, options: ClientOptions) -> Result<Client, Error> {
        let address = Address::parse(address, options.socket_dir.as_deref())?;
        match options.server_wait {
            Some(wait) => arrive::open_within(&address, &options, wait),
            None => arrive::open_now(&address, &options),
        }
    }

    /// Opens another session with the same address and options, in place of one whose server died: waits for a server for at most
    /// `wait`. Calls, payloads and loans of this session are not touched; a call that was unanswered may have run.
    ///
    /// # Errors
    ///
    /// As [`connect`](Client::connect), with `wait` in place of `options.server_wait`.
    pub fn reconnect(&self, wait: Duration) -> Result<Client, Error> {
        arrive::open_within(&self.0.address, &self.0.options, wait)
    }

    /// Opens a session. Connecting and greeting each end by `timeout`.
    fn open(address: Address, options: ClientOptions, timeout: Option<Duration>) -> Result<Client, Error> {
        let opening = Opening { timeout, on_wait: options.on_wait.clone() };
        let patience = opening.begin();
        let socket = Arc::new(connect_socket(&address, &patience)?);
        reach(Step::Connected);
        let shared = RegionOptions::default();
        let mut control = Region::memfd("memlift-control", CONTROL_BYTES, &shared)?;
        let whole = control.whole();
        whole.window(MAGIC_AT, 8)?.write_from(&MAGIC.to_le_bytes())?;
        whole.window(VERSION_AT, 4)?.write_from(&OLDEST.to_le_bytes())?;
        whole.window(ENTRIES_AT, 4)?.write_from(&RING_ENTRIES.to_le_bytes())?;
        let (request, request_fd) = request_segment(options.request_pool_bytes.max(4096), &|| false)?;
        let (response, response_fd) = response_segment(options.response_pool_bytes.max(4096))?;
        let control_fd = take_fd(&mut control);
        let mut robust = Robust::enter(control_fd.as_fd(), CLIENT_ROBUST_AT);
        let control = Arc::new(control);
        let event =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"));
        let (server_event, own_event) = (event()?, event()?);
        reach(Step::MemoryMade);
        let hello = Hello {
            magic: MAGIC,
            oldest: OLDEST,
            newest: NEWEST,
            control_bytes: CONTROL_BYTES,
            request_bytes: request.bytes(),
            response_bytes: response.bytes(),
        };
        let descriptors =
            [&control_fd, &server_event, &own_event, &request_fd, &response_fd].map(AsFd::as_fd);
        let sent = handshake::send(&socket, &hello, &descriptors);
        // The mappings are enough from here on: a session has three descriptors.
        drop((control_fd, request_fd, response_fd));
        reach(Step::HelloSent);
        let mut answer = patience.receive::<256>(&socket)?;
        if matches!(answer, Received::HangUp) {
            // A server that refuses does not wait for the greeting. Its refusal lies behind the error that this makes.
            answer = patience.receive(&socket)?;
        }
        patience.end(&socket)?;
        let welcome: Welcome = match (answer, sent) {
            (Received::Packet(packet, length, _), _) => match handshake::of_other_major(&packet[..length]) {
                Some(reason) => return Err(Error::Refused { address: address.to_string(), reason }),
                None => handshake::parse(&packet[..length])?,
            },
            (Received::Nothing | Received::HangUp, _) => {
                return Err(Error::PeerDied { peer: "server", doing: Some("opening the session") });
            }
        };
        if welcome.refused != 0 {
            return Err(Error::Refused { address: address.to_string(), reason: welcome.reason() });
        }
        if !(OLDEST..=NEWEST).contains(&welcome.version) {
            let own = handshake::versions(OLDEST, NEWEST);
            let reason = format!("it speaks version {} of the protocol, this client {own}", welcome.version);
            return Err(Error::Refused { address: address.to_string(), reason });
        }
        if let Some(robust) = &mut robust {
            robust.watch(&control, SERVER_ROBUST_AT, &socket);
        }
        let mut pool = Pool::new(options.pool_bytes_max.max(request.bytes()));
        let added = pool.add(Arc::new(request));
        debug_assert!(added.is_none());
        let row = SessionRow::client(&address.to_string(), welcome.pid);
        row.set_pool_bytes(pool.total() + response.bytes());
        let producer = Producer::new(Arc::clone(&control), REQUESTS)?;
        let consumer = Consumer::new(Arc::clone(&control), RESPONSES)?;
        Ok(Client(Arc::new_cyclic(|own| Inner {
            own: own.clone(),
            protocol: welcome.version,
            message_bytes_max: options.message_bytes_max.min(welcome.message_bytes_max),
            outstanding_max: options
                .outstanding_max
                .min(welcome.outstanding_max as usize)
                .clamp(1, OUTSTANDING_MAX),
            socket,
            server_event,
            own_event,
            producer: Lock::new(Rank::Producer, producer),
            requests: RequestPool::new(pool),
            loans: Lock::new(Rank::Loans, send::Loans::default()),
            responses: Lock::new(Rank::Responses, Responses::new(Arc::new(response))),
            jobs: Lock::new(Rank::Jobs, Jobs::default()),
            decisions: Lock::new(Rank::Decisions, Decisions::default()),
            changed: Condvar::new(),
            collector: Lock::new(
                Rank::Collector,
                Collector { consumer, waiter: Waiter::new(options.wait), owed: VecDeque::new() },
            ),
            waits: Lock::new(Rank::Waits, WaiterStats::default()),
            releases: Lock::new(Rank::Releases, Vec::new()),
            broken: OnceLock::new(),
            has_janitor: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            _robust: robust,
            control,
            address,
            options,
            row,
        })))
    }

    /// Calls `operation` and waits for its answer. `options`: [`CallOptions`], or just a time limit that overrides the client's.
    ///
    /// # Errors
    ///
    /// Everything of [`call_async`](Client::call_async), plus [`Error::DeadlineExceeded`] and [`Error::Remote`].
    pub fn call<'a>(
        &self,
        operation: &str,
        data: impl Into<Outgoing<'a>>,
        options: impl Into<CallOptions>,
    ) -> Result<Payload, Error> {
        let options = options.into();
        let limit = Limit::new(options.timeout.or(self.0.options.timeout));
        let sending =
            Sending { mode: Mode::Sync, deadline: limit.deadline, room_until: limit.deadline, rings: true };
        let sent = self.0.send(operation, &data.into(), &options, sending);
        let Sent { id, expect } = sent.map_err(|error| limit.judge(error))?;
        self.0.wait(id, limit, expect)
    }

    /// Sends a call and gives a handle to its answer. Returns once the data has been copied, so it may be reused at
    /// once; blocks while as many calls are unanswered as may be.
    ///
    /// # Errors
    ///
    /// [`Error::PoolFull`], [`Error::MessageTooLarge`], [`Error::Memory`], [`Error::PeerDied`],
    /// [`Error::PeerFault`], [`Error::Forked`], [`Error::DeadlineExceeded`] while waiting for room.
    pub fn call_async<'a>(
        &self,
        operation: &str,
        data: impl Into<Outgoing<'a>>,
        options: impl Into<CallOptions>,
    ) -> Result<Job, Error> {
        let options = options.into();
        let limit = Limit::new(options.timeout.or(self.0.options.timeout));
        self.call_async_within(operation, data, &options, limit, Mode::Async, None)
    }

    /// As [`call_async`](Client::call_async), for callers with other work in between: after `patience` without room for the call
    /// it gives [`Error::Busy`]. Try again with the same `limit`, which replaces the time limit in `options`. `mode` is the mode
    /// that the call has for its user.
    ///
    /// # Errors
    ///
    /// As [`call_async`](Client::call_async).
    pub fn call_async_within<'a>(
        &self,
        operation: &str,
        data: impl Into<Outgoing<'a>>,
        options: &CallOptions,
        limit: Limit,
        mode: Mode,
        patience: Option<Duration>,
    ) -> Result<Job, Error> {
        let sending =
            Sending { mode, deadline: limit.deadline, room_until: limit.sooner(patience), rings: true };
        let sent = self.0.send(operation, &data.into(), options, sending);
        let Sent { id, expect } = sent.map_err(|error| limit.judge(error))?;
        Ok(Job::new(Arc::clone(&self.0), id, limit, expect))
    }

    /// Starts a pipeline of at most `depth` unanswered calls.
    pub fn pipeline(&self, depth: usize) -> Pipeline {
        Pipeline::new(self.clone(), depth)
    }

    /// Lends `bytes` of the request pool, to be filled in place and sent without a copy. Waits for room within the client's time
    /// limit.
    ///
    /// # Errors
    ///
    /// [`Error::PoolFull`], [`Error::MessageTooLarge`], [`Error::Memory`], [`Error::DeadlineExceeded`] when there was no room
    /// in time, or the end of the session.
    pub fn loan(&self, bytes: u64) -> Result<Loan, Error> {
        self.loan_within(bytes, self.0.options.timeout)
    }

    /// As [`loan`](Client::loan), with a time limit of its own; `None`: no limit.
    ///
    /// # Errors
    ///
    /// As [`loan`](Client::loan).
    pub fn loan_within(&self, bytes: u64, timeout: Option<Duration>) -> Result<Loan, Error> {
        let limit = Limit::new(timeout);
        self.0.loan(bytes, limit.deadline).map_err(|error| limit.judge(error))
    }

    /// How busy the server is, without asking it: what it wrote last into the memory that both share.
    pub fn load(&self) -> ServerLoad {
        self.0.load()
    }

    /// Asks the server how it is. `options` as for a call.
    ///
    /// # Errors
    ///
    /// As [`call`](Client::call), and [`Error::PeerTooOld`] of a server that cannot say.
    pub fn ping(&self, options: impl Into<CallOptions>) -> Result<Health, Error> {
        self.needs_services("says if it is ready")?;
        Health::from_bytes(&self.call(PING, Outgoing::none(), options)?.to_vec())
    }

    /// Explains why calls of `operation` with `bytes` of data are made as they are, with the measured costs of the ways that
    /// `options` leave open.
    pub fn explain(
        &self,
        operation: &str,
        bytes: u64,
        mode: Mode,
        options: impl Into<CallOptions>,
    ) -> Explanation {
        let cached = self.0.begins_cached(mode);
        let options = options.into();
        self.0.decisions.with(|decisions| decisions.explain(operation, mode, bytes, &options, cached))
    }

    /// Address of the server.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// User that the server runs as, as the kernel says.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if it does not.
    pub fn peer_uid(&self) -> Result<u32, Error> {
        Ok(Peer::of(&self.0.socket)?.uid)
    }

    /// Checks that the server's version has arguments by name, streams and pings. The error says `what` such a server does.
    ///
    /// # Errors
    ///
    /// [`Error::PeerTooOld`].
    pub fn needs_services(&self, what: &str) -> Result<(), Error> {
        match self.0.protocol >= SERVICES_SINCE {
            true => Ok(()),
            false => {
                Err(Error::PeerTooOld { what: what.into(), speaks: self.0.protocol, needs: SERVICES_SINCE })
            }
        }
    }

    /// Returns true if both are handles to one session.
    pub fn is_same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Process that opened the session.
    pub fn pid(&self) -> u32 {
        self.0.socket.pid()
    }

    /// Checks that the session still works.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::PeerDied`], [`Error::PeerFault`] or [`Error::Closed`], by how the session ended.
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Ends the session now, for all clones: unanswered calls fail, and the pools' memory goes back. Payloads and loans stay
    /// valid, and keep the memory that they lie in.
    pub fn close(&self) {
        self.0.break_off(Broken::Closed);
    }

    /// Returns the session's counters.
    pub fn stats(&self) -> ClientStats {
        self.0.stats()
    }
}

impl Inner {
    fn word(&self, offset: u64) -> &AtomicU32 {
        self.control.layout(RegionOffset(offset)).expect("the control segment has its full length")
    }

    fn load(&self) -> ServerLoad {
        let says = |offset| self.word(offset).load(Ordering::Relaxed);
        ServerLoad {
            sessions: says(crate::layout::SESSIONS_AT),
            handlers: says(crate::layout::HANDLERS_AT),
            busy_handlers: says(crate::layout::BUSY_HANDLERS_AT),
            queued: says(crate::layout::QUEUED_AT),
        }
    }

    fn stats(&self) -> ClientStats {
        let load = self.load();
        let (request_pool_bytes, request_used_bytes) =
            self.requests.pool.with(|pool| (pool.total(), pool.used()));
        let response_pool_bytes = self.responses.with(|responses| responses.total());
        // Not from the collector itself, which a thread may hold for as long as it waits.
        let waits = self.waits.with(|waits| *waits);
        let (calls, outstanding) = self.jobs.with(|jobs| (jobs.started, jobs.outstanding()));
        ClientStats {
            calls,
            outstanding,
            request_pool_bytes,
            request_used_bytes,
            response_pool_bytes,
            waits_ready: waits.ready,
            waits_spun: waits.spun,
            parks: waits.parks,
            spin_ns: waits.spin_ns,
            server_busy_handlers: load.busy_handlers,
            server_sessions: load.sessions,
        }
    }
}

/// The descriptor of a memfd, to be sent to the server. The mapping does without.
fn take_fd(region: &mut Region) -> OwnedFd {
    region.take_fd().expect("a memfd has a descriptor")
}

/// Memory for requests: nobody but this process can write it, whoever gets its descriptor. Given up if `stop` says so.
fn request_segment(bytes: u64, stop: &dyn Fn() -> bool) -> Result<(Region, OwnedFd), RegionError> {
    holds_none("mapping memory");
    let options = RegionOptions { sole_writer: true, ..RegionOptions::default() };
    let mut region = Region::memfd_interruptible("memlift-request", bytes, &options, stop)?;
    let fd = take_fd(&mut region);
    Ok((region, fd))
}

/// Memory for replies, touched here and so charged to this process, which then only reads it.
fn response_segment(bytes: u64) -> Result<(Region, OwnedFd), RegionError> {
    holds_none("mapping memory");
    let region = Region::memfd("memlift-response", bytes, &RegionOptions::default())?;
    let mut region = region.into_read_only()?;
    let fd = take_fd(&mut region);
    Ok((region, fd))
}

/// A connection. Connecting and greeting each end by `timeout` at the latest.
fn connect_socket(address: &Address, patience: &Patience<'_>) -> Result<SessionSocket, Error> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("socket"))?;
    patience.connect(&socket, address, &address.socket()?)?;
    if matches!(address, Address::Abstract(_)) {
        // Anybody can bind an abstract name, also one with our user in it.
        let peer = Peer::of(&socket)?;
        let own = rustix::process::getuid().as_raw();
        if peer.uid != own {
            return Err(Error::Refused {
                address: address.to_string(),
                reason: format!("it runs as user {}, not as {own}: use a socket file", peer.uid),
            });
        }
    }
    Ok(SessionSocket::new(socket))
}
