// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transports carry packets: whole, in batches, but perhaps lost, doubled or out of order.
//!
//! - **Flow** [`Transport::receive`] passes on packets that have arrived ─▶ … ─▶ [`Transport::send`] ─▶
//!   [`Transport::flush`]. If no packet has arrived: [`Transport::wait`]
//! - **Order** packets may arrive in any order; a packet that arrives is one that was sent, or it fails authentication
//! - **Owner** packets are passed on in private memory, which no peer can change any more
//! - **Not here** the meaning of packets (`wire`)

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[expect(unsafe_code, reason = "a ring lies in memory that another process writes")]
pub mod shm;
#[expect(unsafe_code, reason = "recvmmsg and sendmmsg take arrays of pointers")]
mod train;
pub mod udp;

/// Address of the other end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Peer {
    /// The address of a UDP socket.
    Socket(SocketAddr),
    /// A ring, named by its number; numbers are never reused.
    Ring(u64),
}

/// Reason that packets cannot be carried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The operating system refused an operation.
    #[error("{what}: {error}")]
    System {
        /// The operation that failed.
        what: String,
        /// The operating system's error.
        #[source]
        error: std::io::Error,
    },
    /// Memory for a ring could not be allocated or mapped.
    #[error("a ring: {0}")]
    Region(#[from] memlift_ground::region::RegionError),
    /// The other side violates the layout of the ring.
    #[error("the other side broke the ring ({0}): it is cut off")]
    Broken(&'static str),
    /// The other side has ended.
    #[error("the other side is gone: connect again once it runs")]
    Gone,
    /// The name is not valid for a ring.
    #[error("{0:?} is no name of a ring: use letters, digits, '-', '_' and '.', 64 at most")]
    Name(String),
    /// The address is reachable from other machines, but packets are not authenticated.
    #[error("{0} is reached from other machines: give it keys, or listen on 127.0.0.1")]
    NotLoopback(SocketAddr),
}

impl TransportError {
    /// Makes an error of the operating system, with the operation that failed.
    pub(crate) fn system<E: Into<std::io::Error>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> TransportError {
        move |error| TransportError::System { what: what.into(), error: error.into() }
    }
}

/// Carries packets of up to [`Transport::packet_bytes`] bytes.
pub trait Transport: Send + Debug {
    /// Passes at most `most` arrived packets to `take`, and returns how many; does not wait.
    ///
    /// # Errors
    ///
    /// The transport itself has failed; a peer that misbehaves is cut off without an error.
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError>;

    /// Accepts a packet for sending; it leaves with [`Transport::flush`] at the latest. Returns false if the packet is lost:
    /// there is no room for it, or its peer is gone.
    ///
    /// # Errors
    ///
    /// The transport itself has failed.
    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError>;

    /// Sends all packets that [`Transport::send`] has accepted, and wakes peers that sleep.
    ///
    /// # Errors
    ///
    /// The transport itself has failed.
    fn flush(&mut self) -> Result<(), TransportError>;

    /// Sleeps until a packet has arrived or the time is over. May return early.
    ///
    /// # Errors
    ///
    /// The transport itself has failed.
    fn wait(&mut self, at_most: Duration) -> Result<(), TransportError>;

    /// Returns descriptors that become readable when a packet arrives after [`Transport::arm`]; none if the transport does
    /// not support sleeping in this way.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Marks this side as asleep outside of [`Transport::wait`]. Returns true if a packet has arrived already; then this
    /// side stays awake.
    fn arm(&mut self) -> bool {
        true
    }

    /// Marks this side as awake again.
    fn disarm(&mut self) {}

    /// Returns the length of the longest packet that can be carried to a peer in one piece.
    fn packet_bytes(&self) -> usize;

    /// Returns the address at which peers on other machines reach this side; `None` if they cannot.
    fn local(&self) -> Option<SocketAddr> {
        None
    }
}
