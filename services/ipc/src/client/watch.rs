// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session for an event loop: nothing here waits. One descriptor becomes readable when there is something to look at.
//!
//! - **Flow** `submit` ─▶ id … descriptor readable ─▶ `turn` ─▶ answers, in any order
//! - **Order** a turn takes what is there, announces that nobody looks any more, and looks once more: an answer after that rings
//! - **Owner** one loop. `submit` and `turn` go together: sending may collect answers, which only a turn gives out
//! - **Not here** futures and cancelling: a call that nobody wants is abandoned, and its memory stays until the server has answered

use super::Client;
use crate::error::Error;
use crate::layout::CLIENT_PARK_AT;
use crate::options::{CallOptions, Mode};
use crate::payload::{Outgoing, Payload};
use memlift_ground::complete::ParkWord;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Limit;
use super::collect::{Broken, Own};
use super::send::Sending;

/// Most calls that are posted without ringing for them.
const POSTS_MAX: u32 = 16;
/// Longest poll of the ring before a call is left to the loop.
const SPIN_MAX: Duration = Duration::from_micros(30);

/// A session whose answers an event loop collects.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    readable: OwnedFd,
    /// Part of the recent polls that found an answer, of 256.
    paid: AtomicU32,
    /// Calls that were posted since the server was last rung for.
    unrung: AtomicU32,
    /// Something was posted since the last flush.
    posting: AtomicBool,
    /// True if the last poll of the ring found the answer.
    lingered: AtomicBool,
    /// The descriptor also becomes readable when the server has room for what is owed to it.
    owing: AtomicBool,
    cores: usize,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.0.address).finish_non_exhaustive()
    }
}

/// A call's id and its result.
pub type Answered = (u64, Result<Payload, Error>);

impl Watch {
    /// Takes a session over. Use the client for nothing that waits from now on.
    ///
    /// # Errors
    ///
    /// [`Error::System`] without descriptors left.
    pub fn new(client: Client) -> Result<Watch, Error> {
        let readable = epoll::create(CreateFlags::CLOEXEC).map_err(Error::system("epoll_create"))?;
        let add = |fd: BorrowedFd<'_>, flags| {
            epoll::add(&readable, fd, EventData::new_u64(0), flags).map_err(Error::system("epoll_ctl"))
        };
        add(client.0.own_event.as_fd(), EventFlags::IN)?;
        // Of the socket only the hang-up matters, which is always reported.
        add(client.0.socket.as_fd(), EventFlags::empty())?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        client.0.watched.store(true, Ordering::Relaxed);
        Ok(Watch {
            client,
            readable,
            paid: 128.into(),
            unrung: 0.into(),
            posting: false.into(),
            lingered: false.into(),
            owing: false.into(),
            cores,
        })
    }

    /// The session whose answers the loop collects.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Readable when [`turn`](Watch::turn) has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Sends a call; `None`: there is no room until something is answered. Call [`turn`](Watch::turn) afterwards.
    ///
    /// # Errors
    ///
    /// As [`Client::call_async`].
    pub fn submit(
        &self,
        operation: &str,
        data: &Outgoing<'_>,
        options: impl Into<CallOptions>,
    ) -> Result<Option<u64>, Error> {
        self.send(operation, data, options.into(), true)
    }

    /// As [`submit`](Watch::submit), for a loop that sends more before it sleeps: the server is rung for the first call of a
    /// round and for every 16th; [`flush`](Watch::flush) rings for the rest and ends the round. A single call is rung for at
    /// once, if the one before it was answered during [`linger`](Watch::linger).
    ///
    /// # Errors
    ///
    /// As [`submit`](Watch::submit).
    pub fn post(
        &self,
        operation: &str,
        data: &Outgoing<'_>,
        options: impl Into<CallOptions>,
    ) -> Result<Option<u64>, Error> {
        let first = !self.posting.swap(true, Ordering::Relaxed);
        let alone = self.lingered.load(Ordering::Relaxed) && self.outstanding() == 0;
        let rings = first || alone || self.unrung.load(Ordering::Relaxed) + 1 >= POSTS_MAX;
        self.send(operation, data, options.into(), rings)
    }

    fn send(
        &self,
        operation: &str,
        data: &Outgoing<'_>,
        options: CallOptions,
        rings: bool,
    ) -> Result<Option<u64>, Error> {
        let limit = Limit::new(options.timeout.or(self.client.0.options.timeout));
        let now = Some(Instant::now());
        let sending = Sending { mode: Mode::Async, deadline: limit.deadline, room_until: now, rings };
        match self.client.0.send(operation, data, &options, sending) {
            Ok(sent) => {
                let unrung = if rings { 0 } else { self.unrung.load(Ordering::Relaxed) + 1 };
                self.unrung.store(unrung, Ordering::Relaxed);
                Ok(Some(sent.id))
            }
            Err(Error::Busy { .. }) if !limit.is_over() => Ok(None),
            Err(error) => Err(limit.judge(error)),
        }
    }

    /// Wakes the server if it may not have noticed all calls, and ends the round.
    pub fn flush(&self) {
        self.posting.store(false, Ordering::Relaxed);
        if self.unrung.swap(0, Ordering::Relaxed) > 0 {
            self.client.0.wake_server();
        }
    }

    /// Abandons the call `id`: nobody wants its answer any more.
    pub fn abandon(&self, id: u64) {
        self.client.0.abandon(id);
    }

    /// Calls without an answer.
    pub fn outstanding(&self) -> usize {
        self.client.0.outstanding()
    }

    /// Polls the ring for a moment, if that has paid lately: an answer that is nearly there then needs no turn of the loop. It
    /// pays only with one call outstanding and a core to spare for the server.
    pub fn linger(&self) {
        self.lingered.store(false, Ordering::Relaxed);
        if self.cores < 2 || self.outstanding() != 1 {
            return;
        }
        let paid = self.paid.load(Ordering::Relaxed);
        if paid < 64 && !paid.is_multiple_of(16) {
            // Now and then it is tried all the same.
            self.paid.store(paid + 1, Ordering::Relaxed);
            return;
        }
        let until = Instant::now() + SPIN_MAX;
        let collector = self.client.0.collector.lock();
        let mut found = collector.consumer.is_ready();
        while !found && Instant::now() < until {
            (0..16).for_each(|_| std::hint::spin_loop());
            found = collector.consumer.is_ready();
        }
        self.lingered.store(found, Ordering::Relaxed);
        let paid = if found { paid + (256 - paid) / 8 } else { paid - paid / 8 };
        self.paid.store(paid.min(255), Ordering::Relaxed);
    }

    /// Takes all answers that are there. `rung`: the descriptor was readable.
    ///
    /// # Errors
    ///
    /// The error that ended the session, after every call's answer was given out.
    pub fn turn(&self, rung: bool) -> Result<Vec<Answered>, Error> {
        let inner = &self.client.0;
        let over = match inner.check() {
            Ok(()) => self.collect(rung).err(),
            Err(error) => Some(error),
        };
        if let Some(error) = &over
            && inner.check().is_ok()
        {
            inner.break_off(Broken::fault(error));
        }
        let answered: Vec<Answered> = inner.jobs.with(|jobs| jobs.take_done());
        match over {
            Some(error) if answered.is_empty() => Err(error),
            _ => Ok(answered),
        }
    }

    fn collect(&self, rung: bool) -> Result<(), Error> {
        let inner = &self.client.0;
        if rung {
            // EAGAIN: it was the socket.
            let _ = rustix::io::read(&inner.own_event, &mut [0u8; 8]);
        }
        let park = ParkWord::from_atomic(inner.word(CLIENT_PARK_AT));
        let mut collector = inner.collector.lock();
        loop {
            inner.take_answers(&mut collector, &mut Own::none())?;
            park.prepare();
            if !collector.consumer.is_ready() {
                break;
            }
            park.finish();
        }
        let owes = !collector.owed.is_empty();
        if self.owing.swap(owes, Ordering::Relaxed) != owes {
            let flags = if owes { EventFlags::OUT } else { EventFlags::empty() };
            epoll::modify(&self.readable, &inner.socket, EventData::new_u64(0), flags)
                .map_err(Error::system("epoll_ctl"))?;
        }
        if rung {
            let mut socket = [PollFd::new(&inner.socket, PollFlags::empty())];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            let hung_up = poll(&mut socket, Some(&now)).is_ok_and(|ready| ready > 0);
            // Answers that it wrote before its end still count.
            if hung_up && !collector.consumer.is_ready() {
                return Err(Error::PeerDied { peer: "server", doing: Some("waiting for its answer") });
            }
        }
        Ok(())
    }
}
