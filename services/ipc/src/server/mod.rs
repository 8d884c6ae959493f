// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: takes sessions, runs operations by name, answers in any order.
//!
//! Flow    dispatcher: rings of all sessions ─▶ short operations at once, long ones ─▶ queue ─▶ handler threads ─▶ reply
//! Owner   a session's memory belongs to its client; the server holds it mapped while a request or the session lives
//! Not here the client. One dispatcher thread owns the request rings; any thread may reply.
//!
//! An operation runs on the dispatcher when its average run is below [`ServerOptions::inline_limit`]: a hand-over to
//! another thread costs more than it. Its first runs, and long ones, go to handler threads, so that they keep nobody else
//! waiting.

mod dispatch;
mod listen;
mod reply;
mod session;

pub use reply::{Reply, Request, Responder, Staged};

use crate::address::Address;
use crate::error::Error;
use crate::message::operation_hash;
use dispatch::Dispatcher;
use listen::Listener;
use memlift_engine::complete::WaitPolicy;
use memlift_engine::config::Config;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads for long operations. 0: the dispatcher runs everything.
    pub handlers: usize,
    /// Operations that take less than this on average run on the dispatcher.
    pub inline_limit: Duration,
    /// Longest message taken.
    pub message_bytes_max: u64,
    /// Memory that one session may bring, per direction.
    pub pool_bytes_max: u64,
    /// Unanswered calls per session.
    pub outstanding_max: u32,
    /// Sessions at most.
    pub sessions_max: usize,
    /// Users that may connect beside the server's own; `None`: any.
    pub allowed_uids: Option<Vec<u32>>,
    /// How the dispatcher waits for requests.
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
            wait: WaitPolicy::AUTO,
            socket_dir: None,
        }
    }
}

impl ServerOptions {
    /// What `memlift.toml` and `MEMLIFT_*` say.
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

/// What a server has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ServerStats {
    /// Open sessions.
    pub sessions: usize,
    /// Requests taken.
    pub requests: u64,
    /// Sessions that ended because their client broke the protocol.
    pub faults: u64,
    /// Connections turned away.
    pub refused: u64,
    /// Requests waiting for a handler thread.
    pub queued: usize,
    /// Handlers at work.
    pub busy_handlers: usize,
}

/// A server. Clones are handles to the same one; it stops with the last of them.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    _stopper: Arc<Stopper>,
}

/// What all threads of a server share.
pub(crate) struct Shared {
    address: Address,
    options: ServerOptions,
    listener: Mutex<Option<Listener>>,
    operations: RwLock<HashMap<u64, Arc<Operation>>>,
    queue: Mutex<Queue>,
    queued: Condvar,
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

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    idle: usize,
}

/// A request on its way to a handler.
pub(crate) struct Task {
    operation: Arc<Operation>,
    request: Request,
    responder: Responder,
}

type Handler = dyn Fn(Request, Responder) + Send + Sync;

/// A named operation.
pub(crate) struct Operation {
    name: Arc<str>,
    handler: Box<Handler>,
    average_ns: AtomicU64,
    runs: AtomicU64,
}

impl Operation {
    fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

struct Stopper(Arc<Shared>);

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Server {
    /// Binds the address and starts to listen. Requests are taken once [`start`](Server::start) or
    /// [`run_dispatcher`](Server::run_dispatcher) runs.
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`], [`Error::BadAddress`], [`Error::System`].
    pub fn bind(address: &str, options: ServerOptions) -> Result<Server, Error> {
        let address = Address::parse(address, options.socket_dir.as_deref())?;
        let listener = Listener::bind(&address)?;
        let stop_event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
        let shared = Arc::new(Shared {
            address,
            options,
            listener: Mutex::new(Some(listener)),
            operations: RwLock::default(),
            queue: Mutex::default(),
            queued: Condvar::new(),
            stop: AtomicBool::new(false),
            stop_event,
            counters: Counters::default(),
            threads: Mutex::default(),
        });
        Ok(Server { _stopper: Arc::new(Stopper(Arc::clone(&shared))), shared })
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
        let mut operations = self.shared.operations.write().unwrap_or_else(PoisonError::into_inner);
        match operations.entry(operation_hash(name)) {
            std::collections::hash_map::Entry::Occupied(taken) => {
                Err(Error::OperationExists { name: name.into(), other: taken.get().name.to_string() })
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(Arc::new(Operation {
                    name: name.into(),
                    handler: Box::new(handler),
                    average_ns: AtomicU64::new(0),
                    runs: AtomicU64::new(0),
                }));
                Ok(())
            }
        }
    }

    /// Starts a dispatcher thread and the handler threads.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if a thread cannot be started, [`Error::Closed`] after a stop.
    pub fn start(&self) -> Result<(), Error> {
        let dispatcher = Dispatcher::new(Arc::clone(&self.shared))?;
        let mut threads = crate::client::lock(&self.shared.threads);
        let mut spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name)
                .spawn(run)
                .map(|thread| threads.push(thread))
                .map_err(|source| Error::System { doing: "starting a thread", source })
        };
        for index in 0..self.shared.options.handlers {
            let shared = Arc::clone(&self.shared);
            spawn(format!("memlift-handler-{index}"), Box::new(move || shared.run_handler()))?;
        }
        // The dispatcher ends by itself only when epoll fails, and then its clients see the hang-up.
        spawn("memlift-dispatch".into(), Box::new(move || drop(dispatcher.run())))
    }

    /// Runs the dispatcher on this thread until the server is stopped.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel refuses epoll; [`Error::Closed`] if it is running already or was stopped.
    pub fn run_dispatcher(&self) -> Result<(), Error> {
        Dispatcher::new(Arc::clone(&self.shared))?.run()
    }

    /// Runs long operations on this thread until the server is stopped.
    pub fn run_handler(&self) {
        self.shared.run_handler();
    }

    /// Stops: no new sessions or requests; running handlers finish, their clients see a hang-up.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Handler threads it was configured with.
    pub fn handlers(&self) -> usize {
        self.shared.options.handlers
    }

    /// What it has done so far.
    pub fn stats(&self) -> ServerStats {
        let counters = &self.shared.counters;
        ServerStats {
            sessions: counters.sessions.load(Ordering::Relaxed),
            requests: counters.requests.load(Ordering::Relaxed),
            faults: counters.faults.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            queued: crate::client::lock(&self.shared.queue).tasks.len(),
            busy_handlers: counters.busy.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    /// Tells all threads to end and waits for those that the server started, except from one of them.
    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        memlift_engine::complete::ring(&self.stop_event);
        drop(crate::client::lock(&self.queue));
        self.queued.notify_all();
        drop(crate::client::lock(&self.listener).take());
        let threads = std::mem::take(&mut *crate::client::lock(&self.threads));
        let own = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The operation with that hash, or the names of those that there are.
    fn operation(&self, hash: u64) -> Result<Arc<Operation>, String> {
        let operations = self.operations.read().unwrap_or_else(PoisonError::into_inner);
        operations.get(&hash).cloned().ok_or_else(|| {
            let mut names: Vec<&str> = operations.values().map(|operation| &*operation.name).collect();
            names.sort_unstable();
            if names.is_empty() { "none".into() } else { names.join(", ") }
        })
    }

    /// Runs a request here if its operation is short, else queues it.
    fn take(&self, task: Task) {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let limit = self.options.inline_limit.as_nanos();
        let known = task.operation.runs.load(Ordering::Relaxed) >= 2;
        let short = known && u128::from(task.operation.average_ns.load(Ordering::Relaxed)) < limit;
        if short || self.options.handlers == 0 {
            return self.run(task);
        }
        let idle = {
            let mut queue = crate::client::lock(&self.queue);
            queue.tasks.push_back(task);
            queue.idle > 0
        };
        if idle {
            self.queued.notify_one();
        }
    }

    fn run_handler(self: &Arc<Self>) {
        let mut queue = crate::client::lock(&self.queue);
        while !self.is_stopped() {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                self.run(task);
                queue = crate::client::lock(&self.queue);
                continue;
            }
            queue.idle += 1;
            queue = self.queued.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn run(&self, task: Task) {
        let Task { operation, request, responder } = task;
        if responder.is_pointless() {
            return;
        }
        if request.is_late() {
            drop(request);
            responder.fail_late();
            return;
        }
        self.counters.busy.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let session = responder.session();
        session.publish_concurrency(&self.counters);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (operation.handler)(request, responder);
        }))
        .is_err();
        self.counters.busy.fetch_sub(1, Ordering::Relaxed);
        session.publish_concurrency(&self.counters);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // A lost update between two threads costs one sample of an average.
        let average = operation.average_ns.load(Ordering::Relaxed);
        let runs = operation.runs.fetch_add(1, Ordering::Relaxed);
        let next = if runs == 0 { ns } else { average - average / 4 + ns / 4 };
        operation.average_ns.store(next, Ordering::Relaxed);
        // The responder was dropped by the unwinding and has failed the call already.
        let _ = panicked;
    }
}
