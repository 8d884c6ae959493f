// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: takes sessions, runs operations by name, answers in any order.
//!
//! - **Flow** leader: rings of all sessions ─▶ short operations at once; for a long one it hands the lead to another thread
//!   and runs it itself ─▶ reply ─▶ back in line
//! - **Order** one thread leads at a time (it holds the dispatcher's mutex); any thread may reply
//! - **Owner** a session's memory belongs to its client; the server holds it mapped while a request or the session lives
//! - **Not here** the client.
//!
//! The thread that took a request off the ring runs it, so a call costs one wake-up of the server and not two; the thread
//! that takes over the lead wakes beside it. An operation counts as short while its average run is below
//! [`ServerOptions::inline_limit`]; its first runs count as long, so that they keep nobody else waiting.

mod dispatch;
mod drain;
mod ends;
mod group;
mod join;
mod listen;
mod reply;
mod run;
mod session;

pub use reply::{Progress, Reply, Request, Responder, Staged};

use crate::address::Address;
use crate::error::Error;
use crate::message::operation_hash;
use crate::number_map::NumberMap;
use crate::rank::{Lock, Rank};
use dispatch::Dispatcher;
use ends::Ends;
use group::Group;
pub(crate) use listen::{Listener, is_allowed};
use memlift_ground::complete::WaitPolicy;
use memlift_ground::config::Config;
use run::Queue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use session::Session;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

/// Memory in which a handler reads a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// The client's, where it lies: no copy. Bytes that are read twice may have changed meanwhile.
    #[default]
    View,
    /// The server's own: copied before its handler sees it.
    Copy,
}

/// Thread that runs an operation's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// By its average run: the leader while that is short, else a handler's thread.
    #[default]
    Measured,
    /// The leader: each run hands its request on and returns.
    Short,
    /// A handler's thread: a run may take any time, whatever others took.
    Long,
}

/// How an operation's requests are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Behaviour {
    /// Thread that runs them.
    pub pace: Pace,
    /// True if they are taken also while the server drains, because they end what other calls have begun.
    pub outlasts_drain: bool,
}

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Long operations that may run at once. 0: the leader runs everything.
    pub handlers: usize,
    /// Operations that take less than this on average are short.
    pub inline_limit: Duration,
    /// Longest message taken, bytes.
    pub message_bytes_max: u64,
    /// Memory that one session may bring, per direction.
    pub pool_bytes_max: u64,
    /// Unanswered calls per session.
    pub outstanding_max: u32,
    /// Sessions at most.
    pub sessions_max: usize,
    /// Users that may connect beside the server's own; `None`: any.
    pub allowed_uids: Option<Vec<u32>>,
    /// Groups whose processes may connect too: their effective group, not those that a user is in besides.
    pub allowed_gids: Vec<u32>,
    /// True if it says from the beginning that it is ready for calls; else [`Server::set_ready`] says so.
    pub ready: bool,
    /// True if other servers may live at the address, which say so, too: each client's session is one of theirs. The server takes its place
    /// there when it starts, not when it is bound.
    pub shared: bool,
    /// Memory in which handlers read requests.
    pub trust: Trust,
    /// How the leader waits for requests.
    pub wait: WaitPolicy,
    /// Folder for bare names; `None`: the abstract namespace.
    pub socket_dir: Option<std::path::PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        ServerOptions {
            handlers: cores.clamp(2, 8),
            inline_limit: Duration::from_millis(1),
            message_bytes_max: 4 << 30,
            pool_bytes_max: 16 << 30,
            outstanding_max: 64,
            sessions_max: 1024,
            allowed_uids: Some(Vec::new()),
            allowed_gids: Vec::new(),
            ready: true,
            shared: false,
            trust: Trust::View,
            wait: WaitPolicy::AUTO,
            socket_dir: None,
        }
    }
}

impl ServerOptions {
    /// Returns true if some user beside the server's own may connect.
    fn lets_others_in(&self) -> bool {
        self.allowed_uids.as_ref().is_none_or(|uids| !uids.is_empty()) || !self.allowed_gids.is_empty()
    }

    /// Takes the options from `memlift.toml` and `MEMLIFT_*`.
    pub fn from_config(config: &Config) -> ServerOptions {
        let ipc = &config.ipc;
        ServerOptions {
            message_bytes_max: ipc.message_bytes_max,
            pool_bytes_max: ipc.pool_bytes_max,
            outstanding_max: ipc.outstanding_max,
            wait: WaitPolicy::from_config(config),
            socket_dir: ipc.socket_dir.clone(),
            ..ServerOptions::default()
        }
    }
}

/// Counters of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Sessions that are open.
    pub sessions: usize,
    /// Requests taken so far.
    pub requests: u64,
    /// Sessions that ended because their client broke the protocol.
    pub faults: u64,
    /// Connections turned away.
    pub refused: u64,
    /// Long requests waiting for their turn.
    pub queued: usize,
    /// Handlers at work.
    pub busy_handlers: usize,
    /// Servers that live at its address, this one included; 0 before the start of one that shares it, and after its end.
    pub members: usize,
}

/// A server. Clones are handles to the same one; it stops with the last of them.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    _stopper: Arc<Stopper>,
}

/// State that all threads of a server share.
pub(crate) struct Shared {
    address: Address,
    options: ServerOptions,
    listener: Mutex<Option<Listener>>,
    /// The servers that share the address, while this one is one of them.
    group: Mutex<Weak<Group>>,
    operations: RwLock<NumberMap<u64, Arc<Operation>>>,
    dispatcher: Mutex<Option<Dispatcher>>,
    queue: Lock<Queue>,
    /// Sessions whose clients want to know how busy the server is.
    watchers: Lock<Vec<Weak<Session>>>,
    ends: Ends,
    ready: AtomicBool,
    draining: AtomicBool,
    stop: AtomicBool,
    stop_event: OwnedFd,
    counters: Counters,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

#[derive(Default)]
pub(crate) struct Counters {
    sessions: AtomicUsize,
    requests: AtomicU64,
    faults: AtomicU64,
    refused: AtomicU64,
    busy: AtomicUsize,
}

/// A request on its way to a handler.
pub(crate) struct Task {
    operation: Arc<Operation>,
    request: Request,
    responder: Responder,
}

/// Prefix of the names of the library's own operations.
const OWN: &str = "memlift.";

/// Runs after which the average of an operation says how long it takes.
const KNOWN_RUNS: u64 = 2;

type Handler = dyn Fn(Request, Responder) + Send + Sync;

/// A named operation.
pub(crate) struct Operation {
    name: Arc<str>,
    handler: Box<Handler>,
    behaviour: Behaviour,
    average_ns: AtomicU64,
    runs: AtomicU64,
}

impl Operation {
    fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

thread_local! {
    /// The server that this thread serves for; null: none. Compared, never followed.
    static SERVES: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

struct Stopper(Arc<Shared>);

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Server {
    /// Binds the address and starts to listen. Requests are taken once [`start`](Server::start) or
    /// [`serve`](Server::serve) runs. A server that shares its address ([`ServerOptions::shared`]) does both at its start.
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`], [`Error::BadAddress`], [`Error::System`].
    pub fn bind(address: &str, options: ServerOptions) -> Result<Server, Error> {
        let address = Address::parse(address, options.socket_dir.as_deref())?;
        address.socket()?;
        let listener = match options.shared {
            false => Some(Listener::bind(&address, options.lets_others_in())?),
            true => None,
        };
        let stop_event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
        let ready = options.ready;
        let shared = Arc::new(Shared {
            address,
            options,
            listener: Mutex::new(listener),
            group: Mutex::default(),
            operations: RwLock::default(),
            dispatcher: Mutex::new(None),
            queue: Lock::new(Rank::Queue, Queue::default()),
            watchers: Lock::new(Rank::Watchers, Vec::new()),
            ends: Ends::default(),
            ready: AtomicBool::new(ready),
            draining: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            stop_event,
            counters: Counters::default(),
            threads: Mutex::default(),
        });
        let server = Server { _stopper: Arc::new(Stopper(Arc::clone(&shared))), shared };
        server.register_ping()?;
        Ok(server)
    }

    /// Names an operation. Its handler gives the reply, or a text that the client sees as the error.
    ///
    /// # Errors
    ///
    /// [`Error::OperationExists`].
    pub fn register(
        &self,
        name: &str,
        handler: impl Fn(&Request) -> Result<Reply, String> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.register_raw(name, move |request, responder| match handler(&request) {
            Ok(reply) => {
                let staged = responder.stage(&reply.outgoing());
                drop(request);
                responder.commit(staged);
            }
            Err(message) => {
                drop(request);
                responder.fail(&message);
            }
        })
    }

    /// Names an operation whose handler answers by the [`Responder`], on any thread and at any time. A responder that is
    /// dropped fails its call.
    ///
    /// # Errors
    ///
    /// [`Error::OperationExists`].
    pub fn register_raw(
        &self,
        name: &str,
        handler: impl Fn(Request, Responder) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.register_with(name, Behaviour::default(), handler)
    }

    /// As [`register_raw`](Server::register_raw), for an operation whose requests are run in another way.
    ///
    /// # Errors
    ///
    /// [`Error::OperationExists`].
    pub fn register_with(
        &self,
        name: &str,
        behaviour: Behaviour,
        handler: impl Fn(Request, Responder) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let average_ns = match behaviour.pace {
            Pace::Measured | Pace::Short => 0,
            Pace::Long => u64::MAX,
        };
        let runs = if behaviour.pace == Pace::Measured { 0 } else { KNOWN_RUNS };
        let mut operations = self.shared.operations.write().unwrap_or_else(PoisonError::into_inner);
        match operations.entry(operation_hash(name)) {
            std::collections::hash_map::Entry::Occupied(taken) => {
                Err(Error::OperationExists { name: name.into(), other: taken.get().name.to_string() })
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(Arc::new(Operation {
                    name: name.into(),
                    handler: Box::new(handler),
                    behaviour,
                    average_ns: AtomicU64::new(average_ns),
                    runs: AtomicU64::new(runs),
                }));
                Ok(())
            }
        }
    }

    /// Waits until sessions have ended, and returns their numbers ([`Responder::session_number`]); each is told once. `None`: the
    /// server was stopped. Sessions that ended before the first call of [`watch_ends`](Server::watch_ends) are not told.
    pub fn ended(&self) -> Option<Vec<u64>> {
        self.shared.ends.wait()
    }

    /// From now on the ends of sessions are noted for [`ended`](Server::ended).
    pub fn watch_ends(&self) {
        self.shared.ends.watch();
    }

    /// Starts [`threads`](Server::threads) threads that serve.
    ///
    /// # Errors
    ///
    /// As [`open`](Server::open), and [`Error::System`] if a thread cannot be started.
    pub fn start(&self) -> Result<(), Error> {
        self.shared.open()?;
        let mut threads = crate::client::lock(&self.shared.threads);
        for index in 0..self.threads() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new()
                .name(format!("memlift-serve-{index}"))
                // It ends by itself only when epoll fails, and then its clients see the hang-up.
                .spawn(move || drop(shared.serve()))
                .map_err(|source| Error::System { doing: "starting a thread", source })?;
            threads.push(thread);
        }
        Ok(())
    }

    /// Makes ready to serve, as the first call of [`start`](Server::start) or [`serve`](Server::serve) does. A server that shares its address
    /// takes its place there, which takes some milliseconds while others are there.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel refuses epoll, [`Error::Closed`] after a stop. Of a server that shares its address also
    /// [`Error::AddressInUse`]: whoever is there shares it with nobody, or did not answer for ten seconds.
    pub fn open(&self) -> Result<(), Error> {
        self.shared.open()
    }

    /// Serves on this thread until the server is stopped. Run it on [`threads`](Server::threads) threads at once.
    ///
    /// # Errors
    ///
    /// As [`open`](Server::open).
    pub fn serve(&self) -> Result<(), Error> {
        self.shared.open()?;
        self.shared.serve()
    }

    /// Stops: no new sessions or requests; running handlers finish, their clients see a hang-up. Waits for the threads that
    /// [`start`](Server::start) made, and then the address is free; a handler's call does not wait, the drop after it does.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Address at which it listens.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Threads that should serve: one for each long operation that may run at once, and one that leads.
    pub fn threads(&self) -> usize {
        self.shared.options.handlers + 1
    }

    /// Returns the server's counters.
    pub fn stats(&self) -> ServerStats {
        let counters = &self.shared.counters;
        let group = crate::client::lock(&self.shared.group).upgrade();
        let alone = usize::from(!self.shared.options.shared);
        ServerStats {
            sessions: counters.sessions.load(Ordering::Relaxed),
            requests: counters.requests.load(Ordering::Relaxed),
            faults: counters.faults.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            queued: self.shared.queue.with(|queue| queue.tasks.len()),
            busy_handlers: counters.busy.load(Ordering::Relaxed),
            members: group.map_or(alone, |group| group.living()),
        }
    }
}

impl Shared {
    /// Tells all threads to end and waits for those that the server started, except from a thread that serves: the next
    /// stop from elsewhere, which may be the drop, waits for it as well.
    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        memlift_ground::complete::ring(&self.stop_event);
        drop(crate::client::lock(&self.listener).take());
        if SERVES.get() == std::ptr::from_ref(self) {
            return;
        }
        // Joined under the lock, so that of two who stop neither returns early; a thread that serves does not take it.
        for thread in crate::client::lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
        // A leader that is not one of these threads gives the dispatcher up by itself.
        if let Ok(mut seat) = self.dispatcher.try_lock() {
            *seat = None;
            // Without a dispatcher nobody else says so.
            self.ends.stop();
        }
    }

    /// Makes the dispatcher, once.
    fn open(self: &Arc<Self>) -> Result<(), Error> {
        // Without waiting: a leader holds the lock, and then there is a dispatcher.
        if let Ok(mut seat) = self.dispatcher.try_lock()
            && seat.is_none()
        {
            if self.options.shared {
                self.join()?;
            }
            *seat = Some(Dispatcher::new(Arc::clone(self))?);
        }
        Ok(())
    }

    /// Takes this server's place at the address that it shares.
    fn join(&self) -> Result<(), Error> {
        if self.is_stopped() || self.draining.load(Ordering::Acquire) {
            return Err(Error::Closed { what: "server" });
        }
        let listener = join::join(&self.address, self.options.lets_others_in())?;
        *crate::client::lock(&self.group) = listener.group().map(Arc::downgrade).unwrap_or_default();
        *crate::client::lock(&self.listener) = Some(listener);
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The operation with that hash, or the names of those that there are.
    fn operation(&self, hash: u64) -> Result<Arc<Operation>, String> {
        let operations = self.operations.read().unwrap_or_else(PoisonError::into_inner);
        operations.get(&hash).cloned().ok_or_else(|| {
            let names = operations.values().map(|operation| &*operation.name);
            let mut names: Vec<&str> = names.filter(|name| !name.starts_with(OWN)).collect();
            names.sort_unstable();
            if names.is_empty() { "none".into() } else { names.join(", ") }
        })
    }

    /// Leads, runs what is long, and gets back in line, until the server is stopped.
    fn serve(self: &Arc<Self>) -> Result<(), Error> {
        let outer = SERVES.replace(Arc::as_ptr(self));
        let ended = self.take_turns();
        SERVES.set(outer);
        ended
    }

    fn take_turns(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            let mut seat = crate::client::lock(&self.dispatcher);
            let Some(dispatcher) = seat.as_mut() else { return Ok(()) };
            match dispatcher.lead() {
                Ok(Some(task)) => {
                    drop(seat);
                    self.run_long(task);
                }
                Ok(None) => {
                    *seat = None;
                    return Ok(());
                }
                Err(error) => {
                    *seat = None;
                    return Err(error);
                }
            }
        }
    }
}
