// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sessions: the numbers under which a client makes its changes, and the nodes' clock as the client knows it.
//!
//! - **Flow** before a change: [`Client::begin_session`] ─▶ changes ─▶ when the session is older than [`SESSION_AGE`] and no
//!   change is in flight, a new one begins, with another client number ─▶ when the client ends: `End` to each node at which it
//!   has changed something
//! - **Order** nodes forget idle sessions, the oldest first, and refuse packets that arrive later under their numbers. A client
//!   begins a new session well before that, unless its number is fixed. A session's number begins with the nodes' clock, so it is
//!   greater than all forgotten ones
//! - **Owner** a session belongs to one client in one process: its number has 32 random bits behind the clock
//! - **Not here** a node's handling of sessions (`node/once`)

use std::time::{Duration, Instant};

use memlift_ground::region::{process_mark, random};

use super::flight::Flight;
use super::{Client, ClientError, Result, TIMEOUT_MIN};
use crate::wire::{Header, Kind};

/// Age from which a client begins a new session, once no change is under way.
const SESSION_AGE: Duration = Duration::from_secs(30);
/// Age from which a change first waits until no other change is in flight, and then begins a new session.
const SESSION_AGE_MAX: Duration = Duration::from_secs(60);

/// See the module's header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Session {
    /// The client's number during this session.
    pub client: u64,
    pub number: u64,
    begun: Option<Instant>,
}

/// Newest nodes' clock in any answer, and the time at which that answer arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard(u32, Instant);

impl Heard {
    pub fn nothing() -> Heard {
        Heard(0, Instant::now())
    }

    /// Returns the nodes' clock as of now. Every node that receives it raises its own clock to it.
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
    /// Returns true if the request changes memory.
    pub fn changes(&self) -> bool {
        self.request.writes() || self.request.kind.changes_memory()
    }
}

impl Client {
    /// Prepares a change: replaces an old session, which nodes could forget while the change is in flight.
    pub(super) fn prepare_change(&mut self) -> Result<()> {
        let age = self.session.begun.map(|begun| begun.elapsed());
        // A client with a fixed number keeps its session, because nodes know the client by it.
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
        // The number begins with the clock, so the nodes that receive it raise their clocks to it.
        self.heard.hear(number >> 32);
        self.session = Session { client, number, begun: Some(Instant::now()) };
    }

    /// Handles a session that a node has forgotten, or whose client number another process uses. If the change was sent only
    /// once, it was not made: it is sent again under a new session, whose number is greater than `bound`.
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

    /// Tells the nodes at which something was changed that the client has ended. A node that misses the message forgets the
    /// session later.
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
        // In a forked child the session belongs to the parent, and continues there.
        if self.process == process_mark() && self.session.begun.is_some() {
            let _ = self.say_goodbye();
        }
    }
}
