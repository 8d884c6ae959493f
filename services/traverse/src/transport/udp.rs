// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets in UDP datagrams, many per system call, and a wait that spins while answers are near.
//!
//! - **Flow** socket ─▶ `train::ReceivedTrains` ─▶ `receive` passes datagrams on …… `send` ─▶ `train::SendQueue` ─▶ `flush` ─▶
//!   socket
//! - **Owner** [`Udp`] owns its socket and its buffers
//! - **Not here** authentication of senders: beyond loopback, [`Udp::bind`] requires that packets carry MACs

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use memlift_ground::complete::{Parker, WaitPolicy, Waited, Waiter};
use memlift_ground::facility::{Facility, usable};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::train::{self, ReceivedTrains, SendQueue};
use super::{Peer, Transport, TransportError};
use crate::wire::PACKET_BYTES_MAX;

/// Bytes of socket buffer requested in each direction; the kernel may grant less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// A UDP socket, with buffers for trains of datagrams.
pub struct Udp {
    socket: UdpSocket,
    local: SocketAddr,
    arrived: ReceivedTrains,
    leaving: SendQueue,
    waiter: Waiter,
    packet_bytes: usize,
}

impl std::fmt::Debug for Udp {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Udp").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Udp {
    /// Listens at `address`; port 0 chooses a free one. `authenticated` is true if packets carry MACs.
    ///
    /// # Errors
    ///
    /// [`TransportError::NotLoopback`], or the operating system's error.
    pub fn bind(address: SocketAddr, authenticated: bool) -> Result<Udp, TransportError> {
        if !address.ip().is_loopback() && !authenticated {
            return Err(TransportError::NotLoopback(address));
        }
        let what = || format!("listen on {address}");
        let socket = UdpSocket::bind(address).map_err(TransportError::system(what()))?;
        Udp::over(socket).map_err(TransportError::system(what()))
    }

    /// Opens one socket per shard at the same address; the kernel distributes the senders among them.
    ///
    /// # Errors
    ///
    /// The errors of [`Udp::bind`].
    pub fn bind_shared(
        address: SocketAddr,
        authenticated: bool,
        shards: usize,
    ) -> Result<Vec<Udp>, TransportError> {
        if !address.ip().is_loopback() && !authenticated {
            return Err(TransportError::NotLoopback(address));
        }
        let mut sockets = Vec::new();
        let mut at = address;
        for _ in 0..shards.max(1) {
            let bound = || -> io::Result<Udp> {
                let family = match at {
                    SocketAddr::V4(_) => rustix::net::AddressFamily::INET,
                    SocketAddr::V6(_) => rustix::net::AddressFamily::INET6,
                };
                let flags = rustix::net::SocketFlags::CLOEXEC;
                let socket = rustix::net::socket_with(family, rustix::net::SocketType::DGRAM, flags, None)?;
                if shards > 1 {
                    rustix::net::sockopt::set_socket_reuseport(&socket, true)?;
                }
                rustix::net::bind(&socket, &at)?;
                Udp::over(UdpSocket::from(socket))
            };
            let udp = bound().map_err(TransportError::system(format!("listen on {at}")))?;
            at = udp.local;
            sockets.push(udp);
        }
        Ok(sockets)
    }

    fn over(socket: UdpSocket) -> io::Result<Udp> {
        socket.set_nonblocking(true)?;
        // Smaller buffers than requested only lose packets earlier, so this is no error.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let local = socket.local_addr()?;
        let trains = usable(Facility::UdpTrains) && train::accept(socket.as_fd());
        Ok(Udp {
            socket,
            local,
            arrived: ReceivedTrains::new(),
            leaving: SendQueue::new(trains),
            waiter: Waiter::new(WaitPolicy::AUTO),
            packet_bytes: if local.ip().is_loopback() {
                PACKET_BYTES_MAX
            } else {
                crate::wire::PACKET_BYTES_FRAME
            },
        })
    }

    /// Sets how to wait. The default spins for up to 100 µs, as long as spinning has been successful lately.
    #[must_use]
    pub fn waiting(mut self, policy: WaitPolicy) -> Udp {
        self.waiter = Waiter::new(policy);
        self
    }

    /// Returns the same socket for a thread that only sends; its packets come from this address.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn speaker(&self) -> Result<UdpSocket, TransportError> {
        self.socket.try_clone().map_err(TransportError::system("share a socket"))
    }

    /// Returns the address to which the socket is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.local
    }
}

struct Sleep<'a>(&'a UdpSocket);

impl Parker for Sleep<'_> {
    fn prepare(&self) {}

    fn park(&self, until: Option<Instant>) -> io::Result<()> {
        let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut descriptors = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        match poll(&mut descriptors, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn finish(&self) {}
}

/// Converts a duration to the kernel's form.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as _, tv_nsec: duration.subsec_nanos() as _ }
}

impl Transport for Udp {
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError> {
        if self.arrived.is_empty() {
            self.arrived.fill(self.socket.as_fd()).map_err(TransportError::system("receive datagrams"))?;
        }
        Ok(self.arrived.take(most, take))
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError> {
        let Peer::Socket(to) = to else { return Ok(false) };
        if packet.len() > PACKET_BYTES_MAX {
            return Ok(false);
        }
        if self.leaving.is_full() {
            self.flush()?;
        }
        self.leaving.put(to, packet);
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        self.leaving.flush(self.socket.as_fd());
        Ok(())
    }

    fn wait(&mut self, at_most: Duration) -> Result<(), TransportError> {
        if !self.arrived.is_empty() {
            return Ok(());
        }
        let Udp { socket, arrived, waiter, .. } = self;
        let mut failed = None;
        let ready = || match arrived.fill(socket.as_fd()) {
            Ok(some) => some,
            Err(error) => {
                failed = Some(error);
                true
            }
        };
        let waited =
            waiter.wait(&Sleep(socket), std::ptr::null(), ready, None, Some(Instant::now() + at_most));
        match (failed, waited) {
            (Some(error), _) | (None, Waited::Broken(error)) => {
                Err(TransportError::system("wait for datagrams")(error))
            }
            _ => Ok(()),
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn arm(&mut self) -> bool {
        !self.arrived.is_empty()
    }

    fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    fn local(&self) -> Option<SocketAddr> {
        Some(self.local)
    }
}
