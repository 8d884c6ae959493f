// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread of the server, with the connections that it has accepted.
//!
//! - **Flow** epoll says which connections are ready ─▶ each is read from once, its whole requests run ─▶ one sync for all of them ─▶
//!   each gets its replies in one write
//! - **Rule** a round costs what the ready connections cost, however many others are open: it looks at no other. Sums over all
//!   connections are kept as they change ([`Worker::settle`])
//! - **Rule** epoll waits for what a connection can use: input while its replies are few enough, room while replies wait
//! - **Not here** one connection's state: `client`; what the threads do beside requests: `Worker::tick`

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::client::Client;
use super::commands::Shared;
use super::{READ_BYTES, ServerOptions, TICK, refused};
use crate::error::{Error, Result};
use crate::kv::Kv;
use crate::options::Durability;

/// Ready connections of one round, at most.
const EVENTS: usize = 1024;
/// The listener among the connections' numbers.
const LISTENER: u64 = u64::MAX;
/// Entries that a tick looks at for expiry.
const SWEEP: usize = 200;
/// Slabs that each worker compares with their checksums per tick: 2.5 MiB a second.
const SCRUB: u64 = 16;
/// Connections beyond the limit that are told so; more are closed at once.
const REFUSED: u64 = 64;

pub(super) struct Worker<'s, 'p> {
    listener: &'s TcpListener,
    kv: &'s Kv<'p>,
    options: &'s ServerOptions,
    shared: &'s Shared,
    epoll: OwnedFd,
    /// Its connections, each at its number.
    clients: Vec<Option<Client>>,
    /// Numbers that no connection has.
    free: Vec<usize>,
    /// Bytes that all connections hold together.
    held: usize,
    events: Vec<Event>,
    /// Connections of this round, each once.
    ready: Vec<usize>,
    /// Connections with whole requests left, for the next round.
    left: Vec<usize>,
    scratch: Vec<u8>,
}

impl<'s, 'p> Worker<'s, 'p> {
    pub fn new(
        listener: &'s TcpListener,
        kv: &'s Kv<'p>,
        options: &'s ServerOptions,
        shared: &'s Shared,
    ) -> Result<Worker<'s, 'p>> {
        let failed = |errno: Errno| refused("wait for connections", &errno.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN).map_err(failed)?;
        Ok(Worker {
            listener,
            kv,
            options,
            shared,
            epoll,
            clients: Vec::new(),
            free: Vec::new(),
            held: 0,
            events: Vec::with_capacity(EVENTS),
            ready: Vec::new(),
            left: Vec::new(),
            scratch: vec![0; READ_BYTES],
        })
    }

    /// Serves until `stop`, or until the store cannot go on.
    pub fn run(mut self, stop: &AtomicBool) -> Result<()> {
        let outcome = self.rounds(stop);
        let open = self.clients.iter().flatten().count() as u64;
        self.shared.clients.fetch_sub(open, Ordering::Relaxed);
        outcome
    }

    fn rounds(&mut self, stop: &AtomicBool) -> Result<()> {
        let (mut ticked, mut synced) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Acquire) {
            self.round()?;
            if ticked.elapsed() < TICK {
                continue;
            }
            ticked = Instant::now();
            self.tick()?;
            if self.options.durability == Durability::Buffered && synced.elapsed() >= Duration::from_secs(1) {
                synced = Instant::now();
                self.kv.sync()?;
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        for number in 0..self.clients.len() {
            if self.clients[number].as_ref().is_some_and(Client::has_lingered) {
                self.remove(number);
            }
        }
        // Expired entries are never seen. Removing them may wait for room.
        if let Err(error @ Error::Stopped { .. }) = self.kv.expire_some(SWEEP) {
            return Err(error);
        }
        self.shared.damaged().extend(self.kv.pool().scrub(SCRUB)?);
        Ok(())
    }

    /// Waits for events and handles them.
    fn round(&mut self) -> Result<()> {
        let accepts = self.wait()?;
        for at in 0..self.ready.len() {
            let Some(client) = &mut self.clients[self.ready[at]] else { continue };
            if !client.input.is_empty() {
                client.work(self.kv, self.shared, &self.options.limits)?;
            }
        }
        let durability = self.options.durability;
        let replies = |number: &usize| self.clients[*number].as_ref().is_some_and(Client::has_replies);
        if matches!(durability, Durability::Group | Durability::Replicated) && self.ready.iter().any(replies)
        {
            self.kv.sync()?;
            if durability == Durability::Replicated {
                self.replicated()?;
            }
        }
        for at in 0..self.ready.len() {
            let number = self.ready[at];
            if let Some(client) = &mut self.clients[number] {
                client.send();
                self.settle(number);
            }
        }
        self.ready.clear();
        self.relieve();
        if accepts {
            self.accept();
        }
        Ok(())
    }

    /// Waits until connections are ready, or some have requests left, and reads from the former. True: somebody connects.
    fn wait(&mut self) -> Result<bool> {
        let wait = if self.left.is_empty() { TICK } else { Duration::ZERO };
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(refused("wait for connections", &errno.into())),
        }
        std::mem::swap(&mut self.ready, &mut self.left);
        let mut accepts = false;
        for event in &self.events {
            let (number, flags) = (event.data.u64(), event.flags);
            if number == LISTENER {
                accepts = true;
                continue;
            }
            let number = number as usize;
            let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else { continue };
            if flags.contains(EventFlags::OUT) {
                client.send();
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) && client.listens() {
                client.receive(&mut self.scratch);
            } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                client.gone = true; // there is nobody to reply to
            }
            if !client.listed {
                client.listed = true;
                self.ready.push(number);
            }
        }
        Ok(accepts)
    }

    /// Brings the sums, and what epoll waits for, to the state of a connection; removes it if it is gone.
    fn settle(&mut self, number: usize) {
        let Some(client) = self.clients[number].as_mut() else { return };
        let held = client.holds();
        self.held = self.held - client.held + held;
        client.held = held;
        if client.gone {
            return self.remove(number);
        }
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, client.listens());
        wanted.set(EventFlags::OUT, client.has_replies());
        if wanted != client.awaited {
            client.awaited = wanted;
            if epoll::modify(&self.epoll, &client.stream, EventData::new_u64(number as u64), wanted).is_err()
            {
                return self.remove(number);
            }
        }
        client.listed = client.paused && !client.waits();
        if client.listed {
            self.left.push(number);
        }
    }

    /// Closes a connection, which takes it out of the epoll set, too.
    fn remove(&mut self, number: usize) {
        if let Some(client) = self.clients[number].take() {
            self.held -= client.held;
            self.free.push(number);
            self.left.retain(|left| *left != number);
            self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until the replica has what the replies of this round say. If it does not get that, each client is told so in the place of its
    /// replies, and its connection closes: it cannot tell which of its changes the replica lacks.
    fn replicated(&mut self) -> Result<()> {
        match self.kv.pool().store().await_replica() {
            Err(error @ Error::NotReplicated { .. }) => {
                let why = format!("NOREPLICAS {error}");
                for number in &self.ready {
                    if let Some(client) = self.clients[*number].as_mut().filter(|client| client.has_replies())
                    {
                        client.refuse(&why);
                    }
                }
                Ok(())
            }
            waited => waited,
        }
    }

    /// Closes the connection that holds most, when all together hold too much.
    fn relieve(&mut self) {
        if self.held <= self.options.buffer_bytes {
            return;
        }
        let held = |(_, client): &(usize, &Option<Client>)| client.as_ref().map_or(0, |client| client.held);
        if let Some((number, _)) = self.clients.iter().enumerate().max_by_key(held)
            && let Some(client) = &mut self.clients[number]
        {
            client.refuse("ERR the server is short of memory for requests");
            self.settle(number);
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
            let client =
                Client::new(stream, self.shared).ok().filter(|_| before < self.options.clients + REFUSED);
            if !client.is_some_and(|client| self.adopt(client, before >= self.options.clients)) {
                self.shared.clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes a new connection in, or tells it that it is one too many. False: it is closed.
    fn adopt(&mut self, client: Client, too_many: bool) -> bool {
        let number = self.free.pop().unwrap_or(self.clients.len());
        let data = EventData::new_u64(number as u64);
        if epoll::add(&self.epoll, &client.stream, data, client.awaited).is_err() {
            self.free.extend((number < self.clients.len()).then_some(number));
            return false;
        }
        self.clients.resize_with(self.clients.len().max(number + 1), || None);
        let client = self.clients[number].insert(client);
        if too_many {
            client.refuse("ERR max number of clients reached");
            self.settle(number);
        }
        true
    }
}
