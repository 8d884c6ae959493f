// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server for a store that speaks the Redis protocol.
//!
//! - **Flow** threads, each with its connections and a poll: read what came ─▶ run every whole request (`protocol`, `commands`) ─▶
//!   one sync for all of them ─▶ write the replies
//! - **Order** with [`Durability::Group`], the default, no reply leaves before everything that it may have seen is durable: the
//!   requests of a round, of all connections, run buffered and share one fence or fdatasync. With [`Durability::Replicated`] they share the
//!   wait for the replica, too
//! - **Copies** another thread makes them, one at a time (`saves`)
//! - **Room** a thread gives room back to the disk when much was removed ([`ServerOptions::tidy`])
//! - **Rule** a client that does not read its replies is not read from. A client that sends nonsense, and one beyond a limit,
//!   gets an error and is closed: what it still sends is thrown away for a while, for an early end would take the error with it.
//!   Nothing that a client sends ends the server
//! - **Not here** passwords and encryption: listen on trusted networks only

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Kv;
use crate::error::{Error, Result};
use crate::holes::punchable;
use crate::options::Durability;
use crate::pool::Pool;

mod commands;
mod pattern;
pub mod protocol;
mod saves;
mod session;

use commands::{Shared, Then};
use protocol::{Limits, Reply, Request};
use session::Session;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// When a reply to a write leaves: `Sync`: after a commit of its own. `Group`: after one that it shares. `Buffered`: at
    /// once; it is durable a second later at the latest. `Replicated`: as `Group`, when the replica has it, too.
    pub durability: Durability,
    /// Threads that serve.
    pub threads: usize,
    /// Connections at one time.
    pub clients: u64,
    /// Bytes of requests and replies that one thread keeps for its connections; beyond it the connection with most is closed.
    pub buffer_bytes: usize,
    /// Upper bounds of a request.
    pub limits: Limits,
    /// How often the pool is looked at for room that a compaction would give back to the disk ([`Pool::compact`]); zero: never.
    pub tidy: Duration,
    /// The folder for copies of the pool that BGSAVE asks for; None: it is refused.
    pub copies: Option<PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
        ServerOptions {
            durability: Durability::Group,
            threads,
            clients: 10_000,
            buffer_bytes: 512 << 20,
            limits: Limits::default(),
            tidy: Duration::from_secs(5),
            copies: None,
        }
    }
}

/// Replies that wait for a client beyond this keep its requests waiting.
const OUTPUT_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// How long a thread waits at most before it looks whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// Entries that a tick looks at for expiry.
const SWEEP: usize = 200;
/// A client that will be closed is read from, to no use, until it sends nothing for a second, and for so long at most.
const LINGER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Connections beyond the limit that are told so; more are closed at once.
const REFUSED: u64 = 64;
/// Slabs that each worker compares with their checksums per tick: 2.5 MiB a second.
const SCRUB: u64 = 16;

/// A compaction rests so long between two of its transactions: it takes at most every other moment from the clients.
const REST: Duration = Duration::from_micros(500);
/// Less than this is not given back.
const TIDY_BYTES: u64 = 8 << 20;

/// Serves the store in `pool` on `listener` until `stop` is true or the pool stops.
///
/// # Errors
///
/// As [`Kv::open`]; [`Error::Stopped`] when the disk fails: replies to what is not durable were not sent.
pub fn serve(listener: TcpListener, pool: &Pool, options: &ServerOptions, stop: &AtomicBool) -> Result<()> {
    let durability = match options.durability {
        Durability::Group | Durability::Replicated => Durability::Buffered, // until the round's sync
        other => other,
    };
    let kv = Kv::open(pool, durability)?;
    listener.set_nonblocking(true).map_err(|error| refused("listen", &error))?;
    let shared = Shared::new(options);
    let failure = Mutex::new(None);
    let fail = |error: Error| {
        stop.store(true, Ordering::Release);
        failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
    };
    std::thread::scope(|scope| {
        if !options.tidy.is_zero() {
            scope.spawn(|| {
                if let Err(error) = tidy(pool, options.tidy, &shared, stop) {
                    fail(error);
                }
            });
        }
        if let Some(folder) = &options.copies {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    if let Err(error) = shared.saves.serve(pool, folder, stop) {
                        fail(error);
                    }
                    std::thread::sleep(TICK);
                }
            });
        }
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                let (clients, scratch) = (Vec::new(), vec![0; READ_BYTES]);
                let worker =
                    Worker { listener: &listener, kv: &kv, options, shared: &shared, clients, scratch };
                if let Err(error) = worker.run(stop) {
                    fail(error);
                }
            });
        }
    });
    let failure = failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    failure.map_or_else(|| kv.sync(), Err)
}

/// Gives room back to the disk, until `stop`: when half a heap of bytes was freed since the last look and what is free in pieces, or has
/// blocks, is a quarter of what is in use.
fn tidy(pool: &Pool, every: Duration, shared: &Shared, stop: &AtomicBool) -> Result<()> {
    let store = pool.store();
    if punchable(&store.medium, store.mechanism as u8).is_none() {
        return Ok(()); // it keeps its blocks
    }
    let mut looked = store.freed_bytes.load(Ordering::Relaxed);
    loop {
        let next = Instant::now() + every;
        while Instant::now() < next {
            if stop.load(Ordering::Acquire) {
                return Ok(());
            }
            std::thread::sleep(TICK.min(every));
        }
        let (heap, free) = pool.usage();
        let freed = store.freed_bytes.load(Ordering::Relaxed);
        // Looking at all slabs reads a page of each.
        if freed.wrapping_sub(looked) < (heap / 2).max(TIDY_BYTES) {
            continue;
        }
        looked = freed;
        if store.sparse_bytes() < ((heap - free) / 4).max(TIDY_BYTES) {
            continue;
        }
        let done = pool.compact_while(|_, _| {
            std::thread::sleep(REST);
            !stop.load(Ordering::Acquire)
        });
        match done {
            Ok(done) => {
                shared.compactions.fetch_add(1, Ordering::Relaxed);
                shared.given_back.fetch_add(done.before.saturating_sub(done.after), Ordering::Relaxed);
            }
            Err(error @ Error::Stopped { .. }) => return Err(error),
            // A damaged page, or no room: what moved has moved, and it is tried again when as much was freed.
            Err(_) => {}
        }
        // Moving frees, too.
        looked = store.freed_bytes.load(Ordering::Relaxed);
    }
}

fn refused(what: &str, error: &io::Error) -> Error {
    Error::Argument { what: format!("the server cannot {what}: {error}") }
}

/// A connection, its unread input and its unsent replies.
struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    request: Request,
    output: Reply,
    sent: usize,
    session: Session,
    /// No further request is served.
    closing: bool,
    /// Its replies are out since then, and when it last sent something.
    lingers: Option<[Instant; 2]>,
    gone: bool,
    /// Whole requests may be left: its replies were too many to go on.
    paused: bool,
}

impl Client {
    fn new(stream: TcpStream, shared: &Shared) -> io::Result<Client> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let session = Session::new(&shared.sessions, stream.peer_addr().ok(), stream.local_addr().ok());
        Ok(Client {
            stream,
            session,
            lingers: None,
            input: Vec::new(),
            request: Request::default(),
            output: Reply::default(),
            sent: 0,
            closing: false,
            gone: false,
            paused: false,
        })
    }

    fn waits(&self) -> bool {
        self.output.written() - self.sent > OUTPUT_BYTES
    }

    /// Takes in what is there, a bounded piece of it.
    fn receive(&mut self, scratch: &mut [u8]) {
        match self.stream.read(scratch) {
            Ok(0) => self.gone = true,
            Ok(_) if self.closing => {
                if let Some([_, heard]) = &mut self.lingers {
                    *heard = Instant::now();
                }
            }
            Ok(read) => self.input.extend_from_slice(&scratch[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.gone = true,
        }
    }

    /// Runs the whole requests that are there. An error is the store's.
    fn work(&mut self, kv: &Kv<'_>, shared: &Shared, limits: &Limits) -> Result<()> {
        let mut used = 0;
        self.paused = false;
        while !self.closing && used < self.input.len() {
            if self.waits() {
                self.paused = true;
                break;
            }
            match self.request.read(&self.input[used..], limits) {
                Ok(false) => break,
                Ok(true) => {
                    let arguments = self.request.arguments(&self.input[used..]);
                    let done = commands::run(kv, shared, &mut self.session, &arguments, &mut self.output)?;
                    self.closing = done == Then::Close;
                    used += self.request.bytes();
                    self.request.clear();
                }
                Err(wrong) => {
                    self.output.error(&format!("ERR {wrong}"));
                    self.closing = true;
                }
            }
        }
        if used > 0 {
            self.session.described(|described| described.used = Instant::now());
        }
        self.input.drain(..if self.closing { self.input.len() } else { used });
        if self.input.is_empty() {
            self.input.shrink_to(READ_BYTES);
        }
        Ok(())
    }

    fn send(&mut self) {
        while self.sent < self.output.written() {
            match self.stream.write(&self.output.bytes()[self.sent..]) {
                Ok(0) => {
                    self.gone = true;
                    return;
                }
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.gone |= error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            }
        }
        self.output.clear(READ_BYTES);
        self.sent = 0;
        if self.closing && self.lingers.is_none() {
            self.lingers = Some([Instant::now(); 2]);
            self.gone |= self.stream.shutdown(Shutdown::Write).is_err();
        }
    }

    /// Returns true if it was told why it is closed, and has had the time to hear it.
    fn has_lingered(&self) -> bool {
        let [quiet, whole] = LINGER;
        self.lingers.is_some_and(|[since, heard]| since.elapsed() > whole || heard.elapsed() > quiet)
    }

    /// Closes it for this reason, in the place of what it waits for.
    fn refuse(&mut self, why: &str) {
        // Within a reply, an error would be part of it.
        self.gone |= self.sent > 0;
        self.input = Vec::new();
        let mut reply = Reply::default();
        reply.error(why);
        (self.output, self.sent, self.closing, self.paused) = (reply, 0, true, false);
        self.send();
        self.gone |= self.lingers.is_none();
    }
}

struct Worker<'s, 'p> {
    listener: &'s TcpListener,
    kv: &'s Kv<'p>,
    options: &'s ServerOptions,
    shared: &'s Shared,
    clients: Vec<Client>,
    scratch: Vec<u8>,
}

impl Worker<'_, '_> {
    fn run(mut self, stop: &AtomicBool) -> Result<()> {
        let (mut swept, mut synced) = (Instant::now(), Instant::now());
        let outcome = loop {
            if stop.load(Ordering::Acquire) {
                break Ok(());
            }
            if let Err(error) = self.round() {
                break Err(error);
            }
            if swept.elapsed() >= TICK {
                swept = Instant::now();
                // Expired entries are never seen. Removing them may wait for room.
                if let Err(error @ Error::Stopped { .. }) = self.kv.expire_some(SWEEP) {
                    break Err(error);
                }
                match self.kv.pool().scrub(SCRUB) {
                    Ok(damaged) => self.shared.damaged().extend(damaged),
                    Err(error) => break Err(error),
                }
            }
            if self.options.durability == Durability::Buffered && synced.elapsed() >= Duration::from_secs(1) {
                synced = Instant::now();
                if let Err(error) = self.kv.sync() {
                    break Err(error);
                }
            }
        };
        self.shared.clients.fetch_sub(self.clients.len() as u64, Ordering::Relaxed);
        outcome
    }

    /// Waits for events and handles them.
    fn round(&mut self) -> Result<()> {
        let mut ready = Vec::with_capacity(self.clients.len() + 1);
        ready.push(PollFd::new(self.listener, PollFlags::IN));
        // A client whose replies went out may have whole requests left from before.
        let mut left = false;
        for client in &self.clients {
            let mut events = PollFlags::empty();
            if !client.waits() && (!client.closing || client.lingers.is_some()) {
                events |= PollFlags::IN;
            }
            if client.sent < client.output.written() {
                events |= PollFlags::OUT;
            }
            left |= client.paused && !client.waits();
            ready.push(PollFd::new(&client.stream, events));
        }
        let wait = if left { Duration::ZERO } else { TICK };
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        match poll(&mut ready, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(refused("wait for connections", &errno.into())),
        }
        let events: Vec<PollFlags> = ready.iter().map(PollFd::revents).collect();
        drop(ready);
        for (client, events) in self.clients.iter_mut().zip(&events[1..]) {
            if events.contains(PollFlags::OUT) {
                client.send();
            }
            if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
                && (!client.closing || client.lingers.is_some())
                && !client.waits()
            {
                client.receive(&mut self.scratch);
            } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
                client.gone = true; // there is nobody to reply to
            }
            if !client.input.is_empty() {
                client.work(self.kv, self.shared, &self.options.limits)?;
            }
        }
        let durability = self.options.durability;
        if matches!(durability, Durability::Group | Durability::Replicated)
            && self.clients.iter().any(|client| client.output.written() > client.sent)
        {
            self.kv.sync()?;
            if durability == Durability::Replicated {
                self.replicated()?;
            }
        }
        for client in &mut self.clients {
            if client.output.written() > client.sent {
                client.send();
            }
        }
        self.relieve();
        let before = self.clients.len();
        self.clients.retain(|client| !client.gone && !client.has_lingered());
        self.shared.clients.fetch_sub((before - self.clients.len()) as u64, Ordering::Relaxed);
        if events[0].contains(PollFlags::IN) {
            self.accept();
        }
        Ok(())
    }

    /// Waits until the replica has what the replies of this round say. If it does not get that, each client is told so in the place of its
    /// replies, and its connection closes: it cannot tell which of its changes the replica lacks.
    fn replicated(&mut self) -> Result<()> {
        match self.kv.pool().store().await_replica() {
            Err(error @ Error::NotReplicated { .. }) => {
                let why = format!("NOREPLICAS {error}");
                let unsent = |client: &&mut Client| client.output.written() > client.sent;
                self.clients.iter_mut().filter(unsent).for_each(|client| client.refuse(&why));
                Ok(())
            }
            waited => waited,
        }
    }

    /// Closes the connections that hold most, when all together hold too much.
    fn relieve(&mut self) {
        let queued = |client: &Client| client.session.multi.as_ref().map_or(0, |multi| multi.bytes);
        let held = |client: &Client| {
            client.input.len() + client.request.held() + client.output.written() + queued(client)
        };
        let total: usize = self.clients.iter().map(held).sum();
        if total > self.options.buffer_bytes
            && let Some(largest) = self.clients.iter_mut().max_by_key(|client| held(client))
        {
            largest.refuse("ERR the server is short of memory for requests");
        }
    }

    fn accept(&mut self) {
        // A few at a time: the other threads want some too.
        for _ in 0..16 {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Probably out of descriptors: the listener is ready again at once, so wait until a connection closes.
                Err(_) => return std::thread::sleep(TICK / 10),
            };
            self.shared.connections.fetch_add(1, Ordering::Relaxed);
            let before = self.shared.clients.fetch_add(1, Ordering::Relaxed);
            match Client::new(stream, self.shared) {
                Ok(mut client) if before < self.options.clients + REFUSED => {
                    if before >= self.options.clients {
                        client.refuse("ERR max number of clients reached");
                    }
                    self.clients.push(client);
                }
                _ => {
                    self.shared.clients.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }
}
