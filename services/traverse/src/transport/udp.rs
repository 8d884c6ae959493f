// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets in UDP datagrams, many per system call, and a wait that spins while answers are near.
//!
//! Flow     recvmmsg ─▶ buffers ─▶ `receive` hands them out …… `send` ─▶ one buffer ─▶ `flush`: sendmmsg
//! Order    a datagram that the kernel has no room for is lost, as the network may lose it
//! Owner    [`Udp`] has its socket, its buffers and what points into them; all live in boxes that never move
//! Not here who may send: beyond loopback [`Udp::bind`] wants to hear that packets are authenticated

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use memlift_engine::complete::{Parker, WaitPolicy, Waited, Waiter};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::{Peer, Transport, TransportError};
use crate::wire::PACKET_BYTES_MAX;

/// Datagrams per system call.
const BATCH: usize = 64;
/// One byte more than a packet, so that a longer datagram is seen to be one.
const BUFFER_BYTES: usize = PACKET_BYTES_MAX + 1;
/// What the kernel is asked to keep for us; it gives what it allows.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// A socket.
pub struct Udp {
    socket: UdpSocket,
    local: SocketAddr,
    arrived: Batch,
    /// Datagrams in `arrived`, and those handed out already.
    filled: usize,
    taken: usize,
    leaving: Batch,
    queued: usize,
    waiter: Waiter,
    packet_bytes: usize,
}

impl std::fmt::Debug for Udp {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Udp").field("local", &self.local).finish_non_exhaustive()
    }
}

/// As many buffers as one call takes, and the kernel's description of them.
struct Batch {
    bytes: Box<[[u8; BUFFER_BYTES]]>,
    names: Box<[libc::sockaddr_storage]>,
    vectors: Box<[libc::iovec]>,
    messages: Box<[libc::mmsghdr]>,
}

// SAFETY: the pointers in `vectors` and `messages` lead into boxes of the same value, which nobody else has.
unsafe impl Send for Batch {}

impl Batch {
    fn new() -> Batch {
        // SAFETY: all three are plain C structures of integers and pointers, for which zeros are valid.
        let (names, vectors, messages) = unsafe { (zeroed(), zeroed(), zeroed()) };
        let mut batch = Batch {
            bytes: vec![[0; BUFFER_BYTES]; BATCH].into_boxed_slice(),
            names: vec![names; BATCH].into_boxed_slice(),
            vectors: vec![vectors; BATCH].into_boxed_slice(),
            messages: vec![messages; BATCH].into_boxed_slice(),
        };
        for index in 0..BATCH {
            batch.vectors[index] =
                libc::iovec { iov_base: batch.bytes[index].as_mut_ptr().cast(), iov_len: BUFFER_BYTES };
            let header = &mut batch.messages[index].msg_hdr;
            header.msg_name = (&raw mut batch.names[index]).cast();
            header.msg_iov = &raw mut batch.vectors[index];
            header.msg_iovlen = 1;
        }
        batch.reset();
        batch
    }

    /// Room for whole datagrams and addresses again: the kernel writes the lengths.
    fn reset(&mut self) {
        for (message, vector) in self.messages.iter_mut().zip(self.vectors.iter_mut()) {
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            message.msg_hdr.msg_flags = 0;
            vector.iov_len = BUFFER_BYTES;
        }
    }
}

impl Udp {
    /// Listens at `address`; port 0 takes a free one. `authenticated` says that packets carry MACs.
    ///
    /// # Errors
    ///
    /// [`TransportError::NotLoopback`], or what the system says.
    pub fn bind(address: SocketAddr, authenticated: bool) -> Result<Udp, TransportError> {
        if !address.ip().is_loopback() && !authenticated {
            return Err(TransportError::NotLoopback(address));
        }
        let what = || format!("listen on {address}");
        let socket = UdpSocket::bind(address).map_err(TransportError::system(what()))?;
        Udp::over(socket).map_err(TransportError::system(what()))
    }

    /// One socket per shard at the same address: the kernel deals out the senders among them.
    ///
    /// # Errors
    ///
    /// As [`Udp::bind`].
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
        // Smaller buffers than asked for lose packets earlier; no reason to stop.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let local = socket.local_addr()?;
        Ok(Udp {
            socket,
            local,
            arrived: Batch::new(),
            filled: 0,
            taken: 0,
            leaving: Batch::new(),
            queued: 0,
            waiter: Waiter::new(WaitPolicy::AUTO),
            packet_bytes: if local.ip().is_loopback() {
                PACKET_BYTES_MAX
            } else {
                crate::wire::PACKET_BYTES_FRAME
            },
        })
    }

    /// How to wait; the default spins up to 100 µs, as long as that has paid.
    #[must_use]
    pub fn waiting(mut self, policy: WaitPolicy) -> Udp {
        self.waiter = Waiter::new(policy);
        self
    }

    /// The same socket, for a thread that only sends: what it sends comes from this address.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn speaker(&self) -> Result<UdpSocket, TransportError> {
        self.socket.try_clone().map_err(TransportError::system("share a socket"))
    }

    /// The address that it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.local
    }
}

/// Takes datagrams from the kernel, as many as are there. Errors of earlier sends show up here and mean nothing.
fn fill(socket: &UdpSocket, arrived: &mut Batch) -> io::Result<usize> {
    arrived.reset();
    // SAFETY: `messages` holds BATCH descriptions whose pointers lead to live buffers of the lengths they say.
    let got = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            arrived.messages.as_mut_ptr(),
            BATCH as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    if got >= 0 {
        return Ok(got as usize);
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => Ok(0),
        _ => Err(error),
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

/// A duration as the kernel wants it.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as _, tv_nsec: duration.subsec_nanos() as _ }
}

impl Transport for Udp {
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError> {
        if self.taken == self.filled {
            self.taken = 0;
            self.filled = 0;
            self.filled =
                fill(&self.socket, &mut self.arrived).map_err(TransportError::system("receive datagrams"))?;
        }
        let from = self.taken;
        let to = self.filled.min(from + most);
        self.taken = to;
        for index in from..to {
            let bytes = self.arrived.messages[index].msg_len as usize;
            let Some(peer) = address_of(&self.arrived.names[index]) else { continue };
            // A datagram longer than any packet was cut by the kernel; what is left of it is none.
            if bytes <= PACKET_BYTES_MAX {
                take(Peer::Socket(peer), &self.arrived.bytes[index][..bytes]);
            }
        }
        Ok(to - from)
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError> {
        let Peer::Socket(to) = to else { return Ok(false) };
        if packet.len() > PACKET_BYTES_MAX {
            return Ok(false);
        }
        if self.queued == BATCH {
            self.flush()?;
        }
        let index = self.queued;
        self.leaving.bytes[index][..packet.len()].copy_from_slice(packet);
        self.leaving.vectors[index].iov_len = packet.len();
        self.leaving.messages[index].msg_hdr.msg_namelen = put_address(to, &mut self.leaving.names[index]);
        self.queued += 1;
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        let mut sent = 0;
        while sent < self.queued {
            let left = &mut self.leaving.messages[sent..self.queued];
            // SAFETY: `left` describes live buffers with the lengths and addresses that `send` has put there.
            let done = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    left.as_mut_ptr(),
                    left.len() as _,
                    libc::MSG_DONTWAIT as _,
                )
            };
            // Whatever one datagram met (no room, nobody there, no way there) is its loss; the next ones go on.
            sent += if done > 0 { done as usize } else { 1 };
        }
        self.queued = 0;
        Ok(())
    }

    fn wait(&mut self, at_most: Duration) -> Result<(), TransportError> {
        if self.taken < self.filled {
            return Ok(());
        }
        let Udp { socket, arrived, waiter, .. } = self;
        let (mut filled, mut failed) = (0, None);
        let ready = || match fill(socket, arrived) {
            Ok(got) => {
                filled = got;
                got > 0
            }
            Err(error) => {
                failed = Some(error);
                true
            }
        };
        let waited =
            waiter.wait(&Sleep(socket), std::ptr::null(), ready, None, Some(Instant::now() + at_most));
        self.taken = 0;
        self.filled = filled;
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
        self.taken < self.filled
    }

    fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    fn local(&self) -> Option<SocketAddr> {
        Some(self.local)
    }
}

fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that a sockaddr_in lies there; the storage is larger and more aligned.
            let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(address, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(
                address,
                u16::from_be(name.sin6_port),
                name.sin6_flowinfo,
                name.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

fn put_address(to: SocketAddr, name: &mut libc::sockaddr_storage) -> libc::socklen_t {
    let place: *mut libc::sockaddr_storage = name;
    match to {
        SocketAddr::V4(to) => {
            let mut plain = MaybeUninit::<libc::sockaddr_in>::zeroed();
            // SAFETY: zeros are a valid sockaddr_in.
            let value = unsafe { plain.assume_init_mut() };
            value.sin_family = libc::AF_INET as libc::sa_family_t;
            value.sin_port = to.port().to_be();
            value.sin_addr.s_addr = u32::from(*to.ip()).to_be();
            // SAFETY: the storage is larger than any address and aligned for all of them.
            unsafe { place.cast::<libc::sockaddr_in>().write(*value) };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(to) => {
            let mut plain = MaybeUninit::<libc::sockaddr_in6>::zeroed();
            // SAFETY: zeros are a valid sockaddr_in6.
            let value = unsafe { plain.assume_init_mut() };
            value.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            value.sin6_port = to.port().to_be();
            value.sin6_flowinfo = to.flowinfo();
            value.sin6_scope_id = to.scope_id();
            value.sin6_addr.s6_addr = to.ip().octets();
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(*value) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}
