// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carries packets through rings in shared memory, for clients on the node's own machine.
//!
//! - **Flow** client: makes a sealed memfd ─▶ connects to the node's socket ─▶ sends `Hello` with the memfd ─▶ the node maps it ─▶
//!   `Welcome` ─▶ packets go through the rings (`ring`); the socket only carries wake-ups, and its hang-up tells that the other
//!   side is gone
//! - **Layout** Hello: magic u64 · version u32 · reserved u32 · bytes of a ring u64. Welcome: magic u64 · version u32 · refused u32
//! - **Order** a side that sleeps first notes it in its park word; a side that publishes a packet and finds the note sends one
//!   byte. A send never waits
//! - **Owner** the rings' memory belongs to the client and is accounted to it. A client that breaks a rule is disconnected, without
//!   effect on others. Only processes of the same user may connect
//!
//! Wake-ups use the socket and not a futex because the socket also tells that the other side is gone, and because a node can sleep
//! on many sockets at the same time.

mod ring;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memlift_ground::complete::{Parker, WaitPolicy, Waited, Waiter};
use memlift_ground::region::{Access, Region, RegionOptions};
use memlift_ground::rights;
use memlift_ground::socket_file::SocketFile;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::{Peer, Transport, TransportError, udp::timespec};
use crate::wire::PACKET_BYTES_MAX;
use ring::Rings;

const MAGIC: u64 = u64::from_le_bytes(*b"MLWALKS1");
const VERSION: u32 = 1;
const HELLO_BYTES: usize = 24;
const WELCOME_BYTES: usize = 16;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Most clients of one node's shard.
const CONNECTIONS_MAX: usize = 256;
/// Time for which a client waits for its welcome.
const WELCOME_TIME: Duration = Duration::from_secs(5);
/// Calls of `receive` between two checks of the sockets while there is work.
const CHECK_SOCKETS_EVERY: u32 = 4096;

#[derive(Debug)]
struct Connection {
    number: u64,
    socket: OwnedFd,
    rings: Rings,
}

impl Connection {
    fn publish(&mut self) {
        let Connection { socket, rings, .. } = self;
        rings.publish(|| {
            // A full socket contains wake-ups already; a hang-up is found by the next check of the sockets.
            let _ = rustix::net::send(&*socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        });
    }
}

/// One side of the transport: a node's (many clients) or a client's (one node).
#[derive(Debug)]
pub struct Shm {
    listener: Option<(OwnedFd, Option<SocketFile>)>,
    /// Connections whose Hello has not arrived yet.
    greeting: VecDeque<OwnedFd>,
    connections: Vec<Connection>,
    turn: usize,
    next_number: u64,
    until_check: u32,
    /// Packets that were copied out of a ring together, and the end of each.
    packets: (Vec<u8>, Vec<usize>),
    waiter: Waiter,
}

fn address(name: &str) -> Result<(SocketAddrUnix, Option<PathBuf>), TransportError> {
    let bad = || TransportError::Name(name.to_owned());
    if name.contains('/') {
        return Ok((SocketAddrUnix::new(name).map_err(|_| bad())?, Some(name.into())));
    }
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=64).contains(&name.len()) || !name.bytes().all(good) {
        return Err(bad());
    }
    let uid = rustix::process::getuid().as_raw();
    Ok((
        SocketAddrUnix::new_abstract_name(format!("memlift/{uid}/walk/{name}").as_bytes())
            .map_err(|_| bad())?,
        None,
    ))
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, rustix::io::Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

impl Shm {
    fn new(listener: Option<(OwnedFd, Option<SocketFile>)>) -> Shm {
        Shm {
            listener,
            greeting: VecDeque::new(),
            connections: Vec::new(),
            turn: 0,
            next_number: 0,
            until_check: 0,
            packets: (Vec::with_capacity(PACKET_BYTES_MAX + 8), Vec::new()),
            waiter: Waiter::new(WaitPolicy::AUTO),
        }
    }

    /// Opens a node's side under a name (in the abstract namespace: per user, gone with the process) or a path with a `/`.
    ///
    /// # Errors
    ///
    /// [`TransportError::Name`], or the operating system's error: the name may be in use.
    pub fn listen(name: &str) -> Result<Shm, TransportError> {
        let (address, path) = address(name)?;
        let what = || format!("listen on shm:{name}");
        let listener = socket(SocketFlags::NONBLOCK).map_err(TransportError::system(what()))?;
        let file = match path {
            Some(path) => Some(
                SocketFile::listen(&listener, &path, None, BACKLOG)
                    .map_err(|error| TransportError::system(what())(error.into_io()))?,
            ),
            None => {
                rustix::net::bind(&listener, &address).map_err(TransportError::system(what()))?;
                rustix::net::listen(&listener, BACKLOG).map_err(TransportError::system(what()))?;
                None
            }
        };
        Ok(Shm::new(Some((listener, file))))
    }

    /// Opens another shard of the same node: a client connects to the shard that accepts it first.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn another(&self) -> Result<Shm, TransportError> {
        let (listener, _) = self.listener.as_ref().ok_or(TransportError::Gone)?;
        let listener = listener.try_clone().map_err(TransportError::system("share a listening socket"))?;
        Ok(Shm::new(Some((listener, None))))
    }

    /// Connects as a client; its only peer is `Peer::Ring(0)`.
    ///
    /// # Errors
    ///
    /// No node listens at the name, or the node refuses.
    pub fn connect(name: &str) -> Result<Shm, TransportError> {
        Shm::connect_with(name, ring::RING_BYTES)
    }

    /// Connects with rings of another size: a power of two from 64 KiB to 64 MiB.
    ///
    /// # Errors
    ///
    /// The errors of [`Shm::connect`].
    pub fn connect_with(name: &str, ring_bytes: u64) -> Result<Shm, TransportError> {
        if !ring::is_size(ring_bytes) {
            return Err(TransportError::Broken("rings are a power of two from 64 KiB to 64 MiB"));
        }
        let (address, _) = address(name)?;
        let what = || format!("connect to shm:{name} (is `memlift node` running there?)");
        let socket = socket(SocketFlags::empty()).map_err(TransportError::system(what()))?;
        retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(TransportError::system(what()))?;
        let region =
            Region::memfd("memlift:walks", ring::whole_bytes(ring_bytes), &RegionOptions::default())?;
        let rings = Rings::client(region, ring_bytes);
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(&MAGIC.to_le_bytes());
        hello[8..12].copy_from_slice(&VERSION.to_le_bytes());
        hello[16..].copy_from_slice(&ring_bytes.to_le_bytes());
        rings
            .with_fd(|fd| retry_on_intr(|| rights::send(&socket, &hello, &[fd], SendFlags::empty())))
            .map_err(TransportError::system(what()))?;
        let until = Instant::now() + WELCOME_TIME;
        let has_answered = retry_on_intr(|| {
            let left = timespec(until.saturating_duration_since(Instant::now()));
            poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left))
        });
        if has_answered.map_err(TransportError::system(what()))? == 0 {
            return Err(TransportError::system(what())(io::Error::from(io::ErrorKind::TimedOut)));
        }
        let mut welcome = [0; WELCOME_BYTES];
        let (got, _) = rustix::net::recv(&socket, &mut welcome, RecvFlags::DONTWAIT)
            .map_err(TransportError::system(what()))?;
        let good = [&MAGIC.to_le_bytes()[..], &VERSION.to_le_bytes(), &[0; 4]].concat();
        if got != WELCOME_BYTES || welcome[..] != good[..] {
            return Err(TransportError::system(what())(io::Error::other(
                "the node refused: too many clients, or another version",
            )));
        }
        let mut shm = Shm::new(None);
        shm.connections.push(Connection { number: 0, socket, rings });
        Ok(shm)
    }

    /// Sets how to wait. The default spins for up to 100 µs, as long as spinning has been successful lately.
    #[must_use]
    pub fn waiting(mut self, policy: WaitPolicy) -> Shm {
        self.waiter = Waiter::new(policy);
        self
    }

    /// Returns the number of connected clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Checks the sockets: accepts new connections, welcomes those that have sent Hello, and drops those that hung up.
    fn check_sockets(&mut self) {
        if let Some((listener, _)) = &self.listener {
            while let Ok(socket) =
                rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            {
                let own = rustix::process::getuid();
                let same = rustix::net::sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid == own);
                if same && self.connections.len() + self.greeting.len() < CONNECTIONS_MAX {
                    self.greeting.push_back(socket);
                }
            }
            for _ in 0..self.greeting.len() {
                let Some(socket) = self.greeting.pop_front() else { break };
                match greet(&socket) {
                    Ok(Some(rings)) => {
                        self.connections.push(Connection { number: self.next_number, socket, rings });
                        self.next_number += 1;
                    }
                    Ok(None) => self.greeting.push_back(socket),
                    Err(_) => {}
                }
            }
        }
        self.connections.retain(|connection| {
            let mut bytes = [0; 64];
            loop {
                match rustix::net::recv(&connection.socket, &mut bytes, RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return false,
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return error == rustix::io::Errno::AGAIN,
                }
            }
        });
    }
}

/// Maps the memory of a client that has sent Hello. Returns `None` if Hello has not arrived yet.
fn greet(socket: &OwnedFd) -> Result<Option<Rings>, TransportError> {
    let mut hello = [0; HELLO_BYTES];
    let got = match rights::receive(socket, &mut hello, RecvFlags::DONTWAIT) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(TransportError::system("a client's hello")(error)),
        Ok(got) => got,
    };
    let is_alone = got.descriptors.len() <= 1 && !got.misses_descriptors;
    let descriptor = got.descriptors.into_iter().next();
    let ring_bytes = u64::from_le_bytes(hello[16..].try_into().expect("eight bytes"));
    let start = [&MAGIC.to_le_bytes()[..], &VERSION.to_le_bytes(), &[0; 4]].concat();
    if got.bytes != HELLO_BYTES || hello[..16] != start[..] || !ring::is_size(ring_bytes) || !is_alone {
        return Err(TransportError::Broken("its hello"));
    }
    let descriptor = descriptor.ok_or(TransportError::Broken("its hello"))?;
    let region = Region::from_fd(descriptor, Access::ReadWrite, ring::whole_bytes(ring_bytes))?;
    let rings = Rings::node(region, ring_bytes)?;
    let welcome = start;
    rustix::net::send(socket, &welcome, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        .map_err(TransportError::system("a welcome"))?;
    Ok(Some(rings))
}

/// Sleeps on all sockets.
struct Sleep<'a> {
    connections: &'a [Connection],
    more: Vec<BorrowedFd<'a>>,
}

impl Parker for Sleep<'_> {
    fn prepare(&self) {
        self.connections.iter().for_each(|connection| connection.rings.own_park().prepare());
    }

    fn park(&self, until: Option<Instant>) -> io::Result<()> {
        let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let sockets = self.connections.iter().map(|connection| connection.socket.as_fd());
        let mut descriptors: Vec<PollFd<'_>> = sockets
            .chain(self.more.iter().copied())
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        match poll(&mut descriptors, left.as_ref()) {
            // A hang-up may have ended the sleep, and no ring shows one. So the wait ends here, and `check_sockets` finds the
            // hang-up.
            Ok(ready) if ready > 0 => Err(io::ErrorKind::Interrupted.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn finish(&self) {
        self.connections.iter().for_each(|connection| connection.rings.own_park().finish());
    }
}

impl Transport for Shm {
    fn receive(&mut self, most: usize, take: &mut dyn FnMut(Peer, &[u8])) -> Result<usize, TransportError> {
        if self.until_check == 0 {
            self.check_sockets();
            self.until_check = CHECK_SOCKETS_EVERY;
        }
        self.until_check -= 1;
        if self.connections.is_empty() && self.listener.is_none() {
            return Err(TransportError::Gone);
        }
        let mut taken = 0;
        let count = self.connections.len();
        let mut broken = None;
        // Connections are served in turn, each time beginning with another one, so that none starves.
        for step in 0..count {
            let index = (self.turn + step) % count;
            let Connection { number, rings, .. } = &mut self.connections[index];
            let share = ((most - taken) / (count - step)).max(1);
            let (packets, ends) = &mut self.packets;
            // All packets are copied out of the ring before any is handled: while one is copied, the cache lines of the next
            // are prefetched.
            while ends.len() < share.min(most - taken) {
                match rings.pop(packets) {
                    Ok(true) => ends.push(packets.len()),
                    Ok(false) => break,
                    Err(_) => {
                        broken = Some(index);
                        break;
                    }
                }
            }
            if ends.is_empty() {
                continue;
            }
            rings.release();
            taken += ends.len();
            let mut start = 0;
            for end in ends.drain(..) {
                take(Peer::Ring(*number), &packets[start..end]);
                start = end;
            }
            packets.clear();
        }
        self.turn = self.turn.wrapping_add(1);
        if let Some(index) = broken {
            // Dropping the connection closes its socket, so the other side sees that it was cut off.
            self.connections.remove(index);
        }
        Ok(taken)
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> Result<bool, TransportError> {
        let Peer::Ring(number) = to else { return Ok(false) };
        if packet.is_empty() || packet.len() > PACKET_BYTES_MAX {
            return Ok(false);
        }
        let Ok(index) = self.connections.binary_search_by_key(&number, |connection| connection.number) else {
            return Ok(false);
        };
        match self.connections[index].rings.push(packet) {
            Ok(taken) => Ok(taken),
            Err(_) => {
                self.connections.remove(index);
                Ok(false)
            }
        }
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        self.connections.iter_mut().for_each(Connection::publish);
        Ok(())
    }

    fn wait(&mut self, at_most: Duration) -> Result<(), TransportError> {
        let Shm { connections, waiter, listener, greeting, .. } = self;
        let more = listener
            .iter()
            .map(|(listener, _)| listener.as_fd())
            .chain(greeting.iter().map(|socket| socket.as_fd()));
        let sleep = Sleep { connections, more: more.collect() };
        let ready = || sleep.connections.iter().any(|connection| connection.rings.ready());
        match waiter.wait(&sleep, std::ptr::null(), ready, None, Some(Instant::now() + at_most)) {
            Waited::Ready => return Ok(()),
            Waited::Broken(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(TransportError::system("wait for clients")(error));
            }
            Waited::TimedOut | Waited::Broken(_) => {}
        }
        self.check_sockets();
        Ok(())
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.connections.iter().map(|connection| connection.socket.as_fd()).collect()
    }

    fn arm(&mut self) -> bool {
        // As in `wait`: mark as asleep first, then check, so that a packet that arrives in between wakes this side.
        self.connections.iter().for_each(|connection| connection.rings.own_park().prepare());
        let ready = self.connections.iter().any(|connection| connection.rings.ready());
        if ready || self.connections.is_empty() {
            self.disarm();
        }
        ready || self.connections.is_empty()
    }

    fn disarm(&mut self) {
        self.connections.iter().for_each(|connection| connection.rings.own_park().finish());
        self.check_sockets();
    }

    fn packet_bytes(&self) -> usize {
        PACKET_BYTES_MAX
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        if let Some((_, Some(file))) = &self.listener {
            file.remove();
        }
    }
}
