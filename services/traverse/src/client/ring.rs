// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ring to a node that may end and be started again: it is reconnected when the node is back.
//!
//! - **Flow** the node hangs up, or breaks the ring ─▶ packets are lost, as on any network ─▶ one attempt to connect every
//!   [`AGAIN`]
//! - **Order** requests that were in flight are sent again by the client, which knows the missing answers
//! - **Owner** an epoll descriptor stands for the current socket, so that an event loop watches the same descriptor throughout

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::transport::shm::Shm;
use crate::transport::{Peer, Transport, TransportError};

/// Time between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Ring {
    name: String,
    shm: Option<Shm>,
    watched: OwnedFd,
    next: Instant,
    packet_bytes: usize,
}

impl Ring {
    /// Connects to a ring whose node must be running.
    pub fn connect(name: &str) -> Result<Ring, TransportError> {
        let system = |error| TransportError::system("an epoll descriptor")(error);
        let shm = Shm::connect(name)?;
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let packet_bytes = shm.packet_bytes();
        let mut ring = Ring { name: name.to_owned(), shm: None, watched, next: Instant::now(), packet_bytes };
        ring.take(shm)?;
        Ok(ring)
    }

    /// Connects to a ring. With `others` (there are other nodes) a node that is not running is no error: the ring
    /// connects once it runs.
    pub fn of(name: &str, others: bool) -> Result<Ring, TransportError> {
        match Ring::connect(name) {
            Err(TransportError::System { .. } | TransportError::Gone) if others => {
                let system = |error| TransportError::system("an epoll descriptor")(error);
                let watched = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
                let packet_bytes = crate::wire::PACKET_BYTES_MAX;
                Ok(Ring {
                    name: name.to_owned(),
                    shm: None,
                    watched,
                    next: Instant::now() + AGAIN,
                    packet_bytes,
                })
            }
            done => done,
        }
    }

    fn take(&mut self, shm: Shm) -> Result<(), TransportError> {
        for socket in shm.descriptors() {
            // A closed socket is removed from an epoll by the kernel.
            epoll::add(&self.watched, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(TransportError::system("watch a ring"))?;
        }
        self.shm = Some(shm);
        Ok(())
    }

    /// Runs an operation on the ring; returns `gone` if there is no ring. A ring that breaks is dropped.
    fn with<T>(
        &mut self,
        gone: T,
        run: impl FnOnce(&mut Shm) -> Result<T, TransportError>,
    ) -> Result<T, TransportError> {
        if self.shm.is_none() && Instant::now() >= self.next {
            self.next = Instant::now() + AGAIN;
            if let Ok(shm) = Shm::connect(&self.name) {
                self.take(shm)?;
            }
        }
        let Some(shm) = &mut self.shm else { return Ok(gone) };
        match run(shm) {
            Err(TransportError::Gone | TransportError::Broken(_)) => {
                self.shm = None;
                Ok(gone)
            }
            other => other,
        }
    }
}

impl Transport for Ring {
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError> {
        self.with(0, |shm| shm.receive(most, take))
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError> {
        self.with(false, |shm| shm.send(to, packet))
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        self.with((), Transport::flush)
    }

    fn wait(&mut self, at_most: Duration) -> Result<(), TransportError> {
        self.with((), |shm| shm.wait(at_most))?;
        if self.shm.is_none() {
            std::thread::sleep(at_most.min(AGAIN));
        }
        Ok(())
    }

    fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    fn local(&self) -> Option<SocketAddr> {
        None
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.watched.as_fd()]
    }

    fn arm(&mut self) -> bool {
        self.shm.as_mut().is_some_and(Transport::arm)
    }

    fn disarm(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.disarm();
        }
    }
}
