// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits for answers: asleep on the links, with the caller's callback that may end the call ([`OnWait`]); or inside an event loop of the caller.
//!
//! - **Flow** no packet has arrived ─▶ [`Client::wait`]: the links sleep. In an event loop: register [`Client::descriptor`]
//!   once; at each turn call [`Client::poll`] until it returns 0, then [`Client::arm`]; on false return to the loop until the
//!   descriptor is readable, or until [`Client::due`]
//! - **Order** after [`Client::arm`] returned true, poll before arming again: then a packet that arrives between the last poll
//!   and the sleep wakes the client
//! - **Owner** the epoll descriptor belongs to the client; no link is added or removed after it was made

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use memlift_ground::on_wait::OnWait;
use rustix::event::epoll;

use super::{Client, ClientError, Result};
use crate::transport::TransportError;

/// State for waiting: when the caller's callback was called last, and the descriptors to sleep on.
#[derive(Debug, Default)]
pub(super) struct Wait {
    asked: Option<Instant>,
    epoll: Option<OwnedFd>,
}

impl Client {
    /// Sleeps until a packet may have arrived, at most `at_most`.
    ///
    /// # Errors
    /// The transport failed.
    pub fn wait(&mut self, at_most: Duration) -> Result<()> {
        self.in_its_process()?;
        self.flush()?;
        let many = self.links.len() > 1;
        let at_most = if many { at_most.min(Duration::from_micros(100)) } else { at_most };
        for transport in &mut self.links {
            transport.wait(at_most)?;
        }
        Ok(())
    }

    /// Waits within a call, and calls the callback first.
    pub(super) fn pause(&mut self, at_most: Duration) -> Result<()> {
        if let Some(on_wait) = &self.config.on_wait {
            let now = Instant::now();
            if self.wait.asked.is_none_or(|asked| now.duration_since(asked) >= OnWait::ASK_EVERY) {
                self.wait.asked = Some(now);
                if !on_wait.goes_on() {
                    return Err(ClientError::Interrupted);
                }
            }
        }
        self.wait(at_most)
    }

    /// Returns a descriptor that becomes readable when a packet has arrived after [`Client::arm`]; it is always the same
    /// one.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn descriptor(&mut self) -> Result<BorrowedFd<'_>> {
        self.in_its_process()?;
        if self.wait.epoll.is_none() {
            let system = |error| TransportError::system("an epoll descriptor")(error);
            let all = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
            for link in &self.links {
                for descriptor in link.descriptors() {
                    let data = epoll::EventData::new_u64(0);
                    epoll::add(&all, descriptor, data, epoll::EventFlags::IN).map_err(system)?;
                }
            }
            self.wait.epoll = Some(all);
        }
        Ok(self.wait.epoll.as_ref().expect("made just now").as_fd())
    }

    /// Sends pending packets and marks this client as asleep until its descriptor is readable. Returns true if a packet has
    /// arrived already: then poll again first.
    ///
    /// # Errors
    /// The transport failed.
    pub fn arm(&mut self) -> Result<bool> {
        self.in_its_process()?;
        self.flush()?;
        let mut ready = false;
        for link in &mut self.links {
            ready |= link.arm();
        }
        Ok(ready)
    }

    /// Marks this client as awake again.
    pub fn disarm(&mut self) {
        self.links.iter_mut().for_each(|link| link.disarm());
    }

    /// Returns the time at which to poll even if nothing arrives, to send a packet again or to give up a request.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let deadline = self.config.deadline;
        let due = |flight: &super::Flight| {
            let end = flight.started + deadline;
            if flight.waits_for_upload { end } else { end.min(flight.sent + flight.timeout) }
        };
        self.flights.values().map(due).min().map(|due| due.max(self.next_retransmit_at))
    }
}
