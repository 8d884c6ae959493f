// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sessions: the numbers under which a client makes its changes, and the nodes' clock as the client knows it.
//!
//! - **Flow** before a change: [`Client::begin_session`] ─▶ changes ─▶ the session is older than [`SESSION_AGE`] and nothing is
//!   under way: a new one, of another client number ─▶ the client goes: `End` to each node that it has changed something at
//! - **Order** nodes forget quiet sessions, the oldest first, and refuse packets that come later under their numbers; a client
//!   begins a new session well before that, unless its number is fixed. A session's number begins with the nodes' clock, so it is
//!   greater than all forgotten ones
//! - **Owner** a session is of one client in one process: its number has 32 random bits behind the clock
//! - **Not here** what a node does with them (`node/once`)

use std::time::{Duration, Instant};

use memlift_ground::region::{process_mark, random};

use super::flight::Flight;
use super::{Client, ClientError, Result, TIMEOUT_MIN};
use crate::wire::{Header, Kind};

/// Age from which a client begins a new session, once no change is under way.
const SESSION_AGE: Duration = Duration::from_secs(30);
/// Age from which a client waits until no change is under way, to begin a new session.
const SESSION_AGE_MAX: Duration = Duration::from_secs(60);

/// See the module's header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Session {
    /// The client's number during this session.
    pub client: u64,
    pub number: u64,
    begun: Option<Instant>,
}

/// Newest nodes' clock that was heard, and the time at which it was heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard(u32, Instant);

impl Heard {
    pub fn nothing() -> Heard {
        Heard(0, Instant::now())
    }

    /// Returns the nodes' clock by now; every node that hears of it takes it over.
    pub fn now(self) -> u32 {
        if self.0 == 0 {
            return 0;
        }
        self.0.saturating_add(u32::try_from(self.1.elapsed().as_secs()).unwrap_or(u32::MAX))
    }

    pub fn hear(&mut self, clock: u64) {
        if let Ok(clock) = u32::try_from(clock)
            && clock > self.now()
        {
            *self = Heard(clock, Instant::now());
        }
    }
}

impl Flight {
    /// Returns true if it changes memory.
    pub fn changes(&self) -> bool {
        self.request.writes() || self.request.kind.changes_memory()
    }
}

impl Client {
    /// Prepares a change: replaces an old session, which nodes could forget while the change is under way.
    pub(super) fn prepare_change(&mut self) -> Result<()> {
        let age = self.session.begun.map(|begun| begun.elapsed());
        // A fixed number stays with its session, because nodes know the client by it.
        if age.is_some_and(|age| age < SESSION_AGE || self.config.client.is_some()) {
            return Ok(());
        }
        while self.flights.values().any(Flight::changes) {
            if age.is_some_and(|age| age < SESSION_AGE_MAX) {
                return Ok(());
            }
            if self.poll()? == 0 {
                self.pause(TIMEOUT_MIN)?;
            }
        }
        self.begin_session(0);
        Ok(())
    }

    /// Begins a session for all changes from now on; its number is greater than `bound`.
    pub(super) fn begin_session(&mut self, bound: u64) {
        let clock = u64::from(self.heard.now());
        let client = self.config.client.unwrap_or_else(random);
        let number = (clock << 32 | random() >> 32).max(bound.saturating_add(random() >> 44));
        // The number begins with the clock, so a node that hears of it takes that clock over.
        self.heard.hear(number >> 32);
        self.session = Session { client, number, begun: Some(Instant::now()) };
    }

    /// Handles a session that a node has forgotten, or whose client number another process uses. A change that was sent only once
    /// was not made: it is sent under a new session, whose number is greater than `bound`.
    pub(super) fn session_over(&mut self, sequence: u64, error: ClientError, bound: u64) -> Result<()> {
        let Some(flight) = self.flights.get_mut(&sequence) else { return Ok(()) };
        flight.restarts += 1;
        let again = flight.attempt == 0 && flight.restarts < 4;
        if flight.session.number == self.session.number {
            self.begin_session(bound);
        }
        if !again {
            self.finish(sequence, Err(error));
            return Ok(());
        }
        let Some(mut flight) = self.flights.remove(&sequence) else { return Ok(()) };
        flight.anew();
        self.send_flight(flight)
    }

    /// Tells the nodes at which something was changed that the client is gone. A node that does not hear it finds out by itself.
    fn say_goodbye(&mut self) -> Result<()> {
        let header = Header {
            client: self.session.client,
            incarnation: self.config.incarnation,
            sequence: self.next_sequence,
            settled: self.next_sequence,
            tenant: self.config.tenant,
            clock: self.heard.now(),
            session: self.session.number,
            sender: self.sender,
            ..Header::new(Kind::End)
        };
        let mut packet = Vec::new();
        for reach in self.reaches.iter().filter(|reach| reach.changed) {
            packet.clear();
            self.nonce += 1;
            let header = Header { nonce: self.nonce, cluster: reach.cluster, ..header };
            self.config.keys.seal(&header, &[], &mut packet);
            let _ = self.links[reach.link].send(reach.peer, &packet)?;
            self.unsent.insert(reach.link);
        }
        self.flush()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // In a forked child the session is the parent's, and goes on.
        if self.process == process_mark() && self.session.begun.is_some() {
            let _ = self.say_goodbye();
        }
    }
}
