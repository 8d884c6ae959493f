// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Datagrams to and from the kernel, many per system call; datagrams of one length and peer are grouped into a train.
//!
//! - **Flow** [`ReceivedTrains::fill`]: recvmmsg ─▶ trains ──[`ReceivedTrains::take`]──▶ datagrams …… [`SendQueue::put`] ─▶
//!   [`SendQueue::flush`]: consecutive datagrams of one length and peer become a train ─▶ sendmmsg
//! - **Layout** a train is one buffer of datagrams of one length, the last one perhaps shorter; the length is passed in a control message
//!   (UDP_SEGMENT and UDP_GRO, udp(7)). The kernel moves a train through its layers once, at the cost of one datagram
//! - **Order** a datagram for which the kernel has no room is lost, as the network may lose it
//! - **Owner** both structures own their buffers and the pointers into them; all are in boxes that never move
//! - **Not here** waiting, and the choice of peers: `udp`
//!
//! Trains are sent to loopback addresses only: on other routes a switch may have to read each packet (`xdp`).

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Peer;
use crate::wire::{PACKET_BYTES_FRAME, PACKET_BYTES_MAX};

/// Trains per system call.
const BATCH: usize = 32;
/// Most datagrams of one train: the least limit of kernels that support trains.
const TRAIN: usize = 64;
/// Most bytes of a train, bounded by IP's length field.
const TRAIN_BYTES: usize = 65_000;
/// Bytes of a buffer: the longest train that can arrive, and a few cache lines more, so that buffers do not all begin in the
/// same set of the cache.
const BUFFER_BYTES: usize = (64 << 10) + 3 * 64;

/// Room for one control message that contains a length.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Structures that describe a batch to the kernel. Each message points only into buffers of the same value.
struct Messages {
    names: Box<[libc::sockaddr_storage]>,
    vectors: Box<[libc::iovec]>,
    controls: Box<[Control]>,
    headers: Box<[libc::mmsghdr]>,
}

impl Messages {
    fn new() -> Messages {
        // SAFETY: all three are plain C structures of integers and pointers, for which zeros are valid.
        let (name, vector, header) = unsafe { (zeroed(), zeroed(), zeroed()) };
        let mut messages = Messages {
            names: vec![name; BATCH].into_boxed_slice(),
            vectors: vec![vector; BATCH].into_boxed_slice(),
            controls: vec![Control([0; 64]); BATCH].into_boxed_slice(),
            headers: vec![header; BATCH].into_boxed_slice(),
        };
        for index in 0..BATCH {
            let header: &mut libc::msghdr = &mut messages.headers[index].msg_hdr;
            header.msg_name = (&raw mut messages.names[index]).cast();
            header.msg_iov = &raw mut messages.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut messages.controls[index]).cast();
        }
        messages
    }
}

/// Asks the kernel to deliver trains whole; returns true if it agrees.
pub(super) fn accept(socket: BorrowedFd<'_>) -> bool {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is one int, which lives as long as the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_GRO,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    set == 0
}

/// Datagrams that have arrived and were not passed on yet.
pub(super) struct ReceivedTrains {
    bytes: Box<[[u8; BUFFER_BYTES]]>,
    messages: Messages,
    /// Number of trains that have arrived; then the index of the train that is being passed on, and its bytes that were.
    filled: usize,
    taken: usize,
    offset: usize,
}

// SAFETY: the pointers in `messages` lead into boxes of the same value, to which nobody else has access.
unsafe impl Send for ReceivedTrains {}

impl ReceivedTrains {
    pub(super) fn new() -> ReceivedTrains {
        let mut arrived = ReceivedTrains {
            bytes: vec![[0; BUFFER_BYTES]; BATCH].into_boxed_slice(),
            messages: Messages::new(),
            filled: BATCH,
            taken: BATCH,
            offset: 0,
        };
        for (vector, bytes) in arrived.messages.vectors.iter_mut().zip(&mut arrived.bytes) {
            *vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: BUFFER_BYTES };
        }
        arrived
    }

    /// Returns true if there is nothing to pass on.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.filled
    }

    /// Receives the kernel's datagrams; returns true if there were any. Errors of earlier sends show up here and are
    /// ignored.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        for message in &mut self.messages.headers[..self.filled] {
            // The kernel has overwritten these lengths with the bytes that it used.
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            message.msg_hdr.msg_controllen = size_of::<Control>() as _;
            message.msg_hdr.msg_flags = 0;
        }
        (self.filled, self.taken, self.offset) = (0, 0, 0);
        // SAFETY: `headers` holds BATCH descriptions whose pointers lead to live buffers of the lengths stated.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.messages.headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if got >= 0 {
            self.filled = got as usize;
            return Ok(got > 0);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => {
                Ok(false)
            }
            _ => Err(error),
        }
    }

    /// Passes at most `most` datagrams to `take`; returns how many. A datagram longer than any packet is dropped.
    pub(super) fn take(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> usize {
        let mut count = 0;
        while self.taken < self.filled && count < most {
            let message = &self.messages.headers[self.taken];
            let bytes = &self.bytes[self.taken][..(message.msg_len as usize).min(BUFFER_BYTES)];
            let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let peer = address_of(&self.messages.names[self.taken]).filter(|_| whole);
            let each = segment_bytes(&message.msg_hdr).unwrap_or(bytes.len()).max(1);
            while count < most {
                let rest = &bytes[self.offset..];
                let datagram = &rest[..each.min(rest.len())];
                self.offset += datagram.len();
                count += 1;
                if let Some(peer) = peer
                    && datagram.len() <= PACKET_BYTES_MAX
                {
                    take(Peer::Socket(peer), datagram);
                }
                if self.offset == bytes.len() {
                    (self.taken, self.offset) = (self.taken + 1, 0);
                    break;
                }
            }
        }
        count
    }
}

/// Datagrams that leave with the next [`SendQueue::flush`].
pub(super) struct SendQueue {
    bytes: Vec<u8>,
    datagrams: Vec<(SocketAddr, usize)>,
    messages: Messages,
    /// Number of datagrams in each message.
    counts: [usize; BATCH],
    trains: bool,
}

// SAFETY: the pointers in `messages` lead into boxes of the same value, to which nobody else has access; pointers into
// `bytes` are only used within a flush.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// Makes an empty buffer. Without `trains`, each datagram is sent alone.
    pub(super) fn new(trains: bool) -> SendQueue {
        SendQueue {
            bytes: Vec::with_capacity(TRAIN_BYTES),
            datagrams: Vec::with_capacity(TRAIN * BATCH),
            messages: Messages::new(),
            counts: [0; BATCH],
            trains,
        }
    }

    /// Returns true if the buffer must be flushed before more is added.
    pub(super) fn is_full(&self) -> bool {
        self.datagrams.len() >= TRAIN * 4
    }

    pub(super) fn put(&mut self, to: SocketAddr, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.datagrams.push((to, packet.len()));
    }

    /// Sends all datagrams. A message that fails (no room, no listener, no route) is lost; the next ones are still sent.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>) {
        let (mut next, mut start) = (0, 0);
        while next < self.datagrams.len() {
            let filled = self.fill(next, start);
            // SAFETY: `fill` has described `filled` messages: live parts of `bytes` with their lengths, addresses and
            // control messages.
            let done = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    self.messages.headers.as_mut_ptr(),
                    filled as _,
                    libc::MSG_DONTWAIT as _,
                )
            };
            if done <= 0 && self.counts[0] > 1 && refuses_trains(&io::Error::last_os_error()) {
                self.trains = false;
                continue;
            }
            let gone: usize = self.counts[..usize::try_from(done).unwrap_or(0).max(1)].iter().sum();
            start += self.datagrams[next..next + gone].iter().map(|(_, bytes)| bytes).sum::<usize>();
            next += gone;
        }
        self.bytes.clear();
        self.datagrams.clear();
    }

    /// Describes the messages from datagram `next` on, which begins at byte `start`; returns how many messages that are.
    fn fill(&mut self, mut next: usize, mut start: usize) -> usize {
        let mut filled = 0;
        while filled < BATCH && next < self.datagrams.len() {
            let (to, each) = self.datagrams[next];
            let (count, bytes) = self.train(next);
            self.counts[filled] = count;
            self.messages.vectors[filled] =
                libc::iovec { iov_base: self.bytes[start..].as_mut_ptr().cast(), iov_len: bytes };
            let header = &mut self.messages.headers[filled].msg_hdr;
            header.msg_namelen = put_address(to, &mut self.messages.names[filled]);
            header.msg_controllen = 0;
            if count > 1 {
                put_segment_bytes(header, each as u16);
            }
            filled += 1;
            next += count;
            start += bytes;
        }
        filled
    }

    /// Returns how many datagrams from `next` on form one train, and their bytes.
    fn train(&self, next: usize) -> (usize, usize) {
        let (to, each) = self.datagrams[next];
        if !self.trains || !to.ip().is_loopback() || !(1..=PACKET_BYTES_FRAME).contains(&each) {
            return (1, each);
        }
        let (mut count, mut bytes) = (1, each);
        for &(other, more) in &self.datagrams[next + 1..] {
            if other != to || more > each || more == 0 || count == TRAIN || bytes + more > TRAIN_BYTES {
                break;
            }
            count += 1;
            bytes += more;
            if more < each {
                break;
            }
        }
        (count, bytes)
    }
}

/// Returns true if the error means that the kernel, or the route to the peer, does not support trains.
fn refuses_trains(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT | libc::EMSGSIZE)
    )
}

/// Returns the length of each datagram of a train that has arrived; `None` if it was not a train.
fn segment_bytes(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: `header` describes a control buffer of its own value, of which the kernel has written the used length; the
    // macros stay within that.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = control.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let bytes = libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(bytes).ok();
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

fn put_segment_bytes(header: &mut libc::msghdr, bytes: u16) {
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute with their argument.
    let (space, length) = unsafe { (libc::CMSG_SPACE(2), libc::CMSG_LEN(2)) };
    const { assert!(size_of::<Control>() >= 32) };
    header.msg_controllen = space as _;
    // SAFETY: the control buffer is larger than a header and two bytes, and aligned for the header.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(header);
        (*control).cmsg_level = libc::SOL_UDP;
        (*control).cmsg_type = libc::UDP_SEGMENT;
        (*control).cmsg_len = length as _;
        libc::CMSG_DATA(control).cast::<u16>().write_unaligned(bytes);
    }
}

fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family states that a sockaddr_in is stored there; the storage is larger and more aligned.
            let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(address, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family states that a sockaddr_in6 is stored there; the storage is larger and more aligned.
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
            // SAFETY: `name` has room for a `sockaddr_in6` and is aligned for it, and `place` is the only pointer in use to it.
            unsafe { place.cast::<libc::sockaddr_in6>().write(*value) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}
