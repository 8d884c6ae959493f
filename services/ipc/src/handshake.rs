// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that cross the socket: a greeting each way, later new segments; between servers of one address, a request to join.
//! Everything else goes through the rings.
//!
//! - **Flow** client: `Hello` + 5 descriptors ─▶ server: `Welcome` ─▶ …  client: `AddSegment` + 1 descriptor ─▶ …  hang-up
//! - **Versions** the greeting has the oldest and the newest version that the client speaks; the welcome has the highest that both
//!   speak. Version 4 knew no range: its clients have 0 as the newest, and its servers look only at the oldest
//! - **Layout** packets of a `SOCK_SEQPACKET` socket, one struct each, little endian (`docs/formats/ipc.md`)
//! - **Owner** a received packet is hostile: its length, kind and number of descriptors are checked before it is used

use crate::address::Address;
use crate::error::Error;
use crate::layout::{MAGIC, NEWEST, OLDEST};
use bytemuck::{Pod, Zeroable};
use memlift_ground::on_wait::OnWait;
use memlift_ground::rights;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix};
use std::time::{Duration, Instant};

/// Shortest time limit of a socket.
const SHORTEST: Duration = Duration::from_millis(1);

/// Descriptors that come with a [`Hello`]: control, server's event, client's event, request and response segment.
pub const HELLO_DESCRIPTORS: usize = 5;

/// Direction of a payload segment: client to server.
pub const REQUEST: u32 = 0;
/// Direction of a payload segment: server to client.
pub const RESPONSE: u32 = 1;

/// The client's greeting.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Hello {
    pub magic: u64,
    /// Oldest version that the client speaks.
    pub oldest: u32,
    /// Newest version that the client speaks; 0 from a client of version 4.
    pub newest: u32,
    pub control_bytes: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
}

/// The server's answer.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Welcome {
    pub magic: u64,
    /// Version of this session.
    pub version: u32,
    /// 0: welcome. Otherwise the reason says why not.
    pub refused: u32,
    pub message_bytes_max: u64,
    pub outstanding_max: u32,
    pub pid: u32,
    pub reason: [u8; 160],
}

/// A further segment of the client.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct AddSegment {
    pub magic: u64,
    /// [`REQUEST`] or [`RESPONSE`].
    pub direction: u32,
    /// Its number in that direction; they come in order.
    pub index: u32,
    pub bytes: u64,
}

/// A server's request to become one more at its address (`server/join.rs`), in the place of a greeting.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Join {
    pub magic: u64,
    /// [`GROUP_VERSION`].
    pub version: u32,
    pub reserved: u32,
}

/// Its grant, which comes with the listening socket and the table of members. A refusal is a [`Welcome`] that says so.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Joined {
    pub magic: u64,
    /// [`GROUP_VERSION`].
    pub version: u32,
    pub reserved: u32,
}

/// Last byte of an arena's magic number, in the place of the major version.
pub const ARENA: u8 = b'a';

/// Version of the table of servers that share an address.
pub const GROUP_VERSION: u32 = 1;

const _: () = {
    assert!(HELLO_DESCRIPTORS <= rights::DESCRIPTORS_MAX);
    assert!(size_of::<Join>() == 16 && size_of::<Joined>() == 16);
    assert!(size_of::<Hello>() == 40);
    assert!(size_of::<Welcome>() == 192);
    assert!(size_of::<AddSegment>() == 24);
};

impl Hello {
    /// Returns the highest version that both sides speak.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] that names the versions of both, if there is none.
    pub fn agree(&self) -> Result<u32, Error> {
        let newest = self.newest.max(self.oldest);
        let agreed = newest.min(NEWEST);
        if agreed >= self.oldest.max(OLDEST) {
            return Ok(agreed);
        }
        Err(Error::peer_fault(format!(
            "the client speaks {} of the protocol, this server {}: use releases that are at most one version apart",
            versions(self.oldest, newest),
            versions(OLDEST, NEWEST)
        )))
    }
}

/// Returns a range of versions in words.
pub fn versions(oldest: u32, newest: u32) -> String {
    match oldest == newest {
        true => format!("version {oldest}"),
        false => format!("versions {oldest} to {newest}"),
    }
}

/// Returns the reason why two sides of different major versions cannot talk, if the packet is from such a side.
pub fn of_other_major(packet: &[u8]) -> Option<String> {
    let [name @ .., own] = MAGIC.to_le_bytes();
    let [start @ .., theirs] = *packet.first_chunk::<8>()?;
    (start == name && theirs != own).then(|| match theirs {
        ARENA => "one side is an arena: take its values by `Ref` or `Subscription`".into(),
        _ => format!(
            "one side is of major version {theirs}, the other of {own}: use releases of one major version on both sides"
        ),
    })
}

impl Welcome {
    /// Makes a welcome that grants these limits.
    pub fn granted(version: u32, message_bytes_max: u64, outstanding_max: u32) -> Welcome {
        Welcome {
            magic: MAGIC,
            version,
            refused: 0,
            message_bytes_max,
            outstanding_max,
            pid: std::process::id(),
            reason: [0; 160],
        }
    }

    /// Makes a refusal; the reason is cut to 160 bytes.
    pub fn refused(reason: &str) -> Welcome {
        Welcome { refused: 1, reason: cut(reason), ..Welcome::granted(NEWEST, 0, 0) }
    }

    /// Returns the reason of a refusal; empty in a welcome.
    pub fn reason(&self) -> String {
        text(&self.reason)
    }
}

/// Cuts a reason to the room that it has in a packet, between two characters.
pub fn cut<const N: usize>(reason: &str) -> [u8; N] {
    let mut end = reason.len().min(N);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = [0; N];
    bytes[..end].copy_from_slice(&reason.as_bytes()[..end]);
    bytes
}

/// Reads a reason up to its first zero byte.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Sends one packet with descriptors.
pub fn send<T: Pod>(
    socket: impl AsFd,
    packet: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), rustix::io::Errno> {
    send_with(socket, packet, descriptors, SendFlags::empty())
}

/// As [`send`], without waiting: `AGAIN` if the other side has not read what was sent before.
pub fn send_now<T: Pod>(
    socket: impl AsFd,
    packet: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), rustix::io::Errno> {
    send_with(socket, packet, descriptors, SendFlags::DONTWAIT)
}

fn send_with<T: Pod>(
    socket: impl AsFd,
    packet: &T,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), rustix::io::Errno> {
    let bytes = bytemuck::bytes_of(packet);
    rustix::io::retry_on_intr(|| rights::send(&socket, bytes, descriptors, flags)).map(drop)
}

/// Result of one read from a socket.
pub enum Received<const N: usize> {
    /// A packet and the descriptors that came with it.
    Packet([u8; N], usize, Vec<OwnedFd>),
    /// Nothing at the moment.
    Nothing,
    /// The peer hung up.
    HangUp,
}

/// Receives one packet of at most `N` bytes. With fewer descriptors than were sent, it has none. A signal ends a wait as a time limit
/// does.
pub fn receive<const N: usize>(socket: impl AsFd, flags: RecvFlags) -> Result<Received<N>, Error> {
    let mut packet = [0; N];
    let got = match rights::receive(&socket, &mut packet, flags) {
        Ok(got) => got,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Nothing),
        Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => return Ok(Received::HangUp),
        Err(errno) => return Err(Error::system("receiving from the session's socket")(errno)),
    };
    if got.bytes == 0 && got.descriptors.is_empty() {
        return Ok(Received::HangUp);
    }
    if got.is_cut {
        return Err(Error::peer_fault("a packet that is too long"));
    }
    // With some of them missing, they are not those that were meant.
    let descriptors = if got.misses_descriptors { Vec::new() } else { got.descriptors };
    Ok(Received::Packet(packet, got.bytes, descriptors))
}

/// Limits of opening a session: its time, and a callback that may end it.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// Time limit; `None`: as long as the peer lives.
    pub timeout: Option<Duration>,
    /// Callback that may end it, with [`Error::Interrupted`].
    pub on_wait: Option<OnWait>,
}

impl From<Option<Duration>> for Opening {
    fn from(timeout: Option<Duration>) -> Opening {
        Opening { timeout, on_wait: None }
    }
}

impl Opening {
    /// Begins the opening: its time starts to run.
    pub fn begin(&self) -> Patience<'_> {
        Patience { opening: self, begun: Instant::now() }
    }
}

/// An opening that is under way.
#[derive(Debug)]
pub struct Patience<'a> {
    opening: &'a Opening,
    begun: Instant,
}

impl Patience<'_> {
    /// Connects the socket. A server that does not take connections may have no room for one.
    pub fn connect(&self, socket: &OwnedFd, address: &Address, target: &SocketAddrUnix) -> Result<(), Error> {
        loop {
            self.limit(socket, Timeout::Send)?;
            // Signals may come more often than the limit ends, so each of them is a turn.
            match rustix::net::connect(socket, target) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => self.go_on()?,
                Err(rustix::io::Errno::AGAIN) if self.is_limited() => self.go_on()?,
                Err(errno) => {
                    let address = address.to_string();
                    return Err(Error::ServerUnavailable { address, source: errno.into() });
                }
            }
        }
    }

    /// Receives one packet; it never returns [`Received::Nothing`].
    pub fn receive<const N: usize>(&self, socket: impl AsFd) -> Result<Received<N>, Error> {
        loop {
            self.limit(&socket, Timeout::Recv)?;
            match receive(&socket, RecvFlags::empty())? {
                Received::Nothing => self.go_on()?,
                received => return Ok(received),
            }
        }
    }

    /// Gives the socket the limits of the opening for what is sent and received later.
    pub fn end(&self, socket: impl AsFd) -> Result<(), Error> {
        for direction in [Timeout::Send, Timeout::Recv] {
            let timeout = self.opening.timeout.map(|timeout| timeout.max(SHORTEST));
            set_socket_timeout(&socket, direction, timeout).map_err(Error::system("SO_RCVTIMEO"))?;
        }
        Ok(())
    }

    fn is_limited(&self) -> bool {
        self.opening.timeout.is_some() || self.opening.on_wait.is_some()
    }

    /// Limits the next wait to what is left, or to the time until the callback is asked again.
    fn limit(&self, socket: impl AsFd, direction: Timeout) -> Result<(), Error> {
        let left = self.opening.timeout.map(|timeout| timeout.saturating_sub(self.begun.elapsed()));
        let ask = self.opening.on_wait.as_ref().map(|_| OnWait::ASK_EVERY);
        // The kernel takes zero for no limit.
        let limit = left.into_iter().chain(ask).min().map(|limit| limit.max(SHORTEST));
        set_socket_timeout(&socket, direction, limit).map_err(Error::system("SO_RCVTIMEO"))
    }

    /// Checks that the opening may go on.
    fn go_on(&self) -> Result<(), Error> {
        if let Some(limit) = self.opening.timeout.filter(|limit| self.begun.elapsed() >= *limit) {
            return Err(Error::DeadlineExceeded { limit });
        }
        match &self.opening.on_wait {
            Some(on_wait) if !on_wait.goes_on() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }
}

/// The descriptors that a packet has to come with.
pub fn expect<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N], Error> {
    let count = descriptors.len();
    <[OwnedFd; N]>::try_from(descriptors).map_err(|_| {
        Error::peer_fault(match count {
            0 => format!(
                "no descriptors in place of {N}: none were sent, too many, or this process has too few left (RLIMIT_NOFILE)"
            ),
            _ => format!("{count} descriptors in place of {N}"),
        })
    })
}

/// Reads a packet as `T` if its length and magic are right.
pub fn parse<T: Pod>(packet: &[u8]) -> Result<T, Error> {
    if packet.len() != size_of::<T>() {
        return Err(Error::peer_fault(format!("a packet of {} bytes", packet.len())));
    }
    if packet[..8] != MAGIC.to_le_bytes() {
        return Err(Error::peer_fault(of_other_major(packet).unwrap_or_else(|| "not a memlift peer".into())));
    }
    Ok(bytemuck::pod_read_unaligned(packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_refusal_is_cut_between_characters() {
        let welcome = Welcome::refused(&"ü".repeat(200));
        assert_eq!(welcome.reason(), "ü".repeat(80));
    }

    #[test]
    fn the_highest_version_that_both_speak_is_agreed_on() {
        let agree = |oldest, newest| Hello { oldest, newest, ..Hello::zeroed() }.agree();
        assert_eq!(agree(OLDEST, NEWEST).unwrap(), NEWEST);
        // Version 4, and a client of tomorrow.
        assert_eq!(agree(4, 0).unwrap(), 4);
        assert_eq!(agree(NEWEST, NEWEST + 3).unwrap(), NEWEST);
        assert_eq!(agree(OLDEST - 2, OLDEST).unwrap(), OLDEST);
        for (oldest, newest, said) in [
            (OLDEST - 1, 0, "version 3"),
            (OLDEST - 2, OLDEST - 1, "versions 2 to 3"),
            (NEWEST + 1, NEWEST + 2, "versions 6 to 7"),
            (u32::MAX, 0, "version 4294967295"),
            (0, 0, "version 0"),
        ] {
            let error = agree(oldest, newest).err().unwrap().to_string();
            assert!(error.contains(said) && error.contains("versions 4 to 5"), "{error}");
        }
    }

    #[test]
    fn another_major_version_is_named() {
        let mut packet = bytemuck::bytes_of(&Welcome::granted(NEWEST, 0, 0)).to_vec();
        assert_eq!(of_other_major(&packet), None);
        packet[7] = 2;
        assert!(of_other_major(&packet).unwrap().contains("major version 2"));
        assert!(parse::<Welcome>(&packet).err().unwrap().to_string().contains("major version 2"));
        packet[7] = ARENA;
        assert!(parse::<Welcome>(&packet).err().unwrap().to_string().contains("an arena"));
        packet[0] = b'M';
        assert_eq!(of_other_major(&packet), None);
        assert_eq!(of_other_major(&packet[..7]), None);
    }

    #[test]
    fn foreign_packets_are_faults() {
        assert!(parse::<Hello>(&[0; 40]).is_err());
        assert!(parse::<Hello>(&[0; 39]).is_err());
        let hello = Hello { magic: MAGIC, ..Hello::zeroed() };
        assert_eq!(parse::<Hello>(bytemuck::bytes_of(&hello)).unwrap().magic, MAGIC);
    }
}
