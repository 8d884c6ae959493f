// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Telling the server: messages by the request ring, segments by the socket.
//!
//! - **Flow** `publish` ─▶ ring ─▶ the server is woken, if it sleeps      `announce` ─▶ socket, without waiting in the call
//! - **Order** a segment is on its way before a message names it; releases go before the next message
//! - **Owner** no lock is held while this waits for room: a server that has died or stands still costs the caller its deadline at most

use super::Inner;
use super::collect::Broken;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::handshake::{self, AddSegment};
use crate::layout::SERVER_PARK_AT;
use crate::message::Message;
use crate::rank::holds_none;
use crate::ring::Producer;
use memlift_ground::complete::{ParkWord, ring};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Longest sleep between two checks of the session, while waiting for room.
const NAP_MAX: Duration = Duration::from_millis(5);
/// First wait for room; each later one is twice as long.
const NAP_MIN: Duration = Duration::from_micros(20);

impl Inner {
    /// Sends a segment to the server; `false`: the server did not read its socket until `deadline`.
    pub(super) fn announce(
        &self,
        packet: &AddSegment,
        fd: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> Result<bool, Error> {
        let mut nap = NAP_MIN;
        while !self.announce_now(packet, fd)? {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            self.nap(&mut nap)?;
        }
        Ok(true)
    }

    /// As [`announce`](Inner::announce), without waiting.
    pub(super) fn announce_now(&self, packet: &AddSegment, fd: BorrowedFd<'_>) -> Result<bool, Error> {
        holds_none("sending a segment");
        self.check()?;
        match handshake::send_now(&self.socket, packet, &[fd]) {
            Ok(()) => Ok(true),
            // It has not read what was sent before, or too many descriptors of this user are on their way.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                self.break_off(Broken::Died);
                self.check()?;
                Err(Error::PeerDied { peer: "server", doing: Some("growing the pool") })
            }
            Err(errno) => Err(Error::system("sending a segment")(errno)),
        }
    }

    /// Puts a message into the request ring, with the releases that are due; if it `rings`, wakes the server in case it sleeps.
    pub(super) fn publish(
        &self,
        message: &Message,
        deadline: Option<Instant>,
        rings: bool,
    ) -> Result<(), Error> {
        let mut nap = NAP_MIN;
        while !self.push(message)? {
            // The server is behind by a whole ring. It is not worth a handshake of its own: sleep a little.
            self.wake_server();
            self.check()?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::Busy { outstanding: self.outstanding() });
            }
            self.nap(&mut nap)?;
        }
        if rings {
            self.wake_server();
        }
        Ok(())
    }

    /// As [`publish`](Inner::publish), without waiting; `false`: the ring is full.
    pub(super) fn publish_now(&self, message: &Message) -> Result<bool, Error> {
        let pushed = self.push(message)?;
        self.wake_server();
        Ok(pushed)
    }

    /// Tries once to push a message. A ring in an impossible state ends the session.
    fn push(&self, message: &Message) -> Result<bool, Error> {
        let pushed = self.producer.with(|producer| match self.flush(producer) {
            Ok(true) => producer.push(message),
            other => other,
        });
        if let Err(error) = &pushed {
            self.break_off(Broken::fault(error));
        }
        pushed
    }

    /// Sleeps a little, each time twice as long; a server that hung up ends the session.
    fn nap(&self, nap: &mut Duration) -> Result<(), Error> {
        let time = *nap;
        *nap = (*nap * 2).min(NAP_MAX);
        self.poll_hang_up(time)
    }

    /// Waits up to `time` for a hang-up, which ends the session. For callers whose work would be in vain without a server.
    pub(super) fn poll_hang_up(&self, time: Duration) -> Result<(), Error> {
        holds_none("waiting for the server");
        let left = rustix::time::Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as _ };
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        let ready = poll(&mut socket, Some(&left)).unwrap_or(0);
        if ready > 0 {
            self.break_off(Broken::Died);
        }
        self.check()
    }

    fn flush(&self, producer: &mut Producer) -> Result<bool, Error> {
        self.releases.with(|releases| {
            while let Some(release) = releases.last() {
                if !producer.push(release)? {
                    return Ok(false);
                }
                releases.pop();
            }
            Ok(true)
        })
    }

    /// Tells the server that a response slot is free: now if that is easy, else with the next message. The server is
    /// not woken for it; it looks when it needs room.
    pub(super) fn release(&self, release: Message) {
        if !self.socket.is_ours() || self.broken.get().is_some() {
            return;
        }
        self.releases.with(|releases| releases.push(release));
        reach(Step::ReleaseNoted);
        let flushed = self.producer.try_lock().map(|mut producer| self.flush(&mut producer));
        if let Some(Err(error)) = flushed {
            self.break_off(Broken::fault(&error));
        }
    }

    pub(super) fn wake_server(&self) {
        ParkWord::from_atomic(self.word(SERVER_PARK_AT)).wake(|| ring(&self.server_event));
        reach(Step::PeerRung);
    }
}
